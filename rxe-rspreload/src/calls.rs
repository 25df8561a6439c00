//! The functions of libc that create and use sockets; `descriptors` has those for any descriptor. Functions that are variadic in
//! libc always take their optional argument here: the calling conventions of supported hosts put it in the same place, and libc
//! reads it only if it was given.

use crate::{
    choice,
    descriptors::{fcntl, is_new},
    fork,
    plain::{become_plain, own_address},
    rs,
    table::{self, Entry},
};
use core::ffi::{c_int, c_ulong, c_void};
use libc::{iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = errno };
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() }
}

/// Calls libc's function of that name.
macro_rules! real {
    ($symbol:literal as fn($($type:ty),*) -> $result:ty, $($argument:expr),*) => {{
        static REAL: crate::real::Real = crate::real::Real::new($symbol);
        type Function = unsafe extern "C" fn($($type),*) -> $result;
        // SAFETY: the address is that of libc's function of the same name, whose type this is.
        let real = unsafe { core::mem::transmute::<*mut core::ffi::c_void, Function>(REAL.address()) };
        // SAFETY: as the program called us.
        unsafe { real($($argument),*) }
    }};
}
pub(crate) use real;

/// One line for each function that has the same arguments for both kinds of descriptors. The first argument is the descriptor.
/// The line has libc's name and type, and the function for an rsocket.
macro_rules! either {
    ($($name:ident = $symbol:literal, $rsocket:path, ($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        #[doc = "libc's function of this name."]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(fd: c_int, $($argument: $type),*) -> $result {
            match fork::settled(fd) {
                // SAFETY: as the program called us.
                Some(rs) => unsafe { $rsocket(rs, $($argument),*) },
                None => real!($symbol as fn(c_int, $($type),*) -> $result, fd, $($argument),*),
            }
        }
    )*};
}

either! {
    recv = c"recv", rs::rrecv, (out: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom = c"recvfrom", rs::rrecvfrom, (
        out: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t
    ) -> ssize_t;
    recvmsg = c"recvmsg", rs::rrecvmsg, (message: *mut msghdr, flags: c_int) -> ssize_t;
    read = c"read", read_rsocket, (out: *mut c_void, len: size_t) -> ssize_t;
    readv = c"readv", rs::rreadv, (list: *const iovec, count: c_int) -> ssize_t;
    send = c"send", rs::rsend, (data: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto = c"sendto", rs::rsendto, (
        data: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t
    ) -> ssize_t;
    sendmsg = c"sendmsg", rs::rsendmsg, (message: *const msghdr, flags: c_int) -> ssize_t;
    write = c"write", write_rsocket, (data: *const c_void, len: size_t) -> ssize_t;
    writev = c"writev", rs::rwritev, (list: *const iovec, count: c_int) -> ssize_t;
    shutdown = c"shutdown", rs::rshutdown, (how: c_int) -> c_int;
    __read_chk = c"__read_chk", read_checked, (out: *mut c_void, len: size_t, room: size_t) -> ssize_t;
    __recv_chk = c"__recv_chk", receive_checked, (
        out: *mut c_void, len: size_t, room: size_t, flags: c_int
    ) -> ssize_t;
    __recvfrom_chk = c"__recvfrom_chk", receive_from_checked, (
        out: *mut c_void, len: size_t, room: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t
    ) -> ssize_t;
}

unsafe fn read_rsocket(rs: c_int, out: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: as the program called us.
    unsafe { rs::rrecv(rs, out, len, 0) }
}

unsafe fn write_rsocket(rs: c_int, data: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: as the program called us.
    unsafe { rs::rsend(rs, data, len, 0) }
}

unsafe fn read_checked(rs: c_int, out: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    // SAFETY: as the program called us, which has so much room.
    unsafe { rs::rrecv(rs, out, len.min(room), 0) }
}

unsafe fn receive_checked(rs: c_int, out: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
    // SAFETY: as above.
    unsafe { rs::rrecv(rs, out, len.min(room), flags) }
}

unsafe fn receive_from_checked(
    rs: c_int,
    out: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: as above.
    unsafe { rs::rrecvfrom(rs, out, len.min(room), flags, from, from_len) }
}

/// One line for each function that never establishes a connection.
macro_rules! plain {
    ($($name:ident = $symbol:literal, $rsocket:path, ($($argument:ident: $type:ty),*);)*) => {$(
        #[doc = "libc's function of this name."]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(fd: c_int, $($argument: $type),*) -> c_int {
            match table::rsocket(fd) {
                // SAFETY: as the program called us.
                Some(rs) => unsafe { $rsocket(rs, $($argument),*) },
                None => real!($symbol as fn(c_int, $($type),*) -> c_int, fd, $($argument),*),
            }
        }
    )*};
}

plain! {
    getsockname = c"getsockname", rs::rgetsockname, (address: *mut sockaddr, len: *mut socklen_t);
    getpeername = c"getpeername", rs::rgetpeername, (address: *mut sockaddr, len: *mut socklen_t);
    setsockopt = c"setsockopt", rs::rsetsockopt, (level: c_int, name: c_int, value: *const c_void, len: socklen_t);
    getsockopt = c"getsockopt", rs::rgetsockopt, (level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t);
}

/// bind(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let Some(rs) = table::rsocket(fd) else {
        // SAFETY: as the program called us, here and below.
        return unsafe { real_bind(fd, address, len) };
    };
    // SAFETY: see above.
    let done = unsafe { rs::rbind(rs, address, len) };
    if done == 0 {
        table::note(fd, table::BOUND, true);
    }
    done
}

/// Makes a descriptor for an rsocket. If there is no free one, the rsocket is closed and the result is -1.
pub(crate) fn show(rs: c_int) -> c_int {
    // SAFETY: numbers only.
    let fd = unsafe { real_fcntl(rs, libc::F_DUPFD_CLOEXEC, 0) };
    is_new(fd);
    if fd < 0 || !table::set(fd, Entry::Rsocket(rs)) {
        let why = if fd < 0 { errno() } else { libc::EMFILE };
        // SAFETY: both are ours.
        unsafe {
            if fd >= 0 {
                real_close(fd);
            }
            rs::rclose(rs);
        }
        set_errno(why);
        return -1;
    }
    fd
}

pub(crate) unsafe fn real_fcntl(fd: c_int, command: c_int, argument: off_t) -> c_int {
    real!(c"fcntl" as fn(c_int, c_int, off_t) -> c_int, fd, command, argument)
}

pub(crate) unsafe fn real_close(fd: c_int) -> c_int {
    real!(c"close" as fn(c_int) -> c_int, fd)
}

pub(crate) unsafe fn real_dup2(old: c_int, new: c_int) -> c_int {
    real!(c"dup2" as fn(c_int, c_int) -> c_int, old, new)
}

pub(crate) unsafe fn real_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    real!(c"socket" as fn(c_int, c_int, c_int) -> c_int, domain, kind, protocol)
}

pub(crate) unsafe fn real_bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    real!(c"bind" as fn(c_int, *const sockaddr, socklen_t) -> c_int, fd, address, len)
}

pub(crate) fn real_setsockopt(fd: c_int, level: c_int, name: c_int, value: &[u8]) -> c_int {
    let (value, len) = (value.as_ptr().cast(), value.len() as socklen_t);
    real!(
        c"setsockopt" as fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
        fd,
        level,
        name,
        value,
        len
    )
}

pub(crate) unsafe fn real_shutdown(fd: c_int, how: c_int) -> c_int {
    real!(c"shutdown" as fn(c_int, c_int) -> c_int, fd, how)
}

pub(crate) unsafe fn real_recv(fd: c_int, out: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    real!(c"recv" as fn(c_int, *mut c_void, size_t, c_int) -> ssize_t, fd, out, len, flags)
}

pub(crate) unsafe fn real_write(fd: c_int, data: *const c_void, len: size_t) -> ssize_t {
    real!(c"write" as fn(c_int, *const c_void, size_t) -> ssize_t, fd, data, len)
}

/// socket(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: numbers only, here and below.
    let system = || unsafe { real_socket(domain, kind, protocol) };
    if !choice::is_wanted(domain, kind, protocol) {
        let fd = system();
        is_new(fd);
        return fd;
    }
    if fork::is_wanted(kind) {
        let fd = system();
        is_new(fd);
        table::set(fd, Entry::Fresh);
        return fd;
    }
    // SAFETY: see above.
    let rs = unsafe { rs::rsocket(domain, kind, protocol) };
    if rs < 0 {
        // An rsocket cannot be created, an ordinary socket is.
        let fd = system();
        is_new(fd);
        return fd;
    }
    let fd = show(rs);
    table::note(fd, table::INHERITED, kind & libc::SOCK_CLOEXEC == 0);
    table::note(fd, table::BOUND, false);
    fd
}

/// listen(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if let Some(rs) = table::rsocket(fd) {
        // SAFETY: numbers only.
        return unsafe { rs::rlisten(rs, backlog) };
    }
    let done = real!(c"listen" as fn(c_int, c_int) -> c_int, fd, backlog);
    if done == 0 && table::get(fd) == Some(Entry::Fresh) {
        table::set(fd, Entry::Listener);
    }
    done
}

/// accept(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match table::get(fd) {
        Some(Entry::Rsocket(rs)) => {
            // SAFETY: as the program called us.
            let made = unsafe { rs::raccept(rs, address, len) };
            if made < 0 { made } else { show(made) }
        }
        entry => {
            type Type = *mut sockaddr;
            let made = real!(c"accept" as fn(c_int, Type, *mut socklen_t) -> c_int, fd, address, len);
            is_new(made);
            if made >= 0 && entry == Some(Entry::Listener) {
                table::set(made, Entry::Passive);
            }
            made
        }
    }
}

/// accept4(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: as the program called us, here and below.
    let made = unsafe { accept(fd, address, len) };
    if made >= 0 && flags & libc::SOCK_NONBLOCK != 0 {
        // SAFETY: see above.
        unsafe { fcntl(made, libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK).into()) };
    }
    if made >= 0 && flags & libc::SOCK_CLOEXEC != 0 {
        // SAFETY: see above.
        unsafe { real_fcntl(made, libc::F_SETFD, libc::FD_CLOEXEC.into()) };
    }
    made
}

/// connect(2). If no rsocket listens there, the socket becomes an ordinary TCP socket, and connects.
#[unsafe(no_mangle)]
unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let system = || real!(c"connect" as fn(c_int, *const sockaddr, socklen_t) -> c_int, fd, address, len);
    match table::get(fd) {
        None | Some(Entry::Listener | Entry::Active | Entry::Passive | Entry::Settling) => system(),
        Some(Entry::Fresh) => {
            table::set(fd, Entry::Active);
            system()
        }
        Some(Entry::Rsocket(rs)) => {
            let own = own_address(fd, rs);
            // SAFETY: as the program called us.
            let done = unsafe { rs::rconnect(rs, address, len) };
            let may_yet = [libc::EINPROGRESS, libc::EALREADY, libc::EINTR, libc::EISCONN, libc::EBADF];
            if done == 0 || may_yet.contains(&errno()) || !become_plain(fd, rs, own) {
                return done;
            }
            system()
        }
    }
}

/// ioctl(2). FIONBIO, FIONREAD, FIOCLEX and FIONCLEX are supported for rsockets.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let Some(rs) = table::rsocket(fd) else {
        return real!(c"ioctl" as fn(c_int, c_ulong, *mut c_void) -> c_int, fd, request, argument);
    };
    if matches!(request, libc::FIOCLEX | libc::FIONCLEX) {
        table::note(fd, table::INHERITED, request == libc::FIONCLEX);
        return 0;
    }
    let number = argument.cast::<c_int>();
    if number.is_null() {
        set_errno(libc::EFAULT);
        return -1;
    }
    match request {
        libc::FIONBIO => {
            // SAFETY: the program has a number there.
            let flags = if unsafe { *number } != 0 { libc::O_NONBLOCK } else { 0 };
            // SAFETY: numbers only.
            unsafe { rs::rfcntl(rs, libc::F_SETFL, (libc::O_RDWR | flags).into()) }
        }
        libc::FIONREAD => {
            let mut some = [0_u8; 4096];
            let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
            // SAFETY: memory of that size; and the program wants a number there.
            unsafe { *number = rs::rrecv(rs, some.as_mut_ptr().cast(), some.len(), flags).max(0) as c_int };
            0
        }
        _ => {
            set_errno(libc::EOPNOTSUPP);
            -1
        }
    }
}

/// sendfile(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let Some(rs) = fork::settled(to) else {
        type Type = *mut off_t;
        return real!(c"sendfile" as fn(c_int, c_int, Type, size_t) -> ssize_t, to, from, offset, count);
    };
    // SAFETY: a place of the program's, or null.
    let mut at = unsafe { offset.as_mut() };
    let mut done = 0;
    while done < count {
        let mut piece = [0_u8; 16384];
        let len = piece.len().min(count - done);
        // SAFETY: memory of that size, here and below.
        let got = unsafe {
            match &at {
                Some(at) => libc::pread(from, piece.as_mut_ptr().cast(), len, **at),
                // Reading has moved the file's position, so the data must be sent, too.
                None => {
                    libc::pread(from, piece.as_mut_ptr().cast(), len, libc::lseek(from, 0, libc::SEEK_CUR))
                }
            }
        };
        if got <= 0 {
            return if got < 0 && done == 0 { -1 } else { done as ssize_t };
        }
        // SAFETY: see above.
        let sent = unsafe { rs::rsend(rs, piece.as_ptr().cast(), got as size_t, libc::MSG_NOSIGNAL) };
        if sent < 0 {
            return if done == 0 { -1 } else { done as ssize_t };
        }
        match &mut at {
            Some(at) => **at += sent as off_t,
            // SAFETY: numbers only.
            None => drop(unsafe { libc::lseek(from, sent as off_t, libc::SEEK_CUR) }),
        }
        done += sent as size_t;
        if sent < got {
            break;
        }
    }
    done as ssize_t
}

/// sendfile(2) by its other name.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: as the program called us.
    unsafe { sendfile(to, from, offset, count) }
}

/// One line for each function that describes a file: the descriptor of an rsocket must appear as a socket.
macro_rules! stats {
    ($($name:ident = $symbol:literal [$($before:ident: $type:ty)?];)*) => {$(
        #[doc = "libc's function of this name."]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($before: $type,)? fd: c_int, out: *mut libc::stat) -> c_int {
            let done = real!($symbol as fn($($type,)? c_int, *mut libc::stat) -> c_int, $($before,)? fd, out);
            if done == 0 && table::rsocket(fd).is_some() {
                // SAFETY: filled in, as the call succeeded.
                let mode = unsafe { &mut (*out).st_mode };
                *mode = *mode & !libc::S_IFMT | libc::S_IFSOCK;
            }
            done
        }
    )*};
}

stats! {
    fstat = c"fstat" [];
    fstat64 = c"fstat64" [];
    __fxstat = c"__fxstat" [version: c_int];
    __fxstat64 = c"__fxstat64" [version: c_int];
}
