//! Controllers: made by Connect on an admin queue, gone with that queue.

use core::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// A controller.
#[derive(Debug)]
pub(super) struct Controller {
    /// Its number.
    pub(super) id: u16,
    /// Whose it is.
    pub(super) host: String,
    /// It tells of subsystems, and has no namespace.
    pub(super) is_discovery: bool,
    /// Its configuration (property CC).
    pub(super) configuration: AtomicU32,
    /// Milliseconds after which a silent initiator is given up; 0 never.
    pub(super) keep_alive: AtomicU32,
    /// I/O queues that it may have.
    pub(super) granted: AtomicU32,
    ended: AtomicBool,
}

impl Controller {
    pub(super) fn is_enabled(&self) -> bool {
        self.configuration.load(Ordering::Acquire) & 1 == 1
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// How long the initiator may be silent (Base, 5.18); none if it may always be.
    pub(super) fn keep_alive(&self) -> Option<Duration> {
        match self.keep_alive.load(Ordering::Acquire) {
            0 => None,
            millis => Some(Duration::from_millis(millis.into())),
        }
    }
}

/// All of a target.
#[derive(Debug, Default)]
pub(super) struct Controllers(Mutex<HashMap<u16, Arc<Controller>>>);

impl Controllers {
    /// Makes one; none if all numbers are taken.
    pub(super) fn make(&self, host: &str, is_discovery: bool, keep_alive: u32) -> Option<Arc<Controller>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id = (1..0xfff0).find(|id| !all.contains_key(id))?;
        let controller = Arc::new(Controller {
            id,
            host: host.to_owned(),
            is_discovery,
            configuration: AtomicU32::new(0),
            keep_alive: AtomicU32::new(keep_alive),
            granted: AtomicU32::new(0),
            ended: AtomicBool::new(false),
        });
        all.insert(id, Arc::clone(&controller));
        Some(controller)
    }

    /// One by its number.
    pub(super) fn get(&self, id: u16) -> Option<Arc<Controller>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// Ends one: the threads of its I/O queues see that.
    pub(super) fn remove(&self, controller: &Controller) {
        controller.ended.store(true, Ordering::Release);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&controller.id);
    }
}
