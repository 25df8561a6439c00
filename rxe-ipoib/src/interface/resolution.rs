//! Our own packets of ARP and neighbour discovery, and the groups that we join.

use super::{Interface, incoming::ALL_NODES};
use crate::proto::{
    address::LinkAddress,
    arp::{Arp, Operation},
    encap::Protocol,
    group,
    nd::{Message, Packet},
    neighbours::Action,
};
use rxe_verbs::Gid;
use std::{
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

impl Interface {
    /// Carries out the actions that the neighbour table asks for.
    pub(super) fn resolve(&mut self, now: Duration) {
        while let Some(action) = self.neighbours.poll_action() {
            match action {
                Action::Ask { ip, last } => self.ask(ip, last),
                Action::Release { packet, to } => self.send_to(now, packet, to),
                Action::Discard { packet } => {
                    self.counters.dropped_unresolved += 1;
                    self.buffers.give(packet.slot);
                }
            }
        }
    }

    /// Asks for a neighbour's address: the neighbour itself if its last address is known, otherwise all nodes.
    fn ask(&mut self, ip: IpAddr, last: Option<LinkAddress>) {
        // Without an address of our own no answer could reach us.
        let Some(own) = self.local.source_for(ip) else { return };
        let (protocol, body, all) = match (own, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                let sender = (self.port.address, own);
                let arp = Arp { operation: Operation::Request, sender, target: (None, ip) };
                (Protocol::Arp, arp.emit().to_vec(), Some(group::broadcast(self.port.pkey)))
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let asked = group::solicited_node(target);
                let destination = if last.is_some() { target } else { asked };
                let message = Message::Solicitation { target, source: Some(self.port.address) };
                let packet = Packet { source, destination, message };
                (Protocol::Ipv6, packet.emit(), group::mgid(self.port.pkey, asked.into()))
            }
            _ => return,
        };
        match last {
            Some(neighbour) => self.tell(protocol, &body, neighbour),
            None => self.tell_group(protocol, &body, all),
        }
    }

    /// Announces an address of ours to all nodes, so that they replace an older entry at once (RFC 5227, 2.3; RFC 4861, 7.2.6).
    pub(super) fn announce(&mut self, own: IpAddr) {
        let address = self.port.address;
        let (protocol, body, group) = match own {
            IpAddr::V4(own) => {
                let arp = Arp { operation: Operation::Request, sender: (address, own), target: (None, own) };
                (Protocol::Arp, arp.emit().to_vec(), Some(group::broadcast(self.port.pkey)))
            }
            IpAddr::V6(own) => {
                let message =
                    Message::Advertisement { target: own, address, solicited: false, replaces: true };
                let packet = Packet { source: own, destination: ALL_NODES, message };
                (Protocol::Ipv6, packet.emit(), group::mgid(self.port.pkey, ALL_NODES.into()))
            }
        };
        self.tell_group(protocol, &body, group);
    }

    /// Sends a packet of our own to a neighbour, always as a datagram (RFC 4755, 2.2).
    pub(super) fn tell(&mut self, protocol: Protocol, body: &[u8], to: LinkAddress) {
        if let Some(dest) = self.port.dest(to)
            && let Some(parcel) = self.make(protocol.header(), body)
        {
            self.counters.sent_resolution += 1;
            self.post(parcel, dest);
        }
    }

    /// The same to a group.
    pub(super) fn tell_group(&mut self, protocol: Protocol, body: &[u8], mgid: Option<Ipv6Addr>) {
        if let Some(dest) = mgid.and_then(|mgid| self.port.group_dest(mgid))
            && let Some(parcel) = self.make(protocol.header(), body)
        {
            self.counters.sent_resolution += 1;
            self.post(parcel, dest);
        }
    }

    /// Joins the groups that the host has joined on this interface, and the broadcast group, and leaves all others.
    pub(super) fn follow_groups(&mut self) {
        let pkey = self.port.pkey;
        let mut wanted = vec![group::broadcast(pkey)];
        // The kernel does no neighbour discovery here, so it does not join the groups for it.
        let asked = self.local.solicited_nodes().map(IpAddr::V6);
        wanted.extend(
            self.local.groups.iter().copied().chain(asked).filter_map(|group| group::mgid(pkey, group)),
        );
        wanted.sort_unstable();
        wanted.dedup();
        if wanted == self.groups {
            return;
        }
        // Several groups may share one MGID on the wire.
        let carriers = |groups: &[Ipv6Addr]| -> Vec<Gid> {
            let mut list: Vec<_> = groups.iter().map(|mgid| self.port.carrier(*mgid)).collect();
            list.sort_unstable_by_key(|gid| gid.0);
            list.dedup();
            list
        };
        let (before, after) = (carriers(&self.groups), carriers(&wanted));
        for gid in before.iter().filter(|gid| !after.contains(gid)) {
            // We attached it, so this cannot fail.
            let _ = self.port.qp.detach_multicast(*gid);
        }
        // The system limits the number of groups of a socket. Groups that it refuses are tried again at the next change.
        let refused: Vec<_> = after
            .iter()
            .filter(|gid| !before.contains(gid) && self.port.qp.attach_multicast(**gid).is_err())
            .collect();
        wanted.retain(|mgid| !refused.contains(&&self.port.carrier(*mgid)));
        self.groups = wanted;
    }
}
