//! Type 1 windows: bound and unbound by a verb of their own.

use super::{LEN, START, their_window, they_are_refused, they_bind, they_use, we_are_refused, we_use};
use crate::{bench::SIZE, pair::Pair};
use rxe_verbs::{Access, Key, Mw, MwBind, Remote, SendFlags, SendOp, WcOpcode, WindowType};
use testbed::agent::Failure;

fn we_bind(pair: &Pair<'_>, window: &Mw, len: usize) -> Result<Key, Failure> {
    let bind = MwBind {
        wr_id: 9,
        flags: SendFlags::SIGNALED,
        region: &pair.mr,
        addr: pair.here(START).addr,
        len: len as u64,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
    };
    let key = pair.qp.bind_mw(window, &bind)?;
    pair.we_did(WcOpcode::BindWindow)?;
    Ok(key)
}

/// We use the kernel's window.
pub(crate) fn ours(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let window = their_window(pair, 1)?;
    let key = they_bind(pair, window, LEN)?;
    we_use(pair, key, 4)?;
    // Past the window, inside the region.
    let remote = Remote { addr: pair.there(START + LEN - 99).addr, rkey: Key(key) };
    pair.post(SendOp::Write(remote), 0, 100)?;
    pair.we_did(WcOpcode::Write)?;
    pair.deviates(
        "kernel rxe checks the range of a window's region, not the window's: refused past the region only",
    );
    we_are_refused(pair, key, SIZE - 50)
}

/// We use the kernel's window after it was unbound.
pub(crate) fn ours_unbound(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let window = their_window(pair, 1)?;
    let key = they_bind(pair, window, LEN)?;
    we_use(pair, key, 4)?;
    they_bind(pair, window, 0)?;
    we_are_refused(pair, key, START)
}

/// The kernel uses our window.
pub(crate) fn kernel(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let window = pair.pd.alloc_mw(WindowType::One)?;
    let key = we_bind(pair, &window, LEN)?;
    they_use(pair, key, 4)?;
    they_are_refused(pair, key, START + LEN - 99)
}

/// The kernel uses our window after it was unbound.
pub(crate) fn kernel_unbound(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let window = pair.pd.alloc_mw(WindowType::One)?;
    let key = we_bind(pair, &window, LEN)?;
    they_use(pair, key, 4)?;
    we_bind(pair, &window, 0)?;
    they_are_refused(pair, key, START)
}
