//! We post the requests.

use crate::{
    ours::MIB,
    pair::{Pair, equal, same},
};
use rxe_verbs::{SendOp, SendWr, WcOpcode, WcStatus};
use serde_json::{Value, json};
use testbed::{agent::Failure, pattern::pattern};

/// Requests posted together: fewer than the queues hold.
pub(crate) const BATCH: usize = 60;
/// FLUSHes posted together.
pub(crate) const FLUSHES: usize = 30;
/// Messages of the SEND case, and their length.
pub(crate) const SENDS: (usize, usize) = (64, 12_000);

/// Our next completion, which is a success of `opcode` and of request `wr_id`.
fn done(pair: &Pair<'_>, opcode: WcOpcode, wr_id: u64) -> Result<(), Failure> {
    let wc = pair.we_did(opcode)?;
    equal("wr_id", wc.wr_id, wr_id)
}

pub(crate) fn sends(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let (count, len) = SENDS;
    let wrs: Vec<Value> =
        (0..count).map(|at| json!({ "wr_id": at, "sge": pair.their_sges(at * len, len) })).collect();
    pair.they_receive_list(&wrs)?;
    pair.mr.write_at(0, &pattern(6, count * len))?;
    for at in 0..count {
        pair.qp.post_send(&SendWr::new(at as u64, SendOp::Send, &pair.sges(at * len, len)?))?;
    }
    for at in 0..count {
        done(pair, WcOpcode::Send, at as u64)?;
    }
    for (at, wc) in pair.theirs_many(count)?.iter().enumerate() {
        let seen = (wc["status"].as_str(), wc["wr_id"].as_u64(), wc["byte_len"].as_u64());
        equal("their status, wr_id, length", seen, (Some("SUCCESS"), Some(at as u64), Some(len as u64)))?;
    }
    pair.they_check(0, count * len, 6)?;
    pair.nothing_more()
}

pub(crate) fn writes(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for seed in 1..=2 {
        pair.mr.write_at(0, &pattern(seed, MIB))?;
        pair.post(SendOp::Write(pair.there(64)), 0, MIB)?;
        pair.we_did(WcOpcode::Write)?;
        pair.they_check(64, MIB, seed)?;
    }
    pair.nothing_more()
}

pub(crate) fn writes_imm(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let (count, len) = (24, 5000);
    let wrs: Vec<Value> = (0..count).map(|at| json!({ "wr_id": at })).collect();
    pair.they_receive_list(&wrs)?;
    pair.mr.write_at(0, &pattern(7, count * len))?;
    for at in 0..count {
        let op = SendOp::WriteImm(pair.there(at * len), u32::try_from(at)?.to_be_bytes());
        pair.post(op, at * len, len)?;
    }
    for _ in 0..count {
        pair.we_did(WcOpcode::Write)?;
    }
    for (at, wc) in pair.theirs_many(count)?.iter().enumerate() {
        let seen = (wc["opcode"].as_str(), wc["wr_id"].as_u64(), wc["imm"].as_u64());
        equal("their completion", seen, (Some("RECV_RDMA_WITH_IMM"), Some(at as u64), Some(at as u64)))?;
    }
    pair.they_check(0, count * len, 7)?;
    pair.nothing_more()
}

pub(crate) fn reads(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for seed in 1..=2 {
        pair.they_fill(32, MIB, seed)?;
        pair.post(SendOp::Read(pair.there(32)), 7, MIB)?;
        pair.we_did(WcOpcode::Read)?;
        same("what was read", &pair.mr.read_vec(7, MIB)?, &pattern(seed, MIB))?;
    }
    pair.nothing_more()
}

pub(crate) fn adds(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.set_their_u64(8, 1000)?;
    for round in 0..4 * BATCH {
        if round % BATCH == 0 && round > 0 {
            for _ in 0..BATCH {
                pair.we_did(WcOpcode::FetchAdd)?;
            }
        }
        pair.post(SendOp::FetchAdd { remote: pair.there(8), add: 3 }, 8 * round, 8)?;
    }
    for _ in 0..BATCH {
        pair.we_did(WcOpcode::FetchAdd)?;
    }
    for round in 0..4 * BATCH {
        equal("an original", pair.mr.load_u64(8 * round)?, 1000 + 3 * round as u64)?;
    }
    equal("the sum", pair.their_u64(8)?, 1000 + 3 * 4 * BATCH as u64)?;
    pair.nothing_more()
}

pub(crate) fn swaps(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.set_their_u64(16, 0)?;
    for half in 0..2 {
        for round in half * BATCH..(half + 1) * BATCH {
            let (compare, swap) = (round as u64, round as u64 + 1);
            pair.post(SendOp::CompareSwap { remote: pair.there(16), compare, swap }, 8 * round, 8)?;
        }
        for _ in 0..BATCH {
            pair.we_did(WcOpcode::CompareSwap)?;
        }
    }
    for round in 0..2 * BATCH {
        equal("an original", pair.mr.load_u64(8 * round)?, round as u64)?;
    }
    equal("the last value", pair.their_u64(16)?, 2 * BATCH as u64)?;
    pair.nothing_more()
}

pub(crate) fn atomic_writes(pair: &mut Pair<'_>) -> Result<(), Failure> {
    if pair.old {
        return pair.skip("kernel 6.1 has none");
    }
    for round in 0..BATCH {
        let value = (round as u64 + 1).to_le_bytes();
        pair.post(SendOp::AtomicWrite { remote: pair.there(8 * round), value }, 0, 0)?;
    }
    for _ in 0..BATCH {
        pair.we_did(WcOpcode::AtomicWrite)?;
    }
    equal("their memory", pair.their_u64s(0, BATCH)?, (1..=BATCH as u64).collect())?;
    pair.nothing_more()
}

/// Kernel 6.12 falls silent now and then: a capture of that shows 28 FLUSHes answered, then two sent seven times more, every second
/// time with the very bytes of the first, and neither an answer nor a NAK, while the guest is well. That is no end of this case:
/// it is played once more.
pub(crate) fn flushes(pair: &mut Pair<'_>) -> Result<(), Failure> {
    if pair.old {
        return pair.skip("kernel 6.1 has none");
    }
    for _ in 0..FLUSHES {
        pair.post(SendOp::Flush { remote: pair.there(0), len: 4096, placement: 1, selectivity: 0 }, 0, 0)?;
    }
    for done in 0..FLUSHES {
        let wc = pair.ours()?;
        if done > 0 && wc.status == WcStatus::RetryExceeded && pair.qp.stats().timeouts > 7 {
            return pair.fell_silent(done);
        }
        equal("status and opcode", (wc.status, wc.opcode), (WcStatus::Success, WcOpcode::Flush))?;
    }
    pair.nothing_more()
}
