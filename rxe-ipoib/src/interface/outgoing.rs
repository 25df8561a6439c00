//! Packets from the TUN interface to a queue pair.

use super::{Interface, Parcel, TURN, Work, is_empty};
use crate::{
    Error,
    proto::{
        encap::{self, Protocol},
        group,
        ip::{self, Head, PEEK},
        nd,
    },
};
use rxe_verbs::{SendOp, SendWr, UdDest};
use std::{
    net::{IpAddr, Ipv4Addr},
    os::fd::AsFd,
    time::Duration,
};

impl Interface {
    /// Reads packets from the TUN interface. Returns whether there were any.
    pub(super) fn take_outgoing(&mut self, now: Duration) -> Result<bool, Error> {
        for taken in 0..TURN {
            let Some(slot) = self.buffers.take() else { return Ok(taken > 0) };
            let at = self.buffers.offset(slot) + encap::LEN;
            match self.buffers.memory().read_from(self.tun.as_fd(), at, usize::from(self.mtu)) {
                Ok(len) => self.take_packet(now, Parcel { slot, len }),
                Err(error) => {
                    self.buffers.give(slot);
                    if is_empty(&error) {
                        return Ok(taken > 0);
                    }
                    return Err(Error::Gone { name: self.tun.name().to_owned(), source: error });
                }
            }
        }
        self.flush();
        Ok(true)
    }

    /// Finds the neighbour for a packet, and sends it.
    fn take_packet(&mut self, now: Duration, parcel: Parcel) {
        let mut front = [0; PEEK];
        let front = self.buffers.read(parcel.slot, encap::LEN, parcel.frame(), &mut front);
        // Neighbour discovery is done by us. The IP stack's own, if it does any on a TUN interface, has no link-layer
        // addresses.
        let Some(head) = Head::parse(front, parcel.len).filter(|_| !nd::is_ours(front)) else {
            self.counters.dropped_malformed += 1;
            return self.buffers.give(parcel.slot);
        };
        self.local_changed |= head.is_membership;
        let protocol = if head.destination.is_ipv4() { Protocol::Ipv4 } else { Protocol::Ipv6 };
        self.buffers.write(parcel.slot, 0, &protocol.header());
        let group = match head.destination {
            IpAddr::V4(v4) if self.local.is_broadcast(v4) => Some(IpAddr::V4(Ipv4Addr::BROADCAST)),
            ip if ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) => Some(ip),
            _ => None,
        };
        if let Some(mgid) = group.and_then(|group| group::mgid(self.port.pkey, group)) {
            if parcel.len > usize::from(self.port.mtu) {
                self.counters.dropped_too_big += 1;
                return self.buffers.give(parcel.slot);
            }
            return match self.port.group_dest(mgid) {
                Some(dest) => self.post(parcel, dest),
                None => self.buffers.give(parcel.slot),
            };
        }
        let next = self.local.next_hop(head.destination);
        if let Some(to) = self.neighbours.find(now, next) {
            return self.send_to(now, parcel, to);
        }
        if let Err(parcel) = self.neighbours.wait(now, next, parcel) {
            self.counters.dropped_unresolved += 1;
            self.buffers.give(parcel.slot);
        }
    }

    /// Adds a datagram to the batch.
    pub(super) fn post(&mut self, parcel: Parcel, dest: UdDest) {
        self.batch.push((parcel, dest));
        if self.batch.len() >= TURN {
            self.flush();
        }
    }

    /// Sends the batch.
    pub(super) fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let sges: Vec<_> =
            self.batch.iter().map(|(parcel, _)| [self.buffers.sge(parcel.slot, parcel.frame())]).collect();
        let list: Vec<_> = self
            .batch
            .iter()
            .zip(&sges)
            .map(|((parcel, dest), sges)| SendWr {
                dest: Some(*dest),
                ..SendWr::new(Work::Send.id(parcel.slot), SendOp::Send, sges)
            })
            .collect();
        let mut first = 0;
        // A refused one does not stop the others.
        while let Err(error) = self.port.qp.post_send_list(&list[first..]) {
            self.buffers.give(self.batch[first + error.index].0.slot);
            self.counters.dropped_send += 1;
            first += error.index + 1;
        }
        self.counters.sent_datagrams += self.batch.len() as u64;
        self.batch.clear();
    }

    /// A packet is too long for its neighbour: sends an ICMP message to the host's IP stack.
    pub(super) fn refuse_too_big(&mut self, parcel: Parcel, mtu: u16) {
        let mut front = [0; 128];
        let front = self.buffers.read(parcel.slot, encap::LEN, parcel.frame(), &mut front);
        if let Some(message) = ip::too_big(front, mtu) {
            // If the interface is down the message is not needed.
            let _ = self.tun.write(&message);
        }
        self.counters.dropped_too_big += 1;
        self.buffers.give(parcel.slot);
    }
}
