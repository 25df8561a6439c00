//! Opcode sequences: what may follow what (IBTA vol. 1, 9.7.4.1.2 and table 40), padding, and what a violation leads to.

use crate::{
    bench::Bench,
    case::{Case, Outcome, must, template},
    conn::{Conn, pattern},
    dut::{Feature, Kind, State},
    wire::{Packet, name, op},
};

/// Adds the cases of this theme.
pub(super) fn add(all: &mut Vec<Case>) {
    let members = |codes: &[u8]| -> Vec<_> {
        codes
            .iter()
            .map(|&code| (u32::from(code), format!("{code:02X}"), name(code)[3..].to_owned()))
            .collect()
    };
    let outside = [
        op::SEND_MIDDLE,
        op::SEND_LAST,
        op::SEND_LAST_IMM,
        op::WRITE_MIDDLE,
        op::WRITE_LAST,
        op::WRITE_LAST_IMM,
    ];
    all.extend(OUTSIDE.family(members(&outside), outside_a_message));
    all.extend(
        OUTSIDE
            .family(members(&[op::SEND_LAST_INV]), outside_a_message)
            .map(|case| case.needs(&[Feature::Windows])),
    );
    let starts = [
        op::SEND_FIRST,
        op::SEND_ONLY,
        op::SEND_ONLY_IMM,
        op::WRITE_FIRST,
        op::WRITE_ONLY,
        op::WRITE_ONLY_IMM,
        op::READ_REQUEST,
        op::COMPARE_SWAP,
        op::FETCH_ADD,
    ];
    let mut in_send = starts.to_vec();
    in_send.extend([op::WRITE_MIDDLE, op::WRITE_LAST, op::WRITE_LAST_IMM]);
    all.extend(IN_SEND.family(members(&in_send), inside_a_send));
    let mut in_write = starts.to_vec();
    in_write.extend([op::SEND_MIDDLE, op::SEND_LAST, op::SEND_LAST_IMM]);
    all.extend(IN_WRITE.family(members(&in_write), inside_a_write));
    all.extend_from_slice(RIGHT);
}

const SOURCE: &str = "IBTA 9.7.4.1.2, table 40";
const OUTSIDE: Case =
    must("RC.SEQ.OUTSIDE", "{} where no message is open is an invalid request", SOURCE, template);
const IN_SEND: Case = must("RC.SEQ.SEND", "{} inside a SEND is an invalid request", SOURCE, template);
const IN_WRITE: Case = must("RC.SEQ.WRITE", "{} inside a WRITE is an invalid request", SOURCE, template);

/// A packet of that opcode that is right, except for its place in the sequence.
fn packet(c: &Conn, code: u8) -> Packet {
    let (va, rkey) = c.at(0);
    let full = matches!(code, op::SEND_FIRST | op::SEND_MIDDLE | op::WRITE_FIRST | op::WRITE_MIDDLE);
    let data = match code {
        op::READ_REQUEST | op::COMPARE_SWAP | op::FETCH_ADD => Vec::new(),
        _ => vec![9; if full { 1024 } else { 8 }],
    };
    let len = if code == op::WRITE_FIRST { 2048 } else { 8 };
    Packet::of(code).reth(va, rkey, len).data(data).ask()
}

/// The packet is refused as an invalid request, and the queue pair enters the error state.
fn refused(c: &mut Conn, code: u8) -> Outcome {
    let psn = c.tx(packet(c, code))?;
    c.naked(psn, 0x61)?;
    c.raw(c.write(0, &[1; 8]))?;
    c.quiet()?;
    c.in_state(State::Err)
}

fn outside_a_message(b: &mut Bench, code: u32) -> Outcome {
    let mut c = b.rc()?;
    c.post_recv(4096)?;
    refused(&mut c, code as u8)?;
    c.holds(0, &[0; 8])
}

fn inside_a_send(b: &mut Bench, code: u32) -> Outcome {
    let mut c = b.rc()?;
    c.post_recv(4096)?;
    c.post_recv(4096)?;
    c.tx(Packet::of(op::SEND_FIRST).data(vec![1; 1024]))?;
    refused(&mut c, code as u8)?;
    c.holds(0, &[0; 8])?;
    // The receive of the unfinished message must not succeed.
    let wc = c.wc(Kind::Recv)?;
    crate::case::check(wc.status != "SUCCESS", || "the receive of the broken message succeeded".into())
}

fn inside_a_write(b: &mut Bench, code: u32) -> Outcome {
    let mut c = b.rc()?;
    c.post_recv(4096)?;
    let (va, rkey) = c.at(4096);
    c.tx(Packet::of(op::WRITE_FIRST).reth(va, rkey, 2048).data(vec![1; 1024]))?;
    refused(&mut c, code as u8)?;
    c.holds(0, &[0; 8])
}

/// Sends a message in packets of the given opcodes. The last one asks for an acknowledgement, and it comes.
fn message(c: &mut Conn, codes: &[u8], data: &[u8]) -> Outcome {
    let (va, rkey) = c.at(0);
    let mut last = 0;
    for (code, part) in codes.iter().zip(data.chunks(c.mtu())) {
        let packet = Packet::of(*code).reth(va, rkey, data.len() as u32).imm(0xa1b2_c3d4).data(part.to_vec());
        last = c.tx(if code == codes.last().unwrap_or(&0) { packet.ask() } else { packet })?;
    }
    c.acked(last).map(|_| ())
}

/// A SEND of these packets arrives whole.
fn sent(b: &mut Bench, codes: &[u8], len: usize, imm: Option<u32>) -> Outcome {
    let mut c = b.rc()?;
    let posted = c.post_recv(len.max(1))?;
    let data = pattern(9, len);
    message(&mut c, codes, &data)?;
    let wc = c.done(Kind::Recv, posted.wr_id)?;
    crate::case::same("byte_len", wc.byte_len as usize, len)?;
    crate::case::same("the immediate", wc.imm, imm)?;
    c.received(posted.offset, &data)
}

/// A WRITE of these packets arrives whole; with an immediate it takes a receive.
fn written(b: &mut Bench, codes: &[u8], len: usize, imm: Option<u32>) -> Outcome {
    let mut c = b.rc()?;
    let posted = c.post_recv(16)?;
    let data = pattern(8, len);
    message(&mut c, codes, &data)?;
    c.holds(0, &data)?;
    if imm.is_none() {
        return c.nothing_done(Kind::Recv);
    }
    let wc = c.done(Kind::Recv, posted.wr_id)?;
    crate::case::same("byte_len", wc.byte_len as usize, len)?;
    crate::case::same("the opcode", wc.opcode.as_str(), "RECV_RDMA_WITH_IMM")?;
    crate::case::same("the immediate", wc.imm, imm)
}

const IMM: Option<u32> = Some(0xa1b2_c3d4);

const RIGHT: &[Case] = &[
    must("RC.SEQ.SEND.TWO", "SEND first and last are one message", SOURCE, |b| {
        sent(b, &[op::SEND_FIRST, op::SEND_LAST], 1025, None)
    }),
    must("RC.SEQ.SEND.MANY", "SEND first, middles and last are one message", SOURCE, |b| {
        sent(b, &[op::SEND_FIRST, op::SEND_MIDDLE, op::SEND_MIDDLE, op::SEND_LAST], 3100, None)
    }),
    must(
        "RC.SEQ.SEND.IMM",
        "SEND last with immediate ends a message, and the immediate is told",
        SOURCE,
        |b| sent(b, &[op::SEND_FIRST, op::SEND_LAST_IMM], 2048, IMM),
    ),
    must(
        "RC.SEQ.SEND.ONLY.IMM",
        "SEND only with immediate is a message, and the immediate is told",
        SOURCE,
        |b| sent(b, &[op::SEND_ONLY_IMM], 3, IMM),
    ),
    must("RC.SEQ.WRITE.TWO", "WRITE first and last are one message", SOURCE, |b| {
        written(b, &[op::WRITE_FIRST, op::WRITE_LAST], 1025, None)
    }),
    must("RC.SEQ.WRITE.MANY", "WRITE first, middles and last are one message", SOURCE, |b| {
        written(b, &[op::WRITE_FIRST, op::WRITE_MIDDLE, op::WRITE_MIDDLE, op::WRITE_LAST], 4096, None)
    }),
    must(
        "RC.SEQ.WRITE.IMM",
        "WRITE last with immediate takes a receive, which says the WRITE's length",
        SOURCE,
        |b| written(b, &[op::WRITE_FIRST, op::WRITE_LAST_IMM], 2000, IMM),
    ),
    must(
        "RC.SEQ.WRITE.ONLY.IMM",
        "WRITE only with immediate takes a receive, whose memory stays as it is",
        SOURCE,
        |b| written(b, &[op::WRITE_ONLY_IMM], 10, IMM),
    ),
    must(
        "RC.SEQ.ERROR.1",
        "After an invalid request the receives that are left are flushed in order",
        "IBTA 10.3.1.7, 9.9.3",
        |b| {
            let mut c = b.rc()?;
            let first = c.post_recv(64)?;
            let second = c.post_recv(64)?;
            let psn = c.tx(Packet::of(op::SEND_LAST).data(vec![1; 4]).ask())?;
            c.naked(psn, 0x61)?;
            c.failed(Kind::Recv, first.wr_id, "WR_FLUSH_ERR")?;
            c.failed(Kind::Recv, second.wr_id, "WR_FLUSH_ERR").map(|_| ())
        },
    ),
];
