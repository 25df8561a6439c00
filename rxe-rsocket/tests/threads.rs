//! Several threads that wait for one socket: a change is told to each whom it concerns, whoever has seen it first.

mod common;

use common::{Host, PATIENCE, connect, hosts_of, pattern, poll_one, read_all};
use rxe_rsocket::{
    DatagramSocket, Domain, Flags, PollSet, Settings, Socket, SocketError, StreamSocket, proto::How,
};
use rxe_verbs::net::InprocNet;
use std::{
    os::unix::thread::JoinHandleExt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// So many changes: each is seen first by the one or the other.
const ROUNDS: usize = 300;
/// So many connections are closed while a thread sends.
const ENDS: u64 = 100;

/// Bytes of a small receive buffer.
const SMALL: usize = 4096;

fn small() -> Settings {
    let mut settings = Settings::default();
    settings.set_receive_buffer(SMALL as u32);
    settings.set_send_buffer(SMALL as u32);
    settings
}

/// Does something at the end, also of a test that fails, so that no thread is left waiting.
struct Finally<F: Fn()>(F);

impl<F: Fn()> Drop for Finally<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// Sends as much as the peer's buffer holds: nothing more is taken before it reads.
fn fill(socket: &StreamSocket, peer: &StreamSocket) {
    let (start, mut sent) = (Instant::now(), 0);
    while sent < SMALL {
        assert!(start.elapsed() < PATIENCE, "{sent} bytes were taken");
        match socket.send(&pattern(100), Flags::DONTWAIT) {
            Ok(some) => sent += some,
            Err(SocketError::WouldBlock) => {
                // It gives the second half of its buffer by the way.
                let _ = peer.receive(&mut [0], Flags(Flags::PEEK.0 | Flags::DONTWAIT.0));
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(sent, SMALL);
}

/// Each byte is told of by poll.
fn rounds_of_data(from: &Arc<StreamSocket>, to: &Arc<StreamSocket>) {
    for round in 0..ROUNDS {
        thread::scope(|scope| {
            scope.spawn(|| from.send(b"x", Flags::NONE).unwrap());
            assert_eq!(poll_one(to, libc::POLLIN, PATIENCE), libc::POLLIN, "round {round}");
        });
        assert_eq!(to.receive(&mut [0], Flags::DONTWAIT).unwrap(), 1);
    }
}

#[test]
fn who_polls_for_data_hears_of_them_beside_one_who_polls_for_room() {
    let (a, b) = hosts_of(small());
    let (active, passive) = connect(&a, &b);
    fill(&active, &passive);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // There is no room before the peer reads.
            while !done.load(Ordering::Acquire) {
                poll_one(&active, libc::POLLOUT, PATIENCE);
            }
        });
        let _end = Finally(|| {
            done.store(true, Ordering::Release);
            // Now there is room: all is read, also what this end has not looked for yet.
            let _ = passive.receive(&mut [0; SMALL], Flags::WAITALL);
        });
        rounds_of_data(&passive, &active);
    });
}

#[test]
fn who_polls_for_data_hears_of_them_beside_one_who_waits_in_send() {
    let (a, b) = hosts_of(small());
    let (active, passive) = connect(&a, &b);
    fill(&active, &passive);
    thread::scope(|scope| {
        let late = scope.spawn(|| active.send(b"late", Flags::NONE));
        let _end = Finally(|| passive.close());
        rounds_of_data(&passive, &active);
        let mut all = vec![0; 10_000];
        while !late.is_finished() {
            match passive.receive(&mut all, Flags::DONTWAIT) {
                Ok(_) => {}
                Err(SocketError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(late.join().unwrap().unwrap(), 4);
    });
}

#[test]
fn two_sets_with_one_socket_are_both_told() {
    let (a, b) = hosts_of(Settings::default());
    let (active, passive) = connect(&a, &b);
    // Each counts for itself: who is told twice of one change must not stand for the other.
    let told = [AtomicUsize::new(0), AtomicUsize::new(0)];
    thread::scope(|scope| {
        let waiting = told.each_ref().map(|told| {
            let active = &active;
            scope.spawn(move || {
                let set = PollSet::new().unwrap();
                let events = libc::EPOLLIN as u32 | libc::EPOLLET as u32;
                set.set(1, Socket::Stream(Arc::clone(active)), events, 1);
                for round in 1..=ROUNDS {
                    // Not before the round begins: an edge may be told of as a part of the one before.
                    assert_eq!(set.wait(1, Some(PATIENCE)).unwrap().len(), 1, "round {round}");
                    told.fetch_add(1, Ordering::AcqRel);
                }
            })
        });
        for round in 1..=ROUNDS {
            passive.send(b"x", Flags::NONE).unwrap();
            while told.iter().any(|told| told.load(Ordering::Acquire) < round) {
                // Who ends before it has been told of all has failed.
                let given_up = waiting
                    .iter()
                    .zip(&told)
                    .any(|(waiting, told)| waiting.is_finished() && told.load(Ordering::Acquire) < ROUNDS);
                assert!(!given_up, "round {round}: one has given up");
                thread::yield_now();
            }
        }
    });
}

/// The peer is told nothing, and nothing comes from it.
#[test]
fn the_end_of_receiving_wakes_who_waits() {
    let (a, b) = hosts_of(Settings::default());
    let (active, passive) = connect(&a, &b);
    let works: [fn(Arc<StreamSocket>) -> usize; 2] = [
        |socket| socket.receive(&mut [0], Flags::NONE).unwrap(),
        |socket| usize::from(poll_one(&socket, libc::POLLIN, 2 * PATIENCE) & libc::POLLIN == 0),
    ];
    let waiting = works.map(|work| {
        let socket = Arc::clone(&active);
        thread::spawn(move || work(socket))
    });
    thread::sleep(Duration::from_millis(100));
    active.shut_down(How::Read).unwrap();
    let start = Instant::now();
    while !waiting.iter().all(|waiting| waiting.is_finished()) && start.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(10));
    }
    let woken = waiting.each_ref().map(|waiting| waiting.is_finished());
    passive.close();
    assert_eq!(woken, [true; 2]);
    assert_eq!(waiting.map(|waiting| waiting.join().unwrap()), [0; 2]);
    active.close();
}

/// Sends a thread signals until it ends.
fn interrupt<T>(thread: &thread::JoinHandle<T>) -> bool {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGUSR1, nothing as *const () as libc::sighandler_t) };
    let start = Instant::now();
    while !thread.is_finished() && start.elapsed() < PATIENCE {
        // SAFETY: a thread that was not joined.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
        thread::sleep(Duration::from_millis(10));
    }
    thread.is_finished()
}

/// Whoever waits for the event, or has its turn: the other does not sleep more deeply.
#[test]
fn signals_interrupt_who_waits_beside_another() {
    type Work = fn(&StreamSocket) -> Result<usize, SocketError>;
    let receive: Work = |socket| socket.receive(&mut [0], Flags::NONE);
    let send: Work = |socket| socket.send(&[7; 100], Flags::NONE);
    for (first, second) in [(receive, receive), (send, receive), (receive, send), (send, send)] {
        let (a, b) = hosts_of(small());
        let (active, passive) = connect(&a, &b);
        fill(&active, &passive);
        let [first, second] = [first, second].map(|work| {
            let socket = Arc::clone(&active);
            let waiting = thread::spawn(move || work(&socket));
            thread::sleep(Duration::from_millis(100));
            waiting
        });
        let told = interrupt(&second);
        passive.close();
        active.close();
        assert!(told, "it still waits");
        assert!(matches!(second.join().unwrap(), Err(SocketError::Interrupted)));
        let _ = first.join().unwrap();
    }
}

/// What send has returned as sent is before the end.
#[test]
fn close_beside_a_send_loses_nothing_that_was_sent() {
    let (a, b) = hosts_of(Settings::default());
    let data = pattern(60_000);
    for round in 0..ENDS {
        let (active, passive) = connect(&a, &b);
        let (sent, read) = thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut sent = 0;
                while let Ok(count) = active.send(&data, Flags::NONE) {
                    sent += count;
                }
                sent
            });
            let reader = scope.spawn(|| read_all(&passive).unwrap().len());
            thread::sleep(Duration::from_micros(500 + 97 * (round % 20)));
            active.close();
            (sender.join().unwrap(), reader.join().unwrap())
        });
        assert_eq!(sent, read, "round {round}");
        passive.close();
    }
}

/// Its copies rely on the handler of faults.
#[test]
fn the_thread_of_the_library_blocks_all_signals_but_its_own_faults() {
    let (_a, _b) = hosts_of(Settings::default());
    let bit = |signal: i32| 1_u64 << (signal - 1);
    let start = Instant::now();
    loop {
        let blocked = std::fs::read_dir("/proc/self/task").unwrap().find_map(|task| {
            let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
            let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
            (line("Name:")?.trim() == "rxe-rsocket")
                .then(|| u64::from_str_radix(line("SigBlk:").unwrap().trim(), 16).unwrap())
        });
        // It may only just have begun.
        if let Some(blocked) = blocked.filter(|blocked| blocked & bit(libc::SIGUSR1) != 0) {
            assert_eq!(blocked & (bit(libc::SIGSEGV) | bit(libc::SIGBUS)), 0, "{blocked:x}");
            return;
        }
        assert!(start.elapsed() < PATIENCE, "no such thread: {blocked:?}");
        thread::yield_now();
    }
}

#[test]
fn two_who_wait_for_datagrams_get_one_each() {
    let net = InprocNet::new();
    let host = |address| Host::new(&net, address, Settings::default());
    let (a, b) = (host("127.0.0.1"), host("127.0.0.2"));
    let socket = |host: &Host| {
        let socket = DatagramSocket::new(&host.stack, Domain::V4).unwrap();
        socket.bind(host.at(0)).unwrap();
        socket
    };
    let (one, two) = (socket(&a), socket(&b));
    let mut out = [0; 64];
    // By now each knows the other's queue pair: nothing comes by UDP any more, and no datagram is lost.
    for (from, to) in [(&one, &two), (&two, &one), (&one, &two)] {
        from.send_to(&[b"x"], Some(to.local_addr()), Flags::NONE).unwrap();
        to.receive_from(&mut out, Flags::NONE).unwrap();
    }
    let got = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut out = [0; 64];
                for _ in 0..ROUNDS {
                    two.receive_from(&mut out, Flags::NONE).unwrap();
                    got.fetch_add(1, Ordering::AcqRel);
                }
            });
        }
        for round in 0..ROUNDS {
            for _ in 0..2 {
                one.send_to(&[b"x"], Some(two.local_addr()), Flags::NONE).unwrap();
            }
            let mut waits = 0;
            while got.load(Ordering::Acquire) < 2 * (round + 1) {
                thread::sleep(Duration::from_millis(1));
                waits += 1;
                if waits == 30_000 {
                    two.close();
                    panic!("round {round}: {} have come", got.load(Ordering::Acquire));
                }
            }
        }
    });
}
