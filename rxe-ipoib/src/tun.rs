//! The TUN interface, by which packets are exchanged with the host's IP stack.

use crate::Error;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};
use tun_rs::{DeviceBuilder, SyncDevice};

/// The interface. It is removed when this value is dropped.
pub(crate) struct Tun {
    device: SyncDevice,
    name: String,
}

impl Tun {
    /// Creates the interface, down and without an address, as `ib0` is at first.
    pub(crate) fn new(name: &str, mtu: u16) -> Result<Self, Error> {
        let unfit = |c: char| c.is_whitespace() || c == '/' || c == ':' || c.is_control() || c == '%';
        if name.is_empty() || name.len() > 15 || name == "." || name == ".." || name.contains(unfit) {
            return Err(Error::Name(name.to_owned()));
        }
        let failed = |source| Error::Tun { name: name.to_owned(), source };
        // Its queue keeps the default length, because a change needs a privilege in the initial user namespace.
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

    /// Passes a packet that we have made to the host's IP stack.
    pub(crate) fn write(&self, packet: &[u8]) -> io::Result<()> {
        self.device.send(packet).map(|_| ())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
