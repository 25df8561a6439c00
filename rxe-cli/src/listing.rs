//! The properties of devices, for all commands that show them: `rxe devices` in the form of ibv_devinfo, `rxe link` and our
//! `rdma` in that of rdma(8), and the view of sysfs as files. All use the same names in JSON.

use crate::Result;
use rxe_verbs::{Device, GidType, PortState, devices};
use serde_json::Value;

/// The state of its port, in the terms of each program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    /// enum ibv_port_state.
    pub(crate) code: u8,
    /// In the terms of ibv_devinfo.
    pub(crate) verbs: &'static str,
    /// In the terms of rdma(8).
    pub(crate) short: &'static str,
    /// The physical state, in the terms of rdma(8).
    pub(crate) physical: &'static str,
}

const ACTIVE: State = State { code: 4, verbs: "PORT_ACTIVE", short: "ACTIVE", physical: "LINK_UP" };
const DOWN: State = State { code: 1, verbs: "PORT_DOWN", short: "DOWN", physical: "DISABLED" };

/// A device to be shown.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    /// `rxe0`.
    pub(crate) name: String,
    /// Its number, which determines its name if it has no other.
    pub(crate) number: usize,
    pub(crate) netdev: String,
    pub(crate) netdev_index: u32,
    /// The GUID in four groups.
    pub(crate) guid: String,
    pub(crate) state: State,
    /// Largest payload of a packet in bytes, and its code.
    pub(crate) mtu: (u32, u8),
    /// By index, each with its address and RoCE version. Empty entries have no address.
    pub(crate) gids: Vec<(String, Option<String>, GidType)>,
    /// The LID for management datagrams. Verbs have no LIDs on Ethernet.
    pub(crate) lid: u16,
    /// Usable ones, in the order of the system.
    pub(crate) addresses: Vec<String>,
}

/// The value for the firmware version.
pub(crate) const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

impl Listed {
    pub(crate) fn new(device: &Device) -> Self {
        let guid = device.guid();
        let groups: Vec<_> = guid.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
        let (table, mtu) = (device.gids(), device.active_mtu());
        let gid = |index| {
            let gid = table.get(index);
            (gid.to_string(), gid.address().map(|address| address.to_string()), table.gid_type(index))
        };
        Self {
            name: device.name().to_owned(),
            number: device.number(),
            netdev: device.netdev().to_owned(),
            netdev_index: device.interface().index,
            guid: groups.join(":"),
            state: match device.state() {
                PortState::Active => ACTIVE,
                PortState::Down => DOWN,
            },
            mtu: (mtu.bytes(), mtu.code()),
            gids: (0..u8::try_from(table.len()).unwrap_or(u8::MAX)).map(gid).collect(),
            lid: table.get(0).address().map_or(0, rxe_fabric::mad::lid_of),
            addresses: device.addresses().map(|address| address.to_string()).collect(),
        }
    }

    /// As an object, with the names of `rxe devices`.
    pub(crate) fn json(&self, pkeys: &[u16]) -> Value {
        let gids: Vec<_> = self.gids.iter().map(|(gid, ..)| gid).collect();
        serde_json::json!({
            "name": self.name, "netdev": self.netdev, "guid": self.guid, "lid": self.lid, "state": self.state.verbs,
            "active_mtu": self.mtu.0, "addresses": self.addresses, "gids": gids, "pkeys": pkeys,
        })
    }
}

/// The device with this name or interface, or all.
pub(crate) fn listed(only: Option<&str>) -> Result<Vec<Listed>> {
    let list = match only {
        Some(name) => vec![Device::find(name)?],
        None => devices()?,
    };
    Ok(list.iter().map(Listed::new).collect())
}
