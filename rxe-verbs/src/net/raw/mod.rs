//! The link of raw Ethernet frames: packet sockets, which carry both RoCEs and show every header (CAP_NET_RAW).
//!
//! Each process has sockets of its own, whose filter takes the frames of its slot; so several processes and the system's own
//! traffic share the interfaces. A socket of port 4791 is there, too. It drops the same packets, and without it the kernel would
//! tell peers that nobody has the port. Where the host service hands out slots, connection requests still come by that socket,
//! because the service has to see them.
//!
//! Frames leave through the interface's queue like all others, and are cut by the kernel (PACKET_VNET_HDR, Linux 6.2) or made
//! here. Arrivals stay where the kernel has put them.

mod drops;
mod filter;
mod frame;
mod neighbour;
mod record;
mod waiting;

use core::net::IpAddr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rxe_core::wire::Encapsulation;

pub use self::drops::RawDrops;
use self::filter::Wanted;
use self::frame::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ROCE_V1, Head, IPV4, IPV6, Read, UDP, split_vnet,
};
use self::neighbour::{Hop, Neighbours, NoHop, station_of_group};
use self::record::Recorder;
use self::waiting::{Waiting, way};
use super::error::{OpenError, SendError};
use super::{Capabilities, Capture, Ident, Link, Path, RecvBatch, Transmit, UdpConfig, UdpLink, check_batch};
use crate::sys::{
    kept::Kept,
    message::{Name, send_each_headed},
    packet::{PacketSocket, PacketType, Scope, link_name},
    socket::{attach_filter, receive_drops},
};

/// Both RoCEs.
const BOTH: &[Encapsulation] = &[Encapsulation::V2, Encapsulation::V1];
/// Packets of one batch at most: as many as a socket's batch has.
const SEGMENTS: u16 = 128;
/// Bytes of one batch at most: what an IPv6 packet takes.
const LARGEST: usize = 65_535 - IPV6 - UDP;
/// A longer frame than any interface's is several packets in one.
const LARGEST_PACKET: usize = 16 * 1024;
/// Every this many calls all sockets are looked at, though one of them is busy.
const FAIRNESS: u8 = 8;

/// A link of packet sockets.
#[derive(Debug)]
pub struct RawLink {
    /// By Ethertype.
    sockets: Vec<(u16, Kept<PacketSocket>)>,
    /// The sockets of port 4791.
    port: UdpLink,
    /// They are of the host service's group.
    shared: bool,
    /// Top byte of the process's queue pair numbers.
    slot: u8,
    /// Frames of several packets are taken from port 4791: a kernel that does not know how they would be cut (Linux before 6.2)
    /// does not give them to packet sockets with a header.
    merged_by_port: bool,
    neighbours: Neighbours,
    /// What waits for them.
    waiting: Waiting,
    capabilities: Capabilities,
    drops: RawDrops,
    recorder: Option<Recorder>,
    /// The socket that had traffic last, and calls.
    busy: usize,
    calls: u8,
    heads: Vec<Head>,
}

impl RawLink {
    /// A link beside `port`, the sockets of port 4791, for the queue pairs of `slot`. `shared`: the port is one of the host
    /// service's group.
    ///
    /// # Errors
    /// [`OpenError::RawForbidden`] without CAP_NET_RAW.
    pub fn open(mut port: UdpLink, slot: u8, shared: bool, config: &UdpConfig) -> Result<Self, OpenError> {
        let v4 = config.v4.map(IpAddr::V4).filter(|ip| !ip.is_unspecified() && config.v6.is_none());
        let v6 = config.v6.map(IpAddr::V6).filter(|ip| !ip.is_unspecified() && config.v4.is_none());
        let only = v4.or(v6);
        let mut sockets = Vec::new();
        let (ipv4, ipv6) = (port.capabilities().ipv4, port.capabilities().ipv6);
        let wanted_types = [(ETHERTYPE_IPV4, ipv4), (ETHERTYPE_IPV6, ipv6), (ETHERTYPE_ROCE_V1, true)];
        for (ethertype, _) in wanted_types.into_iter().filter(|(_, is_wanted)| *is_wanted) {
            // The service sees neither frames of RoCEv1 nor groups of it.
            let all = !shared || ethertype == ETHERTYPE_ROCE_V1;
            let wanted = Wanted { slot, gsi: all, groups: all, only };
            let filter = filter::of_frames(ethertype, wanted);
            let scope = Scope { ethertype, ifindex: 0, filter: &filter };
            let socket = PacketSocket::open(scope, true).map_err(|source| match source.kind() {
                io::ErrorKind::PermissionDenied => OpenError::RawForbidden { source },
                _ => OpenError::System { action: "open a packet socket", source },
            })?;
            super::udp::set_buffers(socket.as_fd(), config);
            sockets.push((ethertype, Kept::new(socket)));
        }
        let filter = filter::of_port(shared, None);
        for socket in port.sockets() {
            attach_filter(socket, &filter)
                .map_err(|source| OpenError::System { action: "filter port 4791", source })?;
        }
        if !shared {
            // Nobody reads the port from now on: what has come before its filter would keep it readable for ever.
            let mut early = RecvBatch::default();
            while port.recv(&mut early).is_ok_and(|count| count > 0) {}
        }
        let vnet = sockets.iter().all(|(_, socket)| socket.vnet);
        let granted = |(_, socket): &(u16, Kept<PacketSocket>)| super::udp::receive_buffer(socket.as_fd());
        let capabilities = Capabilities {
            encapsulations: BOTH,
            gso: vnet && config.features.gso,
            gro: vnet,
            max_segments: SEGMENTS,
            max_batch_bytes: LARGEST,
            // Written here, or counted up by the kernel that cuts a batch.
            ident: Ident::Sequential,
            recv_buffer: sockets.iter().map(granted).min().unwrap_or(0),
            ..port.capabilities().clone()
        };
        let neighbours =
            Neighbours::new().map_err(|source| OpenError::System { action: "open rtnetlink", source })?;
        let waiting =
            Waiting::new().map_err(|source| OpenError::System { action: "make a timer", source })?;
        let drops = RawDrops::default();
        Ok(Self {
            sockets,
            port,
            shared,
            slot,
            merged_by_port: false,
            neighbours,
            waiting,
            capabilities,
            drops,
            recorder: None,
            busy: 0,
            calls: 0,
            heads: Vec::new(),
        })
    }

    /// Whether this thread may open the sockets of such a link.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW, or what else the system says.
    pub fn check_rights() -> io::Result<()> {
        PacketSocket::open(Scope { ethertype: 0, ifindex: 0, filter: &[] }, false).map(drop)
    }

    /// Sends a batch, or has it wait for the neighbour that the kernel looks for.
    fn send_or_wait(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        if self.waiting.is_before(batch) {
            return self.waiting.add(batch, bytes);
        }
        let port = self.port.socket_for(batch.dst);
        let hop = match self.neighbours.hop(batch.src, batch.dst, batch.ifindex, port) {
            Ok(hop) => hop,
            Err(NoHop::Soon) => return self.waiting.add(batch, bytes),
            Err(NoHop::None(source)) => return Err(SendError::Unreachable { source }),
        };
        let headers = match (batch.encapsulation, batch.dst) {
            (Encapsulation::V1, _) => IPV6,
            (_, IpAddr::V4(_)) => IPV4 + UDP,
            _ => IPV6 + UDP,
        };
        if batch.segment_size.min(bytes.len()) + headers > hop.mtu {
            return Err(SendError::MessageTooLong { sent: 0 });
        }
        if self.shared && hop.local && batch.encapsulation == Encapsulation::V2 && is_for_gsi(bytes) {
            return self.send_by_port(batch, bytes);
        }
        self.send_frames(batch, &hop, bytes)
    }

    /// Tries those that wait again.
    fn send_waiting(&mut self) {
        if !self.waiting.are_due() {
            return;
        }
        // Whose neighbour was not found: what waited for the same one does not have it looked for again.
        let mut lost = Vec::new();
        for (batch, bytes) in self.waiting.take() {
            let sent = match lost.iter().find(|(to, _)| *to == way(&batch)) {
                Some((_, source)) => Err(SendError::Unreachable { source: again(source) }),
                None => self.send_or_wait(&batch, &bytes),
            };
            // What a full socket leaves would have to be sealed anew: it is lost, as a packet is on a full link.
            if let Err(error) = sent {
                if let SendError::Unreachable { source } = &error {
                    lost.push((way(&batch), again(source)));
                }
                self.waiting.fail(batch.dst, error);
            }
        }
    }

    fn send_frames(&mut self, batch: &Transmit, hop: &Hop, bytes: &[u8]) -> Result<(), SendError> {
        let ethertype = match (batch.encapsulation, batch.dst) {
            (Encapsulation::V1, _) => ETHERTYPE_ROCE_V1,
            (_, IpAddr::V4(_)) => ETHERTYPE_IPV4,
            _ => ETHERTYPE_IPV6,
        };
        let Some((_, socket)) = self.sockets.iter().find(|(of, _)| *of == ethertype) else {
            return Err(SendError::Unreachable { source: io::Error::from_raw_os_error(libc::EAFNOSUPPORT) });
        };
        let name = Name::Link(link_name(ethertype, hop.ifindex));
        let ends = (hop.own, hop.next);
        let segment = batch.segment_size;
        if self.capabilities.gso && bytes.len() > segment && batch.encapsulation == Encapsulation::V2 {
            let head = Head::write(batch, ends, bytes.len(), 0, u16::try_from(segment).ok(), socket.vnet);
            match send_each_headed(socket.as_fd(), &name, &[head], bytes, bytes.len()).1 {
                // Linux before 6.2 knows no such frames.
                Some(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    self.capabilities.gso = false;
                }
                Some(error) => return Err(SendError::from_system(error, 0)),
                None => {
                    if let Some(recorder) = &mut self.recorder {
                        recorder.sent(batch, ends, bytes, (usize::MAX, true));
                    }
                    return Ok(());
                }
            }
        }
        self.heads.clear();
        let packets = bytes.chunks(segment).enumerate();
        let heads = packets.map(|(index, packet)| {
            Head::write(batch, ends, packet.len(), Ident::Sequential.of(index), None, socket.vnet)
        });
        self.heads.extend(heads);
        let (sent, error) = send_each_headed(socket.as_fd(), &name, &self.heads, bytes, segment);
        if let Some(recorder) = &mut self.recorder {
            recorder.sent(batch, ends, bytes, (sent, socket.vnet && ethertype == ETHERTYPE_IPV6));
        }
        error.map_or(Ok(()), |error| Err(SendError::from_system(error, sent)))
    }

    /// Sends to queue pair 1 of this host, whose requests the host service takes from port 4791. The kernel does not take
    /// frames from its own addresses that come in by an interface, be it the loopback.
    fn send_by_port(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        let path = self.port.path(batch.dst, batch.ifindex);
        let fits = path.ident == Ident::Sequential
            && bytes.len() <= batch.segment_size * usize::from(path.max_segments);
        // Else only the first has the ID that it gets there. The rest is sealed anew, and comes again.
        let first = if fits { bytes } else { &bytes[..batch.segment_size.min(bytes.len())] };
        self.port.send(batch, first)?;
        if let Some(recorder) = &mut self.recorder {
            recorder.sent_by_port(batch, first);
        }
        if first.len() == bytes.len() { Ok(()) } else { Err(SendError::WouldBlock { sent: 1 }) }
    }

    /// Joins or leaves a group on the socket of port 4791. Where that has not the group's family (RoCEv1's groups are all of 16
    /// bytes), the interface takes the group's frames all the same.
    fn change_member(
        &mut self,
        group: IpAddr,
        ifindex: u32,
        is_member: bool,
        change: fn(&mut UdpLink, IpAddr, u32) -> io::Result<()>,
    ) -> io::Result<()> {
        let (port, v1) = (&mut self.port, self.sockets.iter().find(|(of, _)| *of == ETHERTYPE_ROCE_V1));
        match (change(port, group, ifindex), v1, station_of_group(group)) {
            (Err(error), Some((_, socket)), Some(station)) if error.kind() == io::ErrorKind::Unsupported => {
                socket.set_member(ifindex, station, is_member)
            }
            (done, ..) => done,
        }
    }

    fn receive(&mut self, into: &mut RecvBatch, socket: usize) -> io::Result<usize> {
        let Self { sockets, drops, recorder, neighbours, .. } = self;
        let (_, socket) = &sockets[socket];
        let vnet = socket.vnet;
        let filled = into.fill_frames(socket.as_fd(), |arrival, bytes| {
            if arrival.kind == PacketType::Outgoing {
                return None;
            }
            let (seen, frame) = split_vnet(bytes, vnet).map_err(|why| drops.count(why)).ok()?;
            let read = frame::read(frame, seen.segment, LARGEST_PACKET);
            if let Some(recorder) = recorder {
                let packets = read.as_ref().ok().map(|read| (read.place.clone(), read.run.segment_size));
                recorder.arrived(frame, packets, seen.unsummed);
            }
            if arrival.kind == PacketType::Other {
                // To our own station it can only be the VLAN that is not ours.
                let own = neighbours.own(arrival.ifindex);
                let ours = own.is_some_and(|own| frame.starts_with(&own));
                *(if ours { &mut drops.other_vlan } else { &mut drops.other_station }) += 1;
                return None;
            }
            let Read { mut run, place } = read.map_err(|why| drops.count(why)).ok()?;
            run.ifindex = arrival.ifindex;
            let front = bytes.len() - frame.len();
            Some((run, front + place.start..front + place.end))
        });
        match filled {
            Err(error) if vnet && error.raw_os_error() == Some(libc::EINVAL) => {
                self.take_merged_by_port()?;
                Ok(0)
            }
            filled => filled,
        }
    }

    /// A frame of several packets has been thrown away by the kernel: from now on the socket of port 4791 gives those.
    fn take_merged_by_port(&mut self) -> io::Result<()> {
        if !self.merged_by_port {
            let filter = filter::of_port(self.shared, Some(self.slot));
            self.port.sockets().try_for_each(|socket| attach_filter(socket, &filter))?;
            self.merged_by_port = true;
        }
        Ok(())
    }

    /// Looks at the socket of port 4791 as well, where it brings anything.
    fn receive_by_port(&mut self, into: &mut RecvBatch) -> io::Result<()> {
        if self.shared || self.merged_by_port {
            let before = into.len();
            self.port.receive(into)?;
            if self.merged_by_port {
                // What is one packet has come as a frame, too.
                let slot = self.slot;
                into.keep(before, |run| run.packets().len() > 1 || run.bytes.get(5) != Some(&slot));
            }
            if let Some(recorder) = &mut self.recorder {
                into.iter().skip(before).for_each(|run| recorder.by_port(&run));
            }
        }
        Ok(())
    }
}

/// The same error once more.
fn again(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

/// Whether a batch is for queue pair 1 (all of it is for one destination).
fn is_for_gsi(packets: &[u8]) -> bool {
    packets.get(5..8) == Some(&[0, 0, 1])
}

impl Link for RawLink {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn path(&self, _dst: IpAddr, _ifindex: u32) -> Path {
        self.capabilities.path()
    }

    fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        check_batch(batch, bytes, self.capabilities.path(), self.capabilities.limits())?;
        self.send_or_wait(batch, bytes)
    }

    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        into.clear();
        self.send_waiting();
        self.calls = self.calls.wrapping_add(1);
        let all = self.calls.is_multiple_of(FAIRNESS);
        let (count, first) = (self.sockets.len(), self.busy);
        let mut any = 0;
        for socket in (0..count).map(|step| (first + step) % count) {
            let taken = self.receive(into, socket)?;
            any += taken;
            if taken > 0 {
                self.busy = socket;
                if !all {
                    return Ok(any);
                }
            }
        }
        self.receive_by_port(into)?;
        Ok(any.max(into.len()))
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        // Where nothing is wanted from the port it is never readable.
        let port = self.port.poll_fds();
        let own = self.sockets.iter().map(|(_, socket)| socket.as_fd());
        own.chain(port).chain([self.waiting.as_fd()]).collect()
    }

    fn drops(&self) -> u64 {
        self.sockets.iter().map(|(_, socket)| receive_drops(socket.as_fd()).map_or(0, u64::from)).sum()
    }

    fn frame_drops(&self) -> RawDrops {
        self.drops
    }

    fn late_error(&mut self) -> Option<(IpAddr, SendError)> {
        self.waiting.failure()
    }

    fn record(&mut self, capture: Capture) -> Option<Capture> {
        self.recorder = Some(Recorder::new(capture));
        None
    }

    fn join(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        // The kernel tells the network and the interface; the filter has let its packets through all along.
        self.change_member(group, ifindex, true, UdpLink::join)
    }

    fn leave(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        self.change_member(group, ifindex, false, UdpLink::leave)
    }
}
