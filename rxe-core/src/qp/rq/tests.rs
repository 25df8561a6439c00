use super::*;
use crate::{
    num::Key,
    qp::{
        QpType,
        fake::{PD, World},
        sges::{scatter, total},
    },
    work::{Access, Sge},
};
use alloc::{vec, vec::Vec};

fn queue() -> RecvQueue {
    RecvQueue::new(2, 3)
}

fn sge(addr: u64, len: u32) -> Sge {
    Sge { addr, len, lkey: Key(0x100) }
}

#[test]
fn posting_keeps_to_the_limits() {
    let mut queue = queue();
    let too_many = [sge(0, 1); 4];
    assert_eq!(queue.post(&RecvWr { wr_id: 0, sges: &too_many }), Err(PostError::Elements(4, 3)));
    assert_eq!(queue.post(&RecvWr { wr_id: 1, sges: &too_many[..3] }), Ok(()));
    assert_eq!(queue.post(&RecvWr { wr_id: 2, sges: &[] }), Ok(()));
    assert_eq!(queue.post(&RecvWr { wr_id: 3, sges: &[] }), Err(PostError::Full(2)));
    let posted: Vec<_> = queue.queue.iter().map(|wqe| (wqe.wr_id, total(&wqe.sges))).collect();
    assert_eq!(posted, [(1, 3), (2, 0)]);
}

#[test]
fn capacity_does_not_overflow() {
    let wqe = RecvWqe { wr_id: 0, sges: [sge(0, u32::MAX); 32].into_iter().collect() };
    assert_eq!(total(&wqe.sges), 32 * u64::from(u32::MAX));
}

/// Every offset and length of a placement across elements (one of them empty) against a plain copy.
#[test]
fn placement_crosses_elements_in_order() {
    let sges = [sge(10, 3), sge(50, 0), sge(30, 4), sge(20, 1)];
    let where_to = [10, 11, 12, 30, 31, 32, 33, 20_usize];
    let data: Vec<u8> = (1..=8).collect();
    for offset in 0..=8 {
        for len in 0..=8 - offset {
            let world = World::new(QpType::Rc);
            world.memory.add(0x100, 0, 64, Access::LOCAL_WRITE);
            let wqe = RecvWqe { wr_id: 0, sges: sges.into_iter().collect() };
            let asker = world.qp.asker();
            scatter(&wqe.sges, &world.memory, asker, offset as u64, &data[..len]).unwrap();
            let mut expected = vec![0; 64];
            for k in 0..len {
                expected[where_to[offset + k]] = data[k];
            }
            assert_eq!(world.memory.bytes(0x100), expected, "{len} bytes at {offset}");
            let order: Vec<u64> = world.memory.writes.borrow().iter().map(|write| write.1).collect();
            let rank = |addr: &u64| where_to.iter().position(|place| *place as u64 == *addr);
            assert!(order.is_sorted_by_key(rank), "{order:?}");
        }
    }
}

#[test]
fn placement_stops_at_the_end_and_at_the_first_error() {
    let world = World::new(QpType::Rc);
    world.memory.add(0x100, 0, 8, Access::LOCAL_WRITE);
    let asker = world.qp.asker();
    let wqe = RecvWqe { wr_id: 0, sges: [sge(0, 4)].into_iter().collect() };
    scatter(&wqe.sges, &world.memory, asker, 2, &[1; 3]).unwrap();
    scatter(&wqe.sges, &world.memory, asker, 9, &[1]).unwrap();
    assert_eq!(world.memory.bytes(0x100), [0, 0, 1, 1, 0, 0, 0, 0]);
    let outside = RecvWqe { wr_id: 0, sges: [sge(100, 4), sge(0, 4)].into_iter().collect() };
    assert!(scatter(&outside.sges, &world.memory, asker, 0, &[9; 8]).is_err());
    assert!(!world.memory.bytes(0x100).contains(&9));
}

#[test]
fn a_shared_queue_uses_its_own_domain() {
    let mut world = World::new(QpType::Rc);
    assert_eq!(world.with(|qp, ctx| receive_asker(qp, ctx)).pd, PD);
    world.share(PdId(99), 0);
    assert_eq!(world.with(|qp, ctx| receive_asker(qp, ctx)).pd, PdId(99));
}
