//! Devices under test, behind one small trait: the verbs that the cases need. What drives a device knows nothing of cases,
//! and the cases nothing of what drives it.
//!
//! The types are those of the agent's protocol (`testbed/guest/agent.py`), so that a device on another host is the same
//! calls as lines of JSON.

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

/// What a device answered to a call instead of doing it.
#[derive(Clone, Debug, Error)]
pub enum Refusal {
    /// The device said no, as it may: an errno where it gave one.
    #[error("{what} ({})", .errno.map_or_else(|| "no errno".to_owned(), |code| format!("errno {code}")))]
    Refused {
        /// In its words.
        what: String,
        /// Its errno.
        errno: Option<i32>,
    },
    /// Nobody can talk to the device any more: no further case can be run.
    #[error("the device is gone: {0}")]
    Gone(String),
    /// Whatever drives the device has no such call.
    #[error("no such call here: {0}")]
    Lacks(String),
}

impl Refusal {
    /// Refused for a reason that only words tell.
    #[must_use]
    pub fn words(what: impl ToString) -> Self {
        Self::Refused { what: what.to_string(), errno: None }
    }
}

/// The answer to a call.
pub type Answer<T> = Result<T, Refusal>;

/// A device under test, by the verbs that cases use. All calls return at once; time passes in the link.
pub trait Dut {
    /// What it is.
    fn about(&self) -> &About;

    /// Destroys whatever the last case made.
    ///
    /// # Errors
    /// If not everything could be destroyed.
    fn reset(&mut self) -> Answer<()>;

    /// Makes a protection domain.
    ///
    /// # Errors
    /// What the device says.
    fn pd(&mut self) -> Answer<Handle>;

    /// Registers `length` zeroed bytes.
    ///
    /// # Errors
    /// What the device says.
    fn mr(&mut self, pd: Handle, length: usize, access: &[Access]) -> Answer<Mr>;

    /// Writes registered memory as its owner.
    ///
    /// # Errors
    /// What the device says.
    fn mem_write(&mut self, mr: &Mr, offset: usize, data: &[u8]) -> Answer<()>;

    /// Reads registered memory as its owner.
    ///
    /// # Errors
    /// What the device says.
    fn mem_read(&mut self, mr: &Mr, offset: usize, length: usize) -> Answer<Vec<u8>>;

    /// Makes a completion queue for at least that many entries.
    ///
    /// # Errors
    /// What the device says.
    fn cq(&mut self, cqe: u32) -> Answer<Handle>;

    /// Makes a shared receive queue.
    ///
    /// # Errors
    /// What the device says.
    fn srq(&mut self, pd: Handle, max_wr: u32) -> Answer<Handle>;

    /// Arms the limit event of a shared receive queue.
    ///
    /// # Errors
    /// What the device says.
    fn srq_limit(&mut self, srq: Handle, limit: u32) -> Answer<()>;

    /// Makes a queue pair, in RESET.
    ///
    /// # Errors
    /// What the device says.
    fn qp(&mut self, spec: &QpSpec) -> Answer<Qp>;

    /// Changes a queue pair: exactly what is given.
    ///
    /// # Errors
    /// What the device says.
    fn modify(&mut self, qp: Handle, change: &Change) -> Answer<()>;

    /// The state of a queue pair.
    ///
    /// # Errors
    /// What the device says.
    fn state(&mut self, qp: Handle) -> Answer<State>;

    /// Posts a receive to a queue pair.
    ///
    /// # Errors
    /// What the device says.
    fn post_recv(&mut self, qp: Handle, wr: &RecvWr) -> Answer<()>;

    /// Posts a receive to a shared receive queue.
    ///
    /// # Errors
    /// What the device says.
    fn post_srq_recv(&mut self, srq: Handle, wr: &RecvWr) -> Answer<()>;

    /// Posts a send request.
    ///
    /// # Errors
    /// What the device says.
    fn post_send(&mut self, qp: Handle, wr: &SendWr) -> Answer<()>;

    /// Takes what a completion queue holds.
    ///
    /// # Errors
    /// What the device says, an overrun queue among it.
    fn poll(&mut self, cq: Handle) -> Answer<Vec<Wc>>;

    /// The next asynchronous event, by its name without IBV_EVENT_.
    ///
    /// # Errors
    /// What the device says.
    fn async_event(&mut self) -> Answer<Option<String>>;

    /// Makes a memory window of type 1 or 2: its handle and first R_Key.
    ///
    /// # Errors
    /// What the device says.
    fn mw(&mut self, pd: Handle, kind: u8) -> Answer<(Handle, u32)>;

    /// Binds a window to a part of a region, and gives the new R_Key. Completes in the queue pair's send queue.
    ///
    /// # Errors
    /// What the device says.
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
    /// What the device says.
    fn attach(&mut self, _qp: Handle, _group: IpAddr) -> Answer<()> {
        Err(Refusal::Lacks("multicast groups".into()))
    }

    /// Detaches one from a group.
    ///
    /// # Errors
    /// What the device says.
    fn detach(&mut self, _qp: Handle, _group: IpAddr) -> Answer<()> {
        Err(Refusal::Lacks("multicast groups".into()))
    }

    /// Destroys one object, the connection manager's among them.
    ///
    /// # Errors
    /// What the device says.
    fn close(&mut self, handle: Handle) -> Answer<()>;

    /// Its connection manager.
    ///
    /// # Errors
    /// If it has none that could be driven.
    fn cm(&mut self) -> Answer<&mut dyn Cm> {
        Err(Refusal::Lacks("the connection manager".into()))
    }
}
