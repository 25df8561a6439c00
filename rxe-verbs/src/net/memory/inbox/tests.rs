use super::*;
use crate::sys::unix::own_pidfd;
use core::sync::atomic::AtomicBool;
use nix::sys::{
    pthread::{pthread_kill, pthread_self},
    signal::Signal,
    wait::waitpid,
};
use nix::unistd::{ForkResult, fork};
use std::{sync::Arc, thread};

const SRC: &str = "10.0.0.1";

fn batch(dst: &str, segment_size: usize) -> Transmit {
    Transmit {
        src: if dst.contains(':') { "fd00::1" } else { SRC }.parse().unwrap(),
        dst: dst.parse().unwrap(),
        ifindex: 0,
        source_port: 0xc123,
        tos: 0x6a,
        hop_limit: 0,
        encapsulation: rxe_core::wire::Encapsulation::V2,
        segment_size,
    }
}

/// An inbox, and as many lanes into it.
fn inbox_and_lanes(slots: &[u8]) -> (Inbox, Vec<Lane>) {
    let files = InboxFiles::new().unwrap();
    let open = |slot: &u8| {
        let [memory, event] = files.descriptors().map(|fd| fd.try_clone_to_owned().unwrap());
        Lane::open(InboxFiles::adopt([memory, event]).unwrap(), own_pidfd().unwrap(), *slot).unwrap()
    };
    let lanes = slots.iter().map(open).collect();
    (Inbox::open(files).unwrap(), lanes)
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed * 7 + (at >> 8)) as u8).collect()
}

fn is_readable(inbox: &Inbox) -> bool {
    poll::wait(&[inbox.arrivals()], Some(Duration::ZERO)).unwrap() != 0
}

fn take(inbox: &mut Inbox) -> Vec<Vec<u8>> {
    let mut into = RecvBatch::new(4);
    inbox.take(&mut into);
    into.iter().map(|run| run.bytes.to_vec()).collect()
}

#[test]
fn a_batch_comes_as_it_was_sent() {
    let (mut inbox, mut lanes) = inbox_and_lanes(&[7]);
    assert!(!is_readable(&inbox));
    for (dst, len, segment) in [("10.0.0.2", 100, 40), ("fd00::2", 65_487, 4112), ("10.0.0.2", 1, 50)] {
        let sent = bytes(len, segment);
        lanes[0].send(&batch(dst, segment), &sent);
        assert!(is_readable(&inbox));
        let mut into = RecvBatch::new(4);
        assert_eq!(inbox.take(&mut into), 1);
        let run = into.iter().next().unwrap();
        assert_eq!(run.bytes, sent);
        assert_eq!((run.dst, run.segment_size), (dst.parse().unwrap(), segment.min(len)));
        assert_eq!(
            (run.src.is_ipv4(), run.src_port, run.tos, run.ttl),
            (!dst.contains(':'), 0xc123, 0x6a, 64)
        );
        assert!(!is_readable(&inbox), "all has been taken");
    }
}

/// Around the end of the ring again and again, in every position.
#[test]
fn nothing_is_lost_or_turned_at_the_end_of_the_ring() {
    let (mut inbox, mut lanes) = inbox_and_lanes(&[1]);
    let (mut sent, mut taken) = (0, 0);
    let len = |number: usize| 1 + number * 7919 % 65_000;
    while taken < 3000 {
        for _ in 0..20 - (sent - taken) {
            lanes[0].send(&batch("10.0.0.2", 4096), &bytes(len(sent), sent));
            sent += 1;
        }
        for one in take(&mut inbox) {
            assert!(one == bytes(len(taken), taken), "number {taken}");
            taken += 1;
        }
    }
    assert_eq!(inbox.drops(), 0);
}

#[test]
fn what_has_no_room_is_dropped_and_counted() {
    let (mut inbox, mut lanes) = inbox_and_lanes(&[0]);
    let whole = bytes(65_000, 1);
    let fit = RING / (RECORD + words_of(whole.len()));
    for _ in 0..fit + 3 {
        lanes[0].send(&batch("10.0.0.2", 4096), &whole);
    }
    assert_eq!(inbox.drops(), 3);
    let mut count = 0;
    while is_readable(&inbox) {
        count += take(&mut inbox).len();
    }
    assert_eq!(count, fit);
    lanes[0].send(&batch("10.0.0.2", 4096), &whole);
    assert_eq!(take(&mut inbox), [whole], "there is room again");
}

#[test]
fn one_who_sends_much_does_not_keep_others_waiting() {
    let (mut inbox, mut lanes) = inbox_and_lanes(&[3, 64, 200, 255]);
    for number in 0..12 {
        lanes[0].send(&batch("10.0.0.2", 64), &bytes(64, number));
    }
    for lane in &mut lanes[1..] {
        lane.send(&batch("10.0.0.2", 64), &[9]);
    }
    assert_eq!(take(&mut inbox).len(), 4, "as much as there is room for");
    let next = take(&mut inbox);
    assert_eq!(next[..3], [[9], [9], [9]]);
    assert!(is_readable(&inbox));
}

/// A reader that sleeps whenever it has found nothing, and writers that send while it falls asleep.
#[test]
fn nobody_sleeps_while_something_is_there() {
    const EACH: usize = 20_000;
    let (mut inbox, lanes) = inbox_and_lanes(&[0, 70]);
    let done = AtomicBool::new(false);
    let taken = thread::scope(|scope| {
        let writers: Vec<_> = lanes
            .into_iter()
            .map(|mut lane| {
                scope.spawn(move || {
                    for number in 0..EACH {
                        lane.send(&batch("10.0.0.2", 64), &bytes(16, number));
                        if number % 3 == 0 {
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let done = &done;
        scope.spawn(move || {
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            done.store(true, Ordering::Release);
        });
        let mut taken = 0;
        loop {
            let ended = done.load(Ordering::Acquire);
            let found = take(&mut inbox).len();
            taken += found;
            if found == 0 && ended {
                break taken;
            }
            if found == 0 && poll::wait(&[inbox.arrivals()], Some(Duration::from_secs(5))).unwrap() == 0 {
                // Only at the end may it sleep for so long.
                assert!(done.load(Ordering::Acquire), "{taken} taken, and it slept");
            }
        }
    });
    assert_eq!(taken as u64 + inbox.drops(), 2 * EACH as u64);
}

/// A writer died after it had said that it would wake the reader; another was stopped for long before it did.
#[test]
fn a_wake_up_that_is_lost_or_late_does_no_harm() {
    let (mut inbox, mut lanes) = inbox_and_lanes(&[5, 6]);
    lanes[0].send(&batch("10.0.0.2", 64), &[1]);
    inbox.event.clear();
    lanes[1].send(&batch("10.0.0.2", 64), &[2]);
    assert!(!is_readable(&inbox), "nobody knows yet");
    lanes[1].send(&batch("10.0.0.2", 64), &[3]);
    assert!(is_readable(&inbox), "nothing was read between the two");
    assert_eq!(take(&mut inbox), [[1], [2], [3]]);
    assert!(!is_readable(&inbox));

    lanes[0].event.raise();
    let mut looks = 0;
    while is_readable(&inbox) {
        assert!(take(&mut inbox).is_empty());
        looks += 1;
        assert!(looks <= SETTLE_EVERY, "whoever sleeps on it is woken for ever");
    }
    lanes[1].send(&batch("10.0.0.2", 64), &[4]);
    assert!(is_readable(&inbox));
    assert_eq!(take(&mut inbox), [[4]]);
}

/// Whatever somebody has written there: no panic, no way out of the lane, and the others go on.
#[test]
fn rubbish_in_a_lane_is_thrown_away() {
    let (mut inbox, mut lanes) = inbox_and_lanes(&[5, 6]);
    let odd =
        [0, 1, 7, 8, 63, RING as u64, RING as u64 - 1, 1 << 32, u64::from(SKIP), u64::MAX, u64::MAX << 20];
    let record = [65_536, 65_537, 1 | 1 << 32, u64::from(u32::MAX - 1), 1 << 63];
    for tail in odd {
        for head in odd {
            for first in odd.iter().chain(&record) {
                let words = lanes[0].words.words();
                words[TAIL].store(tail, Ordering::Relaxed);
                words[HEAD].store(head, Ordering::Relaxed);
                words[PAGE + head as usize % RING].store(*first, Ordering::Relaxed);
                lanes[0].send(&batch("10.0.0.2", 64), &[1; 64]);
                lanes[1].send(&batch("10.0.0.2", 64), &[2; 64]);
                let mut found = false;
                for _ in 0..4 {
                    found |= take(&mut inbox).contains(&vec![2; 64]);
                }
                assert!(found, "tail {tail:#x}, head {head:#x}, record {first:#x}");
            }
        }
    }
}

#[test]
fn a_lane_to_nobody_is_known() {
    let (inbox, lanes) = inbox_and_lanes(&[1]);
    assert!(lanes[0].is_alive());
    // SAFETY: the child allocates nothing, takes no lock of another thread, and does not return.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            drop(inbox);
            // SAFETY: ends the process without the harness's handlers.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => _ = waitpid(child, None).unwrap(),
    }
    assert!(lanes[0].is_alive(), "a forked child is not its owner");
    drop(inbox);
    assert!(!lanes[0].is_alive(), "its owner has said so");

    let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    let pidfd = crate::sys::unix::pidfd_of(child.id()).unwrap();
    let files = InboxFiles::new().unwrap();
    let lane = Lane::open(files, pidfd, 1).unwrap();
    assert!(lane.is_alive());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!lane.is_alive(), "its owner is dead");
}

/// A reader that was killed does not say so itself. Until the lane is full, nobody looks whether it lives.
#[test]
fn a_lane_to_one_who_was_killed_is_closed_by_whoever_made_the_inbox() {
    let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    let pidfd = crate::sys::unix::pidfd_of(child.id()).unwrap();
    let made = InboxFiles::new().unwrap();
    let passed_on = made.descriptors().map(|fd| fd.try_clone_to_owned().unwrap());
    let mut lane = Lane::open(InboxFiles::adopt(passed_on).unwrap(), pidfd, 1).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(lane.send(&batch("10.0.0.2", 50), &bytes(50, 0)));
    made.close();
    assert!(!lane.send(&batch("10.0.0.2", 50), &bytes(50, 0)));
}

/// Programs may have signals at any moment, for example those of a profiler.
#[test]
fn signals_do_not_end_a_lane() {
    let came = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGUSR2, Arc::clone(&came)).unwrap();
    let (_inbox, lanes) = inbox_and_lanes(&[1]);
    let (this, stop) = (pthread_self(), AtomicBool::new(false));
    let alive = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                pthread_kill(this, Signal::SIGUSR2).unwrap();
            }
        });
        let alive = (0..50_000).all(|_| lanes[0].is_alive());
        stop.store(true, Ordering::Relaxed);
        alive
    });
    assert!(alive && came.load(Ordering::Relaxed));
}

/// Then the slot may be another process's, which is reached by its socket.
#[test]
fn a_lane_whose_reader_is_gone_takes_nothing() {
    let (inbox, mut lanes) = inbox_and_lanes(&[7]);
    assert!(lanes[0].send(&batch("10.0.0.2", 50), &bytes(50, 0)));
    drop(inbox);
    assert!(!lanes[0].send(&batch("10.0.0.2", 50), &bytes(50, 0)));
}
