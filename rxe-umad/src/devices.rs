//! The managed devices: ours, as `ibstat` shows them. The functions that look for them ask the system, so a thread is not cancelled in
//! them.

use crate::{
    border::{Array, Text, lend, lend_keys, look, refuse, take, take_keys},
    c::{Ca, DeviceNode, NAME, PORTS, Port, text},
};
use core::{
    ffi::{c_char, c_int},
    mem::MaybeUninit,
    ptr,
};
use rxe_cancel::Shield;
use rxe_fabric::mad::lid_of;
use rxe_verbs::{Device, PortState, host::HostConfig};
use std::{ffi::CString, net::IpAddr};

/// A channel adapter.
const CA: u32 = 1;
/// A port's rate in Gbit/s and its capabilities, as in our view of sysfs.
const RATE: u32 = 40;
const CAPABILITIES: u32 = 0x0401_0000;
/// The default prefix of GIDs.
const PREFIX: u64 = 0xfe80 << 48;

/// The devices that this process may see.
pub(crate) fn devices() -> Vec<Device> {
    let only = rxe_verbs::variable("RXE_DEVICE").and_then(|only| only.into_string().ok());
    match only.filter(|only| !only.is_empty()) {
        None => rxe_verbs::devices().unwrap_or_default(),
        Some(only) => {
            let found = match only.parse::<IpAddr>() {
                Ok(address) => Device::of_address(address),
                Err(_) => Device::find(&only),
            };
            found.into_iter().collect()
        }
    }
}

/// The device with this name. Without a name the first that works, or else the first.
pub(crate) fn device(name: Option<&str>) -> Option<Device> {
    let mut list = devices();
    let wanted = |device: &Device| match name {
        Some(name) => device.name() == name,
        None => device.state() == PortState::Active,
    };
    let place = list.iter().position(wanted).or_else(|| name.is_none().then_some(0));
    place.filter(|place| *place < list.len()).map(|place| list.swap_remove(place))
}

fn describe(device: &Device) -> Port {
    let is_active = device.state() == PortState::Active;
    let (state, phys_state) = if is_active { (4, 5) } else { (1, 3) };
    let lid = device.gids().get(0).address().map_or(0, lid_of).into();
    let mut port = Port {
        ca_name: text(device.name()),
        portnum: 1,
        base_lid: lid,
        lmc: 0,
        // Each host is its own subnet manager.
        sm_lid: lid,
        sm_sl: 0,
        state,
        phys_state,
        rate: RATE,
        capmask: CAPABILITIES.to_be_bytes(),
        gid_prefix: PREFIX.to_be(),
        port_guid: u64::from_ne_bytes(device.guid()),
        pkeys_size: 0,
        pkeys: ptr::null_mut(),
        link_layer: text("Ethernet"),
    };
    let config = HostConfig::load().unwrap_or_default();
    lend_keys(&mut port, config.pkeys_of(device.netdev()));
    port
}

/// umad_get_cas_names(3). Returns as many names as fit.
#[unsafe(no_mangle)]
extern "C" fn umad_get_cas_names(names: Array<[c_char; NAME]>, max: c_int) -> c_int {
    let _shield = Shield::new();
    let fits = |device: &Device| device.name().len() < NAME;
    let list: Vec<[c_char; NAME]> =
        devices().iter().filter(|device| fits(device)).map(|device| text(device.name())).collect();
    let count = list.len().min(usize::try_from(max).unwrap_or(0));
    names.write(&list[..count]);
    count as c_int
}

/// umad_get_ca_portguids(3): the GUIDs of port 0, which does not exist, and of port 1.
#[unsafe(no_mangle)]
extern "C" fn umad_get_ca_portguids(name: Text, guids: Array<u64>, max: c_int) -> c_int {
    let _shield = Shield::new();
    let Some(device) = device(name.get()) else { return refuse(libc::ENODEV) };
    let list = [0, u64::from_ne_bytes(device.guid())];
    if guids.is_null() {
        return 0;
    }
    if usize::try_from(max).unwrap_or(0) < list.len() {
        return refuse(libc::ENOMEM);
    }
    guids.write(&list);
    list.len() as c_int
}

/// umad_get_ca(3).
#[unsafe(no_mangle)]
extern "C" fn umad_get_ca(name: Text, out: Option<&mut MaybeUninit<Ca>>) -> c_int {
    let _shield = Shield::new();
    let Some(out) = out else { return refuse(libc::EINVAL) };
    let Some(device) = device(name.get()) else { return refuse(libc::ENODEV) };
    let guid = u64::from_ne_bytes(device.guid());
    let mut ports = [ptr::null_mut(); PORTS];
    ports[1] = lend(describe(&device));
    out.write(Ca {
        ca_name: text(device.name()),
        node_type: CA,
        numports: 1,
        fw_ver: text(env!("CARGO_PKG_VERSION")),
        ca_type: text("rxe"),
        hw_ver: text(""),
        node_guid: guid,
        system_guid: guid,
        ports,
    });
    0
}

/// umad_release_ca(3).
#[unsafe(no_mangle)]
extern "C" fn umad_release_ca(ca: Option<&mut Ca>) -> c_int {
    let Some(ca) = ca else { return refuse(libc::ENODEV) };
    for place in &mut ca.ports {
        if let Some(mut port) = take(core::mem::replace(place, ptr::null_mut())) {
            take_keys(&mut port);
        }
    }
    0
}

/// umad_get_port(3). Port 0 means any port, and there is only one.
#[unsafe(no_mangle)]
extern "C" fn umad_get_port(name: Text, number: c_int, out: Option<&mut MaybeUninit<Port>>) -> c_int {
    let _shield = Shield::new();
    let Some(out) = out else { return refuse(libc::EINVAL) };
    match device(name.get()) {
        Some(device) if matches!(number, 0 | 1) => {
            out.write(describe(&device));
            0
        }
        Some(_) => refuse(libc::EIO),
        None => refuse(libc::ENODEV),
    }
}

/// umad_release_port(3).
#[unsafe(no_mangle)]
extern "C" fn umad_release_port(port: Option<&mut Port>) -> c_int {
    let Some(port) = port else { return refuse(libc::ENODEV) };
    take_keys(port);
    0
}

/// umad_get_issm_path(3). There is no device node by which a subnet manager could announce itself.
#[unsafe(no_mangle)]
extern "C" fn umad_get_issm_path(_name: Text, _port: c_int, _path: Array<c_char>, _max: c_int) -> c_int {
    refuse(libc::EINVAL)
}

/// umad_get_ca_device_list(3); null if there is none.
#[unsafe(no_mangle)]
extern "C" fn umad_get_ca_device_list() -> *mut DeviceNode {
    let _shield = Shield::new();
    let names = devices().into_iter().rev().filter_map(|device| CString::new(device.name()).ok());
    let node = |next, name: CString| lend(DeviceNode { next, ca_name: name.into_raw() });
    names.fold(ptr::null_mut(), node)
}

/// umad_free_ca_device_list(3).
#[unsafe(no_mangle)]
extern "C" fn umad_free_ca_device_list(mut head: *mut DeviceNode) {
    while let Some(node) = take(head) {
        head = node.next;
        crate::border::take_name(node.ca_name);
    }
}

/// umad_sort_ca_device_list: sorts by name. `size` is the number of devices, or 0 to count them.
#[unsafe(no_mangle)]
extern "C" fn umad_sort_ca_device_list(head: Option<&mut *mut DeviceNode>, size: usize) -> c_int {
    let Some(head) = head else { return libc::EINVAL };
    let (mut nodes, mut at) = (Vec::new(), *head);
    while let Some(node) = look(at) {
        nodes.push(at);
        at = node.next;
    }
    if size != 0 && size != nodes.len() {
        return libc::EINVAL;
    }
    nodes.sort_by_key(|node| look(*node).map(|node| crate::border::name_of(node.ca_name)));
    let mut next = ptr::null_mut();
    for node in nodes.into_iter().rev() {
        if let Some(node) = look(node) {
            node.next = next;
        }
        next = node;
    }
    *head = next;
    0
}
