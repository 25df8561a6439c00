//! Queue pairs: the machines behind verbs' QP, one room per service.

mod attrs;
mod common;
#[cfg(test)]
mod fake;
mod inbound;
mod modify;
mod rc;
mod rq;
mod uc_receiver;
mod ud_receiver;

pub use attrs::{Mtu, QpAttrs, QpCaps, QpChange, QpConfig, QpState, QpType};
pub use modify::{ModifyError, apply};
pub use rq::PostError;
