//! OpenSM's files on this host: which these are, what they say about its ports, and whether they have changed.
//!
//! ```toml
//! [fabric]
//! # All of them are optional, and looked for in the folder of this file. opensm.conf may name the other two; else they are
//! # looked for beside it.
//! opensm_conf = "/etc/opensm/opensm.conf"
//! qos_policy_file = "qos-policy.conf"
//! partition_config_file = "partitions.conf"
//! # DSCP of the lanes 0 to 14.
//! dscp = [0, 8, 16, 24, 32, 40, 48, 56, 4, 12, 20, 28, 36, 44, 52]
//!
//! # Who has which port GUID, for files that name ports. Those of this host need not be told.
//! [[fabric.port]]
//! guid = "0x0002c90300a1b2c3"
//! address = ["10.0.0.7"]
//! name = "storage7 HCA-1/P1"
//! ```
//!
//! On Ethernet the port GUID of a peer is not known. So the lower half of its GID stands for it, too: 0x0000ffff0a000007 is
//! 10.0.0.7. For the link-local GIDs of cards this is their real GUID.

use super::config::{HostConfig, HostConfigError, MAX_PKEYS};
use crate::{device::devices, gid::Gid};
use core::net::IpAddr;
use rxe_core::num::Pkey;
use rxe_fabric::{
    Fabric, FileError, NoPath, NodeType, Options, Partitions, PathQuery, Port, QosPolicy, VL_COUNT,
};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Most bytes of a file.
const MAX_FILE: u64 = 16 << 20;

/// The `[fabric]` part of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FabricConfig {
    /// `opensm.conf`.
    pub opensm_conf: Option<PathBuf>,
    /// `qos-policy.conf`. It is used instead of the file that `opensm.conf` names.
    pub qos_policy_file: Option<PathBuf>,
    /// `partitions.conf`. It is used instead of the file that `opensm.conf` names.
    pub partition_config_file: Option<PathBuf>,
    /// DSCP 0 to 63 of each lane, 0 to 14.
    pub dscp: Option<[u8; VL_COUNT]>,
    /// Ports that the files name.
    pub port: Vec<NamedPort>,
}

/// A `[[fabric.port]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NamedPort {
    /// Port GUID, in the form of ibstat (0x...) or of ibv_devinfo (with colons).
    pub guid: String,
    /// Its addresses.
    pub address: Vec<IpAddr>,
    /// Description of its node, a slash, and P1.
    pub name: String,
    /// "ca" (a host), "switch" or "router".
    pub node_type: String,
    /// Whether it is `SELF` in the files, the host where OpenSM would run. If no port is, this host is `SELF`.
    pub manager: bool,
}

/// A port and its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownPort {
    /// What rules match it by.
    pub port: Port,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

/// What tells that a file has changed: device, inode, length, time.
type Stamp = (u64, u64, u64, i64, i64);

/// The content of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFabric {
    fabric: Fabric,
    ports: Vec<KnownPort>,
    /// Whether there is a `[fabric]` part at all.
    configured: bool,
    /// Whether another host is `SELF`.
    has_manager: bool,
    pkeys: Option<Vec<u16>>,
    /// Tables by interface, if there is a file of partitions.
    of_interface: BTreeMap<String, Vec<u16>>,
    warnings: Vec<String>,
    files: Vec<(PathBuf, Option<Stamp>)>,
}

impl HostFabric {
    /// Reads the files that the configuration in the file `of` names.
    pub(super) fn load(config: &HostConfig, of: &Path) -> Result<Self, HostConfigError> {
        let wrong = |reason: String| HostConfigError { path: of.to_owned(), reason };
        let said = &config.fabric;
        let mut host = Self { configured: *said != FabricConfig::default(), ..Self::default() };
        if !host.configured {
            host.fabric = Fabric::new(&Options::default(), None, Partitions::open(&config.pkeys));
            return Ok(host);
        }
        host.files.push((of.to_owned(), stamp(of)));
        host.ports = said.port.iter().map(known).collect::<Result<_, _>>().map_err(wrong)?;
        host.has_manager = host.ports.iter().any(|known| known.port.is_manager);
        let folder = of.parent().unwrap_or_else(|| Path::new("/"));
        let mut options = Options { qos: true, ..Options::default() };
        let mut beside = None;
        if let Some(path) = &said.opensm_conf {
            let path = folder.join(path);
            options = host.read(&path, Options::parse)?;
            beside = path.parent().map(Path::to_owned);
        }
        let place = |own: &Option<PathBuf>, named: &Option<String>, usual: &str| match (own, named, &beside) {
            (Some(own), ..) => Some(folder.join(own)),
            (_, Some(named), beside) => Some(beside.as_deref().unwrap_or(folder).join(named)),
            (_, _, Some(beside)) => Some(beside.join(usual)).filter(|path| path.exists()),
            _ => None,
        };
        let policy = place(&said.qos_policy_file, &options.qos_policy_file, "qos-policy.conf");
        let policy = policy.map(|path| host.read(&path, QosPolicy::parse)).transpose()?;
        if policy.is_some() && !options.qos {
            host.warnings.push("opensm.conf has \"qos FALSE\": the QoS policy is not used".to_owned());
        }
        let partitions =
            place(&said.partition_config_file, &options.partition_config_file, "partitions.conf");
        let both = options.allow_both_pkeys;
        let partitions = partitions.map(|path| host.read(&path, |text| Partitions::parse(text, both)));
        let partitions = partitions.transpose()?;
        let partitioned = partitions.is_some();
        let partitions = partitions.unwrap_or_else(|| Partitions::open(&config.pkeys));
        host.fabric = Fabric::new(&options, policy, partitions);
        if let Some(dscp) = said.dscp {
            let fabric = core::mem::take(&mut host.fabric).with_dscp(dscp);
            host.fabric = fabric.ok_or_else(|| wrong("fabric.dscp: a DSCP is 0 to 63".to_owned()))?;
        }
        if partitioned {
            let (pkeys, of_interface) = host.own_tables();
            host.of_interface = of_interface;
            if pkeys.len() > MAX_PKEYS {
                let reason = format!("this host is in {} partitions; {MAX_PKEYS} are possible", pkeys.len());
                return Err(wrong(reason));
            }
            host.pkeys = Some(pkeys);
        }
        Ok(host)
    }

    fn read<T>(
        &mut self,
        path: &Path,
        parse: impl FnOnce(&str) -> Result<(T, Vec<rxe_fabric::Warning>), FileError>,
    ) -> Result<T, HostConfigError> {
        let wrong = |reason: String| HostConfigError { path: path.to_owned(), reason };
        // This is noted before the file is read. If it changes meanwhile, it is read again.
        self.files.push((path.to_owned(), stamp(path)));
        let length = fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
        if length > MAX_FILE {
            return Err(wrong(format!("{length} bytes; {MAX_FILE} are possible")));
        }
        let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let (read, warnings) = parse(&text).map_err(|error| wrong(error.to_string()))?;
        self.warnings.extend(warnings.iter().map(|warning| format!("{}: {warning}", path.display())));
        Ok(read)
    }

    /// Whether the configuration has a `[fabric]` part.
    #[must_use]
    pub const fn is_configured(&self) -> bool {
        self.configured
    }

    /// The decisions.
    #[must_use]
    pub const fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The ports that the configuration names.
    #[must_use]
    pub fn ports(&self) -> &[KnownPort] {
        &self.ports
    }

    /// Warnings: parts of the files that may not be meant as they were read.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The P_Key table of this host from the file of partitions, if there is one.
    #[must_use]
    pub fn pkeys(&self) -> Option<&[u16]> {
        self.pkeys.as_deref()
    }

    /// The same for each device, by its interface.
    #[must_use]
    pub const fn pkeys_of_interfaces(&self) -> &BTreeMap<String, Vec<u16>> {
        &self.of_interface
    }

    /// Whether one of the files has changed since it was read.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.files.iter().any(|(path, before)| stamp(path) != *before)
    }

    /// The port with an address. `guid` is that of its device, which is known only on this host.
    #[must_use]
    pub fn port(&self, address: IpAddr, guid: Option<[u8; 8]>) -> Port {
        let half: [u8; 8] = Gid::from(address).0[8..].try_into().unwrap_or_default();
        let half = u64::from_be_bytes(half);
        let own = guid.map(u64::from_be_bytes);
        let is_it = |known: &&KnownPort| {
            let guids = &known.port.guids;
            let named = guids.contains(&half) || own.is_some_and(|guid| guids.contains(&guid));
            known.addresses.contains(&address) || named
        };
        let mut port = self.ports.iter().find(is_it).map(|known| known.port.clone()).unwrap_or_default();
        for guid in own.into_iter().chain([half]) {
            if !port.guids.contains(&guid) {
                port.guids.push(guid);
            }
        }
        port.is_manager |= !self.has_manager && guid.is_some();
        port
    }

    /// The path of a connection, as rdma_cm asks for it: with the P_Key that the program wants; else with the first of
    /// the port's table; or if the two ports do not share that one, with any that they share.
    ///
    /// # Errors
    /// [`NoPath`].
    pub fn path(&self, query: &PathQuery<'_>, table: &[Pkey]) -> Result<rxe_fabric::Path, NoPath> {
        if query.pkey.is_some() {
            return self.fabric.path(query);
        }
        let first = PathQuery { pkey: table.first().map(|key| key.0), ..*query };
        match self.fabric.path(&first) {
            Err(NoPath::NotShared(_)) if self.pkeys.is_some() => {
                self.fabric.path(&PathQuery { pkey: None, ..*query })
            }
            answer => answer,
        }
    }

    /// The keys of the host, and then those of each of its ports, by interface. The host is a full member of a partition if one of its
    /// ports is.
    fn own_tables(&self) -> (Vec<u16>, BTreeMap<String, Vec<u16>>) {
        let mut table: Vec<u16> = Vec::new();
        let mut each = BTreeMap::new();
        for device in devices().unwrap_or_default() {
            let mut own = Port::default();
            for address in device.addresses() {
                let port = self.port(address, Some(device.guid()));
                own.is_manager |= port.is_manager;
                own.guids.extend(port.guids);
            }
            let keys = self.fabric.partitions().table(&own);
            if (1..=MAX_PKEYS).contains(&keys.len()) {
                each.insert(device.netdev().to_owned(), keys.clone());
            }
            for key in keys {
                match table.iter_mut().find(|have| **have & 0x7fff == key & 0x7fff) {
                    Some(have) => *have |= key & 0x8000,
                    None => table.push(key),
                }
            }
        }
        if table.is_empty() {
            table.push(Pkey::DEFAULT.0);
        }
        (table, each)
    }
}

#[cfg(test)]
impl HostFabric {
    /// What `opensm.conf` with this text says, and nothing else.
    pub(super) fn of_options(text: &str) -> Self {
        let (options, _) = Options::parse(text).unwrap();
        let fabric = Fabric::new(&options, None, Partitions::default());
        Self { fabric, configured: true, ..Self::default() }
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let now = fs::metadata(path).ok()?;
    Some((now.dev(), now.ino(), now.len(), now.mtime(), now.mtime_nsec()))
}

fn known(said: &NamedPort) -> Result<KnownPort, String> {
    let digits = said.guid.trim_start_matches("0x").replace(':', "");
    let guid = u64::from_str_radix(&digits, 16).ok().filter(|guid| *guid != 0);
    let wrong = || format!("fabric.port: guid = \"{}\" is no GUID: 16 hexadecimal digits", said.guid);
    let node_type = match said.node_type.to_ascii_lowercase().as_str() {
        "" | "ca" => NodeType::Ca,
        "switch" => NodeType::Switch,
        "router" => NodeType::Router,
        other => return Err(format!("fabric.port: node_type = \"{other}\" is not ca, switch or router")),
    };
    let guids = vec![guid.ok_or_else(wrong)?];
    let port = Port { guids, name: said.name.clone(), node_type, is_manager: said.manager };
    Ok(KnownPort { port, addresses: said.address.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with files, which is removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let path = std::env::temp_dir().join(format!("rxe-fabric-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            let folder = Self(path);
            for (name, text) in files {
                fs::write(folder.0.join(name), text).unwrap();
            }
            folder
        }

        fn read(&self) -> Result<HostConfig, HostConfigError> {
            HostConfig::read(&self.0.join("rxe.toml"))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const PORT: &str =
        "[[fabric.port]]\nguid = \"0002:c903:00a1:b2c3\"\naddress = [\"10.0.0.7\"]\nname = \"a/P1\"\n";

    #[test]
    fn files_are_found_read_and_watched() {
        let config = format!("[fabric]\nopensm_conf = \"opensm.conf\"\n{PORT}");
        let folder = Folder::new(
            "found",
            &[
                ("rxe.toml", &config),
                ("opensm.conf", "qos TRUE\nqos_policy_file policy\n"),
                (
                    "policy",
                    "qos-ulps\ndefault : 1\nany, target-port-guid 0x0002c90300a1b2c3 : 2\nany, target-port-guid 0x0000ffff0a000008 : 3\nend-qos-ulps",
                ),
                ("partitions.conf", "Blue=2: ALL=full;"),
            ],
        );
        let config = folder.read().unwrap();
        let host = config.host_fabric();
        assert!(host.is_configured() && host.warnings().is_empty() && !host.has_changed());
        assert_eq!(config.pkeys, [0xffff, 0x8002], "this host is SELF");
        let from = host.port([10, 0, 0, 1].into(), Some([9; 8]));
        for (last, sl) in [(7, 2), (8, 3), (9, 1)] {
            let to = host.port([10, 0, 0, last].into(), None);
            let query = PathQuery {
                from: &from,
                to: &to,
                service_id: Some(5),
                qos_class: None,
                pkey: None,
                sl: None,
                mtu: 3,
                rate: 0,
            };
            let path = host.path(&query, &[Pkey(0x7fff)]).unwrap();
            assert_eq!((path.sl, path.traffic_class), (sl, sl << 5));
        }
        fs::write(folder.0.join("policy"), "qos-ulps\ndefault : 1\nend-qos-ulps").unwrap();
        assert!(host.has_changed());
    }

    #[test]
    fn mistakes_name_file_line_and_word() {
        let config = "[fabric]\nqos_policy_file = \"policy\"";
        let folder = Folder::new("mistakes", &[("rxe.toml", config), ("policy", "qos-ulps\ndefault : 99")]);
        let error = folder.read().unwrap_err().to_string();
        assert!(error.contains("policy: line 2, at \"99\""), "{error}");
        for (config, says) in [
            ("[fabric]\nqos_policy_file = \"none\"", "none: No such file"),
            ("[fabric]\ndscp = [1]", "15"),
            ("[fabric]\ndscp = [64,0,0,0,0,0,0,0,0,0,0,0,0,0,0]", "0 to 63"),
            ("[[fabric.port]]\nguid = \"x\"", "guid = \"x\""),
            ("[[fabric.port]]\nguid = \"1\"\nnode_type = \"hub\"", "hub"),
        ] {
            fs::write(folder.0.join("rxe.toml"), config).unwrap();
            let error = folder.read().unwrap_err().to_string();
            assert!(error.contains(says), "{config}: {error}");
        }
    }
}
