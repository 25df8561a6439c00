//! Requests that the steering program gives to their listener's process without the service: those for service IDs to which only one
//! process listens. The first request for each goes to the service, which so learns that the service ID is used. A program may
//! have thousands of ports to which no peer ever connects.

use super::{Port, Service, courier::Refusals};
use crate::{host::message::Packet, net::MAX_SERVICES};
use std::time::{Duration, Instant};

/// Shortest time between two additions, because peers can ask for any service ID.
const PAUSE: Duration = Duration::from_millis(100);

/// The service IDs that are steered and their slots, the latest last.
#[derive(Debug, Default)]
pub(super) struct Direct {
    services: Vec<(u64, u8)>,
    /// Limits the rejects of peers that have given up, which are handed to all processes that may be meant.
    given_up: Refusals,
    /// When the last one was added.
    joined: Option<Instant>,
}

impl Service {
    /// A request for `service_id` was given to a slot. The next ones are steered to it.
    pub(super) fn make_direct(&mut self, service_id: u64, slot: u8) {
        let now = Instant::now();
        let Direct { services, joined, .. } = &mut self.direct;
        if services.contains(&(service_id, slot))
            || joined.is_some_and(|joined| now.duration_since(joined) < PAUSE)
            || self.listeners.only_owner(service_id) != Some(usize::from(slot))
        {
            return;
        }
        *joined = Some(now);
        if services.len() >= MAX_SERVICES {
            services.remove(0);
        }
        services.push((service_id, slot));
        self.steer_requests();
    }

    /// Listeners or their processes have changed.
    pub(super) fn review_direct(&mut self) {
        let before = self.direct.services.len();
        let (listeners, presences) = (&self.listeners, &self.presences);
        self.direct.services.retain(|(service_id, slot)| {
            presences.is_connected(*slot) && listeners.only_owner(*service_id) == Some(usize::from(*slot))
        });
        if self.direct.services.len() != before {
            self.steer_requests();
        }
    }

    fn steer_requests(&mut self) {
        let Some(Port { group, .. }) = &mut self.port else { return };
        // If the program cannot be attached, all packets arrive here, as before.
        let _ = group.steer_requests(self.direct.services.clone());
    }

    /// A peer has given up a request that the service has not seen. It was steered to one of the processes in this list.
    pub(super) fn give_up_direct(&mut self, packet: &Packet) {
        let mut slots: Vec<u8> = self.direct.services.iter().map(|(_, slot)| *slot).collect();
        slots.sort_unstable();
        slots.dedup();
        if slots.is_empty() || !self.direct.given_up.take() {
            self.counters.dropped += 1;
            return;
        }
        for slot in slots {
            self.dispatch(slot, packet.clone());
        }
    }
}
