//! Why an interface cannot be created, or has ended.

use std::io;

/// An error, with what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is not a valid interface name.
    #[error("\"{0}\" is no name for an interface: 1 to 15 characters, no blanks, slashes or colons")]
    Name(String),
    /// The TUN interface cannot be created.
    #[error("cannot make the TUN interface {name}: {source}{}", tun_advice(.source))]
    Tun {
        /// The interface.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The interface was deleted, or failed.
    #[error("interface {name} is gone: {source}")]
    Gone {
        /// The interface.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The partition is not one of the port's.
    #[error(
        "P_Key {wanted:#06x} is not in the table of {device} ({table}); partitions.conf, or `pkeys` in rxe.toml, says what is"
    )]
    Pkey {
        /// The value that was asked for.
        wanted: u16,
        /// The device.
        device: String,
        /// The keys of the port.
        table: String,
    },
    /// The GID index is empty.
    #[error("{device} has no GID with index {index}; `rxe devices -v` lists them")]
    Gid {
        /// The device.
        device: String,
        /// The value that was asked for.
        index: u8,
    },
    /// The MTU is not possible.
    #[error("an MTU of {wanted} is not possible: {most} at most over {device} in this mode, 68 at least")]
    Mtu {
        /// The value that was asked for.
        wanted: u16,
        /// The largest possible value.
        most: u16,
        /// The device.
        device: String,
    },
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] rxe_verbs::OpenError),
    /// A verbs object cannot be made.
    #[error(transparent)]
    Create(#[from] rxe_verbs::CreateError),
    /// Memory cannot be registered.
    #[error(transparent)]
    Register(#[from] rxe_verbs::RegisterError),
    /// A queue pair does not take its attributes.
    #[error(transparent)]
    Modify(#[from] rxe_verbs::ModifyQpError),
    /// The connection manager refuses.
    #[error("connected mode: {0}")]
    Manager(#[from] rxe_cm::CmError),
    /// The completion queue fails.
    #[error(transparent)]
    Poll(#[from] rxe_verbs::PollError),
    /// A system call fails.
    #[error("cannot {action}: {source}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// There is no such interface here, or it does not belong to rxe.
    #[error("there is no IPoIB interface {0} of rxe in this network namespace; `rxe ipoib show` lists them")]
    NoInterface(String),
    /// The interface exists already.
    #[error("IPoIB interface {0} is there already; `rxe ipoib delete {0}` removes it")]
    Exists(String),
    /// The process of the interface refuses the request.
    #[error("{0}")]
    Refused(String),
}

fn tun_advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            "; it takes CAP_NET_ADMIN in this network namespace (root, or `unshare -Urn`)"
        }
        io::ErrorKind::NotFound => {
            "; /dev/net/tun is missing (`modprobe tun`, or the container has no such device)"
        }
        io::ErrorKind::ResourceBusy => "; there is an interface of that name",
        _ => "",
    }
}

impl Error {
    /// For `map_err`.
    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxe_verbs::host::HostConfig;

    /// The configuration has what the advice names, at that place.
    #[test]
    fn partitions_are_where_the_error_says() {
        let error = Error::Pkey { wanted: 0x8055, device: "rxe0".to_owned(), table: "0xffff".to_owned() };
        assert!(
            error.to_string().ends_with("partitions.conf, or `pkeys` in rxe.toml, says what is"),
            "{error}"
        );
        let file = std::env::temp_dir().join(format!("rxe-ipoib-pkeys-{}.toml", std::process::id()));
        std::fs::write(&file, "pkeys = [0xffff, 0x8055]\n").expect("a file");
        let config = HostConfig::read(&file).expect("a configuration");
        assert_eq!(config.pkeys_of("eth0"), [0xffff, 0x8055]);
        std::fs::remove_file(file).expect("removed");
    }
}
