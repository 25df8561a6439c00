//! Completion channels, asynchronous events, overruns; threads that share everything.

mod verbs_common;

use nix::{
    sched::{CpuSet, sched_getcpu, sched_setaffinity},
    unistd::Pid,
};
use rxe_verbs::{
    AsyncEvent, Completion, ContextOptions, Device, EventError, Mtu, PollError, PortState, QpChange, QpInit,
    QpState, QpType, Qpn, RecvWr, Remote, SendFlags, SendOp, SendWr, WcStatus,
    net::{FaultPlan, fault::Script},
    work,
};
use std::{
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use verbs_common::{
    End, PATIENCE, QKEY, Two, connected, datagram_end, datagram_end_with, everywhere, inproc, udp4,
};

fn readable(fd: std::os::fd::BorrowedFd<'_>, timeout: Duration) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::try_from(timeout).unwrap()).unwrap() > 0
}

/// Whether an event comes, for a program that is woken by packets as well and asks without waiting.
fn event_within(channel: &rxe_verbs::CompChannel, timeout: Duration) -> bool {
    let end = Instant::now() + timeout;
    while channel.try_get_event().is_none() {
        if !readable(channel.as_fd(), end.saturating_duration_since(Instant::now())) {
            return false;
        }
    }
    true
}

/// A receiver whose completions come with events.
fn with_channel(context: &rxe_verbs::Context) -> (End, rxe_verbs::CompChannel) {
    let channel = context.create_comp_channel().unwrap();
    let mut end = End::new(context, QpType::Rc, 4096);
    end.cq = context.create_cq(64, Some(&channel)).unwrap();
    end.qp = end.pd.create_qp(&QpInit::new(QpType::Rc, &end.cq)).unwrap();
    (end, channel)
}

#[test]
fn an_event_for_an_armed_queue() {
    everywhere(|two| {
        let a = End::new(&two.a, QpType::Rc, 4096);
        let (b, channel) = with_channel(&two.b);
        verbs_common::connect(&a.qp, &b.qp, Mtu::M1024);
        let post = |flags| {
            b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[b.mr.sge(0, 64)] }).unwrap();
            let sges = [a.mr.sge(0, 8)];
            let flags = flags | SendFlags::SIGNALED;
            a.qp.post_send(&SendWr { flags, ..SendWr::new(1, SendOp::Send, &sges) }).unwrap();
            a.good();
        };
        // Not armed: a completion, no event.
        post(SendFlags::empty());
        b.good();
        assert_eq!(channel.get_event_within(Duration::from_millis(5)).unwrap_err(), EventError::Empty);

        b.cq.req_notify(false);
        post(SendFlags::empty());
        let cq = channel.get_event().unwrap();
        assert_eq!((cq.id(), cq.unacked_events()), (b.cq.id(), 1));
        cq.ack_events(1);
        cq.wait_acked();
        b.good();
        // Once per arming.
        post(SendFlags::empty());
        assert!(channel.try_get_event().is_none());
        b.good();

        // Only solicited ones.
        b.cq.req_notify(true);
        post(SendFlags::empty());
        b.good();
        assert!(channel.try_get_event().is_none());
        post(SendFlags::SOLICITED);
        assert_eq!(channel.get_event_within(PATIENCE).unwrap().id(), b.cq.id());
        b.good();
    });
}

/// As UCX does it: it polls until there is nothing, arms, and sleeps without polling once more.
#[test]
fn what_came_between_the_last_poll_and_arming_is_an_event() {
    everywhere(|two| {
        let a = End::new(&two.a, QpType::Rc, 4096);
        let (b, channel) = with_channel(&two.b);
        verbs_common::connect(&a.qp, &b.qp, Mtu::M1024);
        let poll = || b.cq.poll(&mut [Completion::default(); 4]);
        let arrives = |flags| {
            b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[b.mr.sge(0, 64)] }).unwrap();
            assert_eq!(poll(), Ok(0));
            let flags = flags | SendFlags::SIGNALED;
            let sges = [a.mr.sge(0, 8)];
            a.qp.post_send(&SendWr { flags, ..SendWr::new(1, SendOp::Send, &sges) }).unwrap();
            // The library has it once it is acknowledged.
            a.good();
        };
        // It looks at the channel before it arms, and finds no event.
        arrives(SendFlags::empty());
        assert!(channel.try_get_event().is_none());
        b.cq.req_notify(false);
        assert!(readable(channel.as_fd(), PATIENCE));
        assert!(event_within(&channel, PATIENCE));
        // The event has told of all that is there. It is armed again before it is polled.
        b.cq.req_notify(false);
        assert_eq!(poll(), Ok(1));
        assert!(channel.try_get_event().is_none());
        arrives(SendFlags::empty());
        assert!(event_within(&channel, PATIENCE), "it was armed");
        assert_eq!(poll(), Ok(1));

        // A queue armed for solicited completions gives an event for those only.
        arrives(SendFlags::empty());
        b.cq.req_notify(true);
        assert!(channel.try_get_event().is_none());
        assert_eq!(poll(), Ok(1));
        arrives(SendFlags::SOLICITED);
        assert!(event_within(&channel, PATIENCE), "it was armed");
        assert_eq!(poll(), Ok(1));
        arrives(SendFlags::SOLICITED);
        b.cq.req_notify(true);
        assert!(event_within(&channel, PATIENCE));
        assert_eq!(poll(), Ok(1));
    });
}

/// Packets without an event may wake a program, too, for example one that the peer sent again because the machine is slow. Once
/// the program has been told that there is no event, it can sleep.
fn falls_asleep(channel: &rxe_verbs::CompChannel) {
    let told = (0..100).take_while(|_| readable(channel.as_fd(), Duration::ZERO));
    let told = told.inspect(|_| assert!(channel.try_get_event().is_none())).count();
    assert!(told < 100, "there is no event, and it never sleeps");
}

#[test]
fn a_program_that_sleeps_on_the_descriptor() {
    everywhere(|two| {
        let a = End::new(&two.a, QpType::Rc, 4096);
        let (b, channel) = with_channel(&two.b);
        verbs_common::connect(&a.qp, &b.qp, Mtu::M1024);
        for round in 0..20 {
            b.qp.post_recv(&RecvWr { wr_id: round, sges: &[b.mr.sge(0, 64)] }).unwrap();
            b.cq.req_notify(false);
            assert_eq!(b.cq.poll(&mut [Completion::default()]), Ok(0));
            falls_asleep(&channel);
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(3));
                    a.qp.post_send(&SendWr::new(1, SendOp::Send, &[a.mr.sge(0, 8)])).unwrap();
                });
                assert!(readable(channel.as_fd(), PATIENCE), "round {round}");
            });
            assert!(event_within(&channel, PATIENCE), "round {round}");
            assert!(channel.try_get_event().is_none());
            falls_asleep(&channel);
            b.good();
            a.good();
        }
    });
}

/// A thread that was interrupted may sleep again.
#[test]
fn an_interruption_is_over_when_it_is_told() {
    everywhere(|two| {
        let (_end, channel) = with_channel(&two.b);
        for _ in 0..3 {
            channel.interrupt();
            assert_eq!(channel.get_event_within(PATIENCE).unwrap_err(), EventError::Interrupted);
            assert!(!readable(channel.as_fd(), Duration::ZERO));
        }
    });
}

/// A thread that waits for one queue, beside one that polls now and then and takes packets of both.
#[test]
fn a_thread_for_one_queue() {
    everywhere(|two| {
        let a = End::new(&two.a, QpType::Rc, 4096);
        let (b, channel) = with_channel(&two.b);
        verbs_common::connect(&a.qp, &b.qp, Mtu::M1024);
        let other = two.b.create_cq(1, None).unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let attendant = scope.spawn(|| {
                let mut waiter = b.cq.waiter().expect("it has a channel");
                let (mut got, mut interrupted) = (0, 0);
                while !stop.load(Ordering::Acquire) {
                    let mut wc = [Completion::default(); 4];
                    let count = waiter.poll(&mut wc).unwrap();
                    got += count;
                    if count == 0 {
                        match waiter.wait(Some(PATIENCE), None) {
                            Ok(()) => {}
                            Err(EventError::Interrupted) => interrupted += 1,
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
                (got, interrupted)
            });
            for round in 0..60 {
                b.qp.post_recv(&RecvWr { wr_id: round, sges: &[b.mr.sge(0, 64)] }).unwrap();
                let sges = [a.mr.sge(0, 8)];
                let flags = SendFlags::SIGNALED;
                a.qp.post_send(&SendWr { flags, ..SendWr::new(1, SendOp::Send, &sges) }).unwrap();
                if round % 3 == 0 {
                    // The waiting thread leaves the packets to the one that polls, and takes over when no thread polls.
                    let _ = other.poll(&mut [Completion::default()]);
                }
                if round % 20 == 0 {
                    thread::sleep(Duration::from_millis(5));
                }
                a.good();
            }
            stop.store(true, Ordering::Release);
            channel.interrupt();
            let (got, interrupted) = attendant.join().unwrap();
            let mut wc = [Completion::default(); 64];
            let left = b.cq.poll(&mut wc).unwrap();
            assert_eq!(got + left, 60);
            assert!(interrupted <= 1, "{interrupted}");
            assert!(two.b.create_cq(1, None).unwrap().waiter().is_none(), "no channel");
        });
    });
}

/// The waiting thread leaves packets to the background thread if they are for other queues, until one is for its own queue again.
#[test]
fn a_thread_for_one_queue_is_not_woken_for_others() {
    const READS: u32 = 300;
    everywhere(|two| {
        let a = End::new(&two.a, QpType::Rc, 4096);
        let (b, channel) = with_channel(&two.b);
        verbs_common::connect(&a.qp, &b.qp, Mtu::M1024);
        let (stop, wakes) = (AtomicBool::new(false), AtomicU32::new(0));
        let (got, woken) = thread::scope(|scope| {
            let attendant = scope.spawn(|| {
                let mut waiter = b.cq.waiter().expect("it has a channel");
                let mut got = 0;
                while !stop.load(Ordering::Acquire) {
                    match waiter.poll(&mut [Completion::default(); 4]).unwrap() {
                        0 => _ = (waiter.wait(Some(PATIENCE), None), wakes.fetch_add(1, Ordering::AcqRel)),
                        count => got += count,
                    }
                }
                got
            });
            let woken = [0, 1].map(|round| {
                b.qp.post_recv(&RecvWr { wr_id: round, sges: &[b.mr.sge(0, 64)] }).unwrap();
                let flags = SendFlags::SIGNALED;
                let post = |op| {
                    a.qp.post_send(&SendWr { flags, ..SendWr::new(1, op, &[a.mr.sge(0, 8)]) }).unwrap();
                    a.good();
                };
                post(SendOp::Send);
                let before = wakes.load(Ordering::Acquire);
                for _ in 0..READS {
                    post(SendOp::Read(Remote { addr: b.mr.addr(), rkey: b.mr.rkey() }));
                }
                wakes.load(Ordering::Acquire) - before
            });
            stop.store(true, Ordering::Release);
            channel.interrupt();
            (attendant.join().unwrap(), woken)
        });
        assert_eq!(got, 2);
        assert!(woken.iter().all(|woken| *woken < READS / 10), "woken {woken:?} times");
    });
}

#[test]
fn a_thread_that_sleeps_in_the_library() {
    everywhere(|two| {
        let a = End::new(&two.a, QpType::Rc, 4096);
        let (b, channel) = with_channel(&two.b);
        verbs_common::connect(&a.qp, &b.qp, Mtu::M1024);
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..50 {
                    b.qp.post_recv(&RecvWr { wr_id: round, sges: &[b.mr.sge(0, 64)] }).unwrap();
                    b.cq.req_notify(false);
                    let mut wc = [Completion::default()];
                    if b.cq.poll(&mut wc).unwrap() == 0 {
                        channel.get_event_within(PATIENCE).expect("an event").ack_events(1);
                        assert_eq!(b.good().wr_id, round);
                    } else {
                        while channel.try_get_event().is_some() {}
                    }
                    if round % 10 == 0 {
                        // Long enough for the background thread to fall asleep.
                        thread::sleep(Duration::from_millis(10));
                    }
                }
            });
            for _ in 0..50 {
                a.qp.post_send(&SendWr::new(1, SendOp::Send, &[a.mr.sge(0, 8)])).unwrap();
                a.good();
                thread::sleep(Duration::from_millis(1));
            }
        });
    });
}

#[test]
fn the_background_answers_for_an_idle_program() {
    everywhere(|two| {
        let (a, b) = connected(two, QpType::Rc, 1 << 20, Mtu::M4096);
        let remote = Remote { addr: b.mr.addr(), rkey: b.mr.rkey() };
        for round in 0..20u8 {
            a.mr.fill(round).unwrap();
            a.qp.post_send(&SendWr::new(1, SendOp::Write(remote), &[a.mr.sge(0, 1 << 20)])).unwrap();
            a.good();
            assert_eq!(b.mr.load_u8((1 << 20) - 1), Ok(round));
            if round % 7 == 0 {
                thread::sleep(Duration::from_millis(10));
            }
        }
    });
}

#[test]
fn an_overrun_is_never_silent() {
    let two = inproc();
    let a = End::new(&two.a, QpType::Rc, 4096);
    let mut b = End::new(&two.b, QpType::Rc, 4096);
    b.cq = two.b.create_cq(2, None).unwrap();
    b.qp = b.pd.create_qp(&QpInit::new(QpType::Rc, &b.cq)).unwrap();
    verbs_common::connect(&a.qp, &b.qp, Mtu::M1024);
    for wr_id in 0..5 {
        b.qp.post_recv(&RecvWr { wr_id, sges: &[b.mr.sge(0, 64)] }).unwrap();
    }
    for _ in 0..5 {
        a.qp.post_send(&SendWr::new(1, SendOp::Send, &[a.mr.sge(0, 8)])).unwrap();
        a.good();
    }
    let mut out = [Completion::default(); 8];
    assert_eq!(b.cq.poll(&mut out), Ok(2));
    assert_eq!((out[0].wr_id, out[1].wr_id), (0, 1));
    assert_eq!(b.cq.poll(&mut out), Err(PollError::Overrun { lost: 3 }));
    let events: Vec<_> = std::iter::from_fn(|| two.b.try_get_async_event()).collect();
    let overruns = events.iter().filter(|event| **event == AsyncEvent::CqError(b.cq.id())).count();
    assert_eq!(overruns, 1, "{events:?}");
}

#[test]
fn asynchronous_events_have_a_descriptor() {
    let two = udp4();
    let (a, b) = connected(&two, QpType::Rc, 4096, Mtu::M1024);
    let wrong = Remote { addr: 0, rkey: b.mr.rkey() };
    a.qp.post_send(&SendWr::new(1, SendOp::Write(wrong), &[a.mr.sge(0, 8)])).unwrap();
    assert_eq!(a.wait().status, WcStatus::RemoteAccess);
    assert!(readable(two.b.async_fd(), PATIENCE));
    let event = std::iter::from_fn(|| two.b.try_get_async_event())
        .find(|event| matches!(event, AsyncEvent::Queue(work::AsyncEvent::QpAccessError(_))));
    assert_eq!(event, Some(AsyncEvent::Queue(work::AsyncEvent::QpAccessError(b.qp.qpn()))));
    while two.b.try_get_async_event().is_some() {}
    assert!(!readable(two.b.async_fd(), Duration::ZERO));
    assert_eq!(two.b.get_async_event(Some(Duration::from_millis(5))), Err(EventError::Empty));
}

/// Else a program that waits for the descriptor would find nothing, and a later object of that name would hear of it.
#[test]
fn events_end_with_their_object() {
    let two = udp4();
    let (a, mut b) = connected(&two, QpType::Rc, 4096, Mtu::M1024);
    b.cq = two.b.create_cq(1, None).unwrap();
    b.qp = b.pd.create_qp(&QpInit::new(QpType::Rc, &b.cq)).unwrap();
    let a = End { qp: a.pd.create_qp(&QpInit::new(QpType::Rc, &a.cq)).unwrap(), ..a };
    verbs_common::connect(&a.qp, &b.qp, Mtu::M1024);
    for wr_id in 0..2 {
        b.qp.post_recv(&RecvWr { wr_id, sges: &[b.mr.sge(0, 64)] }).unwrap();
        a.qp.post_send(&SendWr::new(1, SendOp::Send, &[a.mr.sge(0, 8)])).unwrap();
        a.good();
    }
    let wrong = Remote { addr: 0, rkey: b.mr.rkey() };
    a.qp.post_send(&SendWr::new(1, SendOp::Write(wrong), &[a.mr.sge(0, 8)])).unwrap();
    assert_eq!(a.wait().status, WcStatus::RemoteAccess);
    assert!(readable(two.b.async_fd(), PATIENCE));
    drop(b);
    let left: Vec<_> = std::iter::from_fn(|| two.b.try_get_async_event()).collect();
    assert_eq!(left, []);
    assert!(!readable(two.b.async_fd(), Duration::ZERO));
}

/// C programs find these descriptors blocking, as the kernel's are: looking for events must not read them in vain.
#[test]
fn descriptors_may_be_made_blocking() {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let two = inproc();
    let (b, channel) = with_channel(&two.b);
    for fd in [two.b.async_fd(), channel.as_fd()] {
        fcntl(fd, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    }
    assert!(channel.try_get_event().is_none());
    assert!(two.b.try_get_async_event().is_none());
    assert_eq!(channel.get_event_within(Duration::from_millis(5)).unwrap_err(), EventError::Empty);
    assert_eq!(two.b.get_async_event(Some(Duration::from_millis(5))), Err(EventError::Empty));
    drop((b, channel));
}

/// Four threads on each side post to and poll from what they share.
#[test]
fn threads() {
    everywhere(|two| {
        const EACH: u64 = 200;
        let (a, b) = connected(two, QpType::Rc, 1 << 16, Mtu::M1024);
        let (sent, received) = (&std::sync::atomic::AtomicU64::new(0), &std::sync::atomic::AtomicU64::new(0));
        let failed = &AtomicBool::new(false);
        let collect = |end: &End, count: &std::sync::atomic::AtomicU64| {
            let start = Instant::now();
            while count.load(Ordering::Relaxed) < 4 * EACH {
                let mut out = [Completion::default(); 4];
                let n = end.cq.poll(&mut out).unwrap();
                for wc in &out[..n] {
                    if wc.status != WcStatus::Success {
                        eprintln!("{wc:?}");
                        failed.store(true, Ordering::Relaxed);
                    }
                }
                count.fetch_add(n as u64, Ordering::Relaxed);
                if failed.load(Ordering::Relaxed) || start.elapsed() > PATIENCE {
                    failed.store(true, Ordering::Relaxed);
                    break;
                }
            }
        };
        thread::scope(|scope| {
            for thread in 0..4u32 {
                let (a, b) = (&a, &b);
                scope.spawn(move || {
                    for number in 0..EACH {
                        let full = |posted: Result<(), rxe_verbs::PostError>| match posted {
                            Ok(()) => false,
                            Err(rxe_verbs::PostError::Full(_)) => !failed.load(Ordering::Relaxed),
                            Err(error) => {
                                eprintln!("{error}");
                                failed.store(true, Ordering::Relaxed);
                                false
                            }
                        };
                        let offset = thread as usize * 1024;
                        while full(b.qp.post_recv(&RecvWr { wr_id: number, sges: &[b.mr.sge(offset, 512)] }))
                        {
                            thread::yield_now();
                        }
                        let sges = [a.mr.sge(offset, 500)];
                        while full(a.qp.post_send(&SendWr::new(number, SendOp::Send, &sges))) {
                            thread::yield_now();
                        }
                    }
                });
                scope.spawn(move || collect(a, sent));
                scope.spawn(move || collect(b, received));
            }
        });
        assert!(!failed.load(Ordering::Relaxed));
        assert_eq!((sent.load(Ordering::Relaxed), received.load(Ordering::Relaxed)), (4 * EACH, 4 * EACH));
    });
}

/// If a script takes a port down, this is reported as if its cable was pulled: by an event, by the port's state, and by another event
/// when the port is back. Messages sent meanwhile arrive afterwards.
#[test]
fn a_port_that_a_script_takes_down_raises_its_events() {
    let script = Script::parse("down 2s tx write 2nd\n").unwrap();
    let faults = FaultPlan { script: Some(Arc::new(script)), ..FaultPlan::default() };
    let Some((left, right)) = verbs_common::namespaces(1500) else { return };
    let open = |name: &'static str, faults: FaultPlan| {
        move || ContextOptions::new().alone().faults(faults).open(&Device::find(name).unwrap()).unwrap()
    };
    let b = right.run(open("v1", FaultPlan::default()));
    // Interfaces are followed by threads that live where they are.
    left.run(move || {
        let two = Two::of("veth", open("v0", faults)(), b);
        // Requests are repeated for longer than that, seven times after a second each.
        verbs_common::set_timeout(18);
        let (a, b) = connected(&two, QpType::Rc, 4096, Mtu::M1024);
        let state = || two.a.port().state;
        let event = || two.a.get_async_event(Some(PATIENCE)).unwrap();
        let write = || {
            let sges = [a.mr.sge(0, 64)];
            let remote = Remote { addr: b.mr.addr(), rkey: b.mr.rkey() };
            let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(1, SendOp::Write(remote), &sges) };
            a.qp.post_send(&wr).unwrap();
        };
        write();
        a.good();
        assert_eq!((state(), two.a.try_get_async_event()), (PortState::Active, None));
        write();
        assert_eq!((event(), state()), (AsyncEvent::PortError, PortState::Down));
        assert_eq!((event(), state()), (AsyncEvent::PortActive, PortState::Active));
        a.good();
        assert_eq!(two.a.try_get_async_event(), None);
        assert_eq!(two.b.try_get_async_event(), None, "the peer's port was never down");
    });
}

/// Two queues have one channel, and one datagram brings a completion to each. A program that is woken for one of them may poll the
/// other first: `ib_send_lat -e` does, and takes an empty queue for a failure. If there is one processor, the woken thread often
/// takes it from the thread that woke it, before that has added the second completion.
#[test]
fn an_event_comes_when_all_that_arrived_with_it_is_in_the_queues() {
    const ROUNDS: usize = 2000;
    let on_one_processor = || {
        let mut one = CpuSet::new();
        one.set(sched_getcpu().unwrap()).unwrap();
        sched_setaffinity(Pid::from_raw(0), &one).unwrap();
        let two = inproc();
        let a = datagram_end(&two.a);
        let channel = two.b.create_comp_channel().unwrap();
        let member = || {
            let cq = two.b.create_cq(8, Some(&channel)).unwrap();
            let end = datagram_end_with(&two.b, &cq);
            end.qp.attach_multicast("239.1.2.3".parse().unwrap()).unwrap();
            end
        };
        let members = [member(), member()];
        let av = two.a.address_vector(0, "239.1.2.3".parse().unwrap()).unwrap();
        let dest = Some(a.pd.create_ah(av).dest(Qpn::MULTICAST, QKEY));
        for _ in 0..ROUNDS {
            for end in &members {
                end.qp.post_recv(&RecvWr { wr_id: 1, sges: &[end.mr.sge(0, 100)] }).unwrap();
                end.cq.req_notify(false);
            }
            a.qp.post_send(&SendWr { dest, ..SendWr::new(2, SendOp::Send, &[a.mr.sge(0, 8)]) }).unwrap();
            assert!(readable(channel.as_fd(), PATIENCE));
            let first = channel.get_event().unwrap();
            let mut others = members.iter().filter(|end| end.cq.id() != first.id());
            assert_eq!(others.next().unwrap().cq.poll(&mut [Completion::default()]), Ok(1));
            assert_eq!(first.poll(&mut [Completion::default()]), Ok(1));
            channel.get_event().unwrap();
            members.iter().for_each(|end| end.cq.ack_events(1));
            a.good();
        }
    };
    thread::scope(|scope| scope.spawn(on_one_processor).join().unwrap());
}

/// A receive that is posted in ERROR, as a mark behind which nothing comes, completes at once. Who sleeps until then is woken.
#[test]
fn a_receive_posted_in_error_wakes_who_waits() {
    everywhere(|two| {
        let channel = two.a.create_comp_channel().unwrap();
        let cq = two.a.create_cq(16, Some(&channel)).unwrap();
        let (a, b) = (End::with(&two.a, QpType::Rc, 4096, &cq), End::new(&two.b, QpType::Rc, 4096));
        verbs_common::connect(&a.qp, &b.qp, Mtu::M1024);
        a.qp.modify(&QpChange { state: Some(QpState::Error), ..QpChange::default() }).unwrap();
        for list in [false, true] {
            cq.req_notify(false);
            assert_eq!(cq.poll(&mut [Completion::default()]), Ok(0));
            let wr = RecvWr { wr_id: 1, sges: &[] };
            if list {
                a.qp.post_recv_list(&[wr]).unwrap()
            } else {
                a.qp.post_recv(&wr).unwrap()
            }
            assert!(readable(channel.as_fd(), Duration::from_secs(10)), "{list}");
            channel.take_event().expect("an event").ack_events(1);
            assert_eq!(a.wait().status, WcStatus::WorkRequestFlushed);
        }
    });
}
