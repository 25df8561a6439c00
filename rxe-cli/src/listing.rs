//! What there is to say about a device: once, for all who show devices. `rxe devices` shows it as ibv_devinfo, `rxe link` and
//! the stand-in for `rdma` as rdma(8), the view of sysfs as files, each with JSON's names for the same things.

use crate::Result;
use rxe_verbs::{Device, GidType, PortState, devices};
use serde_json::Value;

/// What its port is doing, in the words of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    /// enum ibv_port_state.
    pub(crate) code: u8,
    /// As ibv_devinfo has it.
    pub(crate) verbs: &'static str,
    /// As rdma(8) has it.
    pub(crate) short: &'static str,
    /// Of the wire below, as rdma(8) has it.
    pub(crate) physical: &'static str,
}

const ACTIVE: State = State { code: 4, verbs: "PORT_ACTIVE", short: "ACTIVE", physical: "LINK_UP" };
const DOWN: State = State { code: 1, verbs: "PORT_DOWN", short: "DOWN", physical: "DISABLED" };

/// A device, as it is shown.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    /// `rxe0`.
    pub(crate) name: String,
    /// Its number, by which it is called where it has no other name.
    pub(crate) number: usize,
    pub(crate) netdev: String,
    pub(crate) netdev_index: u32,
    /// In four groups.
    pub(crate) guid: String,
    pub(crate) state: State,
    /// Largest payload of a packet in bytes, and its code.
    pub(crate) mtu: (u32, u8),
    /// By index, each with its address and the RoCE it stands for; what is empty has no address.
    pub(crate) gids: Vec<(String, Option<String>, GidType)>,
    /// What management datagrams are addressed by; verbs have none on Ethernet.
    pub(crate) lid: u16,
    /// Usable ones, in the order of the system.
    pub(crate) addresses: Vec<String>,
}

/// What firmware would be.
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

    /// As an object, with `rxe devices`' names.
    pub(crate) fn json(&self, pkeys: &[u16]) -> Value {
        let gids: Vec<_> = self.gids.iter().map(|(gid, ..)| gid).collect();
        serde_json::json!({
            "name": self.name, "netdev": self.netdev, "guid": self.guid, "lid": self.lid, "state": self.state.verbs,
            "active_mtu": self.mtu.0, "addresses": self.addresses, "gids": gids, "pkeys": pkeys,
        })
    }
}

/// One by its name or its interface's, or all.
pub(crate) fn listed(only: Option<&str>) -> Result<Vec<Listed>> {
    let list = match only {
        Some(name) => vec![Device::find(name)?],
        None => devices()?,
    };
    Ok(list.iter().map(Listed::new).collect())
}
