//! Requests that wait a moment for a listener. Programs may agree by other means on when to connect
//! (perftest -R does), and then the listener and the request race. They must not fail because the host is busy. A
//! kernel refuses at once, because no process has to be woken there in order to listen. Peers wait for seconds. Requests for a listener
//! that has to rejoin a new service wait, too.

use super::{Service, packets};
use crate::host::message::Packet;
use rxe_core::wire::Packet as Decoded;
use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

/// How long a request waits for a listener.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long it waits for a listener that has to rejoin.
const ABSENCE: Duration = Duration::from_secs(1);
/// Most requests that wait. Others are refused at once.
const MOST: usize = 256;

/// The requests that wait.
pub(super) type Unheard = Vec<Request>;

#[derive(Debug)]
pub(super) struct Request {
    service_id: u64,
    packet: Packet,
    due: Instant,
}

impl Service {
    /// Gives a request to its listener, or keeps it for a while.
    pub(super) fn take_request(&mut self, service_id: u64, packet: Packet) {
        let listener = self.listener_of(service_id, packet.meta().dst);
        match listener {
            Some(slot) if self.presences.is_connected(slot) => {
                self.dispatch_request(service_id, slot, packet);
            }
            _ if self.unheard.len() < MOST => {
                let due = Instant::now() + if listener.is_some() { ABSENCE } else { PATIENCE };
                self.unheard.push(Request { service_id, packet, due });
            }
            _ => self.give_up(service_id, &packet),
        }
    }

    /// Called when a listener or a process is new: tries the requests that wait.
    pub(super) fn serve_unheard(&mut self) {
        for request in core::mem::take(&mut self.unheard) {
            match self.listener_of(request.service_id, request.packet.meta().dst) {
                Some(slot) if self.presences.is_connected(slot) => {
                    self.dispatch_request(request.service_id, slot, request.packet)
                }
                _ => self.unheard.push(request),
            }
        }
    }

    /// Refuses the requests that have waited long enough.
    pub(super) fn refuse_unheard(&mut self) {
        let now = Instant::now();
        let is_due = |request: &mut Request| request.due <= now;
        let due: Vec<Request> = self.unheard.extract_if(.., is_due).collect();
        for request in due {
            self.give_up(request.service_id, &request.packet);
        }
    }

    /// How long until the next of them is due.
    pub(super) fn until_refusals(&self) -> Option<Duration> {
        let due = self.unheard.iter().map(|request| request.due).min()?;
        // Waits are counted in milliseconds.
        Some(due.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)))
    }

    fn give_up(&mut self, service_id: u64, packet: &Packet) {
        if self.listener_of(service_id, packet.meta().dst).is_some() {
            // The sender asks again, and the listener may be there by then.
            self.counters.dropped += 1;
        } else if let Ok(decoded) = Decoded::decode(&packet.bytes) {
            self.refuse(&packet.meta(), &decoded);
        }
    }

    pub(super) fn listener_of(&self, service_id: u64, address: IpAddr) -> Option<u8> {
        self.listeners.find(service_id, address).and_then(|owner| u8::try_from(owner).ok())
    }

    /// Gives a request to its listener's process, and remembers to whom.
    fn dispatch_request(&mut self, service_id: u64, slot: u8, packet: Packet) {
        let asker =
            Decoded::decode(&packet.bytes).ok().and_then(|decoded| packets::asker_of_req(decoded.payload));
        if !self.dispatch(slot, packet) {
            return;
        }
        if let Some(asker) = asker {
            if self.askers.len() >= packets::MAX_ASKERS {
                self.askers.clear();
            }
            self.askers.insert(asker, slot);
        }
        self.make_direct(service_id, slot);
    }
}
