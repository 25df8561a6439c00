//! What processes do to themselves: they fork, close all their descriptors, are stopped.

use super::{
    common::CONFIG,
    netns::Namespace,
    stage::{
        self, End, PATIENCE, SERVICE, Service, becomes, exchange, exchange_of, finish, hear, listens, mad,
        observe, say, until,
    },
};
use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitStatus, waitpid},
    },
    unistd::{ForkResult, Pid, fork},
};
use rxe_verbs::host::Observer;
use std::{
    io::{BufReader, Read, Write},
    net::UdpSocket,
    path::Path,
    process::{Child, ChildStdout, Command},
    sync::mpsc::channel,
    thread,
    time::Duration,
};

/// Runs one of the tests below that are ignored.
fn child(namespace: &Namespace, test: &str) -> (Child, BufReader<ChildStdout>) {
    stage::child(namespace, &format!("life::{test}"))
}

/// A request to oneself: through the service, and the reply past it.
fn talk_to_oneself(end: &End, round: u32) {
    exchange(end, end, round);
}

#[test]
fn a_forked_child_is_another_process() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start_with(&namespace, CONFIG);
    let (child, mut output) = child(&namespace, "child_forks");
    let line = hear(&mut output, "forked twice: ");
    // It has ended, and its second child has not. The port is free as soon as the service has ended too.
    until(|| namespace.run(|| UdpSocket::bind("0.0.0.0:4791")).is_ok());
    let orphan = line.trim_end().rsplit(' ').next().and_then(|pid| pid.parse().ok()).expect("a number");
    kill(Pid::from_raw(orphan), Signal::SIGKILL).expect("the second child lives");
    finish(child, output);
}

#[test]
#[ignore = "run by a_forked_child_is_another_process"]
fn child_forks() {
    let end = End::here();
    let token = end.context.host_port().unwrap().listen(listens(SERVICE)).unwrap();
    talk_to_oneself(&end, 1);
    // SAFETY: the child uses what is safe there: allocation (glibc sees to it), and no lock of another thread.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let slot = end.slot();
            // Neither hangs, nor takes the parent's slot away.
            drop(end);
            let own = End::here();
            let listens = own.context.host_port().unwrap().listen(listens(SERVICE + 1)).is_some();
            talk_to_oneself_as(&own, SERVICE + 1);
            let good = own.slot() != slot && listens;
            drop(own);
            // SAFETY: ends the process without the test harness's handlers.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    talk_to_oneself(&end, 2);
    end.context.host_port().unwrap().unlisten(token);
    // SAFETY: as before.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            thread::sleep(2 * PATIENCE);
            // SAFETY: as before.
            unsafe { libc::_exit(0) };
        }
        ForkResult::Parent { child } => say(&format!("forked twice: {child}")),
    }
}

fn talk_to_oneself_as(end: &End, service_id: u64) {
    exchange_of(end, end, 7, service_id);
}

/// A program that closes everything it does not know, and then opens its own files where ours were.
#[test]
fn a_process_may_close_all_its_descriptors() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let (child, output) = child(&namespace, "child_closes_everything");
    finish(child, output);
}

#[test]
#[ignore = "run by a_process_may_close_all_its_descriptors"]
fn child_closes_everything() {
    let end = End::here();
    let slot = end.slot();
    // SAFETY: closes descriptors that the library owns, which is what is tested: it must not use those numbers again.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) }, 0);
    // Eight bytes each: what an event counter of ours would take out of them.
    let mut pipes: Vec<_> = (0..100).map(|_| std::io::pipe().unwrap()).collect();
    for (_, into) in &mut pipes {
        into.write_all(b"untouche").unwrap();
    }
    thread::sleep(Duration::from_millis(300));
    for (from, _) in &mut pipes {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"untouche");
    }
    let again = End::here();
    assert_ne!(again.slot(), slot);
    assert!(again.context.host_port().unwrap().listen(listens(SERVICE)).is_some());
    talk_to_oneself(&again, 1);
    // The numbers that the old one owns are not its any more: it must not close what has them now.
    std::mem::forget(end);
}

/// A client is stopped while the service dies and another takes over. When it goes on, nothing has changed for it.
#[test]
fn a_stopped_client_keeps_its_slot() {
    let Some(namespace) = Namespace::new() else { return };
    let mut service = Service::start(&namespace);
    let (child, mut output) = child(&namespace, "child_answers");
    hear(&mut output, "ready");
    let end = End::new(&namespace);
    exchange_with_child(&end, 1);
    let pid = Pid::from_raw(child.id() as i32);
    kill(pid, Signal::SIGSTOP).unwrap();
    service.kill();
    let report = becomes(&namespace, |report| report.counters.rejoined == 1);
    let stopped = report.clients.iter().find(|client| client.pid == pid.as_raw()).expect("it is known");
    assert!(!stopped.connected, "{report:?}");
    let newcomer = End::new(&namespace);
    assert_ne!(newcomer.slot(), stopped.slot);
    let port = newcomer.context.host_port().unwrap();
    assert_eq!(port.listen(listens(SERVICE)), None, "it is the stopped one's, who cannot say so");
    kill(pid, Signal::SIGCONT).unwrap();
    becomes(&namespace, |report| report.clients.iter().all(|client| client.connected));
    becomes(&namespace, |report| report.clients.iter().any(|client| !client.listening.is_empty()));
    exchange_with_child(&end, 2);
    finish(child, output);
    becomes(&namespace, |report| report.clients.len() == 2);
}

/// A service that has too few descriptors for its work makes way for one that has more: here that of the client, which was stopped
/// until then.
#[test]
fn a_service_that_cannot_take_over_makes_way() {
    // So many that it cannot accept a connection, hear the client, read the state, or use that.
    for few in [0, 3, 8, 14] {
        let Some(namespace) = Namespace::new() else { return };
        let mut service = Service::start(&namespace);
        let (child, mut output) = child(&namespace, "child_answers");
        hear(&mut output, "ready");
        let pid = Pid::from_raw(child.id() as i32);
        kill(pid, Signal::SIGSTOP).unwrap();
        service.kill();
        let poor = Service::start(&namespace);
        let is_free = |number: &i32| !Path::new(&format!("/proc/{}/fd/{number}", poor.pid())).exists();
        let limit = format!("--nofile={}", (0..).find(is_free).unwrap() + few);
        let limited = Command::new("prlimit").args(["--pid", &poor.pid().to_string(), &limit]).status();
        assert!(limited.unwrap().success());
        kill(pid, Signal::SIGCONT).unwrap();
        becomes(&namespace, |report| report.pid == child.id() && report.counters.rejoined == 1);
        becomes(&namespace, |report| report.clients.iter().any(|client| !client.listening.is_empty()));
        exchange_with_child(&End::new(&namespace), 1);
        finish(child, output);
    }
}

/// A service that answers too late does not keep the place for a process that has given up.
#[test]
fn a_listener_that_was_not_answered_is_none() {
    let Some(namespace) = Namespace::new() else { return };
    let service = Service::start(&namespace);
    let end = End::new(&namespace);
    let (port, pid) = (end.context.host_port().unwrap(), Pid::from_raw(service.pid()));
    kill(pid, Signal::SIGSTOP).unwrap();
    assert_eq!(port.listen(listens(SERVICE)), None, "nobody answers");
    kill(pid, Signal::SIGCONT).unwrap();
    assert!(port.listen(listens(SERVICE)).is_some(), "nobody else has it");
    becomes(&namespace, |report| report.clients.iter().all(|client| client.listening.len() == 1));
}

/// A request of `end`'s, which the child answers.
fn exchange_with_child(end: &End, round: u32) {
    let comm_id = u32::from(end.slot()) << 24 | round;
    end.send(&mad(stage::REQ, comm_id, 0, SERVICE));
    let reply = end.receive();
    assert_eq!(reply[28..32], comm_id.to_be_bytes());
}

#[test]
#[ignore = "run by a_stopped_client_keeps_its_slot"]
fn child_answers() {
    let end = End::here();
    let _token = end.context.host_port().unwrap().listen(listens(SERVICE)).unwrap();
    say("ready");
    thread::spawn(|| {
        // Until the parent ends it.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    loop {
        let request = end.receive();
        let comm_id = u32::from_be_bytes(request[24..28].try_into().unwrap());
        end.send(&mad(stage::REP, u32::from(end.slot()) << 24, comm_id, 0));
    }
}

/// The first process is the service too, has a forked child, and dies: the child keeps nothing of it alive.
#[test]
fn a_service_inside_a_process_dies_with_it() {
    let Some(namespace) = Namespace::new() else { return };
    let (mut child, mut output) = child(&namespace, "child_is_the_service");
    let line = hear(&mut output, "forked: ");
    let orphan = line.trim_end().rsplit(' ').next().and_then(|pid| pid.parse().ok()).expect("a number");
    let (a, b) = (End::new(&namespace), End::new(&namespace));
    assert_eq!(observe(&namespace).unwrap().pid, child.id());
    assert!(a.context.host_port().unwrap().listen(listens(SERVICE)).is_some());
    exchange(&a, &b, 1);
    child.kill().unwrap();
    child.wait().unwrap();
    let report = becomes(&namespace, |report| report.counters.rejoined == 2);
    assert_eq!((report.pid, report.clients.len()), (std::process::id(), 2), "{report:?}");
    becomes(&namespace, |report| report.clients.iter().any(|client| !client.listening.is_empty()));
    exchange(&a, &b, 2);
    kill(Pid::from_raw(orphan), Signal::SIGKILL).expect("the forked child lives");
}

#[test]
#[ignore = "run by a_service_inside_a_process_dies_with_it"]
fn child_is_the_service() {
    let _end = End::here();
    // SAFETY: the child uses nothing.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            thread::sleep(2 * PATIENCE);
            // SAFETY: ends the process without the test harness's handlers.
            unsafe { libc::_exit(0) };
        }
        ForkResult::Parent { child } => say(&format!("forked: {child}")),
    }
    thread::sleep(2 * PATIENCE);
}

/// If it is killed, its slot is not used again for a while.
#[test]
fn the_dead_are_noticed_at_once() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let (mut child, mut output) = child(&namespace, "child_answers");
    hear(&mut output, "ready");
    let end = End::new(&namespace);
    exchange_with_child(&end, 1);
    child.kill().unwrap();
    let report = becomes(&namespace, |report| report.counters.died == 1);
    assert_eq!((report.clients.len(), report.resting.len()), (1, 1), "{report:?}");
    child.wait().unwrap();
}

/// What a process counted is told also where it exits while another thread drops its last context.
#[test]
fn counts_outlive_a_process_that_exits_while_a_thread_ends() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let sent = || {
        let stats = namespace.run(|| Observer::connect().unwrap().unwrap().stats().unwrap());
        stats.devices.values().filter_map(|counters| counters.get("packets_sent")).sum::<u64>()
    };
    for round in 1..=20 {
        let before = sent();
        let (mut child, output) = child(&namespace, "child_exits_while_a_thread_ends");
        stage::go_on(&mut child);
        finish(child, output);
        becomes(&namespace, |report| report.clients.is_empty());
        let after = sent();
        assert!(after > before, "round {round}: {after} after {before}");
    }
}

#[test]
#[ignore = "run by counts_outlive_a_process_that_exits_while_a_thread_ends"]
fn child_exits_while_a_thread_ends() {
    let end = End::here();
    let _token = end.context.host_port().unwrap().listen(listens(SERVICE)).unwrap();
    talk_to_oneself(&end, 1);
    let (ready, begins) = channel();
    thread::spawn(move || {
        ready.send(()).unwrap();
        drop(end);
    });
    begins.recv().unwrap();
    std::process::exit(0);
}

/// The process runs another program now (`execve`), which does not use the slot. So the slot is free, although no process has died.
#[test]
fn a_slot_is_free_after_its_process_executed_another_program() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    is_free_after_exec(&namespace);
    assert_eq!(observe(&namespace).unwrap().counters.died, 0);
}

/// The service was in that process.
#[test]
fn nor_does_an_executed_service_keep_its_slot() {
    let Some(namespace) = Namespace::new() else { return };
    is_free_after_exec(&namespace);
}

fn is_free_after_exec(namespace: &Namespace) {
    let (mut child, mut output) = child(namespace, "child_executes");
    hear(&mut output, "ready");
    let pid = child.id() as i32;
    let (a, b) = (End::new(namespace), End::new(namespace));
    assert_eq!(observe(namespace).unwrap().clients.len(), 3);
    stage::go_on(&mut child);
    hear(&mut output, "executed");
    let report = becomes(namespace, |report| report.counters.deserted == 1);
    assert!(report.clients.iter().all(|client| client.pid != pid), "{report:?}");
    assert_eq!((report.clients.len(), report.resting.len()), (2, 1), "{report:?}");
    assert!(report.log.iter().any(|line| line.contains("goes on without it")), "{:?}", report.log);
    assert!(child.try_wait().unwrap().is_none(), "the process lives");
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let target = std::fs::read_link(entry.unwrap().path()).unwrap();
        assert!(!target.to_str().unwrap().starts_with("socket:"), "it has inherited {target:?}");
    }
    // Nobody listens any more, and the others know each other.
    assert!(a.context.host_port().unwrap().listen(listens(SERVICE)).is_some());
    exchange(&a, &b, 1);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
#[ignore = "run by a_slot_is_free_after_its_process_executed_another_program"]
fn child_executes() {
    use std::os::unix::process::CommandExt;
    let end = End::here();
    let _token = end.context.host_port().unwrap().listen(listens(SERVICE)).unwrap();
    say("ready");
    stage::wait_for_parent();
    let error = Command::new("sh").args(["-c", "echo executed; exec sleep 1000"]).exec();
    panic!("{error}");
}
