//! The functions of libc that close and copy descriptors.

use crate::{
    calls::{real, real_close, real_dup2, set_errno},
    epoll, fork, process, rs, table,
};
use core::ffi::c_int;
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
    let made = system();
    if made >= 0 {
        forget(made);
    }
    copy(fd, made)
}

/// Copies what is known of a descriptor to a duplicate. If there can be none, the duplicate is closed, since it would be no socket.
fn copy(fd: c_int, new: c_int) -> c_int {
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

fn control(fd: c_int, command: c_int, argument: off_t, system: impl FnOnce() -> c_int) -> c_int {
    if !is_ours(fd) {
        return system();
    }
    match (table::rsocket(fd), command) {
        (_, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
            if !table::has_room(argument as c_int) && table::get(fd).is_some() =>
        {
            set_errno(libc::EINVAL);
            -1
        }
        (_, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => {
            fork::other_has_settled(fd);
            copy(fd, system())
        }
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
