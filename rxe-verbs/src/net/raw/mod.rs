//! The link of raw Ethernet frames. Its packet sockets carry RoCEv1 and RoCEv2 and show every header. They need CAP_NET_RAW.
//!
//! Each process has its own packet sockets. Their filter accepts the frames of the process's slot, so several processes and the
//! system's own traffic share the interfaces. The link also has sockets bound to port 4791. Without them the kernel would
//! answer RoCEv2 packets with ICMP "port unreachable". Their filter drops the packets that arrive as frames. Two kinds of
//! packets still arrive by port 4791. Where the host service hands out slots, the service has to see connection requests. And
//! where the kernel cannot deliver merged frames to packet sockets, all of RoCEv2 arrives by the port (see [`receive`]).
//!
//! Frames leave through the interface's queue like all other frames. The kernel segments batches (PACKET_VNET_HDR, Linux 6.2),
//! or this module writes a head for each packet. Received packets are not copied out of the receive buffers. RoCEv2 packets to
//! this host itself leave by the sockets of port 4791.
//!
//! Read next: [`frame`] (headers), [`filter`] (BPF), [`receive`], [`neighbour`] (MAC addresses), [`waiting`].

mod drops;
mod filter;
pub(super) mod frame;
mod neighbour;
mod receive;
mod record;
mod waiting;

use core::net::IpAddr;
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rxe_core::wire::Encapsulation;

pub use self::drops::RawDrops;
use self::filter::Wanted;
use self::frame::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ROCE_V1, Head, IPV4, IPV6, UDP};
pub(super) use self::neighbour::Neighbours;
use self::neighbour::{Hop, NoHop, station_of_group};
use self::record::Recorder;
use self::waiting::{Waiting, way};
use super::error::{OpenError, SendError};
use super::udp::{self, doing};
use super::{Capabilities, Capture, Ident, Link, Path, RecvBatch, Transmit, UdpConfig, UdpLink, check_batch};
use crate::sys::{
    kept::Kept,
    message::{Name, send_each_headed},
    packet::{PacketSocket, Scope, link_name},
    socket::{attach_filter, receive_drops},
};

/// Both encapsulations.
const BOTH: &[Encapsulation] = &[Encapsulation::V2, Encapsulation::V1];
/// Most packets of one batch: as many as a UDP socket segments.
const SEGMENTS: u16 = 128;
/// Most bytes of one batch: the largest UDP payload of an IPv6 packet.
const LARGEST: usize = 65_535 - IPV6 - UDP;
/// A frame with a longer packet holds several merged packets: no interface has so large an MTU.
const LARGEST_PACKET: usize = 16 * 1024;
/// Every this many calls, all sockets are read, even if one of them is busy.
const FAIRNESS: u8 = 8;
/// Most destinations that are remembered as this host. When there are more, all are forgotten and found again.
const MOST_HERE: usize = 4096;

/// A link of packet sockets.
#[derive(Debug)]
pub struct RawLink {
    /// Packet sockets, each with its Ethertype.
    sockets: Vec<(u16, Kept<PacketSocket>)>,
    /// The sockets of port 4791.
    port: UdpLink,
    /// The sockets of `port` are members of the host service's group.
    shared: bool,
    /// Top byte of the process's queue pair numbers.
    slot: u8,
    /// If set, the link accepts packets to this address alone (and to groups).
    only: Option<IpAddr>,
    /// Which sockets deliver RoCEv2 packets.
    v2: receive::V2,
    /// Destinations that are this host itself, with the `ifindex` of their batches.
    here: HashSet<(IpAddr, u32)>,
    neighbours: Neighbours,
    /// Batches whose neighbour the kernel is looking for.
    waiting: Waiting,
    capabilities: Capabilities,
    drops: RawDrops,
    recorder: Option<Recorder>,
    /// Index of the socket that had traffic last.
    busy: usize,
    /// Calls of `recv`, modulo 256.
    calls: u8,
    heads: Vec<Head>,
}

impl RawLink {
    /// Opens a link for the queue pairs of `slot`. `port` has the sockets of port 4791. `shared` says that those sockets are
    /// members of the host service's group.
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
            // The host service sees no frames of RoCEv1, so packets to QP 1 and to groups have to come by this socket.
            let all = !shared || ethertype == ETHERTYPE_ROCE_V1;
            let wanted = Wanted { slot: Some(slot), gsi: all, groups: all, only };
            let filter = filter::of_frames(ethertype, wanted);
            let scope = Scope { ethertype, ifindex: 0, filter: &filter };
            let socket =
                PacketSocket::open(scope, config.features.vnet).map_err(|source| match source.kind() {
                    io::ErrorKind::PermissionDenied => OpenError::RawForbidden { source },
                    _ => OpenError::System { action: "open a packet socket", source },
                })?;
            udp::set_buffers(socket.as_fd(), config);
            sockets.push((ethertype, Kept::new(socket)));
        }
        let filter = filter::of_port(shared, None);
        for socket in port.sockets() {
            attach_filter(socket, &filter).map_err(doing("filter port 4791"))?;
        }
        if !shared {
            // Nothing reads the port from now on. Packets that came before the filter would keep it readable for ever.
            let mut early = RecvBatch::default();
            while port.recv(&mut early).is_ok_and(|count| count > 0) {}
        }
        let vnet = sockets.iter().all(|(_, socket)| socket.vnet);
        let granted = |(_, socket): &(u16, Kept<PacketSocket>)| udp::receive_buffer(socket.as_fd());
        let capabilities = Capabilities {
            encapsulations: BOTH,
            gso: vnet && config.features.gso,
            gro: vnet,
            max_segments: SEGMENTS,
            max_batch_bytes: LARGEST,
            // This module writes the identifications, or the kernel counts them up when it segments a batch.
            ident: Ident::Sequential,
            recv_buffer: sockets.iter().map(granted).min().unwrap_or(0),
            ..port.capabilities().clone()
        };
        let neighbours = Neighbours::new().map_err(doing("open rtnetlink"))?;
        let waiting = Waiting::new().map_err(doing("make a timer"))?;
        let drops = RawDrops::default();
        let mut link = Self {
            sockets,
            port,
            shared,
            slot,
            only,
            v2: receive::V2::Frames,
            here: HashSet::new(),
            neighbours,
            waiting,
            capabilities,
            drops,
            recorder: None,
            busy: 0,
            calls: 0,
            heads: Vec::new(),
        };
        if !vnet {
            link.take_by_port().map_err(doing("filter port 4791"))?;
        }
        Ok(link)
    }

    /// Checks whether this thread may open packet sockets.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW, or another error of the system.
    pub fn check_rights() -> io::Result<()> {
        PacketSocket::open(Scope { ethertype: 0, ifindex: 0, filter: &[] }, false).map(drop)
    }

    /// Sends a batch, or queues it while the kernel looks for the neighbour.
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
        self.note_place(batch, hop.local)?;
        if hop.local && batch.encapsulation == Encapsulation::V2 {
            return self.send_by_port(batch, bytes);
        }
        self.send_frames(batch, &hop, bytes)
    }

    /// Tries to send the waiting batches again.
    fn send_waiting(&mut self) {
        if !self.waiting.are_due() {
            return;
        }
        // Destinations whose neighbour was not found. Later batches to the same destination fail without another search.
        let mut lost = Vec::new();
        for (batch, bytes) in self.waiting.take() {
            let sent = match lost.iter().find(|(to, _)| *to == way(&batch)) {
                Some((_, source)) => Err(SendError::Unreachable { source: again(source) }),
                None => self.send_or_wait(&batch, &bytes),
            };
            // The rest of a batch that met a full send buffer would need new ICRCs. It is lost, like a packet on a congested
            // link.
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
                // Linux before 6.2 does not segment such frames.
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

    /// Remembers whether a destination is this host. A batch to this host leaves by the UDP sockets, whose [`Path`] may differ.
    fn note_place(&mut self, batch: &Transmit, local: bool) -> Result<(), SendError> {
        let to = (batch.dst, batch.ifindex);
        if self.here.contains(&to) == local {
            return Ok(());
        }
        let before = self.path(batch.dst, batch.ifindex);
        if self.here.len() >= MOST_HERE {
            self.here.clear();
        }
        _ = if local { self.here.insert(to) } else { self.here.remove(&to) };
        // The batch was built for the path that was known before. If the path changed, its ICRCs may be wrong.
        let same = self.path(batch.dst, batch.ifindex) == before;
        if same { Ok(()) } else { Err(SendError::SegmentationRefused { sent: 0 }) }
    }

    /// Sends to this host itself. The kernel's IP layer drops frames that come in with one of its own IPv4 addresses as source,
    /// even on the loopback. So processes that receive by UDP socket would not get them.
    fn send_by_port(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        let ident = self.port.path(batch.dst, batch.ifindex).ident;
        let result = self.port.send(batch, bytes);
        if let Some(recorder) = &mut self.recorder {
            let sent = result.as_ref().map_or_else(SendError::sent, |()| usize::MAX);
            recorder.sent_by_port(batch, ident, bytes, sent);
        }
        result
    }

    /// Joins or leaves a group on the socket of port 4791. RoCEv1's groups are all IPv6 addresses. Where the port has no socket
    /// of the group's family, the packet socket asks the interface for the frames of the group's MAC address.
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
}

/// A copy of an error; `io::Error` is not `Clone`.
fn again(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

impl Link for RawLink {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn path(&self, dst: IpAddr, ifindex: u32) -> Path {
        match self.here.contains(&(dst, ifindex)) {
            true => self.port.path(dst, ifindex),
            false => self.capabilities.path(),
        }
    }

    fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        check_batch(batch, bytes, self.path(batch.dst, batch.ifindex), self.capabilities.limits())?;
        self.send_or_wait(batch, bytes)
    }

    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        into.clear();
        self.send_waiting();
        self.receive_all(into)
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        // The filter of a port that delivers nothing drops all packets, so the port is never readable.
        let port = self.port.poll_fds();
        let own = self.sockets.iter().map(|(_, socket)| socket.as_fd());
        own.chain(port).chain([self.waiting.as_fd()]).collect()
    }

    fn drops(&self) -> u64 {
        let own = self.sockets.iter().map(|(_, socket)| receive_drops(socket.as_fd()).map_or(0, u64::from));
        own.sum::<u64>() + self.port_drops()
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
        // The kernel announces the membership to the network and the interface. The socket filter accepts packets to all
        // groups.
        self.change_member(group, ifindex, true, UdpLink::join)
    }

    fn leave(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        self.change_member(group, ifindex, false, UdpLink::leave)
    }
}
