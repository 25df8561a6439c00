//! Memory windows: bound, used by the peer, taken back, used in vain.

use crate::{
    bench::SIZE,
    pair::{Pair, same},
};
use rxe_verbs::{Key, Remote, SendOp, WcOpcode, WcStatus};
use testbed::{agent::Failure, pattern::pattern};

pub(crate) mod one;
pub(crate) mod two;

/// Where windows lie in the owner's region, and their length.
const START: usize = 4096;
const LEN: usize = 8192;

/// We WRITE through a window of the kernel and READ the bytes back.
fn we_use(pair: &mut Pair<'_>, key: u32, seed: u64) -> Result<(), Failure> {
    let remote = Remote { addr: pair.there(START + 100).addr, rkey: Key(key) };
    pair.mr.write_at(0, &pattern(seed, 5000))?;
    pair.post(SendOp::Write(remote), 0, 5000)?;
    pair.we_did(WcOpcode::Write)?;
    pair.they_check(START + 100, 5000, seed)?;
    pair.mr.fill(0)?;
    pair.post(SendOp::Read(remote), 50, 5000)?;
    pair.we_did(WcOpcode::Read)?;
    same("what was read", &pair.mr.read_vec(50, 5000)?, &pattern(seed, 5000))
}

/// The kernel does the same with a window of ours.
fn they_use(pair: &mut Pair<'_>, key: Key, seed: u64) -> Result<(), Failure> {
    let remote = Remote { addr: pair.here(START + 100).addr, rkey: key };
    pair.they_fill(0, 5000, seed)?;
    let wrs =
        [pair.their_wr("RDMA_WRITE", 0, 5000, remote), pair.their_wr("RDMA_READ", 20_000, 5000, remote)];
    pair.they_post(&wrs)?;
    pair.they_did("RDMA_WRITE")?;
    pair.they_did("RDMA_READ")?;
    same("what was written", &pair.mr.read_vec(START + 100, 5000)?, &pattern(seed, 5000))?;
    pair.they_check(20_000, 5000, seed)
}

/// The kernel refuses our WRITE of 100 bytes at `offset` of its region (or past its end) under that key.
fn we_are_refused(pair: &mut Pair<'_>, key: u32, offset: usize) -> Result<(), Failure> {
    let remote = Remote { addr: pair.there(offset).addr, rkey: Key(key) };
    let shown = 100.min(SIZE - offset);
    let before = pair.their_bytes(offset, shown)?;
    pair.post(SendOp::Write(remote), 0, 100)?;
    pair.we_ended(WcStatus::RemoteAccess, WcOpcode::Write)?;
    same("their memory after the refusal", &pair.their_bytes(offset, shown)?, &before)
}

/// We refuse the kernel's WRITE of 100 bytes at `offset` of our region under that key.
fn they_are_refused(pair: &mut Pair<'_>, key: Key, offset: usize) -> Result<(), Failure> {
    let before = pair.mr.read_vec(offset, 100)?;
    let wr = pair.their_wr("RDMA_WRITE", 0, 100, Remote { addr: pair.here(offset).addr, rkey: key });
    pair.they_post(&[wr])?;
    pair.they_ended("REM_ACCESS_ERR", "RDMA_WRITE")?;
    same("our memory after the refusal", &pair.mr.read_vec(offset, 100)?, &before)
}

/// Makes a window of the kernel: its handle.
fn their_window(pair: &mut Pair<'_>, kind: u8) -> Result<u64, Failure> {
    pair.agent.number("mw", &serde_json::json!({ "pd": pair.their_pd, "type": kind }), "handle")
}

/// Binds a window of the kernel to part of its region: the new key.
fn they_bind(pair: &mut Pair<'_>, window: u64, len: usize) -> Result<u32, Failure> {
    let order = serde_json::json!({
        "qp": pair.their_qp, "mw": window, "mr": pair.their_mr, "offset": START, "length": len,
        "access": ["REMOTE_WRITE", "REMOTE_READ"],
    });
    let key = pair.agent.number("bind_mw", &order, "rkey")?;
    pair.they_did("BIND_MW")?;
    Ok(u32::try_from(key)?)
}
