//! Requests for services to which no id listens yet wait a moment. Programs like perftest -R start listener and client at nearly the
//! same time, and on a busy host the request may come first. Kernels refuse such requests at once. The wait does no harm, because
//! all peers wait for an answer for seconds.

use super::{Turn, gsi::Arrival};
use crate::proto::ServiceId;
use core::time::Duration;
use rxe_core::time::Instant;
use rxe_verbs::GidType;
use std::{collections::VecDeque, net::IpAddr};

/// How long a request waits.
const PATIENCE: Duration = Duration::from_millis(100);
/// Most requests that wait. Further ones are refused at once.
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

/// A number for a request that is the same in all processes that received it, and in all builds: FNV-1a of its addresses and its MAD.
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
    /// When the first one has to be refused.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.front().map(|request| request.due)
    }
}

impl Turn<'_> {
    /// Lets a request wait, if it may. False: it has to be refused now.
    pub(super) fn may_wait(&mut self, service: ServiceId, arrival: &Arrival) -> bool {
        if self.state.unheard.0.len() >= MOST {
            return false;
        }
        let shared = arrival.gid_type == GidType::RoceV1;
        match (arrival.waits, self.agent.home.host_port()) {
            (0, _) if !self.is_listened_to(service) => {}
            // All processes of the host receive requests of RoCEv1, and another one may listen.
            (0 | 1, Some(port)) if shared => port.ask_whose(number_of(arrival), service.0, arrival.dst),
            _ => return false,
        }
        let waits = if shared && self.is_listened_to(service) { 2 } else { arrival.waits + 1 };
        let arrival = Arrival { waits, ..*arrival };
        self.state.unheard.0.push_back(Request { service, arrival, due: self.now + PATIENCE });
        true
    }

    /// This process answers a request that other processes may have received, too.
    pub(super) fn tell_taken(&self, arrival: &Arrival) {
        if arrival.gid_type == GidType::RoceV1
            && let Some(port) = self.agent.home.host_port()
        {
            port.has_taken(number_of(arrival));
        }
    }

    /// Whether this process has to refuse a request for which it has no listener.
    pub(super) fn is_ours_to_refuse(&self, arrival: &Arrival) -> bool {
        match self.agent.home.host_port() {
            Some(port) if arrival.gid_type == GidType::RoceV1 => port.is_ours(number_of(arrival)),
            // Other requests come by the host service, or this process alone has the port.
            _ => true,
        }
    }

    /// An id has begun to listen.
    pub(crate) fn hear_waiting(&mut self) {
        for request in core::mem::take(&mut self.state.unheard.0) {
            if self.is_listened_to(request.service) {
                self.take_request_of(&request.arrival);
            } else {
                self.state.unheard.0.push_back(request);
            }
        }
    }

    /// Takes the requests that have waited long enough.
    pub(super) fn refuse_waiting(&mut self) {
        while self.state.unheard.deadline().is_some_and(|due| due <= self.now) {
            if let Some(request) = self.state.unheard.0.pop_front() {
                self.take_request_of(&request.arrival);
            }
        }
    }
}
