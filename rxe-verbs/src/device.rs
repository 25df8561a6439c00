//! Devices. There is one for each network interface with a usable address.

use crate::{
    error::OpenError,
    gid::GidTable,
    host::names_of_configuration,
    names::{self, Given, Numbers, number},
    net::{
        LinkKind,
        interfaces::{Interface, interfaces},
    },
    sys::{per_process::PerProcess, process::network_namespace},
};
use core::net::IpAddr;
use rxe_core::qp::Mtu;
use std::{
    collections::BTreeMap,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    path::PathBuf,
    sync::OnceLock,
};

/// Our vendor ID. It is not an assigned one, so that no device is taken for real hardware.
pub const VENDOR_ID: u32 = 0x00ff_fffe;
/// Part number of the only model.
pub const VENDOR_PART_ID: u32 = 1;

/// State of a port (ibv_port_state).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum PortState {
    /// The interface is switched off or has no carrier.
    Down,
    /// It works.
    Active,
}

/// Attributes of a port at the moment (ibv_query_port). A device has one port, number 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortAttrs {
    /// State.
    pub state: PortState,
    /// Largest MTU that a port can have: 4096.
    pub max_mtu: Mtu,
    /// Largest MTU that fits into the interface's MTU.
    pub active_mtu: Mtu,
    /// Entries of the GID table.
    pub gid_table_len: usize,
    /// Entries of the P_Key table.
    pub pkey_table_len: usize,
}

/// A device: a network interface with addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    name: String,
    number: usize,
    interface: Interface,
}

/// Numbers and names of the devices of one network namespace, as this process has told them to its program.
#[derive(Debug, Default)]
struct Known {
    numbers: Numbers,
    names: Given,
}

/// Numbers and names given so far (rxe0, rxe1, ...), for each network namespace that was used. They stay with their interfaces
/// as long as the process lives. Other processes of the user have the same ones ([`crate::names`]).
static NAMES: PerProcess<BTreeMap<Option<PathBuf>, Known>> = PerProcess::new(BTreeMap::new);

/// Lists the devices. The interface of the default route comes first, the loopback last. Interfaces without a usable address are
/// not listed.
///
/// # Errors
/// The system's error, if it cannot list its interfaces.
pub fn devices() -> io::Result<Vec<Device>> {
    named(false)
}

/// As [`devices`], but with the names that the devices have now, even if this process has told other names before. For
/// [`Device::rename`], and for the host service, which outlives programs.
pub(crate) fn devices_anew() -> io::Result<Vec<Device>> {
    named(true)
}

#[cfg(test)]
thread_local! {
    /// How often this thread has listed the devices.
    pub(crate) static LISTED: core::cell::Cell<u32> = const { core::cell::Cell::new(0) };
}

fn named(anew: bool) -> io::Result<Vec<Device>> {
    #[cfg(test)]
    LISTED.set(LISTED.get() + 1);
    let mut list: Vec<Interface> =
        interfaces()?.into_iter().filter(|interface| usable(interface).next().is_some()).collect();
    sort(&mut list);
    let mut known = NAMES.lock();
    let known = known.entry(network_namespace()).or_default();
    let interfaces: Vec<_> = list.iter().map(|interface| interface.name.as_str()).collect();
    number(&interfaces, &mut known.numbers);
    if !anew && interfaces.iter().all(|interface| known.names.contains_key(*interface)) {
        return Ok(name(list, &known.numbers, &known.names));
    }
    let (mut given, said) = (names::given(), names_of_configuration());
    if anew {
        let names = names::called(&interfaces, &known.numbers, &given, &said);
        return Ok(name(list, &known.numbers, &names));
    }
    // Names that this process has told its program stay.
    given.extend(known.names.clone());
    known.names.extend(names::called(&interfaces, &known.numbers, &given, &said));
    Ok(name(list, &known.numbers, &known.names))
}

fn usable(interface: &Interface) -> impl Iterator<Item = IpAddr> {
    interface.addresses.iter().filter(|address| address.usable).map(|address| address.ip)
}

/// Sorts interfaces. The order matters: programs take the first device if they are not told which.
fn sort(list: &mut [Interface]) {
    list.sort_by_key(|interface| (interface.loopback, !interface.default_route, interface.index));
}

/// Makes devices of the interfaces that have a number.
fn name(list: Vec<Interface>, numbers: &Numbers, names: &Given) -> Vec<Device> {
    let device = |interface: Interface| {
        let number = *numbers.get(&interface.name)?;
        let name = names.get(&interface.name).cloned().unwrap_or_else(|| names::numbered(number));
        Some(Device { name, number, interface })
    };
    list.into_iter().filter_map(device).collect()
}

impl Device {
    /// Finds a device by its own name (`rxe0`), or else by the name of its interface (`eth0`).
    ///
    /// # Errors
    /// [`OpenError::NoSuchDevice`].
    pub fn find(name: &str) -> Result<Self, OpenError> {
        let list = list()?;
        let own = list.iter().find(|device| device.name == name);
        let found = own.or_else(|| list.iter().find(|device| device.interface.name == name));
        found.cloned().ok_or_else(|| OpenError::NoSuchDevice(name.to_owned()))
    }

    /// Gives the device another name, as `rdma dev set DEV name NAME` does for a kernel device. The name holds until the next boot,
    /// for all processes of this user that start from now on. Running programs keep the name that they know. The device's
    /// numbered name (`rxe0`) takes the other name back.
    ///
    /// # Errors
    /// `InvalidInput` if the name is not allowed. A name has 1 to 63 letters, digits, `_`, `-` and `.`, the first a letter, and is
    /// not another device's numbered name. `AlreadyExists` if another device has the name. Otherwise the error of reading or
    /// writing the user's file.
    pub fn rename(&self, name: &str) -> io::Result<()> {
        let numbered = name == names::numbered(self.number);
        if !numbered && !names::is_name(name) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let other = |device: &Self| device.netdev() != self.netdev() && device.name == name;
        if devices_anew()?.iter().any(other) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        names::give(self.netdev(), name)
    }

    /// The first device: the one with the default route, or the loopback where there is nothing else.
    ///
    /// # Errors
    /// [`OpenError::NoAddress`] if there is none.
    pub fn first() -> Result<Self, OpenError> {
        list()?.into_iter().next().ok_or(OpenError::NoAddress)
    }

    /// The device on whose interface `address` is configured. Every loopback address belongs to the loopback device.
    ///
    /// # Errors
    /// [`OpenError::NotLocal`].
    pub fn of_address(address: IpAddr) -> Result<Self, OpenError> {
        let list = list()?;
        let has = |device: &&Self| usable(&device.interface).any(|ip| ip == address);
        let covers = |device: &&Self| device.interface.loopback && address.is_loopback();
        list.iter()
            .find(has)
            .or_else(|| list.iter().find(covers))
            .cloned()
            .ok_or(OpenError::NotLocal(address))
    }

    /// A device without an interface, for links inside the process.
    pub(crate) fn virtual_one(name: &str, addresses: &[IpAddr]) -> Self {
        let addresses = addresses
            .iter()
            .map(|&ip| crate::net::interfaces::Address { ip, prefix: 0, usable: true })
            .collect();
        let interface = Interface {
            name: name.to_owned(),
            index: 1,
            mtu: 65_535,
            mac: None,
            addresses,
            up: true,
            running: true,
            loopback: true,
            default_route: false,
        };
        Self { name: name.to_owned(), number: 0, interface }
    }

    /// Sets the only address of a device without an interface, with the length of its network prefix.
    #[cfg(test)]
    pub(crate) fn set_address(&mut self, ip: IpAddr, prefix: u8) {
        self.interface.addresses = vec![crate::net::interfaces::Address { ip, prefix, usable: true }];
    }

    /// Sets the MTU of a device without an interface.
    #[cfg(test)]
    pub(crate) fn set_mtu(&mut self, mtu: u32) {
        self.interface.mtu = mtu;
    }

    /// The same device restricted to one address.
    pub(crate) fn restricted_to(mut self, address: IpAddr) -> Self {
        self.interface.addresses.retain(|entry| entry.ip == address);
        if self.interface.addresses.is_empty() {
            self.interface.addresses.push(crate::net::interfaces::Address {
                ip: address,
                prefix: 0,
                usable: true,
            });
        }
        self
    }

    /// Its name: `rxe0`, ..., or the name that an administrator gave it ([`Self::rename`], or `name` in a `[[port]]` of the host's
    /// configuration).
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number. No other device of this network namespace has the same. A new name does not change it.
    #[must_use]
    pub const fn number(&self) -> usize {
        self.number
    }

    /// The interface's name.
    #[must_use]
    pub fn netdev(&self) -> &str {
        &self.interface.name
    }

    /// The interface.
    #[must_use]
    pub const fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Its usable addresses in the kernel's order.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        usable(&self.interface)
    }

    /// The address by which packets to another address leave: that address, if it is one of these; else one of the same network, with
    /// the longest prefix; else the first of the same family. `None` if there is none of that family.
    pub(crate) fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        let common = |ip: IpAddr| match (ip, to) {
            (IpAddr::V4(ip), IpAddr::V4(to)) => Some((u32::from(ip) ^ u32::from(to)).leading_zeros()),
            (IpAddr::V6(ip), IpAddr::V6(to)) => Some((u128::from(ip) ^ u128::from(to)).leading_zeros()),
            _ => None,
        };
        let is_scoped = |ip: IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let usable = self.interface.addresses.iter().filter(|address| address.usable);
        let ranked = usable.filter_map(|address| {
            let near = common(address.ip)? >= address.prefix.into();
            let rank =
                (address.ip == to, near.then_some(address.prefix), is_scoped(address.ip) == is_scoped(to));
            Some((rank, address.ip))
        });
        // Of equal ones the first.
        let best = ranked.reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.map(|(_, ip)| ip)
    }

    /// Its GID table, over the link that the environment asks for (`RXE_LINK`).
    #[must_use]
    pub fn gids(&self) -> GidTable {
        self.gids_over(LinkKind::from_environment() == Ok(LinkKind::Raw))
    }

    /// Its GID table over a link that carries RoCE v1, too (`v1`), or only RoCE v2.
    #[must_use]
    pub fn gids_over(&self, v1: bool) -> GidTable {
        let addresses: Vec<_> = self.addresses().collect();
        let table = GidTable::new(&addresses);
        if v1 { table.with_v1(&addresses) } else { table }
    }

    /// Largest MTU that fits into the interface's MTU.
    #[must_use]
    pub fn active_mtu(&self) -> Mtu {
        Mtu::fitting(self.interface.mtu)
    }

    /// State of its port.
    #[must_use]
    pub const fn state(&self) -> PortState {
        if self.interface.up && self.interface.running { PortState::Active } else { PortState::Down }
    }

    /// Its GUID (EUI-64). It comes from the MAC address. For interfaces without one it is a hash of the boot ID and the
    /// interface's name, with the local bit set.
    #[must_use]
    pub fn guid(&self) -> [u8; 8] {
        if let Some(mac) = self.interface.mac.filter(|mac| *mac != [0; 6]) {
            return [mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]];
        }
        // Every connection asks for the GUID, and the boot ID does not change while the process lives. So it is read once.
        static BOOT: OnceLock<String> = OnceLock::new();
        let boot =
            BOOT.get_or_init(|| fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default());
        let mut hasher = DefaultHasher::new();
        boot.hash(&mut hasher);
        self.interface.name.hash(&mut hasher);
        let mut guid = hasher.finish().to_be_bytes();
        guid[0] = guid[0] & !1 | 2;
        guid
    }
}

fn list() -> Result<Vec<Device>, OpenError> {
    devices().map_err(|source| OpenError::System { action: "list the network interfaces", source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, index: u32, default_route: bool) -> Interface {
        Interface {
            name: name.into(),
            index,
            mtu: 1500,
            mac: Some([2, 0, 0, 0, 0, 1]),
            addresses: Vec::new(),
            up: true,
            running: true,
            loopback: name == "lo",
            default_route,
        }
    }

    fn shown(devices: &[Device]) -> Vec<(&str, &str)> {
        devices.iter().map(|device| (device.name(), device.netdev())).collect()
    }

    #[test]
    fn packets_leave_by_an_address_of_the_same_network() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut interface = interface("a", 2, false);
        interface.addresses = [
            ("10.0.0.1", 24, true),
            ("192.168.7.1", 24, true),
            ("192.168.7.129", 25, true),
            ("172.16.0.1", 16, false),
            ("2001:db8::1", 64, true),
            ("fe80::1", 64, true),
        ]
        .map(|(text, prefix, usable)| crate::net::interfaces::Address { ip: ip(text), prefix, usable })
        .to_vec();
        let device = Device { name: "rxe0".to_owned(), number: 0, interface };
        for (to, from) in [
            ("10.0.0.9", "10.0.0.1"),
            ("192.168.7.9", "192.168.7.1"),
            ("192.168.7.200", "192.168.7.129"),
            ("192.168.7.129", "192.168.7.129"),
            ("192.168.7.1", "192.168.7.1"),
            ("172.16.0.9", "10.0.0.1"),
            ("203.0.113.1", "10.0.0.1"),
            ("fe80::9", "fe80::1"),
            ("2001:db8::9", "2001:db8::1"),
            ("2001:db8:1::9", "2001:db8::1"),
        ] {
            assert_eq!(device.source_for(ip(to)), Some(ip(from)), "{to}");
        }
        assert_eq!(Device::virtual_one("b", &[ip("10.0.0.1")]).source_for(ip("fe80::1")), None);
    }

    #[test]
    fn the_default_route_comes_first_whatever_its_name() {
        let mut list = vec![interface("lo", 1, false), interface("a", 2, true), interface("c", 4, false)];
        sort(&mut list);
        let numbers = [("lo", 0), ("c", 1), ("a", 2)].map(|(name, number)| (name.to_owned(), number));
        let names = Given::from([("c".to_owned(), "storage".to_owned())]);
        let devices = name(list, &Numbers::from(numbers), &names);
        assert_eq!(shown(&devices), [("rxe2", "a"), ("storage", "c"), ("rxe0", "lo")]);
    }

    #[test]
    fn numbers_of_a_device() {
        let numbers = Numbers::from([("a".to_owned(), 0)]);
        let devices = name(vec![interface("a", 2, false)], &numbers, &Given::new());
        assert_eq!(devices[0].guid(), [0, 0, 0, 0xff, 0xfe, 0, 0, 1]);
        assert_eq!((devices[0].active_mtu(), devices[0].state()), (Mtu::M1024, PortState::Active));
        let lo = Device::virtual_one("x", &[]);
        assert_eq!(lo.guid(), lo.guid());
        assert_eq!(lo.active_mtu(), Mtu::M4096);
    }
}
