//! Queue pairs: the machines behind verbs' QP, one room per service.

mod attrs;
mod common;
mod modify;
mod rc;
mod rq;

pub use attrs::{Mtu, QpAttrs, QpCaps, QpChange, QpConfig, QpState, QpType};
pub use modify::{ModifyError, apply};
pub use rq::PostError;
