//! Packets in the network: the headers as the endpoint wrote them, and how long the whole is. Payload bytes are nowhere.
//!
//! All packets lie in one pool; queues are chained through them, so nothing is allocated once the pool has grown.

/// Longest headers that are kept: BTH and what a reliable request or answer has behind it.
pub const HEADERS: usize = 40;
/// What an Ethernet frame has around a packet (BTH to ICRC): preamble and gap 20, MAC header 14, IPv4 20, UDP 8, checksum 4.
pub const FRAME: u32 = 66;

const NONE: u32 = u32::MAX;

/// A packet on its way.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// BTH and extension headers.
    pub headers: [u8; HEADERS],
    /// Bytes from BTH to ICRC.
    pub len: u16,
    /// Headers' bytes.
    pub header_len: u8,
    /// TOS byte, with the ECN bits.
    pub tos: u8,
    /// Sending host.
    pub src: u16,
    /// Receiving host.
    pub dst: u16,
    /// What switches choose the way by.
    pub hash: u32,
    /// Whether it goes before data and is neither paused nor dropped: acknowledgements and notifications.
    pub control: bool,
    /// When it reaches the end of the wire that it is on, picoseconds.
    pub arrives: u64,
    /// The wire by which it came into the switch it waits in.
    pub ingress: u32,
    /// The packet behind it in its queue.
    pub(crate) next: u32,
}

impl Packet {
    /// A packet with nothing in it.
    pub const EMPTY: Self = Self {
        headers: [0; HEADERS],
        len: 0,
        header_len: 0,
        tos: 0,
        src: 0,
        dst: 0,
        hash: 0,
        control: false,
        arrives: 0,
        ingress: 0,
        next: NONE,
    };

    /// Bytes that it takes on a wire.
    #[must_use]
    pub const fn wire_len(&self) -> u32 {
        self.len as u32 + FRAME
    }

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
    /// Puts a packet into it.
    pub fn insert(&mut self, packet: Packet) -> u32 {
        if let Some(at) = self.free.pop() {
            self.packets[at as usize] = packet;
            return at;
        }
        self.packets.push(packet);
        self.packets.len() as u32 - 1
    }

    /// Takes a packet out.
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

    /// Packets that are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len() - self.free.len()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Packets one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    head: u32,
    tail: u32,
    /// Bytes on the wire of all in it.
    pub bytes: u64,
}

impl Default for Queue {
    fn default() -> Self {
        Self { head: NONE, tail: NONE, bytes: 0 }
    }
}

impl Queue {
    /// The first packet.
    #[inline]
    #[must_use]
    pub const fn front(&self) -> Option<u32> {
        if self.head == NONE { None } else { Some(self.head) }
    }

    /// Adds a packet behind the others.
    #[inline]
    pub fn push(&mut self, pool: &mut Pool, at: u32) {
        pool.get_mut(at).next = NONE;
        self.bytes += u64::from(pool.get(at).wire_len());
        if self.head == NONE {
            self.head = at;
        } else {
            pool.get_mut(self.tail).next = at;
        }
        self.tail = at;
    }

    /// Takes the first packet.
    #[inline]
    pub fn pop(&mut self, pool: &Pool) -> Option<u32> {
        let at = self.front()?;
        let packet = pool.get(at);
        self.head = packet.next;
        self.bytes -= u64::from(packet.wire_len());
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_keep_order_and_count_bytes() {
        let (mut pool, mut queue) = (Pool::default(), Queue::default());
        for len in [100, 200, 300] {
            let at = pool.insert(Packet { len, ..Packet::EMPTY });
            queue.push(&mut pool, at);
        }
        assert_eq!(queue.bytes, 600 + 3 * u64::from(FRAME));
        for len in [100, 200, 300] {
            let at = queue.pop(&pool).unwrap();
            assert_eq!(pool.get(at).len, len);
            pool.remove(at);
        }
        assert!(queue.pop(&pool).is_none() && queue.bytes == 0 && pool.is_empty());
    }
}
