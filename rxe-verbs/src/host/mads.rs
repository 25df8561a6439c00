//! Management datagrams of programs (`libibumad`): how they are registered for, sent and received. The host service is the port's
//! general service agent, as a kernel is.

use serde::{Deserialize, Serialize};

/// Most registrations of a connection, as in kernels (IB_UMAD_MAX_AGENTS).
pub const MAX_AGENTS: u32 = 32;
/// Status of a request that is returned because it was not answered (ETIMEDOUT).
pub const TIMED_OUT: u32 = 110;

/// Which requests a program wants to answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadFilter {
    /// Management class.
    pub class: u8,
    /// Its version.
    pub version: u8,
    /// OUI, for the vendors' classes that have one (0x30 to 0x4f).
    pub oui: Option<[u8; 3]>,
    /// A bit for each method. None is set for a program that only asks.
    pub methods: u128,
}

/// Where a datagram goes, or where it comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadAddress {
    /// Queue pair: 1, or 0 for subnet management.
    pub qpn: u32,
    /// Q_Key.
    pub qkey: u32,
    /// LID ([`rxe_fabric::mad::lid_of`]); 0 for the port itself.
    pub lid: u16,
    /// Service level.
    pub sl: u8,
    /// GID. If there is one, it is used instead of the LID.
    pub gid: Option<[u8; 16]>,
    /// Traffic class.
    pub traffic_class: u8,
    /// Index of the P_Key.
    pub pkey_index: u16,
}

/// A datagram between a program and the service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagedMad {
    /// The program's registration.
    pub agent: u32,
    /// 0, or [`TIMED_OUT`] for a request that is returned.
    pub status: u32,
    /// Milliseconds to wait for an answer; 0 if none is expected.
    pub timeout_ms: u32,
    /// How often a request is sent again.
    pub retries: u32,
    /// Its destination, or its source.
    pub address: MadAddress,
    /// 24 to 256 bytes; an answer of subnet administration with many records has more.
    pub bytes: Vec<u8>,
}
