//! The descriptor by which arrivals wake a program that has many channels: that of one it asks, and not of one it has left.

mod verbs_common;

use rxe_verbs::{CompChannel, Context, ContextOptions, Mtu, QpInit, QpType, Remote, SendOp, SendWr};
use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};
use verbs_common::{End, PATIENCE, Two, connect, loopback};

/// Descriptors of one stack that can have the sockets behind them, at one time.
const CANDIDATES: usize = 16;
/// So often at least a thread asks before it is believed.
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

/// As valkey: it gives up a connection's channel before the queue pair that uses it, and so does not get rid of it.
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
