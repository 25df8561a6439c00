//! The parts of a context that change while it is open: addresses, MTU and state of its interface.

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

/// State of the network interface below a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkState {
    /// The interface exists. A device whose interface has gone does not come back.
    pub present: bool,
    /// Its MAC address, if it has one of six bytes.
    pub mac: Option<[u8; 6]>,
}

impl Live {
    /// The state of a device now. `v1`: its link carries RoCE v1, too.
    pub(crate) fn of(device: &Device, v1: bool) -> Self {
        let interface = LinkState { present: true, mac: device.interface().mac };
        Self { gids: device.gids_over(v1), active_mtu: device.active_mtu(), state: device.state(), interface }
    }

    /// Updates it from the interface (`None` if that is gone), and returns the events for the application. If `only` is given, the
    /// interface's other addresses do not count. Queue pairs keep the path MTU that they have.
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
