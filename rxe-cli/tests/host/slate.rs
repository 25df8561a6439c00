//! A service keeps nothing of the process that has started it. And if it cannot work, it does not hinder programs.

use super::{
    common::{LASTING, text},
    netns::Namespace,
    stage::{End, child, finish, observe, until},
};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CpuSet, sched_setaffinity},
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::{Signal, kill},
    },
    unistd::Pid,
};
use std::{
    fs,
    io::{BufReader, pipe},
    os::{
        fd::{AsFd, AsRawFd},
        unix::process::CommandExt,
    },
    process::{Command, Stdio},
};

/// A command that the kernel starts with less than we have.
fn start(bound: impl Fn() -> std::io::Result<()> + Send + Sync + 'static) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rxe"));
    command.args(["service", "start"]).env("RXE_CONFIG", LASTING).stderr(Stdio::piped());
    // SAFETY: what is done there is system calls only.
    unsafe { command.pre_exec(bound) };
    command
}

/// Ends a service with the test.
struct Ends(Pid);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
    }
}

fn status(pid: u32, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap().trim().to_owned()
}

#[test]
fn a_service_keeps_nothing_of_its_starter_s() {
    let Some(namespace) = Namespace::new() else { return };
    let (from, into) = pipe().unwrap();
    let number = into.as_raw_fd();
    let command = move || {
        // What `make -j` does with its pipe, `taskset`, `nice` and `ulimit`.
        // SAFETY: duplicates a descriptor that is open in this child.
        if unsafe { libc::dup2(number, 9) } < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let mut one = CpuSet::new();
        one.set(0)?;
        sched_setaffinity(Pid::from_raw(0), &one)?;
        // SAFETY: numbers only.
        let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 7) };
        let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE)?;
        setrlimit(Resource::RLIMIT_FSIZE, 4096, hard)?;
        Ok(())
    };
    let output = namespace.run(move || start(command).output().unwrap());
    assert!(output.status.success(), "{output:?}");
    let pid = observe(&namespace).expect("a service").pid;
    let _ends = Ends(Pid::from_raw(pid.cast_signed()));
    drop(into);
    let mut ends = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut ends, PollTimeout::ZERO), Ok(1), "the service holds its starter's pipe");
    assert_eq!(ends[0].revents(), Some(PollFlags::POLLHUP));
    assert_eq!(status(pid, "Cpus_allowed"), status(std::process::id(), "Cpus_allowed"));
    let (limits, stat) = ["limits", "stat"].map(|name| format!("/proc/{pid}/{name}")).into();
    let limits = fs::read_to_string(limits).unwrap();
    let limit = limits.lines().find(|line| line.starts_with("Max file size")).unwrap();
    assert!(!limit.contains(" 4096 "), "{limit}");
    let stat = fs::read_to_string(stat).unwrap();
    // The 19th field of proc_pid_stat(5), the 17th behind the name.
    let nice = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(16).unwrap();
    // Ordinary users cannot raise their priority.
    assert!(nice == "0" || !nix::unistd::geteuid().is_root(), "{stat}");
}

/// The program around a service has its limits for itself.
#[test]
fn a_service_inside_a_process_leaves_its_limits() {
    let Some(namespace) = Namespace::new() else { return };
    let (child, output) = child(&namespace, "slate::child_with_a_limit");
    finish(child, output);
}

#[test]
#[ignore = "run by a_service_inside_a_process_leaves_its_limits"]
fn child_with_a_limit() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let few = (hard - 1).min(700);
    setrlimit(Resource::RLIMIT_NOFILE, few, hard).unwrap();
    let _end = End::here();
    let service = rxe_verbs::host::Observer::connect().unwrap().expect("a service").status().unwrap();
    assert_eq!(service.pid, std::process::id(), "it is in this process");
    assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (few, hard));
}

/// `memfd_create` is refused from now on, as some sandboxes do.
fn enter_sandbox() -> std::io::Result<()> {
    const fn statement(code: u32, k: u32) -> libc::sock_filter {
        libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
    }
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter {
            jf: 1,
            ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_memfd_create as u32)
        },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: the program lives as long as the call, and is about this thread and what it starts.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn a_service_that_cannot_work_says_so_and_is_not_in_the_way() {
    let Some(namespace) = Namespace::new() else { return };
    let output = namespace.run(|| start(enter_sandbox).output().unwrap());
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("cannot share memory"), "{output:?}");
    assert!(observe(&namespace).is_none(), "it has gone");
    // A program that starts it there is told; one outside has it at once.
    let mut child = namespace.run(|| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "slate::child_in_a_sandbox",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        command
            .env("RXE_SERVICE", env!("CARGO_BIN_EXE_rxe"))
            .env("RXE_CONFIG", LASTING)
            .stdout(Stdio::piped());
        // SAFETY: system calls only.
        unsafe { command.pre_exec(enter_sandbox) };
        command.spawn().unwrap()
    });
    let output = BufReader::new(child.stdout.take().unwrap());
    finish(child, output);
    let end = End::new(&namespace);
    until(|| observe(&namespace).is_some());
    assert_ne!(end.slot(), 0);
}

#[test]
#[ignore = "run by a_service_that_cannot_work_says_so_and_is_not_in_the_way"]
fn child_in_a_sandbox() {
    let error = rxe_verbs::Context::open_address(super::stage::HOME).unwrap_err().to_string();
    assert!(error.contains("cannot share memory"), "{error}");
}
