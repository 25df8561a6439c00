//! Requests that wait a moment for somebody to listen. Programs agree on when to connect by other ways than this one
//! (perftest -R does), and then the listener and the request race; a busy host must not decide that against them. A
//! kernel, where nobody has to be woken to listen, refuses at once; its peers wait for seconds.

use super::{Service, packets};
use crate::host::message::Packet;
use rxe_core::wire::Packet as Decoded;
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// How long one waits.
const PATIENCE: Duration = Duration::from_millis(100);
/// Requests that wait at most; others are refused at once.
const MOST: usize = 256;

/// Requests that nobody listens for, the oldest in front.
pub(super) type Unheard = VecDeque<Request>;

#[derive(Debug)]
pub(super) struct Request {
    service_id: u64,
    packet: Packet,
    due: Instant,
}

impl Service {
    /// Keeps a request that nobody listens for, for now.
    pub(super) fn keep(&mut self, service_id: u64, packet: Packet) {
        if self.unheard.len() < MOST {
            self.unheard.push_back(Request { service_id, packet, due: Instant::now() + PATIENCE });
        } else {
            self.give_up(&packet);
        }
    }

    /// Somebody listens who did not.
    pub(super) fn serve_unheard(&mut self) {
        for request in core::mem::take(&mut self.unheard) {
            match self.listener_of(request.service_id, request.packet.meta().dst) {
                Some(slot) => self.dispatch_request(slot, request.packet),
                None => self.unheard.push_back(request),
            }
        }
    }

    /// Refuses those that have waited long enough.
    pub(super) fn refuse_unheard(&mut self) {
        let now = Instant::now();
        while self.unheard.front().is_some_and(|request| request.due <= now) {
            if let Some(request) = self.unheard.pop_front() {
                self.give_up(&request.packet);
            }
        }
    }

    /// How long until some are to be refused.
    pub(super) fn until_refusals(&self) -> Option<Duration> {
        let left = self.unheard.front()?.due.saturating_duration_since(Instant::now());
        // Waiting is counted in milliseconds.
        Some(left.max(Duration::from_millis(1)))
    }

    fn give_up(&mut self, packet: &Packet) {
        if let Ok(decoded) = Decoded::decode(&packet.bytes) {
            self.refuse(&packet.meta(), &decoded);
        }
    }

    pub(super) fn listener_of(&self, service_id: u64, address: std::net::IpAddr) -> Option<u8> {
        self.listeners.find(service_id, address).and_then(|owner| u8::try_from(owner).ok())
    }

    /// Gives a request to its listener's process, and remembers to whom.
    pub(super) fn dispatch_request(&mut self, slot: u8, packet: Packet) {
        let asker =
            Decoded::decode(&packet.bytes).ok().and_then(|decoded| packets::asker_of_req(decoded.payload));
        if self.dispatch(slot, packet)
            && let Some(asker) = asker
        {
            if self.askers.len() >= packets::MAX_ASKERS {
                self.askers.clear();
            }
            self.askers.insert(asker, slot);
        }
    }
}
