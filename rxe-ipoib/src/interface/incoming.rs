//! Packets from a queue pair to the TUN interface.

use super::{Interface, TURN, Work};
use crate::{
    Error,
    port::GRH,
    proto::{
        address::LinkAddress,
        arp::{Arp, Operation},
        encap::{self, Protocol},
        group,
        nd::{self, Message, Packet},
    },
};
use rxe_verbs::{Completion, WcStatus};
use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr},
    os::fd::AsFd,
    time::Duration,
};

/// Completions handled before packets from the TUN interface are.
const ROUNDS: usize = 4;
/// Bytes of each frame that are examined: the network header, our header, and an IPv6 header with neighbour discovery or an ARP
/// packet.
const FRONT: usize = GRH + encap::LEN + 40 + 24 + 8 * 24;

impl Interface {
    /// Handles completions. Returns whether there were any.
    pub(super) fn take_completions(&mut self, now: Duration) -> Result<bool, Error> {
        let mut completions = [Completion::default(); TURN];
        for round in 0..ROUNDS {
            let count = self.port.cq.poll(&mut completions)?;
            if count == 0 {
                return Ok(round > 0);
            }
            let (mut datagrams, mut messages) = (Vec::new(), Vec::new());
            for completion in &completions[..count] {
                let good = completion.status == WcStatus::Success;
                match Work::of(completion.wr_id) {
                    (Work::Send, slot) => {
                        self.buffers.give(slot);
                        self.counters.dropped_send += u64::from(!good);
                        if let Some(connections) = &mut self.connections {
                            connections.handle_sent(completion.qpn, good);
                        }
                    }
                    (Work::Datagram, slot) => {
                        if good {
                            self.take_datagram(now, slot, completion);
                        }
                        datagrams.push(slot);
                    }
                    (Work::Message, slot) => {
                        if good {
                            self.take_message(slot, completion.byte_len as usize);
                        }
                        messages.push(slot);
                    }
                }
            }
            self.port.receive(datagrams.into_iter());
            if let Some(connections) = &self.connections {
                connections.receive(messages.into_iter());
            }
        }
        Ok(true)
    }

    /// Handles a frame of a connection, which must be an IP packet (RFC 4755, 2.1).
    fn take_message(&mut self, slot: u32, len: usize) {
        let Some(connections) = &self.connections else { return };
        let mut front = [0; encap::LEN + 1];
        let front = connections.arrivals.read(slot, 0, len, &mut front);
        if !is_ip(front) {
            self.counters.dropped_frame += 1;
            return;
        }
        let memory = connections.arrivals.memory();
        let at = connections.arrivals.offset(slot) + encap::LEN;
        let written = memory.write_to(self.tun.as_fd(), at, len - encap::LEN);
        self.counters.received_connected += 1;
        self.note_write(written);
    }

    /// Handles a frame in a datagram.
    fn take_datagram(&mut self, now: Duration, slot: u32, completion: &Completion) {
        let len = completion.byte_len as usize;
        let mut front = [0; FRONT];
        let front = self.port.arrivals.read(slot, 0, len, &mut front);
        if front.len() <= GRH + encap::LEN {
            self.counters.dropped_frame += 1;
            return;
        }
        let source = source_gid(front);
        if source == self.port.address.gid && completion.src_qp == self.port.qp.qpn() {
            self.counters.own_multicast += 1;
            return;
        }
        let sender = (source, completion.src_qp.value());
        let frame = &front[GRH..];
        match Protocol::of(frame) {
            Some(Protocol::Arp) => match Arp::parse(&frame[encap::LEN..]) {
                Some(arp) => self.handle_arp(now, &arp),
                None => self.counters.dropped_frame += 1,
            },
            Some(Protocol::Ipv6) if nd::is_ours(&frame[encap::LEN..]) => {
                match Packet::parse(&frame[encap::LEN..]) {
                    Some(packet) => self.handle_discovery(now, &packet, sender),
                    None => self.counters.dropped_frame += 1,
                }
            }
            _ if is_ip(frame) => {
                let at = self.port.arrivals.offset(slot) + GRH + encap::LEN;
                let len = len - GRH - encap::LEN;
                let written = self.port.arrivals.memory().write_to(self.tun.as_fd(), at, len);
                self.counters.received_datagrams += 1;
                self.note_write(written);
            }
            _ => self.counters.dropped_frame += 1,
        }
    }

    /// If the interface was deleted, this is noticed when packets are read from it.
    fn note_write(&mut self, written: io::Result<usize>) {
        self.counters.dropped_tun += u64::from(written.is_err());
    }

    fn handle_arp(&mut self, now: Duration, arp: &Arp) {
        self.counters.received_resolution += 1;
        let (address, ip) = arp.sender;
        // The sender claims our address, or checks whether its own is in use.
        let nobody = ip.is_unspecified() || self.local.has(ip.into());
        let target = arp.target.1;
        let for_us = self.local.has(target.into());
        match arp.operation {
            Operation::Request if for_us => {
                if !nobody {
                    self.neighbours.heard_request(now, ip.into(), address);
                }
                let reply = Arp {
                    operation: Operation::Reply,
                    sender: (self.port.address, target),
                    target: (Some(address), ip),
                };
                self.tell(Protocol::Arp, &reply.emit(), address);
            }
            _ if nobody => {}
            // The advertisement is for us, because we have asked, or for all nodes.
            operation => {
                let asked = for_us && operation == Operation::Reply;
                self.neighbours.heard_reply(now, ip.into(), address, asked, true);
            }
        }
    }

    fn handle_discovery(&mut self, now: Duration, packet: &Packet, sender: (Ipv6Addr, u32)) {
        self.counters.received_resolution += 1;
        match packet.message {
            Message::Solicitation { target, source } => {
                if !self.local.has(target.into()) {
                    return;
                }
                let asker = packet.source;
                if let Some(address) = source {
                    self.neighbours.heard_request(now, asker.into(), address);
                }
                // A node that checks whether an address is free gets the answer through the group of all nodes (RFC 4861,
                // 7.2.4).
                let solicited = !asker.is_unspecified();
                let destination = if solicited { asker } else { ALL_NODES };
                let message =
                    Message::Advertisement { target, address: self.port.address, solicited, replaces: true };
                let answer = Packet { source: target, destination, message }.emit();
                let back = LinkAddress { connected: false, qpn: sender.1, gid: sender.0 };
                if solicited {
                    self.tell(Protocol::Ipv6, &answer, source.unwrap_or(back));
                } else {
                    self.tell_group(Protocol::Ipv6, &answer, group::mgid(self.port.pkey, ALL_NODES.into()));
                }
            }
            Message::Advertisement { target, address, solicited, replaces } => {
                if !self.local.has(target.into()) {
                    self.neighbours.heard_reply(now, target.into(), address, solicited, replaces);
                }
            }
        }
    }
}

/// The group of all nodes of the link.
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Whether a frame's header agrees with its packet.
fn is_ip(frame: &[u8]) -> bool {
    let version = frame.get(encap::LEN).map(|first| first >> 4);
    matches!(
        (Protocol::of(frame), version),
        (Some(Protocol::Ipv4), Some(4)) | (Some(Protocol::Ipv6), Some(6))
    )
}

/// The sender's GID, in the network header in front of a datagram: an IPv6 header, or an IPv4 one in the last 20 bytes.
fn source_gid(front: &[u8]) -> Ipv6Addr {
    if front[0] >> 4 == 6 {
        return crate::proto::bytes::<16>(front, 8).map_or(Ipv6Addr::UNSPECIFIED, Ipv6Addr::from);
    }
    crate::proto::bytes::<4>(front, 32)
        .map_or(Ipv6Addr::UNSPECIFIED, |v4| Ipv4Addr::from(v4).to_ipv6_mapped())
}
