//! The port's general service agent: management datagrams on queue pair 1 that are not the connection manager's. Programs
//! register for classes and send by their connection. Requests for which no program has registered are answered as by a kernel's port
//! (performance management), as by a subnet manager (subnet administration and management, for this host's programs only), or
//! with "unsupported".

mod lids;
mod pending;
mod respond;

use super::{
    Service,
    ask::Question,
    clients::{End, Kind},
    courier::Refusals,
};
use crate::{
    Device,
    device::devices_anew,
    host::{
        attendant::Letter,
        mads::{MAX_AGENTS, MadAddress, MadFilter, ManagedMad},
        message::{ToClient, clean, encode},
    },
};
use lids::Lids;
use pending::Pending;
use rxe_core::{
    endpoint::RunMeta,
    num::{Pkey, Qkey, Qpn},
    wire::Packet,
};
use rxe_fabric::mad::{Mad, PortCounts, SWITCH_LID, class};
use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    time::{Duration, Instant},
};

/// How long the list of devices is used for datagrams of other hosts, which may send as many as they like. To make it takes up to a
/// millisecond.
const DEVICES_LAST: Duration = Duration::from_millis(100);
/// The time between two rounds of questions to all processes about their counters, if other hosts ask for them.
const COUNTING_PAUSE: Duration = Duration::from_millis(100);

/// Most datagrams that wait for a program to read. Further ones are lost.
const MOST_UNREAD: usize = 256;

/// What the service keeps for programs that send management datagrams.
#[derive(Debug, Default)]
pub(super) struct Mads {
    /// By connection.
    ports: HashMap<usize, MadPort>,
    pending: Vec<Pending>,
    /// Questions about counters that wait for the processes to tell theirs.
    counting: Vec<(Origin, Mad)>,
    /// Questions that arrived meanwhile. They have to wait for the next round, since some reports of this one are older than they are.
    counting_next: Vec<(Origin, Mad)>,
    /// The values of counters at the time when they were set to 0, by device.
    bases: BTreeMap<usize, PortCounts>,
    /// When the processes were last asked.
    counted_at: Option<Instant>,
    /// Our devices, and when they were listed.
    devices: Option<(Instant, Vec<Device>)>,
    lids: Lids,
    /// The upper half of transaction IDs, which tells registrations apart.
    last: u32,
    answers: Refusals,
}

/// A program's connection to a device.
#[derive(Debug)]
struct MadPort {
    /// The device's number.
    device: usize,
    agents: BTreeMap<u32, Agent>,
}

#[derive(Clone, Copy, Debug)]
struct Agent {
    filter: MadFilter,
    tid: u32,
}

/// The sender of a datagram, and the address of ours at which it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Origin {
    /// The device's number.
    device: usize,
    local: IpAddr,
    /// The sender. If it is equal to `local`, a program of this host.
    remote: IpAddr,
    ifindex: u32,
    /// A key of the device's table.
    pkey: u16,
    tos: u8,
}

impl Origin {
    fn is_own(&self) -> bool {
        self.local == self.remote
    }
}

impl Mads {
    /// Our devices, if a datagram of another host had them listed a moment ago.
    fn listed(&self) -> Option<&[Device]> {
        self.devices.as_ref().filter(|(at, _)| at.elapsed() < DEVICES_LAST).map(|(_, all)| &**all)
    }

    /// Our devices. All that is done for a datagram of another host uses one list.
    fn own_devices(&self) -> Vec<Device> {
        self.listed().map_or_else(|| devices_anew().unwrap_or_default(), <[Device]>::to_vec)
    }

    /// The device with a number.
    fn own_device(&self, number: usize) -> Option<Device> {
        self.own_devices().into_iter().find(|device| device.number() == number)
    }
}

/// The device that a program opened, if it still exists.
fn device_of(number: usize) -> Option<Device> {
    devices_anew().unwrap_or_default().into_iter().find(|device| device.number() == number)
}

impl Service {
    /// A program connects to this device to send management datagrams.
    pub(in crate::host::service) fn open_mads(&mut self, key: usize, name: &str) -> Result<(), End> {
        let found = devices_anew().unwrap_or_default().into_iter().find(|device| device.name() == name);
        let Some(device) = found else {
            return Err(End::Refused(format!("there is no device {}", clean(name))));
        };
        self.clients[key].kind = Kind::Manager;
        self.mads.ports.insert(key, MadPort { device: device.number(), agents: BTreeMap::new() });
        // This is answered when all processes have told which hosts they have met. The subnet consists of these.
        self.ask_everyone(key, Question::Hosts)
    }

    /// A program registers for a class, and perhaps for requests. Refused if another has registered for the same requests (Linux, mad.c).
    pub(in crate::host::service) fn register_mads(&mut self, key: usize, filter: MadFilter) {
        let Some(device) = self.mads.ports.get(&key).map(|port| port.device) else { return };
        let same = self.mads.ports.values().filter(|port| port.device == device);
        let mut agents = same.flat_map(|port| port.agents.values());
        let clashes = |other: &Agent| {
            let MadFilter { class, version, oui, methods } = other.filter;
            (class, version, oui) == (filter.class, filter.version, filter.oui)
                && methods & filter.methods != 0
        };
        let is_taken = agents.any(clashes);
        self.mads.last = self.mads.last.wrapping_add(1).max(1);
        let agent = Agent { filter, tid: self.mads.last };
        let Some(port) = self.mads.ports.get_mut(&key) else { return };
        let free = (0..MAX_AGENTS).find(|number| !is_taken && !port.agents.contains_key(number));
        if let Some(number) = free {
            port.agents.insert(number, agent);
        }
        self.answer(key, &ToClient::Registered { agent: free });
    }

    /// A program ends a registration.
    pub(in crate::host::service) fn unregister_mads(&mut self, key: usize, agent: u32) {
        if let Some(port) = self.mads.ports.get_mut(&key) {
            port.agents.remove(&agent);
        }
        self.mads.pending.retain(|pending| (pending.key, pending.mad.agent) != (key, agent));
    }

    /// A connection has ended.
    pub(in crate::host::service) fn forget_mads_of(&mut self, key: usize) {
        self.mads.ports.remove(&key);
        self.mads.pending.retain(|pending| pending.key != key);
    }

    /// A program sends a datagram.
    pub(in crate::host::service) fn submit_mad(&mut self, key: usize, mut managed: ManagedMad) {
        let Some(port) = self.mads.ports.get(&key) else { return };
        let Some(agent) = port.agents.get(&managed.agent).copied() else { return };
        let (Some(mut mad), device) = (Mad::of(&managed.bytes), port.device) else { return };
        if !mad.is_response() {
            mad = mad.with_tid(u64::from(agent.tid) << 32 | mad.tid() & 0xffff_ffff);
            managed.bytes = mad.0.to_vec();
        }
        let Some(device) = device_of(device) else {
            // The device does not exist any more, so there will be no answer.
            self.expect(key, managed, None);
            return;
        };
        if matches!(mad.class(), class::SMP | class::SMP_DIRECTED) {
            self.manage_subnet(key, managed, &mad, &device);
            return;
        }
        // The counters of the Ethernet are not known.
        if managed.address.gid.is_none() && managed.address.lid == SWITCH_LID {
            match mad.unmatched() {
                Some(answer) => self.give_mad(key, ManagedMad { bytes: answer.0.to_vec(), ..managed }),
                None if mad.is_response() => {}
                None => self.expect(key, managed, None),
            }
            return;
        }
        let to = self.place(&managed.address, &device);
        let origin = to.and_then(|to| self.way(&device, to, &managed.address));
        if !mad.is_response() {
            self.expect(key, managed, to);
        }
        if let Some(origin) = origin {
            self.send_mad(&origin, &mad);
        }
    }

    /// The destination that a program gave.
    fn place(&self, address: &MadAddress, device: &Device) -> Option<IpAddr> {
        match address.gid {
            Some(gid) => self.address_of_gid(gid),
            None => self.mads.lids.address(address.lid, device),
        }
    }

    /// The address of a device by which another address is reached.
    fn way(&self, device: &Device, to: IpAddr, address: &MadAddress) -> Option<Origin> {
        let local = device.source_for(to)?;
        let table = self.config.pkeys_of(device.netdev());
        let pkey = table.get(usize::from(address.pkey_index)).or_else(|| table.first()).copied();
        let by_level = || {
            let lanes = self.config.host_fabric();
            let lanes = lanes.fabric().lanes();
            lanes.vl(address.sl).map_or(0, |vl| lanes.traffic_class(vl))
        };
        let is_scoped = matches!(to, IpAddr::V6(v6) if v6.is_unicast_link_local());
        Some(Origin {
            device: device.number(),
            local,
            remote: to,
            ifindex: if is_scoped { device.interface().index } else { 0 },
            pkey: pkey.unwrap_or(Pkey::DEFAULT.0),
            tos: if address.traffic_class == 0 { by_level() } else { address.traffic_class },
        })
    }

    /// Sends a datagram to another host, or handles it here if it is for this host.
    fn send_mad(&mut self, to: &Origin, mad: &Mad) {
        if to.is_own() {
            self.take_mad(to, mad);
            return;
        }
        let Origin { local, remote, ifindex, pkey, tos, .. } = *to;
        self.dispatch_letter(&Letter { local, remote, ifindex, pkey, tos, mad: mad.0 });
    }

    /// Number and interface of our device with this address.
    fn device_at(&mut self, address: IpAddr) -> Option<(usize, String)> {
        let find = |all: &[Device]| {
            let has = |device: &&Device| device.addresses().any(|own| own == address);
            let loopback = |device: &&Device| device.interface().loopback && address.is_loopback();
            let found = all.iter().find(has).or_else(|| all.iter().find(loopback));
            found.map(|device| (device.number(), device.netdev().to_owned()))
        };
        // An address that is not listed is a new one, unless it is that of a group.
        if let Some(all) = self.mads.listed()
            && let found = find(all)
            && (found.is_some() || address.is_multicast())
        {
            return found;
        }
        let all = devices_anew().unwrap_or_default();
        let found = find(&all);
        self.mads.devices = Some((Instant::now(), all));
        found
    }

    /// A datagram that is not the connection manager's has arrived at queue pair 1.
    pub(in crate::host::service) fn handle_mad(&mut self, meta: &RunMeta, packet: &Packet<'_>) {
        // This is checked before anything is looked up. Subnet management does not use this queue pair.
        let has_class = |mad: &Mad| !matches!(mad.class(), class::SMP | class::SMP_DIRECTED);
        let is_general = packet.ext.deth.qkey == Qkey::GSI && packet.ext.deth.src_qp == Qpn::GSI;
        // A program of this host asks by its connection. What another user's program sends from our address would be taken for that.
        let is_forged = meta.src == meta.dst;
        let Some(mad) = Mad::of(packet.payload).filter(has_class).filter(|_| is_general && !is_forged) else {
            self.counters.dropped += 1;
            return;
        };
        let is_it = |key: &u16| packet.bth.pkey.matches(Pkey(*key));
        let at = self.device_at(meta.dst);
        // The answer has our key, not the sender's: only one of the two has to be a full member.
        let key_at = |netdev: &str| self.config.pkeys_of(netdev).iter().copied().find(is_it);
        let Some((device, pkey)) = at.and_then(|(number, netdev)| Some((number, key_at(&netdev)?))) else {
            self.counters.dropped += 1;
            return;
        };
        // The system names the interface of the address for what crosses the loopback. The answer would leave by it, and get lost.
        let listed = self.mads.listed().unwrap_or_default();
        let is_ours = listed.iter().any(|device| device.addresses().any(|own| own == meta.src));
        let is_local = meta.src.is_loopback() || is_ours;
        let origin = Origin {
            device,
            local: meta.dst,
            remote: meta.src,
            ifindex: if is_local { 0 } else { meta.ifindex },
            pkey,
            // Without what congestion has made of it.
            tos: meta.tos & !3,
        };
        self.counters.managed += 1;
        self.take_mad(&origin, &mad);
    }

    /// Gives a datagram to the program that waits for it, or answers it.
    fn take_mad(&mut self, from: &Origin, mad: &Mad) {
        if mad.is_response() {
            self.complete(from, mad, respond::length_of(mad));
            return;
        }
        let wanted = |agent: &Agent| {
            let MadFilter { class, version, oui, methods } = agent.filter;
            let bit = 1_u128.checked_shl(mad.method().into()).unwrap_or(0);
            (class, version) == (mad.class(), mad.version()) && oui == mad.oui() && methods & bit != 0
        };
        let ports = self.mads.ports.iter().filter(|(_, port)| port.device == from.device);
        let mut agents =
            ports.flat_map(|(key, port)| port.agents.iter().map(|(number, agent)| (*key, *number, *agent)));
        if let Some((key, agent, _)) = agents.find(|(.., agent)| wanted(agent)) {
            let address = self.address_from(from, Lids::of_stranger);
            self.give_mad(key, ManagedMad { agent, address, bytes: mad.0.to_vec(), ..ManagedMad::default() });
            return;
        }
        self.respond(from, mad);
    }

    /// The source of a datagram, in the form for programs.
    fn address_from(&mut self, from: &Origin, lid_of: fn(&mut Lids, IpAddr, &Device) -> u16) -> MadAddress {
        let device = self.mads.own_device(from.device);
        let lid = device.as_ref().map_or(0, |device| lid_of(&mut self.mads.lids, from.remote, device));
        let table = device.as_ref().map_or(&[][..], |device| self.config.pkeys_of(device.netdev()));
        let pkey_index = table.iter().position(|key| *key == from.pkey).unwrap_or(0);
        MadAddress {
            qpn: 1,
            qkey: Qkey::GSI.0,
            lid,
            gid: Some(crate::Gid::from(from.remote).0),
            traffic_class: from.tos,
            pkey_index: pkey_index as u16,
            ..MadAddress::default()
        }
    }

    /// Sends a message to a program, unless it does not read.
    fn give_mad(&mut self, key: usize, managed: ManagedMad) {
        let has_room = |client: &super::clients::Client| client.queue.len() < MOST_UNREAD;
        if self.clients.get(key).is_none_or(|client| !has_room(client)) {
            self.counters.dropped += 1;
            return;
        }
        debug_assert!(encode(&managed).len() < crate::host::message::MAX_MESSAGE);
        self.answer(key, &ToClient::Mad(managed));
    }
}
