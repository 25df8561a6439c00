//! Requests for which programs wait for an answer. They are sent again, and returned if there is no answer.

use super::{Origin, device_of, lids::Lids};
use crate::host::{
    mads::{ManagedMad, TIMED_OUT},
    service::Service,
};
use rxe_fabric::mad::Mad;
use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

/// Most requests for which one program waits. For others it gets no answer.
const MOST: usize = 256;
/// Longest wait. A program may ask for more, but not for ever.
const LONGEST: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct Pending {
    /// The program's connection.
    pub(super) key: usize,
    pub(super) mad: ManagedMad,
    /// The host that is asked. `None` if there is none with that LID.
    to: Option<IpAddr>,
    until: Instant,
}

fn patience(mad: &ManagedMad) -> Duration {
    Duration::from_millis(mad.timeout_ms.into()).min(LONGEST)
}

impl Service {
    /// Notes a request for which the program waits for an answer, if it does.
    pub(super) fn expect(&mut self, key: usize, mad: ManagedMad, to: Option<IpAddr>) {
        if mad.timeout_ms == 0 {
            return;
        }
        let until = Instant::now() + patience(&mad);
        if self.mads.pending.iter().filter(|pending| pending.key == key).count() >= MOST {
            self.give_mad(key, ManagedMad { status: TIMED_OUT, ..mad });
            return;
        }
        self.mads.pending.push(Pending { key, mad, to, until });
    }

    /// An answer has arrived. `length` bytes of it are valid.
    pub(super) fn complete(&mut self, from: &Origin, mad: &Mad, length: usize) {
        self.finish(from, mad, mad.0[..length.min(mad.0.len())].to_vec());
    }

    /// The same for an answer that may be longer than a datagram. `mad` is its header.
    pub(super) fn finish(&mut self, from: &Origin, mad: &Mad, bytes: Vec<u8>) {
        let is_it = |pending: &Pending| {
            let asked = Mad::of(&pending.mad.bytes);
            let same = asked.is_some_and(|asked| (asked.tid(), asked.class()) == (mad.tid(), mad.class()));
            same && pending.to == Some(from.remote)
        };
        let Some(place) = self.mads.pending.iter().position(is_it) else {
            self.counters.dropped += u64::from(!from.is_own());
            return;
        };
        let Pending { key, mad: asked, .. } = self.mads.pending.swap_remove(place);
        let address = self.address_from(from, Lids::of);
        self.give_mad(key, ManagedMad { status: 0, address, bytes, ..asked });
    }

    /// Repeats or returns the requests that were not answered in time. Asks the processes for their counters when that is due.
    pub(in crate::host::service) fn end_mads(&mut self) {
        self.count_next();
        let now = Instant::now();
        let late: Vec<Pending> = self.mads.pending.extract_if(.., |pending| pending.until <= now).collect();
        for Pending { key, mut mad, to, .. } in late {
            if mad.retries == 0 {
                self.give_mad(key, ManagedMad { status: TIMED_OUT, ..mad });
                continue;
            }
            mad.retries -= 1;
            let until = now + patience(&mad);
            let device = self.mads.ports.get(&key).and_then(|port| device_of(port.device));
            let way = device.zip(to).and_then(|(device, to)| self.way(&device, to, &mad.address));
            let again = way.zip(Mad::of(&mad.bytes));
            self.mads.pending.push(Pending { key, mad, to, until });
            if let Some((way, again)) = again {
                self.send_mad(&way, &again);
            }
        }
    }

    /// How long until [`Self::end_mads`] has something to do.
    pub(in crate::host::service) fn until_late_mads(&self) -> Option<Duration> {
        let now = Instant::now();
        let late = self.mads.pending.iter().map(|pending| pending.until.saturating_duration_since(now)).min();
        let next = late.into_iter().chain(self.until_counting()).min()?;
        // Waits are counted in milliseconds.
        Some(next.max(Duration::from_millis(1)))
    }
}
