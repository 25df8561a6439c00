use super::*;
use crate::{
    ContextOptions, Cq, Qp, QpInit,
    net::{InprocNet, Link, Transmit},
    wait_readable,
};
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use rxe_core::{
    endpoint::Streams,
    num::{Psn, Qkey},
    qp::{QpCaps, QpChange, QpState},
    work::{CqId, PdId, SendOp, SendWr, SrqId, UdDest},
};
use std::{os::fd::AsFd, sync::Barrier};

#[test]
fn the_send_window_follows_the_own_buffer() {
    let usual = EndpointConfig::default().send_window;
    for (recv_buffer, most) in
        [(0, usual.1), (2 * 212_992, usual.1), (1 << 20, 256 << 10), (8 << 20, SEND_WINDOW_MOST)]
    {
        assert_eq!(send_window(recv_buffer), (usual.0, most), "{recv_buffer}");
    }
}

/// Gives so many shards.
#[derive(Debug)]
struct Few(InprocNet, u8);

impl Few {
    fn supply(&self, slot: u8) -> Supply {
        let link = self.0.attach(&[[10, 0, 0, slot + 1].into()], 1).unwrap();
        Supply { link: Box::new(link), slot, mailbox: None, connect: None }
    }
}

impl Source for Few {
    fn next(&mut self, index: u8) -> Option<Supply> {
        (index < self.1).then(|| self.supply(index))
    }
}

fn stack(threads: Threads, has: u8) -> Arc<Stack> {
    let source = Few(InprocNet::new(), has);
    let config = StackConfig { threads: Some(threads), ..StackConfig::default() };
    Stack::new(source.supply(0), config, Some(Box::new(source))).unwrap()
}

/// Puts a queue pair on a shard; which that was, and how many there are now.
fn put(stack: &Stack, qp_type: QpType, srq: Option<SrqId>) -> (usize, usize) {
    let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    let cq = CqId(0);
    let config =
        QpConfig { qp_type, pd: PdId(0), send_cq: cq, recv_cq: cq, srq, xrcd: None, caps, signal_all: false };
    let shard = stack.shard_for(&config).unwrap();
    let index = stack.shards().position(|other| Arc::ptr_eq(shard, other));
    (index.unwrap(), stack.shards().count())
}

#[test]
fn shards_know_what_the_others_send_to_the_same_sockets() {
    let stack_of = |threads| {
        let stack = stack(Threads::wished(threads), threads);
        (0..threads).for_each(|_| _ = put(&stack, QpType::Rc, None));
        let streams =
            |shard: &Arc<Shard>| shard.look(|state| state.endpoint.config().streams.clone()).unwrap();
        stack.shards().map(streams).collect::<Vec<_>>()
    };
    let to = |streams: &dyn Streams| streams.to([10, 0, 0, 9].into(), 3);
    let several: Vec<_> = stack_of(3).into_iter().flatten().collect();
    let first = to(&*several[0].0);
    assert!(several.iter().all(|(streams, _)| Arc::ptr_eq(&to(&**streams), &first)));
    assert_eq!(several.iter().map(|(_, index)| *index).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(stack_of(1)[0].is_none(), "there are no others");
}

#[test]
fn shards_are_made_when_queue_pairs_are_put_there() {
    let stack = stack(Threads::wished(3), 3);
    assert_eq!(put(&stack, QpType::Ud, None), (0, 1));
    let placed = [QpType::Rc, QpType::Uc, QpType::Rc, QpType::Rc].map(|qp_type| put(&stack, qp_type, None));
    assert_eq!(placed, [(0, 1), (1, 2), (2, 3), (0, 3)]);
    for qp_type in [QpType::Ud, QpType::Gsi, QpType::XrcInitiator, QpType::XrcTarget] {
        assert_eq!(put(&stack, qp_type, None), (0, 3), "{qp_type:?}");
    }
    assert_eq!(put(&stack, QpType::Rc, Some(SrqId(0))), (0, 3));
    assert_eq!(put(&stack, QpType::Rc, None), (1, 3));
}

#[test]
fn fewer_shards_than_wanted_will_do() {
    let stack = stack(Threads::wished(16), 2);
    let placed: Vec<_> = (0..6).map(|_| put(&stack, QpType::Rc, None)).collect();
    assert_eq!(placed, [(0, 1), (1, 2), (0, 2), (1, 2), (0, 2), (1, 2)]);
    assert_eq!(self::stack(Threads::wished(1), 9).places.len(), 1);
}

#[test]
fn a_processor_is_offered_only_after_many_empty_turns() {
    let net = InprocNet::new();
    let own = [10, 0, 0, 1].into();
    let context = ContextOptions::new().open_inproc(&net, &[own]).unwrap();
    let src = [10, 0, 0, 2].into();
    let mut stranger = net.attach(&[src], 1).unwrap();
    let stack = &context.0.stack;
    let gives_way = || stack.give_way(ShardSet::ALL);
    for _ in 0..2 {
        for _ in 1..IDLE_TURNS {
            stack.progress(ShardSet::ALL, true);
            assert!(!gives_way());
        }
        stack.progress(ShardSet::ALL, true);
        assert!(gives_way());
        let source_port = stranger.capabilities().source_ports[0];
        let to = Transmit {
            src,
            dst: own,
            ifindex: 0,
            source_port,
            tos: 0,
            hop_limit: 64,
            encapsulation: Encapsulation::V2,
            segment_size: 20,
        };
        stranger.send(&to, &[0; 20]).unwrap();
        stack.progress(ShardSet::ALL, true);
        assert!(!gives_way(), "something arrived");
    }
}

/// A datagram queue pair that can send, and its completion queue.
fn datagrams() -> (Qp, Cq) {
    let context = ContextOptions::new().open_inproc(&InprocNet::new(), &[[10, 0, 0, 1].into()]).unwrap();
    let cq = context.create_cq(1, None).unwrap();
    let qp = context.alloc_pd().unwrap().create_qp(&QpInit::new(QpType::Ud, &cq)).unwrap();
    let change = QpChange::default();
    let init = QpChange {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        qkey: Some(Qkey(1)),
        ..change
    };
    let rts = QpChange { state: Some(QpState::Rts), sq_psn: Some(Psn::new(0)), ..change };
    for change in [init, QpChange { state: Some(QpState::Rtr), ..change }, rts] {
        qp.modify(&change).unwrap();
    }
    (qp, cq)
}

/// A message of such a queue pair to itself, which has posted no receive.
fn to_itself(qp: &Qp) -> SendWr<'static> {
    let context = qp.context();
    let av = context.address_vector(0, context.gids().iter().next().unwrap().1).unwrap();
    let dest = Some(UdDest { av, remote_qpn: qp.qpn(), remote_qkey: Qkey(1), pkey: None });
    SendWr { dest, ..SendWr::new(0, SendOp::Send, &[]) }
}

/// Whether messages wait decides how long the background thread sleeps, and whether the program is called. So no turn may leave it wrong.
#[test]
fn after_a_turn_no_messages_wait() {
    let (qp, _cq) = datagrams();
    // Nothing answers, so the last messages of a row wait.
    let message = to_itself(&qp);
    let stack = &qp.context().0.stack;
    let polls = || {
        stack.progress(ShardSet::ALL, true);
    };
    let acts = || stack.shards().for_each(|shard| shard.act(Acks::Wait, |_, _| ()).unwrap());
    let turns: [&dyn Fn(); 2] = [&polls, &acts];
    for turn in turns {
        let waits = |()| {
            qp.post_send(&message).unwrap();
            stack.holds(ShardSet::ALL)
        };
        assert!(core::iter::repeat_n((), 1_000_000).any(waits), "a thread that posts in a row");
        turn();
        assert!(!stack.holds(ShardSet::ALL));
    }
}

/// A program may wait for edges, or by level. So its call must look at the sockets: if it only left the descriptor readable, it would be
/// made again and again while another thread has the lock.
#[test]
fn a_call_for_arrivals_waits_for_the_lock() {
    let context = ContextOptions::new().open_inproc(&InprocNet::new(), &[[10, 0, 0, 1].into()]).unwrap();
    let channel = context.create_comp_channel().unwrap();
    let asks = || assert!(channel.try_get_event().is_none());
    let readable = || wait_readable(channel.as_fd(), Some(Duration::ZERO)).unwrap();
    let (locked, asked, free) = (Barrier::new(2), AtomicBool::new(false), AtomicBool::new(false));
    (0..100).for_each(|_| asks());
    assert!(context.0.stack.lookout.is_there() && !readable());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let hold = |_: &mut _| {
                locked.wait();
                // The call has a moment to come back too early.
                let since = std::time::Instant::now();
                while !asked.load(SeqCst) && since.elapsed() < Duration::from_millis(50) {
                    std::thread::yield_now();
                }
                free.store(true, SeqCst);
            };
            context.0.stack.shards().for_each(|shard| shard.look(hold).unwrap());
        });
        locked.wait();
        asks();
        asked.store(true, SeqCst);
        assert!(free.load(SeqCst), "it came back without a look");
    });
    assert!(!readable(), "it has looked");
}

/// A handler of a signal may call exit(3) in the middle of a poll.
#[test]
fn an_exit_in_the_middle_of_a_poll_ends() {
    let (qp, cq) = datagrams();
    let stack = &qp.context().0.stack;
    let message = to_itself(&qp);
    stack.shard().look(|state| state.endpoint.post_send(clock::now(), qp.qpn(), &message)).unwrap().unwrap();
    cq.ring().interrupted(|| stack.leave());
    assert!(cq.poll_within(Duration::from_secs(20)).unwrap().is_some(), "it has left");
}
