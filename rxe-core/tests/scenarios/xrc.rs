//! The extended service (IBTA vol. 1, A14): a target that draws from whichever shared receive queue of its domain a request
//! names, and what it refuses.

use crate::bench::statuses;
use rxe_core::{
    endpoint::ObjectError,
    num::{Key, Qpn},
    qp::{PostError, QpState, QpType},
    testing::{
        ConnectOptions, Pair, PairConfig, Rng,
        connect::{PD, RECV_CQ, REGION_ALL, SEND_CQ},
        link::{Faults, LinkConfig, Verdict},
    },
    work::{AsyncEvent, CqId, PdId, RecvWr, Remote, SendOp, SendWr, Sge, SrqId, WcExtra, WcStatus, XrcdId},
};

const DOMAIN: XrcdId = XrcdId(7);
const BUFFER: u64 = 64 * 1024;
/// Domain of the second shared receive queue, and where it completes.
const OTHER: (PdId, CqId) = (PdId(2), CqId(9));

/// An initiator on side 0, a target on side 1, and two shared receive queues there that differ in everything.
struct Xrc {
    pair: Pair,
    initiator: Qpn,
    target: Qpn,
    queues: [(SrqId, u32); 2],
    /// A buffer on side 0, and on side 1 one for each queue, in its protection domain.
    buffers: [(u64, Key); 3],
}

fn options(qp_type: QpType) -> ConnectOptions {
    let xrcd = (qp_type == QpType::XrcTarget).then_some(DOMAIN);
    // A protection domain that nobody else has: a target has none.
    ConnectOptions { qp_type, xrcd, pd: [PD, PdId(99)], ..ConnectOptions::default() }
}

impl Xrc {
    fn new(name: &'static str, loss: u16) -> Self {
        let faults = Faults { loss, ..Faults::default() };
        let link = LinkConfig { faults, ..LinkConfig::default() };
        let mut pair = Pair::new(PairConfig { name, links: [link; 2], ..PairConfig::default() });
        let endpoint = &mut pair.sides[1].endpoint;
        let queues = [(PD, RECV_CQ), OTHER].map(|(pd, cq)| {
            endpoint.create_xrc_srq(pd, (DOMAIN, cq), 64, 4).expect("a shared receive queue")
        });
        let (ours, theirs) = (options(QpType::XrcInitiator), options(QpType::XrcTarget));
        let (initiator, target) = (pair.create_qp(0, &ours), pair.create_qp(1, &theirs));
        pair.bring_up(0, initiator, target, &ours, QpState::Rts);
        pair.bring_up(1, target, initiator, &theirs, QpState::Rts);
        let buffers = [(0, PD), (1, PD), (1, OTHER.0)]
            .map(|(side, pd): (usize, PdId)| pair.sides[side].heap.alloc_registered(pd, BUFFER, REGION_ALL));
        Self { pair, initiator, target, queues, buffers }
    }

    fn send(&mut self, wr_id: u64, op: SendOp, number: u32, len: u32) {
        let (addr, lkey) = self.buffers[0];
        let sges = [Sge { addr, len, lkey }];
        let wr = SendWr { xrc_srq: number, ..SendWr::new(wr_id, op, &sges) };
        self.pair.post_send(0, self.initiator, &wr).expect("posted");
    }

    fn recv(&mut self, which: usize, wr_id: u64, offset: u64, len: u32) {
        let (addr, lkey) = self.buffers[1 + which];
        let sges = [Sge { addr: addr + offset, len, lkey }];
        self.pair.post_srq_recv(1, self.queues[which].0, &RecvWr { wr_id, sges: &sges }).expect("posted");
    }

    fn fill(&self, buffer: usize, len: usize, seed: u64) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Rng::new(seed).fill(&mut bytes);
        self.pair.sides[buffer.min(1)].heap.set(self.buffers[buffer].0, &bytes);
        bytes
    }

    fn bytes(&self, buffer: usize, offset: u64, len: u64) -> Vec<u8> {
        self.pair.sides[buffer.min(1)].heap.get(self.buffers[buffer].0 + offset, len)
    }

    fn remote(&self, which: usize) -> Remote {
        Remote { addr: self.buffers[1 + which].0, rkey: self.buffers[1 + which].1 }
    }

    /// The initiator's request fails with `status`, the target is in error and says why by `event`.
    fn refused(&mut self, status: WcStatus, event: fn(Qpn) -> AsyncEvent) {
        self.pair.run_until_idle();
        assert_eq!(statuses(&self.pair.take_completions(0, SEND_CQ)), [(1, status)]);
        assert_eq!(Vec::from(self.pair.sides[1].async_events.clone()), [event(self.target)]);
        assert_eq!(self.pair.sides[1].endpoint.query_qp(self.target).expect("there").0.state, QpState::Error);
    }
}

#[test]
fn each_message_goes_to_the_queue_it_names() {
    for loss in [0, 100] {
        let mut xrc = Xrc::new("xrc-send", loss);
        for round in 0..40_u64 {
            let which = (round % 3 == 1) as usize;
            let (len, number) = (1 + 701 * (round as u32 % 9), xrc.queues[which].1);
            xrc.recv(which, round, 512, 8192);
            let data = xrc.fill(0, len as usize, round);
            xrc.send(round, SendOp::SendImm([1, 2, 3, round as u8]), number, len);
            xrc.pair.run_until_idle();
            assert_eq!(statuses(&xrc.pair.take_completions(0, SEND_CQ)), [(round, WcStatus::Success)]);
            let received = xrc.pair.take_completions(1, [RECV_CQ, OTHER.1][which]);
            assert_eq!(statuses(&received), [(round, WcStatus::Success)]);
            assert_eq!((received[0].byte_len, received[0].qpn), (len, xrc.target));
            assert_eq!(received[0].extra, WcExtra::Immediate([1, 2, 3, round as u8]));
            assert_eq!(xrc.bytes(1 + which, 512, len.into()), data);
        }
    }
}

#[test]
fn reads_writes_and_atomics_use_the_domain_of_the_queue() {
    for loss in [0, 100] {
        let mut xrc = Xrc::new("xrc-rdma", loss);
        for round in 0..40_u64 {
            let which = (round % 2) as usize;
            let (remote, number) = (xrc.remote(which), xrc.queues[which].1);
            let data = xrc.fill(0, 5000, round);
            xrc.send(0, SendOp::Write(remote), number, 5000);
            xrc.pair.run_until_idle();
            assert_eq!(xrc.bytes(1 + which, 0, 5000), data);
            let data = xrc.fill(1 + which, 7000, round + 1000);
            xrc.send(1, SendOp::Read(remote), number, 7000);
            xrc.pair.run_until_idle();
            assert_eq!(xrc.bytes(0, 0, 7000), data);
            xrc.send(2, SendOp::FetchAdd { remote, add: 5 }, number, 8);
            xrc.pair.run_until_idle();
            assert_eq!(xrc.bytes(0, 0, 8), data[..8]);
            let before = u64::from_ne_bytes(data[..8].try_into().expect("eight"));
            assert_eq!(xrc.bytes(1 + which, 0, 8), before.wrapping_add(5).to_ne_bytes());
            xrc.recv(which, round, 9000, 16);
            xrc.send(3, SendOp::WriteImm(remote, [9; 4]), number, 2500);
            xrc.pair.run_until_idle();
            let received = xrc.pair.take_completions(1, [RECV_CQ, OTHER.1][which]);
            assert_eq!((received[0].wr_id, received[0].extra), (round, WcExtra::Immediate([9; 4])));
            let sent = xrc.pair.take_completions(0, SEND_CQ);
            assert_eq!(statuses(&sent), [0, 1, 2, 3].map(|wr_id| (wr_id, WcStatus::Success)));
        }
    }
}

#[test]
fn a_queue_without_a_receive_is_not_ready_yet() {
    let mut xrc = Xrc::new("xrc-rnr", 0);
    // The other queue has one, which is not for this message.
    xrc.recv(1, 8, 0, 100);
    xrc.send(1, SendOp::Send, xrc.queues[0].1, 100);
    xrc.pair.run_for(std::time::Duration::from_millis(5));
    assert!(xrc.pair.take_completions(0, SEND_CQ).is_empty());
    assert!(xrc.pair.sides[1].endpoint.qp_stats(xrc.target).expect("there").rnr_naks_sent > 0);
    xrc.recv(0, 7, 0, 100);
    xrc.pair.run_until_idle();
    assert_eq!(statuses(&xrc.pair.take_completions(0, SEND_CQ)), [(1, WcStatus::Success)]);
    assert_eq!(statuses(&xrc.pair.take_completions(1, RECV_CQ)), [(7, WcStatus::Success)]);
    assert!(xrc.pair.take_completions(1, OTHER.1).is_empty());
}

#[test]
fn queues_that_are_not_of_the_domain_are_refused() {
    for which in 0..4 {
        let mut xrc = Xrc::new("xrc-stranger", 0);
        let endpoint = &mut xrc.pair.sides[1].endpoint;
        let plain = endpoint.create_srq(PD, 16, 4).expect("made");
        let (_, foreign) = endpoint.create_xrc_srq(PD, (XrcdId(8), RECV_CQ), 16, 4).expect("made");
        let number = [0, plain.0 + 1, foreign, 0x00ff_ffff][which];
        for op in [SendOp::Send, SendOp::Write(xrc.remote(0))] {
            let mut xrc = Xrc::new("xrc-stranger", 0);
            let endpoint = &mut xrc.pair.sides[1].endpoint;
            endpoint.create_srq(PD, 16, 4).expect("made");
            endpoint.create_xrc_srq(PD, (XrcdId(8), RECV_CQ), 16, 4).expect("made");
            xrc.recv(0, 3, 0, 100);
            xrc.send(1, op, number, 100);
            xrc.refused(WcStatus::RemoteInvalidRequest, AsyncEvent::QpRequestError);
            assert!(xrc.pair.take_completions(1, RECV_CQ).is_empty(), "no receive was drawn");
        }
    }
}

#[test]
fn keys_of_another_domain_are_refused() {
    for op in [SendOp::Write, SendOp::Read] {
        let mut xrc = Xrc::new("xrc-key", 0);
        // The second queue's region, by the first queue.
        xrc.send(1, op(xrc.remote(1)), xrc.queues[0].1, 100);
        xrc.refused(WcStatus::RemoteAccess, AsyncEvent::QpAccessError);
    }
}

#[test]
fn a_queue_that_goes_in_the_middle_of_a_message() {
    let mut xrc = Xrc::new("xrc-gone", 0);
    xrc.recv(0, 3, 0, 8192);
    let mut packets = 0;
    xrc.pair.sides[0].link.set_rule(move |_| {
        packets += 1;
        // The first packet of eight comes, the others do not yet.
        if packets == 1 { Verdict::Pass } else { Verdict::Drop }
    });
    xrc.send(1, SendOp::Send, xrc.queues[0].1, 8000);
    xrc.pair.run_for(std::time::Duration::from_millis(1));
    let (srq, number) = xrc.queues[0];
    let endpoint = &mut xrc.pair.sides[1].endpoint;
    endpoint.destroy_srq(srq).expect("a target does not keep it");
    // Another with the same number is not the one that the message began with.
    assert_eq!(endpoint.create_xrc_srq(PD, (DOMAIN, RECV_CQ), 16, 4).expect("made"), (srq, number));
    xrc.recv(0, 4, 0, 8192);
    xrc.pair.sides[0].link.clear_rule();
    xrc.refused(WcStatus::RemoteInvalidRequest, AsyncEvent::QpRequestError);
    assert!(xrc.pair.take_completions(1, RECV_CQ).is_empty());
}

#[test]
fn a_receive_too_short_completes_on_the_queue_of_the_receive() {
    let mut xrc = Xrc::new("xrc-short", 0);
    xrc.recv(1, 3, 0, 100);
    xrc.send(1, SendOp::Send, xrc.queues[1].1, 101);
    xrc.pair.run_until_idle();
    assert_eq!(statuses(&xrc.pair.take_completions(0, SEND_CQ)), [(1, WcStatus::RemoteInvalidRequest)]);
    assert_eq!(statuses(&xrc.pair.take_completions(1, OTHER.1)), [(3, WcStatus::LocalLength)]);
}

#[test]
fn nothing_goes_the_other_way() {
    let mut xrc = Xrc::new("xrc-ways", 0);
    let (addr, lkey) = xrc.buffers[1];
    let sges = [Sge { addr, len: 8, lkey }];
    let posted = xrc.pair.post_send(1, xrc.target, &SendWr::new(1, SendOp::Send, &sges));
    assert_eq!(posted, Err(PostError::Operation));
    for (side, qpn) in [(0, xrc.initiator), (1, xrc.target)] {
        let posted = xrc.pair.post_recv(side, qpn, &RecvWr { wr_id: 1, sges: &[] });
        assert_eq!(posted, Err(PostError::Operation));
    }
    // Two initiators that take each other for targets: neither executes a request.
    let ours = ConnectOptions { timeout: 8, retry_count: 1, ..options(QpType::XrcInitiator) };
    let ends = [xrc.pair.create_qp(0, &ours), xrc.pair.create_qp(1, &ours)];
    for side in 0..2 {
        xrc.pair.bring_up(side, ends[side], ends[1 - side], &ours, QpState::Rts);
    }
    xrc.initiator = ends[0];
    xrc.send(1, SendOp::Write(xrc.remote(0)), xrc.queues[0].1, 8);
    xrc.pair.run_until_idle();
    assert_eq!(statuses(&xrc.pair.take_completions(0, SEND_CQ)), [(1, WcStatus::RetryExceeded)]);
    assert!(xrc.pair.sides[1].endpoint.qp_stats(ends[1]).expect("there").dropped_service > 0);
}

#[test]
fn what_queue_pairs_cannot_be_made_of() {
    let mut pair = Pair::new(PairConfig::default());
    let endpoint = &mut pair.sides[0].endpoint;
    let (srq, _) = endpoint.create_xrc_srq(PD, (DOMAIN, RECV_CQ), 16, 4).expect("made");
    let qpn = pair.create_qp(0, &ConnectOptions::default());
    let (_, config) = pair.sides[0].endpoint.query_qp(qpn).expect("there");
    let endpoint = &mut pair.sides[0].endpoint;
    let mut with =
        |qp_type, xrcd, srq| endpoint.create_qp(rxe_core::qp::QpConfig { qp_type, xrcd, srq, ..config });
    assert_eq!(with(QpType::XrcTarget, None, None), Err(ObjectError::Xrc));
    assert_eq!(with(QpType::XrcTarget, Some(DOMAIN), Some(srq)), Err(ObjectError::Xrc));
    assert_eq!(with(QpType::XrcInitiator, Some(DOMAIN), None), Err(ObjectError::Xrc));
    assert_eq!(with(QpType::Rc, Some(DOMAIN), None), Err(ObjectError::Xrc));
    assert_eq!(with(QpType::Rc, None, Some(srq)), Err(ObjectError::NoSuchObject), "not for this kind");
}
