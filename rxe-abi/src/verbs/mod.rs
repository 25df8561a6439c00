//! The functions of libibverbs, one file an object. What is not here at all (`symbols` has its name) is refused.

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
