//! Receiving by packet sockets, and for RoCEv2 sometimes by the sockets of port 4791.
//!
//! Linux before 6.2 cannot tell a packet socket how to segment a frame of several packets, and drops the frame. (Such a frame
//! comes from a sender on the same host that left segmentation to the kernel, or from an interface that merges packets.) The
//! sockets of port 4791 receive these packets, merged or one by one as their options say. So from the first such frame on, they
//! deliver all of RoCEv2. Taking only the merged packets from them would reorder packets. It would also be wrong where the UDP
//! socket merges nothing.

use std::io;
use std::os::fd::AsFd;

use super::drops::Unusable;
use super::filter::{self, Wanted};
use super::frame::{self, ETHERTYPE_IPV4, ETHERTYPE_ROCE_V1, Read, split_vnet};
use super::{FAIRNESS, LARGEST_PACKET, RawLink};
use crate::net::{Link, RecvBatch};
use crate::sys::{packet::PacketType, socket::attach_filter};

/// Most frames dropped by the kernel (EINVAL) that one call counts.
const MOST_LOST: usize = 64;

/// Which sockets deliver RoCEv2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum V2 {
    /// Packet sockets.
    Frames,
    /// The port, as soon as all earlier frames have been read.
    Changing,
    /// The port. `drops` is what its sockets had dropped before, which includes the packets that their filter refused.
    Port { drops: u64 },
}

impl RawLink {
    /// Receives RoCEv2 by the sockets of port 4791 from now on. The link does so by itself at the first merged frame that the
    /// kernel cannot deliver. Frames that have arrived are not lost. Where a socket is bound to one address, it receives no
    /// multicast, so packets to groups still come as frames.
    ///
    /// # Errors
    /// The system's error when a filter cannot be attached.
    pub fn take_by_port(&mut self) -> io::Result<()> {
        if self.v2 != V2::Frames {
            return Ok(());
        }
        // A packet that arrives between the two changes of filters is lost, as on any network. None arrives twice.
        for (ethertype, socket) in self.sockets.iter().filter(|(of, _)| *of != ETHERTYPE_ROCE_V1) {
            let groups = !self.shared && !self.port.hears_groups(*ethertype == ETHERTYPE_IPV4);
            let wanted = Wanted { slot: None, gsi: false, groups, only: self.only };
            attach_filter(socket.as_fd(), &filter::of_frames(*ethertype, wanted))?;
        }
        let filter = filter::of_port(self.shared, Some(self.slot));
        self.port.sockets().try_for_each(|socket| attach_filter(socket, &filter))?;
        self.v2 = V2::Changing;
        Ok(())
    }

    /// Appends what has arrived. Returns the number of frames and runs, dropped frames included. 0 means that every socket was
    /// empty.
    pub(super) fn receive_all(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        self.calls = self.calls.wrapping_add(1);
        let all = self.calls.is_multiple_of(FAIRNESS);
        let (count, first) = (self.sockets.len(), self.busy);
        let (mut any, mut v2) = (0, 0);
        for socket in (0..count).map(|step| (first + step) % count) {
            let taken = self.receive(into, socket)?;
            any += taken;
            if self.sockets[socket].0 != ETHERTYPE_ROCE_V1 {
                v2 += taken;
            }
            if taken > 0 {
                self.busy = socket;
                if !all {
                    return Ok(any);
                }
            }
        }
        match self.v2 {
            V2::Frames if !self.shared => return Ok(any),
            V2::Changing if v2 > 0 || into.is_full() => return Ok(any),
            V2::Changing => self.v2 = V2::Port { drops: self.port.drops() },
            V2::Frames | V2::Port { .. } => {}
        }
        let before = into.len();
        let by_port = self.port.receive(into);
        if let Some(recorder) = &mut self.recorder {
            into.iter().skip(before).for_each(|run| recorder.by_port(&run));
        }
        Ok(any + by_port?)
    }

    /// Appends what one packet socket has.
    fn receive(&mut self, into: &mut RecvBatch, socket: usize) -> io::Result<usize> {
        for _ in 0..MOST_LOST {
            match self.receive_frames(into, socket) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    self.drops.count(Unusable::Merged);
                    self.take_by_port()?;
                }
                done => return done,
            }
        }
        Ok(MOST_LOST)
    }

    fn receive_frames(&mut self, into: &mut RecvBatch, socket: usize) -> io::Result<usize> {
        let Self { sockets, drops, recorder, neighbours, .. } = self;
        let (_, socket) = &sockets[socket];
        let vnet = socket.vnet;
        into.fill_frames(socket.as_fd(), |arrival, bytes| {
            if arrival.kind == PacketType::Outgoing {
                return None;
            }
            let (seen, frame) = split_vnet(bytes, vnet).map_err(|why| drops.count(why)).ok()?;
            let read = frame::read(frame, seen.segment, LARGEST_PACKET, arrival.inside);
            if let Some(recorder) = recorder {
                let packets = read.as_ref().ok().map(|read| (read.place.clone(), read.run.segment_size));
                recorder.arrived(frame, packets, seen.unsummed);
            }
            if arrival.kind == PacketType::Other {
                // A frame to this interface's own MAC address can only be of a VLAN that this host has no interface of.
                let own = neighbours.own(arrival.ifindex);
                let ours = own.is_some_and(|own| frame.starts_with(&own));
                *(if ours { &mut drops.other_vlan } else { &mut drops.other_station }) += 1;
                return None;
            }
            let Read { mut run, place } = read.map_err(|why| drops.count(why)).ok()?;
            run.ifindex = arrival.ifindex;
            let front = bytes.len() - frame.len();
            Some((run, front + place.start..front + place.end))
        })
    }

    /// Packets that the kernel dropped at port 4791 since the port delivers RoCEv2.
    pub(super) fn port_drops(&self) -> u64 {
        match self.v2 {
            V2::Port { drops } => self.port.drops().wrapping_sub(drops),
            V2::Frames | V2::Changing => 0,
        }
    }
}
