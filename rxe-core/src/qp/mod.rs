//! Queue pairs: the machines behind verbs' QP, one room per service.

mod attrs;
mod common;
mod modify;
mod rc;
mod rq;

pub use attrs::{Mtu, QpAttrs, QpCaps, QpChange, QpConfig, QpState, QpType};
pub use modify::{AttrMask, MAX_RD_ATOMIC, ModifyError, Rule, apply, rule};
pub use rq::PostError;
