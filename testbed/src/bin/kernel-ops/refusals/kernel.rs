//! The kernel posts what we refuse.

use crate::pair::{PATIENCE, Pair, equal};
use rxe_verbs::{Access, AsyncEvent, Key, Mr, QpInit, QpState, QpType, Remote, WcOpcode, WcStatus, work};
use serde_json::{Value, json};
use testbed::agent::Failure;

/// Lets the kernel post `wr`, a WRITE and a SEND; expects `status` and two flushed, and what becomes of our receive.
fn refused(pair: &mut Pair<'_>, wr: Value, status: &str) -> Result<(), Failure> {
    pair.we_receive(3, 0, 4096)?;
    ended(pair, wr, status)?;
    pair.we_ended(WcStatus::WorkRequestFlushed, WcOpcode::Recv)?;
    told(pair, status)?;
    pair.nothing_more()
}

fn ended(pair: &mut Pair<'_>, wr: Value, status: &str) -> Result<(), Failure> {
    let write = pair.their_wr("RDMA_WRITE", 0, 10, pair.here(0));
    let send = json!({ "opcode": "SEND", "sge": pair.their_sges(0, 10) });
    pair.they_post(&[wr, write, send])?;
    pair.they_ended(status, "")?;
    pair.they_ended("WR_FLUSH_ERR", "")?;
    pair.they_ended("WR_FLUSH_ERR", "")?;
    let theirs = pair.agent.call("query_qp", &json!({ "qp": pair.their_qp }))?;
    equal("their state", theirs["state"].as_str(), Some("ERR"))
}

/// Our responder has gone to the error state and told why.
fn told(pair: &Pair<'_>, status: &str) -> Result<(), Failure> {
    equal("our state", pair.qp.state(), QpState::Error)?;
    let event = if status == "REM_ACCESS_ERR" {
        work::AsyncEvent::QpAccessError(pair.qp.qpn())
    } else {
        work::AsyncEvent::QpRequestError(pair.qp.qpn())
    };
    let found = pair.context.get_async_event(Some(PATIENCE))?;
    equal("our event", found, AsyncEvent::Queue(event))
}

fn strange(pair: &Pair<'_>) -> Remote {
    Remote { addr: pair.mr.addr(), rkey: Key(pair.mr.rkey().0 ^ 0x5500) }
}

fn end(pair: &Pair<'_>) -> Remote {
    pair.here(crate::bench::SIZE - 99)
}

fn region(pair: &Pair<'_>, rights: Access) -> Result<(Mr, Remote), Failure> {
    let mr = pair.pd.alloc_mr(4096, rights)?;
    let remote = Remote { addr: mr.addr(), rkey: mr.rkey() };
    Ok((mr, remote))
}

pub(crate) fn write_key(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let wr = pair.their_wr("RDMA_WRITE", 0, 100, strange(pair));
    refused(pair, wr, "REM_ACCESS_ERR")
}

pub(crate) fn read_key(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let wr = pair.their_wr("RDMA_READ", 0, 100, strange(pair));
    refused(pair, wr, "REM_ACCESS_ERR")
}

pub(crate) fn write_end(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let wr = pair.their_wr("RDMA_WRITE", 0, 100, end(pair));
    refused(pair, wr, "REM_ACCESS_ERR")
}

pub(crate) fn read_end(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let wr = pair.their_wr("RDMA_READ", 0, 100, end(pair));
    refused(pair, wr, "REM_ACCESS_ERR")
}

pub(crate) fn write_right(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let (mr, remote) = region(pair, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    let wr = pair.their_wr("RDMA_WRITE", 0, 100, remote);
    refused(pair, wr, "REM_ACCESS_ERR")?;
    equal("our memory", mr.read_vec(0, 100)?, vec![0; 100])
}

pub(crate) fn read_right(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let (_mr, remote) = region(pair, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let wr = pair.their_wr("RDMA_READ", 0, 100, remote);
    refused(pair, wr, "REM_ACCESS_ERR")
}

pub(crate) fn atomic_right(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let (mr, remote) = region(pair, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    let mut wr = pair.their_wr("ATOMIC_FETCH_AND_ADD", 0, 8, remote);
    wr["add"] = json!(1);
    refused(pair, wr, "REM_ACCESS_ERR")?;
    equal("our memory", mr.load_u64(0)?, 0)
}

pub(crate) fn misaligned(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let mut wr = pair.their_wr("ATOMIC_FETCH_AND_ADD", 0, 8, pair.here(12));
    // ibv_post_send would not take it.
    (wr["add"], wr["unchecked"]) = (json!(1), json!(true));
    refused(pair, wr, "REM_INV_REQ_ERR")
}

pub(crate) fn too_long(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.we_receive(3, 0, 100)?;
    let wr = json!({ "opcode": "SEND", "sge": pair.their_sges(0, 200) });
    ended(pair, wr, "REM_INV_REQ_ERR")?;
    // The completion tells it: no event.
    pair.we_ended(WcStatus::LocalLength, WcOpcode::Recv)?;
    equal("our state", pair.qp.state(), QpState::Error)?;
    equal("our event", pair.context.try_get_async_event(), None)?;
    pair.nothing_more()
}

pub(crate) fn no_receive(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let wr = json!({ "opcode": "SEND", "sge": pair.their_sges(0, 100) });
    ended(pair, wr, "RNR_RETRY_EXC_ERR")?;
    equal("our state", pair.qp.state(), QpState::Rts)?;
    equal("RNR NAKs sent", pair.qp.stats().rnr_naks_sent, 2)?;
    pair.nothing_more()
}

pub(crate) fn gone(pair: &mut Pair<'_>) -> Result<(), Failure> {
    // The connected queue pair is destroyed, an idle one takes its place.
    pair.qp = pair.pd.create_qp(&QpInit::new(QpType::Rc, &pair.cq))?;
    let wr = pair.their_wr("RDMA_WRITE", 0, 100, pair.here(0));
    ended(pair, wr, "RETRY_EXC_ERR")?;
    pair.nothing_more()
}

/// As a kernel does it: the SEND is acknowledged, our receive fails, and nothing more is answered.
pub(crate) fn invalidate_key(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.we_receive(3, 0, 100)?;
    let wr = json!({
        "opcode": "SEND_WITH_INV", "sge": pair.their_sges(0, 100), "invalidate_rkey": pair.mr.rkey().0,
    });
    pair.they_post(&[wr])?;
    pair.they_did("SEND")?;
    pair.we_ended(WcStatus::RemoteInvalidRequest, WcOpcode::Recv)?;
    equal("our state", pair.qp.state(), QpState::Error)?;
    let write = pair.their_wr("RDMA_WRITE", 0, 10, pair.here(0));
    pair.they_post(&[write])?;
    pair.they_ended("RETRY_EXC_ERR", "")?;
    pair.nothing_more()
}

/// Nothing is sent: our receive stays.
pub(crate) fn local_key(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.we_receive(3, 0, 100)?;
    let mut wr = json!({ "opcode": "SEND", "sge": pair.their_sges(0, 100) });
    wr["sge"][0]["lkey"] = json!(0x7777_7777);
    let status = if pair.old { "LOC_QP_OP_ERR" } else { "WR_FLUSH_ERR" };
    ended(pair, wr, status)?;
    pair.deviates(if pair.old {
        "kernel 6.1 says LOC_QP_OP_ERR of a wrong L_Key, not LOC_PROT_ERR"
    } else {
        "kernel 6.12 loses the status of local errors and says WR_FLUSH_ERR"
    });
    equal("our state", pair.qp.state(), QpState::Rts)?;
    pair.nothing_more()
}
