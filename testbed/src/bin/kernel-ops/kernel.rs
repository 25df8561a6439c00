//! RC, the kernel posts the requests.

use crate::{
    ours::{LENGTHS, MIB},
    pair::{Pair, ROUNDS, equal, same},
};
use rxe_verbs::{Completion, WcExtra, WcOpcode};
use serde_json::json;
use testbed::{agent::Failure, pattern::pattern};

/// The kernel SENDs one message, which we compare; our completion.
pub(crate) fn send_one(
    pair: &mut Pair<'_>,
    opcode: &str,
    len: usize,
    seed: u64,
) -> Result<Completion, Failure> {
    pair.we_receive(3, 0, 200_000)?;
    pair.they_fill(0, len, seed)?;
    let sge = pair.their_sges(0, len);
    pair.they_post(&[json!({ "opcode": opcode, "sge": sge, "imm": 0x0102_0304 })])?;
    let wc = pair.we_did(WcOpcode::Recv)?;
    pair.they_did("SEND")?;
    equal("byte_len", wc.byte_len as usize, len)?;
    same("what was received", &pair.mr.read_vec(0, len)?, &pattern(seed, len))?;
    Ok(wc)
}

pub(crate) fn send(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for (seed, len) in (1..).zip(LENGTHS) {
        send_one(pair, "SEND", len, seed)?;
    }
    Ok(())
}

pub(crate) fn send_imm(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let wc = send_one(pair, "SEND_WITH_IMM", 3000, 9)?;
    equal("the immediate", wc.extra, WcExtra::Immediate([1, 2, 3, 4]))
}

pub(crate) fn write(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for (seed, len) in (1..).zip(LENGTHS.into_iter().chain([MIB])) {
        pair.they_fill(0, len, seed)?;
        let wr = pair.their_wr("RDMA_WRITE", 0, len, pair.here(13));
        pair.they_post(&[wr])?;
        pair.they_did("RDMA_WRITE")?;
        same("what was written", &pair.mr.read_vec(13, len)?, &pattern(seed, len))?;
    }
    Ok(())
}

pub(crate) fn write_imm(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.we_receive(3, 0, 0)?;
    pair.they_fill(0, 5000, 4)?;
    let mut wr = pair.their_wr("RDMA_WRITE_WITH_IMM", 0, 5000, pair.here(40));
    wr["imm"] = json!(0x0908_0706);
    pair.they_post(&[wr])?;
    let wc = pair.we_did(WcOpcode::RecvRdmaWithImm)?;
    pair.they_did("RDMA_WRITE")?;
    same("what was written", &pair.mr.read_vec(40, 5000)?, &pattern(4, 5000))?;
    equal("the immediate", wc.extra, WcExtra::Immediate([9, 8, 7, 6]))
}

pub(crate) fn read(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for (seed, len) in (1..).zip(LENGTHS.into_iter().chain([MIB])) {
        pair.mr.write_at(21, &pattern(seed, len))?;
        let wr = pair.their_wr("RDMA_READ", 5, len, pair.here(21));
        pair.they_post(&[wr])?;
        pair.they_did("RDMA_READ")?;
        pair.they_check(5, len, seed)?;
    }
    Ok(())
}

pub(crate) fn compare_swap(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.mr.swap_u64(8, 5)?;
    for (compare, swap, after) in [(4_u64, 9_u64, 5_u64), (5, 1 << 40, 1 << 40)] {
        let mut wr = pair.their_wr("ATOMIC_CMP_AND_SWP", 0, 8, pair.here(8));
        (wr["compare"], wr["swap"]) = (json!(compare), json!(swap));
        pair.they_post(&[wr])?;
        pair.they_did("COMP_SWAP")?;
        let seen = (pair.their_u64(0)?, pair.mr.load_u64(8)?);
        equal("the original and the new value", seen, (5, after))?;
    }
    Ok(())
}

pub(crate) fn fetch_add(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.mr.swap_u64(8, 100)?;
    for round in 0..8 {
        let mut wr = pair.their_wr("ATOMIC_FETCH_AND_ADD", 0, 8, pair.here(8));
        wr["add"] = json!(3);
        pair.they_post(&[wr])?;
        pair.they_did("FETCH_ADD")?;
        equal("the original", pair.their_u64(0)?, 100 + 3 * round)?;
    }
    equal("the sum", pair.mr.load_u64(8)?, 124)
}

pub(crate) fn late_receive(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.they_fill(0, 2000, 3)?;
    let sge = pair.their_sges(0, 2000);
    pair.they_post(&[json!({ "opcode": "SEND", "sge": sge })])?;
    pair.we_count(ROUNDS, "RNR NAKs sent", |stats| stats.rnr_naks_sent)?;
    pair.we_receive(3, 0, 4000)?;
    pair.we_did(WcOpcode::Recv)?;
    pair.they_did("SEND")?;
    same("what was received", &pair.mr.read_vec(0, 2000)?, &pattern(3, 2000))
}

/// Kernel 6.1 refuses the newer opcodes when they are posted or sent.
fn refused(pair: &mut Pair<'_>, wr: serde_json::Value) -> Result<(), Failure> {
    let how = match pair.they_post(&[wr]) {
        Err(error) => format!("refuses to post it ({error})"),
        Ok(()) => {
            let wc = pair.theirs()?;
            if wc["status"] == "SUCCESS" {
                return Err(format!("kernel 6.1 did it: {wc}").into());
            }
            format!("ends it with {}", wc["status"])
        }
    };
    pair.lacks(&format!("kernel 6.1 has none: {how}"))
}

pub(crate) fn atomic_write(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let here = pair.here(24);
    let value = 0x0807_0605_0403_0201_u64;
    let wr =
        json!({ "opcode": "ATOMIC_WRITE", "remote_addr": here.addr, "rkey": here.rkey.0, "value": value });
    if pair.old {
        return refused(pair, wr);
    }
    pair.they_post(&[wr])?;
    pair.they_did("ATOMIC_WRITE")?;
    same("what was stored", &pair.mr.read_vec(24, 8)?, &value.to_le_bytes())
}

pub(crate) fn flush(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let here = pair.here(0);
    let wr = json!({
        "opcode": "FLUSH", "remote_addr": here.addr, "rkey": here.rkey.0, "length": 4096, "type": 1, "level": 0,
    });
    if pair.old {
        return refused(pair, wr);
    }
    pair.they_post(&[wr])?;
    pair.they_did("FLUSH")?;
    Ok(())
}
