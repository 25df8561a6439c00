//! A process that has the host service inside itself closes descriptors that are not its own: nothing of ours uses, closes
//! or replaces in forked children what it opens in their places, and the other processes go on with another service.

use super::{
    common::LASTING,
    netns::Namespace,
    stage::{
        self, End, HOME, SERVICE, exchange, exchange_of, finish, go_on, hear, listens, observe, say, until,
        wait_for_parent,
    },
};
use nix::{
    sys::{
        socket::{AddressFamily, SockaddrLike, SockaddrStorage, getsockname, getsockopt, sockopt},
        stat::fstat,
        wait::{WaitStatus, waitpid},
    },
    unistd::{ForkResult, dup2_raw, fork},
};
use std::{
    fs,
    os::{
        fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::net::UnixDatagram,
    },
    time::Duration,
};

#[test]
fn a_process_with_the_service_inside_may_close_all_its_descriptors() {
    others_go_on("child_closes_everything");
}

/// Without the listener nobody could join, and as long as the service lives nobody else could be it.
#[test]
fn a_service_that_lost_its_listener_makes_way() {
    others_go_on("child_closes_the_listener");
}

fn others_go_on(test: &str) {
    let Some(namespace) = Namespace::new() else { return };
    let (mut child, mut output) = stage::child(&namespace, &format!("descriptors::{test}"));
    hear(&mut output, "ready");
    let (a, b) = (End::new(&namespace), End::new(&namespace));
    assert_eq!(observe(&namespace).unwrap().pid, child.id());
    let _token = a.context.host_port().unwrap().listen(listens(SERVICE)).unwrap();
    exchange(&a, &b, 1);
    go_on(&mut child);
    hear(&mut output, "closed");
    let new = || observe(&namespace).filter(|report| report.counters.rejoined >= 2);
    let is_back = |slot| {
        let known = new().map(|report| report.clients).unwrap_or_default();
        known.iter().any(|client| client.slot == slot && client.connected)
    };
    until(|| is_back(a.slot()) && is_back(b.slot()));
    // It says that it listens when it is back; a request that comes long before that is refused.
    until(|| new().is_some_and(|report| report.clients.iter().any(|client| !client.listening.is_empty())));
    exchange(&a, &b, 2);
    go_on(&mut child);
    finish(child, output);
    exchange(&a, &b, 3);
}

/// Becomes the host service, beside a client that has no queue pair, and so no thread that receives.
fn service_inside() -> rxe_verbs::Context {
    // SAFETY: no other thread reads the environment now.
    unsafe { std::env::set_var("RXE_SERVICE", "embedded") };
    let context = rxe_verbs::Context::open_address(HOME).unwrap();
    assert!(runs("rxe-service"), "the service is a thread of this process");
    say("ready");
    wait_for_parent();
    context
}

/// Whether this process has a thread of that name.
fn runs(thread: &str) -> bool {
    fs::read_dir("/proc/self/task").unwrap().any(|task| {
        let name = fs::read_to_string(task.unwrap().path().join("comm"));
        name.is_ok_and(|name| name.trim_end() == thread)
    })
}

fn open_numbers() -> Vec<RawFd> {
    let numbers = fs::read_dir("/proc/self/fd").unwrap();
    numbers.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(|fd| *fd > 2).collect()
}

fn inode(fd: RawFd) -> Option<u64> {
    // SAFETY: only asked about; if it is not open the system says so.
    fstat(unsafe { BorrowedFd::borrow_raw(fd) }).ok().map(|about| about.st_ino)
}

#[test]
#[ignore = "run by a_process_with_the_service_inside_may_close_all_its_descriptors"]
fn child_closes_everything() {
    let context = service_inside();
    let numbers = open_numbers();
    // SAFETY: closes descriptors that the library owns, which is what is tested: it must not use those numbers again.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) }, 0);
    // A socket in the place of each, with messages that somebody who takes it for his own would take out.
    let (into, from) = UnixDatagram::pair().unwrap();
    let strangers: Vec<OwnedFd> = numbers
        .iter()
        .filter(|number| inode(**number).is_none())
        // SAFETY: nothing of this program is open there.
        .map(|number| unsafe { dup2_raw(&from, *number) }.unwrap())
        .collect();
    assert!(strangers.len() > 20, "{numbers:?}");
    for _ in 0..8 {
        into.send(b"untouched").unwrap();
    }
    say("closed");
    until(|| !runs("rxe-service") && !runs("rxe-host"));
    let theirs = inode(from.as_raw_fd());
    assert!(strangers.iter().all(|stranger| inode(stranger.as_raw_fd()) == theirs), "none was closed");
    a_child_has_them_too(&strangers, theirs);
    wait_for_parent();
    from.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    for _ in 0..8 {
        assert_eq!(from.recv(&mut [0; 16]).unwrap(), 9, "all messages are there");
    }
    assert!(from.recv(&mut [0; 16]).is_err(), "and no others");
    works_again();
    // Its sockets' numbers are others' now, and so are its event counters', which look like all event counters.
    std::mem::forget(context);
}

fn a_child_has_them_too(strangers: &[OwnedFd], theirs: Option<u64>) {
    // SAFETY: the child asks about descriptors, and ends.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let good = strangers.iter().all(|stranger| inode(stranger.as_raw_fd()) == theirs);
            // SAFETY: ends the process without the test harness's handlers.
            unsafe { libc::_exit(i32::from(!good)) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
}

#[test]
#[ignore = "run by a_service_that_lost_its_listener_makes_way"]
fn child_closes_the_listener() {
    let _context = service_inside();
    let is_listener = |fd: &RawFd| {
        // SAFETY: open, as nobody closes descriptors here meanwhile.
        let socket = unsafe { BorrowedFd::borrow_raw(*fd) };
        getsockopt(&socket, sockopt::AcceptConn).unwrap_or(false)
            && getsockname::<SockaddrStorage>(*fd).unwrap().family() == Some(AddressFamily::Unix)
    };
    let listeners: Vec<RawFd> = open_numbers().into_iter().filter(is_listener).collect();
    assert_eq!(listeners.len(), 1);
    // SAFETY: as in `child_closes_everything`.
    assert_eq!(unsafe { libc::close(listeners[0]) }, 0);
    say("closed");
    wait_for_parent();
    // The client in this process has come back, like the others.
    let home = || rxe_verbs::host::Observer::connect().unwrap().unwrap().status().unwrap();
    until(|| home().clients.iter().filter(|client| client.connected).count() == 3);
    works_again();
}

/// It gets another slot and sockets, and talks to itself.
fn works_again() {
    let again = End::here();
    assert!(again.context.host_port().unwrap().listen(listens(SERVICE + 1)).is_some());
    exchange_of(&again, &again, 1, SERVICE + 1);
}

/// A service that was told to stop ends with its last client and leaves nothing: the next one finds name, port and slots free.
#[test]
fn a_process_is_the_service_once_more() {
    let Some(namespace) = Namespace::new() else { return };
    let (child, output) = stage::child(&namespace, "descriptors::child_stops_its_service");
    finish(child, output);
}

#[test]
#[ignore = "run by a_process_is_the_service_once_more"]
fn child_stops_its_service() {
    // It is not to end for want of work.
    // SAFETY: no other thread reads the environment now.
    unsafe { std::env::set_var("RXE_CONFIG", LASTING) };
    let observer = || rxe_verbs::host::Observer::connect().unwrap();
    let mut left = None;
    for _ in 0..2 {
        let end = End::here();
        assert!(runs("rxe-service") && end.slot() == 1);
        assert!(end.context.host_port().unwrap().listen(listens(SERVICE)).is_some());
        exchange(&end, &end, 1);
        observer().unwrap().stop().unwrap();
        until(|| observer().is_none());
        drop(end);
        until(|| !runs("rxe-service"));
        assert!(!runs("rxe-host"));
        assert_eq!(*left.get_or_insert_with(open_numbers), open_numbers());
    }
}
