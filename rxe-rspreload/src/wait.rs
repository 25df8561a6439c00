//! Waiting for several descriptors, some of which are rsockets.

use crate::{
    calls::{real, set_errno},
    mask::{masked, masked_alone},
    rs, table,
    time::milliseconds,
};
use core::{ffi::c_int, mem::MaybeUninit, ptr, slice};
use libc::{epoll_event, nfds_t, pollfd, sigset_t, timespec};

/// Most descriptors that are handled on the stack.
const FEW: usize = 128;

/// The kind of a descriptor for rpoll.
fn inner(fd: c_int) -> c_int {
    table::rsocket(fd).unwrap_or(fd)
}

/// Runs `work` with memory for descriptors: on the stack if there are few, otherwise mapped.
pub(crate) unsafe fn with_room<R>(
    count: usize,
    work: impl FnOnce(&mut [MaybeUninit<pollfd>]) -> R,
) -> Option<R> {
    if count <= FEW {
        return Some(work(&mut [const { MaybeUninit::uninit() }; FEW][..count]));
    }
    let bytes = count.checked_mul(size_of::<pollfd>())?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new pages, which nobody else has, and which go when they are not used any more.
    unsafe {
        let pages = libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0);
        if pages == libc::MAP_FAILED {
            return None;
        }
        let result = work(slice::from_raw_parts_mut(pages.cast(), count));
        libc::munmap(pages, bytes);
        Some(result)
    }
}

/// poll(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the program promises so many.
    let list = unsafe { list(fds, count) };
    if !list.iter().any(|fd| table::rsocket(fd.fd).is_some()) {
        return real!(c"poll" as fn(*mut pollfd, nfds_t, c_int) -> c_int, fds, count, timeout);
    }
    wait_for(list, -1, timeout).0
}

/// Waits for these descriptors, some of which are rsockets, and for one `beside` them. The number of those that are ready, and whether
/// that one is readable, which is not counted.
fn wait_for(list: &mut [pollfd], beside: c_int, timeout: c_int) -> (c_int, bool) {
    let count = list.len() + 1;
    // SAFETY: the memory is used in there only.
    let done = unsafe {
        with_room(count, |room| {
            for (place, fd) in room.iter_mut().zip(&*list) {
                place.write(pollfd { fd: inner(fd.fd), revents: 0, ..*fd });
            }
            room[count - 1].write(pollfd { fd: beside, events: libc::POLLIN, revents: 0 });
            let done = rs::rpoll(room.as_mut_ptr().cast(), count as nfds_t, timeout);
            for (fd, place) in list.iter_mut().zip(room.iter()) {
                fd.revents = if done < 0 { 0 } else { place.assume_init_ref().revents };
            }
            let is_there = done > 0 && room[count - 1].assume_init_ref().revents != 0;
            (done - c_int::from(is_there), is_there)
        })
    };
    done.unwrap_or_else(|| {
        set_errno(libc::ENOMEM);
        (-1, false)
    })
}

/// The same under a mask of the program's, or under none if it is null.
///
/// # Safety
/// The mask is the program's.
pub(crate) unsafe fn wait_masked(list: &mut [pollfd], timeout: c_int, mask: *const sigset_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { masked(mask, timeout, |beside, timeout| wait_for(list, beside, timeout)) }
}

unsafe fn list<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    if fds.is_null() || count == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts_mut(fds, count as usize) }
}

/// poll(2) of programs that were compiled with buffer checks.
#[unsafe(no_mangle)]
unsafe extern "C" fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, _room: usize) -> c_int {
    // SAFETY: as the program called us.
    unsafe { poll(fds, count, timeout) }
}

/// ppoll(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program promises so many, and a time or null.
    let (list, given) = unsafe { (list(fds, count), time.as_ref()) };
    if rs::is_inside() || !list.iter().any(|fd| table::rsocket(fd.fd).is_some()) {
        type Time = *const timespec;
        type Mask = *const sigset_t;
        return real!(c"ppoll" as fn(*mut pollfd, nfds_t, Time, Mask) -> c_int, fds, count, time, mask);
    }
    let timeout = milliseconds(given.map(|time| (time.tv_sec, time.tv_nsec)));
    // SAFETY: as the program called us.
    unsafe { wait_masked(list, timeout, mask) }
}

/// ppoll(2) of programs that were compiled with buffer checks.
#[unsafe(no_mangle)]
unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
    _room: usize,
) -> c_int {
    // SAFETY: as the program called us.
    unsafe { ppoll(fds, count, time, mask) }
}

/// The data by which the epoll instance itself is in its set: an address that no program uses.
static ITSELF: u8 = 0;

fn itself() -> u64 {
    (&raw const ITSELF).addr() as u64
}

/// The set for an epoll instance. It is created if there is none, and contains the instance itself, for descriptors that are
/// not rsockets.
fn set_for(epoll: c_int) -> Option<c_int> {
    if let Some(set) = table::poll_set(epoll) {
        return Some(set);
    }
    // SAFETY: numbers, and an event of ours.
    unsafe {
        let set = rs::repoll_create(1);
        if set < 0 {
            return None;
        }
        let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: itself() };
        let added = rs::repoll_ctl(set, libc::EPOLL_CTL_ADD, epoll, &raw mut event);
        match table::enter_poll_set(epoll, set) {
            Ok(()) if added == 0 => Some(set),
            Ok(()) => {
                table::clear_poll_set(epoll);
                rs::rclose(set);
                None
            }
            Err(other) => {
                rs::rclose(set);
                other
            }
        }
    }
}

/// epoll_ctl(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(epoll: c_int, action: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let Some(rs) = table::rsocket(fd) else {
        type Event = *mut epoll_event;
        return real!(c"epoll_ctl" as fn(c_int, c_int, c_int, Event) -> c_int, epoll, action, fd, event);
    };
    match set_for(epoll) {
        // SAFETY: as the program called us.
        Some(set) => unsafe { rs::repoll_ctl(set, action, rs, event) },
        None => {
            set_errno(libc::ENOMEM);
            -1
        }
    }
}

/// epoll_wait(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    type Events = *mut epoll_event;
    let system = |events: Events, most: c_int, timeout: c_int| {
        real!(c"epoll_wait" as fn(c_int, Events, c_int, c_int) -> c_int, epoll, events, most, timeout)
    };
    let Some(set) = table::poll_set(epoll) else { return system(events, most, timeout) };
    // SAFETY: as the program called us.
    let found = unsafe { rs::repoll_wait(set, events, most, timeout) };
    let Ok(count) = usize::try_from(found) else { return found };
    // SAFETY: so many were written.
    let list = unsafe { slice::from_raw_parts_mut(events, count) };
    let Some(place) = list.iter().position(|event| event.u64 == itself()) else { return found };
    // The event of the instance is replaced by the events that it has.
    list.swap(place, count - 1);
    let rest = events.wrapping_add(count - 1);
    let others = system(rest, most - (count as c_int - 1), 0);
    count as c_int - 1 + others.max(0)
}

/// epoll_pwait(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    if table::poll_set(epoll).is_none() {
        type Events = *mut epoll_event;
        type Mask = *const sigset_t;
        type Result = c_int;
        return real!(
            c"epoll_pwait" as fn(c_int, Events, c_int, c_int, Mask) -> Result,
            epoll,
            events,
            most,
            timeout,
            mask
        );
    }
    // SAFETY: as the program called us.
    unsafe { masked_alone(mask, timeout, |timeout| epoll_wait(epoll, events, most, timeout)) }
}

/// epoll_pwait2(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if table::poll_set(epoll).is_none() {
        type Events = *mut epoll_event;
        type Time = *const timespec;
        type Mask = *const sigset_t;
        return real!(
            c"epoll_pwait2" as fn(c_int, Events, c_int, Time, Mask) -> c_int,
            epoll,
            events,
            most,
            time,
            mask
        );
    }
    // SAFETY: a time or null.
    let timeout = milliseconds(unsafe { time.as_ref() }.map(|time| (time.tv_sec, time.tv_nsec)));
    // SAFETY: as the program called us.
    unsafe { masked_alone(mask, timeout, |timeout| epoll_wait(epoll, events, most, timeout)) }
}
