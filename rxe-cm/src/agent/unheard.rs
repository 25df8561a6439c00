//! Requests for services that nobody listens to yet wait a moment: programs that agree by other ways on when to connect
//! (perftest -R does) let the listener and the request race, and a busy host must not decide that against them. Kernels
//! refuse at once; no peer minds the moment, as all wait for seconds.

use super::{Turn, gsi::Arrival};
use crate::proto::ServiceId;
use core::time::Duration;
use rxe_core::time::Instant;
use rxe_verbs::GidType;
use std::{collections::VecDeque, net::IpAddr};

/// How long one waits.
const PATIENCE: Duration = Duration::from_millis(100);
/// Requests that wait at most; others are refused at once.
const MOST: usize = 256;

/// Requests that wait, the oldest in front.
#[derive(Debug, Default)]
pub(super) struct Unheard(VecDeque<Request>);

#[derive(Debug)]
struct Request {
    service: ServiceId,
    arrival: Arrival,
    due: Instant,
}

/// The same number in all processes that a request has come to, whatever compiled them: FNV-1a of its addresses and its MAD.
fn number_of(arrival: &Arrival) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let octets = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let (src, dst) = (octets(arrival.src), octets(arrival.dst));
    let bytes = src.iter().chain(&dst).chain(&arrival.mad);
    bytes.fold(BASIS, |number, byte| (number ^ u64::from(*byte)).wrapping_mul(PRIME))
}

impl Unheard {
    /// When the first is to be refused.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.front().map(|request| request.due)
    }
}

impl Turn<'_> {
    /// Whether a request waits now, instead of being refused.
    pub(super) fn may_wait(&mut self, service: ServiceId, arrival: &Arrival) -> bool {
        if self.state.unheard.0.len() >= MOST {
            return false;
        }
        let shared = arrival.gid_type == GidType::RoceV1;
        match (arrival.waits, self.agent.home.host_port()) {
            (0, _) if !self.is_listened_to(service) => {}
            // Every process of the host hears those of RoCE v1, and another one may listen.
            (0 | 1, Some(port)) if shared => port.ask_whose(number_of(arrival), service.0, arrival.dst),
            _ => return false,
        }
        let waits = if shared && self.is_listened_to(service) { 2 } else { arrival.waits + 1 };
        let arrival = Arrival { waits, ..*arrival };
        self.state.unheard.0.push_back(Request { service, arrival, due: self.now + PATIENCE });
        true
    }

    /// This process answers a request, which others may have heard.
    pub(super) fn tell_taken(&self, arrival: &Arrival) {
        if arrival.gid_type == GidType::RoceV1
            && let Some(port) = self.agent.home.host_port()
        {
            port.has_taken(number_of(arrival));
        }
    }

    /// Whether a request that this process does not take is its to refuse.
    pub(super) fn is_ours_to_refuse(&self, arrival: &Arrival) -> bool {
        match self.agent.home.host_port() {
            Some(port) if arrival.gid_type == GidType::RoceV1 => port.is_ours(number_of(arrival)),
            // Others come by the service, or nobody else has the port.
            _ => true,
        }
    }

    /// Somebody listens who did not.
    pub(crate) fn hear_waiting(&mut self) {
        for request in core::mem::take(&mut self.state.unheard.0) {
            if self.is_listened_to(request.service) {
                self.take_request_of(&request.arrival);
            } else {
                self.state.unheard.0.push_back(request);
            }
        }
    }

    /// Those that have waited long enough.
    pub(super) fn refuse_waiting(&mut self) {
        while self.state.unheard.deadline().is_some_and(|due| due <= self.now) {
            if let Some(request) = self.state.unheard.0.pop_front() {
                self.take_request_of(&request.arrival);
            }
        }
    }
}
