//! The service's answers for the host.

use super::{COUNTING_PAUSE, Mads, Origin, lids::Lids};
use crate::{
    Device, Gid, PortState,
    device::{VENDOR_ID, VENDOR_PART_ID},
    host::{
        attendant::Letter,
        files::port_counts,
        mads::ManagedMad,
        query::PathQuestion,
        service::{Service, ask::Question},
    },
};
use rxe_fabric::{
    Fabric,
    mad::{
        Destination, MAD_LEN, Mad, Node, PathAnswer, PathRequest, PortCounts, SaRequest, Subnet, answer_perf,
        answer_sa, answer_smp, class, first_segment, lid_of, revision_of, sa_request, status,
    },
};
use std::{
    fs,
    net::IpAddr,
    time::{Duration, Instant},
};

/// Most other hosts that are shown.
const MOST_HOSTS: usize = 128;
/// Most destinations of the paths in an answer to another host: what one datagram holds.
const MOST_PATHS: usize = 3;
/// Most questions about counters that wait.
const MOST_COUNTING: usize = 256;
/// The default GID prefix, which stands before a GUID.
const DEFAULT_PREFIX: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];

/// The name of the host.
fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// Number of valid bytes of an answer. For a table in segments its header says it; for others all bytes are valid.
pub(super) fn length_of(mad: &Mad) -> usize {
    // The offset of the length of the data, in classes with segments, and the number of bytes before the data.
    const HEADER: usize = 36;
    let is_segment = mad.class() == class::SA && mad.0[25] == 1 && mad.0[26] & 1 != 0;
    let said = u32::from_be_bytes([mad.0[32], mad.0[33], mad.0[34], mad.0[35]]);
    let length = HEADER.saturating_add(said as usize);
    if is_segment && (HEADER + 20..=MAD_LEN).contains(&length) { length } else { MAD_LEN }
}

impl Service {
    /// Answers a request that no program has registered for.
    pub(super) fn respond(&mut self, from: &Origin, mad: &Mad) {
        // Work for other hosts is bounded, whatever its result.
        if !from.is_own() && !self.mads.answers.take() {
            self.counters.dropped += 1;
            return;
        }
        let answer = match mad.class() {
            class::PERF => {
                self.count_for(from, mad);
                return;
            }
            class::SA => {
                let Some(device) = self.mads.own_device(from.device) else { return };
                // Another host may ask as often as it likes, so nothing is remembered for it.
                if from.is_own() {
                    self.give_lids(&device);
                }
                let paths = match sa_request(mad) {
                    SaRequest::Paths(request) => self.paths(&request, from, &device),
                    SaRequest::Other => Some(Vec::new()),
                };
                match paths {
                    Some(paths) => {
                        let fabric = self.config.host_fabric();
                        answer_sa(mad, &self.subnet(&device, fabric.fabric()), &paths)
                    }
                    None => Some(mad.reply(status::NO_RESOURCES).0.to_vec()),
                }
            }
            _ => mad.unmatched().map(|mad| mad.0.to_vec()),
        };
        if let Some(answer) = answer {
            self.answer_mad(from, mad, answer);
        }
    }

    /// Sends an answer to the sender of the request. A program of this host gets it however long it is.
    fn answer_mad(&mut self, to: &Origin, request: &Mad, answer: Vec<u8>) {
        let mad = first_segment(request, &answer);
        if to.is_own() {
            let header = Mad::of(&answer[..answer.len().min(MAD_LEN)]).unwrap_or(mad);
            self.finish(to, &header, answer);
        } else {
            let Origin { local, remote, ifindex, pkey, tos, .. } = *to;
            self.dispatch_letter(&Letter { local, remote, ifindex, pkey, tos, mad: mad.0 });
        }
    }

    /// Answers subnet management requests of this host's programs. They never leave the host.
    pub(super) fn manage_subnet(&mut self, key: usize, managed: ManagedMad, mad: &Mad, device: &Device) {
        if mad.is_response() {
            return;
        }
        self.give_lids(device);
        let fabric = self.config.host_fabric();
        let answer = answer_smp(mad, managed.address.lid, &self.subnet(device, fabric.fabric()));
        match answer {
            Some(answer) => {
                self.give_mad(key, ManagedMad { status: 0, bytes: answer.0.to_vec(), ..managed });
            }
            None => self.expect(key, managed, None),
        }
    }

    /// Gives each known host a LID of its own. This comes before the subnet is shown to a program, so that no host is left out, and so
    /// that the answer about a host agrees with that of the host.
    fn give_lids(&mut self, device: &Device) {
        for (address, ..) in self.known_hosts().into_iter().take(MOST_HOSTS) {
            self.mads.lids.of(address, device);
        }
    }

    /// The subnet as known to a device's port.
    fn subnet<'a>(&'a self, device: &Device, fabric: &'a Fabric) -> Subnet<'a> {
        let host = host_name();
        let own = Node {
            guid: u64::from_be_bytes(device.guid()),
            lid: Lids::own(device),
            gid: device.gids().get(0).0,
            name: format!("{host} {}", device.name()),
        };
        let mut others: Vec<Node> = Vec::new();
        for (address, guid, name) in self.known_hosts() {
            let lid = self.mads.lids.known(address, device).unwrap_or_else(|| lid_of(address));
            let is_new = lid != own.lid && others.iter().all(|other| other.lid != lid);
            if is_new && others.len() < MOST_HOSTS {
                others.push(Node { guid, lid, gid: Gid::from(address).0, name });
            }
        }
        Subnet {
            own,
            netdev: device.netdev().to_owned(),
            is_active: device.state() == PortState::Active,
            mtu: device.active_mtu().code(),
            pkeys: self.config.pkeys_of(device.netdev()),
            lanes: fabric.lanes(),
            tables: fabric.tables(),
            others,
            model: (VENDOR_ID, VENDOR_PART_ID as u16),
            revision: revision_of(env!("CARGO_PKG_VERSION")),
        }
    }

    /// Hosts that were met, and those that the configuration names: address, GUID and name. This host is not among them.
    fn known_hosts(&self) -> Vec<(IpAddr, u64, String)> {
        let own: Vec<IpAddr> = self
            .mads
            .own_devices()
            .iter()
            .flat_map(|device| device.addresses().collect::<Vec<_>>())
            .collect();
        let fabric = self.config.host_fabric();
        let named = fabric.ports();
        let name_of = |address: IpAddr| {
            let known = named.iter().find(|known| known.addresses.contains(&address));
            known.map(|known| known.port.name.clone()).filter(|name| !name.is_empty())
        };
        let met = self.peers.reports(Instant::now()).into_iter().map(|peer| (peer.address, peer.guid));
        let told = named.iter().filter_map(|known| {
            Some((*known.addresses.first()?, known.port.guids.first().copied().unwrap_or(0)))
        });
        let all = met.chain(told).filter(|(address, _)| !own.contains(address) && !address.is_loopback());
        all.map(|(address, guid)| (address, guid, name_of(address).unwrap_or_else(|| address.to_string())))
            .collect()
    }

    /// The host with a GID, which is an address, or the default prefix and the GUID of a known host.
    pub(super) fn address_of_gid(&self, gid: [u8; 16]) -> Option<IpAddr> {
        let (prefix, guid) = gid.split_at(8);
        let guid = u64::from_be_bytes(guid.try_into().unwrap_or_default());
        if prefix == DEFAULT_PREFIX {
            let own = self.mads.own_devices();
            let of_own = own.iter().find(|device| u64::from_be_bytes(device.guid()) == guid);
            let others = self.known_hosts();
            let of_other =
                || others.iter().find(|(_, known, _)| *known == guid).map(|(address, ..)| *address);
            // The lower half of an IPv4 GID, by which rules may name a port.
            let of_half = || (guid >> 32 == 0xffff).then(|| IpAddr::from((guid as u32).to_be_bytes()));
            let found =
                of_own.and_then(|device| device.gids().get(0).address()).or_else(of_other).or_else(of_half);
            if found.is_some() {
                return found;
            }
        }
        Gid(gid).address()
    }

    /// The paths that a request asks for. If it names no ends, those from this host to all others. `None` if they are too many for
    /// another host: a part of them would look like all.
    fn paths(&mut self, request: &PathRequest, asker: &Origin, device: &Device) -> Option<Vec<PathAnswer>> {
        let place = |end: Destination| match end {
            Destination::Gid(gid) => self.address_of_gid(gid),
            Destination::Lid(lid) => self.mads.lids.address(lid, device),
        };
        let from = match request.from {
            Some(end) => place(end),
            None => Some(asker.remote),
        };
        let to = match request.to {
            Some(end) => Vec::from_iter(place(end)),
            None => {
                let hosts = self.known_hosts().into_iter().map(|(address, ..)| address).take(MOST_HOSTS);
                [Some(asker.local)].into_iter().flatten().chain(hosts).collect()
            }
        };
        let Some(from) = from else { return Some(Vec::new()) };
        if !asker.is_own() && to.len() > MOST_PATHS {
            return None;
        }
        let devices = self.mads.own_devices();
        let path = |to| self.path(request, asker, (from, to), device, &devices);
        Some(to.into_iter().filter_map(path).collect())
    }

    fn path(
        &mut self,
        request: &PathRequest,
        asker: &Origin,
        (from, to): (IpAddr, IpAddr),
        device: &Device,
        devices: &[Device],
    ) -> Option<PathAnswer> {
        let &PathRequest { service_id, pkey, qos_class, sl, .. } = request;
        let question = PathQuestion { from, to, service_id, pkey, qos_class, sl, as_rdma_cm: false };
        let found = self.config.path_among(&question, devices).ok()?;
        let gid = |end: Option<Destination>, address: IpAddr| match end {
            Some(Destination::Gid(gid)) => gid,
            _ => Gid::from(address).0,
        };
        let mut lid = |address| match asker.is_own() {
            true => self.mads.lids.of(address, device),
            // Another host may name any address, so these are not remembered.
            false => self.mads.lids.known(address, device).unwrap_or_else(|| lid_of(address)),
        };
        let lids = (lid(from), lid(to));
        Some(PathAnswer {
            service_id: service_id.unwrap_or(0),
            gids: (gid(request.from, from), gid(request.to, to)),
            lids,
            traffic_class: found.path.traffic_class,
            pkey: found.path.pkey,
            sl: found.path.sl,
            mtu: found.path.mtu,
            rate: found.path.rate,
            packet_life: found.packet_life,
        })
    }

    /// A question about counters waits until all processes have told theirs.
    fn count_for(&mut self, from: &Origin, mad: &Mad) {
        if answer_perf(mad, &PortCounts::default()).is_none() {
            return;
        }
        if self.mads.counting_next.len() >= MOST_COUNTING {
            self.counters.dropped += 1;
            return;
        }
        self.mads.counting_next.push((*from, *mad));
        self.count_next();
    }

    /// Asks the processes for their counters, if a question waits for that and they are not asked already. Each question costs each process
    /// a list of all its queue pairs, so other hosts have to wait between two.
    pub(super) fn count_next(&mut self) {
        if self.until_counting() == Some(Duration::ZERO) {
            self.mads.counted_at = Some(Instant::now());
            self.mads.counting = core::mem::take(&mut self.mads.counting_next);
            self.ask_all(None, Question::Counters);
        }
    }

    /// The time until the processes are to be asked. `None` if no question waits, or if it waits for the end of a round.
    pub(super) fn until_counting(&self) -> Option<Duration> {
        let Mads { counting, counting_next, counted_at, .. } = &self.mads;
        if !counting.is_empty() || counting_next.is_empty() {
            return None;
        }
        let since = counted_at.map_or(COUNTING_PAUSE, |at| at.elapsed());
        let is_ours = counting_next.iter().any(|(from, _)| from.is_own());
        Some(if is_ours { Duration::ZERO } else { COUNTING_PAUSE.saturating_sub(since) })
    }

    /// All processes have told their counters.
    pub(in crate::host::service) fn end_counting(&mut self) {
        let sums = self.ledger.sums();
        for (from, mad) in core::mem::take(&mut self.mads.counting) {
            let counted = sums.get(&from.device).map(port_counts).unwrap_or_default();
            let base = self.mads.bases.get(&from.device).copied().unwrap_or_default();
            let Some((answer, reset)) = answer_perf(&mad, &counted.since(&base)) else { continue };
            self.mads.bases.insert(from.device, base.reset_to(&counted, reset));
            self.answer_mad(&from, &mad, answer.0.to_vec());
        }
        self.count_next();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_as_long_as_it_says() {
        let mut mad = Mad([0; MAD_LEN]);
        (mad.0[1], mad.0[25], mad.0[26]) = (class::SA, 1, 1);
        for (said, length) in [(20_u32, 56), (84, 120), (220, 256), (221, 256), (19, 256), (u32::MAX, 256)] {
            mad.0[32..36].copy_from_slice(&said.to_be_bytes());
            assert_eq!(length_of(&mad), length, "{said}");
        }
        mad.0[26] = 0;
        assert_eq!(length_of(&mad), 256);
    }
}
