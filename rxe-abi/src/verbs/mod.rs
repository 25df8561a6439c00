//! The functions of libibverbs, one file for each kind of object. Functions that we do not have (`symbols` names them) refuse.

mod address;
mod attributes;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod device;
mod dm;
mod dmabuf;
mod event;
mod extended;
mod files;
mod flow;
mod import;
mod memory;
pub(crate) mod pd;
mod port;
pub(crate) mod qp;
pub(crate) mod srq;
mod tags;
mod text;
mod wq;
pub(crate) mod xrcd;

pub(crate) use attributes::clock;
