//! Unreliable connections and datagrams (IBTA vol. 1, 9.8.2 and 9.8.3).

use crate::{
    bench::Bench,
    case::{Case, Outcome, check, must, named, same, should, template},
    conn::{Conn, pattern},
    dut::{Feature, Kind, Service, WrOp},
    wire::{Packet, Roce, op},
};
use std::time::Duration;

/// Adds the cases of this theme.
pub(super) fn add(all: &mut Vec<Case>) {
    all.extend(UC.iter().cloned().map(|case| case.needs(&[Feature::Uc])));
    let lost = [(0, "FIRST", "first"), (1, "MIDDLE", "middle"), (2, "LAST", "last")];
    let members = named(lost);
    all.extend(
        LOST.family(members.clone(), |b, which| lost_packet(b, which, false))
            .map(|case| case.needs(&[Feature::Uc])),
    );
    all.extend(
        LOST_WRITE
            .family(members, |b, which| lost_packet(b, which, true))
            .map(|case| case.needs(&[Feature::Uc])),
    );
    all.extend_from_slice(UD);
}

const LOST: Case = must(
    "UC.LOST.SEND",
    "A SEND whose {} packet is lost is dropped as a whole, and the next one arrives",
    "IBTA 9.8.2.2",
    template,
);
const LOST_WRITE: Case = must(
    "UC.LOST.WRITE",
    "After a WRITE whose {} packet is lost the next message arrives",
    "IBTA 9.8.2.2",
    template,
);

fn uc(b: &mut Bench) -> Outcome<Conn> {
    b.rc_with(|o| o.service = Service::Uc)
}

/// Sends a SEND, and the next completion is that of this receive, with its data.
fn next_arrives(c: &mut Conn, wr_id: u64, offset: usize) -> Outcome {
    c.tx(Packet::of(op::SEND_ONLY).data(pattern(9, 8)))?;
    c.done(Kind::Recv, wr_id)?;
    c.received(offset, &pattern(9, 8))
}

fn lost_packet(b: &mut Bench, which: u32, write: bool) -> Outcome {
    let mut c = uc(b)?;
    let posted = c.post_recv(4096)?;
    let (va, rkey) = c.at(0);
    let codes = if write {
        [op::WRITE_FIRST, op::WRITE_MIDDLE, op::WRITE_LAST]
    } else {
        [op::SEND_FIRST, op::SEND_MIDDLE, op::SEND_LAST]
    };
    for (at, code) in (0..).zip(codes) {
        if at == which {
            c.psn += 1;
        } else {
            c.tx(Packet::of(code).reth(va, rkey, 3072).data(vec![1; 1024]))?;
        }
    }
    next_arrives(&mut c, posted.wr_id, posted.offset)?;
    c.nothing_done(Kind::Recv)
}

const UC: &[Case] = &[
    must("UC.SEND.1", "A SEND arrives, and nothing is answered, whatever is asked", "IBTA 9.8.2", |b| {
        let mut c = uc(b)?;
        let posted = c.post_recv(64)?;
        c.tx(Packet::of(op::SEND_ONLY).data(pattern(1, 9)).ask())?;
        same("byte_len", c.done(Kind::Recv, posted.wr_id)?.byte_len, 9)?;
        c.received(posted.offset, &pattern(1, 9))?;
        c.quiet()
    }),
    must("UC.SEND.2", "A SEND of many packets arrives whole, with its immediate", "IBTA 9.8.2", |b| {
        let mut c = uc(b)?;
        let posted = c.post_recv(4096)?;
        let data = pattern(2, 2500);
        c.tx(Packet::of(op::SEND_FIRST).data(data[..1024].to_vec()))?;
        c.tx(Packet::of(op::SEND_MIDDLE).data(data[1024..2048].to_vec()))?;
        c.tx(Packet::of(op::SEND_LAST_IMM).imm(5).data(data[2048..].to_vec()))?;
        same("the immediate", c.done(Kind::Recv, posted.wr_id)?.imm, Some(5))?;
        c.received(posted.offset, &data)
    }),
    must("UC.SEND.3", "A SEND without a receive is dropped, and the next one arrives", "IBTA 9.8.2.2", |b| {
        let mut c = uc(b)?;
        c.tx(Packet::of(op::SEND_ONLY).data(vec![1; 8]))?;
        // When this WRITE is in memory, the device has handled the packets before it too.
        c.tx(c.write(8, &[2; 8]))?;
        c.comes_to_hold(8, &[2; 8])?;
        c.quiet()?;
        let posted = c.post_recv(64)?;
        next_arrives(&mut c, posted.wr_id, posted.offset)
    }),
    must("UC.WRITE.1", "A WRITE lands, and takes no receive", "IBTA 9.8.2", |b| {
        let mut c = uc(b)?;
        let posted = c.post_recv(64)?;
        c.tx(c.write(8, &pattern(3, 100)))?;
        next_arrives(&mut c, posted.wr_id, posted.offset)?;
        c.holds(8, &pattern(3, 100))
    }),
    must(
        "UC.WRITE.2",
        "A WRITE that is not allowed is dropped in silence, and the next message arrives",
        "IBTA 9.8.2.2",
        |b| {
            let mut c = uc(b)?;
            let posted = c.post_recv(64)?;
            c.tx(c.write(0, &[1; 8]).rkey(0x7700_4321))?;
            next_arrives(&mut c, posted.wr_id, posted.offset)?;
            c.holds(0, &[0; 8])?;
            c.quiet()
        },
    ),
    must(
        "UC.PSN.1",
        "A message with any PSN is taken: the queue pair goes on from there",
        "IBTA 9.8.2.1",
        |b| {
            let mut c = uc(b)?;
            let posted = c.post_recv(64)?;
            c.psn += 100;
            next_arrives(&mut c, posted.wr_id, posted.offset)
        },
    ),
    must("UC.READ.1", "A READ is no request of an unreliable connection", "IBTA table 38", |b| {
        let mut c = uc(b)?;
        let posted = c.post_recv(64)?;
        c.raw(c.read(0, 8))?;
        c.quiet()?;
        next_arrives(&mut c, posted.wr_id, posted.offset)
    }),
    must(
        "UC.SENDS.1",
        "A posted SEND leaves with its service's opcodes and completes unanswered",
        "IBTA 9.8.2",
        |b| {
            let mut c = uc(b)?;
            let wr = c.post(WrOp::Send, 1500)?;
            c.request(Packet::of(op::SEND_FIRST).ack_req(false))?;
            c.request(Packet::of(op::SEND_LAST).ack_req(false))?;
            c.done(Kind::Send, wr).map(|_| ())
        },
    ),
    must("UC.SENDS.2", "Nothing is ever sent twice", "IBTA 9.8.2", |b| {
        let mut c = uc(b)?;
        c.post(WrOp::Send, 8)?;
        c.request(Packet::of(op::SEND_ONLY))?;
        c.nak(c.expected - 1, 0x60)?;
        c.quiet_for(Duration::from_millis(200))
    }),
];

/// The Q_Key of the device's datagram queue pairs.
pub(super) const QKEY: u32 = 0x1111_1111;

/// A datagram queue pair.
pub(super) fn ud(b: &mut Bench) -> Outcome<Conn> {
    b.rc_with(|o| o.service = Service::Ud)
}

/// A datagram from our side to the device's queue pair.
pub(super) fn datagram(c: &Conn, data: &[u8]) -> Packet {
    Packet::of(op::UD_SEND_ONLY).qkey(QKEY).src_qp(c.qpn).data(data.to_vec())
}

/// A datagram that `change` has altered is dropped, and a right one after it arrives.
fn dropped(b: &mut Bench, change: impl Fn(Packet) -> Packet) -> Outcome {
    let mut c = ud(b)?;
    let posted = c.post_recv(128)?;
    c.tx(change(datagram(&c, &[9; 8])))?;
    c.tx(datagram(&c, &[1; 8]))?;
    c.done(Kind::Recv, posted.wr_id)?;
    c.received(posted.offset + 40, &[1; 8])?;
    c.nothing_done(Kind::Recv)
}

const UD: &[Case] = &[
    must(
        "UD.RECV.1",
        "A datagram arrives 40 bytes into its receive, and its length counts them",
        "IBTA 9.8.3, 11.4.2.1",
        |b| {
            let mut c = ud(b)?;
            let posted = c.post_recv(128)?;
            c.tx(datagram(&c, &pattern(1, 11)))?;
            same("byte_len", c.done(Kind::Recv, posted.wr_id)?.byte_len, 51)?;
            c.received(posted.offset + 40, &pattern(1, 11))
        },
    ),
    must("UD.RECV.2", "The completion names the sending queue pair", "IBTA 11.4.2.1", |b| {
        let mut c = ud(b)?;
        let posted = c.post_recv(128)?;
        c.tx(datagram(&c, &[1]).src_qp(0xab_cdef))?;
        same("src_qp", c.done(Kind::Recv, posted.wr_id)?.src_qp, 0xab_cdef)
    }),
    must("UD.RECV.3", "The immediate of a datagram is told", "IBTA 11.4.2.1", |b| {
        let mut c = ud(b)?;
        let posted = c.post_recv(128)?;
        c.tx(datagram(&c, &[1]).opcode(op::UD_SEND_ONLY_IMM).imm(77))?;
        same("the immediate", c.done(Kind::Recv, posted.wr_id)?.imm, Some(77))
    }),
    must("UD.RECV.4", "The 40 bytes hold the addresses of the packet", "IBTA A17.4.5.3", |b| {
        let mut c = ud(b)?;
        let posted = c.post_recv(128)?;
        c.tx(datagram(&c, &[1]))?;
        c.done(Kind::Recv, posted.wr_id)?;
        let ends = c.world.borrow().ends();
        let (at, bytes) = match ends.src {
            // In a GRH the IPv4 address is the last four bytes of the mapped IPv6 address.
            std::net::IpAddr::V4(v4) if ends.roce == Roce::V1 => (posted.offset + 20, v4.octets().to_vec()),
            std::net::IpAddr::V4(v4) => (posted.offset + 32, v4.octets().to_vec()),
            std::net::IpAddr::V6(v6) => (posted.offset + 8, v6.octets().to_vec()),
        };
        c.received(at, &bytes)
    }),
    must("UD.QKEY.1", "A datagram with another Q_Key is dropped", "IBTA 9.6.1.4.1", |b| {
        dropped(b, |packet| packet.qkey(0x1111_1112))
    }),
    must("UD.PKEY.1", "A datagram of another partition is dropped", "IBTA 9.6.1.1.3", |b| {
        dropped(b, |packet| packet.pkey(0x1234))
    }),
    must("UD.ICRC.1", "A datagram with a wrong ICRC is dropped", "IBTA 9.8", |b| {
        dropped(b, |packet| packet.icrc_xor(0x100))
    }),
    must("UD.OPCODE.1", "A connected request to a datagram queue pair is dropped", "IBTA 9.6.1.1.4", |b| {
        dropped(b, |packet| packet.opcode(op::SEND_ONLY))
    }),
    must("UD.LENGTH.1", "A datagram longer than its receive is no success", "IBTA 9.8.3.2", |b| {
        let mut c = ud(b)?;
        c.post_recv(44)?;
        c.tx(datagram(&c, &[9; 8]))?;
        match c.wc_within(Kind::Recv, c.calm())? {
            None => Ok(()),
            Some(wc) => check(wc.status != "SUCCESS", || "it succeeded".into()),
        }
    }),
    must("UD.ZERO.1", "A datagram of no bytes takes a receive", "IBTA 9.8.3", |b| {
        let mut c = ud(b)?;
        let posted = c.post_recv(128)?;
        c.tx(datagram(&c, &[]))?;
        same("byte_len", c.done(Kind::Recv, posted.wr_id)?.byte_len, 40)
    }),
    must(
        "UD.EMPTY.1",
        "A datagram without a receive is dropped, and the next one arrives",
        "IBTA 9.8.3.2",
        |b| {
            let mut c = ud(b)?;
            let mut other = c.sibling()?;
            let behind = other.post_recv(128)?;
            c.tx(datagram(&c, &[9; 8]))?;
            // When this datagram completes, the device has handled the one before it too.
            other.tx(datagram(&other, &[5; 8]))?;
            other.done(Kind::Recv, behind.wr_id)?;
            c.wait_calm()?;
            let posted = c.post_recv(128)?;
            c.tx(datagram(&c, &[1; 8]))?;
            c.done(Kind::Recv, posted.wr_id)?;
            c.received(posted.offset + 40, &[1; 8])
        },
    ),
    must(
        "UD.SEND.1",
        "A posted datagram carries Q_Key, source and destination queue pair",
        "IBTA 9.2.6, 9.8.3",
        |b| {
            let mut c = ud(b)?;
            c.set_local(0, &pattern(4, 30))?;
            let wr = c.post_to(WrOp::Send, 30, (c.qpn, 0x2222_3333))?;
            let expected =
                Packet::of(op::UD_SEND_ONLY).qkey(0x2222_3333).src_qp(c.qp.qpn).data(pattern(4, 30));
            c.rx(expected)?;
            c.done(Kind::Send, wr).map(|_| ())
        },
    ),
    must(
        "UD.SEND.2",
        "A remote Q_Key with the top bit set is replaced by the queue pair's own",
        "IBTA 10.2.5",
        |b| {
            let mut c = ud(b)?;
            c.post_to(WrOp::Send, 8, (c.qpn, 0x8000_0001))?;
            c.rx(Packet::of(op::UD_SEND_ONLY).qkey(QKEY)).map(|_| ())
        },
    ),
    must("UD.SEND.3", "The immediate of a posted datagram is in its packet", "IBTA 9.2.8", |b| {
        let mut c = ud(b)?;
        c.post_to(WrOp::SendWithImm { imm: 0x0102_0304 }, 8, (c.qpn, QKEY))?;
        c.rx(Packet::of(op::UD_SEND_ONLY_IMM).imm(0x0102_0304)).map(|_| ())
    }),
    should("UD.SEND.4", "A datagram does not ask for an acknowledgement", "IBTA 9.2.7", |b| {
        let mut c = ud(b)?;
        c.post_to(WrOp::Send, 8, (c.qpn, QKEY))?;
        c.rx(Packet::of(op::UD_SEND_ONLY).ack_req(false)).map(|_| ())
    }),
    must("UD.SEND.5", "The PSN of datagrams counts up", "IBTA 9.8.3.1", |b| {
        let mut c = ud(b)?;
        for at in 0..3 {
            c.post_to(WrOp::Send, 8, (c.qpn, QKEY))?;
            c.rx(Packet::of(op::UD_SEND_ONLY).psn(c.options.dut_psn + at))?;
        }
        Ok(())
    }),
];
