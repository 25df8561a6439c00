//! Devices under test, behind one small trait: the verbs that the cases need. The drivers of devices do not depend on the
//! cases, and the cases do not depend on the drivers.
//!
//! The types are those of the agent's protocol (`testbed/guest/agent.py`). So a device on another host takes the same calls,
//! as lines of JSON.

pub mod agent;
pub mod cm;
mod convert;
pub mod core;
#[cfg(feature = "provider")]
pub mod provider;
#[cfg(feature = "provider")]
mod provider_cm;
pub mod serve;
mod types;

pub use cm::{Cm, CmEvent, Space};
pub use types::{
    About, Access, Attrs, Av, Change, Feature, Flag, Kind, Mr, Qp, QpSpec, RecvWr, SendWr, Service, Sge,
    State, Wc, WrOp,
};

use std::net::IpAddr;
use thiserror::Error;

/// A name for one of the device's objects.
pub type Handle = u64;

/// Why a device did not execute a call.
#[derive(Clone, Debug, Error)]
pub enum Refusal {
    /// The device refused, which it is allowed to do. There is an errno if the device gave one.
    #[error("{what} ({})", .errno.map_or_else(|| "no errno".to_owned(), |code| format!("errno {code}")))]
    Refused {
        /// The reason in the device's words.
        what: String,
        /// The errno.
        errno: Option<i32>,
    },
    /// The connection to the device is lost: no further case can be run.
    #[error("the device is gone: {0}")]
    Gone(String),
    /// The driver of the device does not support this call.
    #[error("no such call here: {0}")]
    Lacks(String),
}

impl Refusal {
    /// A refusal with a reason in words but no errno.
    #[must_use]
    pub fn words(what: impl ToString) -> Self {
        Self::Refused { what: what.to_string(), errno: None }
    }
}

/// The result of a call.
pub type Answer<T> = Result<T, Refusal>;

/// A device under test, with the verbs that cases use. All calls return at once; only calls to the link let time pass.
pub trait Dut {
    /// Its description.
    fn about(&self) -> &About;

    /// Destroys all objects that the last case made.
    ///
    /// # Errors
    /// If not everything could be destroyed.
    fn reset(&mut self) -> Answer<()>;

    /// Creates a protection domain.
    ///
    /// # Errors
    /// The error that the device reports.
    fn pd(&mut self) -> Answer<Handle>;

    /// Registers `length` zeroed bytes.
    ///
    /// # Errors
    /// The error that the device reports.
    fn mr(&mut self, pd: Handle, length: usize, access: &[Access]) -> Answer<Mr>;

    /// Writes registered memory as its owner.
    ///
    /// # Errors
    /// The error that the device reports.
    fn mem_write(&mut self, mr: &Mr, offset: usize, data: &[u8]) -> Answer<()>;

    /// Reads registered memory as its owner.
    ///
    /// # Errors
    /// The error that the device reports.
    fn mem_read(&mut self, mr: &Mr, offset: usize, length: usize) -> Answer<Vec<u8>>;

    /// Creates a completion queue with at least that many entries.
    ///
    /// # Errors
    /// The error that the device reports.
    fn cq(&mut self, cqe: u32) -> Answer<Handle>;

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// The error that the device reports.
    fn srq(&mut self, pd: Handle, max_wr: u32) -> Answer<Handle>;

    /// Arms the limit event of a shared receive queue.
    ///
    /// # Errors
    /// The error that the device reports.
    fn srq_limit(&mut self, srq: Handle, limit: u32) -> Answer<()>;

    /// Creates a queue pair, in RESET.
    ///
    /// # Errors
    /// The error that the device reports.
    fn qp(&mut self, spec: &QpSpec) -> Answer<Qp>;

    /// Modifies a queue pair: sets exactly the given attributes.
    ///
    /// # Errors
    /// The error that the device reports.
    fn modify(&mut self, qp: Handle, change: &Change) -> Answer<()>;

    /// The state of a queue pair.
    ///
    /// # Errors
    /// The error that the device reports.
    fn state(&mut self, qp: Handle) -> Answer<State>;

    /// Posts a receive to a queue pair.
    ///
    /// # Errors
    /// The error that the device reports.
    fn post_recv(&mut self, qp: Handle, wr: &RecvWr) -> Answer<()>;

    /// Posts a receive to a shared receive queue.
    ///
    /// # Errors
    /// The error that the device reports.
    fn post_srq_recv(&mut self, srq: Handle, wr: &RecvWr) -> Answer<()>;

    /// Posts a send request.
    ///
    /// # Errors
    /// The error that the device reports.
    fn post_send(&mut self, qp: Handle, wr: &SendWr) -> Answer<()>;

    /// Takes all completions from a completion queue.
    ///
    /// # Errors
    /// The error that the device reports, for example that the queue has overrun.
    fn poll(&mut self, cq: Handle) -> Answer<Vec<Wc>>;

    /// The next asynchronous event, by its name without IBV_EVENT_.
    ///
    /// # Errors
    /// The error that the device reports.
    fn async_event(&mut self) -> Answer<Option<String>>;

    /// Allocates a memory window of type 1 or 2. Returns its handle and its first R_Key.
    ///
    /// # Errors
    /// The error that the device reports.
    fn mw(&mut self, pd: Handle, kind: u8) -> Answer<(Handle, u32)>;

    /// Binds a window to a part of a region. Returns the new R_Key. The completion comes from the queue pair's send queue.
    ///
    /// # Errors
    /// The error that the device reports.
    fn bind_mw(
        &mut self,
        qp: Handle,
        mw: Handle,
        mr: &Mr,
        range: (usize, usize),
        access: &[Access],
    ) -> Answer<u32>;

    /// Attaches a datagram queue pair to a multicast group.
    ///
    /// # Errors
    /// The error that the device reports.
    fn attach(&mut self, _qp: Handle, _group: IpAddr) -> Answer<()> {
        Err(Refusal::Lacks("multicast groups".into()))
    }

    /// Detaches a datagram queue pair from a multicast group.
    ///
    /// # Errors
    /// The error that the device reports.
    fn detach(&mut self, _qp: Handle, _group: IpAddr) -> Answer<()> {
        Err(Refusal::Lacks("multicast groups".into()))
    }

    /// Destroys one object. This includes objects of the connection manager.
    ///
    /// # Errors
    /// The error that the device reports.
    fn close(&mut self, handle: Handle) -> Answer<()>;

    /// Its connection manager.
    ///
    /// # Errors
    /// If the device has no connection manager that the suite can drive.
    fn cm(&mut self) -> Answer<&mut dyn Cm> {
        Err(Refusal::Lacks("the connection manager".into()))
    }
}
