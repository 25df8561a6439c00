//! RC, we post the requests.

use crate::pair::{Pair, ROUNDS, equal, same};
use rxe_verbs::{SendOp, WcOpcode, WcStatus};
use serde_json::Value;
use testbed::{agent::Failure, pattern::pattern};

/// Message sizes around the path MTU of 1024.
pub(crate) const LENGTHS: [usize; 6] = [0, 1, 1023, 1024, 4097, 100_000];
pub(crate) const MIB: usize = 1 << 20;

/// SENDs one message, which the kernel's side compares; its completion.
pub(crate) fn send_one(pair: &mut Pair<'_>, op: SendOp, len: usize, seed: u64) -> Result<Value, Failure> {
    pair.they_receive(0, 200_000)?;
    pair.mr.write_at(0, &pattern(seed, len))?;
    pair.post(op, 0, len)?;
    pair.we_did(WcOpcode::Send)?;
    let wc = pair.they_did("RECV")?;
    if wc["byte_len"] != len {
        return Err(format!("byte_len of {wc} is not {len}").into());
    }
    pair.they_check(0, len, seed)?;
    Ok(wc)
}

pub(crate) fn send(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for (seed, len) in (1..).zip(LENGTHS) {
        send_one(pair, SendOp::Send, len, seed)?;
    }
    Ok(())
}

pub(crate) fn send_imm(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let wc = send_one(pair, SendOp::SendImm([1, 2, 3, 4]), 3000, 9)?;
    if wc["imm"] == 0x0102_0304 { Ok(()) } else { Err(format!("wrong immediate: {wc}").into()) }
}

pub(crate) fn write(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for (seed, len) in (1..).zip(LENGTHS.into_iter().chain([MIB])) {
        pair.mr.write_at(0, &pattern(seed, len))?;
        pair.post(SendOp::Write(pair.there(64)), 0, len)?;
        pair.we_did(WcOpcode::Write)?;
        pair.they_check(64, len, seed)?;
    }
    Ok(())
}

pub(crate) fn write_imm(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.they_receive(0, 16)?;
    pair.mr.write_at(0, &pattern(5, 5000))?;
    pair.post(SendOp::WriteImm(pair.there(100), [9, 8, 7, 6]), 0, 5000)?;
    pair.we_did(WcOpcode::Write)?;
    let wc = pair.they_did("RECV_RDMA_WITH_IMM")?;
    pair.they_check(100, 5000, 5)?;
    if wc["imm"] == 0x0908_0706 { Ok(()) } else { Err(format!("wrong immediate: {wc}").into()) }
}

pub(crate) fn read(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for (seed, len) in (1..).zip(LENGTHS.into_iter().chain([MIB])) {
        pair.they_fill(32, len, seed)?;
        pair.mr.fill(0)?;
        pair.post(SendOp::Read(pair.there(32)), 7, len)?;
        pair.we_did(WcOpcode::Read)?;
        same("what was read", &pair.mr.read_vec(7, len)?, &pattern(seed, len))?;
    }
    Ok(())
}

pub(crate) fn compare_swap(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.set_their_u64(8, 5)?;
    for (compare, swap, before, after) in [(4, 9, 5, 5), (5, 1 << 40, 5, 1 << 40)] {
        pair.post(SendOp::CompareSwap { remote: pair.there(8), compare, swap }, 16, 8)?;
        pair.we_did(WcOpcode::CompareSwap)?;
        let seen = (pair.mr.load_u64(16)?, pair.their_u64(8)?);
        equal("the original and the new value", seen, (before, after))?;
    }
    Ok(())
}

pub(crate) fn fetch_add(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.set_their_u64(8, u64::MAX - 1)?;
    for round in 0..8_u64 {
        pair.post(SendOp::FetchAdd { remote: pair.there(8), add: 3 }, 16, 8)?;
        pair.we_did(WcOpcode::FetchAdd)?;
        equal("the original", pair.mr.load_u64(16)?, (u64::MAX - 1).wrapping_add(3 * round))?;
    }
    equal("the sum", pair.their_u64(8)?, 22)
}

pub(crate) fn late_receive(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.mr.write_at(0, &pattern(3, 2000))?;
    pair.post(SendOp::Send, 0, 2000)?;
    pair.we_count(ROUNDS, "RNR NAKs received", |stats| stats.rnr_naks_received)?;
    pair.they_receive(0, 4000)?;
    pair.we_did(WcOpcode::Send)?;
    pair.they_did("RECV")?;
    pair.they_check(0, 2000, 3)
}

/// Kernel 6.1 drops the newer opcodes unanswered, as any it does not know.
fn dropped(pair: &mut Pair<'_>, opcode: WcOpcode) -> Result<(), Failure> {
    pair.we_ended(WcStatus::RetryExceeded, opcode)?;
    pair.lacks("kernel 6.1 has none: drops it unanswered, RetryExceeded here")
}

pub(crate) fn atomic_write(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let value = 0x1122_3344_5566_7788_u64;
    pair.post(SendOp::AtomicWrite { remote: pair.there(24), value: value.to_le_bytes() }, 0, 0)?;
    if pair.old {
        return dropped(pair, WcOpcode::AtomicWrite);
    }
    pair.we_did(WcOpcode::AtomicWrite)?;
    equal("what was stored", pair.their_u64(24)?, value)
}

pub(crate) fn flush(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.post(SendOp::Flush { remote: pair.there(0), len: 4096, placement: 1, selectivity: 0 }, 0, 0)?;
    if pair.old {
        return dropped(pair, WcOpcode::Flush);
    }
    pair.we_did(WcOpcode::Flush)?;
    pair.deviates("kernel 6.12 hashes FLUSH's headers twice: the first try, as specified, is dropped");
    Ok(())
}
