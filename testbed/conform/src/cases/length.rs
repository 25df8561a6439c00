//! Lengths: packets against the path MTU, messages against what was announced and posted, nothing at all, pad
//! (IBTA vol. 1, 9.7.4.1.6, 9.2.3 and 9.9.3).

use crate::{
    bench::Bench,
    case::{Case, Outcome, check, must, named, numbered, same, template},
    conn::pattern,
    dut::{Kind, State, WrOp},
    wire::{Packet, op},
};

/// Adds the cases of this theme.
pub(super) fn add(all: &mut Vec<Case>) {
    let members = || numbered([256, 512, 1024, 2048, 4096]);
    all.extend(MTU_IN.family(members(), takes_full_packets));
    all.extend(MTU_OUT.family(members(), sends_full_packets));
    all.extend(MTU_READ.family(members(), responds_full_packets));
    let members = || numbered([1, 2, 3, 4, 5]);
    all.extend(PAD_IN.family(members(), takes_pad));
    all.extend(PAD_OUT.family(members(), sends_pad));
    all.extend(PAD_READ.family(members(), responds_pad));
    let wrong = [
        (0, "SEND.FIRST.SHORT", "SEND first that is shorter than the path MTU"),
        (1, "SEND.ONLY.LONG", "SEND only that is longer than the path MTU"),
        (2, "WRITE.FIRST.SHORT", "WRITE first that is shorter than the path MTU"),
        (3, "WRITE.ONLY.LONG", "WRITE only that is longer than the path MTU"),
        (4, "WRITE.ONLY.MORE", "WRITE only with more bytes than its RETH says"),
        (5, "WRITE.ONLY.LESS", "WRITE only with fewer bytes than its RETH says"),
        (6, "SEND.FIRST.EMPTY", "SEND first without payload"),
        (7, "READ.HUGE", "READ of more than 2 GiB"),
    ];
    all.extend(REFUSED.family(named(wrong), refused));
    all.extend_from_slice(CASES);
}

const MTU_IN: Case = must(
    "RC.MTU.IN",
    "Messages in packets of the path MTU {} are taken",
    "IBTA 9.7.4.1.6, 11.2.5.2",
    template,
);
const MTU_OUT: Case =
    must("RC.MTU.OUT", "Messages leave in packets of the path MTU {}", "IBTA 9.7.4.1.6, 11.2.5.2", template);
const MTU_READ: Case =
    must("RC.MTU.READ", "READ responses have the path MTU {}", "IBTA 9.7.4.1.6, 11.2.5.2", template);
const PAD_IN: Case =
    must("RC.PAD.IN", "A payload of {} bytes is taken without its pad", "IBTA 9.2.3", template);
const PAD_OUT: Case = must(
    "RC.PAD.OUT",
    "A payload of {} bytes leaves with the pad that completes four",
    "IBTA 9.2.3",
    template,
);
const PAD_READ: Case = must(
    "RC.PAD.READ",
    "A READ of {} bytes is answered with the pad that completes four",
    "IBTA 9.2.3",
    template,
);
const REFUSED: Case = must("RC.LENGTH", "A {} is an invalid request", "IBTA 9.7.4.1.6, 9.9.3", template);

fn takes_full_packets(b: &mut Bench, mtu: u32) -> Outcome {
    let mut c = b.rc_with(|o| o.mtu = mtu)?;
    let data = pattern(4, 2 * mtu as usize + 1);
    let (va, rkey) = c.at(0);
    let mut parts = data.chunks(c.mtu()).map(<[u8]>::to_vec);
    let mut part = || parts.next().unwrap_or_default();
    c.tx(Packet::of(op::WRITE_FIRST).reth(va, rkey, data.len() as u32).data(part()))?;
    c.tx(Packet::of(op::WRITE_MIDDLE).data(part()))?;
    let psn = c.tx(Packet::of(op::WRITE_LAST).data(part()).ask())?;
    c.acked(psn)?;
    c.holds(0, &data)
}

fn sends_full_packets(b: &mut Bench, mtu: u32) -> Outcome {
    let mut c = b.rc_with(|o| o.mtu = mtu)?;
    let data = pattern(5, 2 * mtu as usize + 3);
    c.set_local(0, &data)?;
    let wr = c.post(WrOp::Send, data.len())?;
    let mut parts = data.chunks(c.mtu()).map(<[u8]>::to_vec);
    for code in [op::SEND_FIRST, op::SEND_MIDDLE, op::SEND_LAST] {
        c.request(Packet::of(code).data(parts.next().unwrap_or_default()))?;
    }
    c.ack(c.expected - 1)?;
    c.done(Kind::Send, wr).map(|_| ())
}

fn responds_full_packets(b: &mut Bench, mtu: u32) -> Outcome {
    let mut c = b.rc_with(|o| o.mtu = mtu)?;
    let data = pattern(6, 3 * mtu as usize);
    c.set(0, &data)?;
    let psn = c.tx(c.read(0, data.len()))?;
    let mut parts = data.chunks(c.mtu()).map(<[u8]>::to_vec);
    for (at, code) in (0..).zip([op::READ_FIRST, op::READ_MIDDLE, op::READ_LAST]) {
        c.rx(Packet::of(code).psn(psn + at).data(parts.next().unwrap_or_default()))?;
    }
    c.alive().map(|_| ())
}

fn takes_pad(b: &mut Bench, len: u32) -> Outcome {
    let mut c = b.rc()?;
    let posted = c.post_recv(64)?;
    let data = pattern(9, len as usize);
    let psn = c.tx(Packet::of(op::SEND_ONLY).data(data.clone()).ask())?;
    c.acked(psn)?;
    same("byte_len", c.done(Kind::Recv, posted.wr_id)?.byte_len, len)?;
    c.received(posted.offset, &[data, vec![0; 4]].concat())
}

fn sends_pad(b: &mut Bench, len: u32) -> Outcome {
    let mut c = b.rc()?;
    let data = pattern(9, len as usize);
    c.set_local(0, &data)?;
    c.post(WrOp::Send, data.len())?;
    c.request(Packet::of(op::SEND_ONLY).data(data).pad((len.wrapping_neg() & 3) as u8)).map(|_| ())
}

fn responds_pad(b: &mut Bench, len: u32) -> Outcome {
    let mut c = b.rc()?;
    let data = pattern(9, len as usize);
    c.set(3, &data)?;
    c.tx(c.read(3, data.len()))?;
    c.rx(Packet::of(op::READ_ONLY).data(data).pad((len.wrapping_neg() & 3) as u8)).map(|_| ())
}

fn refused(b: &mut Bench, which: u32) -> Outcome {
    let mut c = b.rc()?;
    c.post_recv(8192)?;
    let (va, rkey) = c.at(0);
    let packet = match which {
        0 => Packet::of(op::SEND_FIRST).data(vec![1; 1020]),
        1 => Packet::of(op::SEND_ONLY).data(vec![1; 1028]),
        2 => Packet::of(op::WRITE_FIRST).reth(va, rkey, 2048).data(vec![1; 1020]),
        3 => Packet::of(op::WRITE_ONLY).reth(va, rkey, 1028).data(vec![1; 1028]),
        4 => Packet::of(op::WRITE_ONLY).reth(va, rkey, 4).data(vec![1; 8]),
        5 => Packet::of(op::WRITE_ONLY).reth(va, rkey, 12).data(vec![1; 8]),
        6 => Packet::of(op::SEND_FIRST).data(Vec::new()),
        _ => Packet::of(op::READ_REQUEST).reth(va, rkey, 0x8000_0001),
    };
    // Sent as it is: counted as a READ of that size, it would use up millions of PSNs.
    let psn = c.psn;
    c.raw(packet.ask())?;
    let got = c.rx(Packet::of(op::ACK).psn(psn))?;
    // No region can hold the range of case 7, so the check of the length and that of the range may each refuse it.
    let right = got.syndrome == Some(0x61) || which == 7 && got.syndrome == Some(0x62);
    check(right, || format!("expected the NAK of an invalid request, got {}", got.summary()))?;
    c.in_state(State::Err)?;
    c.holds(0, &[0; 16])
}

const CASES: &[Case] = &[
    must(
        "RC.LENGTH.LAST.EMPTY",
        "A SEND last without payload is an invalid request",
        "IBTA 9.7.4.1.6",
        |b| {
            let mut c = b.rc()?;
            c.post_recv(8192)?;
            c.tx(Packet::of(op::SEND_FIRST).data(vec![1; 1024]))?;
            let psn = c.tx(Packet::of(op::SEND_LAST).ask())?;
            c.naked(psn, 0x61).map(|_| ())
        },
    ),
    must(
        "RC.LENGTH.LAST.LONG",
        "A SEND last that is longer than the path MTU is an invalid request",
        "IBTA 9.7.4.1.6",
        |b| {
            let mut c = b.rc()?;
            c.post_recv(8192)?;
            c.tx(Packet::of(op::SEND_FIRST).data(vec![1; 1024]))?;
            let psn = c.tx(Packet::of(op::SEND_LAST).data(vec![1; 1028]).ask())?;
            c.naked(psn, 0x61).map(|_| ())
        },
    ),
    must(
        "RC.LENGTH.MIDDLE.SHORT",
        "A SEND middle that is shorter than the path MTU is an invalid request",
        "IBTA 9.7.4.1.6",
        |b| {
            let mut c = b.rc()?;
            c.post_recv(8192)?;
            c.tx(Packet::of(op::SEND_FIRST).data(vec![1; 1024]))?;
            let psn = c.tx(Packet::of(op::SEND_MIDDLE).data(vec![1; 512]).ask())?;
            c.naked(psn, 0x61).map(|_| ())
        },
    ),
    must(
        "RC.LENGTH.WRITE.MORE",
        "A WRITE that goes on beyond the length of its RETH is an invalid request",
        "IBTA 9.7.4.1.6",
        |b| {
            let mut c = b.rc()?;
            let (va, rkey) = c.at(0);
            c.tx(Packet::of(op::WRITE_FIRST).reth(va, rkey, 1500).data(vec![1; 1024]))?;
            let psn = c.tx(Packet::of(op::WRITE_LAST).data(vec![2; 1000]).ask())?;
            c.naked(psn, 0x61)?;
            c.holds(1500, &[0; 8])
        },
    ),
    must(
        "RC.LENGTH.WRITE.LESS",
        "A WRITE that ends before the length of its RETH is an invalid request",
        "IBTA 9.7.4.1.6",
        |b| {
            let mut c = b.rc()?;
            let (va, rkey) = c.at(0);
            c.tx(Packet::of(op::WRITE_FIRST).reth(va, rkey, 2048).data(vec![1; 1024]))?;
            let psn = c.tx(Packet::of(op::WRITE_LAST).data(vec![2; 8]).ask())?;
            c.naked(psn, 0x61).map(|_| ())
        },
    ),
    must(
        "RC.LENGTH.RECV.1",
        "A SEND longer than its receive is an invalid request",
        "IBTA 9.9.3, table 62",
        |b| {
            let mut c = b.rc()?;
            c.post_recv(16)?;
            let psn = c.tx(Packet::of(op::SEND_ONLY).data(vec![1; 20]).ask())?;
            c.naked(psn, 0x61).map(|_| ())
        },
    ),
    must(
        "RC.LENGTH.RECV.2",
        "A receive that is too short completes with a local length error",
        "IBTA 10.10.3.2",
        |b| {
            let mut c = b.rc()?;
            let posted = c.post_recv(16)?;
            c.tx(Packet::of(op::SEND_ONLY).data(vec![1; 20]).ask())?;
            c.failed(Kind::Recv, posted.wr_id, "LOC_LEN_ERR").map(|_| ())
        },
    ),
    must("RC.LENGTH.RECV.3", "A SEND too long writes nothing behind its receive", "IBTA 10.10.3.2", |b| {
        let mut c = b.rc()?;
        let posted = c.post_recv(16)?;
        c.tx(Packet::of(op::SEND_ONLY).data(vec![1; 20]).ask())?;
        c.wc(Kind::Recv)?;
        c.received(posted.offset + 16, &[0; 8])
    }),
    must("RC.LENGTH.RECV.4", "A SEND as long as its receive is taken", "IBTA 9.9.3", |b| {
        let mut c = b.rc()?;
        let posted = c.post_recv(1500)?;
        c.tx(Packet::of(op::SEND_FIRST).data(vec![1; 1024]))?;
        let psn = c.tx(Packet::of(op::SEND_LAST).data(vec![1; 476]).ask())?;
        c.acked(psn)?;
        c.done(Kind::Recv, posted.wr_id).map(|_| ())
    }),
    must("RC.LENGTH.ZERO.1", "A SEND of no bytes takes a receive", "IBTA 9.7.4.1.6", |b| {
        let mut c = b.rc()?;
        let posted = c.post_recv(16)?;
        let psn = c.tx(Packet::of(op::SEND_ONLY).ask())?;
        c.acked(psn)?;
        same("byte_len", c.done(Kind::Recv, posted.wr_id)?.byte_len, 0)
    }),
    must(
        "RC.LENGTH.ZERO.2",
        "A SEND of no bytes leaves as one packet without payload",
        "IBTA 9.7.4.1.6",
        |b| {
            let mut c = b.rc()?;
            let wr = c.post(WrOp::Send, 0)?;
            let got = c.request(Packet::of(op::SEND_ONLY).data(vec![]).pad(0))?;
            c.ack(got.psn.unwrap_or(0))?;
            c.done(Kind::Send, wr).map(|_| ())
        },
    ),
    must("RC.LENGTH.ZERO.3", "A WRITE with immediate of no bytes takes a receive", "IBTA 9.7.4.1.6", |b| {
        let mut c = b.rc()?;
        let posted = c.post_recv(16)?;
        let psn = c.tx(Packet::of(op::WRITE_ONLY_IMM).reth(0, 0, 0).imm(5).ask())?;
        c.acked(psn)?;
        same("the immediate", c.done(Kind::Recv, posted.wr_id)?.imm, Some(5))
    }),
    must(
        "RC.LENGTH.ZERO.4",
        "A READ of no bytes leaves with length 0 and ends with one empty response",
        "IBTA 9.7.4.1.6",
        |b| {
            let mut c = b.rc()?;
            let wr = c.post(WrOp::RdmaRead { remote_addr: 0x10, rkey: 1 }, 0)?;
            let got = c.request(Packet::of(op::READ_REQUEST).dma_len(0))?;
            c.respond(got.psn.unwrap_or(0), Packet::of(op::READ_ONLY).msn(1))?;
            c.done(Kind::Send, wr).map(|_| ())
        },
    ),
    must("RC.PAD.NONZERO", "What the pad bytes are does not matter", "IBTA 9.2.3", |b| {
        let mut c = b.rc()?;
        let psn = c.tx(c.write(0, &[1, 2, 3]).pad_bytes(vec![0xff]))?;
        c.acked(psn)?;
        c.holds(0, &[1, 2, 3, 0])
    }),
    must("RC.PAD.MORE", "A packet with more pad than payload is not executed", "IBTA 9.6.1", |b| {
        let c = b.rc()?;
        let (va, rkey) = c.at(0);
        c.raw(Packet::of(op::WRITE_ONLY).reth(va, rkey, 0).pad(3).pad_bytes(vec![]).ask())?;
        if let Some(got) = c.next(c.calm())? {
            check(got.syndrome == Some(0x61), || {
                format!("expected nothing or a NAK, got {}", got.summary())
            })?;
        }
        c.holds(0, &[0; 8])
    }),
];
