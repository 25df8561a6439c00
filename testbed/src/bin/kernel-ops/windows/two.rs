//! Type 2 windows: bound by a work request, invalidated by either side.

use super::{LEN, START, their_window, they_are_refused, they_bind, they_use, we_are_refused, we_use};
use crate::pair::{Pair, equal};
use rxe_verbs::{Access, BindWindow, Key, Mw, SendOp, WcExtra, WcOpcode, WindowType};
use serde_json::json;
use testbed::agent::Failure;

fn we_bind(pair: &Pair<'_>, window: &Mw) -> Result<Key, Failure> {
    let bind = BindWindow {
        window: window.rkey(),
        new_rkey: window.rkey().rotated(),
        region: pair.mr.lkey(),
        addr: pair.here(START).addr,
        len: LEN as u64,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
    };
    pair.post(SendOp::BindWindow(bind), 0, 0)?;
    pair.we_did(WcOpcode::BindWindow)?;
    equal("the window's key", window.rkey(), bind.new_rkey)?;
    Ok(bind.new_rkey)
}

/// We use the kernel's window and invalidate it with a SEND.
pub(crate) fn ours(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let window = their_window(pair, 2)?;
    let key = they_bind(pair, window, LEN)?;
    we_use(pair, key, 4)?;
    pair.they_receive(0, 100)?;
    pair.post(SendOp::SendInvalidate(Key(key)), 0, 100)?;
    pair.we_did(WcOpcode::Send)?;
    let wc = pair.they_did("RECV")?;
    equal("the key they say was invalidated", wc["invalidated_rkey"].as_u64(), Some(key.into()))?;
    we_are_refused(pair, key, START)
}

/// We use the kernel's window after it invalidated it.
pub(crate) fn ours_local(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let window = their_window(pair, 2)?;
    let key = they_bind(pair, window, LEN)?;
    we_use(pair, key, 4)?;
    pair.they_post(&[json!({ "opcode": "LOCAL_INV", "invalidate_rkey": key })])?;
    pair.they_did("LOCAL_INV")?;
    we_are_refused(pair, key, START)
}

/// The kernel uses our window and invalidates it with a SEND.
pub(crate) fn kernel(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let window = pair.pd.alloc_mw(WindowType::Two)?;
    let key = we_bind(pair, &window)?;
    they_use(pair, key, 4)?;
    pair.we_receive(3, 0, 100)?;
    let sge = pair.their_sges(0, 100);
    pair.they_post(&[json!({ "opcode": "SEND_WITH_INV", "sge": sge, "invalidate_rkey": key.0 })])?;
    let wc = pair.we_did(WcOpcode::Recv)?;
    equal("the key we say was invalidated", wc.extra, WcExtra::Invalidated(key))?;
    pair.they_did("SEND")?;
    they_are_refused(pair, key, START)
}

/// The kernel uses our window after we invalidated it.
pub(crate) fn kernel_local(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let window = pair.pd.alloc_mw(WindowType::Two)?;
    let key = we_bind(pair, &window)?;
    they_use(pair, key, 4)?;
    pair.post(SendOp::LocalInvalidate(key), 0, 0)?;
    pair.we_did(WcOpcode::LocalInvalidate)?;
    they_are_refused(pair, key, START)
}
