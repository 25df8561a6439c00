//! The open ports, by their descriptors.

use rxe_verbs::host::MadPort;
use std::{
    collections::BTreeMap,
    ffi::c_int,
    os::fd::{AsFd, AsRawFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

static OPEN: Mutex<BTreeMap<c_int, Arc<MadPort>>> = Mutex::new(BTreeMap::new());

fn all() -> MutexGuard<'static, BTreeMap<c_int, Arc<MadPort>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stores a port. Returns its number for the program, which is that of its descriptor.
pub(crate) fn keep(port: MadPort) -> c_int {
    let number = port.as_fd().as_raw_fd();
    if let Some(before) = all().insert(number, Arc::new(port)) {
        // The program has closed the descriptor of the earlier port itself. The number now belongs to the new port, and must
        // not be closed again.
        core::mem::forget(before);
    }
    number
}

/// The port with a number.
pub(crate) fn port(number: c_int) -> Option<Arc<MadPort>> {
    all().get(&number).cloned()
}

/// Closes a port. It is dropped when no thread is in a call any more.
pub(crate) fn close(number: c_int) {
    let port = all().remove(&number);
    drop(port);
}
