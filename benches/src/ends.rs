//! Verbs objects on both ends of a reliable connection over real UDP sockets on loopback addresses.

use rxe_verbs::{
    Access, CompChannel, Context, Cq, Mr, Mtu, Pd, Psn, Qp, QpChange, QpInit, QpState, QpType, Remote, Sge,
};
use std::{error::Error, net::IpAddr};

/// Whatever the device says.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// All that a peer may do, and receives.
pub const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// A loopback address that no other process which asks here uses at the same time.
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
    /// Its memory.
    pub mr: Mr,
    /// Completions of both directions.
    pub cq: Cq,
    /// The domain of all.
    pub pd: Pd,
}

impl End {
    /// Objects of a usual size, and `bytes` of memory; the queue pair is in RESET.
    ///
    /// # Errors
    /// What the device says.
    pub fn new(context: &Context, bytes: usize, channel: Option<&CompChannel>) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(1024, channel)?;
        let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq))?;
        let mr = pd.alloc_mr(bytes, ALL)?;
        Ok(Self { qp, mr, cq, pd })
    }

    /// `len` bytes at `offset` of the own memory.
    #[must_use]
    pub fn sge(&self, offset: usize, len: u32) -> Sge {
        Sge { addr: self.mr.addr() + offset as u64, len, lkey: self.mr.lkey() }
    }

    /// The memory at `offset`, as the peer names it.
    #[must_use]
    pub fn remote(&self, offset: usize) -> Remote {
        Remote { addr: self.mr.addr() + offset as u64, rkey: self.mr.rkey() }
    }
}

/// Takes a queue pair from RESET to RTS, with `peer` as its peer.
///
/// # Errors
/// What the device says.
pub fn bring_up(own: &Qp, peer: &Qp, mtu: Mtu) -> Result<()> {
    own.modify(&QpChange {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: Some(ALL),
        ..QpChange::default()
    })?;
    let av = own.context().address_vector(0, peer.context().gids().get(0))?;
    own.modify(&QpChange {
        state: Some(QpState::Rtr),
        av: Some(av),
        path_mtu: Some(mtu),
        dest_qpn: Some(peer.qpn()),
        rq_psn: Some(Psn::new(peer.qpn().value())),
        max_dest_rd_atomic: Some(128),
        min_rnr_timer: Some(1),
        ..QpChange::default()
    })?;
    own.modify(&QpChange {
        state: Some(QpState::Rts),
        sq_psn: Some(Psn::new(own.qpn().value())),
        // Half a second: the ends may have to share a processor with others.
        timeout: Some(17),
        retry_count: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(128),
        ..QpChange::default()
    })?;
    Ok(())
}

/// Two connected ends with `bytes` of memory each.
///
/// # Errors
/// What the device says.
pub fn connected(contexts: &[Context; 2], bytes: usize, mtu: Mtu) -> Result<[End; 2]> {
    connected_with(contexts, bytes, mtu, None)
}

/// The same; the first end's completions tell `channel`.
///
/// # Errors
/// What the device says.
pub fn connected_with(
    contexts: &[Context; 2],
    bytes: usize,
    mtu: Mtu,
    channel: Option<&CompChannel>,
) -> Result<[End; 2]> {
    let ends = [End::new(&contexts[0], bytes, channel)?, End::new(&contexts[1], bytes, None)?];
    bring_up(&ends[0].qp, &ends[1].qp, mtu)?;
    bring_up(&ends[1].qp, &ends[0].qp, mtu)?;
    Ok(ends)
}
