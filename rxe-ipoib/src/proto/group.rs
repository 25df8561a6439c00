//! Multicast groups (RFC 4391, 4): an IP group is mapped to a multicast GID, which also contains the partition.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Transient, link-local: the scope of the broadcast group, and of all groups of the link.
const FLAGS_AND_SCOPE: u16 = 0xff12;
/// The signatures of IPv4 and IPv6 groups.
const SIGNATURE_V4: u16 = 0x401b;
const SIGNATURE_V6: u16 = 0x601b;
/// This bit is set in the P_Key of a group.
const FULL_MEMBER: u16 = 0x8000;

/// The broadcast group, of which every interface is a member.
#[must_use]
pub const fn broadcast(pkey: u16) -> Ipv6Addr {
    let pkey = pkey | FULL_MEMBER;
    Ipv6Addr::new(FLAGS_AND_SCOPE, SIGNATURE_V4, pkey, 0, 0, 0, 0xffff, 0xffff)
}

/// The MGID of an IP group: it has the lower 28 bits of an IPv4 address, or the lower 80 bits of an IPv6 address. `None` if the
/// address is not a group.
#[must_use]
pub fn mgid(pkey: u16, group: IpAddr) -> Option<Ipv6Addr> {
    let pkey = pkey | FULL_MEMBER;
    match group {
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some(broadcast(pkey)),
        IpAddr::V4(v4) if v4.is_multicast() => {
            let id = u32::from(v4) & 0x0fff_ffff;
            Some(Ipv6Addr::new(FLAGS_AND_SCOPE, SIGNATURE_V4, pkey, 0, 0, 0, (id >> 16) as u16, id as u16))
        }
        IpAddr::V6(v6) if v6.is_multicast() => {
            let [.., a, b, c, d, e] = v6.segments();
            Some(Ipv6Addr::new(FLAGS_AND_SCOPE, SIGNATURE_V6, pkey, a, b, c, d, e))
        }
        _ => None,
    }
}

/// The solicited-node group of an address (RFC 4291, 2.7.1), to which solicitations for it are sent.
#[must_use]
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., e, f] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (e & 0xff), f)
}

/// The IPv4 group for an MGID if a port has no IPv6 address: one of 239.192.0.0/14 (the organization-local scope of RFC 2365),
/// chosen by 18 bits of a hash (FNV-1a). Several MGIDs may share a group. Receivers drop packets of other MGIDs, as with the
/// filters of Ethernet cards.
#[must_use]
pub fn carrier(mgid: Ipv6Addr) -> Ipv4Addr {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let hash = mgid.octets().iter().fold(0x811c_9dc5, step);
    let folded = (hash ^ (hash >> 18)) & 0x3_ffff;
    Ipv4Addr::from(u32::from(Ipv4Addr::new(239, 192, 0, 0)) | folded)
}
