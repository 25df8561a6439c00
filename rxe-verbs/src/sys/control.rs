//! Control messages (`cmsg(3)`) as bytes. They are built in and parsed from fixed, aligned buffers, without pointers.
//!
//! A control message is a `cmsghdr` (length as `size_t`, level and type as `int`) followed by its data, and the next
//! one starts at the next multiple of the word size. That layout is the kernel's, the same for every Linux target.

use core::ffi::c_int;
use core::net::{Ipv4Addr, Ipv6Addr};

const WORD: usize = size_of::<usize>();
/// Bytes of a `cmsghdr`.
const HEADER: usize = WORD + 2 * size_of::<c_int>();
/// Room for every message we send: pktinfo, TOS, TTL, priority, segment size.
const CAPACITY: usize = 144;

const fn align(len: usize) -> usize {
    (len + WORD - 1) & !(WORD - 1)
}

/// A buffer of control messages, aligned as the kernel needs it.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Control {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl Control {
    /// An empty buffer.
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; CAPACITY], len: 0 }
    }

    /// The messages built so far.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Appends one message. All kinds of this module together fit, so a full buffer is a bug.
    fn push(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let start = self.len;
        let end = start + HEADER + data.len();
        assert!(end <= CAPACITY, "control buffer too small");
        self.bytes[start..start + WORD].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        self.bytes[start + WORD..start + WORD + 4].copy_from_slice(&level.to_ne_bytes());
        self.bytes[start + WORD + 4..start + HEADER].copy_from_slice(&kind.to_ne_bytes());
        self.bytes[start + HEADER..end].copy_from_slice(data);
        self.len = align(end).min(CAPACITY);
    }

    /// Source address and outgoing interface of an IPv4 packet (`ip(7)`, IP_PKTINFO); interface 0 leaves it to routing.
    pub(crate) fn push_source_v4(&mut self, source: Ipv4Addr, ifindex: u32) {
        let mut data = [0; 12];
        data[..4].copy_from_slice(&ifindex.to_ne_bytes());
        data[4..8].copy_from_slice(&source.octets());
        self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &data);
    }

    /// Source address and outgoing interface of an IPv6 packet (RFC 3542, 6.2); interface 0 leaves it to routing.
    pub(crate) fn push_source_v6(&mut self, source: Ipv6Addr, ifindex: u32) {
        let mut data = [0; 20];
        data[..16].copy_from_slice(&source.octets());
        data[16..].copy_from_slice(&ifindex.to_ne_bytes());
        self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &data);
    }

    /// The whole IPv4 TOS byte, ECN included.
    pub(crate) fn push_tos_v4(&mut self, tos: u8) {
        self.push(libc::IPPROTO_IP, libc::IP_TOS, &c_int::from(tos).to_ne_bytes());
    }

    /// The whole IPv6 traffic class, ECN included.
    pub(crate) fn push_class_v6(&mut self, class: u8) {
        self.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &c_int::from(class).to_ne_bytes());
    }

    /// IPv4 TTL, 1 to 255.
    pub(crate) fn push_ttl_v4(&mut self, ttl: u8) {
        self.push(libc::IPPROTO_IP, libc::IP_TTL, &c_int::from(ttl).to_ne_bytes());
    }

    /// IPv6 hop limit.
    pub(crate) fn push_hops_v6(&mut self, hops: u8) {
        self.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &c_int::from(hops).to_ne_bytes());
    }

    /// The packet's priority in the system's queues (`socket(7)`, SO_PRIORITY; as a control message since Linux 6.14). It must come
    /// after the TOS, which sets a priority, too.
    pub(crate) fn push_priority(&mut self, priority: u8) {
        self.push(libc::SOL_SOCKET, libc::SO_PRIORITY, &u32::from(priority).to_ne_bytes());
    }

    /// Asks the kernel to cut the datagram into segments of this many bytes (`udp(7)`, UDP_SEGMENT).
    pub(crate) fn push_segment(&mut self, size: u16) {
        self.push(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
    }
}

/// What the control messages of a received datagram say. A field without a message has its default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ancillary {
    /// Destination address of the packet's IP header.
    pub(crate) destination: Option<core::net::IpAddr>,
    /// Interface it arrived on, 0 if unknown.
    pub(crate) ifindex: u32,
    /// TOS or traffic class.
    pub(crate) tos: u8,
    /// TTL or hop limit, 0 if unknown.
    pub(crate) ttl: u8,
    /// Length of the segments that the kernel merged (UDP_GRO), 0 if it did not say.
    pub(crate) segment: usize,
}

/// Reads the control messages in `bytes`. Unknown ones are skipped; a damaged length ends the reading.
pub(crate) fn parse(mut bytes: &[u8]) -> Ancillary {
    let mut found = Ancillary::default();
    while let Some(header) = bytes.get(..HEADER) {
        let len = usize::from_ne_bytes(header[..WORD].try_into().unwrap_or_default());
        let Some(data) = bytes.get(HEADER..len) else { break };
        let level = int(&header[WORD..]);
        let kind = int(&header[WORD + 4..]);
        found.take(level, kind, data);
        bytes = bytes.get(align(len)..).unwrap_or_default();
    }
    found
}

impl Ancillary {
    fn take(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                if let Some(address) = data.get(8..12).and_then(|a| <[u8; 4]>::try_from(a).ok()) {
                    self.destination = Some(Ipv4Addr::from(address).into());
                    self.ifindex = int(data).cast_unsigned();
                }
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let (Some(address), Some(index)) =
                    (data.get(..16).and_then(|a| <[u8; 16]>::try_from(a).ok()), data.get(16..20))
                {
                    self.destination = Some(Ipv6Addr::from(address).into());
                    self.ifindex = int(index).cast_unsigned();
                }
            }
            // The IPv4 TOS comes as one byte, everything else as an int.
            (libc::IPPROTO_IP, libc::IP_TOS) => self.tos = data.first().copied().unwrap_or(0),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => self.tos = low_byte(int(data)),
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                self.ttl = low_byte(int(data));
            }
            (libc::SOL_UDP, libc::UDP_GRO) => self.segment = usize::try_from(int(data)).unwrap_or(0),
            _ => {}
        }
    }
}

fn int(data: &[u8]) -> c_int {
    data.get(..4).and_then(|d| d.try_into().ok()).map_or(0, c_int::from_ne_bytes)
}

fn low_byte(value: c_int) -> u8 {
    value.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pushed_is_parsed() {
        let mut control = Control::new();
        control.push_source_v6(Ipv6Addr::LOCALHOST, 7);
        control.push_class_v6(0xb9);
        control.push_hops_v6(64);
        control.push_segment(4128);
        let found = parse(control.as_bytes());
        assert_eq!(found.destination, Some(Ipv6Addr::LOCALHOST.into()));
        assert_eq!((found.ifindex, found.tos, found.ttl), (7, 0xb9, 64));
        // UDP_SEGMENT is sent as a 16-bit number and is not something a receiver is told.
        assert_eq!(found.segment, 0);
        assert_eq!(control.as_bytes().len(), 40 + 24 + 24 + 24);
    }

    #[test]
    fn damaged_lengths_end_the_walk() {
        for len in [0usize, 1, HEADER - 1, HEADER + 1000, usize::MAX, usize::MAX - 7] {
            let mut bytes = [0u8; 64];
            bytes[..WORD].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(parse(&bytes), Ancillary::default());
        }
        // Every cut of a good buffer is harmless.
        let mut control = Control::new();
        control.push_source_v4(Ipv4Addr::LOCALHOST, 1);
        control.push_ttl_v4(9);
        for cut in 0..control.as_bytes().len() {
            let _ = parse(&control.as_bytes()[..cut]);
        }
    }
}
