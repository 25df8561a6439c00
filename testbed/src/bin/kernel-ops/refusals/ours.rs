//! We post what the kernel refuses.

use crate::pair::{Pair, equal};
use rxe_verbs::{Key, QpState, Remote, SendOp, SendWr, Sge, WcOpcode, WcStatus};
use serde_json::json;
use testbed::agent::Failure;

/// Posts `op`, a WRITE and a SEND; expects `status` and two flushed, and what becomes of the kernel's receive.
fn refused(pair: &mut Pair<'_>, op: SendOp, len: usize, status: WcStatus) -> Result<(), Failure> {
    pair.they_receive(0, 4096)?;
    ended(pair, op, len, status)?;
    pair.they_ended("WR_FLUSH_ERR", "RECV")?;
    pair.nothing_more()
}

fn ended(pair: &mut Pair<'_>, op: SendOp, len: usize, status: WcStatus) -> Result<(), Failure> {
    pair.post(op, 0, len)?;
    let behind = [SendOp::Write(pair.there(0)), SendOp::Send];
    for op in behind {
        match pair.post(op, 0, 10) {
            Ok(()) => {}
            Err(error) => return Err(format!("a request behind was not taken: {error}").into()),
        }
    }
    pair.we_ended(status, WcOpcode::Send)?;
    pair.we_ended(WcStatus::WorkRequestFlushed, WcOpcode::Write)?;
    pair.we_ended(WcStatus::WorkRequestFlushed, WcOpcode::Send)?;
    equal("our state", pair.qp.state(), QpState::Error)?;
    let theirs = pair.agent.call("query_qp", &json!({ "qp": pair.their_qp }))?;
    if pair.their_srq.is_none() && theirs["state"] != "ERR" && status != WcStatus::RnrRetryExceeded {
        return Err(format!("their state is {}", theirs["state"]).into());
    }
    Ok(())
}

fn strange(pair: &Pair<'_>) -> Remote {
    Remote { addr: pair.their_addr, rkey: Key(pair.their_rkey ^ 0x5500) }
}

fn end(pair: &Pair<'_>) -> Remote {
    pair.there(crate::bench::SIZE - 99)
}

/// A region of the kernel with just these rights.
fn region(pair: &mut Pair<'_>, rights: &[&str]) -> Result<Remote, Failure> {
    let order = json!({ "pd": pair.their_pd, "length": 4096, "access": rights });
    let made = pair.agent.call("mr", &order)?;
    let number = |name: &str| made[name].as_u64().ok_or("not a number");
    Ok(Remote { addr: number("addr")?, rkey: Key(u32::try_from(number("rkey")?)?) })
}

pub(crate) fn write_key(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let op = SendOp::Write(strange(pair));
    refused(pair, op, 100, WcStatus::RemoteAccess)
}

pub(crate) fn read_key(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let op = SendOp::Read(strange(pair));
    refused(pair, op, 100, WcStatus::RemoteAccess)
}

pub(crate) fn write_end(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let op = SendOp::Write(end(pair));
    refused(pair, op, 100, WcStatus::RemoteAccess)
}

pub(crate) fn read_end(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let op = SendOp::Read(end(pair));
    refused(pair, op, 100, WcStatus::RemoteAccess)
}

pub(crate) fn write_right(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let remote = region(pair, &["LOCAL_WRITE", "REMOTE_READ"])?;
    refused(pair, SendOp::Write(remote), 100, WcStatus::RemoteAccess)
}

pub(crate) fn read_right(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let remote = region(pair, &["LOCAL_WRITE", "REMOTE_WRITE"])?;
    refused(pair, SendOp::Read(remote), 100, WcStatus::RemoteAccess)
}

pub(crate) fn atomic_right(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let remote = region(pair, &["LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ"])?;
    refused(pair, SendOp::FetchAdd { remote, add: 1 }, 8, WcStatus::RemoteAccess)
}

pub(crate) fn misaligned(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let op = SendOp::FetchAdd { remote: pair.there(12), add: 1 };
    refused(pair, op, 8, WcStatus::RemoteInvalidRequest)
}

pub(crate) fn too_long(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.they_receive(0, 100)?;
    ended(pair, SendOp::Send, 200, WcStatus::RemoteOperation)?;
    pair.they_ended("LOC_QP_OP_ERR", "RECV")?;
    pair.deviates("kernel rxe as the receiver says LOC_QP_OP_ERR, and NAKs as a remote operational error");
    pair.nothing_more()
}

pub(crate) fn no_receive(pair: &mut Pair<'_>) -> Result<(), Failure> {
    ended(pair, SendOp::Send, 100, WcStatus::RnrRetryExceeded)?;
    equal("RNR NAKs received", pair.qp.stats().rnr_naks_received, 2)?;
    pair.nothing_more()
}

pub(crate) fn gone(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.agent.call("close", &json!({ "handle": pair.their_qp }))?;
    pair.post(SendOp::Write(pair.there(0)), 0, 100)?;
    pair.post(SendOp::Read(pair.there(0)), 0, 100)?;
    pair.we_ended(WcStatus::RetryExceeded, WcOpcode::Write)?;
    pair.we_ended(WcStatus::WorkRequestFlushed, WcOpcode::Read)?;
    equal("timeouts", pair.qp.stats().timeouts, 3)?;
    equal("our state", pair.qp.state(), QpState::Error)?;
    pair.nothing_more()
}

/// The kernel has no window of that key: it acknowledges, but its receive fails and it answers no more (IBTA vol. 1,
/// 9.9.6.3, class J).
pub(crate) fn invalidate_key(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.they_receive(0, 100)?;
    pair.post(SendOp::SendInvalidate(Key(pair.their_rkey)), 0, 100)?;
    pair.we_did(WcOpcode::Send)?;
    pair.they_ended("REM_INV_REQ_ERR", "RECV")?;
    pair.post(SendOp::Write(pair.there(0)), 0, 100)?;
    pair.we_ended(WcStatus::RetryExceeded, WcOpcode::Write)?;
    pair.nothing_more()
}

/// Nothing is sent: the kernel's receive stays.
pub(crate) fn local_key(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.they_receive(0, 100)?;
    let sge = Sge { addr: pair.mr.addr(), len: 100, lkey: Key(pair.mr.lkey().0 ^ 0x5500) };
    pair.qp.post_send(&SendWr::new(1, SendOp::Send, &[sge]))?;
    pair.post(SendOp::Send, 0, 10)?;
    pair.we_ended(WcStatus::LocalProtection, WcOpcode::Send)?;
    pair.we_ended(WcStatus::WorkRequestFlushed, WcOpcode::Send)?;
    let theirs = pair.agent.call("query_qp", &json!({ "qp": pair.their_qp }))?;
    equal("their state", theirs["state"].as_str(), Some("RTS"))?;
    pair.nothing_more()
}
