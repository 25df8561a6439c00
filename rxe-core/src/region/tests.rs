use super::*;
use crate::{num::Qpn, work::BindWindow};
use proptest::prelude::*;

const PD: PdId = PdId(1);
const OTHER_PD: PdId = PdId(2);
const OWN: Asker = Asker { pd: PD, qpn: Qpn::new(0x11) };
const NEIGHBOUR: Asker = Asker { pd: PD, qpn: Qpn::new(0x12) };
const STRANGER: Asker = Asker { pd: OTHER_PD, qpn: Qpn::new(0x11) };
const MR: Key = Key(0x0000_0107);
const MW: Key = Key(0x0000_0230);
const ALL: Access = REMOTE.union(Access::LOCAL_WRITE).union(Access::MW_BIND);

fn memory(access: Access) -> Region {
    Region::memory(MR, PD, 0x1000, 0x100, access).expect("a region")
}

fn bind(len: u64, access: Access) -> BindWindow {
    BindWindow { window: MW, new_rkey: MW.rotated(), region: MR, addr: 0x1010, len, access }
}

fn window(window: WindowType) -> Region {
    Region::window(MW, PD, window)
}

#[test]
fn registration_rules() {
    let register = |addr, len, access| Region::memory(MR, PD, addr, len, access).map(|region| region.addr);
    // A window of no bytes grants none.
    let empty = Region::memory(MR, PD, 0x1000, 0, ALL).expect("a region");
    assert_eq!(empty.grant(OWN, MR, 0x1000, 0, Access::LOCAL_WRITE), Ok(0));
    assert!(empty.grant(OWN, MR, 0x1000, 1, Access::LOCAL_WRITE).is_err());
    assert_eq!(register(u64::MAX, 1, ALL), Ok(u64::MAX));
    assert_eq!(register(u64::MAX, 2, ALL), Err(RegionError::Range { addr: u64::MAX, len: 2 }));
    assert_eq!(register(0, u64::MAX, ALL), Ok(0));
    assert_eq!(register(u64::MAX, 9, ALL | Access::ZERO_BASED), Ok(0));
    assert_eq!(register(0, 1, Access::REMOTE_WRITE), Err(RegionError::Rights));
    assert_eq!(register(0, 1, Access::REMOTE_ATOMIC), Err(RegionError::Rights));
    assert_eq!(register(0, 1, Access::REMOTE_READ), Ok(0));
}

#[test]
fn each_rule_of_an_access_alone() {
    let region = memory(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let write = Access::REMOTE_WRITE;
    assert_eq!(region.grant(OWN, MR, 0x1020, 16, write), Ok(0x20));
    assert_eq!(region.grant(NEIGHBOUR, MR, 0x1020, 16, Access::empty()), Ok(0x20));
    assert_eq!(
        region.grant(OWN, MR.rotated(), 0x1020, 16, write),
        Err(AccessError::UnknownKey(MR.rotated()))
    );
    assert_eq!(region.grant(STRANGER, MR, 0x1020, 16, write), Err(AccessError::NotYours(MR)));
    let denied = AccessError::Denied(Access::REMOTE_READ);
    assert_eq!(region.grant(OWN, MR, 0x1020, 16, Access::REMOTE_READ | write), Err(denied));
    for (addr, len) in
        [(0xfff, 1), (0x1100, 1), (0x10ff, 2), (0x1000, 0x101), (u64::MAX, u64::MAX), (0x1001, u64::MAX)]
    {
        let refused = region.grant(OWN, MR, addr, len, write);
        assert_eq!(refused, Err(AccessError::Range { addr, len }), "{addr:#x} {len}");
    }
    assert_eq!(region.grant(OWN, MR, 0x1000, 0x100, write), Ok(0));
    assert_eq!(region.grant(OWN, MR, 0x10ff, 1, write), Ok(0xff));
}

#[test]
fn no_bytes_need_no_right() {
    let region = memory(Access::empty());
    assert_eq!(region.grant(STRANGER, Key(0), u64::MAX, 0, Access::REMOTE_WRITE), Ok(0));
}

#[test]
fn zero_based_counts_from_the_start() {
    let region = Region::memory(MR, PD, 0x1000, 0x100, ALL | Access::ZERO_BASED).expect("a region");
    assert_eq!(region.grant(OWN, MR, 0x20, 1, Access::REMOTE_READ), Ok(0x20));
    assert!(region.grant(OWN, MR, 0x1020, 1, Access::REMOTE_READ).is_err());
}

#[test]
fn atomics_are_aligned_and_eight_bytes() {
    let region = memory(ALL);
    let atomic = |addr| region.grant_atomic(OWN, MR, addr, Access::REMOTE_ATOMIC);
    assert_eq!(atomic(0x10f8), Ok(0xf8));
    assert_eq!(atomic(0x10fc), Err(AccessError::Misaligned(0x10fc)));
    assert_eq!(atomic(0x1100), Err(AccessError::Range { addr: 0x1100, len: 8 }));
    let read_only = memory(Access::REMOTE_READ);
    let refused = read_only.grant_atomic(OWN, MR, 0x1000, Access::REMOTE_ATOMIC);
    assert_eq!(refused, Err(AccessError::Denied(Access::REMOTE_ATOMIC)));
}

#[test]
fn whole_region_for_flush() {
    let region = memory(ALL);
    assert_eq!(region.grant_whole(OWN, MR, Access::FLUSH_GLOBAL), Ok((0, 0x100)));
    assert_eq!(region.grant_whole(STRANGER, MR, Access::FLUSH_GLOBAL), Err(AccessError::NotYours(MR)));
    let bound =
        window(WindowType::One).bind(OWN, &bind(8, Access::FLUSH_GLOBAL), Some(&region)).expect("bound");
    assert_eq!(bound.grant_whole(OWN, bound.key, Access::FLUSH_GLOBAL), Ok((0x10, 8)));
}

#[test]
fn type_1_is_for_the_whole_domain_and_binds_again() {
    let region = memory(ALL);
    let first =
        window(WindowType::One).bind(OWN, &bind(0x20, Access::REMOTE_WRITE), Some(&region)).expect("bound");
    assert_eq!((first.key, first.bound_to()), (MW.rotated(), Some(MR)));
    assert_eq!(first.grant(NEIGHBOUR, first.key, 0x1010, 0x20, Access::REMOTE_WRITE), Ok(0x10));
    assert_eq!(
        first.grant(OWN, first.key, 0x1010, 1, Access::REMOTE_READ),
        Err(AccessError::Denied(Access::REMOTE_READ))
    );
    assert!(first.grant(OWN, first.key, 0x100f, 1, Access::REMOTE_WRITE).is_err());
    assert!(first.grant(OWN, first.key, 0x1010, 0x21, Access::REMOTE_WRITE).is_err());
    assert_eq!(first.grant(OWN, MW, 0x1010, 1, Access::REMOTE_WRITE), Err(AccessError::UnknownKey(MW)));
    assert_eq!(
        first.grant(STRANGER, first.key, 0x1010, 1, Access::REMOTE_WRITE),
        Err(AccessError::NotYours(first.key))
    );

    let again =
        BindWindow { window: first.key, new_rkey: first.key.rotated(), ..bind(8, Access::REMOTE_READ) };
    let second = first.bind(NEIGHBOUR, &again, Some(&region)).expect("binds again");
    assert!(second.grant(OWN, first.key, 0x1010, 1, Access::REMOTE_WRITE).is_err());
    assert_eq!(second.grant(OWN, second.key, 0x1017, 1, Access::REMOTE_READ), Ok(0x17));

    let nothing =
        BindWindow { window: second.key, new_rkey: second.key.rotated(), region: Key(0), ..bind(0, ALL) };
    let third = second.bind(OWN, &nothing, None).expect("unbinds");
    assert_eq!(third, Region::window(second.key.rotated(), PD, WindowType::One));
    assert!(third.grant(OWN, third.key, 0, 1, Access::REMOTE_READ).is_err());
    assert_eq!(first.invalidate(OWN, first.key), Err(AccessError::Denied(Access::empty())));
}

#[test]
fn type_2_belongs_to_one_queue_pair_and_is_invalidated_first() {
    let region = memory(ALL);
    let chosen = BindWindow { new_rkey: MW.with_tag(0xab), ..bind(0x20, Access::REMOTE_WRITE) };
    let bound = window(WindowType::Two).bind(OWN, &chosen, Some(&region)).expect("bound");
    assert_eq!(bound.key, Key(0x0000_02ab));
    assert_eq!(bound.grant(OWN, bound.key, 0x1010, 1, Access::REMOTE_WRITE), Ok(0x10));
    let refused = bound.grant(NEIGHBOUR, bound.key, 0x1010, 1, Access::REMOTE_WRITE);
    assert_eq!(refused, Err(AccessError::NotYours(bound.key)));

    // The tag alone, and the key of something else, mean the same.
    for key in [Key(0xab), MR.with_tag(0xab), Key(0xffff_ffab)] {
        let same = window(WindowType::Two).bind(OWN, &BindWindow { new_rkey: key, ..chosen }, Some(&region));
        assert_eq!(same, Ok(bound), "{key:?}");
    }

    let again = BindWindow { window: bound.key, new_rkey: bound.key.rotated(), ..chosen };
    assert_eq!(bound.bind(OWN, &again, Some(&region)), Err(BindError::Bound));
    assert_eq!(bound.invalidate(NEIGHBOUR, bound.key), Err(AccessError::NotYours(bound.key)));
    assert_eq!(bound.invalidate(STRANGER, bound.key), Err(AccessError::NotYours(bound.key)));
    assert_eq!(bound.invalidate(OWN, MW), Err(AccessError::UnknownKey(MW)));
    let free = bound.invalidate(OWN, bound.key).expect("its queue pair may");
    assert!(free.grant(OWN, bound.key, 0x1010, 1, Access::REMOTE_WRITE).is_err());
    assert_eq!(free.invalidate(NEIGHBOUR, free.key), Ok(free));
    assert!(free.bind(NEIGHBOUR, &again, Some(&region)).is_ok());
    assert_eq!(free.bind(OWN, &BindWindow { len: 0, ..again }, Some(&region)), Err(BindError::Empty));
}

#[test]
fn each_rule_of_a_bind_alone() {
    let region = memory(ALL);
    for kind in [WindowType::One, WindowType::Two] {
        let free = window(kind);
        let good = bind(0x20, Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::REMOTE_READ);
        let outcome = |asker, bind: BindWindow, region: &Region| free.bind(asker, &bind, Some(region)).err();
        assert_eq!(outcome(OWN, good, &region), None);
        assert_eq!(outcome(OWN, BindWindow { window: MR, ..good }, &region), Some(BindError::NotAWindow(MR)));
        assert_eq!(outcome(STRANGER, good, &region), Some(BindError::Domain));
        assert_eq!(outcome(OWN, good, &Region { pd: OTHER_PD, ..region }), Some(BindError::Domain));
        let stale = Region { key: MR.rotated(), ..region };
        assert_eq!(outcome(OWN, good, &stale), Some(BindError::NotARegion(MR)));
        assert_eq!(free.bind(OWN, &good, None), Err(BindError::NotARegion(MR)));
        assert_eq!(outcome(OWN, good, &memory(ALL - Access::MW_BIND)), Some(BindError::NotBindable));
        let read_only = memory(Access::MW_BIND | Access::REMOTE_READ);
        assert_eq!(outcome(OWN, good, &read_only), Some(BindError::Rights));
        // A window may grant reading that the region's own key does not.
        let closed = memory(Access::MW_BIND);
        assert_eq!(outcome(OWN, BindWindow { access: Access::REMOTE_READ, ..good }, &closed), None);
        let strange = BindWindow { access: Access::MW_BIND, ..good };
        assert_eq!(outcome(OWN, strange, &region), Some(BindError::NotRemote(Access::MW_BIND)));
        // Common with programs, and without effect.
        let local = BindWindow { access: good.access | Access::LOCAL_WRITE, ..good };
        assert_eq!(free.bind(OWN, &local, Some(&region)), free.bind(OWN, &good, Some(&region)));
        for (addr, len) in [(0xfff, 1), (0x1100, 1), (0x1000, 0x101), (0x1001, u64::MAX)] {
            let wrong = BindWindow { addr, len, ..good };
            assert_eq!(outcome(OWN, wrong, &region), Some(BindError::Range { addr, len }));
        }
        let own_key = Region { key: MR, ..free };
        assert_eq!(free.bind(OWN, &good, Some(&own_key)), Err(BindError::NotARegion(MR)));
        assert_eq!(
            region.bind(OWN, &BindWindow { window: MR, ..good }, None),
            Err(BindError::NotAWindow(MR))
        );
    }
}

#[test]
fn zero_based_window_counts_from_its_own_start() {
    let zero_based = bind(0x20, Access::REMOTE_READ | Access::ZERO_BASED);
    let bound = window(WindowType::One).bind(OWN, &zero_based, Some(&memory(ALL))).expect("bound");
    assert_eq!(bound.grant(OWN, bound.key, 0, 0x20, Access::REMOTE_READ), Ok(0x10));
    assert_eq!(bound.grant(OWN, bound.key, 0x1f, 1, Access::REMOTE_READ), Ok(0x2f));
    assert!(bound.grant(OWN, bound.key, 0x20, 1, Access::REMOTE_READ).is_err());
}

#[test]
fn windows_are_no_local_memory() {
    let bound =
        window(WindowType::One).bind(OWN, &bind(8, Access::REMOTE_WRITE), Some(&memory(ALL))).expect("bound");
    for need in [Access::empty(), Access::LOCAL_WRITE] {
        assert_eq!(bound.grant(OWN, bound.key, 0x1010, 1, need), Err(AccessError::UnknownKey(bound.key)));
    }
}

#[test]
fn memory_cannot_be_invalidated() {
    assert_eq!(memory(ALL).invalidate(OWN, MR), Err(AccessError::Denied(Access::empty())));
}

#[test]
fn keys_rotate_through_all_tags_of_their_entry() {
    let first = Key::first(0x12_3456, 99);
    let mut key = first;
    for _ in 0..255 {
        key = key.rotated();
        assert_eq!(key.index(), 0x12_3456);
        assert_ne!(key, first);
    }
    assert_eq!(key.rotated(), first);
    assert_ne!(Key::first(1, 1).tag(), Key::first(1, 2).tag());
}

proptest! {
    /// Compared with arithmetic that cannot overflow: access is granted if it lies inside, and only then.
    #[test]
    fn ranges_agree_with_wide_arithmetic(
        start in any::<u64>(), size in 1_u64.., addr in any::<u64>(), len in 1_u64..,
        near in any::<bool>(), step in 0_u64..40,
    ) {
        let size = size.min((u64::MAX - start).saturating_add(1)).max(1);
        // Half of the cases are at the edges, where mistakes are likely.
        let addr = if near { start.wrapping_add(step).wrapping_sub(20) } else { addr };
        let len = if near { size.wrapping_add(20).wrapping_sub(step).max(1) } else { len };
        let region = Region::memory(MR, PD, start, size, ALL).expect("fits");
        let (lo, hi) = (u128::from(addr), u128::from(addr) + u128::from(len));
        let inside = lo >= u128::from(start) && hi <= u128::from(start) + u128::from(size);
        match region.grant(OWN, MR, addr, len, Access::REMOTE_WRITE) {
            Ok(offset) => prop_assert!(inside && u128::from(offset) == lo - u128::from(start)),
            Err(error) => {
                prop_assert!(!inside);
                prop_assert_eq!(error, AccessError::Range { addr, len });
            }
        }
    }

    /// A window never reaches a byte outside its region, however it was bound.
    #[test]
    fn windows_stay_inside_their_region(
        bind_at in 0xfe0_u64..0x1120, bind_len in 0_u64..0x130, at in any::<u64>(), len in 1_u64..0x130, zero in any::<bool>(),
    ) {
        let access = if zero { Access::REMOTE_WRITE | Access::ZERO_BASED } else { Access::REMOTE_WRITE };
        let request = BindWindow { addr: bind_at, ..bind(bind_len, access) };
        if let Ok(bound) = window(WindowType::Two).bind(OWN, &request, Some(&memory(ALL))) {
            let base = if zero { 0 } else { bind_at };
            let at = base.wrapping_add(at % 0x140).wrapping_sub(8);
            if let Ok(offset) = bound.grant(OWN, bound.key, at, len, Access::REMOTE_WRITE) {
                prop_assert!(offset >= bind_at - 0x1000);
                prop_assert!(offset + len <= bind_at - 0x1000 + bind_len);
                prop_assert!(offset + len <= 0x100);
            }
        }
    }
}

/// The library gives the tags of type 1 windows. After a bind that failed the next one is for a key that the window never had. A
/// bind that was posted while others waited in the queue is for the key before those.
#[test]
fn a_bind_names_a_window_by_its_index() {
    let region = memory(ALL);
    let good = bind(0x20, Access::REMOTE_WRITE);
    let later = BindWindow { window: good.new_rkey, new_rkey: good.new_rkey.rotated(), ..good };
    for kind in [WindowType::One, WindowType::Two] {
        assert!(window(kind).bind(OWN, &later, Some(&region)).is_ok());
    }
}
