//! The lookout, the channel whose descriptor packets make readable if a program has many channels: it is one that the program asks for
//! events, and not one that it no longer uses. And what leaves when such a program answers.

mod verbs_common;

use rxe_verbs::{
    CompChannel, Completion, Context, ContextOptions, Mtu, QpInit, QpType, RecvWr, Remote, SendOp, SendWr,
};
use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};
use verbs_common::{End, PATIENCE, Two, connect, loopback};

/// Descriptors of one stack that can have the sockets behind them, at one time.
const CANDIDATES: usize = 16;
/// A thread has to ask a channel so often at least before that becomes the lookout.
const OFTEN: usize = 16;

/// A connection whose receiver has a channel.
struct Connection {
    near: End,
    far: End,
    channel: CompChannel,
}

impl Connection {
    fn new((a, b): (&Context, &Context)) -> Self {
        let (near, mut far) = (End::new(a, QpType::Rc, 4096), End::new(b, QpType::Rc, 4096));
        let channel = b.create_comp_channel().unwrap();
        far.cq = b.create_cq(64, Some(&channel)).unwrap();
        far.qp = far.pd.create_qp(&QpInit::new(QpType::Rc, &far.cq)).unwrap();
        connect(&near.qp, &far.qp, Mtu::M1024);
        Self { near, far, channel }
    }

    /// Asks for an event as a program does that waits for descriptors.
    fn ask(&self) {
        for _ in 0..OFTEN {
            assert!(self.channel.try_get_event().is_none());
        }
    }

    /// Whether a packet that brings no event makes the descriptor readable. A few may have been taken by then.
    fn is_lookout(&self, patience: Duration) -> bool {
        let remote = Remote { addr: self.far.mr.addr(), rkey: self.far.mr.rkey() };
        let start = Instant::now();
        while start.elapsed() < patience {
            let sges = [self.near.mr.sge(0, 64)];
            self.near.qp.post_send(&SendWr::new(1, SendOp::Write(remote), &sges)).unwrap();
            let woken = readable(&self.channel);
            self.near.good();
            if woken {
                return true;
            }
        }
        false
    }
}

fn readable(channel: &CompChannel) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(5_u8)).unwrap() > 0
}

/// As valkey does it: it destroys a connection's channel before the queue pair that uses it. This fails, so the channel stays.
#[test]
fn channels_that_were_given_up_are_in_nobody_s_way() {
    let open = |n| ContextOptions::new().alone().open_address(loopback(n)).unwrap();
    let two = Two::of("udp4", open(1), open(2));
    let old: Vec<_> = (0..CANDIDATES).map(|_| Connection::new((&two.a, &two.b))).collect();
    old[0].ask();
    assert!(old[0].is_lookout(PATIENCE));
    let late = Connection::new((&two.a, &two.b));
    late.ask();
    assert!(!late.is_lookout(Duration::from_millis(100)), "there is one already");
    old.iter().for_each(|connection| connection.channel.retire());
    let new = Connection::new((&two.a, &two.b));
    new.ask();
    assert!(new.is_lookout(PATIENCE));
    assert!(!old[0].is_lookout(Duration::from_millis(100)), "one at a time");
}

/// Connections whose receivers have been sent a message each, and have taken the event and the completion.
struct Asked {
    two: Two,
    connections: Vec<Connection>,
    /// Packets and batches that the receiving side had sent before.
    before: (u64, u64),
}

impl Asked {
    const COUNT: usize = 4;

    /// Between two addresses of the test's own.
    fn new(addresses: [u8; 2]) -> Self {
        // Nobody but the program looks, once the background thread has seen it do so.
        let open = |n| ContextOptions::new().alone().ticks(false).open_address(loopback(n)).unwrap();
        let two = Two::of("udp4", open(addresses[0]), open(addresses[1]));
        let connections: Vec<_> = (0..Self::COUNT).map(|_| Connection::new((&two.a, &two.b))).collect();
        for Connection { near, far, .. } in &connections {
            near.qp.post_recv(&RecvWr { wr_id: 1, sges: &[near.mr.sge(0, 64)] }).unwrap();
            far.cq.req_notify(false);
        }
        connections[0].ask();
        let mut asked = Self { two, connections, before: (0, 0) };
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            asked.ask();
            if asked.sent() == (0, 0) {
                return asked;
            }
            // What the background thread was quicker to take was acknowledged at once. The rest is when the program comes by.
            assert!(asked.connections[0].channel.try_get_event().is_none());
            asked.check_heard();
        }
        panic!(
            "acknowledgements never waited for the program, which had events before it and could answer them"
        );
    }

    /// Each receiver is sent a message, and the program takes the events and the completions.
    fn ask(&mut self) {
        let stats = self.two.b.port_stats();
        self.before = (stats.packets_sent, stats.batches_sent);
        for Connection { near, far, .. } in &self.connections {
            far.qp.post_recv(&RecvWr { wr_id: 1, sges: &[far.mr.sge(0, 64)] }).unwrap();
            near.qp.post_send(&SendWr::new(2, SendOp::Send, &[near.mr.sge(64, 64)])).unwrap();
        }
        for Connection { far, channel, .. } in &self.connections {
            let start = Instant::now();
            let event = core::iter::repeat_with(|| channel.try_get_event())
                .take_while(|_| start.elapsed() < PATIENCE)
                .find_map(|event| event);
            event.expect("an event").ack_events(1);
            far.cq.req_notify(false);
            let mut wcs = [Completion::default(); 1];
            assert_eq!([far.cq.poll(&mut wcs), far.cq.poll(&mut wcs)], [Ok(1), Ok(0)]);
        }
    }

    fn sent(&self) -> (u64, u64) {
        let stats = self.two.b.port_stats();
        (stats.packets_sent - self.before.0, stats.batches_sent - self.before.1)
    }

    fn check_heard(&self) {
        self.connections.iter().for_each(|connection| _ = connection.near.good());
    }
}

#[test]
fn acknowledgements_of_several_leave_with_the_answers() {
    let asked = Asked::new([3, 4]);
    for Connection { far, .. } in &asked.connections {
        far.qp.post_send(&SendWr::new(2, SendOp::Send, &[far.mr.sge(64, 64)])).unwrap();
    }
    // One behind each answer. But those whose time is up by then leave together behind the first.
    let (count, (packets, batches)) = (Asked::COUNT as u64, asked.sent());
    assert!(packets == 2 * count && batches <= count + 1, "{packets} packets in {batches} batches");
    asked.check_heard();
    asked.check_heard();
}

#[test]
fn a_program_that_does_not_answer_is_called_for_the_acknowledgements() {
    let asked = Asked::new([5, 6]);
    let first = &asked.connections[0];
    assert!(readable(&first.channel), "it is to come by");
    assert!(first.channel.try_get_event().is_none());
    assert_eq!(asked.sent(), (Asked::COUNT as u64, 1), "all by one system call");
    asked.check_heard();
    assert!(!readable(&first.channel), "there is nothing to do any more");
}

/// It asks once each time that the channel is readable, and takes a failure for fatal, as in the example of ibv_get_cq_event(3).
#[test]
fn who_asks_only_when_called_is_given_an_event() {
    let open = |n| ContextOptions::new().alone().open_address(loopback(n)).unwrap();
    let two = Two::of("udp4", open(7), open(8));
    let Connection { near, far, channel } = Connection::new((&two.a, &two.b));
    let remote = Remote { addr: far.mr.addr(), rkey: far.mr.rkey() };
    // Whether a completion came with the event.
    let event = || {
        let event = channel.try_get_event().expect("an event of a channel that is readable");
        event.ack_events(1);
        event.req_notify(false);
        event.poll(&mut [Completion::default()]).unwrap() == 1
    };
    far.cq.req_notify(false);
    let (start, mut extra) = (Instant::now(), 0);
    while extra < 2 * OFTEN {
        assert!(start.elapsed() < PATIENCE, "{extra} extra events: packets hardly ever woke the program");
        far.qp.post_recv(&RecvWr { wr_id: 1, sges: &[far.mr.sge(0, 64)] }).unwrap();
        near.qp.post_send(&SendWr::new(1, SendOp::Send, &[near.mr.sge(0, 64)])).unwrap();
        while !(readable(&channel) && event()) {
            assert!(start.elapsed() < PATIENCE, "no event of a message");
        }
        near.good();
        near.qp.post_send(&SendWr::new(1, SendOp::Write(remote), &[near.mr.sge(0, 64)])).unwrap();
        if readable(&channel) {
            assert!(!event());
            extra += 1;
        }
        near.good();
    }
}

/// The same program begins to ask until there is no event.
#[test]
fn extra_events_end() {
    let open = |n| ContextOptions::new().alone().open_address(loopback(n)).unwrap();
    let two = Two::of("udp4", open(9), open(10));
    let Connection { near, far, channel } = Connection::new((&two.a, &two.b));
    far.cq.req_notify(false);
    for _ in 0..2 * OFTEN {
        far.qp.post_recv(&RecvWr { wr_id: 1, sges: &[far.mr.sge(0, 64)] }).unwrap();
        near.qp.post_send(&SendWr::new(1, SendOp::Send, &[near.mr.sge(0, 64)])).unwrap();
        let start = Instant::now();
        while far.cq.poll(&mut [Completion::default()]).unwrap() == 0 {
            while !readable(&channel) {
                assert!(start.elapsed() < PATIENCE, "no event");
            }
            channel.try_get_event().expect("an event").ack_events(1);
            far.cq.req_notify(false);
        }
        near.good();
    }
    let start = Instant::now();
    while let Some(event) = channel.try_get_event() {
        assert!(start.elapsed() < PATIENCE, "an extra event each time");
        event.ack_events(1);
        event.req_notify(false);
    }
}
