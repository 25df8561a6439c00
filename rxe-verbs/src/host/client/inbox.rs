//! Asking the service for the inboxes of other processes of the host.

use super::{Host, Shared};
use crate::{
    host::message::ToService,
    net::{InboxFiles, Ways},
    sys::{fork::is_own, lock},
};
use std::{
    net::IpAddr,
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

/// How long the connection of a queue pair waits for the answer. Without an answer packets go by the sockets.
const PATIENCE: Duration = Duration::from_millis(200);

/// The questions to the service, and its answers.
#[derive(Debug)]
pub(super) struct Asker {
    ways: Arc<Ways>,
    /// Number of answers received, by slot.
    answers: Mutex<[u32; 256]>,
    answered: Condvar,
}

impl Asker {
    pub(super) fn new(ways: Arc<Ways>) -> Self {
        Self { ways, answers: Mutex::new([0; 256]), answered: Condvar::new() }
    }

    pub(super) fn counters(&self) -> [(&'static str, u64); 2] {
        self.ways.counters()
    }
}

impl Host {
    /// Called before a queue pair sends to the process with `slot`, from the first of `addresses` to the second. If that is a
    /// process of this host that can be reached through memory, the way to it is open when this returns. So all packets of the queue
    /// pair take the same way, and none overtakes another.
    pub(crate) fn open_way(&self, addresses: (IpAddr, IpAddr), slot: u8) {
        let Some(asker) = self.shared.ways.as_ref().filter(|_| is_own(self.generation)) else { return };
        if !asker.ways.lacks(addresses, slot) {
            return;
        }
        let index = usize::from(slot);
        let before = lock(&asker.answers)[index];
        self.shared.mention(&ToService::Inbox { slot });
        let none_yet = |answers: &mut [u32; 256]| answers[index] == before;
        // Without an answer in time packets go by the sockets.
        let answers = lock(&asker.answers);
        drop(
            asker
                .answered
                .wait_timeout_while(answers, PATIENCE, none_yet)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}

impl Shared {
    /// The service has answered.
    pub(super) fn note_inbox(&self, slot: u8, fds: Vec<OwnedFd>) {
        let Some(asker) = &self.ways else { return };
        if let Ok([memory, event, owner]) = <[OwnedFd; 3]>::try_from(fds)
            && let Ok(inbox) = InboxFiles::adopt([memory, event])
        {
            // If it cannot be mapped, packets go by the sockets.
            let _ = asker.ways.open(slot, inbox, owner);
        }
        let answers = &mut lock(&asker.answers)[usize::from(slot)];
        *answers = answers.wrapping_add(1);
        asker.answered.notify_all();
    }
}
