//! Shared receive queues: order, data, and the limit event.

use crate::pair::{PATIENCE, Pair, equal, same};
use rxe_verbs::{AsyncEvent, SendOp, WcOpcode, work};
use serde_json::{Value, json};
use testbed::{agent::Failure, pattern::pattern};

const MESSAGES: usize = 5;
const LEN: usize = 5000;
/// The event comes when fewer are left: with the last but one message.
const LIMIT: u32 = 2;

/// We send, the kernel's shared queue receives.
pub(crate) fn ours(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let wrs: Vec<Value> =
        (0..MESSAGES).map(|at| json!({ "wr_id": at, "sge": pair.their_sges(at * LEN, LEN) })).collect();
    pair.they_receive_list(&wrs)?;
    let srq = pair.their_srq.ok_or("no shared receive queue")?;
    pair.agent.call("modify_srq", &json!({ "srq": srq, "limit": LIMIT }))?;
    pair.mr.write_at(0, &pattern(8, MESSAGES * LEN))?;
    for at in 0..MESSAGES {
        let early = pair.agent.call("async_event", &json!({ "ctx": pair.their_ctx }))?;
        if !early.is_null() && at < MESSAGES - 1 {
            return Err(format!("an event before message {at}: {early}").into());
        }
        pair.post(SendOp::Send, at * LEN, LEN)?;
        pair.we_did(WcOpcode::Send)?;
        let wc = pair.they_did("RECV")?;
        equal("wr_id", wc["wr_id"].as_u64(), Some(at as u64))?;
        if at == MESSAGES - 2 {
            let order = json!({ "ctx": pair.their_ctx, "timeout_ms": u64::try_from(PATIENCE.as_millis())? });
            let event = pair.agent.call("async_event", &order)?;
            equal("their event", event["event"].as_str(), Some("SRQ_LIMIT_REACHED"))?;
        }
    }
    pair.they_check(0, MESSAGES * LEN, 8)
}

/// The kernel sends, our shared queue receives.
pub(crate) fn kernel(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for at in 0..MESSAGES {
        pair.we_receive(at as u64, at * LEN, LEN)?;
    }
    let srq = pair.srq.clone().ok_or("no shared receive queue")?;
    srq.modify(None, Some(LIMIT))?;
    pair.they_fill(0, MESSAGES * LEN, 8)?;
    for at in 0..MESSAGES {
        let event = pair.context.try_get_async_event();
        if at < MESSAGES - 1 {
            equal("an event too early", event, None)?;
        } else {
            let reached = AsyncEvent::Queue(work::AsyncEvent::SrqLimitReached(srq.id()));
            let event = match event {
                Some(event) => event,
                None => pair.context.get_async_event(Some(PATIENCE))?,
            };
            equal("our event", event, reached)?;
        }
        let sge = pair.their_sges(at * LEN, LEN);
        pair.they_post(&[json!({ "opcode": "SEND", "sge": sge })])?;
        let wc = pair.we_did(WcOpcode::Recv)?;
        pair.they_did("SEND")?;
        equal("wr_id", wc.wr_id, at as u64)?;
    }
    equal("events left", pair.context.try_get_async_event(), None)?;
    same("what was received", &pair.mr.read_vec(0, MESSAGES * LEN)?, &pattern(8, MESSAGES * LEN))
}
