//! Stacks of several shards: each has sockets, queue pairs and a thread of its own, and all have the same memory and
//! completion queues.

mod verbs_common;

use rxe_verbs::{
    AsyncEvent, CompChannel, Completion, Context, ContextOptions, EventError, Key, Mr, Mtu, MwBind, Pd, Qp,
    QpInit, QpType, Qpn, RecvWr, Remote, SendFlags, SendOp, SendWr, WcStatus, WindowType, net::InprocNet,
    work,
};
use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};
use verbs_common::{ALL, End, PATIENCE, Two, connect, pattern};

const SHARDS: u8 = 3;

/// Two contexts that may have several shards each.
fn several() -> Two {
    let net = InprocNet::new();
    let open = |address: &str| {
        ContextOptions::new().threads(SHARDS).open_inproc(&net, &[address.parse().unwrap()]).unwrap()
    };
    Two::of("inproc, several shards", open("10.0.0.1"), open("10.0.0.2"))
}

/// An end whose protection domain others share.
fn end(pd: &Pd, qp_type: QpType, bytes: usize) -> End {
    let cq = pd.context().create_cq(1024, None).unwrap();
    let qp = pd.create_qp(&QpInit::new(qp_type, &cq)).unwrap();
    let mr = pd.alloc_mr(bytes, ALL).unwrap();
    End { qp, mr, cq, pd: pd.clone() }
}

/// A connected pair on each shard, of the same shard at both ends.
fn pairs(two: &Two, qp_type: QpType, bytes: usize) -> Vec<(End, End)> {
    let (left, right) = (two.a.alloc_pd().unwrap(), two.b.alloc_pd().unwrap());
    let pairs: Vec<_> =
        (0..SHARDS).map(|_| (end(&left, qp_type, bytes), end(&right, qp_type, bytes))).collect();
    for (a, b) in &pairs {
        connect(&a.qp, &b.qp, Mtu::M1024);
    }
    pairs
}

fn remote(mr: &Mr) -> Remote {
    Remote { addr: mr.addr(), rkey: mr.rkey() }
}

fn slot(qp: &Qp) -> u8 {
    qp.qpn().slot()
}

#[test]
fn queue_pairs_are_spread_and_what_shares_state_is_in_one_place() {
    let two = several();
    let pd = two.a.alloc_pd().unwrap();
    let make = |qp_type| end(&pd, qp_type, 64).qp;
    let cq = two.a.create_cq(64, None).unwrap();
    let ud = make(QpType::Ud);
    let connected: Vec<Qp> = [QpType::Rc, QpType::Uc, QpType::Rc, QpType::Rc].map(make).into();
    assert_eq!(connected.iter().map(slot).collect::<Vec<_>>(), [0, 1, 2, 0]);
    let srq = pd.create_srq(16, 1).unwrap();
    let domain = two.a.open_xrcd(None, true, false).unwrap();
    let of_one_place = [
        ud,
        make(QpType::Ud),
        pd.create_qp(&QpInit { srq: Some(&srq), ..QpInit::new(QpType::Rc, &cq) }).unwrap(),
        pd.create_qp(&QpInit { srq: Some(&srq), ..QpInit::new(QpType::Rc, &cq) }).unwrap(),
        make(QpType::XrcInitiator),
        domain.create_target().unwrap(),
    ];
    assert!(of_one_place.iter().all(|qp| slot(qp) == 0));
    assert_eq!(make(QpType::Gsi).qpn(), Qpn::GSI);
    assert_eq!((two.a.slot(), slot(&make(QpType::Uc))), (0, 1), "the next in turn");
}

/// Every kind of request between each two shards, in both directions at once.
#[test]
fn traffic_between_all_pairs_of_shards() {
    const LEN: usize = 20_000;
    let two = several();
    let (left, right) = (two.a.alloc_pd().unwrap(), two.b.alloc_pd().unwrap());
    let ends = |pd: &Pd| (0..9).map(|_| end(pd, QpType::Rc, 3 * LEN)).collect::<Vec<_>>();
    let (near, far) = (ends(&left), ends(&right));
    let other = |n: usize| n / 3 * 3 + (n + n / 3) % 3;
    let pairs: Vec<_> = (0..9).map(|n| (&near[n], &far[other(n)])).collect();
    let kinds: HashSet<_> = pairs.iter().map(|(a, b)| (slot(&a.qp), slot(&b.qp))).collect();
    assert_eq!(kinds.len(), 9);
    for (a, b) in &pairs {
        connect(&a.qp, &b.qp, Mtu::M1024);
    }
    thread::scope(|scope| {
        for (number, (a, b)) in pairs.iter().enumerate() {
            for (own, peer, seed) in [(a, b, number as u64), (b, a, 100 + number as u64)] {
                scope.spawn(move || (0..20).for_each(|round| trade::<LEN>(own, peer, seed << 8 | round)));
            }
        }
    });
    let sent = near.iter().map(|end| end.qp.stats().packets_sent).sum::<u64>();
    assert_eq!(two.a.port_stats().packets_sent, sent, "the port's counters are those of all shards");
    assert_eq!(two.a.link_report().too_long, 0);
}

/// Writes, reads back, and sends; each side has thirds of its own in both regions.
fn trade<const LEN: usize>(own: &End, peer: &End, seed: u64) {
    let data = pattern(seed, LEN);
    own.mr.write_at(0, &data).unwrap();
    let there = |place: usize| Remote { addr: peer.mr.addr() + place as u64, rkey: peer.mr.rkey() };
    let part = |place: usize| [own.mr.sge(place, LEN as u32)];
    for op in [SendOp::Write(there(LEN)), SendOp::Read(there(LEN))] {
        let place = if matches!(op, SendOp::Read(_)) { 2 * LEN } else { 0 };
        own.qp.post_send(&SendWr::new(1, op, &part(place))).unwrap();
        own.good();
    }
    assert_eq!(own.mr.read_vec(2 * LEN, LEN).unwrap(), data, "what was written is read back");
    assert_eq!(peer.mr.read_vec(LEN, LEN).unwrap(), data);
}

#[test]
fn atomics_of_all_shards_are_atomic() {
    const EACH: u64 = 300;
    let two = several();
    let pairs = pairs(&two, QpType::Rc, 64);
    let word = pairs[0].1.pd.alloc_mr(64, ALL).unwrap();
    let seen: Vec<Vec<u64>> = thread::scope(|scope| {
        let add = |a: &End| {
            let op = SendOp::FetchAdd { remote: remote(&word), add: 1 };
            a.qp.post_send(&SendWr::new(1, op, &[a.mr.sge(0, 8)])).unwrap();
            a.good();
            a.mr.load_u64(0).unwrap()
        };
        let adders: Vec<_> =
            pairs.iter().map(|(a, _)| scope.spawn(move || (0..EACH).map(|_| add(a)).collect())).collect();
        adders.into_iter().map(|adder| adder.join().unwrap()).collect()
    });
    let all: HashSet<u64> = seen.iter().flatten().copied().collect();
    assert_eq!(all, (0..EACH * u64::from(SHARDS)).collect());
}

/// A region is deregistered while all shards write to it without a pause: nothing more is written there, by any.
/// Unreliable connections, because a reliable one would end at the first refused write.
#[test]
fn deregistration_waits_for_all_shards() {
    const LEN: usize = 1 << 15;
    const CANARY: u8 = 0xaa;
    let two = several();
    let pairs = pairs(&two, QpType::Uc, LEN);
    let memory: &[AtomicU8] = &*Vec::leak((0..LEN).map(|_| AtomicU8::new(0)).collect());
    let address = memory.as_ptr() as u64;
    let (rkey, stop) = (&AtomicU32::new(0), &AtomicBool::new(false));
    let written = thread::scope(|scope| {
        for (number, (a, _)) in (1..).zip(&pairs) {
            a.mr.fill(number).unwrap();
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let to = Remote { addr: address, rkey: Key(rkey.load(Ordering::Relaxed)) };
                    a.qp.post_send(&SendWr::new(1, SendOp::Write(to), &[a.mr.sge(0, LEN as u32)])).unwrap();
                    a.good();
                }
            });
        }
        let (mut written, start) = ([0; SHARDS as usize + 1], Instant::now());
        // On a busy machine a writer may have no turn for long.
        let waits = |written: &[usize]| written.contains(&0) && start.elapsed() < PATIENCE;
        for round in 0.. {
            if round >= 200 && !waits(&written) {
                break;
            }
            memory.iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
            // SAFETY: lives for ever, and is only looked at as atomic bytes.
            let mr = unsafe { pairs[0].1.pd.reg_mr_raw(address as usize, LEN, address, ALL) }.unwrap();
            rkey.store(mr.rkey().0, Ordering::Relaxed);
            let until = Instant::now() + Duration::from_millis(20);
            while memory[round * 4099 % LEN].load(Ordering::Relaxed) == 0 && Instant::now() < until {
                // At times this thread places what comes, of one shard after the other.
                if round % 2 == 0 {
                    let _ = pairs[round / 2 % 3].1.cq.poll(&mut [Completion::default()]);
                }
            }
            drop(mr);
            for byte in memory {
                written[usize::from(byte.swap(CANARY, Ordering::Relaxed))] += 1;
            }
            thread::sleep(Duration::from_micros(300));
            let intact = memory.iter().all(|byte| byte.load(Ordering::Relaxed) == CANARY);
            if !intact {
                stop.store(true, Ordering::Relaxed);
            }
            assert!(intact, "round {round}: written after deregistration");
        }
        stop.store(true, Ordering::Relaxed);
        written
    });
    assert!(written.iter().all(|bytes| *bytes > 0), "a shard wrote nothing before: {written:?}");
}

/// One shard's queue pair takes a window back while others write through it: once that is complete, nothing more is written.
#[test]
fn a_window_unbound_by_one_shard_is_closed_to_all() {
    const LEN: usize = 1 << 14;
    let two = several();
    for round in 0..20 {
        let pairs = pairs(&two, QpType::Rc, LEN);
        let (_, owner) = &pairs[0];
        let window = owner.pd.alloc_mw(WindowType::One).unwrap();
        let bind = MwBind {
            wr_id: 1,
            flags: SendFlags::SIGNALED,
            region: &owner.mr,
            addr: owner.mr.addr(),
            len: LEN as u64,
            access: rxe_verbs::Access::REMOTE_WRITE,
        };
        let to = Remote { addr: owner.mr.addr(), rkey: owner.qp.bind_mw(&window, &bind).unwrap() };
        owner.good();
        let done = &AtomicU64::new(0);
        thread::scope(|scope| {
            for (writer, _) in &pairs[1..] {
                writer.mr.fill(7).unwrap();
                scope.spawn(move || {
                    let status = loop {
                        let sges = [writer.mr.sge(0, LEN as u32)];
                        writer.qp.post_send(&SendWr::new(2, SendOp::Write(to), &sges)).unwrap();
                        match writer.wait().status {
                            WcStatus::Success => done.fetch_add(1, Ordering::Relaxed),
                            status => break status,
                        };
                    };
                    assert_eq!(status, WcStatus::RemoteAccess);
                });
            }
            wait_until(|| done.load(Ordering::Relaxed) > 4);
            owner.qp.unbind_mw(&window, 3, SendFlags::SIGNALED).unwrap();
            owner.good();
            owner.mr.fill(9).unwrap();
        });
        let intact = owner.mr.read_vec(0, LEN).unwrap().iter().all(|byte| *byte == 9);
        assert!(intact, "round {round}: written through a window that is unbound");
    }
}

/// Queue pairs bind windows to a region, from several shards, until it is deregistered: that succeeds only when none is
/// bound, and then none can be any more.
#[test]
fn windows_and_deregistration_agree() {
    let two = several();
    for _ in 0..20 {
        let pairs = pairs(&two, QpType::Rc, 64);
        let region = pairs[0].1.pd.alloc_mr(4096, ALL).unwrap();
        let (addr, lkey) = (region.addr(), region.lkey());
        let bound = &AtomicU64::new(0);
        thread::scope(|scope| {
            for (_, b) in &pairs {
                scope.spawn(move || bind_until_refused(b, (addr, lkey), bound));
            }
            wait_until(|| bound.load(Ordering::Relaxed) > 20);
            let mut region = region;
            while let Err((again, error)) = region.deregister() {
                assert_eq!(error.errno(), libc::EBUSY);
                region = again;
                thread::yield_now();
            }
        });
    }
}

/// Binds and unbinds a window of its own until the region is gone.
fn bind_until_refused(b: &End, (addr, region): (u64, Key), bound: &AtomicU64) {
    let window = b.pd.alloc_mw(WindowType::Two).unwrap();
    loop {
        let access = rxe_verbs::Access::REMOTE_WRITE;
        let (old, new_rkey) = (window.rkey(), window.rkey().rotated());
        let bind = work::BindWindow { window: old, new_rkey, region, addr, len: 64, access };
        b.qp.post_send(&SendWr::new(1, SendOp::BindWindow(bind), &[])).unwrap();
        if b.wait().status != WcStatus::Success {
            return;
        }
        bound.fetch_add(1, Ordering::Relaxed);
        b.qp.post_send(&SendWr::new(2, SendOp::LocalInvalidate(new_rkey), &[])).unwrap();
        b.good();
    }
}

/// Queue pairs of all shards come and go in the middle of their traffic, and each new one works.
#[test]
fn queue_pairs_come_and_go_under_traffic() {
    const LEN: u32 = 1 << 16;
    let two = several();
    let slots = std::sync::Mutex::new(HashSet::new());
    thread::scope(|scope| {
        for seed in 0..4 {
            let (two, slots) = (&two, &slots);
            scope.spawn(move || {
                for round in 0..25 {
                    let a = End::new(&two.a, QpType::Rc, LEN as usize);
                    let b = End::new(&two.b, QpType::Rc, LEN as usize);
                    connect(&a.qp, &b.qp, Mtu::M4096);
                    slots.lock().unwrap().insert((slot(&a.qp), slot(&b.qp)));
                    let data = pattern(seed << 8 | round, LEN as usize);
                    a.mr.write_at(0, &data).unwrap();
                    let write = |wr_id| {
                        let sges = [a.mr.sge(0, LEN)];
                        a.qp.post_send(&SendWr::new(wr_id, SendOp::Write(remote(&b.mr)), &sges)).unwrap();
                    };
                    write(0);
                    a.good();
                    assert_eq!(b.mr.read_vec(0, LEN as usize).unwrap(), data);
                    (1..8).for_each(write);
                    // The peer goes first, or last; what is left under way finds nobody.
                    if round % 2 == 0 { drop(b) } else { drop(a) }
                }
            });
        }
    });
    let slots = slots.into_inner().unwrap();
    assert!((0..SHARDS).all(|slot| slots.iter().any(|(a, b)| *a == slot || *b == slot)), "{slots:?}");
}

fn with_channel(context: &Context, channel: &CompChannel) -> End {
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64, Some(channel)).unwrap());
    let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq)).unwrap();
    let mr = pd.alloc_mr(64, ALL).unwrap();
    End { qp, mr, cq, pd }
}

/// A thread that waits for events hears of those of all shards, also of one that came to the channel while it waited.
#[test]
fn one_channel_for_queues_of_all_shards() {
    let two = several();
    let channel = two.b.create_comp_channel().unwrap();
    let mut pairs = Vec::new();
    for _ in 0..SHARDS {
        thread::scope(|scope| {
            let waiter = scope.spawn(|| channel.get_event_within(PATIENCE).unwrap().id());
            thread::sleep(Duration::from_millis(5));
            let (a, b) = (End::new(&two.a, QpType::Rc, 64), with_channel(&two.b, &channel));
            connect(&a.qp, &b.qp, Mtu::M1024);
            b.cq.req_notify(false);
            b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
            a.qp.post_send(&SendWr::new(1, SendOp::Send, &[])).unwrap();
            assert_eq!(waiter.join().unwrap(), b.cq.id());
            a.good();
            b.good();
            pairs.push((a, b));
        });
    }
    assert_eq!(pairs.iter().map(|(_, b)| slot(&b.qp)).collect::<Vec<_>>(), [0, 1, 2]);
    for (a, b) in &pairs {
        b.cq.req_notify(false);
        b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
        a.qp.post_send(&SendWr::new(1, SendOp::Send, &[])).unwrap();
    }
    let mut heard: Vec<_> = pairs.iter().map(|_| channel.get_event_within(PATIENCE).unwrap().id()).collect();
    heard.sort_unstable_by_key(|id| id.0);
    assert_eq!(heard, pairs.iter().map(|(_, b)| b.cq.id()).collect::<Vec<_>>());
}

/// Who waits at a channel before it has queue pairs watches the first shard; when they turn out to be another's, the first is
/// seen to by its own thread again.
#[test]
fn a_shard_that_nobody_waits_for_any_more() {
    let two = several();
    let (a, b) = (End::new(&two.a, QpType::Rc, 64), End::new(&two.b, QpType::Rc, 64));
    connect(&a.qp, &b.qp, Mtu::M1024);
    let channel = two.b.create_comp_channel().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| channel.get_event_within(PATIENCE * 2));
        thread::sleep(Duration::from_millis(20));
        let other = with_channel(&two.b, &channel);
        assert_eq!((slot(&b.qp), slot(&other.qp)), (0, 1));
        for _ in 0..3 {
            a.qp.post_send(&SendWr::new(1, SendOp::Write(remote(&b.mr)), &[a.mr.sge(0, 8)])).unwrap();
            a.good();
        }
        channel.interrupt();
        assert_eq!(waiter.join().unwrap().err(), Some(EventError::Interrupted));
    });
}

/// What happens to queue pairs of any shard is told to their context.
#[test]
fn asynchronous_events_of_all_shards() {
    let two = several();
    for (a, b) in pairs(&two, QpType::Rc, 64) {
        let wrong = Remote { addr: b.mr.addr(), rkey: b.mr.rkey().rotated() };
        a.qp.post_send(&SendWr::new(1, SendOp::Write(wrong), &[a.mr.sge(0, 8)])).unwrap();
        assert_eq!(a.wait().status, WcStatus::RemoteAccess);
        let wanted = AsyncEvent::Queue(work::AsyncEvent::QpAccessError(b.qp.qpn()));
        wait_until(|| two.b.get_async_event(Some(PATIENCE)).unwrap() == wanted);
    }
}

/// A completion queue that queue pairs of all shards use: each one's completions come, in its order.
#[test]
fn one_completion_queue_for_all_shards() {
    const EACH: u64 = 200;
    let two = several();
    let (left, right) = (two.a.alloc_pd().unwrap(), two.b.alloc_pd().unwrap());
    let cq = two.b.create_cq(1024, None).unwrap();
    let receivers: Vec<Qp> =
        (0..SHARDS).map(|_| right.create_qp(&QpInit::new(QpType::Rc, &cq)).unwrap()).collect();
    let senders: Vec<End> = (0..SHARDS).map(|_| end(&left, QpType::Rc, 64)).collect();
    for (a, qp) in senders.iter().zip(&receivers) {
        connect(&a.qp, qp, Mtu::M1024);
        (0..100).for_each(|wr_id| qp.post_recv(&RecvWr { wr_id, sges: &[] }).unwrap());
    }
    thread::scope(|scope| {
        for a in &senders {
            scope.spawn(move || {
                for wr_id in 0..EACH {
                    a.qp.post_send(&SendWr::new(wr_id, SendOp::Send, &[])).unwrap();
                    a.good();
                }
            });
        }
        let mut next = [0; SHARDS as usize];
        while next.iter().sum::<u64>() < EACH * u64::from(SHARDS) {
            let wc = cq.poll_within(PATIENCE).unwrap().expect("a completion");
            assert_eq!(wc.status, WcStatus::Success);
            let place = receivers.iter().position(|qp| qp.qpn() == wc.qpn).expect("one of ours");
            assert_eq!(wc.wr_id, next[place], "in order");
            next[place] += 1;
            if next[place] + 100 <= EACH {
                receivers[place].post_recv(&RecvWr { wr_id: wc.wr_id + 100, sges: &[] }).unwrap();
            }
        }
    });
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "it does not happen");
        thread::yield_now();
    }
}
