//! The functions of libc that close and copy descriptors.

use crate::{
    calls::{errno, real, real_close, real_dup2, set_errno},
    epoll, fork, process, rs, table,
};
use core::ffi::{c_int, c_uint};
use libc::off_t;

/// Whether a call for this descriptor changes the table.
fn is_ours(fd: c_int) -> bool {
    table::is_known(fd) && !process::is_borrowed()
}

/// Removes the entry of a descriptor that is closed or replaced.
fn forget(fd: c_int) {
    table::note(fd, table::EPOLL, false);
    if let Some(set) = table::clear_poll_set(fd) {
        // SAFETY: ours.
        unsafe { rs::rclose(set) };
    }
    if let Some(rs) = table::clear(fd) {
        // SAFETY: nobody has it any more.
        unsafe { rs::rclose(rs) };
    }
}

/// close(2). For the last descriptor of an rsocket this waits until all data has arrived.
#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    if is_ours(fd) {
        forget(fd);
    }
    // SAFETY: as the program called us.
    unsafe { real_close(fd) }
}

/// The descriptors of a range that are known.
fn known(first: c_uint, last: c_uint) -> impl Iterator<Item = c_int> {
    let first = usize::try_from(first).unwrap_or(usize::MAX);
    let end = usize::try_from(last).unwrap_or(usize::MAX).saturating_add(1).min(table::highest());
    (first..end).map(|fd| fd as c_int).filter(|fd| is_ours(*fd))
}

/// close_range(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if first <= last && flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0 {
        known(first, last).for_each(|fd| table::note(fd, table::INHERITED, false));
    } else if first <= last && flags & !(libc::CLOSE_RANGE_UNSHARE as c_int) == 0 {
        known(first, last).for_each(forget);
    }
    real!(c"close_range" as fn(c_uint, c_uint, c_int) -> c_int, first, last, flags)
}

/// closefrom(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    known(c_uint::try_from(first).unwrap_or(0), c_uint::MAX).for_each(forget);
    real!(c"closefrom" as fn(c_int) -> (), first);
}

/// fclose(3). Streams write by functions of libc that are not replaced.
#[unsafe(no_mangle)]
unsafe extern "C" fn fclose(stream: *mut libc::FILE) -> c_int {
    // SAFETY: the program's stream, here and below.
    let fd = unsafe { libc::fileno(stream) };
    if is_ours(fd) {
        forget(fd);
    }
    real!(c"fclose" as fn(*mut libc::FILE) -> c_int, stream)
}

/// The system has just given this number to something new. If there is an entry, it is of a descriptor that was closed past us.
pub(crate) fn is_new(fd: c_int) {
    if !is_ours(fd) {
        return;
    }
    if rs::is_inside() {
        // The library may hold locks. An rsocket that nobody can name stays.
        table::note(fd, table::EPOLL, false);
        table::clear_poll_set(fd);
        table::clear(fd);
    } else {
        let before = errno();
        forget(fd);
        set_errno(before);
    }
}

/// One line for each function that makes a descriptor of another kind.
macro_rules! others {
    ($($name:ident = $symbol:literal ($($argument:ident: $type:ty),*);)*) => {$(
        #[doc = "libc's function of this name."]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            let fd = real!($symbol as fn($($type),*) -> c_int, $($argument),*);
            is_new(fd);
            fd
        }
    )*};
}

others! {
    eventfd = c"eventfd" (value: c_uint, flags: c_int);
    timerfd_create = c"timerfd_create" (clock: c_int, flags: c_int);
    inotify_init1 = c"inotify_init1" (flags: c_int);
}

/// One line for each function that makes two descriptors.
macro_rules! pairs {
    ($($name:ident = $symbol:literal ($($before:ident: $type:ty),*) ($($after:ident: $other:ty)?);)*) => {$(
        #[doc = "libc's function of this name."]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($before: $type,)* out: *mut c_int $(, $after: $other)?) -> c_int {
            let done = real!(
                $symbol as fn($($type,)* *mut c_int $(, $other)?) -> c_int, $($before,)* out $(, $after)?
            );
            if done == 0 {
                // SAFETY: filled in, as the call succeeded.
                unsafe { [*out, *out.wrapping_add(1)] }.into_iter().for_each(is_new);
            }
            done
        }
    )*};
}

pairs! {
    pipe = c"pipe" () ();
    pipe2 = c"pipe2" () (flags: c_int);
    socketpair = c"socketpair" (domain: c_int, kind: c_int, protocol: c_int) ();
}

/// Closes all sockets at the end of the program. The system does this for TCP, but the data of rsockets is delivered by this
/// process. A forked process has none of its parent's rsockets.
extern "C" fn at_exit() {
    if process::is_borrowed() {
        return;
    }
    for fd in table::all() {
        if let Some(rs) = table::clear(fd) {
            // SAFETY: nobody has it any more.
            unsafe { rs::rclose(rs) };
        }
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

/// dup(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    fork::other_has_settled(fd);
    let new = real!(c"dup" as fn(c_int) -> c_int, fd);
    copy(fd, new)
}

/// dup2(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(fd: c_int, new: c_int) -> c_int {
    // SAFETY: numbers only.
    replace(fd, new, || unsafe { real_dup2(fd, new) })
}

/// dup3(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
    replace(fd, new, || real!(c"dup3" as fn(c_int, c_int, c_int) -> c_int, fd, new, flags))
}

fn replace(fd: c_int, new: c_int, system: impl FnOnce() -> c_int) -> c_int {
    if fd == new || !(is_ours(fd) || is_ours(new)) {
        return system();
    }
    // A connection that is not established yet must not be established twice.
    fork::settled(fd);
    if table::get(fd).is_some() && !table::has_room(new) {
        set_errno(libc::EBADF);
        return -1;
    }
    // What was there is forgotten only then: it stays if this fails. Its number is not free meanwhile.
    copy(fd, system())
}

/// Copies what is known of a descriptor to a duplicate. If there can be none, the duplicate is closed, since it would be no socket.
fn copy(fd: c_int, new: c_int) -> c_int {
    is_new(new);
    if new < 0 || !is_ours(fd) {
        return new;
    }
    epoll::copy(fd, new);
    if let Some(entry) = table::get(fd)
        && !table::set(new, entry)
    {
        // SAFETY: ours.
        unsafe { real_close(new) };
        set_errno(libc::EMFILE);
        return -1;
    }
    new
}

/// fcntl(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: off_t) -> c_int {
    let system = || real!(c"fcntl" as fn(c_int, c_int, off_t) -> c_int, fd, command, argument);
    control(fd, command, argument, system)
}

/// fcntl(2) by its other name.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: off_t) -> c_int {
    let system = || real!(c"fcntl64" as fn(c_int, c_int, off_t) -> c_int, fd, command, argument);
    control(fd, command, argument, system)
}

/// F_DUPFD: a duplicate with this number or a higher one.
fn duplicate(fd: c_int, lowest: c_int, system: impl FnOnce() -> c_int) -> c_int {
    if is_ours(fd) && fork::other_has_settled(fd).is_some() && !table::has_room(lowest) {
        set_errno(libc::EINVAL);
        return -1;
    }
    copy(fd, system())
}

fn control(fd: c_int, command: c_int, argument: off_t, system: impl FnOnce() -> c_int) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        return duplicate(fd, argument as c_int, system);
    }
    if !is_ours(fd) {
        return system();
    }
    match (table::rsocket(fd), command) {
        // SAFETY: numbers only.
        (Some(rs), libc::F_GETFL | libc::F_SETFL) => unsafe { rs::rfcntl(rs, command, argument) },
        // It keeps the flag itself: an rsocket does not survive exec(2).
        (Some(_), libc::F_SETFD) => {
            table::note(fd, table::INHERITED, argument as c_int & libc::FD_CLOEXEC == 0);
            0
        }
        _ => system(),
    }
}
