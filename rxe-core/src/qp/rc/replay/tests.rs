use super::*;
use crate::num::Key;

const MTU: u32 = 256;

fn reth(addr: u64, len: u32) -> Reth {
    Reth { addr, rkey: Key(0x500), len }
}

fn read(first: u32, addr: u64, len: u32) -> Entry {
    Entry { first: Psn::new(first), psns: read_psns(len, MTU), result: Outcome::Read(reth(addr, len)) }
}

fn atomic(first: u32, original: u64) -> Entry {
    Entry { first: Psn::new(first), psns: 1, result: Outcome::Atomic(Class::FetchAdd, original) }
}

fn flush(first: u32) -> Entry {
    Entry { first: Psn::new(first), psns: 1, result: Outcome::Done(Class::Flush) }
}

fn table(entries: &[Entry]) -> Replay {
    let mut table = Replay::default();
    for entry in entries {
        table.remember(*entry, 8);
    }
    table
}

#[test]
fn psns_of_a_read() {
    assert_eq!(read_psns(0, 256), 1);
    assert_eq!(read_psns(256, 256), 1);
    assert_eq!(read_psns(257, 256), 2);
    assert_eq!(read_psns(1 << 31, 256), 1 << 23);
    assert_eq!(read_psns(u32::MAX, 4096), 1 << 20);
}

#[test]
fn the_oldest_of_a_kind_is_forgotten() {
    let mut table = Replay::default();
    for psn in 0..4 {
        table.remember(atomic(psn, psn.into()), 2);
    }
    for psn in 4..40 {
        table.remember(flush(psn), 2);
    }
    assert_eq!(table.atomic(Psn::new(1), Class::FetchAdd), None);
    assert_eq!(table.atomic(Psn::new(2), Class::FetchAdd), Some(2));
    assert_eq!(table.atomic(Psn::new(3), Class::FetchAdd), Some(3));
    assert_eq!(table.entries.len(), 2 + FLUSHES);
    assert!(table.is_done(Psn::new(39), Class::Flush));
    assert!(!table.is_done(Psn::new(39), Class::AtomicWrite));
    assert!(!table.is_done(Psn::new(23), Class::Flush));
}

#[test]
fn an_atomic_is_found_by_psn_and_operation() {
    let table = table(&[atomic(5, 77)]);
    assert_eq!(table.atomic(Psn::new(5), Class::FetchAdd), Some(77));
    assert_eq!(table.atomic(Psn::new(5), Class::CompareSwap), None);
    assert_eq!(table.atomic(Psn::new(6), Class::FetchAdd), None);
}

#[test]
fn any_part_of_a_read_is_covered() {
    // PSNs 10..14 for addresses 1000..2000.
    let table = table(&[read(10, 1000, 1000)]);
    let covers = |psn, addr, len| table.covers_read(Psn::new(psn), &reth(addr, len), MTU);
    assert!(covers(10, 1000, 1000));
    assert!(covers(10, 1000, 1), "shorter");
    assert!(covers(11, 1256, 744), "the rest");
    assert!(covers(13, 1768, 232), "the last packet");
    assert!(covers(12, 1512, 256), "one from the middle");
    assert!(!covers(11, 1256, 745), "beyond the end");
    assert!(!covers(11, 1000, 744), "address and PSN do not fit");
    assert!(!covers(14, 2024, 1), "a PSN behind it");
    assert!(!covers(9, 744, 256), "a PSN before it");
    assert!(!table.covers_read(Psn::new(10), &Reth { rkey: Key(0x501), ..reth(1000, 1000) }, MTU));
}

#[test]
fn adjacent_reads_may_be_asked_for_as_one() {
    let covers = |table: &Replay, psn, addr, len| table.covers_read(Psn::new(psn), &reth(addr, len), MTU);
    let adjacent = table(&[read(10, 1000, 512), read(12, 1512, 300)]);
    assert!(covers(&adjacent, 11, 1256, 556));
    assert!(covers(&adjacent, 12, 1512, 300), "the second alone");
    assert!(!covers(&adjacent, 11, 1256, 557));
    let broken_packet = table(&[read(10, 1000, 500), read(12, 1500, 300)]);
    assert!(!covers(&broken_packet, 10, 1000, 800));
    let elsewhere = table(&[read(10, 1000, 512), read(12, 9000, 300)]);
    assert!(!covers(&elsewhere, 10, 1000, 600));
    let send_between = table(&[read(10, 1000, 512), read(13, 1512, 300)]);
    assert!(!covers(&send_between, 10, 1000, 600));
    let atomic_between = table(&[read(10, 1000, 512), atomic(12, 0), read(13, 1512, 300)]);
    assert!(!covers(&atomic_between, 10, 1000, 600));
}

#[test]
fn a_read_of_nothing_is_covered_by_itself() {
    let table = table(&[read(10, 0, 0)]);
    assert!(table.covers_read(Psn::new(10), &reth(0, 0), MTU));
    assert!(!table.covers_read(Psn::new(10), &reth(0, 1), MTU));
}

#[test]
fn ranges_wrap_with_the_psn() {
    let table = table(&[read(0xff_fffe, 1000, 1024)]);
    assert!(table.covers_read(Psn::new(0), &reth(1512, 512), MTU));
    assert!(table.covers_read(Psn::new(1), &reth(1768, 256), MTU));
    assert!(!table.covers_read(Psn::new(2), &reth(2024, 1), MTU));
}

#[test]
fn an_acknowledgement_stops_before_the_next_read() {
    let table = table(&[read(10, 0, 600), atomic(15, 0), flush(20)]);
    let expected = Psn::new(30);
    let upto = |psn| table.acknowledgeable(Psn::new(psn), expected).value();
    assert_eq!(upto(5), 9);
    assert_eq!(upto(9), 9);
    assert_eq!(upto(13), 14);
    assert_eq!(upto(16), 19);
    assert_eq!(upto(21), 29);
    assert_eq!(table.acknowledgeable(Psn::new(25), Psn::new(26)).value(), 25);
}

/// The longest READ takes half of all PSNs, so its first one looks as if it came later than a PSN behind its end.
#[test]
fn an_acknowledgement_behind_the_longest_read_names_the_past() {
    let psns = 1 << 23;
    let table = table(&[read(10, 0, psns * MTU)]);
    let expected = Psn::new(10).plus(psns + 5);
    assert_eq!(table.acknowledgeable(expected.minus(2), expected), expected.minus(1));
}

#[test]
fn old_entries_expire_before_their_psns_return() {
    let mut table = table(&[read(10, 0, 600), atomic(15, 0)]);
    table.expire(Psn::new(16));
    assert_eq!(table.entries.len(), 2);
    table.expire(Psn::new(14 + STALE));
    assert_eq!(table.entries.len(), 1);
    table.expire(Psn::new(17 + STALE));
    assert_eq!(table.entries.len(), 0);
    // The longest possible READ stays until it is old.
    let mut table = Replay::default();
    table.remember(read(10, 0, 1 << 31), 8);
    table.expire(Psn::new(10 + (1 << 23)));
    assert_eq!(table.entries.len(), 1);
}
