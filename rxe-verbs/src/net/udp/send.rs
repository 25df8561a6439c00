//! Sends batches, and falls back where the system cannot segment them.

use core::net::IpAddr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::{Family, OLD_SEGMENTS, UdpLink, open::Sender};
use crate::net::error::SendError;
use crate::net::{ROCE_PORT, Transmit};
use crate::sys::control::Control;
use crate::sys::message::{Name, send, send_each};

/// Most routes that are remembered as refusing segmentation. If there are more, the whole family goes without segmentation.
const REMEMBERED: usize = 64;

impl Family {
    /// Whether the system segments batches to `dst`.
    pub(super) fn segments(&self, dst: IpAddr, ifindex: u32) -> bool {
        self.gso && (self.refusing.is_empty() || !self.refusing.contains(&(dst, ifindex)))
    }

    fn refuse(&mut self, dst: IpAddr, ifindex: u32) {
        if self.refusing.len() < REMEMBERED {
            self.refusing.push((dst, ifindex));
        } else {
            self.gso = false;
            self.refusing.clear();
        }
    }
}

/// The control messages of a batch from a socket bound to `bound`, without TOS and priority. There are only messages that
/// change what the system would do anyway: each message costs time, and more than one cost the system an allocation.
fn control(batch: &Transmit, bound: IpAddr) -> Control {
    let mut control = Control::new();
    let elsewhere = batch.src != bound || batch.ifindex != 0;
    match batch.src {
        IpAddr::V4(src) => {
            if elsewhere {
                control.push_source_v4(src, batch.ifindex);
            }
            // The system does not accept TTL 0. Without a message it takes its default.
            if batch.hop_limit != 0 {
                control.push_ttl_v4(batch.hop_limit);
            }
        }
        IpAddr::V6(src) => {
            if elsewhere {
                control.push_source_v6(src, batch.ifindex);
            }
            if batch.hop_limit != 0 {
                control.push_hops_v6(batch.hop_limit);
            }
        }
    }
    control
}

/// A batch ready for system calls.
struct Prepared<'a> {
    socket: BorrowedFd<'a>,
    name: Name,
    control: Control,
    bytes: &'a [u8],
    segment_size: usize,
}

impl Prepared<'_> {
    fn singly(&self, from: usize) -> Result<(), SendError> {
        let rest = &self.bytes[from * self.segment_size..];
        for (sent, packet) in (from..).zip(rest.chunks(self.segment_size)) {
            send(self.socket, &self.name, &self.control, packet)
                .map_err(|e| SendError::from_system(e, sent))?;
        }
        Ok(())
    }

    /// With an error, how many packets were sent before it.
    fn many(&self) -> Result<(), (usize, SendError)> {
        match send_each(self.socket, &self.name, &self.control, self.bytes, self.segment_size) {
            (_, None) => Ok(()),
            (sent, Some(error)) => Err((sent, SendError::from_system(error, sent))),
        }
    }

    /// Sends `bytes`, which are the batch or its beginning.
    fn segmented(&self, bytes: &[u8]) -> io::Result<()> {
        let mut control = self.control;
        control.push_segment(self.segment_size as u16);
        send(self.socket, &self.name, &control, bytes)
    }

    /// For a batch that the system has refused to segment. Whether it takes the first [`OLD_SEGMENTS`] packets, which have left then.
    fn fewer(&self) -> bool {
        let fewer = self.bytes.get(..usize::from(OLD_SEGMENTS) * self.segment_size);
        fewer.is_some_and(|fewer| fewer.len() < self.bytes.len() && self.segmented(fewer).is_ok())
    }
}

impl UdpLink {
    /// Sends a checked batch of `segments` packets.
    pub(super) fn send_batch(
        &mut self,
        batch: &Transmit,
        bytes: &[u8],
        segments: usize,
    ) -> Result<(), SendError> {
        let v4 = batch.dst.is_ipv4();
        let Some(family) = (if v4 { self.v4.as_mut() } else { self.v6.as_mut() }) else {
            return Err(SendError::Unreachable { source: io::Error::from_raw_os_error(libc::EAFNOSUPPORT) });
        };
        let sender = self.senders.iter_mut().find(|sender| sender.port == batch.source_port);
        let own = match sender {
            Some(Sender { v4: Some(socket), marked, .. }) if v4 => Some((&*socket, &mut marked[0])),
            Some(Sender { v6: Some(socket), marked, .. }) if !v4 => Some((&*socket, &mut marked[1])),
            Some(_) => None,
            None if batch.source_port == ROCE_PORT => None,
            None => {
                let why = "a source port that is not the link's";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why).into());
            }
        };
        let mut control = control(batch, family.bound);
        let (socket, marked) = own.unwrap_or((&family.socket, &mut family.marked));
        self.priorities.say(batch.tos, v4, (socket.as_fd(), marked), &mut control);
        let prepared = Prepared {
            socket: socket.as_fd(),
            name: Name::new(batch.dst, ROCE_PORT, batch.ifindex),
            control,
            bytes,
            segment_size: batch.segment_size,
        };
        if segments == 1 || !self.features.mmsg && !family.segments(batch.dst, batch.ifindex) {
            return prepared.singly(0);
        }
        if !family.segments(batch.dst, batch.ifindex) {
            let Err((sent, error)) = prepared.many() else { return Ok(()) };
            // Either a packet filter refused the first packet, or a sandbox forbids the call. A packet sent by itself shows which:
            // if it leaves, the call is forbidden.
            if sent > 0 || !error.is_forbidden() {
                return Err(error);
            }
            prepared.singly(0)?;
            self.features.mmsg = false;
            self.describe_sending();
            return Ok(());
        }
        let Err(error) = prepared.segmented(bytes) else { return Ok(()) };
        // EIO: no checksum offload on this route (Linux before 6.2). EINVAL: that, or a segment above the MTU on some
        // kernels, or the addresses.
        if !matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP)) {
            return Err(SendError::from_system(error, 0));
        }
        // EINVAL: more packets than this system takes at a time. The others are built again, because IPv4 IDs begin anew.
        if prepared.fewer() {
            self.segments = OLD_SEGMENTS;
            self.describe_sending();
            return Err(SendError::SegmentationRefused { sent: OLD_SEGMENTS.into() });
        }
        // The first packet sent by itself shows which. It is correct alone, too, because its identification is 0.
        send(prepared.socket, &prepared.name, &prepared.control, &bytes[..batch.segment_size])
            .map_err(|e| SendError::from_system(e, 0))?;
        if v4 {
            family.refuse(batch.dst, batch.ifindex);
            self.describe_sending();
            return Err(SendError::SegmentationRefused { sent: 1 });
        }
        // IPv6 packets have no identification, so the rest can be sent packet by packet.
        let rest = prepared.singly(1);
        family.refuse(batch.dst, batch.ifindex);
        self.describe_sending();
        rest
    }
}
