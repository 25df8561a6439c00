//! The host's configuration: one small TOML file, read by whoever runs the host service.
//!
//! ```toml
//! # Partition keys of the port, the default one first. With the top bit: full member.
//! pkeys = [0xffff, 0x8001]
//!
//! [service]
//! # The service ends when it has had no client for so long.
//! idle_seconds = 20
//! ```

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

/// What the file says. Everything has a default.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostConfig {
    /// The partition table, 1 to 128 keys; none of them 0 or 0x8000, which are invalid (IBTA vol. 1, 10.9.1.1).
    pub pkeys: Vec<u16>,
    /// The service itself.
    pub service: ServiceConfig,
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
        Self { pkeys: vec![Pkey::DEFAULT.0], service: ServiceConfig::default() }
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
        match std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
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
        ] {
            let error = HostConfig::parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
        let error = HostConfig::read(Path::new("/nonexistent/rxe.toml")).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/rxe.toml: "), "{error}");
    }
}
