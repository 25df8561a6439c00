//! CmpSwap, FetchAdd, ATOMIC WRITE and FLUSH: executed once, answered as often as asked.

use super::*;

fn word(rig: &Rig, at: usize) -> u64 {
    u64::from_ne_bytes(rig.world.memory.bytes(REMOTE)[at..at + 8].try_into().unwrap())
}

#[test]
fn fetch_add_happens_once() {
    let mut rig = Rig::new();
    rig.add(100, BASE + 8, 5).unwrap();
    rig.add(101, BASE + 8, u64::MAX).unwrap();
    let said = rig.answers();
    assert_eq!(
        said.iter().map(|said| (said.opcode, said.psn, said.original)).collect::<Vec<_>>(),
        [(0x12, 100, 0), (0x12, 101, 5)]
    );
    assert_eq!(word(&rig, 8), 4);
    for (psn, original) in [(100, 0), (101, 5), (101, 5)] {
        rig.add(psn, BASE + 8, 5).unwrap();
        let said = rig.answer();
        assert_eq!((said.opcode, said.psn, said.original), (0x12, psn, original));
    }
    assert_eq!(word(&rig, 8), 4);
}

#[test]
fn compare_swap_swaps_on_equality_only() {
    let mut rig = Rig::new();
    for (psn, compare, swap, original, after) in [(100, 1, 7, 0, 0), (101, 0, 7, 0, 7), (102, 7, 9, 7, 9)] {
        rig.hear(&packet(0x13, psn, atomic(BASE, swap, compare), &[])).unwrap();
        assert_eq!(rig.answer().original, original);
        assert_eq!(word(&rig, 0), after);
    }
    // A repetition of the second one, which would not match now.
    rig.hear(&packet(0x13, 101, atomic(BASE, 7, 0), &[])).unwrap();
    assert_eq!(rig.answer().original, 0);
    assert_eq!(word(&rig, 0), 9);
}

#[test]
fn a_forgotten_or_different_atomic_is_dropped_never_executed() {
    let mut rig = Rig::new();
    for psn in 100..106 {
        rig.add(psn, BASE, 1).unwrap();
        rig.answers();
    }
    rig.add(100, BASE, 1).unwrap();
    rig.add(99, BASE, 1).unwrap();
    rig.hear(&packet(0x13, 105, atomic(BASE, 7, 6), &[])).unwrap();
    assert_eq!(rig.peek(), None);
    assert_eq!(word(&rig, 0), 6);
}

#[test]
fn atomic_write_is_answered_like_a_read_of_nothing() {
    let mut rig = Rig::new();
    let value = *b"8 bytes!";
    rig.write(0x1d, 100, (BASE + 16, 8), &value).unwrap();
    let said = rig.answer();
    assert!(said.is(0x10, 100) && said.payload.is_empty() && said.msn == 1);
    assert_eq!(rig.world.memory.bytes(REMOTE)[16..24], value);
    rig.write(0x0a, 101, (BASE + 16, 8), &[0; 8]).unwrap();
    rig.answers();
    // The repetition must not undo the WRITE.
    rig.write(0x1d, 100, (BASE + 16, 8), &value).unwrap();
    assert!(rig.answer().is(0x10, 100));
    assert_eq!(rig.world.memory.bytes(REMOTE)[16..24], [0; 8]);
}

fn flush(placement: u8, selectivity: u8) -> Ext {
    Ext { feth: Feth { placement, selectivity }, ..to(BASE + 8, 64) }
}

#[test]
fn flush_reaches_memory_once() {
    let mut rig = Rig::new();
    rig.hear(&packet(0x1c, 100, flush(1, 0), &[])).unwrap();
    rig.hear(&packet(0x1c, 101, flush(2, 1), &[])).unwrap();
    let said = rig.answers();
    assert!(said[0].is(0x10, 100) && said[1].is(0x10, 101) && said[0].payload.is_empty());
    rig.hear(&packet(0x1c, 100, flush(1, 0), &[])).unwrap();
    assert!(rig.answer().is(0x10, 100));
    assert_eq!(*rig.world.memory.flushes.borrow(), [(BASE + 8, 64, false), (BASE + 8, 64, true)]);
}

#[test]
fn flushes_do_not_count_as_atomics() {
    let mut rig = Rig::new();
    rig.add(100, BASE, 1).unwrap();
    rig.answers();
    for psn in 101..230 {
        rig.hear(&packet(0x1c, psn, flush(1, 0), &[])).unwrap();
    }
    assert_eq!(rig.answers().len(), 129);
    rig.add(100, BASE, 1).unwrap();
    assert_eq!(rig.answer().original, 0);
    for psn in 101..230 {
        rig.hear(&packet(0x1c, psn, flush(1, 0), &[])).unwrap();
    }
    assert_eq!(rig.answers().len(), 129);
    assert_eq!(rig.world.memory.flushes.borrow().len(), 129);
}

#[test]
fn flushes_that_never_leave_are_bounded() {
    let mut rig = Rig::new();
    let refused = (100..).find(|&psn| rig.hear(&packet(0x1c, psn, flush(1, 0), &[])).is_err());
    assert_eq!(refused, Some(100 + MAX_FLUSHES as u32));
}
