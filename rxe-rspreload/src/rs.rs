//! The drop-in's functions, which are found by their names, and the mark of threads that are inside them. Calls of libc by
//! these threads are never for rsockets.

use core::{
    cell::Cell,
    ffi::{CStr, c_int, c_void},
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};
use libc::{epoll_event, iovec, msghdr, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t, ssize_t};

/// Looked up, but not found.
const NONE: usize = 1;

pub(crate) struct Function {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Function {
    const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    fn address(&self) -> Option<*mut c_void> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            // SAFETY: a string, and a handle that is always there.
            address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, self.name.as_ptr()) };
            if address.is_null() {
                address = ptr::without_provenance_mut(NONE);
            }
            self.address.store(address, Ordering::Relaxed);
        }
        (address.addr() != NONE).then_some(address)
    }
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is inside one of the drop-in's functions.
pub(crate) fn is_inside() -> bool {
    INSIDE.try_with(Cell::get).unwrap_or(true)
}

/// One line for each function of the drop-in.
macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        /// The drop-in's function of this name. Without the drop-in: -1 and ENOSYS.
        ///
        /// # Safety
        /// As libc's function without the `r`.
        pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
            static FUNCTION: Function = Function::new($symbol);
            type Type = unsafe extern "C" fn($($type),*) -> $result;
            let Some(address) = FUNCTION.address() else {
                crate::calls::set_errno(libc::ENOSYS);
                return -1;
            };
            // SAFETY: the address is that of the drop-in's function of this name, whose type this is.
            let function = unsafe { core::mem::transmute::<*mut c_void, Type>(address) };
            let before = INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true);
            // SAFETY: the caller's promise.
            let result = unsafe { function($($argument),*) };
            let _ = INSIDE.try_with(|inside| inside.set(before));
            result
        }
    )*};
}

functions! {
    rsocket = c"rsocket" (domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    rbind = c"rbind" (fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    rlisten = c"rlisten" (fd: c_int, backlog: c_int) -> c_int;
    raccept = c"raccept" (fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    rconnect = c"rconnect" (fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    rshutdown = c"rshutdown" (fd: c_int, how: c_int) -> c_int;
    rclose = c"rclose" (fd: c_int) -> c_int;
    rrecv = c"rrecv" (fd: c_int, out: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    rrecvfrom = c"rrecvfrom" (
        fd: c_int, out: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t
    ) -> ssize_t;
    rrecvmsg = c"rrecvmsg" (fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    rreadv = c"rreadv" (fd: c_int, list: *const iovec, count: c_int) -> ssize_t;
    rsend = c"rsend" (fd: c_int, data: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    rsendto = c"rsendto" (
        fd: c_int, data: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t
    ) -> ssize_t;
    rsendmsg = c"rsendmsg" (fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    rwritev = c"rwritev" (fd: c_int, list: *const iovec, count: c_int) -> ssize_t;
    rpoll = c"rpoll" (fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    rgetsockname = c"rgetsockname" (fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    rgetpeername = c"rgetpeername" (fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    rsetsockopt = c"rsetsockopt" (
        fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t
    ) -> c_int;
    rgetsockopt = c"rgetsockopt" (
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t
    ) -> c_int;
    rfcntl = c"rfcntl" (fd: c_int, command: c_int, argument: off_t) -> c_int;
    repoll_create = c"repoll_create" (size: c_int) -> c_int;
    repoll_ctl = c"repoll_ctl" (set: c_int, action: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    repoll_wait = c"repoll_wait" (set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int;
}
