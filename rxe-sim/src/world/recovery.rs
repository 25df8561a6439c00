//! Selective repeat in the simulated adapters, between endpoint and wire, if the scenario's recovery is `selective`.

use super::{Event, World, host::hash};
use crate::{packet::Packet, selective::Arrival};
use rxe_core::wire::Opcode;

/// Bytes of the headers of a negative acknowledgement: those of an acknowledgement, and the number of the packet that arrived.
const ASKING: usize = 20;
/// Syndrome of a negative acknowledgement: PSN sequence error.
const NAK_SEQUENCE: u8 = 0x60;

impl World {
    /// Keeps a copy of a data packet that leaves.
    pub(super) fn keep_copy(&mut self, packet: &Packet) {
        let Some(&index) = self.hosts[usize::from(packet.dst)].flow_of.get(&packet.dest_qpn()) else {
            return;
        };
        if let Some(selective) = &mut self.progress[index].selective {
            let sender = &mut selective.0;
            if sender.is_empty() {
                sender.since = self.now;
            }
            sender.sent(packet);
            self.set_timeout(index);
        }
    }

    /// Adds an event for the timeout of a flow, unless there is an earlier one.
    fn set_timeout(&mut self, index: usize) {
        let (short, long) = (self.adapter.short_timeout.0, self.adapter.timeout.0);
        let Some(selective) = &mut self.progress[index].selective else { return };
        let at = selective.0.deadline(short, long);
        if !selective.0.is_empty() && selective.0.armed.is_none_or(|armed| at < armed) {
            selective.0.armed = Some(at);
            self.schedule(at, Event::Silence(index));
        }
    }

    /// Handles a packet that has arrived at a host, before the endpoint does.
    pub(super) fn receive_selective(&mut self, host: usize, packet: &Packet) {
        let index = self.hosts[host].flow_of.get(&packet.dest_qpn()).copied();
        let Some((index, selective)) = index.and_then(|at| Some((at, self.progress[at].selective.as_mut()?)))
        else {
            self.hand_over(host, packet);
            return;
        };
        let (sender, receiver) = selective.as_mut();
        if !packet.control {
            match receiver.arrived(packet) {
                Arrival::Take => {
                    self.hand_over(host, packet);
                    while let Some(kept) =
                        self.progress[index].selective.as_mut().and_then(|both| both.1.next_kept())
                    {
                        self.hand_over(host, &kept);
                    }
                }
                Arrival::Ask { expected } => self.ask(host, packet, expected),
            }
            return;
        }
        let came = u32::from_be_bytes([0, packet.headers[17], packet.headers[18], packet.headers[19]]);
        let asks = usize::from(packet.header_len) == ASKING;
        if asks {
            sender.missing(packet.psn(), came);
        } else if packet.headers[0] == Opcode::RC_ACKNOWLEDGE.0 {
            sender.acknowledged_before((packet.psn() + 1) & 0x00ff_ffff);
        }
        sender.since = self.now;
        self.send_again(host, index);
        self.set_timeout(index);
        if !asks {
            self.hand_over(host, packet);
        }
    }

    /// Sends a negative acknowledgement: which packet is missing, and which arrived.
    fn ask(&mut self, host: usize, packet: &Packet, expected: u32) {
        let Some(&index) = self.hosts[host].flow_of.get(&packet.dest_qpn()) else { return };
        let Some(qpns) = self.progress[index].qpns else { return };
        let mut answer = Packet {
            len: ASKING as u16 + 4,
            header_len: ASKING as u8,
            src: host as u16,
            dst: packet.src,
            control: true,
            ..Packet::EMPTY
        };
        answer.headers[0] = Opcode::RC_ACKNOWLEDGE.0;
        answer.headers[2..4].copy_from_slice(&[0xff, 0xff]);
        answer.headers[4..8].copy_from_slice(&qpns[0].value().to_be_bytes());
        answer.headers[8..12].copy_from_slice(&expected.to_be_bytes());
        answer.headers[12] = NAK_SEQUENCE;
        answer.headers[16..20].copy_from_slice(&packet.psn().to_be_bytes());
        answer.hash = hash(&answer);
        self.counts.naks += 1;
        self.push_control(host, answer);
        // The sender also gets notifications for marked packets that arrive out of sequence.
        if packet.tos & 3 == 3 && self.progress[index].selective.is_some() {
            self.counts.marked_early += 1;
        }
    }

    /// Adds lost packets to those that the host sends again.
    fn send_again(&mut self, host: usize, index: usize) {
        let Some(selective) = &mut self.progress[index].selective else { return };
        while let Some(packet) = selective.0.next_lost() {
            self.counts.retransmitted += 1;
            let ticket = self.pool.insert(packet);
            self.hosts[host].again.push(ticket);
        }
    }

    /// Checks the timeout of a flow.
    pub(super) fn silence(&mut self, index: usize) {
        let host = self.flows[index].src;
        let (short, long) = (self.adapter.short_timeout.0, self.adapter.timeout.0);
        let Some(selective) = &mut self.progress[index].selective else { return };
        let sender = &mut selective.0;
        if sender.armed != Some(self.now) {
            // An earlier event took its place.
            return;
        }
        sender.armed = None;
        if sender.is_empty() {
            return;
        }
        if sender.deadline(short, long) <= self.now {
            sender.timed_out();
            sender.since = self.now;
            self.counts.timeouts += 1;
        }
        self.set_timeout(index);
        self.send_again(host, index);
        self.send(self.hosts[host].wire);
    }
}
