//! Memory windows from bind to invalidate, as the peer sees them.

use crate::bench::Bench;
use rxe_core::{
    num::Key,
    qp::QpState,
    region::WindowType,
    testing::connect::PD,
    work::{Access, BindWindow, Payload, Remote, SendFlags, SendOp, SendWr, WcExtra, WcOpcode, WcStatus},
};

const RIGHTS: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);

/// Side 1 binds a new window on bytes 1000..2000 of its buffer; gives its key.
fn bind(bench: &mut Bench, kind: WindowType, access: Access) -> Key {
    let window = bench.pair.sides[1].heap.alloc_window(PD, kind);
    let request = BindWindow {
        window,
        new_rkey: window.with_tag(0x5a),
        region: bench.key(1),
        addr: bench.addr(1, 1000),
        len: 1000,
        access,
    };
    post(bench, 1, 40, SendOp::BindWindow(request));
    bench.pair.run_until_idle();
    let sent = bench.sent(1);
    assert_eq!((sent[0].status, sent[0].opcode), (WcStatus::Success, WcOpcode::BindWindow));
    request.new_rkey
}

fn post(bench: &mut Bench, side: usize, wr_id: u64, op: SendOp) {
    let wr = SendWr { payload: Payload::Sges(&[]), ..SendWr::new(wr_id, op, &[]) };
    let qpn = bench.qpn(side);
    bench.pair.post_send(side, qpn, &wr).expect("posted");
}

fn write(bench: &mut Bench, key: Key, offset: u64, len: u32) -> WcStatus {
    let remote = Remote { addr: bench.addr(1, offset), rkey: key };
    bench.send(0, 1, SendOp::Write(remote), 0, len);
    bench.pair.run_until_idle();
    bench.sent(0)[0].status
}

#[test]
fn both_types_grant_their_bytes_only() {
    for kind in [WindowType::One, WindowType::Two] {
        for (offset, len, expected) in [
            (1000, 1000, WcStatus::Success),
            (1999, 1, WcStatus::Success),
            (999, 1, WcStatus::RemoteAccess),
            (1999, 2, WcStatus::RemoteAccess),
            (2000, 1, WcStatus::RemoteAccess),
        ] {
            let mut bench = Bench::new("window");
            let key = bind(&mut bench, kind, RIGHTS);
            let data = bench.fill(0, 0, len, 1);
            assert_eq!(write(&mut bench, key, offset, len as u32), expected, "{kind:?} {offset}+{len}");
            let found = bench.bytes(1, offset, len);
            assert_eq!(found == data, expected == WcStatus::Success);
        }
    }
}

#[test]
fn rights_and_old_keys() {
    let mut bench = Bench::new("window-rights");
    let key = bind(&mut bench, WindowType::Two, Access::REMOTE_READ);
    assert_eq!(write(&mut bench, key, 1000, 1), WcStatus::RemoteAccess);
    let mut bench = Bench::new("window-old-key");
    let key = bind(&mut bench, WindowType::Two, RIGHTS);
    assert_eq!(write(&mut bench, key.rotated(), 1000, 1), WcStatus::RemoteAccess);
}

/// A type 2 window is for the queue pair it was bound on.
#[test]
fn type_two_is_for_its_queue_pair() {
    let mut bench = Bench::new("window-other-qp");
    let key = bind(&mut bench, WindowType::Two, RIGHTS);
    let options = bench.options;
    bench.connection = bench.pair.connect(&options);
    assert_eq!(write(&mut bench, key, 1000, 1), WcStatus::RemoteAccess);
    let mut bench = Bench::new("window-other-qp");
    let key = bind(&mut bench, WindowType::One, RIGHTS);
    bench.connection = bench.pair.connect(&options);
    assert_eq!(write(&mut bench, key, 1000, 1), WcStatus::Success);
}

#[test]
fn invalidated_by_its_owner() {
    let mut bench = Bench::new("window-local-invalidate");
    let key = bind(&mut bench, WindowType::Two, RIGHTS);
    assert_eq!(write(&mut bench, key, 1000, 10), WcStatus::Success);
    post(&mut bench, 1, 41, SendOp::LocalInvalidate(key));
    bench.pair.run_until_idle();
    let sent = bench.sent(1);
    assert_eq!((sent[0].status, sent[0].opcode), (WcStatus::Success, WcOpcode::LocalInvalidate));
    assert_eq!(write(&mut bench, key, 1000, 10), WcStatus::RemoteAccess);
}

/// SEND with invalidate: the receiver is told which key is dead, and it is.
#[test]
fn invalidated_by_the_peer() {
    let mut bench = Bench::new("window-remote-invalidate");
    let key = bind(&mut bench, WindowType::Two, RIGHTS);
    bench.recv(1, 9, 5000, 3000);
    let data = bench.fill(0, 0, 3000, 4);
    bench.send(0, 1, SendOp::SendInvalidate(key), 0, 3000);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
    let received = bench.received(1);
    assert_eq!((received[0].status, received[0].extra), (WcStatus::Success, WcExtra::Invalidated(key)));
    assert_eq!(bench.bytes(1, 5000, 3000), data);
    assert_eq!(write(&mut bench, key, 1000, 10), WcStatus::RemoteAccess);
}

/// Registered memory cannot be invalidated from afar.
#[test]
fn a_region_is_not_invalidated_by_the_peer() {
    let mut bench = Bench::new("region-remote-invalidate");
    bench.recv(1, 9, 5000, 100);
    bench.send(0, 1, SendOp::SendInvalidate(bench.key(1)), 0, 10);
    bench.pair.run_until_idle();
    // As with kernel rxe: it was sent, and it is the receiver's side that ends.
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
    assert_eq!(bench.received_statuses(1), [(9, WcStatus::RemoteInvalidRequest)]);
    assert_eq!(bench.state(1), QpState::Error);
    assert!(bench.pair.sides[1].heap.region(bench.key(1)).is_some());
}

/// A bind that breaks a rule fails alone on its own side, and the queue pair with it.
#[test]
fn a_wrong_bind() {
    let mut bench = Bench::new("window-wrong-bind");
    let window = bench.pair.sides[1].heap.alloc_window(PD, WindowType::Two);
    let request = BindWindow {
        window,
        new_rkey: window.rotated(),
        region: bench.key(1),
        addr: bench.addr(1, crate::bench::BUFFER - 10),
        len: 11,
        access: RIGHTS,
    };
    post(&mut bench, 1, 40, SendOp::BindWindow(request));
    bench.send_with(1, 41, SendOp::Send, 0, 0, SendFlags::empty());
    bench.pair.run_until_idle();
    let expected = [(40, WcStatus::MemoryWindowBind), (41, WcStatus::WorkRequestFlushed)];
    assert_eq!(bench.sent_statuses(1), expected);
    assert_eq!((bench.state(0), bench.state(1)), (QpState::Rts, QpState::Error));
}

/// A window bound in the same queue right before a SEND that tells the peer of it is ready when the SEND arrives.
#[test]
fn bound_before_what_was_posted_after_it() {
    let mut bench = Bench::new("window-order");
    let window = bench.pair.sides[1].heap.alloc_window(PD, WindowType::Two);
    let request = BindWindow {
        window,
        new_rkey: window.rotated(),
        region: bench.key(1),
        addr: bench.addr(1, 0),
        len: 100,
        access: RIGHTS,
    };
    bench.recv(0, 3, 0, 10);
    post(&mut bench, 1, 40, SendOp::BindWindow(request));
    bench.send(1, 41, SendOp::Send, 0, 10);
    let now = bench.pair.now;
    while bench.pair.completions_waiting(0) == 0 {
        assert!(bench.pair.step(now + std::time::Duration::from_secs(1)), "the SEND arrives");
    }
    bench.received(0);
    assert_eq!(write(&mut bench, request.new_rkey, 0, 100), WcStatus::Success);
}

/// A local invalidate waits until everything before it in its queue is answered.
#[test]
fn a_local_invalidate_waits() {
    let mut bench = Bench::new("window-invalidate-waits");
    let key = bind(&mut bench, WindowType::Two, RIGHTS);
    let is_bound = |bench: &Bench| {
        bench.pair.sides[1].heap.region(key).is_some_and(|region| region.bound_to().is_some())
    };
    bench.cut(1);
    bench.send(1, 41, SendOp::Write(bench.remote(0, 0)), 0, 10);
    post(&mut bench, 1, 42, SendOp::LocalInvalidate(key));
    bench.pair.run_for(std::time::Duration::from_millis(5));
    assert!(is_bound(&bench), "the WRITE before it is not answered");
    bench.mend(1);
    bench.pair.run_until_idle();
    assert!(!is_bound(&bench));
    assert_eq!(bench.sent_statuses(1), [(41, WcStatus::Success), (42, WcStatus::Success)]);
}
