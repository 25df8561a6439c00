//! Import of a device, its domains and regions by another part of the process (ibv_import_device(3)). Objects of another
//! process cannot be imported, because they exist in that process only.

use crate::{
    border::{Errno, INVALID, Owned, Result, given, pointer, quietly},
    c::{
        self, Pointer,
        context::{Context as CContext, ContextPtr},
    },
    object::{Context, Mr, Pd, Users},
};
use core::{
    ffi::c_int,
    ptr,
    sync::atomic::{AtomicU32, AtomicU64},
};
use nix::sys::{
    memfd::{MFdFlags, memfd_create},
    stat::{FileStat, fstat},
};
use rxe_verbs::PerProcess;
use std::{
    os::fd::{BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, Weak},
};

/// The contexts that are open.
static OPEN: PerProcess<Vec<Weak<Context>>> = PerProcess::new(Vec::new);

/// A descriptor by which a context is found, also by a duplicate of it.
pub(super) fn command_fd() -> Result<OwnedFd> {
    memfd_create(c"rxe-context", MFdFlags::MFD_CLOEXEC).map_err(|errno| Errno(errno as c_int))
}

/// Adds a context that was opened.
pub(super) fn opened(context: &Arc<Context>) {
    let mut open = OPEN.lock();
    open.retain(|entry| entry.strong_count() > 0);
    open.push(Arc::downgrade(context));
}

const fn identity(about: &FileStat) -> (u64, u64) {
    (about.st_dev, about.st_ino)
}

/// ibv_import_device(3): returns the same context once more. It has to be closed as often as it was opened and imported.
#[unsafe(no_mangle)]
extern "C" fn ibv_import_device(fd: c_int) -> *mut CContext {
    pointer(|| {
        if fd < 0 {
            return Err(Errno(libc::EBADF));
        }
        // SAFETY: used during this call only. If it is not open, the system call fails.
        let wanted = fstat(unsafe { BorrowedFd::borrow_raw(fd) }).map_err(|errno| Errno(errno as c_int))?;
        let open = OPEN.lock();
        let mut contexts = open.iter().filter_map(Weak::upgrade);
        let found = contexts
            .find(|context| fstat(&context.command).is_ok_and(|about| identity(&about) == identity(&wanted)));
        Ok(Context::as_c(Arc::into_raw(found.ok_or(INVALID)?)).cast_mut())
    })
}

/// ibv_import_pd(3): another handle of the same domain.
#[unsafe(no_mangle)]
extern "C" fn ibv_import_pd(context: ContextPtr, handle: u32) -> *mut Pd {
    pointer(|| {
        let context = Context::of(context)?;
        let mut found = None;
        context.pds.find(&handle, |pd| found = Some(pd.pd.clone()));
        Ok(super::pd::make(context, found.ok_or(INVALID)?, None))
    })
}

/// ibv_unimport_pd(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_pd(pd: Owned<Pd>) {
    quietly(|| pd.free());
}

/// ibv_import_mr(3): the region's keys. Its address is not told.
#[unsafe(no_mangle)]
extern "C" fn ibv_import_mr(pd: Option<&Pd>, handle: u32) -> *mut Mr {
    pointer(|| {
        let pd = given(pd)?;
        let mut found = None;
        pd.context.mrs.find(&handle, |mr| {
            found = mr.lock().as_ref().map(|mr| (mr.lkey().0, mr.len() as u64));
        });
        let (key, len) = found.ok_or(INVALID)?;
        let c = c::object::Mr {
            context: pd.context.pointer(),
            pd: super::memory::c_pd(pd),
            addr: Pointer::new(ptr::null_mut()),
            length: AtomicU64::new(len),
            handle,
            lkey: AtomicU32::new(key),
            rkey: AtomicU32::new(key),
        };
        Ok(Box::into_raw(Box::new(Mr {
            c,
            mr: Mutex::new(None),
            pd: Mutex::new(Users::clone(&pd.users)),
            context: Arc::clone(&pd.context),
            _of: None,
        })))
    })
}

/// ibv_unimport_mr(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_mr(mr: Owned<Mr>) {
    quietly(|| mr.free());
}
