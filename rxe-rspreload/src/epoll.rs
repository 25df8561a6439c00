//! epoll(7). An instance to which an rsocket is added gets a set of repoll beside it, which contains the instance itself for
//! descriptors that are not rsockets. Threads that wait for the instance by the system then are woken, and go on with the set.

use crate::{
    calls::{errno, real, real_close, set_errno},
    descriptors::is_new,
    mask::masked_alone,
    rs, table,
    time::{Until, milliseconds},
};
use core::{ffi::c_int, ptr, slice};
use libc::{epoll_event, sigset_t, timespec};

type Events = *mut epoll_event;

/// How long threads that wait may take to leave the system's wait: so many times a millisecond.
const TRIES: u32 = 1000;

/// The data by which the instance itself is in its set, and by which a wake is in the instance: addresses that no program uses.
static MARKS: [u8; 2] = [0; 2];

fn itself() -> u64 {
    MARKS.as_ptr().addr() as u64
}

fn a_wake() -> u64 {
    itself() + 1
}

unsafe fn real_ctl(epoll: c_int, action: c_int, fd: c_int, event: Events) -> c_int {
    real!(c"epoll_ctl" as fn(c_int, c_int, c_int, Events) -> c_int, epoll, action, fd, event)
}

unsafe fn real_wait(epoll: c_int, events: Events, most: c_int, timeout: c_int) -> c_int {
    real!(c"epoll_wait" as fn(c_int, Events, c_int, c_int) -> c_int, epoll, events, most, timeout)
}

/// epoll_create(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    noted(real!(c"epoll_create" as fn(c_int) -> c_int, size))
}

/// epoll_create1(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    noted(real!(c"epoll_create1" as fn(c_int) -> c_int, flags))
}

fn noted(epoll: c_int) -> c_int {
    is_new(epoll);
    table::note(epoll, table::EPOLL, true);
    epoll
}

/// The set for an instance, created if there is none. `None` with errno if that fails.
fn set_for(epoll: c_int) -> Option<c_int> {
    if let Some(set) = table::poll_set(epoll) {
        return Some(set);
    }
    // SAFETY: numbers, and an event of ours.
    let set = unsafe {
        let set = rs::repoll_create(1);
        if set < 0 {
            return None;
        }
        let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: itself() };
        if rs::repoll_ctl(set, libc::EPOLL_CTL_ADD, epoll, &raw mut event) != 0 {
            let why = errno();
            rs::rclose(set);
            set_errno(why);
            return None;
        }
        set
    };
    match table::enter_poll_set(epoll, set) {
        Ok(()) => {
            wake(epoll);
            Some(set)
        }
        Err(other) => {
            // SAFETY: ours.
            unsafe { rs::rclose(set) };
            if other.is_none() {
                set_errno(libc::EMFILE);
            }
            other
        }
    }
}

/// Has all threads leave that wait for the instance by the system: something that is readable is in it until they have. They
/// are not waited for for ever, because a thread may have ended in the middle of its wait.
fn wake(epoll: c_int) {
    if !table::is_waited_for(epoll) {
        return;
    }
    // SAFETY: numbers, and an event of ours; the descriptor is ours.
    unsafe {
        let readable = libc::eventfd(1, libc::EFD_CLOEXEC);
        let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: a_wake() };
        if readable < 0 || real_ctl(epoll, libc::EPOLL_CTL_ADD, readable, &raw mut event) != 0 {
            real_close(readable);
            return;
        }
        let mut tries = TRIES;
        while tries > 0 && table::is_waited_for(epoll) {
            libc::usleep(1000);
            tries -= 1;
        }
        real_ctl(epoll, libc::EPOLL_CTL_DEL, readable, &raw mut event);
        real_close(readable);
    }
}

/// Gives a duplicate of an instance the same set. It is created now, since from then on the two cannot be told to be one.
pub(crate) fn copy(epoll: c_int, new: c_int) {
    if table::is_noted(epoll, table::EPOLL) {
        table::note(new, table::EPOLL, true);
        let before = errno();
        set_for(epoll);
        set_errno(before);
    }
    table::copy_poll_set(epoll, new);
}

/// epoll_ctl(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(epoll: c_int, action: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let Some(rs) = table::rsocket(fd) else {
        // SAFETY: as the program called us.
        return unsafe { real_ctl(epoll, action, fd, event) };
    };
    if table::poll_set(epoll).is_none() {
        // No descriptor of an rsocket is in an instance, which is what an instance says, and others say what is wrong with them.
        // SAFETY: numbers only.
        let done = unsafe { real_ctl(epoll, libc::EPOLL_CTL_DEL, fd, ptr::null_mut()) };
        if action != libc::EPOLL_CTL_ADD || done != 0 && errno() != libc::ENOENT {
            return done;
        }
    }
    match set_for(epoll) {
        // SAFETY: as the program called us.
        Some(set) => unsafe { rs::repoll_ctl(set, action, rs, event) },
        None => -1,
    }
}

/// Waits by the system, or by the set as soon as there is one. `system` is the system's call, with so many milliseconds.
///
/// # Safety
/// There is room for `most` events, and the mask is the program's or null.
unsafe fn wait(
    epoll: c_int,
    events: Events,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
    system: impl Fn(c_int) -> c_int,
) -> c_int {
    let until = Until::after(timeout);
    loop {
        if let Some(set) = table::poll_set(epoll) {
            // SAFETY: the caller's promise.
            return unsafe {
                masked_alone(mask, until.left(), |left| wait_for_set(set, epoll, events, most, left))
            };
        }
        let waiting = table::Waiting::begin(epoll);
        // It may have come before this thread was counted.
        if table::poll_set(epoll).is_some() {
            continue;
        }
        let found = system(until.left());
        drop(waiting);
        // SAFETY: so many were written.
        let left = unsafe { without(a_wake(), events, found) };
        if left != 0 || found == 0 {
            return left;
        }
    }
}

/// Removes the events with this data. Returns how many are left.
unsafe fn without(data: u64, events: Events, count: c_int) -> c_int {
    let Ok(mut left) = usize::try_from(count) else { return count };
    if left == 0 {
        return 0;
    }
    // SAFETY: the caller's promise.
    let list = unsafe { slice::from_raw_parts_mut(events, left) };
    while let Some(place) = list[..left].iter().position(|event| event.u64 == data) {
        left -= 1;
        list.swap(place, left);
    }
    left as c_int
}

/// # Safety
/// There is room for `most` events.
unsafe fn wait_for_set(set: c_int, epoll: c_int, events: Events, most: c_int, timeout: c_int) -> c_int {
    let until = Until::after(timeout);
    loop {
        // SAFETY: the caller's promise.
        let found = unsafe { rs::repoll_wait(set, events, most, until.left()) };
        if found <= 0 {
            return found;
        }
        // SAFETY: so many were written.
        let mut count = unsafe { without(itself(), events, found) };
        if count < found {
            // The event of the instance is replaced by the events that it has.
            let rest = events.wrapping_add(count as usize);
            // SAFETY: there is so much room.
            let others = unsafe { without(a_wake(), rest, real_wait(epoll, rest, most - count, 0)) };
            count += others.max(0);
        }
        if count > 0 || until.left() == 0 {
            return count;
        }
        // Another thread has taken them.
        // SAFETY: no arguments.
        unsafe { libc::sched_yield() };
    }
}

/// epoll_wait(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(epoll: c_int, events: Events, most: c_int, timeout: c_int) -> c_int {
    // SAFETY: as the program called us.
    unsafe {
        wait(epoll, events, most, timeout, ptr::null(), |timeout| real_wait(epoll, events, most, timeout))
    }
}

/// epoll_pwait(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: Events,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    type Mask = *const sigset_t;
    let system = |timeout: c_int| {
        type Result = c_int;
        real!(
            c"epoll_pwait" as fn(c_int, Events, c_int, c_int, Mask) -> Result,
            epoll,
            events,
            most,
            timeout,
            mask
        )
    };
    // SAFETY: as the program called us.
    unsafe { wait(epoll, events, most, timeout, mask, system) }
}

/// epoll_pwait2(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: Events,
    most: c_int,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    type Time = *const timespec;
    type Mask = *const sigset_t;
    // SAFETY: a time or null.
    let timeout = milliseconds(unsafe { time.as_ref() }.map(|time| (time.tv_sec, time.tv_nsec)));
    let system = |left: c_int| {
        let rest = timespec { tv_sec: i64::from(left / 1000), tv_nsec: i64::from(left % 1000) * 1_000_000 };
        // The program's is more exact.
        let time = if left == timeout { time } else { &raw const rest };
        real!(
            c"epoll_pwait2" as fn(c_int, Events, c_int, Time, Mask) -> c_int,
            epoll,
            events,
            most,
            time,
            mask
        )
    };
    // SAFETY: as the program called us.
    unsafe { wait(epoll, events, most, timeout, mask, system) }
}
