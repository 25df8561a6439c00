//! Connected mode (RFC 4755): the service ID of an interface, and the private data of both sides.

use super::bytes;

/// The largest MTU in connected mode, as in Linux: 64 KiB less 16 bytes.
pub const MTU: u16 = 65_520;

/// The service ID of the interface with this queue pair (RFC 4755, 3.5): the prefix 0x01, zeros, and the number in 24 bits.
/// illumos does the same (`IBD_RC_SERVICE_ID` in its ibd.h). Linux has the prefix 0x10 (`IPOIB_CM_IETF_ID` in its ipoib_cm.c);
/// illumos calls this one digit too many, and accepts it as well. Neither runs IPoIB on RoCE.
#[must_use]
pub const fn service_id(qpn: u32) -> u64 {
    0x01 << 56 | (qpn & 0xff_ffff) as u64
}

/// Private data of REQ and REP (RFC 4755, 6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrivateData {
    /// The sender's queue pair for datagrams, 24 bits. Together with the GID it identifies the sender.
    pub qpn: u32,
    /// The longest message that it accepts, including the header.
    pub receive_mtu: u32,
}

impl PrivateData {
    /// The private data as bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; 8] {
        let mut out = [0; 8];
        out[..4].copy_from_slice(&(self.qpn & 0xff_ffff).to_be_bytes());
        out[4..].copy_from_slice(&self.receive_mtu.to_be_bytes());
        out
    }

    /// Parses the beginning of a message's field. `None` if the longest message is too short: IPv4 needs an MTU of at least 68
    /// bytes.
    #[must_use]
    pub fn parse(data: &[u8]) -> Option<Self> {
        let [_, a, b, c] = bytes::<4>(data, 0)?;
        let receive_mtu = u32::from_be_bytes(bytes(data, 4)?);
        let out = Self { qpn: u32::from_be_bytes([0, a, b, c]), receive_mtu };
        (out.qpn > 1 && receive_mtu >= 68 + super::encap::LEN as u32).then_some(out)
    }
}
