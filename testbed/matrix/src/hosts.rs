//! The hosts file (TOML): which hosts there are, and how a command is run on one.

use crate::programs::Program;
use serde::{Deserialize, Serialize};
use std::{collections::HashSet, fs, net::IpAddr, path::Path};
use thiserror::Error;

/// A hosts file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hosts {
    /// The words that run a command on a host, as ssh(1) does: `{host}` stands for the host's name, and the command is added as
    /// the last word, for a shell there.
    #[serde(default = "ssh")]
    pub shell: Vec<String>,
    /// The hosts; two at least.
    pub host: Vec<Host>,
    /// More programs, or others of the same name in the place of those that are built in.
    #[serde(default)]
    pub program: Vec<Program>,
}

/// A host with one RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// What the shell calls it, for example as in `ssh NAME`.
    pub name: String,
    /// Its device's address.
    pub address: IpAddr,
    /// Its device.
    #[serde(default = "rxe0")]
    pub device: String,
    /// The GID that stands for the address: an index of the device's table.
    #[serde(default)]
    pub gid: u64,
    /// What stands before every program there, for example `rxe run --`.
    #[serde(default)]
    pub before: String,
}

fn ssh() -> Vec<String> {
    ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "{host}"].map(str::to_owned).to_vec()
}

fn rxe0() -> String {
    "rxe0".into()
}

/// What is wrong with a hosts file.
#[derive(Debug, Error)]
pub enum HostsError {
    /// It cannot be read.
    #[error("{0}")]
    File(#[from] std::io::Error),
    /// It is no hosts file; says line and key.
    #[error("{0}")]
    Form(#[from] Box<toml::de::Error>),
    /// It makes no sense.
    #[error("{0}")]
    Sense(String),
}

impl Hosts {
    /// Reads a hosts file.
    ///
    /// # Errors
    /// [`HostsError`].
    pub fn read(path: &Path) -> Result<Self, HostsError> {
        Self::parse(&fs::read_to_string(path)?)
    }

    /// Takes a hosts file's text.
    ///
    /// # Errors
    /// [`HostsError`].
    pub fn parse(text: &str) -> Result<Self, HostsError> {
        let hosts: Self = toml::from_str(text).map_err(Box::new)?;
        let sense = |said: String| Err(HostsError::Sense(said));
        if hosts.host.len() < 2 {
            return sense(format!("{} host: a pair needs two [[host]]", hosts.host.len()));
        }
        if hosts.shell.is_empty() {
            return sense("shell is empty: say for example shell = [\"ssh\", \"{host}\"]".into());
        }
        let mut names = HashSet::new();
        for host in &hosts.host {
            if host.name.is_empty() || host.name.starts_with('-') {
                return sense(format!("a host cannot be called {:?}", host.name));
            }
            if !names.insert(&host.name) {
                return sense(format!("two hosts are called {:?}", host.name));
            }
        }
        Ok(hosts)
    }

    /// The words that run `command` on `host`.
    #[must_use]
    pub fn words(&self, host: &Host, command: String) -> Vec<String> {
        let shell = self.shell.iter().map(|word| word.replace("{host}", &host.name));
        shell.chain([command]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_or_refused_with_the_reason() {
        let two = "[[host]]\nname = \"a\"\naddress = \"192.0.2.1\"\n[[host]]\nname = \"b\"\naddress = \"2001:db8::2\"\n";
        let hosts = Hosts::parse(two).unwrap();
        assert_eq!(hosts.words(&hosts.host[1], "true && x".into())[5..], ["b", "true && x"]);
        for (text, told) in [
            ("host = []", "needs two"),
            (&two.replace("\"b\"", "\"a\""), "two hosts are called \"a\""),
            (&two.replace("\"b\"", "\"-oProxyCommand=x\""), "cannot be called"),
            (&two.replace("2001:db8::2", "fast"), "line 6"),
            (&format!("colour = 1\n{two}"), "line 1"),
            (&format!("shell = []\n{two}"), "shell is empty"),
        ] {
            let said = Hosts::parse(text).unwrap_err().to_string();
            assert!(said.contains(told), "{said}");
        }
    }
}
