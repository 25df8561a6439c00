//! GIDs and the GID table, which has the port's addresses by index.

use core::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
};
use rxe_core::work::GidType;

/// A global identifier. On RoCEv2 it is an IP address; an IPv4 address is mapped into IPv6 (`::ffff:a.b.c.d`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The empty entry.
    pub const ZERO: Self = Self([0; 16]);

    /// Whether this is the empty entry.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    /// The IP address. `None` for the empty entry.
    #[must_use]
    pub fn address(self) -> Option<IpAddr> {
        (!self.is_zero()).then(|| Ipv6Addr::from(self.0).to_canonical())
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
}

/// Eight groups of four digits, as ibv_devinfo prints them.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pair) in self.0.chunks(2).enumerate() {
            let colon = if index == 0 { "" } else { ":" };
            write!(f, "{colon}{:02x}{:02x}", pair[0], pair[1])?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Gid {
    type Err = core::net::AddrParseError;

    /// Parses any spelling of an IPv4 or IPv6 address.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<IpAddr>().map(Self::from)
    }
}

/// A port's GIDs, each with its type. An entry in use never moves. An address that goes away leaves an empty entry; a new
/// address takes the first empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GidTable {
    entries: Vec<(Gid, GidType)>,
    /// Whether each address also has an entry for RoCE v1.
    v1: bool,
}

impl GidTable {
    /// The table of a port with these addresses: IPv4 first, then IPv6, link-local addresses last. A single address has both
    /// index 0 and index 1, because programs usually choose one of these two.
    #[must_use]
    pub fn new(addresses: &[IpAddr]) -> Self {
        let mut entries: Vec<_> = ordered(addresses).map(|ip| (Gid::from(ip), GidType::RoceV2)).collect();
        if let [only] = entries[..] {
            entries.push(only);
        }
        Self { entries, v1: false }
    }

    /// Adds an entry for RoCE v1 for each address, behind all entries for RoCE v2. So programs that ask for no type get v2.
    /// (Cards list the two types in turn; kernel rxe has only v2.)
    #[must_use]
    pub fn with_v1(mut self, addresses: &[IpAddr]) -> Self {
        self.v1 = true;
        self.update(addresses);
        self
    }

    /// Brings the table up to date. Returns whether it changed.
    pub fn update(&mut self, addresses: &[IpAddr]) -> bool {
        let before = self.entries.clone();
        let of_type = |kind| ordered(addresses).map(move |ip| (Gid::from(ip), kind));
        let usual: Vec<_> = of_type(GidType::RoceV2).collect();
        let wanted: Vec<_> =
            usual.iter().copied().chain(of_type(GidType::RoceV1).filter(|_| self.v1)).collect();
        for entry in &mut self.entries {
            if !wanted.contains(entry) {
                *entry = <(Gid, GidType)>::default();
            }
        }
        for entry in wanted.iter().filter(|entry| !before.contains(entry)) {
            match self.entries.iter_mut().find(|(gid, _)| gid.is_zero()) {
                Some(free) => *free = *entry,
                None => self.entries.push(*entry),
            }
        }
        if let [only] = usual[..] {
            self.entries.resize(self.entries.len().max(2), <(Gid, GidType)>::default());
            self.entries[..2].iter_mut().filter(|(gid, _)| gid.is_zero()).for_each(|entry| *entry = only);
        }
        self.entries != before
    }

    /// The GID at `index`; the empty one beyond the end.
    #[must_use]
    pub fn get(&self, index: u8) -> Gid {
        self.entries.get(usize::from(index)).map(|(gid, _)| *gid).unwrap_or_default()
    }

    /// The type of the entry at `index` (`gid_type` of ibv_query_gid_ex).
    #[must_use]
    pub fn gid_type(&self, index: u8) -> GidType {
        self.entries.get(usize::from(index)).map(|(_, kind)| *kind).unwrap_or_default()
    }

    /// The first index of this GID with this type.
    #[must_use]
    pub fn find(&self, gid: Gid, kind: GidType) -> Option<u8> {
        self.iter()
            .map(|(index, _)| index)
            .find(|index| (self.get(*index), self.gid_type(*index)) == (gid, kind))
    }

    /// Number of entries, including empty ones.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the table has no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries in use, with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (u8, Gid)> {
        (0..=u8::MAX).zip(self.entries.iter().map(|(gid, _)| *gid)).filter(|(_, gid)| !gid.is_zero())
    }
}

/// Each address once, at most 256 of them: IPv4 first, then IPv6, then the link-local ones of both.
fn ordered(addresses: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let rank = |address: &IpAddr| match address {
        IpAddr::V4(v4) if !v4.is_link_local() => 0,
        IpAddr::V6(v6) if !v6.is_unicast_link_local() => 1,
        _ => 2,
    };
    let mut list: Vec<IpAddr> = Vec::new();
    for address in addresses {
        if !list.contains(address) && list.len() <= usize::from(u8::MAX) {
            list.push(*address);
        }
    }
    list.sort_by_key(rank);
    list.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(text: &str) -> Vec<IpAddr> {
        text.split_whitespace().map(|word| word.parse().expect("an address")).collect()
    }

    fn shown(table: &GidTable) -> Vec<String> {
        table
            .entries
            .iter()
            .map(|(gid, _)| gid.address().map_or_else(|| "-".into(), |a| a.to_string()))
            .collect()
    }

    #[test]
    fn spelling() {
        let gid: Gid = "192.168.1.2".parse().expect("an address");
        assert_eq!(gid.to_string(), "0000:0000:0000:0000:0000:ffff:c0a8:0102");
        assert_eq!(gid.address(), Some("192.168.1.2".parse().expect("an address")));
        assert_eq!("::ffff:192.168.1.2".parse(), Ok(gid));
        assert_eq!(gid.to_string().parse(), Ok(gid));
        assert_eq!(Gid::ZERO.address(), None);
    }

    #[test]
    fn order() {
        let table = GidTable::new(&ips("fe80::1 2001:db8::1 10.0.0.1 10.0.0.2"));
        assert_eq!(shown(&table), ["10.0.0.1", "10.0.0.2", "2001:db8::1", "fe80::1"]);
        assert_eq!(shown(&GidTable::new(&ips("10.0.0.1"))), ["10.0.0.1", "10.0.0.1"]);
        assert!(GidTable::new(&[]).is_empty());
        assert_eq!(table.get(200), Gid::ZERO);
    }

    #[test]
    fn live_entries_never_move() {
        let mut table = GidTable::new(&ips("10.0.0.1 fe80::1"));
        assert!(!table.update(&ips("fe80::1 10.0.0.1")));
        assert!(table.update(&ips("10.0.0.1 10.0.0.2 fe80::1")));
        assert_eq!(shown(&table), ["10.0.0.1", "fe80::1", "10.0.0.2"]);
        assert!(table.update(&ips("fe80::1 10.0.0.2")));
        assert_eq!(shown(&table), ["-", "fe80::1", "10.0.0.2"]);
        assert!(table.update(&ips("fe80::1 10.0.0.2 10.0.0.9")));
        assert_eq!(shown(&table), ["10.0.0.9", "fe80::1", "10.0.0.2"]);
    }

    #[test]
    fn roce_v1_comes_behind() {
        let addresses = ips("10.0.0.1 fe80::1");
        let mut table = GidTable::new(&addresses).with_v1(&addresses);
        assert_eq!(shown(&table), ["10.0.0.1", "fe80::1", "10.0.0.1", "fe80::1"]);
        let types = |table: &GidTable| (0..4).map(|index| table.gid_type(index)).collect::<Vec<_>>();
        use GidType::{RoceV1, RoceV2};
        assert_eq!(types(&table), [RoceV2, RoceV2, RoceV1, RoceV1]);
        assert_eq!(table.find(table.get(0), RoceV1), Some(2));
        assert!(table.update(&ips("fe80::1")));
        assert_eq!(shown(&table), ["fe80::1", "fe80::1", "-", "fe80::1"]);
        let one = ips("10.0.0.1");
        let single = GidTable::new(&one).with_v1(&one);
        assert_eq!(
            (shown(&single), types(&single)),
            (vec!["10.0.0.1".into(); 3], vec![RoceV2, RoceV2, RoceV1, RoceV2])
        );
    }

    #[test]
    fn a_single_address_has_both_places() {
        let mut table = GidTable::new(&[]);
        assert!(table.update(&ips("10.0.0.1")));
        assert_eq!(shown(&table), ["10.0.0.1", "10.0.0.1"]);
        assert!(!table.update(&ips("10.0.0.1")));
        assert!(table.update(&ips("10.0.0.2")));
        assert_eq!(shown(&table), ["10.0.0.2", "10.0.0.2"]);
        assert!(table.update(&ips("10.0.0.2 10.0.0.3")));
    }
}
