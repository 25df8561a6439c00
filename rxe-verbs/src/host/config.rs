//! The host's configuration: one small TOML file, read by whoever runs the host service.
//!
//! ```toml
//! # Partition keys of the port, the default one first. With the top bit: full member.
//! pkeys = [0xffff, 0x8001]
//!
//! # Connections to these services (first to last service ID; port spaces of rdma_cm: TCP 0x1060000 + port, UDP
//! # 0x1110000 + port) have this service level, and this traffic class in their packets unless the program wants another.
//! [[service_level]]
//! first = 0x1060000
//! last = 0x106ffff
//! sl = 3
//! traffic_class = 0x68
//!
//! [service]
//! # The service ends when it has had no client for so long.
//! idle_seconds = 20
//! ```

use crate::trust::variable;
use rxe_core::num::Pkey;
use serde::Deserialize;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Names the file; else [`SYSTEM_FILE`] is read if it exists.
pub const VARIABLE: &str = "RXE_CONFIG";
/// Where the file is looked for.
pub const SYSTEM_FILE: &str = "/etc/rxe/rxe.toml";
/// Entries of the partition table at most.
const MAX_PKEYS: usize = 128;
/// Rules about service levels at most.
const MAX_RULES: usize = 1024;

/// What the file says. Everything has a default.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostConfig {
    /// The partition table, 1 to 128 keys; none of them 0 or 0x8000, which are invalid (IBTA vol. 1, 10.9.1.1).
    pub pkeys: Vec<u16>,
    /// The service itself.
    pub service: ServiceConfig,
    /// Rules for connections by service ID, the first that fits counts; 1024 at most.
    pub service_level: Vec<ServiceLevel>,
}

/// A `[[service_level]]` rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceLevel {
    /// The first service ID that it is about.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// IPv4 TOS or IPv6 traffic class; the two lowest bits (ECN) are 0.
    #[serde(default)]
    pub traffic_class: u8,
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
        Self { pkeys: vec![Pkey::DEFAULT.0], service: ServiceConfig::default(), service_level: Vec::new() }
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
    path: PathBuf,
    reason: String,
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
        text.and_then(|text| Self::parse(&text))
            .map_err(|reason| HostConfigError { path: path.to_owned(), reason })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        if config.pkeys.is_empty() || config.pkeys.len() > MAX_PKEYS {
            return Err(format!("pkeys has {} entries; 1 to {MAX_PKEYS} are possible", config.pkeys.len()));
        }
        if let Some(wrong) = config.pkeys.iter().find(|key| **key & 0x7fff == 0) {
            return Err(format!("pkeys: {wrong:#06x} is not a partition key"));
        }
        let idle = config.service.idle_seconds;
        if !(1..=86_400).contains(&idle) {
            return Err(format!("service.idle_seconds = {idle} is not within 1 to 86400"));
        }
        if config.service_level.len() > MAX_RULES {
            let count = config.service_level.len();
            return Err(format!("{count} service_level rules; {MAX_RULES} are possible"));
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
    fn wrong_values_are_named() {
        for (text, says) in [
            ("pkeys = []", "0 entries"),
            ("pkeys = [0x8000]", "0x8000"),
            ("pkeys = [70000]", "70000"),
            ("pkey = [1]", "pkey"),
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
