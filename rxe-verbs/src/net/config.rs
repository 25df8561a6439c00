//! How to open a UDP link, and the environment variables that change it.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::borrow::Cow;

use super::SlotTable;
use crate::trust::variable;

/// Abilities of the system's UDP sockets that a link uses where they exist. Each has a fallback; switching one off
/// forces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
pub struct Features {
    /// Segmentation of batches by the kernel (UDP_SEGMENT). Else one datagram per packet.
    pub gso: bool,
    /// Merging of arrivals by the kernel (UDP_GRO). Else one datagram per packet.
    pub gro: bool,
    /// The slot program on the 4791 sockets (SO_ATTACH_REUSEPORT_CBPF). Else one process per address.
    pub steering: bool,
    /// Several datagrams per system call (`sendmmsg`, `recvmmsg`). Else one.
    pub mmsg: bool,
    /// Frames that tell how they would be cut (PACKET_VNET_HDR). Else each frame of the raw link is one packet, and its RoCEv2
    /// comes by port 4791.
    pub vnet: bool,
    /// Priorities of single batches (SO_PRIORITY as a control message, Linux 6.14). Else the socket's is changed for them.
    pub priority: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self { gso: true, gro: true, steering: true, mmsg: true, vnet: true, priority: true }
    }
}

impl Features {
    /// All features but those in `list`, a comma-separated choice of `gso`, `gro`, `cbpf`, `mmsg`, `vnet` and `priority`.
    ///
    /// # Errors
    /// [`ConfigError`] naming the first unknown word.
    pub fn without(list: &str) -> Result<Self, ConfigError> {
        let mut features = Self::default();
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word {
                "gso" => features.gso = false,
                "gro" => features.gro = false,
                "cbpf" => features.steering = false,
                "mmsg" => features.mmsg = false,
                "vnet" => features.vnet = false,
                "priority" => features.priority = false,
                _ => {
                    return Err(ConfigError::new(
                        "RXE_NET_DISABLE",
                        word,
                        "a comma-separated choice of gso, gro, cbpf, mmsg, vnet, priority",
                    ));
                }
            }
        }
        Ok(features)
    }
}

/// What packets leave and arrive by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkKind {
    /// An ordinary UDP socket: RoCEv2, for everybody.
    #[default]
    Udp,
    /// Raw Ethernet frames ([`RawLink`](super::RawLink)): both RoCEs, with CAP_NET_RAW.
    Raw,
    /// As [`Self::Udp`], but what goes to another process of this host's service goes through memory that both share: the same
    /// packets, which no capture of an interface shows.
    Memory,
}

impl LinkKind {
    /// What `RXE_LINK` says: `udp`, `raw` or `memory`; [`Self::Udp`] if it is not set or empty.
    ///
    /// # Errors
    /// [`ConfigError`] for another value.
    pub fn from_environment() -> Result<Self, ConfigError> {
        match &*variable("RXE_LINK").unwrap_or_default().to_string_lossy() {
            "" | "udp" => Ok(Self::Udp),
            "raw" => Ok(Self::Raw),
            "memory" => Ok(Self::Memory),
            other => Err(ConfigError::new("RXE_LINK", other, "udp, raw, memory")),
        }
    }
}

/// How large a socket buffer to ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BufferSize {
    /// As much as the system permits (`net.core.rmem_max`, `wmem_max`), at most 16 MiB.
    #[default]
    Largest,
    /// What a socket has by itself (`net.core.rmem_default`).
    Default,
    /// This many bytes; the system doubles the number for its own accounting, and caps it.
    Bytes(usize),
}

impl BufferSize {
    fn parse(variable: &'static str, text: &str) -> Result<Self, ConfigError> {
        match text {
            "max" => Ok(Self::Largest),
            "default" => Ok(Self::Default),
            number => match number.parse() {
                Ok(bytes) if bytes <= i32::MAX as usize => Ok(Self::Bytes(bytes)),
                _ => Err(ConfigError::new(variable, text, "`max`, `default` or a number of bytes")),
            },
        }
    }
}

/// Whether other sockets may have port 4791 of the same address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// No: opening fails if another program has the port.
    #[default]
    Exclusive,
    /// No, and it never will be shared: a socket without a group, which finds packets faster. It cannot be steered.
    Sole,
    /// Yes: the socket becomes the next member of the group that this user's processes form. Somebody has to attach a
    /// table that names it ([`UdpLink::steer`](super::UdpLink::steer)).
    Group,
}

/// How to open a UDP link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// IPv4 address to bind: unspecified for all, `None` for no IPv4.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 address to bind: unspecified for all, `None` for no IPv6.
    pub v6: Option<Ipv6Addr>,
    /// Interface of a link-local `v6`, else 0.
    pub v6_scope: u32,
    /// What to use of the system.
    pub features: Features,
    /// Receive buffer of each 4791 socket.
    pub recv_buffer: BufferSize,
    /// Send buffer of each sending socket.
    pub send_buffer: BufferSize,
    /// Sending sockets per family, each with a port of its own in 0xC000 to 0xFFFF; with 0, or where none can be
    /// bound, packets leave from port 4791 itself.
    pub pool: usize,
    /// Who else may have the port.
    pub sharing: Sharing,
    /// Slots and the group members they belong to; `None` attaches nothing.
    pub slots: Option<SlotTable>,
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self {
            v4: Some(Ipv4Addr::UNSPECIFIED),
            v6: Some(Ipv6Addr::UNSPECIFIED),
            v6_scope: 0,
            features: Features::default(),
            recv_buffer: BufferSize::default(),
            send_buffer: BufferSize::default(),
            pool: 4,
            sharing: Sharing::default(),
            slots: Some(SlotTable::single()),
        }
    }
}

impl UdpConfig {
    /// Binds only `address`; `scope` is the interface of an IPv6 link-local one, else 0.
    #[must_use]
    pub fn only(address: IpAddr, scope: u32) -> Self {
        match address {
            IpAddr::V4(address) => Self { v4: Some(address), v6: None, ..Self::default() },
            IpAddr::V6(address) => Self { v4: None, v6: Some(address), v6_scope: scope, ..Self::default() },
        }
    }

    /// The same with what the environment says: `RXE_NET_DISABLE` (see [`Features::without`]), `RXE_RCVBUF` and
    /// `RXE_SNDBUF` (`max`, `default` or bytes).
    ///
    /// # Errors
    /// [`ConfigError`] naming the variable, its value and what is allowed.
    pub fn with_environment(self) -> Result<Self, ConfigError> {
        self.with_variables(|name| variable(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn with_variables(mut self, get: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        if let Some(list) = get("RXE_NET_DISABLE") {
            self.features = Features::without(&list)?;
        }
        if let Some(text) = get("RXE_RCVBUF") {
            self.recv_buffer = BufferSize::parse("RXE_RCVBUF", &text)?;
        }
        if let Some(text) = get("RXE_SNDBUF") {
            self.send_buffer = BufferSize::parse("RXE_SNDBUF", &text)?;
        }
        Ok(self)
    }
}

/// An environment variable with a value we do not understand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value:?} {}{allowed}", if *.is_file { "cannot be used: " } else { "is not understood; allowed: " })]
pub struct ConfigError {
    variable: &'static str,
    value: String,
    allowed: Cow<'static, str>,
    /// It names a file, and what is wrong is in there.
    is_file: bool,
}

impl ConfigError {
    pub(crate) fn new(variable: &'static str, value: &str, allowed: impl Into<Cow<'static, str>>) -> Self {
        Self { variable, value: value.to_owned(), allowed: allowed.into(), is_file: false }
    }

    /// A file that the variable names has something wrong in it.
    pub(crate) fn in_file(variable: &'static str, file: &str, what: String) -> Self {
        Self { variable, value: file.to_owned(), allowed: what.into(), is_file: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<UdpConfig, ConfigError> {
        UdpConfig::default().with_variables(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn environment_changes_the_configuration() {
        assert_eq!(with(&[]).unwrap(), UdpConfig::default());
        let config =
            with(&[("RXE_NET_DISABLE", "gso, cbpf"), ("RXE_RCVBUF", "default"), ("RXE_SNDBUF", "65536")])
                .unwrap();
        assert_eq!(config.features, Features { gso: false, steering: false, ..Features::default() });
        assert_eq!(config.recv_buffer, BufferSize::Default);
        assert_eq!(config.send_buffer, BufferSize::Bytes(65536));
    }

    #[test]
    fn wrong_values_are_named() {
        let error = with(&[("RXE_NET_DISABLE", "gso,gos")]).unwrap_err().to_string();
        assert_eq!(
            error,
            "RXE_NET_DISABLE=\"gos\" is not understood; allowed: a comma-separated choice of gso, gro, cbpf, mmsg, vnet, priority"
        );
        for wrong in ["", "big", "-1", "4294967296"] {
            let error = with(&[("RXE_RCVBUF", wrong)]).unwrap_err().to_string();
            assert!(error.starts_with("RXE_RCVBUF="), "{error}");
        }
    }
}
