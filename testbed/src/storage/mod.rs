//! Small peers of storage protocols over RDMA, natively on rxe-cm and rxe-verbs: both ends of NVMe over Fabrics and of NFS over
//! RDMA. They exist to be played against the ends that Linux has, and to be read, as examples of a protocol on our Rust
//! interface.
//!
//! * [`link`] is one connection: how it is made, and how one waits for what happens on it.
//! * [`nvme`] is NVMe over Fabrics: what crosses, an initiator, and a target with one namespace in memory.
//! * [`nfs`] is NFS 4.1 over RPC over RDMA: what crosses, a client, and a server of a folder that can only be read.
//!
//! Each end works on one request at a time and thread. What the other end says is checked before it is used: what makes no
//! sense ends the connection with an error, and costs nobody else anything.

pub mod link;
pub mod nfs;
pub mod nvme;
