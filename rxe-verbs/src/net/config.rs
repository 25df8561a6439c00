//! How to open a UDP link, and the environment variables that change it.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::borrow::Cow;

use super::SlotTable;
use crate::trust::variable;

/// Abilities of the system's sockets that a link uses where they exist. Each has a fallback. A feature that is switched off
/// forces its fallback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
pub struct Features {
    /// Segmentation of batches by the kernel (UDP_SEGMENT). Fallback: one datagram per packet.
    pub gso: bool,
    /// Merging of arrivals by the kernel (UDP_GRO). Fallback: one datagram per packet.
    pub gro: bool,
    /// The slot program on the sockets of port 4791 (SO_ATTACH_REUSEPORT_CBPF). Fallback: one process per address.
    pub steering: bool,
    /// Several datagrams per system call (`sendmmsg`, `recvmmsg`). Fallback: one.
    pub mmsg: bool,
    /// A header before each frame of a packet socket that says how the frame is segmented (PACKET_VNET_HDR). Fallback: each
    /// frame that the raw link sends is one packet, and the raw link receives RoCEv2 by the sockets of port 4791.
    pub vnet: bool,
    /// A priority for each batch (SO_PRIORITY as a control message, Linux 6.14). Fallback: the socket's priority is changed
    /// before a batch.
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

/// The kind of link that a device uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkKind {
    /// Ordinary UDP sockets: RoCEv2, without privileges.
    #[default]
    Udp,
    /// Raw Ethernet frames ([`RawLink`](super::RawLink)): both RoCEs, with CAP_NET_RAW.
    Raw,
    /// As [`Self::Udp`], but packets to another process of the same host service go through shared memory. A capture of an
    /// interface does not show them.
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
    /// The largest that the system permits (`net.core.rmem_max`, `wmem_max`), at most 16 MiB.
    #[default]
    Largest,
    /// The size of a new socket's buffer (`net.core.rmem_default`).
    Default,
    /// This many bytes. The system caps the number, and doubles it for its own accounting.
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

/// Whether other sockets may be bound to port 4791 of the same address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// No: opening the link fails if another program has the port.
    #[default]
    Exclusive,
    /// No, and later sockets cannot join either: the socket is in no reuseport group, so the kernel looks it up faster. It
    /// cannot be steered.
    Sole,
    /// Yes: the socket becomes the next member of the reuseport group of this user's processes. A member of the group has to
    /// attach a slot table that names it ([`UdpLink::steer`](super::UdpLink::steer)).
    Group,
}

/// How to open a UDP link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// IPv4 address to bind: unspecified for all, `None` for no IPv4.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 address to bind: unspecified for all, `None` for no IPv6.
    pub v6: Option<Ipv6Addr>,
    /// Interface index of a link-local `v6`, else 0.
    pub v6_scope: u32,
    /// Which abilities of the system to use.
    pub features: Features,
    /// Receive buffer of each socket of port 4791.
    pub recv_buffer: BufferSize,
    /// Send buffer of each sending socket.
    pub send_buffer: BufferSize,
    /// Number of sending sockets per family. Each has a port of its own in 0xC000 to 0xFFFF. With 0, or where none can be
    /// bound, packets leave from port 4791.
    pub pool: usize,
    /// Whether other sockets may have the port.
    pub sharing: Sharing,
    /// Which group member serves which slot. `None` attaches no program.
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
    /// A configuration that binds only `address`. `scope` is the interface index of an IPv6 link-local address, else 0.
    #[must_use]
    pub fn only(address: IpAddr, scope: u32) -> Self {
        match address {
            IpAddr::V4(address) => Self { v4: Some(address), v6: None, ..Self::default() },
            IpAddr::V6(address) => Self { v4: None, v6: Some(address), v6_scope: scope, ..Self::default() },
        }
    }

    /// This configuration, changed by the environment: `RXE_NET_DISABLE` (see [`Features::without`]), `RXE_RCVBUF` and
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

/// An environment variable whose value is not understood, or whose file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value:?} {}{allowed}", if *.is_file { "cannot be used: " } else { "is not understood; allowed: " })]
pub struct ConfigError {
    variable: &'static str,
    value: String,
    allowed: Cow<'static, str>,
    /// The variable names a file, and `allowed` says what is wrong in that file.
    is_file: bool,
}

impl ConfigError {
    pub(crate) fn new(variable: &'static str, value: &str, allowed: impl Into<Cow<'static, str>>) -> Self {
        Self { variable, value: value.to_owned(), allowed: allowed.into(), is_file: false }
    }

    /// The variable names a file that cannot be used; `what` says why.
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
