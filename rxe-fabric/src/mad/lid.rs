//! LIDs for hosts that have none. They are computed from addresses. So a LID means the same to all hosts of a network, and LIDs
//! need not be assigned or stored.

use core::net::{IpAddr, Ipv4Addr};

/// The first LID of multicast groups (IBTA vol. 1, 4.1.3).
pub const MULTICAST_LIDS: u16 = 0xc000;
/// The permissive LID. In a directed request it means that no part of the path is routed by LIDs.
pub const PERMISSIVE_LID: u16 = 0xffff;
/// The LID of the switch that stands for the Ethernet. No address has it.
pub const SWITCH_LID: u16 = 0xbfff;
/// The LID of the address that would have it.
const IN_ITS_PLACE: u16 = 0x9fff;
/// The LIDs of loopback addresses, plus their last byte.
const LOOPBACKS: u16 = 0xbf00;
/// The LIDs of ports without an IPv4 address.
const OF_IPV6: core::ops::Range<u16> = 0xa000..0xbe00;

/// The LID of a port with this address. For IPv4 it is the lower half of the address (10.0.0.7 has 7, 10.0.1.2 has 258), with the
/// top bit in the place of the two if that is a multicast group's, and 0x9fff where that would be the switch's; loopback addresses
/// have 0xbf00 and their last byte. For IPv6 it is a sum of the address, from 0xa000 to 0xbdff. Two hosts of different networks may have the same, as in InfiniBand.
#[must_use]
pub fn lid_of(address: IpAddr) -> u16 {
    match address {
        IpAddr::V4(v4) if v4.is_loopback() => LOOPBACKS | u16::from(v4.octets()[3]).clamp(1, 254),
        IpAddr::V4(v4) => match u32::from(v4) as u16 {
            0 => 0x8000,
            SWITCH_LID | u16::MAX => IN_ITS_PLACE,
            low @ MULTICAST_LIDS.. => low & 0x3fff | 0x8000,
            low => low,
        },
        // FNV-1a. Any sum would do, as long as all hosts use the same.
        IpAddr::V6(v6) => {
            let step = |sum: u32, byte: u8| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193);
            let sum = v6.octets().into_iter().fold(0x811c_9dc5, step);
            OF_IPV6.start + (sum % u32::from(OF_IPV6.end - OF_IPV6.start)) as u16
        }
    }
}

/// The address with this LID in the network of `own`, which is an address with the length of its prefix. It is unique for
/// prefixes of 18 bits and more. `None` if there is none.
#[must_use]
pub fn address_of_lid(lid: u16, own: Ipv4Addr, prefix: u8) -> Option<Ipv4Addr> {
    if own.is_loopback() {
        let last = (lid & 0xff) as u8;
        return (lid & 0xff00 == LOOPBACKS && (1..255).contains(&last))
            .then(|| Ipv4Addr::new(127, 0, 0, last));
    }
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
    let network = u32::from(own) & mask;
    let high = u32::from(own) & 0xffff_0000;
    let folded = u32::from(lid & 0x3fff | MULTICAST_LIDS);
    let lows = [u32::from(lid), folded, 0, SWITCH_LID.into(), u16::MAX.into()];
    let candidates = lows.map(|low| Ipv4Addr::from(high | low));
    let fits = |address: &Ipv4Addr| u32::from(*address) & mask == network && lid_of((*address).into()) == lid;
    candidates.into_iter().find(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    #[test]
    fn no_address_has_the_switch_s_lid() {
        for low in 0..=u16::MAX {
            for high in [0x0a00_0000, 0xc0a8_0000, 0x7f00_0000] {
                let address = Ipv4Addr::from(high | u32::from(low));
                let lid = lid_of(address.into());
                assert!((1..MULTICAST_LIDS).contains(&lid) && lid != SWITCH_LID, "{address}");
            }
            let found = address_of_lid(low, v4("192.168.255.254"), 16);
            assert!(found.is_none_or(|found| lid_of(found.into()) == low), "{low:#x}");
        }
        assert_eq!(address_of_lid(IN_ITS_PLACE, v4("10.0.128.1"), 17), Some(v4("10.0.159.255")));
        assert_eq!(address_of_lid(IN_ITS_PLACE, v4("10.0.191.254"), 24), Some(v4("10.0.191.255")));
        assert_eq!(address_of_lid(SWITCH_LID, v4("127.0.0.1"), 8), None);
    }

    #[test]
    fn hosts_of_a_network_are_found_by_their_lids() {
        for (address, lid) in [
            ("10.0.0.7", 7),
            ("10.0.1.2", 258),
            ("192.168.200.5", 0x8805),
            ("10.1.0.0", 0x8000),
            ("127.0.0.1", 0xbf01),
        ] {
            assert_eq!(lid_of(v4(address).into()), lid, "{address}");
        }
        let all = |own: &str, prefix: u8, hosts: u32| {
            let network = u32::from(v4(own)) & !(hosts - 1);
            for host in 1..hosts - 1 {
                let address = Ipv4Addr::from(network | host);
                let lid = lid_of(address.into());
                assert!((1..MULTICAST_LIDS).contains(&lid));
                assert_eq!(address_of_lid(lid, v4(own), prefix), Some(address), "{address}");
            }
        };
        all("10.0.0.7", 24, 256);
        all("192.168.250.1", 20, 4096);
        all("172.16.99.1", 18, 1 << 14);
        assert_eq!(address_of_lid(300, v4("10.0.0.7"), 24), None);
        assert_eq!(address_of_lid(300, v4("10.0.0.7"), 0), Some(v4("10.0.1.44")));
        assert_eq!(address_of_lid(0xbf02, v4("127.0.0.1"), 8), Some(v4("127.0.0.2")));
        assert_eq!(address_of_lid(2, v4("127.0.0.1"), 8), None);
        assert!(OF_IPV6.contains(&lid_of("fe80::1".parse().unwrap())));
    }
}
