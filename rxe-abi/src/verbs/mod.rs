//! The functions of libibverbs, one file an object. What is not here at all (`symbols` has its name) is refused.

mod address;
mod attributes;
mod context;
mod cq;
mod device;
mod dm;
mod event;
mod files;
mod import;
mod memory;
mod pd;
mod port;
mod qp;
mod srq;
mod text;

pub(crate) use attributes::clock;
