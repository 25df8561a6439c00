//! The process as a whole: work at exit, bringing memory to storage, facts about threads and rights, and a start that inherits
//! nothing from the starting process.

use super::{
    fork::{generation, is_own},
    signals::block_signals,
};
use core::{cell::Cell, ffi::c_void, time::Duration};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::{SigSet, Signal},
        socket::{AddressFamily, SockFlag, SockType, socket},
        stat::{Mode, umask},
    },
    time::{ClockId, clock_gettime},
    unistd::{Pid, gettid, setsid},
};
use std::{
    ffi::{CString, OsStr},
    fs,
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::OnceLock,
};

thread_local! {
    /// Whether this thread is one of the library's own.
    static BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// Marks the calling thread as one of the library's own: it takes no signals, and stays in the process's network namespace.
pub(crate) fn become_background() {
    block_signals();
    BACKGROUND.set(true);
}

/// Whether the calling thread is one of the library's own.
pub(crate) fn is_background() -> bool {
    BACKGROUND.get()
}

/// The kernel's ID of the calling thread (`gettid(2)`). It is cached; a forked child asks again, because its ID differs.
pub(crate) fn this_thread() -> i32 {
    thread_local!(static HERE: Cell<(u32, i32)> = const { Cell::new((0, 0)) });
    let (known_in, tid) = HERE.get();
    if tid != 0 && is_own(known_in) {
        return tid;
    }
    let tid = gettid().as_raw();
    HERE.set((generation(), tid));
    tid
}

/// Whether a thread of this process sleeps interruptibly (`proc_pid_stat(5)`, state S). False if the system does not say. Allocates
/// nothing.
pub(crate) fn is_asleep(tid: i32) -> bool {
    let mut path = io::Cursor::new([0; 48]);
    if write!(path, "/proc/self/task/{tid}/stat").is_err() {
        return false;
    }
    let path = OsStr::from_bytes(&path.get_ref()[..path.position() as usize]);
    let mut stat = [0; 128];
    let read = fs::File::open(path).and_then(|mut file| file.read(&mut stat));
    // The state stands behind the thread's name, which has at most 15 bytes and may contain parentheses. Only numbers follow, so
    // the last ") " is the right one.
    let found = read.map(|len| &stat[..len]).unwrap_or_default();
    found.windows(3).rfind(|words| words.starts_with(b") ")).is_some_and(|words| words[2] == b'S')
}

/// Processor time that a thread of this process has used. Always 0 if there is no such thread, or the system does not say.
pub(crate) fn processor_time_of(tid: i32) -> Duration {
    // The clock ID of a thread, as the kernel builds it (CPUCLOCK_PERTHREAD_MASK, CPUCLOCK_SCHED; clock_getres(2)).
    let clock = ClockId::from_raw(!tid << 3 | 4 | 2);
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}

static AT_EXIT: OnceLock<fn()> = OnceLock::new();

extern "C" fn run_at_exit() {
    if let Some(work) = AT_EXIT.get() {
        work();
    }
}

/// Runs `work` when the process returns from `main` or calls `exit(3)`. Only the first call counts.
pub(crate) fn at_exit(work: fn()) {
    if AT_EXIT.set(work).is_ok() {
        // SAFETY: registers a function that lives as long as the program and does not unwind past C.
        let _ = unsafe { libc::atexit(run_at_exit) };
    }
}

/// Ends this process at once, in a way for which it cannot prepare (`SIGKILL`).
pub(crate) fn kill_self() -> ! {
    let _ = nix::sys::signal::kill(Pid::this(), Signal::SIGKILL);
    // Only reached by the first process of a PID namespace, which cannot kill itself.
    std::process::abort()
}

/// Writes the pages of a range to the file from which they are mapped (`msync(2)`). For anonymous memory this does nothing, and is
/// no error. Memory that is gone gives `ENOMEM`.
pub(crate) fn sync_to_storage(address: usize, len: usize) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    let page = page_size();
    let start = address / page * page;
    // SAFETY: the kernel checks the range, and writes to the file, not to memory.
    let result = unsafe { libc::msync(start as *mut c_void, address - start + len, libc::MS_SYNC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether this program has more rights than the user who started it (`AT_SECURE`).
pub(crate) fn has_more_rights_than_its_starter() -> bool {
    // SAFETY: reads what the kernel has told the process at its start.
    (unsafe { libc::getauxval(libc::AT_SECURE) }) != 0
}

/// Whether an executable file has capabilities (`setcap(8)`).
pub(crate) fn has_file_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: both are strings, and nothing is written where the length is 0.
    let len =
        unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), core::ptr::null_mut(), 0) };
    len > 0
}

/// A name for the calling thread's network namespace. `None` if /proc is not mounted.
pub(crate) fn network_namespace() -> Option<PathBuf> {
    fs::read_link("/proc/thread-self/ns/net").ok()
}

/// The cookie of the calling thread's network namespace. No other namespace has the same until the next boot. `None` before Linux
/// 5.14.
pub(crate) fn namespace_cookie() -> Option<u64> {
    /// `SO_NETNS_COOKIE` of asm-generic/socket.h.
    const NETNS_COOKIE: libc::c_int = 71;
    let socket = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).ok()?;
    let (mut cookie, mut len) = (0_u64, size_of::<u64>() as libc::socklen_t);
    let (value, fd) = ((&raw mut cookie).cast::<c_void>(), socket.as_raw_fd());
    // SAFETY: the kernel writes at most `len` bytes to memory that has them.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, NETNS_COOKIE, value, &raw mut len) };
    (result == 0 && len as usize == size_of::<u64>()).then_some(cookie)
}

pub(crate) fn page_size() -> usize {
    // SAFETY: asks for a constant of the system.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(1)
}

/// The soft limit for locked memory, in bytes. `None` for no limit.
pub(crate) fn memlock_limit() -> Option<u64> {
    getrlimit(Resource::RLIMIT_MEMLOCK).ok().map(|(soft, _)| soft).filter(|soft| *soft != libc::RLIM_INFINITY)
}

/// Whether this process may lock any amount of memory. As in kernels this takes CAP_IPC_LOCK in the initial user namespace.
pub(crate) fn may_lock() -> bool {
    const IPC_LOCK: u64 = 1 << 14;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let has = effective
        .and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
        .is_some_and(|set| set & IPC_LOCK != 0);
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    // The initial namespace maps all users to themselves.
    has && map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Resets what the process inherited from the one that started it, as far as an ordinary user may: descriptors above standard
/// error, session and terminal, blocked and ignored signals, CPU affinity, memory policy, scheduling class and priority, soft
/// limits, file mode mask. Hard limits, control groups, namespaces and system call filters stay: a process cannot leave these.
/// There are no errors: what cannot be reset stays as it was.
///
/// Only for a process that has opened nothing yet and has one thread.
pub(crate) fn start_afresh() {
    close_above_standard_error();
    // Fails for the leader of a process group, which a shell's command is.
    let _ = setsid();
    let _ = SigSet::empty().thread_set_mask();
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGXCPU] {
        // SAFETY: no handler is installed, the system's default is restored.
        let _ = unsafe { libc::signal(signal as i32, libc::SIG_DFL) };
    }
    let mut all = CpuSet::new();
    (0..CpuSet::count()).for_each(|cpu| _ = all.set(cpu));
    let _ = sched_setaffinity(Pid::from_raw(0), &all);
    let ordinary = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads the structure, and is about this thread; the others have numbers only.
    unsafe {
        let _ = libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_DEFAULT, core::ptr::null::<u64>(), 0);
        let _ = libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const ordinary);
        let _ = libc::setpriority(libc::PRIO_PROCESS, 0, 0);
    }
    for resource in [
        Resource::RLIMIT_AS,
        Resource::RLIMIT_CPU,
        Resource::RLIMIT_DATA,
        Resource::RLIMIT_FSIZE,
        Resource::RLIMIT_NOFILE,
    ] {
        if let Ok((soft, hard)) = getrlimit(resource)
            && soft < hard
        {
            let _ = setrlimit(resource, hard, hard);
        }
    }
    umask(Mode::from_bits_truncate(0o077));
}

fn close_above_standard_error() {
    // SAFETY: the caller has opened nothing, so nobody of this process owns any of them.
    let close = |first: RawFd, last: u32| unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if close(libc::STDERR_FILENO + 1, u32::MAX) == 0 {
        return;
    }
    // Linux before 5.9, and sandboxes that forbid the call. The list is read to its end before anything is closed.
    let Ok(list) = fs::read_dir("/proc/self/fd") else { return };
    let numbers: Vec<RawFd> =
        list.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for fd in numbers.into_iter().filter(|fd| *fd > libc::STDERR_FILENO) {
        // SAFETY: as above.
        let _ = unsafe { libc::close(fd) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::child::in_child;
    use std::{sync::mpsc, thread};

    #[test]
    fn a_thread_is_asleep_while_it_waits() {
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let waiter = thread::Builder::new().name("a) S (b) R".to_owned());
        let waiter = waiter.spawn(move || {
            tell.send(this_thread()).unwrap();
            let _ = ended.recv();
        });
        let tid = told.recv().unwrap();
        while !is_asleep(tid) {
            thread::yield_now();
        }
        assert!(!is_asleep(this_thread()), "it runs");
        drop(end);
        waiter.unwrap().join().unwrap();
        assert!(!is_asleep(-1), "there is none of that number");
    }

    #[test]
    fn a_forked_child_s_thread_has_a_number_of_its_own() {
        assert_eq!(this_thread(), gettid().as_raw());
        assert_eq!(this_thread(), gettid().as_raw(), "asked for once");
        in_child(|| this_thread() == gettid().as_raw());
    }
}
