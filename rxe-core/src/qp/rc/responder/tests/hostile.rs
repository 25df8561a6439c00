//! A peer that sends anything: no panic, no byte outside what it may write, no unbounded queue.

use super::*;
use proptest::{collection::vec, prelude::*};

/// A region the peer may write, one it may only read, one it may not touch, one of another domain.
const KEYS: [u32; 5] = [REMOTE, LOCAL, 0x3300, 0x4400, 0x9900];

#[derive(Clone, Debug)]
enum Step {
    Packet { opcode: u8, psn: i32, ext: Ext, payload: usize, ack: bool },
    Emit(u8),
    Post(u32),
    Gone(bool),
}

fn ext() -> impl Strategy<Value = Ext> {
    let addr = prop_oneof![
        4 => (BASE..BASE + 0x500).boxed(),
        1 => (BASE..BASE + 0x50).prop_map(|addr| addr & !7).boxed(),
        1 => any::<u64>().boxed(),
    ];
    let len = prop_oneof![4 => 0..600_u32, 1 => Just(8), 1 => any::<u32>()];
    let key = prop_oneof![5 => Just(KEYS[0]), 2 => proptest::sample::select(&KEYS[..])];
    (addr, len, key, any::<u64>(), 0..5_u8, 0..3_u8, any::<bool>()).prop_map(
        |(addr, len, rkey, word, placement, selectivity, invalid)| Ext {
            reth: Reth { addr, rkey: Key(rkey), len },
            atomic: AtomicEth { addr, rkey: Key(rkey), swap_or_add: word, compare: 0 },
            feth: Feth { placement, selectivity },
            invalidate: Key(if invalid { 0x12 } else { word as u32 | 0xee }),
            ..Ext::default()
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let opcodes: Vec<u8> = (0..0x20).filter(|op| Opcode(*op).info().is_some()).collect();
    let psn = prop_oneof![6 => Just(0), 2 => -8..3_i32, 1 => any::<i32>()];
    let payload = prop_oneof![Just(256_usize), Just(0), Just(8), 0..300_usize];
    prop_oneof![
        12 => (proptest::sample::select(opcodes), psn, ext(), payload, any::<bool>())
            .prop_map(|(opcode, psn, ext, payload, ack)| Step::Packet { opcode, psn, ext, payload, ack }),
        2 => (0..4_u8).prop_map(Step::Emit),
        2 => (0..700_u32).prop_map(Step::Post),
        1 => any::<bool>().prop_map(Step::Gone),
    ]
}

fn world() -> Rig {
    let mut rig = Rig::new();
    let memory = &rig.world.memory;
    memory.remove(REMOTE);
    memory.add(REMOTE, BASE, 0x400, Access::all());
    memory.add(0x3300, BASE, 0x400, Access::REMOTE_READ);
    memory.add(0x4400, BASE, 0x400, Access::all());
    memory.regions.borrow_mut().last_mut().unwrap().pd.0 += 1;
    rig.world.qp.attrs.rq_psn = Psn::new(0xff_fff0);
    rig.restart();
    rig
}

/// Every change was inside a region that allowed it.
fn check_writes(rig: &Rig) {
    for &(key, addr, len) in rig.world.memory.writes.borrow().iter() {
        let (base, size) = match key.0 {
            REMOTE => (BASE, 0x400),
            LOCAL => (0, 0x4000),
            _ => panic!("{key:?} was written"),
        };
        assert!(addr >= base && addr + len <= base + size, "{key:?} {addr:#x}+{len}");
    }
}

proptest! {
    #[test]
    fn anything_goes(steps in vec(step(), 1..120)) {
        let mut rig = world();
        let data = pattern(300);
        let mut dead = false;
        for step in steps {
            match step {
                Step::Packet { opcode, psn, ext, payload, ack } => {
                    let info = Opcode(opcode).info().unwrap();
                    let payload = if info.payload { &data[..payload] } else { &[] };
                    let psn = rig.responder.expected.plus(psn as u32);
                    let mut packet = packet(opcode, psn.value(), ext, payload);
                    packet.bth.ack_req = ack;
                    let before = rig.responder.expected;
                    let result = rig.hear(&packet);
                    prop_assert!(!(dead && result.is_err()), "refused twice");
                    prop_assert!(psn == before || rig.responder.expected == before, "executed out of order");
                    dead |= result.is_err();
                }
                Step::Emit(count) => {
                    for _ in 0..count {
                        rig.emit();
                    }
                    dead |= rig.responder.take_failure().is_some();
                }
                Step::Post(len) if rig.world.qp.rq.queue.len() < 60 => rig.world.post(1, LOCAL, 0, len),
                Step::Post(_) => {}
                Step::Gone(gone) => rig.world.memory.gone.set(gone.then_some(Key(REMOTE))),
            }
        }
        check_writes(&rig);
        // At most one fatal NAK, and no answer follows it.
        let mut fatal = false;
        let mut emitted = 0_u32;
        while rig.responder.plan(&rig.world.qp).is_some() {
            let Some(said) = rig.emit() else { continue };
            emitted += 1;
            // No region is large enough for a huge READ, so this ends.
            prop_assert!(emitted < 10_000);
            prop_assert!(said.payload.len() <= 256);
            prop_assert!(!fatal, "{said:?} after the end");
            fatal = dead && matches!(said.syndrome, Syndrome::Nak(code) if code != NakCode::PsnSequence)
                && said.opcode == ACK && rig.responder.plan(&rig.world.qp).is_none();
        }
    }

    /// A correct message arrives whole, whichever of its packets are repeated or come early in between.
    #[test]
    fn a_message_survives_strays(
        len in 1..1500_usize,
        strays in vec((-20..20_i32, any::<bool>()), 0..60),
    ) {
        let mut rig = Rig::new();
        rig.world.post(1, LOCAL, 0, 1500);
        let data = pattern(len);
        let chunks: Vec<&[u8]> = data.chunks(256).collect();
        let mut strays = strays.into_iter();
        for (k, chunk) in chunks.iter().enumerate() {
            for (offset, write) in strays.by_ref().take(10) {
                if offset != 0 {
                    let psn = rig.responder.expected.plus(offset as u32).value();
                    let opcode = if write { 0x0a } else { 0x01 };
                    rig.hear(&packet(opcode, psn, to(BASE, 256), &[0xcc; 256])).unwrap();
                }
            }
            let last = k + 1 == chunks.len();
            let opcode = match (k, last) { (0, true) => 4, (0, false) => 0, (_, false) => 1, _ => 2 };
            rig.send(opcode, 100 + k as u32, chunk).unwrap();
        }
        prop_assert_eq!(&rig.world.memory.bytes(LOCAL)[..len], &data[..]);
        prop_assert!(!rig.world.memory.bytes(LOCAL)[..].contains(&0xcc) || data.contains(&0xcc));
        let wc = rig.world.completions();
        prop_assert_eq!((wc.len(), wc[0].byte_len), (1, len as u32));
    }
}
