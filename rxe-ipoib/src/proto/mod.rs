//! The pure half: frames, addresses, address resolution and connection set-up as in the RFCs. It has no sockets, clocks and
//! threads: the time is an argument, and packets are handles of the caller.
//!
//! | file | what | source |
//! |---|---|---|
//! | `address` | the 20-byte link-layer address | RFC 4391, 9.1.1; RFC 4755, 3.1 |
//! | `encap` | the 4-byte header in front of each packet | RFC 4391, 6 |
//! | `arp` | ARP for IPv4 | RFC 4391, 9.1; RFC 826 |
//! | `nd` | neighbour solicitations and advertisements for IPv6 | RFC 4391, 9.3; RFC 4861 |
//! | `group` | multicast groups as MGIDs | RFC 4391, 4 |
//! | `connected` | connected mode's service ID and private data | RFC 4755, 3.5 and 6 |
//! | `ip` | headers of IP packets, and ICMP's "too big" | RFC 791, 8200, 792, 4443 |
//! | `neighbours` | the neighbour table, and packets that wait for an address | RFC 4861, 7.3 |

pub mod address;
pub mod arp;
pub mod connected;
pub mod encap;
pub mod group;
pub mod ip;
pub mod nd;
pub mod neighbours;

/// Reads `N` bytes from `at` on, if they are there.
pub(crate) fn bytes<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..)?.first_chunk().copied()
}
