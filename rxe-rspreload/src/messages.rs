//! sendmmsg(2) and recvmmsg(2): several messages by one call, of an rsocket one by one.

use crate::{
    calls::{errno, real, set_errno},
    fork, rs,
    time::now,
};
use core::{
    ffi::{c_int, c_uint},
    slice,
};
use libc::{mmsghdr, timespec};

/// Most messages of a call, as in the system.
const MOST: c_uint = 1024;

/// Handles messages until one fails or `go_on` says no. Returns how many are done; an error counts only if it is that of the first.
unsafe fn each(
    list: *mut mmsghdr,
    count: c_uint,
    mut one: impl FnMut(&mut mmsghdr) -> libc::ssize_t,
    mut go_on: impl FnMut() -> bool,
) -> c_int {
    if list.is_null() && count > 0 {
        set_errno(libc::EFAULT);
        return -1;
    }
    if count == 0 {
        return 0;
    }
    // SAFETY: the caller promises so many.
    let list = unsafe { slice::from_raw_parts_mut(list, count.min(MOST) as usize) };
    let (before, mut done) = (errno(), 0);
    for message in list {
        let len = one(message);
        if len < 0 && done == 0 {
            return -1;
        }
        if len < 0 {
            set_errno(before);
            break;
        }
        message.msg_len = len as c_uint;
        done += 1;
        if !go_on() {
            break;
        }
    }
    done
}

/// sendmmsg(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn sendmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let Some(rs) = fork::settled(fd) else {
        type List = *mut mmsghdr;
        return real!(c"sendmmsg" as fn(c_int, List, c_uint, c_int) -> c_int, fd, list, count, flags);
    };
    // SAFETY: as the program called us.
    unsafe { each(list, count, |message| rs::rsendmsg(rs, &raw const message.msg_hdr, flags), || true) }
}

/// recvmmsg(2). As in the system, the time is looked at only after a message.
#[unsafe(no_mangle)]
unsafe extern "C" fn recvmmsg(
    fd: c_int,
    list: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    time: *mut timespec,
) -> c_int {
    let Some(rs) = fork::settled(fd) else {
        type List = *mut mmsghdr;
        type Time = *mut timespec;
        return real!(
            c"recvmmsg" as fn(c_int, List, c_uint, c_int, Time) -> c_int,
            fd,
            list,
            count,
            flags,
            time
        );
    };
    // SAFETY: a time of the program's, or null.
    let mut time = unsafe { time.as_mut() };
    if time.as_ref().is_some_and(|time| time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec)) {
        set_errno(libc::EINVAL);
        return -1;
    }
    let end = time.as_ref().map(|time| {
        now().saturating_add(time.tv_sec.saturating_mul(1_000_000)).saturating_add(time.tv_nsec / 1000)
    });
    let mut each_flags = flags & !libc::MSG_WAITFORONE;
    let receive = |message: &mut mmsghdr| {
        // SAFETY: as the program called us.
        let len = unsafe { rs::rrecvmsg(rs, &raw mut message.msg_hdr, each_flags) };
        if flags & libc::MSG_WAITFORONE != 0 {
            each_flags |= libc::MSG_DONTWAIT;
        }
        len
    };
    let is_left = || {
        let (Some(time), Some(end)) = (time.as_mut(), end) else { return true };
        let left = end.saturating_sub(now()).max(0);
        (time.tv_sec, time.tv_nsec) = (left / 1_000_000, left % 1_000_000 * 1000);
        left > 0
    };
    // SAFETY: as the program called us.
    unsafe { each(list, count, receive, is_left) }
}
