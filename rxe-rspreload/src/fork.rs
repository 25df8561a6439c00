//! Connections of programs that fork: an RDMA connection belongs to the process that made it.
//!
//! With `RDMAV_FORK_SAFE=1` in the environment of both sides, TCP sockets stay TCP sockets at first. The process that first
//! sends or receives on an accepted socket listens with an rsocket on the same port, writes four zero bytes by TCP, and
//! accepts. The process that has connected reads these bytes and connects its rsocket to the same address. From then on the
//! descriptor is that of the rsocket. rdma-core's library does the same, so both work together. They also share a limit: a
//! server that waits for its client's first data by poll(2) or select(2) waits for ever, because it has not written the bytes
//! yet.

use crate::{
    calls::{self, errno, real, set_errno},
    rs,
    table::{self, Entry},
};
use core::{
    ffi::{CStr, c_int, c_void},
    mem::MaybeUninit,
    sync::atomic::{AtomicU8, Ordering},
};
use libc::{pollfd, sockaddr, sockaddr_storage, socklen_t, timespec};

/// The lock of all processes that accept in this way, because two must not listen on one port at the same time. The name is
/// that of rdma-core.
const LOCK: &CStr = c"/rsocket_fork";

/// How often a port that another process uses is tried again, and the microseconds between: 5 s in all.
const TRIES: u32 = 1000;
const PAUSE: u32 = 5000;
/// Milliseconds that a peer may take to connect its rsocket after the four bytes. All others on this host that accept wait
/// meanwhile, so a dead or hostile peer must not block them for ever. A peer that only repeats a lost message needs about 5 s
/// each time.
const PATIENCE: c_int = 20_000;
/// Seconds to wait for the others: the time of two such peers. A process that was killed while it held the lock never releases
/// it.
const TURN: libc::time_t = 2 * PATIENCE as libc::time_t / 1000;

static WANTED: AtomicU8 = AtomicU8::new(0);

/// Whether TCP sockets become rsockets only at their first use.
pub(crate) fn is_wanted(kind: c_int) -> bool {
    if kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != libc::SOCK_STREAM {
        return false;
    }
    let mut wanted = WANTED.load(Ordering::Relaxed);
    if wanted == 0 {
        // SAFETY: reads the environment, and a string of it.
        let is = unsafe {
            let value = libc::getenv(c"RDMAV_FORK_SAFE".as_ptr());
            !value.is_null() && libc::atoi(value) != 0
        };
        wanted = if is { 2 } else { 1 };
        WANTED.store(wanted, Ordering::Relaxed);
    }
    wanted == 2
}

/// The rsocket of a descriptor that is about to be used. A TCP socket that waits becomes an rsocket here. `None` for
/// descriptors of libc.
pub(crate) fn settled(fd: c_int) -> Option<c_int> {
    loop {
        match other_has_settled(fd)? {
            Entry::Rsocket(rs) => return Some(rs),
            Entry::Fresh | Entry::Listener => return None,
            // One thread does it; the others wait until it has.
            state if table::change(fd, state, Some(Entry::Settling)) => return settle(fd, state),
            _ => {}
        }
    }
}

/// The kind of a descriptor, when no other thread has it become an rsocket any more.
pub(crate) fn other_has_settled(fd: c_int) -> Option<Entry> {
    loop {
        match table::get(fd)? {
            Entry::Settling => {
                let before = errno();
                // SAFETY: a number only.
                unsafe { libc::usleep(1000) };
                set_errno(before);
            }
            entry => return Some(entry),
        }
    }
}

/// This is tried only once, with any result.
fn settle(fd: c_int, state: Entry) -> Option<c_int> {
    let before = errno();
    // SAFETY: numbers, and memory of ours.
    let made = unsafe { if state == Entry::Active { connect_again(fd) } else { accept_again(fd) } };
    set_errno(before);
    let Some(rs) = made else {
        table::change(fd, Entry::Settling, None);
        return None;
    };
    // It may have been closed meanwhile.
    if !table::change(fd, Entry::Settling, Some(Entry::Rsocket(rs))) {
        // SAFETY: ours.
        unsafe { rs::rclose(rs) };
        return None;
    }
    // SAFETY: both are ours.
    if unsafe { calls::real_dup2(rs, fd) } != fd {
        if table::clear(fd).is_some() {
            // SAFETY: ours.
            unsafe { rs::rclose(rs) };
        }
        return None;
    }
    Some(rs)
}

/// In a child of fork(2), the threads that had connections become rsockets are not there: these stay the parent's.
pub(crate) fn forget_others() {
    for fd in table::all() {
        table::change(fd, Entry::Settling, None);
    }
}

unsafe fn address(fd: c_int, peer: bool) -> Option<(sockaddr_storage, socklen_t)> {
    let mut address = MaybeUninit::<sockaddr_storage>::zeroed();
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    let place = address.as_mut_ptr().cast::<sockaddr>();
    type Place = *mut sockaddr;
    let done = if peer {
        real!(c"getpeername" as fn(c_int, Place, *mut socklen_t) -> c_int, fd, place, &raw mut len)
    } else {
        real!(c"getsockname" as fn(c_int, Place, *mut socklen_t) -> c_int, fd, place, &raw mut len)
    };
    // SAFETY: all bytes were zero, and libc has written some of them.
    (done == 0).then(|| (unsafe { address.assume_init() }, len))
}

unsafe fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: numbers only.
    unsafe { calls::real_fcntl(fd, libc::F_GETFL, 0) & libc::O_NONBLOCK != 0 }
}

unsafe fn take_over(fd: c_int, rs: c_int, nonblocking: bool) -> c_int {
    // SAFETY: numbers only.
    unsafe {
        if nonblocking {
            rs::rfcntl(rs, libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK).into());
        }
        calls::real_shutdown(fd, libc::SHUT_RDWR);
    }
    rs
}

/// The side that has connected: waits for the peer's four bytes, and connects an rsocket.
unsafe fn connect_again(fd: c_int) -> Option<c_int> {
    // SAFETY: numbers, and memory of ours.
    unsafe {
        let nonblocking = is_nonblocking(fd);
        if nonblocking {
            calls::real_fcntl(fd, libc::F_SETFL, libc::O_RDWR.into());
        }
        let mut word = 1_u32;
        let place = (&raw mut word).cast::<c_void>();
        let flags = libc::MSG_PEEK | libc::MSG_WAITALL;
        let got = calls::real_recv(fd, place, 4, flags);
        if nonblocking {
            calls::real_fcntl(fd, libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK).into());
        }
        // A peer without rsockets has sent something else: the connection stays TCP.
        if got != 4 || word != 0 {
            return None;
        }
        let (peer, len) = address(fd, true)?;
        let rs = rs::rsocket(peer.ss_family.into(), libc::SOCK_STREAM, 0);
        if rs < 0 {
            return None;
        }
        if rs::rconnect(rs, (&raw const peer).cast(), len) != 0 {
            rs::rclose(rs);
            return None;
        }
        Some(take_over(fd, rs, nonblocking))
    }
}

/// The side that has accepted: listens with an rsocket, writes the four bytes, and accepts. If this fails the connection is
/// ended, because the peer would wait for the bytes for ever.
unsafe fn accept_again(fd: c_int) -> Option<c_int> {
    // SAFETY: numbers, and memory of ours.
    unsafe {
        let nonblocking = is_nonblocking(fd);
        let (own, len) = address(fd, false)?;
        // Another user may have created the lock. Then only the port itself keeps two processes apart.
        let lock = libc::sem_open(LOCK.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o660, 1);
        let is_there = lock != libc::SEM_FAILED;
        if is_there {
            wait_for_turn(lock);
        }
        let made = listen_once(fd, &own, len);
        if is_there {
            // This also releases the lock of a process that was killed, so the next one need not wait so long.
            libc::sem_post(lock);
            libc::sem_close(lock);
        }
        match made {
            Some(rs) => Some(take_over(fd, rs, nonblocking)),
            None => {
                calls::real_shutdown(fd, libc::SHUT_RDWR);
                None
            }
        }
    }
}

/// Waits until no other process on this host accepts in this way, for at most [`TURN`].
unsafe fn wait_for_turn(lock: *mut libc::sem_t) {
    let mut until = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place of ours, and a semaphore that is open.
    unsafe {
        libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut until);
        until.tv_sec += TURN;
        while libc::sem_timedwait(lock, &raw const until) != 0 && errno() == libc::EINTR {}
    }
}

/// Accepts one connection on the address of a TCP socket.
unsafe fn listen_once(fd: c_int, own: &sockaddr_storage, len: socklen_t) -> Option<c_int> {
    // SAFETY: numbers, and memory of ours.
    unsafe {
        let listener = rs::rsocket(own.ss_family.into(), libc::SOCK_STREAM, 0);
        if listener < 0 {
            return None;
        }
        let one = 1_i32;
        rs::rsetsockopt(listener, libc::SOL_SOCKET, libc::SO_REUSEADDR, (&raw const one).cast(), 4);
        let own: *const sockaddr_storage = own;
        let mut tries = TRIES;
        while rs::rbind(listener, own.cast(), len) != 0 {
            tries -= 1;
            if tries == 0 || !matches!(errno(), libc::EADDRINUSE | libc::EADDRNOTAVAIL) {
                rs::rclose(listener);
                return None;
            }
            libc::usleep(PAUSE);
        }
        let word = 0_u32;
        let data = (&raw const word).cast::<c_void>();
        let mut made = -1;
        if rs::rlisten(listener, 1) == 0 && calls::real_write(fd, data, 4) == 4 {
            let mut comes = pollfd { fd: listener, events: libc::POLLIN, revents: 0 };
            let mut found = rs::rpoll(&raw mut comes, 1, PATIENCE);
            while found < 0 && errno() == libc::EINTR {
                found = rs::rpoll(&raw mut comes, 1, PATIENCE);
            }
            if found > 0 {
                made = rs::raccept(listener, core::ptr::null_mut(), core::ptr::null_mut());
            }
        }
        rs::rclose(listener);
        (made >= 0).then_some(made)
    }
}
