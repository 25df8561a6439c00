//! The host's configuration: one small TOML file, read by whoever runs the host service.
//!
//! ```toml
//! # Partition keys of the port, the default one first. With the top bit: full member.
//! pkeys = [0xffff, 0x8001]
//!
//! # Registered memory above the limit for locked memory is refused (`"off"`, the default, refuses none). The limit is that of
//! # each process (`ulimit -l`), or is in this file in the syntax of limits.conf(5).
//! memlock = "enforce"
//! memlock_limits = "/etc/security/limits.conf"
//!
//! # Connections to these services (first to last service ID; port spaces of rdma_cm: TCP 0x1060000 + port, UDP
//! # 0x1110000 + port) have this service level, and this traffic class in their packets unless the program wants another.
//! [[service_level]]
//! first = 0x1060000
//! last = 0x106ffff
//! sl = 3
//! traffic_class = 0x68
//!
//! # What rdma_cm connects by on an interface, "v1" or "v2" (what it is without this), as kernels have it in cma_roce_mode.
//! # RoCE v1 needs the raw link (RXE_LINK=raw).
//! [[port]]
//! interface = "eth0"
//! rdma_cm = "v1"
//! # What its device is called, in the place of rxe0.
//! name = "roce_eth0"
//! # The P_Key table of its device, if that is another than the one above.
//! pkeys = [0xffff, 0x8002]
//!
//! # What a subnet manager would decide, in OpenSM's files: see [`FabricConfig`].
//! [fabric]
//! qos_policy_file = "qos-policy.conf"
//! partition_config_file = "partitions.conf"
//!
//! [service]
//! # The service ends when it has had no client for so long.
//! idle_seconds = 20
//! ```

use super::{
    fabric::{FabricConfig, HostFabric},
    memlock::{Limits, Memlock, MemlockMode},
    report::LockedReport,
};
use crate::{names::is_name, trust::variable};
use rxe_core::{num::Pkey, work::GidType};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The variable that names the file. Without it [`SYSTEM_FILE`] is read if it exists.
pub const VARIABLE: &str = "RXE_CONFIG";
/// The file that is read by default.
pub const SYSTEM_FILE: &str = "/etc/rxe/rxe.toml";
/// Most entries of the partition table.
pub(super) const MAX_PKEYS: usize = 128;
/// Most bytes of an interface's name (IFNAMSIZ without the zero at its end).
const MAX_INTERFACE: usize = libc::IFNAMSIZ - 1;
/// Most P_Key tables of single devices. All of them together are sent in one message.
const MAX_TABLES: usize = 32;
/// Most rules about service levels.
const MAX_RULES: usize = 1024;

/// The content of the file. Every field has a default.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostConfig {
    /// The partition table, 1 to 128 keys; none of them 0 or 0x8000, which are invalid (IBTA vol. 1, 10.9.1.1). If there
    /// is a file of partitions, the table comes from that.
    pub pkeys: Vec<u16>,
    /// The service itself.
    pub service: ServiceConfig,
    /// Settings of single interfaces, at most 1024.
    pub port: Vec<PortConfig>,
    /// Rules for connections by service ID, at most 1024. The first that matches counts.
    pub service_level: Vec<ServiceLevel>,
    /// OpenSM's files, and ports that they name.
    pub fabric: FabricConfig,
    /// Whether registrations are refused that would exceed the limit for locked memory, as by a kernel.
    pub memlock: MemlockMode,
    /// File with these limits by user, in the syntax of limits.conf(5). A relative path starts at the folder of the configuration. Without
    /// it the limit of each process counts.
    pub memlock_limits: Option<PathBuf>,
    /// P_Key tables by interface, for devices that have another one than `pkeys`.
    #[serde(skip)]
    pub of_interface: BTreeMap<String, Vec<u16>>,
    /// The content of that file.
    #[serde(skip)]
    pub(crate) limits: Option<Limits>,
    /// The content of these files.
    #[serde(skip)]
    pub(crate) loaded: Arc<HostFabric>,
}

/// A `[[service_level]]` rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceLevel {
    /// The first service ID for which it holds.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// IPv4 TOS or IPv6 traffic class; the two lowest bits (ECN) are 0.
    #[serde(default)]
    pub traffic_class: u8,
}

/// A `[[port]]` rule.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// The interface's name.
    pub interface: String,
    /// The RoCE version by which rdma_cm connects there.
    #[serde(default)]
    pub rdma_cm: RoceMode,
    /// The P_Key table of its device. Without one the device has the table of all devices. A file of partitions takes precedence.
    #[serde(default)]
    pub pkeys: Vec<u16>,
    /// The name of its device. If empty, the name follows from the device's number. See [`crate::Device::rename`] for what is possible.
    #[serde(default)]
    pub name: String,
}

/// Reads only the names of devices. The list of devices needs them, and to read the whole file needs the list of devices.
#[derive(Debug, Default, Deserialize)]
struct Names {
    #[serde(default)]
    port: Vec<Named>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Named {
    interface: String,
    name: String,
}

/// The names of devices in the configuration, by their interfaces. There are none if it cannot be read. Those who use the rest
/// of it report the error.
pub(crate) fn names_of_configuration() -> BTreeMap<String, String> {
    let path =
        variable(VARIABLE).filter(|name| !name.is_empty()).map_or_else(|| SYSTEM_FILE.into(), PathBuf::from);
    let text = fs::read_to_string(path).unwrap_or_default();
    let names: Names = toml::from_str(&text).unwrap_or_default();
    let named = names.port.into_iter().filter(|port| !port.name.is_empty());
    named.map(|port| (port.interface, port.name)).collect()
}

/// One of the two versions of RoCE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoceMode {
    /// RoCE v1.
    V1,
    /// RoCE v2.
    #[default]
    V2,
}

impl HostConfig {
    /// The type of the GIDs by which rdma_cm connects on an interface: as set below
    /// `/sys/kernel/config/rdma_cm` under `rxe run`, else as in the configuration.
    #[must_use]
    pub fn gid_type(&self, interface: &str) -> GidType {
        super::roce_mode::set_for(interface).unwrap_or_else(|| self.configured_gid_type(interface))
    }

    /// The type in the configuration.
    #[must_use]
    pub fn configured_gid_type(&self, interface: &str) -> GidType {
        let rule = self.port.iter().find(|port| port.interface == interface);
        match rule.map(|port| port.rdma_cm).unwrap_or_default() {
            RoceMode::V1 => GidType::RoceV1,
            RoceMode::V2 => GidType::RoceV2,
        }
    }
}

/// The `[service]` part.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServiceConfig {
    /// Seconds without a client after which the service ends, 1 to 86400.
    pub idle_seconds: u32,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            pkeys: vec![Pkey::DEFAULT.0],
            service: ServiceConfig::default(),
            port: Vec::new(),
            service_level: Vec::new(),
            fabric: FabricConfig::default(),
            memlock: MemlockMode::default(),
            memlock_limits: None,
            limits: None,
            of_interface: BTreeMap::new(),
            loaded: Arc::default(),
        }
    }
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self { idle_seconds: 20 }
    }
}

/// Why the configuration is not used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct HostConfigError {
    pub(super) path: PathBuf,
    pub(super) reason: String,
}

impl HostConfig {
    /// Reads the file that `RXE_CONFIG` names, else the system's if there is one.
    ///
    /// # Errors
    /// [`HostConfigError`] names file, line and value.
    pub fn load() -> Result<Self, HostConfigError> {
        match variable(VARIABLE).filter(|name| !name.is_empty()) {
            Some(name) => Self::read(Path::new(&name)),
            None => match Self::read(Path::new(SYSTEM_FILE)) {
                Err(_) if !Path::new(SYSTEM_FILE).exists() => Ok(Self::default()),
                result => result,
            },
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`HostConfigError`].
    pub fn read(path: &Path) -> Result<Self, HostConfigError> {
        let text = fs::read_to_string(path).map_err(|error: io::Error| error.to_string());
        let mut config = text
            .and_then(|text| Self::parse(&text))
            .map_err(|reason| HostConfigError { path: path.to_owned(), reason })?;
        let fabric = HostFabric::load(&config, path)?;
        if let Some(limits) = &config.memlock_limits {
            let file = path.parent().unwrap_or_else(|| Path::new("/")).join(limits);
            let text = fs::read_to_string(&file).map_err(|error| error.to_string());
            let limits = text.and_then(|text| Limits::parse(&text));
            config.limits = Some(limits.map_err(|reason| HostConfigError { path: file, reason })?);
        }
        let said = config.port.iter().filter(|port| !port.pkeys.is_empty());
        config.of_interface = said.map(|port| (port.interface.clone(), port.pkeys.clone())).collect();
        if let Some(pkeys) = fabric.pkeys() {
            config.pkeys = pkeys.to_vec();
            config.of_interface = fabric.pkeys_of_interfaces().clone();
        }
        let pkeys = config.pkeys.clone();
        config.of_interface.retain(|_, keys| *keys != pkeys);
        if config.of_interface.len() > MAX_TABLES {
            let reason = format!(
                "{} interfaces have a P_Key table of their own; {MAX_TABLES} are possible",
                config.of_interface.len()
            );
            return Err(HostConfigError { path: path.to_owned(), reason });
        }
        config.loaded = Arc::new(fabric);
        Ok(config)
    }

    /// The `[[service_level]]` rule for a service ID. It takes precedence over OpenSM's files.
    #[must_use]
    pub fn rule_for(&self, service_id: u64) -> Option<ServiceLevel> {
        self.service_level.iter().find(|rule| (rule.first..=rule.last).contains(&service_id)).copied()
    }

    /// The P_Key table of an interface's device.
    #[must_use]
    pub fn pkeys_of(&self, interface: &str) -> &[u16] {
        self.of_interface.get(interface).unwrap_or(&self.pkeys)
    }

    /// How much memory this process may register.
    #[must_use]
    pub fn locked(&self) -> LockedReport {
        crate::regions::locked::report(self.memlock())
    }

    /// The rule for registered memory of this process's user.
    pub(crate) fn memlock(&self) -> Memlock {
        match (self.memlock, &self.limits) {
            (MemlockMode::Off, _) => Memlock::Off,
            (MemlockMode::Enforce, limits) => {
                limits.as_ref().and_then(Limits::own).map_or(Memlock::Rlimit, Memlock::Bytes)
            }
        }
    }

    /// The content of OpenSM's files, if the configuration names any.
    #[must_use]
    pub fn host_fabric(&self) -> Arc<HostFabric> {
        Arc::clone(&self.loaded)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        check_pkeys(&config.pkeys)?;
        if let Some(PortConfig { interface, .. }) =
            config.port.iter().find(|port| !(1..=MAX_INTERFACE).contains(&port.interface.len()))
        {
            return Err(format!(
                "port: interface = {interface:?} is no interface's name (1 to {MAX_INTERFACE} bytes)"
            ));
        }
        for port in config.port.iter().filter(|port| !port.pkeys.is_empty()) {
            check_pkeys(&port.pkeys).map_err(|why| format!("port {}: {why}", port.interface))?;
        }
        let mut names = BTreeSet::new();
        for PortConfig { interface, name, .. } in config.port.iter().filter(|port| !port.name.is_empty()) {
            if !is_name(name) {
                return Err(format!(
                    "port {interface}: name = \"{name}\" cannot be a device's: letters, digits, _, - and ., 63 at most, \
                     the first a letter, and not rxe with a number"
                ));
            }
            if !names.insert(name) {
                return Err(format!("port {interface}: another port has the name \"{name}\", too"));
            }
        }
        let idle = config.service.idle_seconds;
        if !(1..=86_400).contains(&idle) {
            return Err(format!("service.idle_seconds = {idle} is not within 1 to 86400"));
        }
        if config.service_level.len() > MAX_RULES {
            let count = config.service_level.len();
            return Err(format!("{count} service_level rules; {MAX_RULES} are possible"));
        }
        if config.port.len() > MAX_RULES {
            return Err(format!("{} port rules; {MAX_RULES} are possible", config.port.len()));
        }
        for ServiceLevel { first, last, sl, traffic_class } in &config.service_level {
            if first > last {
                return Err(format!("service_level: first = {first:#x} is beyond last = {last:#x}"));
            }
            if *sl > 15 {
                return Err(format!("service_level: sl = {sl} is not within 0 to 15"));
            }
            if traffic_class & 3 != 0 {
                return Err(format!(
                    "service_level: traffic_class = {traffic_class:#04x} has ECN bits (the two lowest), which are not yours"
                ));
            }
        }
        Ok(config)
    }
}

fn check_pkeys(keys: &[u16]) -> Result<(), String> {
    if keys.is_empty() || keys.len() > MAX_PKEYS {
        return Err(format!("pkeys has {} entries; 1 to {MAX_PKEYS} are possible", keys.len()));
    }
    match keys.iter().find(|key| **key & 0x7fff == 0) {
        Some(wrong) => Err(format!("pkeys: {wrong:#06x} is not a partition key")),
        None => Ok(()),
    }
}

#[cfg(test)]
impl HostConfig {
    /// A configuration whose `opensm.conf` is this text.
    pub(crate) fn with_opensm_conf(text: &str) -> Self {
        Self { loaded: Arc::new(HostFabric::of_options(text)), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_a_default() {
        assert_eq!(HostConfig::parse("").unwrap(), HostConfig::default());
        let config = HostConfig::parse("pkeys = [0x8001, 1]\n[service]\nidle_seconds = 5").unwrap();
        assert_eq!((config.pkeys, config.service.idle_seconds), (vec![0x8001, 1], 5));
    }

    #[test]
    fn rdma_cm_has_a_mode_for_each_interface() {
        let config = HostConfig::parse("[[port]]\ninterface = \"eth1\"\nrdma_cm = \"v1\"").unwrap();
        assert_eq!((config.gid_type("eth1"), config.gid_type("eth0")), (GidType::RoceV1, GidType::RoceV2));
    }

    #[test]
    fn wrong_values_are_named() {
        for (text, says) in [
            ("pkeys = []", "0 entries"),
            ("pkeys = [0x8000]", "0x8000"),
            ("pkeys = [70000]", "70000"),
            ("pkey = [1]", "pkey"),
            ("[[port]]\ninterface = \"a\"\nrdma_cm = \"v3\"", "v3"),
            ("[[port]]\ninterface = \"a\"\npkeys = [0x8000]", "port a: pkeys: 0x8000"),
            ("[[port]]\ninterface = \"a\"\nname = \"rxe3\"", "port a: name = \"rxe3\""),
            (
                "[[port]]\ninterface = \"a\"\nname = \"x\"\n[[port]]\ninterface = \"b\"\nname = \"x\"",
                "port b: another",
            ),
            ("[[port]]\ninterface = \"\"", "interface = \"\" is no interface's name"),
            ("[[port]]\ninterface = \"sixteen-letters-\"", "1 to 15 bytes"),
            ("[service]\nidle_seconds = 0", "idle_seconds = 0"),
            ("[[service_level]]\nfirst = 2\nlast = 1\nsl = 0", "first = 0x2"),
            ("[[service_level]]\nfirst = 1\nlast = 1\nsl = 16", "sl = 16"),
            ("[[service_level]]\nfirst = 1\nlast = 1\nsl = 1\ntraffic_class = 1", "ECN"),
        ] {
            let error = HostConfig::parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
        let error = HostConfig::read(Path::new("/nonexistent/rxe.toml")).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/rxe.toml: "), "{error}");
    }
}
