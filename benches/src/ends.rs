//! Verbs objects on both ends of a reliable connection over real UDP sockets on loopback addresses.

use rxe_verbs::{
    Access, AddressVector, CompChannel, Context, Cq, Mr, Mtu, Pd, Psn, Qp, QpChange, QpInit, QpState, QpType,
    Qpn, Remote, Sge,
};
use std::{error::Error, net::IpAddr};

/// A result with any error of the device.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// All access rights: what a peer may do, and what receives need.
pub const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// A loopback address that no other process uses at the same time, if it also takes its address from this function.
#[must_use]
pub fn loopback(number: u8) -> IpAddr {
    let pid = std::process::id();
    IpAddr::from([127, 128 + (pid >> 8) as u8 % 64, pid as u8, number])
}

/// One end.
#[derive(Debug)]
pub struct End {
    /// The queue pair.
    pub qp: Qp,
    /// Its memory region.
    pub mr: Mr,
    /// The completion queue for both directions.
    pub cq: Cq,
    /// The protection domain of all these objects.
    pub pd: Pd,
}

impl End {
    /// Creates objects of a usual size, and `bytes` of memory. The queue pair is in RESET.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn new(context: &Context, bytes: usize, channel: Option<&CompChannel>) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(1024, channel)?;
        let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq))?;
        let mr = pd.alloc_mr(bytes, ALL)?;
        Ok(Self { qp, mr, cq, pd })
    }

    /// `len` bytes at `offset` of this end's memory.
    #[must_use]
    pub fn sge(&self, offset: usize, len: u32) -> Sge {
        Sge { addr: self.mr.addr() + offset as u64, len, lkey: self.mr.lkey() }
    }

    /// This end's memory at `offset`, in the form that the peer uses in its requests.
    #[must_use]
    pub fn remote(&self, offset: usize) -> Remote {
        Remote { addr: self.mr.addr() + offset as u64, rkey: self.mr.rkey() }
    }
}

/// The parameters that connect a queue pair to its peer.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The peer's address.
    pub av: AddressVector,
    /// The peer's queue pair number.
    pub peer: Qpn,
    /// Path MTU.
    pub mtu: Mtu,
    /// The first PSNs: its own and the peer's.
    pub psns: [Psn; 2],
    /// Code of the acknowledgement timeout (4.096 us * 2^code), 0 to 31.
    pub timeout: u8,
    /// Maximum number of outstanding READs and atomics in each direction.
    pub reads: u8,
}

impl Way {
    /// Parameters for this queue pair, with usual values: MTU 4096, PSN 0, and 128 READs. The timeout is half a second,
    /// because the ends may have to share a processor with other processes.
    #[must_use]
    pub const fn to(peer: Qpn, av: AddressVector) -> Self {
        Self { av, peer, mtu: Mtu::M4096, psns: [Psn::new(0); 2], timeout: 17, reads: 128 }
    }
}

/// Moves a queue pair from RESET to RTS.
///
/// # Errors
/// The error that the device reports.
pub fn bring_up(qp: &Qp, way: &Way) -> Result<()> {
    qp.modify(&QpChange {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: Some(ALL),
        ..QpChange::default()
    })?;
    qp.modify(&QpChange {
        state: Some(QpState::Rtr),
        av: Some(way.av),
        path_mtu: Some(way.mtu),
        dest_qpn: Some(way.peer),
        rq_psn: Some(way.psns[1]),
        max_dest_rd_atomic: Some(way.reads),
        min_rnr_timer: Some(1),
        ..QpChange::default()
    })?;
    qp.modify(&QpChange {
        state: Some(QpState::Rts),
        sq_psn: Some(way.psns[0]),
        timeout: Some(way.timeout),
        retry_count: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(way.reads),
        ..QpChange::default()
    })?;
    Ok(())
}

/// Connects two queue pairs. The first PSN of each is its queue pair number.
///
/// # Errors
/// The error that the device reports.
pub fn connect(one: &Qp, other: &Qp, mtu: Mtu) -> Result<()> {
    for (own, peer) in [(one, other), (other, one)] {
        let av = own.context().address_vector(0, peer.context().gids().get(0))?;
        let psns = [own, peer].map(|qp| Psn::new(qp.qpn().value()));
        bring_up(own, &Way { mtu, psns, ..Way::to(peer.qpn(), av) })?;
    }
    Ok(())
}

/// Two connected ends with `bytes` of memory each.
///
/// # Errors
/// The error that the device reports.
pub fn connected(contexts: &[Context; 2], bytes: usize, mtu: Mtu) -> Result<[End; 2]> {
    connected_with(contexts, bytes, mtu, None)
}

/// The same. The completions of the first end raise events on `channel`.
///
/// # Errors
/// The error that the device reports.
pub fn connected_with(
    contexts: &[Context; 2],
    bytes: usize,
    mtu: Mtu,
    channel: Option<&CompChannel>,
) -> Result<[End; 2]> {
    let ends = [End::new(&contexts[0], bytes, channel)?, End::new(&contexts[1], bytes, None)?];
    connect(&ends[0].qp, &ends[1].qp, mtu)?;
    Ok(ends)
}
