//! Notices of changes in the host's configuration (rtnetlink): addresses and routes of a TUN interface change without a packet.

use crate::Error;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

/// RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_ROUTE (rtnetlink(7)).
const GROUPS: u32 = 0x10 | 0x40 | 0x100 | 0x400;

/// A descriptor that is readable when addresses or routes have changed.
#[derive(Debug)]
pub(crate) struct Network(OwnedFd);

impl Network {
    pub(crate) fn watch() -> Result<Self, Error> {
        let failed = |error: nix::errno::Errno| Error::System {
            action: "listen to the system's network configuration",
            source: error.into(),
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute);
        let socket = socket.map_err(failed)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS)).map_err(failed)?;
        Ok(Self(socket))
    }

    /// Whether there was a change. The new state is read from the tables.
    pub(crate) fn has_changed(&self) -> bool {
        let mut changed = false;
        let mut message = [0; 4096];
        loop {
            match recv(self.0.as_raw_fd(), &mut message, MsgFlags::MSG_TRUNC) {
                Ok(_) => changed = true,
                // Some notices were lost.
                Err(nix::errno::Errno::ENOBUFS) => changed = true,
                Err(error) if io::Error::from(error).kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return changed,
            }
        }
    }
}

impl AsFd for Network {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
