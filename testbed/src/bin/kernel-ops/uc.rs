//! Unreliable connections. A WRITE tells the peer nothing: an empty SEND behind it says that it has arrived.

use crate::{
    bench::SIZE,
    kernel, ours,
    pair::{Pair, equal, same},
};
use rxe_verbs::{SendOp, WcExtra, WcOpcode};
use serde_json::json;
use testbed::{agent::Failure, pattern::pattern};

/// Not more than queues on the way hold: nothing is sent again.
const LENGTHS: [usize; 5] = [0, 1, 1024, 4097, 20_000];

pub(crate) fn we_send(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for (seed, len) in (1..).zip(LENGTHS) {
        ours::send_one(pair, SendOp::Send, len, seed)?;
    }
    Ok(())
}

pub(crate) fn we_send_imm(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let wc = ours::send_one(pair, SendOp::SendImm([1, 2, 3, 4]), 3000, 9)?;
    equal("the immediate", wc["imm"].as_u64(), Some(0x0102_0304))
}

pub(crate) fn we_write(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for (seed, len) in (1..).zip(LENGTHS) {
        pair.they_receive(SIZE - 10, 10)?;
        pair.mr.write_at(0, &pattern(seed, len))?;
        pair.post(SendOp::Write(pair.there(64)), 0, len)?;
        pair.we_did(WcOpcode::Write)?;
        pair.post(SendOp::Send, 0, 0)?;
        pair.we_did(WcOpcode::Send)?;
        pair.they_did("RECV")?;
        pair.they_check(64, len, seed)?;
    }
    Ok(())
}

pub(crate) fn we_write_imm(pair: &mut Pair<'_>) -> Result<(), Failure> {
    ours::write_imm(pair)
}

pub(crate) fn they_send(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for (seed, len) in (1..).zip(LENGTHS) {
        kernel::send_one(pair, "SEND", len, seed)?;
    }
    Ok(())
}

pub(crate) fn they_send_imm(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let wc = kernel::send_one(pair, "SEND_WITH_IMM", 3000, 9)?;
    equal("the immediate", wc.extra, WcExtra::Immediate([1, 2, 3, 4]))
}

pub(crate) fn they_write(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for (seed, len) in (1..).zip(LENGTHS) {
        pair.we_receive(3, SIZE - 10, 10)?;
        pair.they_fill(0, len, seed)?;
        let write = pair.their_wr("RDMA_WRITE", 0, len, pair.here(13));
        pair.they_post(&[write, json!({ "opcode": "SEND" })])?;
        pair.they_did("RDMA_WRITE")?;
        pair.they_did("SEND")?;
        pair.we_did(WcOpcode::Recv)?;
        same("what was written", &pair.mr.read_vec(13, len)?, &pattern(seed, len))?;
    }
    Ok(())
}

pub(crate) fn they_write_imm(pair: &mut Pair<'_>) -> Result<(), Failure> {
    kernel::write_imm(pair)
}
