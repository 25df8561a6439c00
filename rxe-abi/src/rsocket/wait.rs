//! Waiting for several descriptors: rpoll, rselect, and repoll.

use super::{inside::Inside, table};
use crate::border::{Errno, INVALID, ListMut, Result, given, value, waiting_value};
use core::ffi::c_int;
use rxe_rsocket::{PollSet, poll};
use std::{
    os::fd::{AsFd, AsRawFd},
    sync::Arc,
    time::Duration,
};

/// A timeout in milliseconds, as in `poll(2)`: below zero means for ever.
fn time(milliseconds: c_int) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

/// rpoll(3), for rsockets and other descriptors.
#[unsafe(no_mangle)]
extern "C-unwind" fn rpoll(mut fds: ListMut<libc::pollfd>, count: libc::nfds_t, timeout: c_int) -> c_int {
    waiting_value(|| {
        let _inside = Inside::enter()?;
        let found = poll(fds.elements(count as usize), time(timeout), |fd| table().sockets.get(&fd))?;
        Ok(found as c_int)
    })
}

/// A `struct timeval`.
#[derive(Debug)]
#[repr(C)]
struct Time {
    seconds: i64,
    micros: i64,
}

/// rselect(3). The sets may be longer than `fd_set`.
#[unsafe(no_mangle)]
extern "C-unwind" fn rselect(
    count: c_int,
    mut read: ListMut<u64>,
    mut write: ListMut<u64>,
    mut except: ListMut<u64>,
    timeout: Option<&mut Time>,
) -> c_int {
    waiting_value(|| {
        let count = usize::try_from(count).map_err(|_| INVALID)?;
        let words = count.div_ceil(64);
        let mut sets = [&mut read, &mut write, &mut except].map(|set| set.elements(words));
        let asked = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
        let mut fds = Vec::new();
        for fd in 0..count {
            let is_in = |set: &&mut [u64]| set.get(fd / 64).is_some_and(|word| word >> (fd % 64) & 1 != 0);
            let events =
                sets.iter().zip(asked).filter(|(set, _)| is_in(set)).fold(0, |all, (_, one)| all | one);
            if events != 0 {
                fds.push(libc::pollfd { fd: fd as c_int, events, revents: 0 });
            }
        }
        let timeout = match timeout {
            None => None,
            Some(time) => {
                let (seconds, micros) = (u64::try_from(time.seconds), u64::try_from(time.micros));
                let (seconds, micros) = (seconds.map_err(|_| INVALID)?, micros.map_err(|_| INVALID)?);
                Some(Duration::from_secs(seconds) + Duration::from_micros(micros))
            }
        };
        let _inside = Inside::enter()?;
        poll(&mut fds, timeout, |fd| table().sockets.get(&fd))?;
        if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
            return Err(Errno(libc::EBADF));
        }
        sets.iter_mut().for_each(|set| set.fill(0));
        // As in select(2), an error or the end makes a descriptor readable, and an error makes it writable, too.
        let means =
            [libc::POLLIN | libc::POLLHUP | libc::POLLERR, libc::POLLOUT | libc::POLLERR, libc::POLLPRI];
        let mut found = 0;
        for fd in &fds {
            for ((set, asked), means) in sets.iter_mut().zip(asked).zip(means) {
                if fd.events & asked != 0 && fd.revents & means != 0 {
                    let at = fd.fd as usize;
                    set[at / 64] |= 1 << (at % 64);
                    found += 1;
                }
            }
        }
        Ok(found)
    })
}

/// repoll_create(3): a set of descriptors, as in `epoll(7)`.
#[unsafe(no_mangle)]
extern "C" fn repoll_create(size: c_int) -> c_int {
    value(|| {
        if size <= 0 {
            return Err(INVALID);
        }
        let _inside = Inside::enter()?;
        let set = PollSet::new()?;
        let fd = set.as_fd().as_raw_fd();
        table().sets.insert(fd, Arc::new(set));
        Ok(fd)
    })
}

fn set_of(fd: c_int) -> Result<Arc<PollSet>> {
    table().sets.get(&fd).ok_or(Errno(libc::EBADF))
}

/// repoll_ctl(3).
#[unsafe(no_mangle)]
extern "C" fn repoll_ctl(set: c_int, action: c_int, fd: c_int, event: Option<&libc::epoll_event>) -> c_int {
    value(|| {
        let _inside = Inside::enter()?;
        let set = set_of(set)?;
        let Some(socket) = table().sockets.get(&fd) else {
            // SAFETY: the numbers come from the program, and the system checks them. The event may be null.
            let done = unsafe {
                let event = event.map_or(core::ptr::null_mut(), |event| (&raw const *event).cast_mut());
                libc::epoll_ctl(set.as_fd().as_raw_fd(), action, fd, event)
            };
            return if done < 0 { Err(Errno(nix::errno::Errno::last_raw())) } else { Ok(done) };
        };
        match action {
            libc::EPOLL_CTL_ADD if set.contains(fd) => return Err(Errno(libc::EEXIST)),
            libc::EPOLL_CTL_MOD if !set.contains(fd) => return Err(Errno(libc::ENOENT)),
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
                let event = given(event)?;
                set.set(fd, socket, event.events, event.u64);
            }
            libc::EPOLL_CTL_DEL if set.remove(fd) => {}
            libc::EPOLL_CTL_DEL => return Err(Errno(libc::ENOENT)),
            _ => return Err(INVALID),
        }
        Ok(0)
    })
}

/// repoll_wait(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn repoll_wait(
    set: c_int,
    mut events: ListMut<libc::epoll_event>,
    most: c_int,
    timeout: c_int,
) -> c_int {
    waiting_value(|| {
        let most = usize::try_from(most).ok().filter(|most| *most > 0).ok_or(INVALID)?;
        if events.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        let _inside = Inside::enter()?;
        let found = set_of(set)?.wait(most, time(timeout))?;
        let places = events.elements(found.len());
        for (place, (events, data)) in places.iter_mut().zip(&found) {
            *place = libc::epoll_event { events: *events, u64: *data };
        }
        Ok(found.len() as c_int)
    })
}
