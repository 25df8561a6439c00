//! Waiting for several descriptors, some of which are rsockets.

use crate::{
    calls::{real, set_errno},
    mask::masked,
    rs, table,
    time::milliseconds,
};
use core::{ffi::c_int, mem::MaybeUninit, ptr, slice};
use libc::{nfds_t, pollfd, sigset_t, timespec};

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
