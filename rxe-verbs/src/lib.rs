//! RDMA verbs in user space, over ordinary UDP sockets. Processes that may send Ethernet frames can use those instead
//! (`RXE_LINK=raw`).
//!
//! The objects are those of libibverbs, one file each. A program opens a [`Device`] as a [`Context`]. It makes a protection
//! domain ([`Pd`]), registers memory ([`Mr`]), and makes a completion queue ([`Cq`]) and a queue pair ([`Qp`]). Then it
//! connects the queue pair, posts work, and polls for completions. All objects can be used from several threads. A parent
//! lives as long as its children. Dropping the last handle destroys an object.
//!
//! The objects are thin: `engine` drives the protocol core (`rxe-core`), `net` has the links, `host` the host service and
//! its clients, `sys` the system calls. `ARCHITECTURE.md` describes how they work together.
//!
//! ```
//! use rxe_verbs::{Access, Context, QpInit, QpType, net::InprocNet};
//!
//! // A device inside this process; `Context::open(&Device::first()?)` takes a real one.
//! let context = Context::open_inproc(&InprocNet::new(), &["10.0.0.1".parse()?])?;
//! let pd = context.alloc_pd()?;
//! let mr = pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! mr.write_at(0, b"hello")?;
//! assert_eq!(mr.read_vec(0, 5)?, b"hello");
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # Environment
//!
//! | variable | meaning |
//! |---|---|
//! | `RXE_LINK=raw` | Ethernet frames instead of UDP sockets, see [`net::LinkKind`] |
//! | `RXE_LINK=memory` | Shared memory between processes of one host, see [`net::LinkKind`] |
//! | `RXE_POLL=adaptive`, `busy`, `sleep` | how threads wait, see [`Polling`] |
//! | `RXE_THREADS=N` | how many threads may work on packets, see [`ContextOptions::threads`] |
//! | `RXE_PCAP=FILE` | record all packets as pcapng; `%p` in the name becomes the process's number |
//! | `RXE_FAULT=loss=10,dup=5,...` | disturb packets, in thousandths; see [`net::FaultPlan::parse`] |
//! | `RXE_RCVBUF`, `RXE_SNDBUF` | socket buffers: `max` (the default), `default` or bytes |
//! | `RXE_MESSAGES=whole` | never send WRITEs and READs in parts, see [`Messages`] |
//! | `RXE_CONGESTION=dcqcn@10gbit` | a rate for each reliable queue pair, see [`Congestion`] |
//! | `RXE_NET_DISABLE=gso,gro,cbpf,mmsg,vnet,priority` | do without these features of the kernel |
//! | `RXE_SERVICE=off` | no host service, the port alone; `embedded`: the service in this process; else the program to start as it |
//! | `RXE_CONFIG=FILE` | the host's configuration, see [`host::HostConfig`] |
//! | `RXE_USERCOPY=kernel` | copy application memory by system calls only |
//!
//! A program with more rights than the user who starts it (set-user-ID, file capabilities) ignores all of these.
//!
//! How to connect a queue pair is shown, attribute by attribute, in `examples/rc_pingpong.rs`.

mod ah;
mod channel;
mod context;
mod cq;
mod device;
mod engine;
mod error;
mod events;
mod gid;
pub mod host;
pub mod limits;
mod log;
mod mr;
mod mw;
mod names;
pub mod net;
mod pd;
mod qp;
mod raw;
mod regions;
mod srq;
mod sys;
mod tags;
mod trust;
mod xrcd;

pub use ah::Ah;
pub use channel::{CompChannel, CqWaiter};
pub use context::{Context, ContextOptions, HostPort, LinkState};
pub use cq::Cq;
pub use device::{Device, PortAttrs, PortState, VENDOR_ID, VENDOR_PART_ID, devices};
pub use engine::{Congestion, LinkReport, Messages, NetworkWatch, Polling, check_environment};
pub use error::{
    AddressError, CreateError, Forked, ModifyQpError, MrError, OpenError, PollError, PostListError,
    RegisterError, post_errno,
};
pub use events::{AsyncEvent, EventError, Listener};
pub use gid::{Gid, GidTable};
pub use log::tell;
pub use mr::{MemoryRange, Mr};
pub use mw::Mw;
pub use names::network_namespace;
pub use pd::Pd;
pub use qp::{MwBind, Qp, QpInit};
pub use raw::{
    Flow, FlowHandle, Layer, Pattern, RawPackets, RawQueue, RawQueueState, Spread, fields as hash_fields,
};
pub use srq::Srq;
pub use tags::{MAX_RENDEZVOUS_HEADER, MAX_TAGS, TagAction, TagFlags, TagInfo, TagOp};
pub use trust::{has_file_capabilities, is_protected, variable};
pub use xrcd::Xrcd;

pub use sys::{
    per_process::PerProcess,
    poll::{Interrupted, Sleep, set_sleep, wait_for, wait_readable},
    signals::block_signals,
    unix::out_of_the_way,
};

/// The number of forks between the first use of the library and this process: 0 in the process that used it first, one more in
/// each child (at least). An object that remembers another number was made by an ancestor of this process, and its threads do
/// not exist here (`fork(2)`).
#[must_use]
pub fn forks() -> u32 {
    sys::fork::generation()
}

pub use rxe_core::{
    num::{Key, Pkey, Psn, Qkey, Qpn},
    qp::{
        Cause, DcqcnParams, ModifyError, Mtu, PostError, QpAttrs, QpCaps, QpChange, QpConfig, QpState,
        QpType, Reason, Reasons, TimelyParams,
    },
    region::WindowType,
    stats::{PortStats, QpStats},
    wire::Grh,
    work::{
        self, Access, AddressVector, BindWindow, Completion, CqId, GidType, Payload, PdId, RecvWr, Remote,
        SendFlags, SendOp, SendWr, Sge, SrqId, UdDest, WcExtra, WcOpcode, WcStatus, XrcdId,
    },
};
