//! What the command line says.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};
use testbed::agent::Failure;

/// Which end of the program's protocol we are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// We connect.
    Client,
    /// We listen.
    Server,
}

/// The addresses, and `NAME=VALUE` for the rest.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) role: Role,
    pub(crate) ours: IpAddr,
    pub(crate) theirs: IpAddr,
    values: HashMap<String, String>,
}

impl Options {
    pub(crate) fn parse(role: &str, ours: &str, theirs: &str, rest: &[&str]) -> Result<Self, Failure> {
        let role = match role {
            "client" => Role::Client,
            "server" => Role::Server,
            other => return Err(format!("role {other} is neither client nor server").into()),
        };
        let mut values = HashMap::new();
        for word in rest {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("{word}: expected NAME=VALUE"))?;
            values.insert(name.to_owned(), value.to_owned());
        }
        Ok(Self { role, ours: ours.parse()?, theirs: theirs.parse()?, values })
    }

    /// A value, or what it is unless said.
    pub(crate) fn get<T>(&self, name: &str, default: T) -> Result<T, Failure>
    where
        T: FromStr<Err: std::fmt::Display>,
    {
        let Some(text) = self.values.get(name) else { return Ok(default) };
        text.parse().map_err(|error| format!("{name}={text}: {error}").into())
    }

    pub(crate) fn connections(&self) -> Result<usize, Failure> {
        self.get("connections", 1)
    }

    /// Messages of a connection and direction.
    pub(crate) fn messages(&self) -> Result<usize, Failure> {
        self.get("messages", 10)
    }

    /// Bytes of a message.
    pub(crate) fn size(&self) -> Result<usize, Failure> {
        self.get("size", 100)
    }

    /// Our address, with the program's port.
    pub(crate) fn here(&self, port: u16) -> Result<SocketAddr, Failure> {
        Ok(SocketAddr::new(self.ours, self.get("port", port)?))
    }

    /// The kernel's address, with the program's port.
    pub(crate) fn there(&self, port: u16) -> Result<SocketAddr, Failure> {
        Ok(SocketAddr::new(self.theirs, self.get("port", port)?))
    }
}
