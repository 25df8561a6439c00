//! The functions of libc that ours replace.

use core::{
    ffi::{CStr, c_void},
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

/// One of these functions. It is looked up at its first use.
pub(crate) struct Real {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address.
    pub(crate) fn address(&self) -> *mut c_void {
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            // SAFETY: a string, and a handle that is always there.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            if address.is_null() {
                // The program calls it, although this libc does not have it.
                // SAFETY: ends the process.
                unsafe { libc::abort() };
            }
            self.address.store(address, Ordering::Relaxed);
        }
        address
    }
}
