//! Programs: what runs at both ends. They are data (`programs.toml`, and the hosts file), so that a lab adds its own.

use crate::hosts::Host;
use serde::{Deserialize, Serialize};

/// The programs that come with this one.
const BUILT_IN: &str = include_str!("programs.toml");

/// A server and its client. `programs.toml` tells what may stand in the commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// For the report.
    pub name: String,
    /// Shell command on one host.
    pub server: String,
    /// Shell command on the other.
    pub client: String,
    /// Whether it takes a size.
    #[serde(default = "yes")]
    pub sizes: bool,
    /// Smallest size, bytes.
    #[serde(default)]
    pub least: u64,
    /// Largest size, bytes.
    #[serde(default = "any")]
    pub most: u64,
    /// Words of a client whose server does not listen yet: it is tried again.
    #[serde(default)]
    pub not_yet: Vec<String>,
}

const fn yes() -> bool {
    true
}

// TOML has no larger number.
const fn any() -> u64 {
    i64::MAX as u64
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    program: Vec<Program>,
}

/// The programs that come with this one.
///
/// # Panics
/// Never: the text is part of the program, and tested.
#[must_use]
pub fn built_in() -> Vec<Program> {
    let table: Table = toml::from_str(BUILT_IN).expect("programs.toml");
    table.program
}

/// What the words in braces stand for.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    /// The server's host.
    pub server: &'a Host,
    /// The client's.
    pub client: &'a Host,
    /// TCP port.
    pub port: u16,
    /// Bytes of a message.
    pub size: u64,
    /// Messages.
    pub count: u64,
}

impl Values<'_> {
    /// A command as the shell of `here` gets it.
    #[must_use]
    pub fn fill(&self, command: &str, here: &Host) -> String {
        let numbers = [
            ("{port}", u64::from(self.port)),
            ("{size}", self.size),
            ("{count}", self.count),
            ("{gid}", here.gid),
        ];
        let text = command
            .replace("{address}", &self.server.address.to_string())
            .replace("{own}", &self.client.address.to_string())
            .replace("{device}", &here.device);
        numbers.iter().fold(text, |text, (word, number)| text.replace(word, &number.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_is_left_in_a_built_in_command() {
        let host = |name: &str, address: &str| Host {
            name: name.into(),
            address: address.parse().unwrap(),
            device: "mlx5_0".into(),
            gid: 3,
            before: String::new(),
        };
        let (server, client) = (host("a", "192.0.2.1"), host("b", "192.0.2.2"));
        let values = Values { server: &server, client: &client, port: 18000, size: 4096, count: 10 };
        let programs = built_in();
        assert!(programs.len() >= 10);
        for program in programs {
            for command in [&program.server, &program.client] {
                let filled = values.fill(command, &client);
                assert!(!filled.contains(['{', '}']), "{filled}");
                assert!(filled.contains("18000"), "every job has a port of its own: {filled}");
            }
            assert_eq!(program.sizes, program.client.contains("{size}"), "{}", program.name);
        }
    }
}
