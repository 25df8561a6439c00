//! Switches: they choose paths, store packets, mark them, and pause senders that send too much.

use super::{Event, World};
use crate::{
    packet::{FRAME, Ticket},
    scenario::{Ecn, Switch},
};

/// Bytes of a pause frame on the wire: the smallest Ethernet frame, preamble and gap.
const PAUSE_FRAME: u64 = 84;
/// TOS bits that mark a packet: congestion experienced (RFC 3168, 5).
const MARKED: u8 = 3;

/// A switch's buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Buffer {
    /// Bytes in all queues.
    pub used: u64,
}

/// The state of a wire that leads to a switch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ingress {
    /// Bytes that arrived by this wire and wait in the switch.
    pub bytes: u64,
    /// Whether the other end is paused.
    pub pauses: bool,
}

impl World {
    /// A packet has arrived at a switch by `wire`.
    pub(super) fn forward(&mut self, wire: usize, mut packet: Ticket) {
        let node = self.topology.wires[wire].to;
        packet.ingress = wire as u32;
        let len = u64::from(packet.wire_len);
        let out = self.topology.next(node, packet.dst.into(), packet.hash);
        if packet.control {
            self.ports[out].control.push(packet);
            self.send(out);
            return;
        }
        let queue = self.ports[out].data.bytes;
        let buffer = self.buffers[node - self.topology.hosts];
        if !has_room(&self.rules, buffer, self.ingress[wire], queue, len) {
            self.counts.dropped += 1;
            self.pool.remove(packet.at);
            return;
        }
        if let Some(ecn) = self.rules.ecn
            && queue > 0
            && self.marks(&ecn, queue, out)
        {
            self.pool.get_mut(packet.at).tos |= MARKED;
            self.counts.marked += 1;
        }
        self.buffers[node - self.topology.hosts].used += len;
        self.ingress[wire].bytes += len;
        let port = &mut self.ports[out];
        port.data.push(packet);
        port.longest = port.longest.max(port.data.bytes);
        self.look_at_pause(wire);
        self.send(out);
    }

    /// Whether to mark a packet that joins a queue of so many bytes at the sending end of a wire.
    fn marks(&mut self, ecn: &Ecn, queue: u64, out: usize) -> bool {
        // Ports with another rate have proportional thresholds.
        let times = ecn.at.map_or(1.0, |at| self.topology.wires[out].rate as f64 / at.0 as f64);
        let [kmin, kmax] = [ecn.kmin, ecn.kmax].map(|size| (size.0 as f64 * times) as u64);
        if queue <= kmin {
            return false;
        }
        let width = (kmax - kmin).max(1) as f64;
        queue >= kmax || self.rng.unit() < ecn.pmax * (queue - kmin) as f64 / width
    }

    /// A data packet leaves a switch.
    pub(super) fn release(&mut self, node: usize, packet: Ticket) {
        let (len, wire) = (u64::from(packet.wire_len), packet.ingress as usize);
        self.buffers[node - self.topology.hosts].used -= len;
        self.ingress[wire].bytes -= len;
        self.look_at_pause(wire);
    }

    /// Pauses the sender at the other end of `wire`, or ends its pause.
    fn look_at_pause(&mut self, wire: usize) {
        let Some(pfc) = self.rules.pfc else { return };
        let switch = self.topology.wires[wire].to - self.topology.hosts;
        let limit = match (pfc.xoff, pfc.alpha, self.rules.buffer) {
            (Some(xoff), ..) => xoff.0,
            (_, Some(alpha), Some(size)) => {
                (alpha * size.0.saturating_sub(self.buffers[switch].used) as f64) as u64
            }
            _ => return,
        };
        let ingress = &mut self.ingress[wire];
        let pauses = if ingress.pauses {
            ingress.bytes > limit.saturating_sub(pfc.hysteresis.0)
        } else {
            ingress.bytes > limit
        };
        if pauses != ingress.pauses {
            ingress.pauses = pauses;
            self.counts.pauses += u64::from(pauses);
            let back = self.topology.wires[self.topology.wires[wire].back];
            let arrives = self.now + back.delay + super::serialization(PAUSE_FRAME, back.rate);
            self.ports[wire].told.push_back(pauses);
            self.schedule(arrives, Event::Pause(wire));
        }
    }

    /// The next pause frame has arrived at the sender of `wire`.
    pub(super) fn pause(&mut self, wire: usize) {
        let port = &mut self.ports[wire];
        match port.told.pop_front() {
            Some(true) => (port.paused, port.paused_at) = (true, self.now),
            Some(false) => {
                port.paused = false;
                port.paused_for += self.now - port.paused_at;
                self.send(wire);
            }
            None => {}
        }
    }
}

/// Whether a queue of `queue` bytes has room for `len` more bytes.
fn has_room(rules: &Switch, buffer: Buffer, ingress: Ingress, queue: u64, len: u64) -> bool {
    if let Some(size) = rules.port_buffer {
        return ingress.bytes + len <= size.0;
    }
    let Some(size) = rules.buffer else { return true };
    let free = size.0.saturating_sub(buffer.used);
    let share = rules.alpha.map_or(u64::MAX, |alpha| (alpha * free as f64) as u64);
    len <= free && queue + len <= share.max(u64::from(FRAME) + 4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    /// Of two frames that arrive at the same time, the one that was sent last counts.
    #[test]
    fn pause_frames_arrive_in_the_order_of_their_sending() {
        let scenario = Scenario::read(
            "end = \"1s\"\ntraffic = []\n[network]\nkind = \"star\"\nhosts = 2\nrate = \"10gbit\"\ndelay = \"1us\"\n\
             [switch]\npfc = { xoff = \"1KB\", hysteresis = \"0B\" }",
        );
        let mut world = World::new(&scenario.expect("a scenario")).expect("a network");
        let wire = world.wire("h0-s0").expect("a link");
        for (waiting, paused) in [([2000, 1000, 2000], true), ([1000, 2000, 1000], false)] {
            for bytes in waiting {
                world.ingress[wire].bytes = bytes;
                world.look_at_pause(wire);
            }
            while let Some((at, code)) = world.events.pop() {
                world.now = at;
                world.happen(Event::from_code(code));
            }
            assert_eq!(world.ports[wire].paused, paused, "{waiting:?}");
        }
    }
}
