//! What the engine does when a link does not take what it is given.

mod verbs_common;

use rxe_verbs::{
    AsyncEvent, Completion, Context, ContextOptions, Mtu, Polling, QpInit, QpType, Qpn, Remote, SendOp,
    SendWr,
    net::{Capabilities, Ident, InprocLink, InprocNet, Link, Path, RecvBatch, SendError, Transmit},
};
use std::{
    io,
    net::IpAddr,
    os::fd::BorrowedFd,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use verbs_common::{End, PATIENCE, QKEY, Two, connect, connected, datagram_end, pattern};

/// What a link that consists of another one leaves to that.
macro_rules! as_of {
    ($inner:tt) => {
        fn capabilities(&self) -> &Capabilities {
            self.$inner.capabilities()
        }

        fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
            self.$inner.poll_fds()
        }

        fn join(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
            self.$inner.join(group, ifindex)
        }

        fn leave(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
            self.$inner.leave(group, ifindex)
        }
    };
}

/// What a [`Moody`] link does with a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    /// Now and then takes a part of it only, and has no room for the rest.
    Full,
    /// From the tenth batch on it cannot segment: it takes one packet, and from then on batches of 7 with
    /// identification 0.
    Refusing,
    /// From the tenth batch on it segments only 7 packets at a time.
    Short,
}

/// A link inside the process with moods.
struct Moody {
    inner: InprocLink,
    mood: Mood,
    batches: u64,
    refused: bool,
    /// How often it did not take all.
    refusals: Arc<AtomicU64>,
}

/// Sends the first `count` packets of a batch one by one, each with identification 0, as a socket without segmentation.
fn one_by_one(inner: &mut InprocLink, batch: &Transmit, bytes: &[u8], count: usize) {
    for packet in bytes.chunks(batch.segment_size).take(count) {
        inner.send(batch, packet).unwrap();
    }
}

impl Link for Moody {
    fn path(&self, dst: IpAddr, ifindex: u32) -> Path {
        match self.mood {
            _ if !self.refused => self.inner.path(dst, ifindex),
            Mood::Short => Path { max_segments: 7, ..self.inner.path(dst, ifindex) },
            _ => Path { max_segments: 7, ident: Ident::Zero },
        }
    }

    fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        self.batches += 1;
        let count = bytes.len().div_ceil(batch.segment_size);
        match self.mood {
            Mood::Full if self.batches.is_multiple_of(3) => {
                let sent = (self.batches / 3) as usize % (count + 1);
                if sent == count {
                    return self.inner.send(batch, bytes);
                }
                if sent > 0 {
                    // The kernel cuts it, so these have the identifications of a batch.
                    self.inner.send(batch, &bytes[..sent * batch.segment_size])?;
                }
                self.refusals.fetch_add(1, Ordering::Relaxed);
                Err(SendError::WouldBlock { sent })
            }
            Mood::Refusing if self.refused => {
                assert!(count <= 7, "a batch of {count} after the refusal");
                one_by_one(&mut self.inner, batch, bytes, count);
                Ok(())
            }
            Mood::Refusing if self.batches >= 10 && count > 1 => {
                self.refused = true;
                self.refusals.fetch_add(1, Ordering::Relaxed);
                one_by_one(&mut self.inner, batch, bytes, 1);
                Err(SendError::SegmentationRefused { sent: 1 })
            }
            Mood::Short if self.batches >= 10 && count > 7 => {
                assert!(!self.refused, "a batch of {count} after the refusal");
                self.refused = true;
                self.refusals.fetch_add(1, Ordering::Relaxed);
                self.inner.send(batch, &bytes[..7 * batch.segment_size])?;
                Err(SendError::SegmentationRefused { sent: 7 })
            }
            _ => self.inner.send(batch, bytes),
        }
    }

    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        self.inner.recv(into)
    }

    as_of!(inner);
}

fn moody(mood: Mood) -> (Two, Arc<AtomicU64>) {
    let net = InprocNet::new();
    let refusals = Arc::new(AtomicU64::new(0));
    let open = |address: &str| {
        let addresses = [address.parse().unwrap()];
        let inner = net.attach(&addresses, 1).unwrap();
        let link = Moody { inner, mood, batches: 0, refused: false, refusals: Arc::clone(&refusals) };
        ContextOptions::new().open_link(link, &addresses).unwrap()
    };
    (Two::of("moody", open("10.0.0.1"), open("10.0.0.2")), refusals)
}

/// What a link could not take is sent later, unchanged: nothing is lost, no ICRC is wrong, and nothing counts as retransmitted.
#[test]
fn what_a_link_cannot_take_is_kept() {
    for mood in [Mood::Full, Mood::Refusing, Mood::Short] {
        let (two, refusals) = moody(mood);
        // 17 s: nothing is sent again because a machine was busy.
        verbs_common::set_timeout(22);
        let (a, b) = connected(&two, QpType::Rc, 1 << 20, Mtu::M1024);
        for round in 0..20 {
            let data = pattern(round, 300_000);
            a.mr.write_at(0, &data).unwrap();
            let remote = Remote { addr: b.mr.addr(), rkey: b.mr.rkey() };
            a.qp.post_send(&SendWr::new(1, SendOp::Write(remote), &[a.mr.sge(0, 300_000)])).unwrap();
            a.good();
            assert_eq!(b.mr.read_vec(0, 300_000).unwrap(), data);
            a.qp.post_send(&SendWr::new(2, SendOp::Read(remote), &[a.mr.sge(500_000, 300_000)])).unwrap();
            a.good();
            assert_eq!(a.mr.read_vec(500_000, 300_000).unwrap(), data);
        }
        assert!(refusals.load(Ordering::Relaxed) > 0);
        for context in [&two.a, &two.b] {
            assert_eq!(context.port_stats().dropped_icrc, 0);
        }
        if mood == Mood::Full {
            let blocked = two.a.link_report().blocked + two.b.link_report().blocked;
            assert_eq!(blocked, refusals.load(Ordering::Relaxed));
        }
        assert_eq!((a.qp.stats().retransmitted, b.qp.stats().retransmitted), (0, 0));
    }
}

/// A link that refuses some batches, as the function says for a batch and its length.
struct Choosy<F>(InprocLink, F);

impl<F: FnMut(&Transmit, usize) -> Option<SendError> + Send> Link for Choosy<F> {
    fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        (self.1)(batch, bytes.len()).map_or_else(|| self.0.send(batch, bytes), Err)
    }

    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        self.0.recv(into)
    }

    as_of!(0);
}

/// Packets that never leave are lost. They must not keep back those for others for ever.
#[test]
fn what_an_interface_never_takes_does_not_stop_the_rest() {
    let net = InprocNet::new();
    let addresses: [IpAddr; 3] = [1, 2, 3].map(|host| [10, 0, 0, host].into());
    // The interface drops large packets to one of two hosts, and does not say why.
    let refuses = move |batch: &Transmit, len| {
        (len > 2000 && batch.dst == addresses[1]).then_some(SendError::QueueFull { sent: 0 })
    };
    let link = Choosy(net.attach(&addresses[..1], 1).unwrap(), refuses);
    let a = ContextOptions::new().open_link(link, &addresses[..1]).unwrap();
    let [b, c] = [1, 2].map(|host| Context::open_inproc(&net, &addresses[host..=host]).unwrap());
    let (bad, b) = connected(&Two::of("choosy", a.clone(), b), QpType::Rc, 1 << 16, Mtu::M4096);
    let (good, c) = connected(&Two::of("choosy", a.clone(), c), QpType::Rc, 1 << 16, Mtu::M4096);
    let write = |from: &End, to: &End| {
        let remote = Remote { addr: to.mr.addr(), rkey: to.mr.rkey() };
        from.qp.post_send(&SendWr::new(1, SendOp::Write(remote), &[from.mr.sge(0, 50_000)])).unwrap();
    };
    write(&bad, &b);
    for _ in 0..20 {
        write(&good, &c);
        good.good();
    }
    let report = a.link_report();
    assert!(report.failed > 0 && report.last_error.unwrap().contains("does not take packets of this size"));
}

#[test]
fn a_path_that_is_too_narrow_is_told() {
    let net = InprocNet::new();
    let narrow = Arc::new(AtomicBool::new(true));
    let addresses: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
    let refuses = {
        let narrow = Arc::clone(&narrow);
        move |batch: &Transmit, len| {
            let is_too_long = batch.segment_size.min(len) > 2000 && narrow.load(Ordering::Relaxed);
            is_too_long.then_some(SendError::MessageTooLong { sent: 0 })
        }
    };
    let link = Choosy(net.attach(&addresses[..1], 1).unwrap(), refuses);
    let a = ContextOptions::new().open_link(link, &addresses[..1]).unwrap();
    let b = Context::open_inproc(&net, &addresses[1..]).unwrap();
    let two = Two::of("narrow", a, b);
    let (a, b) = connected(&two, QpType::Rc, 1 << 16, Mtu::M4096);
    let remote = Remote { addr: b.mr.addr(), rkey: b.mr.rkey() };
    a.qp.post_send(&SendWr::new(1, SendOp::Write(remote), &[a.mr.sge(0, 5000)])).unwrap();
    let event = two.a.get_async_event(Some(PATIENCE)).unwrap();
    assert_eq!(event, AsyncEvent::PathMtuExceeded(addresses[1]));
    let report = two.a.link_report();
    assert!(report.too_long > 0 && report.too_long_for == [addresses[1]], "{report:?}");
    assert!(report.last_error.unwrap().contains("larger than the interface's MTU"));
    // It heals: the message was only lost.
    narrow.store(false, Ordering::Relaxed);
    a.good();
    // Told once.
    assert!(two.a.try_get_async_event().is_none_or(|event| !matches!(event, AsyncEvent::PathMtuExceeded(_))));
}

/// An empty datagram is no packet, but somebody sent it: it is counted.
#[test]
fn empty_datagrams_are_counted() {
    let two = verbs_common::udp4();
    let (a, b) = connected(&two, QpType::Rc, 64, Mtu::M1024);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..3 {
        assert_eq!(socket.send_to(&[], (verbs_common::loopback(2), 4791)).unwrap(), 0);
    }
    // Behind them in the same socket, so they have been taken when this has arrived.
    a.mr.write_at(0, b"x").unwrap();
    let remote = Remote { addr: b.mr.addr(), rkey: b.mr.rkey() };
    a.qp.post_send(&SendWr::new(1, SendOp::Write(remote), &[a.mr.sge(0, 1)])).unwrap();
    a.good();
    assert_eq!((two.a.link_report().malformed, two.b.link_report().malformed), (0, 3));
}

/// A link inside the process in which a sender waits for as long as it is shut.
struct Gate {
    inner: InprocLink,
    shut: Arc<(Mutex<bool>, Condvar)>,
    /// The sender, which holds the shard's lock, waits here.
    kept: Arc<AtomicBool>,
}

impl Link for Gate {
    fn path(&self, dst: IpAddr, ifindex: u32) -> Path {
        self.inner.path(dst, ifindex)
    }

    fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        let mut shut = self.shut.0.lock().unwrap();
        while *shut {
            self.kept.store(true, Ordering::Release);
            shut = self.shut.1.wait(shut).unwrap();
        }
        self.inner.send(batch, bytes)
    }

    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        self.inner.recv(into)
    }

    as_of!(inner);
}

/// Opens it, also if the test fails.
struct Open<'a>(&'a (Mutex<bool>, Condvar));

impl Drop for Open<'_> {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap() = false;
        self.0.1.notify_all();
    }
}

/// Waits for what other threads do.
fn comes(what: &str, has_come: impl Fn() -> bool) {
    let start = Instant::now();
    while !has_come() {
        assert!(start.elapsed() < PATIENCE, "{what}: not in time");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Many threads poll queues of one shard: none waits for the lock of the one that is in a turn.
#[test]
fn who_polls_does_not_wait_for_a_thread_that_sends() {
    const THREADS: usize = 64;
    let net = InprocNet::new();
    let (shut, kept) = (Arc::<(Mutex<bool>, Condvar)>::default(), Arc::<AtomicBool>::default());
    let open = |address: &str| {
        let addresses = [address.parse().unwrap()];
        let inner = net.attach(&addresses, 1).unwrap();
        let link = Gate { inner, shut: Arc::clone(&shut), kept: Arc::clone(&kept) };
        ContextOptions::new().open_link(link, &addresses).unwrap()
    };
    let two = Two::of("gate", open("10.0.0.1"), open("10.0.0.2"));
    let (a, b) = connected(&two, QpType::Rc, 64, Mtu::M1024);
    let remote = Remote { addr: b.mr.addr(), rkey: b.mr.rkey() };
    let queues: Vec<_> = (0..THREADS).map(|_| two.a.create_cq(8, None).unwrap()).collect();
    *shut.0.lock().unwrap() = true;
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        let _open = Open(&shut);
        scope.spawn(|| a.qp.post_send(&SendWr::new(1, SendOp::Read(remote), &[a.mr.sge(0, 8)])).unwrap());
        comes("the lock is held", || kept.load(Ordering::Acquire));
        for queue in &queues {
            let done = &done;
            scope.spawn(move || {
                for _ in 0..100 {
                    assert_eq!(queue.poll(&mut [Completion::default()]).unwrap(), 0);
                }
                done.fetch_add(1, Ordering::Release);
            });
        }
        comes("all have polled", || done.load(Ordering::Acquire) == THREADS as u64);
        assert!(kept.load(Ordering::Acquire) && *shut.0.lock().unwrap());
    });
    a.good();
}

/// A link inside the process that counts how often it is looked at.
struct Counted {
    inner: InprocLink,
    looks: Arc<AtomicU64>,
    sent: Arc<AtomicU64>,
}

impl Link for Counted {
    fn path(&self, dst: IpAddr, ifindex: u32) -> Path {
        self.inner.path(dst, ifindex)
    }

    fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.inner.send(batch, bytes)
    }

    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.inner.recv(into)
    }

    as_of!(inner);
}

/// A call that sent exactly as many batches as a turn may leaves nothing behind. So nobody looks for packets after it.
#[test]
fn a_turn_that_was_just_full_leaves_nothing_to_do() {
    const BATCHES: u8 = 64;
    let (looks, sent) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let addresses = ["10.0.0.1".parse().unwrap()];
    let inner = InprocNet::new().attach(&addresses, 1).unwrap();
    let link = Counted { inner, looks: Arc::clone(&looks), sent: Arc::clone(&sent) };
    let context = ContextOptions::new().open_link(link, &addresses).unwrap();
    let end = datagram_end(&context);
    // Nobody has these addresses. Each datagram is a batch.
    let sges = [end.mr.sge(0, 8)];
    let datagram = |last| {
        let av = context.address_vector(0, IpAddr::from([10, 0, 1, last]).into()).unwrap();
        let dest = end.pd.create_ah(av).dest(Qpn::new(17), QKEY);
        SendWr { dest: Some(dest), ..SendWr::new(1, SendOp::Send, &sges) }
    };
    let datagrams: Vec<_> = (1..=BATCHES).map(datagram).collect();
    end.qp.post_send_list(&datagrams).unwrap();
    assert_eq!(sent.load(Ordering::Relaxed), u64::from(BATCHES));
    // The background thread looks once or twice more.
    thread::sleep(Duration::from_millis(50));
    let before = looks.load(Ordering::Relaxed);
    thread::sleep(Duration::from_millis(200));
    let looked = looks.load(Ordering::Relaxed) - before;
    assert!(looked < 20, "{looked} looks in 200 ms");
}

/// A link inside the process that loses the last packet of each batch of several.
struct Cut(InprocLink);

impl Link for Cut {
    fn path(&self, dst: IpAddr, ifindex: u32) -> Path {
        self.0.path(dst, ifindex)
    }

    fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        let before = (bytes.len() - 1) / batch.segment_size * batch.segment_size;
        self.0.send(batch, if before > 0 { &bytes[..before] } else { bytes })
    }

    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        self.0.recv(into)
    }

    as_of!(0);
}

/// A program that packets wake looks on in the middle of a message. A call that receives nothing does not, even if the end of a message is
/// missing.
#[test]
fn who_has_received_a_part_looks_on_and_others_do_not() {
    const VAIN: u64 = 200;
    let (net, looks) = (InprocNet::new(), Arc::<AtomicU64>::default());
    let [near, far] = ["10.0.0.1", "10.0.0.2"].map(|address| [address.parse().unwrap()]);
    let near = ContextOptions::new().open_link(Cut(net.attach(&near, 1).unwrap()), &near).unwrap();
    let link =
        Counted { inner: net.attach(&far, 1).unwrap(), looks: Arc::clone(&looks), sent: Arc::default() };
    let two = Two::of("cut", near, ContextOptions::new().ticks(false).open_link(link, &far).unwrap());
    let (a, mut b) = (End::new(&two.a, QpType::Uc, 4096), End::new(&two.b, QpType::Uc, 4096));
    let channel = two.b.create_comp_channel().unwrap();
    b.cq = two.b.create_cq(64, Some(&channel)).unwrap();
    b.qp = b.pd.create_qp(&QpInit::new(QpType::Uc, &b.cq)).unwrap();
    connect(&a.qp, &b.qp, Mtu::M1024);
    // How often calls look that find no event.
    let asked = |calls| {
        let before = looks.load(Ordering::Relaxed);
        (0..calls).for_each(|_| assert!(channel.try_get_event().is_none()));
        looks.load(Ordering::Relaxed) - before
    };
    asked(16);
    let remote = Remote { addr: b.mr.addr(), rkey: b.mr.rkey() };
    let (start, mut most) = (Instant::now(), 0);
    // A call with packets looks twice at least. Where other programs want the processor, none looks on for a while.
    while most <= 3 {
        assert!(start.elapsed() < PATIENCE, "no call looked on");
        a.qp.post_send(&SendWr::new(1, SendOp::Write(remote), &[a.mr.sge(0, 4096)])).unwrap();
        a.good();
        most = asked(1);
    }
    let vain = asked(VAIN);
    assert!(vain < 2 * VAIN, "{vain} looks by {VAIN} calls");
}

/// Two acknowledgements are owed: one waits in the link, and the other one, which is overdue, behind it.
#[test]
fn a_link_that_stays_full_is_tried_once_in_a_while() {
    let net = InprocNet::new();
    let (full, tries) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let (is_full, tried) = (Arc::clone(&full), Arc::clone(&tries));
    let [near, far] = ["10.0.0.1", "10.0.0.2"].map(|address| [address.parse().unwrap()]);
    let mood = move |_: &Transmit, _| {
        tried.fetch_add(1, Ordering::Relaxed);
        is_full.load(Ordering::Relaxed).then_some(SendError::WouldBlock { sent: 0 })
    };
    let link = Choosy(net.attach(&far, 1).unwrap(), mood);
    // Each look before a sleep would be a try, too.
    let far = ContextOptions::new().polling(Polling::Sleep).open_link(link, &far).unwrap();
    let two = Two::of("full", Context::open_inproc(&net, &near).unwrap(), far);
    // 17 s: nothing is sent again meanwhile.
    verbs_common::set_timeout(22);
    let (a, b) = connected(&two, QpType::Rc, 64, Mtu::M1024);
    full.store(true, Ordering::Relaxed);
    let remote = Remote { addr: b.mr.addr(), rkey: b.mr.rkey() };
    for wr_id in 1..=2 {
        a.qp.post_send(&SendWr::new(wr_id, SendOp::Write(remote), &[a.mr.sge(0, 8)])).unwrap();
        thread::sleep(Duration::from_millis(50));
    }
    let before = tries.load(Ordering::Relaxed);
    thread::sleep(Duration::from_millis(200));
    let tries = tries.load(Ordering::Relaxed) - before;
    full.store(false, Ordering::Relaxed);
    a.good();
    a.good();
    assert!(tries > 0 && tries < 1000, "{tries} tries in 200 ms");
}

/// A link of several sockets, one of which fails at every call.
struct HalfFailed(InprocLink);

impl Link for HalfFailed {
    fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        self.0.send(batch, bytes)
    }

    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        self.0.recv(into)?;
        Err(io::Error::other("a socket has failed"))
    }

    as_of!(0);
}

#[test]
fn what_came_before_a_failure_is_received() {
    let net = InprocNet::new();
    let open = |address: &str| {
        let addresses = [address.parse().unwrap()];
        let link = HalfFailed(net.attach(&addresses, 1).unwrap());
        ContextOptions::new().open_link(link, &addresses).unwrap()
    };
    let two = Two::of("half failed", open("10.0.0.1"), open("10.0.0.2"));
    let (a, b) = connected(&two, QpType::Rc, 1 << 16, Mtu::M4096);
    let remote = Remote { addr: b.mr.addr(), rkey: b.mr.rkey() };
    a.qp.post_send(&SendWr::new(1, SendOp::Write(remote), &[a.mr.sge(0, 5000)])).unwrap();
    a.good();
}
