//! Our objects. Each begins with the structure that C programs see. Our own fields follow it.
//!
//! The functions that make and destroy objects are in `verbs/`.

use crate::{
    border::{INVALID, Register, Result, known},
    c::{
        self,
        context::{ContextPtr, VerbsContext},
    },
    poll,
    turns::Turns,
    wr::Batch,
};
use core::{mem::offset_of, net::IpAddr, sync::atomic::AtomicBool};
use memmap2::MmapRaw;
use rxe_verbs::{CqId, Listener, Qpn, SrqId};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A device. Devices are made once and never destroyed.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Device {
    pub(crate) c: c::device::Device,
    /// Its name when it was made.
    pub(crate) name: String,
    /// The device as it was last listed.
    pub(crate) device: Mutex<rxe_verbs::Device>,
    /// If not `None`, the only address that it has.
    pub(crate) only: Option<IpAddr>,
    /// The process that made it, by [`rxe_verbs::forks`].
    pub(crate) maker: u32,
}

/// An opened device. It exists until the last object made from it is destroyed.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Context {
    pub(crate) c: VerbsContext,
    pub(crate) context: rxe_verbs::Context,
    pub(crate) device: &'static Device,
    pub(crate) cqs: Register<CqId, Cq>,
    pub(crate) qps: Register<Qpn, Qp>,
    /// Handles of XRC targets, by the listener's name. A target may have several handles.
    pub(crate) targets: Register<u64, Qp>,
    pub(crate) srqs: Register<SrqId, Srq>,
    /// By handle, for `ibv_import_pd`. The two below serve the other import functions.
    pub(crate) pds: Register<u32, Pd>,
    pub(crate) mrs: Register<u32, Mr>,
    pub(crate) dms: Register<u32, Dm>,
    /// `cmd_fd`: the descriptor by which `ibv_import_device` finds the context.
    pub(crate) command: OwnedFd,
}

impl Context {
    /// The context that C refers to, by an address inside it. EIO in a forked child: the context is its parent's.
    pub(crate) fn of<'a>(inner: ContextPtr) -> Result<&'a Self> {
        let context = Self::of_anybody(inner)?;
        context.context.check_owner()?;
        Ok(context)
    }

    /// The same without that check, because a child may close the context.
    pub(crate) fn of_anybody<'a>(inner: ContextPtr) -> Result<&'a Self> {
        if inner.is_null() {
            return Err(INVALID);
        }
        // SAFETY: a program hands in what `ibv_open_device` gave it: the place in a `Self` that `as_c` names.
        Ok(unsafe {
            &*inner.byte_sub(offset_of!(Self, c) + offset_of!(VerbsContext, context)).cast::<Self>()
        })
    }

    /// The address by which C refers to it.
    pub(crate) const fn as_c(this: *const Self) -> ContextPtr {
        this.wrapping_byte_add(offset_of!(Self, c) + offset_of!(VerbsContext, context)).cast()
    }

    /// Another owner of the context.
    pub(crate) fn share(&self) -> Arc<Self> {
        let this: *const Self = self;
        // SAFETY: contexts are made in an `Arc` (see `open`). The program, which is in a call, owns one count.
        unsafe {
            Arc::increment_strong_count(this);
            Arc::from_raw(this)
        }
    }

    /// Ends the program's ownership, because it has closed the context.
    pub(crate) fn release(&self) {
        let this: *const Self = self;
        // SAFETY: this is the count that `ibv_open_device` gave the program.
        unsafe { Arc::decrement_strong_count(this) };
    }

    /// The pointer for the `context` field of an object.
    pub(crate) fn pointer(&self) -> c::Pointer<c::context::Context> {
        c::Pointer::new(Self::as_c(self).cast_mut())
    }
}

/// Counts the users of an object. The object is busy while another one holds a copy.
pub(crate) type Users = Arc<()>;

/// A protection domain, or a parent domain over one.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Pd {
    pub(crate) c: c::object::Pd,
    pub(crate) pd: rxe_verbs::Pd,
    pub(crate) context: Arc<Context>,
    pub(crate) users: Users,
    /// For a parent domain: marks its protection domain and its thread domain as in use.
    pub(crate) _over: Option<(Users, Option<Users>)>,
}

/// A thread domain. With it a program promises to use objects from one thread only; we have no use for that.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Td {
    pub(crate) c: c::object::Td,
    pub(crate) context: Arc<Context>,
    pub(crate) users: Users,
}

/// A memory region.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) c: c::object::Mr,
    /// `None` if the region is imported, or has been deregistered.
    pub(crate) mr: Mutex<Option<rxe_verbs::Mr>>,
    pub(crate) pd: Mutex<Users>,
    pub(crate) context: Arc<Context>,
    /// What it was registered from: device memory, the mapping of a dma-buf, or hints.
    pub(crate) _of: Option<Arc<dyn core::fmt::Debug + Send + Sync>>,
}

impl Mr {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<rxe_verbs::Mr>> {
        self.mr.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hints about memory (ibv_alloc_dmah).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Dmah {
    pub(crate) c: c::object::Dmah,
    pub(crate) context: Arc<Context>,
    pub(crate) users: Users,
}

/// Memory that was allocated for a program (ibv_alloc_buf). It is opaque to C.
#[derive(Debug)]
pub(crate) struct Buf {
    pub(crate) memory: MmapRaw,
    /// Marks the protection domain that it was allocated with as in use.
    pub(crate) pd: Users,
    pub(crate) _context: Arc<Context>,
}

/// Device memory.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Dm {
    pub(crate) c: c::object::Dm,
    pub(crate) memory: Arc<MmapRaw>,
    /// Bytes asked for.
    pub(crate) len: usize,
    pub(crate) context: Arc<Context>,
    pub(crate) users: Users,
}

/// A memory window.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Mw {
    pub(crate) c: c::object::Mw,
    pub(crate) mw: rxe_verbs::Mw,
    pub(crate) _pd: Users,
    pub(crate) _context: Arc<Context>,
}

/// An address handle.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Ah {
    pub(crate) c: c::object::Ah,
    pub(crate) ah: rxe_verbs::Ah,
    pub(crate) _pd: Users,
    pub(crate) _context: Arc<Context>,
}

/// A completion channel.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct CompChannel {
    pub(crate) c: c::object::CompChannel,
    pub(crate) channel: rxe_verbs::CompChannel,
    pub(crate) context: Arc<Context>,
    pub(crate) users: Users,
    /// Whether its descriptor was non-blocking when this was last checked.
    pub(crate) was_non_blocking: AtomicBool,
}

/// A completion queue, extended or not.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) c: c::object::CqEx,
    pub(crate) cq: rxe_verbs::Cq,
    pub(crate) context: Arc<Context>,
    pub(crate) users: Users,
    pub(crate) _channel: Option<Users>,
    pub(crate) events: Events,
    /// The completion that ibv_wc_read_* read.
    pub(crate) current: Mutex<poll::Current>,
    /// Which thread may read it. `None` if the program has promised that only one does.
    pub(crate) turns: Option<Turns>,
    /// Whether its completions have tags (IBV_WC_EX_WITH_TM_INFO).
    pub(crate) tells_tags: bool,
}

/// An XRC domain.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Xrcd {
    pub(crate) c: c::object::Xrcd,
    pub(crate) xrcd: rxe_verbs::Xrcd,
    pub(crate) context: Arc<Context>,
    pub(crate) users: Users,
}

/// A shared receive queue.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Srq {
    pub(crate) c: c::object::Srq,
    pub(crate) srq: rxe_verbs::Srq,
    pub(crate) context: Arc<Context>,
    pub(crate) _pd: Users,
    pub(crate) _xrcd: Option<Users>,
    /// Its completion queue, if it has one.
    pub(crate) _cq: Option<Users>,
    pub(crate) events: Events,
}

/// A queue pair, extended or not.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) c: c::object::QpEx,
    /// An XRC target may have several handles (ibv_open_qp), so this is shared.
    pub(crate) qp: Arc<rxe_verbs::Qp>,
    pub(crate) context: Arc<Context>,
    /// Marks its protection domain, or an XRC target's XRC domain, as in use.
    pub(crate) _domain: Users,
    /// Marks its completion queues as in use.
    pub(crate) _cqs: [Option<Users>; 2],
    pub(crate) events: Events,
    /// For a handle of an XRC target: receives the target's events.
    pub(crate) listener: Option<Listener>,
    /// For a queue pair of raw packets: what sends and receives. `qp` only has the state then.
    pub(crate) raw: Option<rxe_verbs::RawPackets>,
    /// Marks the indirection table as in use over whose queues its frames are spread.
    pub(crate) _table: Option<Users>,
    /// The requests that ibv_wr_* are building. `None` unless the program asked for these functions.
    pub(crate) batch: Option<Batch>,
}

/// A rule that gives frames to a queue pair for raw packets.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Flow {
    pub(crate) c: c::object::Flow,
    pub(crate) _flow: rxe_verbs::FlowHandle,
    pub(crate) _context: Arc<Context>,
}

/// A receive work queue, for frames.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Wq {
    pub(crate) c: c::object::Wq,
    pub(crate) queue: Arc<rxe_verbs::RawQueue>,
    pub(crate) cq: rxe_verbs::Cq,
    pub(crate) cq_users: Users,
    pub(crate) context: Arc<Context>,
    pub(crate) _pd: Users,
    pub(crate) users: Users,
}

/// Queues that a queue pair spreads its frames over.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RwqTable {
    pub(crate) c: c::object::RwqTable,
    pub(crate) queues: Vec<Arc<rxe_verbs::RawQueue>>,
    pub(crate) cq: rxe_verbs::Cq,
    pub(crate) _cq_users: Users,
    pub(crate) _context: Arc<Context>,
    pub(crate) _queues: Vec<Users>,
    pub(crate) users: Users,
}

/// Counts the asynchronous events of an object that were delivered and not acknowledged yet. In a forked child, its parent's objects
/// have none.
#[derive(Debug)]
pub(crate) struct Events {
    out: Mutex<u32>,
    acked: Condvar,
    /// The process that made it, by [`rxe_verbs::forks`].
    maker: u32,
}

impl Default for Events {
    fn default() -> Self {
        Self { out: Mutex::default(), acked: Condvar::new(), maker: rxe_verbs::forks() }
    }
}

impl Events {
    /// Whether this process made the object.
    pub(crate) fn is_own(&self) -> bool {
        self.maker == rxe_verbs::forks()
    }

    pub(crate) fn give(&self) {
        if self.is_own() {
            *self.lock() += 1;
        }
    }

    pub(crate) fn acknowledge(&self) {
        if self.is_own() {
            let mut out = self.lock();
            *out = out.saturating_sub(1);
            self.acked.notify_all();
        }
    }

    /// Waits until all are acknowledged, as the destruction of an object must.
    pub(crate) fn wait(&self) {
        if !self.is_own() {
            return;
        }
        let mut out = self.lock();
        while *out > 0 {
            out = self.acked.wait(out).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, u32> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pd {
    /// ENOENT unless it still has the number that it was given.
    pub(crate) fn known(&self) -> Result<()> {
        known(self.c.handle, self.pd.id().0)
    }
}

impl Cq {
    /// ENOENT unless it still has the number that it was given.
    pub(crate) fn known(&self) -> Result<()> {
        known(self.c.base.handle, self.cq.id().0)
    }
}

impl Srq {
    /// ENOENT unless it still has the number that it was given.
    pub(crate) fn known(&self) -> Result<()> {
        known(self.c.handle, self.srq.id().0)
    }
}

impl Qp {
    /// ENOENT unless it still has the number that it was given.
    pub(crate) const fn known(&self) -> Result<()> {
        known(self.c.qp_base.handle, self.c.qp_base.qp_num)
    }
}
