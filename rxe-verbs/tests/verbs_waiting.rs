//! Programs that wait for completions in every way there is, with nobody who looks in on them now and then: what is missed is
//! missed for ever, and the test ends by its patience. What is counted is how often threads slept, so nothing else may run in
//! this process: one test.

mod verbs_common;

use nix::{
    errno::Errno,
    fcntl::{F_GETFL, F_SETFL, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        select::{FdSet, select},
        time::{TimeVal, TimeValLike},
    },
    unistd::gettid,
};
use rxe_verbs::{
    CompChannel, Completion, Context, ContextOptions, Cq, Mtu, QpInit, QpType, RecvWr, SendFlags, SendOp,
    SendWr, WcOpcode, WcStatus,
};
use std::{
    collections::BTreeSet,
    fs,
    os::fd::{AsFd, AsRawFd},
    sync::mpsc,
    thread,
    time::Duration,
};
use verbs_common::{End, PATIENCE, Two, connect, loopback};

const MESSAGES: u64 = 400;
/// Bytes of each: several arrivals, of which the sockets may give only some at a time.
const LONG: usize = 64 * 1024;

/// A way to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Epoll,
    Edge,
    /// One event for each edge, as libvalkey takes them: after that it sleeps.
    OneForAnEdge,
    Poll,
    Select,
    Event,
}

impl How {
    const fn non_blocking(self) -> bool {
        matches!(self, Self::Epoll | Self::Edge | Self::OneForAnEdge)
    }

    /// How long messages are.
    const fn bytes(self) -> u32 {
        if matches!(self, Self::OneForAnEdge) { LONG as u32 } else { 8 }
    }

    /// Until the channel's descriptor is readable.
    fn wait(self, epoll: &Epoll, channel: &CompChannel) {
        let patience = PATIENCE.as_millis() as u16;
        let count = match self {
            Self::Epoll | Self::Edge | Self::OneForAnEdge => loop {
                match epoll.wait(&mut [EpollEvent::empty(); 4], EpollTimeout::from(patience)) {
                    // This process was stopped, and goes on (signal(7)).
                    Err(Errno::EINTR) => {}
                    count => break count.unwrap(),
                }
            },
            Self::Poll => {
                let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
                poll(&mut fds, PollTimeout::from(patience)).unwrap() as usize
            }
            Self::Select => {
                let mut set = FdSet::new();
                set.insert(channel.as_fd());
                let most = channel.as_fd().as_raw_fd() + 1;
                let mut patience = TimeVal::milliseconds(patience.into());
                select(most, &mut set, None, None, &mut patience).unwrap() as usize
            }
            Self::Event => 1,
        };
        assert!(count > 0, "{self:?}: nothing comes any more");
    }

    /// An event. A blocking descriptor that is readable has one.
    fn take(self, channel: &CompChannel) -> Option<Cq> {
        if self.non_blocking() {
            channel.try_get_event()
        } else {
            Some(channel.get_event_within(PATIENCE).expect("an event"))
        }
    }
}

struct Side {
    end: End,
    channel: CompChannel,
    /// The library's thread.
    thread: String,
}

fn library_threads() -> BTreeSet<String> {
    fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|entry| entry.unwrap().path().to_str().unwrap().to_owned())
        .filter(|task| fs::read_to_string(format!("{task}/comm")).unwrap_or_default() == "rxe\n")
        .collect()
}

/// Times a thread went to sleep.
fn sleeps(task: &str) -> u64 {
    let status = fs::read_to_string(format!("{task}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

impl Side {
    fn new(context: &Context) -> Self {
        let before = library_threads();
        let channel = context.create_comp_channel().unwrap();
        let mut end = End::new(context, QpType::Rc, LONG);
        end.cq = context.create_cq(64, Some(&channel)).unwrap();
        end.qp = end.pd.create_qp(&QpInit { signal_all: false, ..QpInit::new(QpType::Rc, &end.cq) }).unwrap();
        // A thread names itself.
        let thread = core::iter::repeat_with(|| {
            thread::yield_now();
            library_threads().difference(&before).next().cloned()
        });
        let thread = thread.flatten().next().unwrap();
        Self { end, channel, thread }
    }

    fn send(&self, how: How) {
        let sges = [self.end.mr.sge(0, how.bytes())];
        let wr = SendWr { flags: SendFlags::empty(), ..SendWr::new(2, SendOp::Send, &sges) };
        self.end.qp.post_send(&wr).unwrap();
    }

    /// Answers each message, until so many have come; `first` sends two before that, and does not answer the last.
    fn exchange(&self, how: How, first: bool) {
        let Self { end, channel, .. } = self;
        let flags = OFlag::from_bits_retain(fcntl(channel, F_GETFL).unwrap());
        let flags = if how.non_blocking() { flags | OFlag::O_NONBLOCK } else { flags - OFlag::O_NONBLOCK };
        fcntl(channel, F_SETFL(flags)).unwrap();
        let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
        let edge = if matches!(how, How::Edge | How::OneForAnEdge) {
            EpollFlags::EPOLLET
        } else {
            EpollFlags::empty()
        };
        epoll.add(channel, EpollEvent::new(EpollFlags::EPOLLIN | edge, 0)).unwrap();
        let mut received = 0;
        let mut handle = || {
            let mut wcs = [Completion::default(); 8];
            while let found @ 1.. = end.cq.poll(&mut wcs).unwrap() {
                for wc in &wcs[..found] {
                    assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::Recv), "{wc:?}");
                    received += 1;
                    end.qp.post_recv(&RecvWr { wr_id: 1, sges: &[end.mr.sge(0, LONG as u32)] }).unwrap();
                    if !first || received < MESSAGES {
                        self.send(how);
                    }
                }
            }
            received
        };
        end.cq.req_notify(false);
        handle();
        if first {
            // Two are under way all the time, so one may come while the other is handled.
            self.send(how);
            self.send(how);
        }
        loop {
            how.wait(&epoll, channel);
            while let Some(cq) = how.take(channel) {
                cq.ack_events(1);
                cq.req_notify(false);
                if handle() >= MESSAGES {
                    return;
                }
                if !how.non_blocking() || how == How::OneForAnEdge {
                    break;
                }
            }
        }
    }
}

/// Two programs that have nobody but themselves.
fn sides(numbers: [u8; 2], ticks: bool) -> (Two, [Side; 2]) {
    let open = |n| ContextOptions::new().alone().ticks(ticks).open_address(loopback(n)).unwrap();
    let two = Two::of("udp4", open(numbers[0]), open(numbers[1]));
    let sides = [Side::new(&two.a), Side::new(&two.b)];
    connect(&sides[0].end.qp, &sides[1].end.qp, Mtu::M1024);
    for Side { end, .. } in &sides {
        // More than ever come at a time: who has no credit waits for an acknowledgement.
        for _ in 0..8 {
            end.qp.post_recv(&RecvWr { wr_id: 1, sges: &[end.mr.sge(0, LONG as u32)] }).unwrap();
        }
    }
    (two, sides)
}

#[test]
fn nobody_waits_for_a_tick() {
    let all = [How::Epoll, How::Edge, How::OneForAnEdge, How::Poll, How::Select, How::Event];
    for (number, how) in (1..).zip(all) {
        let (_two, [a, b]) = sides([2 * number, 2 * number + 1], false);
        let before = [sleeps(&a.thread), sleeps(&b.thread)];
        thread::scope(|scope| {
            scope.spawn(|| b.exchange(how, false));
            a.exchange(how, true);
        });
        let slept: u64 =
            [&a, &b].iter().zip(before).map(|(side, before)| sleeps(&side.thread) - before).sum();
        // Who is woken by packets himself needs no other thread for them: a few on a quiet machine, where a thread that was told of
        // each message would be woken twice for a message and its answer.
        // Who waits inside the library has it look in a millisecond later, which on a busy machine is once a message. Programs
        // of the other kinds are told by it.
        let most = match how {
            How::Epoll | How::Edge | How::OneForAnEdge => 3 * MESSAGES / 2,
            How::Event => 3 * MESSAGES,
            How::Poll | How::Select => u64::MAX,
        };
        assert!(slept <= most, "{how:?}: {MESSAGES} messages woke the library's threads {slept} times");
        rest_is_free(&a);
    }
    acknowledgements_leave_while_the_program_computes();
    who_polls_now_and_then_and_sleeps_keeps_no_peer_waiting();
}

/// A program that does nothing costs nothing. Its last ticks may still be to come.
fn rest_is_free(side: &Side) {
    let quiet = || {
        let before = sleeps(&side.thread);
        thread::sleep(Duration::from_millis(50));
        sleeps(&side.thread) == before
    };
    assert!((0..20).any(|_| quiet()), "the library's thread goes on waking up");
}

/// The receiving program is woken by epoll, and does not come back to the library until its peer has been told that what it sent
/// has arrived.
fn acknowledgements_leave_while_the_program_computes() {
    let (_two, [a, b]) = sides([20, 21], true);
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let b = &b;
        scope.spawn(move || {
            // So that the program is woken by packets itself.
            b.exchange(How::Epoll, false);
            told.recv_timeout(PATIENCE).expect("the peer hears of it while this program is busy");
        });
        a.exchange(How::Epoll, true);
        for _ in 0..10 {
            // Each is answered by the library alone.
            let sges = [a.end.mr.sge(0, 8)];
            let remote = rxe_verbs::Remote { addr: b.end.mr.addr(), rkey: b.end.mr.rkey() };
            a.end.qp.post_send(&SendWr::new(3, SendOp::Write(remote), &sges)).unwrap();
            a.end.good();
        }
        tell.send(()).unwrap();
    });
}

/// A program that polls, and then sleeps in a call of its own, is not left alone with what arrives: its peer has its READs answered
/// meanwhile.
fn who_polls_now_and_then_and_sleeps_keeps_no_peer_waiting() {
    let (_two, [a, b]) = sides([22, 23], false);
    let (tell, told) = mpsc::channel();
    let (ask, asked) = mpsc::channel();
    thread::scope(|scope| {
        let b = &b;
        scope.spawn(move || {
            for _ in 0..10 {
                assert_eq!(b.end.cq.poll(&mut [Completion::default()]).unwrap(), 0);
                ask.send(format!("/proc/self/task/{}/stat", gettid())).unwrap();
                told.recv_timeout(PATIENCE).expect("the peer has its answer while this program sleeps");
            }
        });
        for poller in asked {
            while !fs::read_to_string(&poller).unwrap().contains(") S ") {
                thread::yield_now();
            }
            let remote = rxe_verbs::Remote { addr: b.end.mr.addr(), rkey: b.end.mr.rkey() };
            a.end.qp.post_send(&SendWr::new(4, SendOp::Read(remote), &[a.end.mr.sge(0, 8)])).unwrap();
            a.end.good();
            tell.send(()).unwrap();
        }
    });
}
