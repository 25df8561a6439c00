//! Ways of waiting (`RXE_POLL`): what each costs, and that none loses an event, a signal or an interruption.

mod verbs_common;

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        pthread::{pthread_kill, pthread_self},
        resource::{UsageWho, getrusage},
        signal::Signal,
    },
    time::{ClockId, clock_gettime},
};
use rxe_verbs::{
    CompChannel, Completion, Context, ContextOptions, EventError, Mtu, Polling, QpInit, QpType, RecvWr,
    Remote, SendOp, SendWr, WcStatus,
};
use std::{
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};
use verbs_common::{End, PATIENCE, Two, connect, loopback};

const ALL: [Polling; 3] = [Polling::Busy, Polling::Adaptive, Polling::Sleep];

/// A context on an address that no other test of this program has.
fn open(polling: Polling) -> Context {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let address = loopback(NEXT.fetch_add(1, Ordering::Relaxed));
    ContextOptions::new().alone().polling(polling).open_address(address).unwrap()
}

fn two(polling: Polling) -> Two {
    Two::of("udp4", open(polling), open(polling))
}

fn with_channel(context: &Context) -> (End, CompChannel) {
    let channel = context.create_comp_channel().unwrap();
    let mut end = End::new(context, QpType::Rc, 4096);
    end.cq = context.create_cq(64, Some(&channel)).unwrap();
    end.qp = end.pd.create_qp(&QpInit::new(QpType::Rc, &end.cq)).unwrap();
    (end, channel)
}

fn readable(channel: &CompChannel) -> bool {
    poll(&mut [PollFd::new(channel.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() > 0
}

/// Times the calling thread went to sleep.
fn sleeps() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).unwrap().voluntary_context_switches()
}

/// Sends `count` messages, each after the answer to the one before.
fn exchange(end: &End, channel: &CompChannel, count: u32, first: bool) {
    let receive = || end.qp.post_recv(&RecvWr { wr_id: 1, sges: &[end.mr.sge(0, 64)] }).unwrap();
    let send = || end.qp.post_send(&SendWr::new(2, SendOp::Send, &[end.mr.sge(0, 8)])).unwrap();
    let mut sent = 0;
    if first {
        sent = 1;
        send();
    }
    let (mut received, mut completed) = (0, 0);
    while received < count || completed < count {
        end.cq.req_notify(false);
        let mut wcs = [Completion::default(); 8];
        let mut found = end.cq.poll(&mut wcs).unwrap();
        if found == 0 {
            channel.get_event_within(PATIENCE).expect("an event").ack_events(1);
            found = end.cq.poll(&mut wcs).unwrap();
        }
        for wc in &wcs[..found] {
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
            if wc.wr_id == 2 {
                completed += 1;
                continue;
            }
            received += 1;
            receive();
            if sent < count {
                sent += 1;
                send();
            }
        }
    }
}

#[test]
fn messages_and_events_come_in_every_way_of_waiting() {
    for polling in ALL {
        let two = two(polling);
        let (a, for_a) = with_channel(&two.a);
        let (b, for_b) = with_channel(&two.b);
        connect(&a.qp, &b.qp, Mtu::M1024);
        for end in [&a, &b] {
            for _ in 0..2 {
                end.qp.post_recv(&RecvWr { wr_id: 1, sges: &[end.mr.sge(0, 64)] }).unwrap();
            }
        }
        thread::scope(|scope| {
            scope.spawn(|| exchange(&b, &for_b, 300, false));
            exchange(&a, &for_a, 300, true);
        });
    }
}

#[test]
fn only_busy_waiting_never_sleeps() {
    for polling in ALL {
        let context = open(polling);
        let (end, channel) = with_channel(&context);
        end.cq.req_notify(false);
        let slept = || {
            let before = sleeps();
            let error = channel.get_event_within(Duration::from_millis(30)).unwrap_err();
            assert_eq!(error, EventError::Empty);
            sleeps() - before
        };
        if polling == Polling::Busy {
            // What the system does by itself counts, too, such as a page that is fetched: it does not do that each time.
            assert!((0..100).any(|_| slept() == 0), "it sleeps each time");
        } else {
            assert!(slept() > 0, "{polling:?}: it never sleeps");
        }
    }
}

#[test]
fn a_signal_ends_every_wait() {
    let came = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&came)).unwrap();
    for polling in ALL {
        let context = open(polling);
        let (_end, channel) = with_channel(&context);
        let (tell, who) = mpsc::channel();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                tell.send(pthread_self()).unwrap();
                channel.get_event_within(PATIENCE)
            });
            let thread = who.recv().unwrap();
            // Again and again: one that comes before it waits ends nothing.
            while !waiter.is_finished() {
                thread::sleep(Duration::from_millis(20));
                pthread_kill(thread, Signal::SIGUSR1).unwrap();
            }
            assert_eq!(waiter.join().unwrap().unwrap_err(), EventError::Interrupted, "{polling:?}");
        });
        assert!(came.swap(false, Ordering::Relaxed), "the program's handler ran");
    }
}

#[test]
fn an_interruption_ends_one_wait_and_leaves_nothing_to_read() {
    for polling in ALL {
        let context = open(polling);
        let (_end, channel) = with_channel(&context);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| channel.get_event_within(PATIENCE));
            thread::sleep(Duration::from_millis(5));
            channel.interrupt();
            assert_eq!(waiter.join().unwrap().unwrap_err(), EventError::Interrupted, "{polling:?}");
        });
        assert!(!readable(&channel), "{polling:?}");
        let error = channel.get_event_within(Duration::from_millis(1)).unwrap_err();
        assert_eq!(error, EventError::Empty, "{polling:?}");
    }
}

#[test]
fn a_thread_that_looks_leaves_events_to_those_who_watch_the_descriptor() {
    let two = two(Polling::Busy);
    let a = End::new(&two.a, QpType::Rc, 4096);
    let (b, channel) = with_channel(&two.b);
    connect(&a.qp, &b.qp, Mtu::M1024);
    for _ in 0..2 {
        b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[b.mr.sge(0, 64)] }).unwrap();
    }
    let send = || {
        a.qp.post_send(&SendWr::new(1, SendOp::Send, &[a.mr.sge(0, 8)])).unwrap();
        a.good();
    };
    // Of two queues in one channel the thread takes one event; the other's waits, and shows.
    let other = two.b.create_cq(8, Some(&channel)).unwrap();
    let second = b.pd.create_qp(&QpInit::new(QpType::Rc, &other)).unwrap();
    let c = End::new(&two.a, QpType::Rc, 4096);
    connect(&c.qp, &second, Mtu::M1024);
    second.post_recv(&RecvWr { wr_id: 1, sges: &[b.mr.sge(64, 64)] }).unwrap();
    b.cq.req_notify(false);
    other.req_notify(false);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| channel.get_event_within(PATIENCE).expect("an event").ack_events(1));
        send();
        waiter.join().unwrap();
    });
    c.qp.post_send(&SendWr::new(1, SendOp::Send, &[c.mr.sge(0, 8)])).unwrap();
    c.good();
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::try_from(PATIENCE).unwrap()), Ok(1), "it shows");
    assert!(channel.try_get_event().is_some());
    assert!(!readable(&channel));
}

/// Spins until this thread has had so much more of a processor.
fn compute(time: Duration) {
    let had = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let until = had() + time;
    while had() < until {
        core::hint::spin_loop();
    }
}

/// A program that computes, and polls in between, counts as one that polls. All the same its peer's WRITEs are acknowledged while
/// it computes: they do not wait for its next call, or for the background thread's next tick.
#[test]
fn a_program_that_computes_between_its_polls_keeps_no_peer_waiting() {
    let two = two(Polling::Sleep);
    let (a, for_a) = with_channel(&two.a);
    let (b, _for_b) = with_channel(&two.b);
    connect(&a.qp, &b.qp, Mtu::M1024);
    let remote = Remote { addr: b.mr.addr(), rkey: b.mr.rkey() };
    let (written, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    let write = || {
        a.cq.req_notify(false);
        a.qp.post_send(&SendWr::new(1, SendOp::Write(remote), &[a.mr.sge(0, 8)])).unwrap();
        for_a.get_event_within(PATIENCE).expect("an acknowledgement").ack_events(1);
        a.good();
        written.fetch_add(1, Ordering::Relaxed);
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                write();
            }
        });
        const CALLS: u32 = 50;
        // Some of the time others of the machine may have the processors.
        let several_a_call = (0..40).any(|_| {
            let before = written.load(Ordering::Relaxed);
            for _ in 0..CALLS {
                assert_eq!(b.cq.poll(&mut [Completion::default()]).unwrap(), 0);
                compute(Duration::from_micros(500));
            }
            written.load(Ordering::Relaxed) - before > 3 * CALLS
        });
        stop.store(true, Ordering::Relaxed);
        assert!(several_a_call, "its peer's WRITEs wait for its calls");
    });
}
