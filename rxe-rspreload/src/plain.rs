//! An rsocket that becomes an ordinary socket, because no rsocket listens where the program connects to. The program must not notice, so
//! the socket gets the options, the address and the flags that the program has set before.

use crate::{
    calls::{errno, real_bind, real_close, real_dup2, real_fcntl, real_setsockopt, real_socket, set_errno},
    rs, table,
};
use core::{ffi::c_int, mem::MaybeUninit};
use libc::{sockaddr_storage, socklen_t};

/// The options that are kept. Buffer sizes are not: only if nobody has set them does the system adapt them.
const OPTIONS: [(c_int, c_int); 9] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
];

/// Most bytes of an option's value.
const MOST: usize = 32;

/// The value of an option of an rsocket, and its length.
fn option(rs: c_int, (level, name): (c_int, c_int)) -> Option<([u8; MOST], socklen_t)> {
    let (mut value, mut len) = ([0; MOST], MOST as socklen_t);
    // SAFETY: room for so many bytes.
    let done = unsafe { rs::rgetsockopt(rs, level, name, value.as_mut_ptr().cast(), &raw mut len) };
    (done == 0).then_some((value, len.min(MOST as socklen_t)))
}

fn number(rs: c_int, name: c_int) -> c_int {
    option(rs, (libc::SOL_SOCKET, name))
        .map_or(0, |(value, _)| i32::from_ne_bytes([value[0], value[1], value[2], value[3]]))
}

/// Gives a socket the options of an rsocket. Those that one of the two does not know are left out.
fn copy_options(rs: c_int, socket: c_int) {
    for (level, name) in OPTIONS {
        if let Some((value, len)) = option(rs, (level, name)) {
            real_setsockopt(socket, level, name, &value[..len as usize]);
        }
    }
}

/// The address to which the program has bound an rsocket, if it has. Asked for before the rsocket connects, which may change it.
pub(crate) fn own_address(fd: c_int, rs: c_int) -> Option<(sockaddr_storage, socklen_t)> {
    if !table::is_noted(fd, table::BOUND) {
        return None;
    }
    let mut address = MaybeUninit::<sockaddr_storage>::zeroed();
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    // SAFETY: room for an address of any kind, for which zeros are valid.
    unsafe {
        let done = rs::rgetsockname(rs, address.as_mut_ptr().cast(), &raw mut len);
        (done == 0).then(|| (address.assume_init(), len))
    }
}

/// Turns the descriptor of an rsocket that could not connect into an ordinary socket of the same kind. If that fails it stays an rsocket,
/// and the error is that of the connection, or tells why the program's `own` address cannot be used.
pub(crate) fn become_plain(fd: c_int, rs: c_int, own: Option<(sockaddr_storage, socklen_t)>) -> bool {
    let why = errno();
    // SAFETY: numbers only, and descriptors of ours.
    unsafe {
        let plain =
            real_socket(number(rs, libc::SO_DOMAIN), number(rs, libc::SO_TYPE) | libc::SOCK_CLOEXEC, 0);
        if plain < 0 {
            set_errno(why);
            return false;
        }
        copy_options(rs, plain);
        if let Some((address, len)) = own
            && real_bind(plain, (&raw const address).cast(), len) != 0
        {
            real_close(plain);
            return false;
        }
        if rs::rfcntl(rs, libc::F_GETFL, 0) & libc::O_NONBLOCK != 0 {
            real_fcntl(plain, libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK).into());
        }
        let done = real_dup2(plain, fd) == fd;
        real_close(plain);
        if !done {
            set_errno(why);
            return false;
        }
        // dup2 has cleared the flag.
        if !table::is_noted(fd, table::INHERITED) {
            real_fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC.into());
        }
        if table::clear(fd).is_some() {
            rs::rclose(rs);
        }
    }
    true
}
