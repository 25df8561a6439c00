//! A responder fed with packets by hand; its answers are decoded from what it wrote.

use super::*;
use crate::{
    num::Key,
    qp::{
        QpState, QpType,
        fake::{PEER, World, packet},
    },
    wire::{AtomicEth, Feth, Opcode, Reth},
    work::{AsyncEvent, Completion, WcExtra, WcOpcode, WcStatus},
};
use alloc::{vec, vec::Vec};

mod atomics;
mod hostile;
mod messages;
mod reads;
mod refusals;
mod sequence;

/// Memory that the peer has every right to, and the key of a posted receive's memory.
const REMOTE: u32 = 0x1000;
const LOCAL: u32 = 0x2000;
const BASE: u64 = 0x10_0000;
const ACK: u8 = 0x11;

const fn nak(code: NakCode) -> Syndrome {
    Syndrome::Nak(code)
}

/// When the next answer leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    DeferredAck,
    Now,
}

/// A decoded answer.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Said {
    opcode: u8,
    psn: u32,
    syndrome: Syndrome,
    msn: u32,
    original: u64,
    payload: Vec<u8>,
}

impl Said {
    fn is(&self, opcode: u8, psn: u32) -> bool {
        (self.opcode, self.psn) == (opcode, psn)
    }
}

struct Rig {
    world: World,
    responder: Responder,
}

impl Rig {
    fn new() -> Self {
        let world = World::new(QpType::Rc);
        world.memory.add(REMOTE, BASE, 0x4000, Access::all());
        world.memory.add(LOCAL, 0, 0x4000, Access::LOCAL_WRITE);
        let mut rig = Self { world, responder: Responder::default() };
        rig.restart();
        rig.world.qp.established = true;
        rig
    }

    fn restart(&mut self) {
        self.responder.start(&self.world.qp);
    }

    fn hear(&mut self, packet: &Packet<'_>) -> Result<(), Violation> {
        let responder = &mut self.responder;
        self.world.with(|qp, ctx| responder.handle(qp, ctx, packet))
    }

    fn send(&mut self, opcode: u8, psn: u32, payload: &[u8]) -> Result<(), Violation> {
        self.hear(&acked(packet(opcode, psn, Ext::default(), payload)))
    }

    fn write(
        &mut self,
        opcode: u8,
        psn: u32,
        (addr, len): (u64, u32),
        payload: &[u8],
    ) -> Result<(), Violation> {
        self.hear(&acked(packet(opcode, psn, to(addr, len), payload)))
    }

    fn read(&mut self, psn: u32, addr: u64, len: u32) -> Result<(), Violation> {
        self.hear(&acked(packet(0x0c, psn, to(addr, len), &[])))
    }

    fn add(&mut self, psn: u32, addr: u64, add: u64) -> Result<(), Violation> {
        self.hear(&acked(packet(0x14, psn, atomic(addr, add, 0), &[])))
    }

    /// Lets one packet leave.
    fn emit(&mut self) -> Option<Said> {
        let draft = self.responder.plan(&self.world.qp)?;
        let mut out = vec![0xee; draft.len()];
        let responder = &mut self.responder;
        if !self.world.with(|qp, ctx| responder.commit(qp, ctx, &draft, &mut out)) {
            return None;
        }
        let packet = Packet::decode(&out).expect("what is emitted decodes");
        assert_eq!((packet.bth.dest_qp, packet.bth.pkey), (PEER, self.world.qp.pkey));
        assert!(packet.bth.migreq && !packet.bth.ack_req);
        Some(Said {
            opcode: packet.bth.opcode.0,
            psn: packet.bth.psn.value(),
            syndrome: packet.ext.aeth.syndrome,
            msn: packet.ext.aeth.msn.value(),
            original: packet.ext.original,
            payload: packet.payload.to_vec(),
        })
    }

    /// Lets everything leave.
    fn answers(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        while self.responder.plan(&self.world.qp).is_some() {
            said.extend(self.emit());
        }
        said
    }

    /// The one answer there is.
    fn answer(&mut self) -> Said {
        let mut said = self.answers();
        assert_eq!(said.len(), 1, "{said:?}");
        said.remove(0)
    }

    fn peek(&self) -> Option<Answer> {
        let answer = if self.responder.may_wait() { Answer::DeferredAck } else { Answer::Now };
        self.responder.plan(&self.world.qp).map(|_| answer)
    }
}

fn acked(packet: Packet<'_>) -> Packet<'_> {
    Packet { bth: Bth { ack_req: true, ..packet.bth }, ..packet }
}

fn to(addr: u64, len: u32) -> Ext {
    Ext { reth: Reth { addr, rkey: Key(REMOTE), len }, ..Ext::default() }
}

fn atomic(addr: u64, swap_or_add: u64, compare: u64) -> Ext {
    Ext { atomic: AtomicEth { addr, rkey: Key(REMOTE), swap_or_add, compare }, ..Ext::default() }
}

/// `len` bytes that tell their places apart.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256 + 1) as u8).collect()
}
