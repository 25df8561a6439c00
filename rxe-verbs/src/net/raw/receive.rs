//! What brings packets: packet sockets, and for RoCEv2 perhaps the socket of port 4791.
//!
//! Linux before 6.2 cannot tell a packet socket how a frame of several packets would be cut, and throws the frame away. (A
//! sender on the same host has not had it cut, or the interface has merged it.) The socket of port 4791 gets those, merged or
//! one by one as its options say, so from the first such frame on it brings all of RoCEv2. To take the merged ones alone from
//! it would turn the order of packets, and would be wrong where it merges nothing.

use std::io;
use std::os::fd::AsFd;

use super::drops::Unusable;
use super::filter::{self, Wanted};
use super::frame::{self, ETHERTYPE_IPV4, ETHERTYPE_ROCE_V1, Read, split_vnet};
use super::{FAIRNESS, LARGEST_PACKET, RawLink};
use crate::net::{Link, RecvBatch};
use crate::sys::{packet::PacketType, socket::attach_filter};

/// Frames that the kernel has thrown away, taken note of by one call at most.
const MOST_LOST: usize = 64;

/// What brings RoCEv2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum V2 {
    /// Packet sockets.
    Frames,
    /// The port, as soon as what came as frames before is read.
    Changing,
    /// The port, whose socket had thrown away so many packets by then (those that its filter did not take).
    Port { drops: u64 },
}

impl RawLink {
    /// Takes RoCEv2 from the socket of port 4791 from now on, as it is done at the first frame that the kernel has merged and
    /// cannot give. What has come as frames is not lost. Groups still come so where the socket is bound to one address, and hears
    /// none.
    ///
    /// # Errors
    /// What the system says of the filters.
    pub fn take_by_port(&mut self) -> io::Result<()> {
        if self.v2 != V2::Frames {
            return Ok(());
        }
        // A packet that comes in between is lost, as on any link; none comes twice.
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

    /// Adds what has come; how much that was, with what is thrown away. 0: every socket was found empty.
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
        self.port.receive(into)?;
        if let Some(recorder) = &mut self.recorder {
            into.iter().skip(before).for_each(|run| recorder.by_port(&run));
        }
        Ok(any + into.len() - before)
    }

    /// Adds what one packet socket has.
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
        })
    }

    /// Packets that the kernel threw away because nobody had read the ones before.
    pub(super) fn port_drops(&self) -> u64 {
        match self.v2 {
            V2::Port { drops } => self.port.drops().wrapping_sub(drops),
            V2::Frames | V2::Changing => 0,
        }
    }
}
