//! Requests that the steering gives to their listener's process without the service: those for service IDs that one process
//! alone listens to. The first request for each comes by the service, which then knows that there are some; a program may
//! have thousands of ports to which nobody ever connects.

use super::{Port, Service, courier::Refusals};
use crate::{host::message::Packet, net::MAX_SERVICES};
use std::time::{Duration, Instant};

/// Service IDs join no more often than that: peers ask for what they like.
const PAUSE: Duration = Duration::from_millis(100);

/// The service IDs that are steered, the latest last, and to which slots.
#[derive(Debug, Default)]
pub(super) struct Direct {
    services: Vec<(u64, u8)>,
    /// Notes that somebody has given up, to all who may be meant.
    given_up: Refusals,
    /// When the last one joined.
    joined: Option<Instant>,
}

impl Service {
    /// A request for `service_id` was given to a slot: the next ones find it by themselves.
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

    /// Listeners or their processes have come or gone.
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
        // Where the program cannot be attached all packets come here, as before.
        let _ = group.steer_requests(self.direct.services.clone());
    }

    /// Somebody has given up a request that did not come by us: it is one of theirs whose requests never do.
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
