//! Modify-QP (ibv_modify_qp): which attributes a state transition requires and which it allows (IBTA vol. 1, 11.2.5.2, table 96).
//! The table itself is in `table`.

mod table;
#[cfg(test)]
mod tests;

pub use table::{AttrMask, Rule, rule};

use super::attrs::{QpAttrs, QpChange, QpState, QpType};
use crate::{num::Qpn, work::AddressVector};
use alloc::string::String;
use core::net::IpAddr;
use thiserror::Error;

/// READs and atomics that a queue pair may have outstanding at most, in each direction (max_qp_rd_atom). Kernel rxe has the same.
pub const MAX_RD_ATOMIC: u8 = 128;

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

/// Checks a change against the table and the value ranges, and returns the attributes after it. A change without a state
/// stays in the present state. Going to RESET forgets all attributes. Going to the error state keeps them.
///
/// Two checks are the caller's: that `pkey_index` exists, and that the send queue has drained before SQD is left.
///
/// # Errors
/// [`ModifyError`] names what is wrong.
pub fn apply(qp_type: QpType, now: &QpAttrs, change: &QpChange) -> Result<QpAttrs, ModifyError> {
    let from = now.state;
    if let Some(claimed) = change.current_state
        && claimed != from
    {
        return Err(ModifyError::CurrentState { actual: from, claimed });
    }
    let to = change.state.unwrap_or(from);
    let rule = rule(qp_type, from, to).ok_or(ModifyError::Transition { qp_type, from, to })?;
    let given = change.mask();
    let missing = rule.required - given;
    let forbidden = given - rule.required - rule.optional - AttrMask::STATE;
    if !missing.is_empty() || !forbidden.is_empty() {
        let (missing, forbidden) = (missing.names(), forbidden.names());
        return Err(ModifyError::Attributes { from, to, missing, forbidden });
    }
    check_values(change)?;
    if to == QpState::Reset {
        return Ok(QpAttrs::default());
    }
    Ok(merge(now, change, to))
}

/// The attributes after a valid change.
fn merge(now: &QpAttrs, change: &QpChange, to: QpState) -> QpAttrs {
    // A request for the drained event is for one drain only.
    let is_new_drain = (now.state, to) == (QpState::Rts, QpState::Sqd);
    QpAttrs {
        state: to,
        sqd_notify: change.sqd_notify.unwrap_or(now.sqd_notify && !is_new_drain),
        access: change.access.unwrap_or(now.access),
        pkey_index: change.pkey_index.unwrap_or(now.pkey_index),
        qkey: change.qkey.unwrap_or(now.qkey),
        av: change.av.or(now.av),
        path_mtu: change.path_mtu.unwrap_or(now.path_mtu),
        timeout: change.timeout.unwrap_or(now.timeout),
        retry_count: change.retry_count.unwrap_or(now.retry_count),
        rnr_retry: change.rnr_retry.unwrap_or(now.rnr_retry),
        rq_psn: change.rq_psn.unwrap_or(now.rq_psn),
        sq_psn: change.sq_psn.unwrap_or(now.sq_psn),
        max_rd_atomic: change.max_rd_atomic.unwrap_or(now.max_rd_atomic),
        max_dest_rd_atomic: change.max_dest_rd_atomic.unwrap_or(now.max_dest_rd_atomic),
        min_rnr_timer: change.min_rnr_timer.unwrap_or(now.min_rnr_timer),
        migration: change.migration.unwrap_or(now.migration),
        alternate: change.alternate.or(now.alternate),
        dest_qpn: change.dest_qpn.unwrap_or(now.dest_qpn),
    }
}

fn check_values(change: &QpChange) -> Result<(), ModifyError> {
    in_range("PORT", change.port, 1..=1, "1")?;
    in_range("TIMEOUT", change.timeout, 0..=31, "0 to 31")?;
    in_range("RETRY_CNT", change.retry_count, 0..=7, "0 to 7")?;
    in_range("RNR_RETRY", change.rnr_retry, 0..=7, "0 to 7")?;
    in_range("MIN_RNR_TIMER", change.min_rnr_timer, 0..=31, "0 to 31")?;
    in_range("MAX_QP_RD_ATOMIC", change.max_rd_atomic, 0..=MAX_RD_ATOMIC, "0 to 128")?;
    in_range("MAX_DEST_RD_ATOMIC", change.max_dest_rd_atomic, 0..=MAX_RD_ATOMIC, "0 to 128")?;
    in_range("PATH_MIG_STATE", change.migration, 0..=2, "0 migrated, 1 rearm, 2 armed")?;
    if let Some(qpn) = change.dest_qpn
        // Queue pairs 0 and 1 are for management, and the highest number is the multicast one. None of them is ever connected.
        && (qpn.value() < 2 || qpn == Qpn::MULTICAST)
    {
        return Err(ModifyError::Value {
            attribute: "DEST_QPN",
            value: qpn.value().into(),
            allowed: "2 to 0xfffffe",
        });
    }
    change.av.as_ref().map_or(Ok(()), |av| check_path("AV", av))?;
    change.alternate.as_ref().map_or(Ok(()), |av| check_path("ALT_PATH", av))
}

fn in_range(
    attribute: &'static str,
    value: Option<u8>,
    range: core::ops::RangeInclusive<u8>,
    allowed: &'static str,
) -> Result<(), ModifyError> {
    match value {
        Some(value) if !range.contains(&value) => {
            Err(ModifyError::Value { attribute, value: value.into(), allowed })
        }
        _ => Ok(()),
    }
}

/// Checks a connection's path: between two hosts of one address family, with fields that fit their headers.
fn check_path(attribute: &'static str, av: &AddressVector) -> Result<(), ModifyError> {
    let wrong = |value: u64, allowed| Err(ModifyError::Value { attribute, value, allowed });
    if av.src.is_ipv4() != av.dst.is_ipv4() {
        return wrong(u64::from(av.sgid_index), "source and destination of one address family");
    }
    let is_host = |addr: IpAddr| !addr.is_unspecified() && !addr.is_multicast();
    if !is_host(av.src) || !is_host(av.dst) {
        return wrong(u64::from(av.sgid_index), "addresses of hosts, neither zero nor multicast");
    }
    if av.flow_label > 0xf_ffff {
        return wrong(av.flow_label.into(), "flow label of 20 bits");
    }
    if av.service_level > 15 {
        return wrong(av.service_level.into(), "service level 0 to 15");
    }
    Ok(())
}
