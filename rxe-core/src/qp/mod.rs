//! Queue pairs, the objects behind `ibv_qp`.
//!
//! `machine` drives a whole queue pair, and is the best place to start. It hands packets to the halves of the pair's service:
//! `rc` for reliable connections, `sender`, `uc_receiver` and `ud_receiver` for the others. `flow` and `pacing` limit what may be
//! sent. `attrs` and `modify` hold the attributes and the modify-QP table.

mod attrs;
pub(crate) mod common;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod flow;
mod inbound;
mod machine;
mod modify;
pub(crate) mod pacing;
pub(crate) mod plan;
pub(crate) mod quirks;
mod rc;
mod reason;
mod request;
pub(crate) mod rq;
mod sender;
mod sges;
mod sq;
mod uc_receiver;
mod ud_receiver;

pub use attrs::{Mtu, QpAttrs, QpCaps, QpChange, QpConfig, QpState, QpType};
pub(crate) use machine::{Path, QueuePair};
pub use modify::{AttrMask, MAX_RD_ATOMIC, ModifyError, Rule, apply, rule};
pub use pacing::{CongestionControl, Dcqcn, DcqcnParams, LineRate, Pacing, Timely, TimelyParams, Timing};
pub use reason::{Cause, Reason, Reasons};
pub use rq::PostError;
pub use sges::{gather, scatter};
