//! Synchronous ids, each with a channel of its own: both sides are in calls that block.

mod api_common;

use api_common::{Host, PATIENCE, PORT, pair};
use rxe_cm::{CmError, CmId, ConnParams, EventKind, proto::PortSpace};
use rxe_verbs::{Access, Key, Remote, SendOp, SendWr, WcStatus};
use std::{thread, time::Duration};

fn waiting(host: &Host) -> CmId {
    host.manager.create_sync_id(PortSpace::Tcp).unwrap()
}

fn listens(host: &Host) -> CmId {
    let id = waiting(host);
    id.bind(host.at(PORT)).unwrap();
    id.listen(0).unwrap();
    id
}

fn resolved(from: &Host, to: &Host) -> CmId {
    let id = waiting(from);
    id.resolve(None, to.at(PORT)).unwrap();
    id
}

/// The whole life of a connection, with an atomic to memory that its owner addresses from 0x10000 on.
#[test]
fn both_sides_wait() {
    let (a, b) = pair();
    let listener = listens(&b);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (id, request) = listener.get_request(Some(PATIENCE)).unwrap();
            assert!(matches!(request.kind, EventKind::ConnectRequest(_)));
            b.qp(&id);
            let rights = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
            let counter = b.pd.alloc_mr_iova(64, 0x10000, rights).unwrap();
            counter.write_at(8, &7u64.to_ne_bytes()).unwrap();
            let key = counter.rkey().0.to_be_bytes();
            id.accept_wait(&ConnParams { private_data: &key, ..ConnParams::default() }, Some(PATIENCE))
                .unwrap();
            let ended = id.next_event(Some(PATIENCE)).unwrap();
            assert!(matches!(ended.kind, EventKind::Disconnected { .. }), "{ended:?}");
            assert_eq!(counter.compare_swap_u64(8, 9, 20).unwrap(), 12, "the peer added 5");
            assert_eq!(counter.compare_swap_u64(8, 12, 20).unwrap(), 12);
            assert_eq!(counter.read_vec(8, 8).unwrap(), 20u64.to_ne_bytes());
            id.disconnect().unwrap();
        });
        let id = resolved(&a, &b);
        let qp = a.qp(&id);
        let event = id.connect_wait(&ConnParams::default(), Some(PATIENCE)).unwrap();
        let key = event.private_data[..4].try_into().unwrap();
        let remote = Remote { addr: 0x10008, rkey: Key(u32::from_be_bytes(key)) };
        let add = SendOp::FetchAdd { remote, add: 5 };
        qp.post_send(&SendWr::new(3, add, &[a.memory.sge(0, 8)])).unwrap();
        let done = a.completion();
        assert_eq!((done.wr_id, done.status), (3, WcStatus::Success));
        assert_eq!(a.memory.read_vec(0, 8).unwrap(), 7u64.to_ne_bytes());
        id.disconnect_wait(Some(PATIENCE)).unwrap();
    });
}

/// A refusal is an error of the call that waits, and no call waits longer than its timeout.
#[test]
fn refusals_and_silence_are_errors() {
    let (a, b) = pair();
    let listener = listens(&b);
    assert!(listener.get_request(Some(Duration::from_millis(20))).is_err(), "nobody asks");
    thread::scope(|scope| {
        scope.spawn(|| listener.get_request(Some(PATIENCE)).unwrap().0.reject(b"no").unwrap());
        let id = resolved(&a, &b);
        a.qp(&id);
        let refused = id.connect_wait(&ConnParams::default(), Some(PATIENCE)).unwrap_err();
        assert!(matches!(refused, CmError::Failed { errno: libc::ECONNREFUSED, .. }), "{refused:?}");
    });
    // An id without a channel of its own cannot wait.
    let other = a.id(PortSpace::Tcp);
    assert!(matches!(other.get_request(None), Err(CmError::State { .. })));
}
