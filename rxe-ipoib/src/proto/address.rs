//! Link-layer addresses of IPoIB (RFC 4391, 9.1.1): 20 bytes.

use super::bytes;
use core::{fmt, net::Ipv6Addr};

/// Bytes of an address.
pub const LEN: usize = 20;

/// The flag that says that the interface accepts reliable connections (RFC 4755, 3.1).
const RC: u8 = 0x80;

/// The link-layer address of an IPoIB interface: its GID, its queue pair for datagrams, and whether it accepts connections.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkAddress {
    /// Whether it accepts reliable connections.
    pub connected: bool,
    /// Its queue pair for datagrams, 24 bits.
    pub qpn: u32,
    /// Its port's GID. On RoCE that is an IP address: IPv4 as `::ffff:a.b.c.d`.
    pub gid: Ipv6Addr,
}

impl LinkAddress {
    /// The bytes, as in ARP packets and options of neighbour discovery.
    #[must_use]
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[..4].copy_from_slice(&(self.qpn & 0xff_ffff).to_be_bytes());
        out[0] = if self.connected { RC } else { 0 };
        out[4..].copy_from_slice(&self.gid.octets());
        out
    }

    /// Parses an address. The flag for unreliable connections and reserved flags are ignored. `None` for an impossible address:
    /// queue pair 0, 1 or the one of groups, an unspecified GID or one of a group.
    #[must_use]
    pub fn parse(data: &[u8]) -> Option<Self> {
        let data: [u8; LEN] = bytes(data, 0)?;
        let qpn = u32::from_be_bytes([0, data[1], data[2], data[3]]);
        let gid = Ipv6Addr::from(bytes::<16>(&data, 4)?);
        let inner = gid.to_ipv4_mapped();
        let nobody = gid.is_unspecified()
            || gid.is_multicast()
            || inner.is_some_and(|v4| v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast());
        (qpn > 1 && qpn != 0xff_ffff && !nobody).then_some(Self { connected: data[0] & RC != 0, qpn, gid })
    }
}

impl fmt::Display for LinkAddress {
    /// As `ip link` shows it: 20 bytes with colons.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.emit().iter().enumerate() {
            write!(f, "{}{byte:02x}", if index == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
