//! The TUN interface: where the host's stack puts packets in and takes them out.

use crate::Error;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};
use tun_rs::{DeviceBuilder, SyncDevice};

/// The interface; it vanishes with this value.
pub(crate) struct Tun {
    device: SyncDevice,
    name: String,
}

impl Tun {
    /// Makes the interface, down and without an address, as `ib0` is at first.
    pub(crate) fn new(name: &str, mtu: u16) -> Result<Self, Error> {
        let unfit = |c: char| c.is_whitespace() || c == '/' || c == ':' || c.is_control() || c == '%';
        if name.is_empty() || name.len() > 15 || name == "." || name == ".." || name.contains(unfit) {
            return Err(Error::Name(name.to_owned()));
        }
        let failed = |source| Error::Tun { name: name.to_owned(), source };
        // Its queue stays as long as it is by default: to change that takes the rights of the first user namespace.
        let device = DeviceBuilder::new().name(name).mtu(mtu).enable(false).build_sync().map_err(failed)?;
        device.set_nonblocking(true).map_err(failed)?;
        Ok(Self { device, name: name.to_owned() })
    }

    /// Changes its MTU.
    pub(crate) fn set_mtu(&mut self, mtu: u16) -> Result<(), Error> {
        self.device.set_mtu(mtu).map_err(|source| Error::Tun { name: self.name.clone(), source })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Gives the host's stack a packet of our own making.
    pub(crate) fn write(&self, packet: &[u8]) -> io::Result<()> {
        self.device.send(packet).map(|_| ())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
