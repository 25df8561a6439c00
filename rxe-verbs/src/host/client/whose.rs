//! Connection requests that arrive at all processes of the host (those of RoCE v1), and for which no process listens. The service
//! decides which process is to refuse them.

use super::{Host, Shared};
use crate::{
    host::message::{ToService, encode},
    sys::{fork::is_own, lock},
};
use std::{
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
    sync::{Mutex, PoisonError},
};

/// Most requests that the service is asked about at a time. If there are more, all are forgotten, and their senders repeat them.
const MOST: usize = 256;

/// The requests that the service was asked about, and its answers.
#[derive(Debug, Default)]
pub(super) struct Verdicts(Mutex<HashMap<u64, Option<bool>>>);

impl Verdicts {
    /// Whether the service is to be asked about a request. False if it was asked before, and the verdict was not used yet.
    fn begin(&self, request: u64) -> bool {
        let mut all = lock(&self.0);
        if all.len() >= MOST && !all.contains_key(&request) {
            // These are requests that were not repeated.
            all.clear();
        }
        match all.entry(request) {
            Entry::Vacant(place) => {
                place.insert(None);
                true
            }
            // A repetition of the same request. One verdict is for both.
            Entry::Occupied(_) => false,
        }
    }

    pub(super) fn note(&self, request: u64, yours: bool) {
        if let Some(verdict) = lock(&self.0).get_mut(&request) {
            *verdict = Some(yours);
        }
    }

    fn take(&self, request: u64) -> bool {
        lock(&self.0).remove(&request).flatten() == Some(true)
    }
}

impl Host {
    /// Asks the service whether this process is to answer a request. Does not wait.
    pub(crate) fn ask_whose(&self, request: u64, service_id: u64, address: IpAddr) {
        if is_own(self.generation) && self.shared.verdicts.begin(request) {
            self.shared.mention(&ToService::Whose { request, service_id, address });
        }
    }

    /// Tells the service that this process answers a request that has arrived at all processes. The message may be lost.
    pub(crate) fn has_taken(&self, request: u64) {
        if is_own(self.generation) {
            self.shared.mention(&ToService::Taken { request });
        }
    }

    /// Whether the service has decided that this process is to answer that request.
    pub(crate) fn is_ours(&self, request: u64) -> bool {
        is_own(self.generation) && self.shared.verdicts.take(request)
    }
}

impl Shared {
    /// Sends a message that may be lost: if the service is too busy or has ended.
    pub(super) fn mention(&self, message: &ToService) {
        let channel = self.channel.read().unwrap_or_else(PoisonError::into_inner);
        if channel.is_intact() {
            let _ = channel.send(&encode(message), &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_verdict_that_was_asked_for_counts_and_once() {
        let verdicts = Verdicts::default();
        verdicts.note(1, true);
        assert!(!verdicts.take(1), "nobody asked");
        assert!(verdicts.begin(1) && !verdicts.begin(1), "asked once");
        verdicts.note(1, true);
        assert!(verdicts.take(1) && !verdicts.take(1));
        verdicts.begin(2);
        assert!(!verdicts.take(2), "no answer yet");
        verdicts.begin(3);
        verdicts.note(3, false);
        assert!(!verdicts.take(3), "somebody else's");
        (0..10_000).for_each(|request| _ = verdicts.begin(request));
        assert!(lock(&verdicts.0).len() <= MOST);
    }
}
