//! RDMA verbs in user space over ordinary UDP sockets.

pub mod net;
mod sys;
