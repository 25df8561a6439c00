//! Packets in the network: the headers that the endpoint wrote, and the length of the packet. Payloads are not stored.
//!
//! All packets are in one pool, and queues are rings of [`Ticket`]s. So there are no allocations once these have grown.

use std::collections::VecDeque;

/// Most bytes of headers: BTH, and the extension headers of a reliable request or response.
pub const HEADERS: usize = 40;
/// Bytes of an Ethernet frame around a packet (BTH to ICRC): preamble and gap 20, MAC header 14, IPv4 20, UDP 8, checksum 4.
pub const FRAME: u16 = 66;

/// A packet in the network. It fits into one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct Packet {
    /// BTH and extension headers.
    pub headers: [u8; HEADERS],
    /// Bytes from BTH to ICRC.
    pub len: u16,
    /// Bytes of the headers.
    pub header_len: u8,
    /// TOS byte, with the ECN bits.
    pub tos: u8,
    /// Sending host.
    pub src: u16,
    /// Receiving host.
    pub dst: u16,
    /// The hash by which switches choose the path.
    pub hash: u32,
    /// Whether it is sent before data, and is neither paused nor dropped: an acknowledgement or a congestion notification.
    pub control: bool,
}

const _: () = assert!(size_of::<Packet>() == 64);

impl Packet {
    /// An empty packet.
    pub const EMPTY: Self = Self {
        headers: [0; HEADERS],
        len: 0,
        header_len: 0,
        tos: 0,
        src: 0,
        dst: 0,
        hash: 0,
        control: false,
    };

    /// Sequence number.
    #[must_use]
    pub const fn psn(&self) -> u32 {
        u32::from_be_bytes([0, self.headers[9], self.headers[10], self.headers[11]])
    }

    /// Destination queue pair.
    #[must_use]
    pub const fn dest_qpn(&self) -> u32 {
        u32::from_be_bytes([0, self.headers[5], self.headers[6], self.headers[7]])
    }
}

/// All packets.
#[derive(Debug, Default)]
pub struct Pool {
    packets: Vec<Packet>,
    free: Vec<u32>,
}

impl Pool {
    /// Adds a packet.
    pub fn insert(&mut self, packet: Packet) -> Ticket {
        let at = self.free.pop().unwrap_or_else(|| {
            self.packets.push(Packet::EMPTY);
            self.packets.len() as u32 - 1
        });
        self.packets[at as usize] = packet;
        let Packet { hash, dst, control, len, .. } = packet;
        Ticket { at, hash, ingress: 0, wire_len: len + FRAME, dst, control }
    }

    /// Removes a packet.
    pub fn remove(&mut self, at: u32) {
        self.free.push(at);
    }

    /// A packet.
    #[inline]
    #[must_use]
    pub fn get(&self, at: u32) -> &Packet {
        &self.packets[at as usize]
    }

    /// A packet.
    #[inline]
    pub fn get_mut(&mut self, at: u32) -> &mut Packet {
        &mut self.packets[at as usize]
    }
}

/// What switches and wires need to know about a packet in the pool. Queues hold tickets next to each other. So switches do not
/// read the packet itself, which would be a cache miss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// Its place in the pool.
    pub at: u32,
    /// The hash by which switches choose the path.
    pub hash: u32,
    /// The wire by which it arrived at the switch where it waits.
    pub ingress: u32,
    /// Its length on a wire, in bytes.
    pub wire_len: u16,
    /// Receiving host.
    pub dst: u16,
    /// Whether it is sent before data, and is neither paused nor dropped.
    pub control: bool,
}

/// A queue of packets.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    tickets: VecDeque<Ticket>,
    /// Length of all its packets on a wire, in bytes.
    pub bytes: u64,
}

impl Queue {
    /// Whether it is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    /// Adds a packet at the end.
    #[inline]
    pub fn push(&mut self, ticket: Ticket) {
        self.bytes += u64::from(ticket.wire_len);
        self.tickets.push_back(ticket);
    }

    /// Takes the first packet.
    #[inline]
    pub fn pop(&mut self) -> Option<Ticket> {
        let ticket = self.tickets.pop_front()?;
        self.bytes -= u64::from(ticket.wire_len);
        Some(ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_keep_order_and_count_bytes() {
        let (mut pool, mut queue) = (Pool::default(), Queue::default());
        for len in [100, 200, 300] {
            queue.push(pool.insert(Packet { len, ..Packet::EMPTY }));
        }
        assert_eq!(queue.bytes, 600 + 3 * u64::from(FRAME));
        for len in [100, 200, 300] {
            let ticket = queue.pop().unwrap();
            assert_eq!(pool.get(ticket.at).len, len);
            pool.remove(ticket.at);
        }
        assert!(queue.pop().is_none() && queue.bytes == 0);
        assert_eq!(pool.free.len(), pool.packets.len());
    }
}
