//! Small implementations of storage protocols over RDMA, directly on rxe-cm and rxe-verbs: both ends of NVMe over Fabrics
//! and of NFS over RDMA. They are tested against the implementations in Linux, and serve as examples of protocols on our
//! Rust interface.
//!
//! * [`link`] is one connection: how it is set up, and how a program waits for its completions.
//! * [`nvme`] is NVMe over Fabrics: its messages, an initiator, and a target with one namespace in memory.
//! * [`nfs`] is NFS 4.1 over RPC over RDMA: its messages, a client, and a server for a read-only folder.
//!
//! Each thread works on one request at a time. Data from the other end is checked before it is used. An invalid message ends
//! its connection with an error, and affects no other connection.

pub mod link;
pub mod nfs;
pub mod nvme;
