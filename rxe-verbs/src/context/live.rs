//! What of a context changes while it is open: addresses, MTU and state of its interface.

use crate::{
    device::{Device, PortState},
    events::AsyncEvent,
    gid::GidTable,
    net::interfaces::Interface,
};
use core::net::IpAddr;
use rxe_core::qp::Mtu;

/// The port as it is now.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) gids: GidTable,
    pub(crate) active_mtu: Mtu,
    pub(crate) state: PortState,
    pub(crate) interface: LinkState,
}

/// What there is to say about the interface below a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkState {
    /// It is there; a device whose interface has gone does not come back.
    pub present: bool,
    /// Its MAC address, where it has one of six bytes.
    pub mac: Option<[u8; 6]>,
}

impl Live {
    /// Of a device whose link carries RoCE v1 as well (`v1`), or does not.
    pub(crate) fn of(device: &Device, v1: bool) -> Self {
        let interface = LinkState { present: true, mac: device.interface().mac };
        Self { gids: device.gids_over(v1), active_mtu: device.active_mtu(), state: device.state(), interface }
    }

    /// Brings it up to date with the interface, `None` if that is gone; `only` is the one address that counts. Gives what
    /// the application is to be told. Queue pairs keep the MTU they were given.
    pub(crate) fn update(&mut self, interface: Option<&Interface>, only: Option<IpAddr>) -> Vec<AsyncEvent> {
        let mut events = Vec::new();
        let addresses: Vec<IpAddr> = interface
            .into_iter()
            .flat_map(|interface| interface.addresses.iter().filter(|address| address.usable))
            .map(|address| address.ip)
            .filter(|ip| only.is_none_or(|only| only == *ip))
            .collect();
        if self.gids.update(&addresses) {
            events.push(AsyncEvent::GidChange);
        }
        let state = match interface {
            Some(Interface { up: true, running: true, .. }) => PortState::Active,
            _ => PortState::Down,
        };
        if state != self.state {
            self.state = state;
            let active = state == PortState::Active;
            events.push(if active { AsyncEvent::PortActive } else { AsyncEvent::PortError });
        }
        if let Some(interface) = interface {
            self.active_mtu = Mtu::fitting(interface.mtu);
        }
        if interface.is_none() && self.interface.present {
            events.push(AsyncEvent::DeviceFatal);
        }
        self.interface =
            LinkState { present: interface.is_some(), mac: interface.and_then(|interface| interface.mac) };
        events
    }
}
