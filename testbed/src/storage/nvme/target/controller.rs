//! Controllers. A controller is created by Connect on an admin queue, and is removed with that queue.

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
    /// The controller ID.
    pub(super) id: u16,
    /// The name of the host that it belongs to.
    pub(super) host: String,
    /// Whether it is a discovery controller, which lists subsystems and has no namespace.
    pub(super) is_discovery: bool,
    /// Its configuration (property CC).
    pub(super) configuration: AtomicU32,
    /// Time in milliseconds after which a silent initiator is dropped; 0 means never.
    pub(super) keep_alive: AtomicU32,
    /// Number of I/O queues that it may have.
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

    /// How long the initiator may be silent (Base, 5.18); `None` if there is no limit.
    pub(super) fn keep_alive(&self) -> Option<Duration> {
        match self.keep_alive.load(Ordering::Acquire) {
            0 => None,
            millis => Some(Duration::from_millis(millis.into())),
        }
    }
}

/// All controllers of a target.
#[derive(Debug, Default)]
pub(super) struct Controllers(Mutex<HashMap<u16, Arc<Controller>>>);

impl Controllers {
    /// Creates a controller; `None` if all IDs are in use.
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

    /// The controller with this ID.
    pub(super) fn get(&self, id: u16) -> Option<Arc<Controller>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// Removes a controller. The threads of its I/O queues notice this and end.
    pub(super) fn remove(&self, controller: &Controller) {
        controller.ended.store(true, Ordering::Release);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&controller.id);
    }
}
