//! Writes and reads the headers in front of a packet on Ethernet. Nothing here makes system calls. Reading accepts any bytes:
//! the result is a run of packets or the reason why the frame is unusable.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::Range;
use rxe_core::wire::{BTH_LEN, Encapsulation, Grh, HeaderSeen, NEXT_HEADER_BTH, icrc::Route};

use super::drops::Unusable;
use crate::net::{ROCE_PORT, Run, Transmit, tap::Record};
use crate::sys::packet::{VNET_LEN, Vnet, VnetSeen};

/// A MAC address.
pub(crate) type Mac = [u8; 6];

pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
pub(super) const ETHERTYPE_ROCE_V1: u16 = 0x8915;

pub(in crate::net) const ETHERNET: usize = 14;
pub(super) const IPV4: usize = 20;
pub(super) const IPV6: usize = 40;
pub(super) const UDP: usize = 8;
const GRH: usize = 40;
const UDP_NUMBER: u8 = 17;
const DONT_FRAGMENT: u16 = 0x4000;
/// "More fragments", and the fragment offset: not zero in a fragment.
const FRAGMENT: u16 = 0x3fff;

/// All headers in front of a packet: the kernel's own header (`virtio_net_hdr`) if the socket wants it, Ethernet, and those of
/// the encapsulation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    bytes: [u8; VNET_LEN + ETHERNET + IPV6 + UDP],
    len: usize,
}

impl AsRef<[u8]> for Head {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Head {
    const fn new() -> Self {
        Self { bytes: [0; VNET_LEN + ETHERNET + IPV6 + UDP], len: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Writes the head of a frame with `payload` bytes of `batch` behind it. With `segment`, the kernel cuts the payload into
    /// packets of so many bytes. Else the payload is one packet, with IPv4 identification `ident`. `vnet` says that the socket
    /// wants the kernel's own header in front.
    pub(super) fn write(
        batch: &Transmit,
        (src, dst): Ends,
        payload: usize,
        ident: u16,
        segment: Option<u16>,
        vnet: bool,
    ) -> Self {
        let mut head = Self::new();
        // Over IPv4 a single packet has no UDP checksum, as with all RoCE peers. IPv6 requires a checksum (RFC 8200, 8.1), so
        // the kernel completes it (`unsummed`). Without `vnet` the kernel cannot, and the checksum is left out; peers accept
        // that.
        let unsummed = vnet && batch.encapsulation == Encapsulation::V2 && batch.dst.is_ipv6();
        if vnet {
            let v1 = batch.encapsulation == Encapsulation::V1;
            let udp = (ETHERNET + if batch.dst.is_ipv4() && !v1 { IPV4 } else { IPV6 }) as u16;
            let heads = udp + if v1 { 0 } else { UDP as u16 };
            // `heads` is how many bytes the kernel puts into the linear part of its buffer. A single packet goes there as a
            // whole: with a packet larger than a page, separate pages take the kernel and the filters as long again. Of a batch
            // only the bytes that filters read go there.
            let heads = heads + if segment.is_some() { BTH_LEN } else { payload } as u16;
            let unsummed = (unsummed || segment.is_some()).then_some(udp);
            head.push(&Vnet { heads, unsummed, segment: segment.unwrap_or(0) }.emit());
        }
        head.push(&dst);
        head.push(&src);
        let hops = batch.hops();
        if batch.encapsulation == Encapsulation::V1 {
            head.push(&ETHERTYPE_ROCE_V1.to_be_bytes());
            let route = Route::v1(batch.src, batch.dst);
            head.push(&Grh::new(&route, batch.tos, hops, payload).emit());
            return head;
        }
        let udp_len = (payload + UDP) as u16;
        match (batch.src, batch.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut ip = [0; IPV4];
                ip[..2].copy_from_slice(&[0x45, batch.tos]);
                ip[2..4].copy_from_slice(&udp_len.saturating_add(IPV4 as u16).to_be_bytes());
                ip[4..6].copy_from_slice(&ident.to_be_bytes());
                ip[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
                ip[8..10].copy_from_slice(&[hops, UDP_NUMBER]);
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..].copy_from_slice(&dst.octets());
                let sum = !folded(words(&ip));
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                head.push(&ETHERTYPE_IPV4.to_be_bytes());
                head.push(&ip);
            }
            (src, dst) => {
                head.push(&ETHERTYPE_IPV6.to_be_bytes());
                head.push(&(6 << 28 | u32::from(batch.tos) << 20).to_be_bytes());
                head.push(&udp_len.to_be_bytes());
                head.push(&[UDP_NUMBER, hops]);
                head.push(&octets(src));
                head.push(&octets(dst));
            }
        }
        let pseudo = words(&octets(batch.src)) + words(&octets(batch.dst));
        // `octets` maps IPv4 addresses. The 0xffff of a mapped address adds nothing in one's complement arithmetic.
        let sum = if segment.is_some() || unsummed {
            folded(pseudo + u32::from(UDP_NUMBER) + u32::from(udp_len))
        } else {
            0
        };
        head.push(&batch.source_port.to_be_bytes());
        head.push(&ROCE_PORT.to_be_bytes());
        head.push(&udp_len.to_be_bytes());
        head.push(&sum.to_be_bytes());
        head
    }
}

pub(super) fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn words(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum()
}

const fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// MAC addresses of the sender and of the receiver.
pub(super) type Ends = (Mac, Mac);

/// A frame's contents.
#[derive(Debug)]
pub(super) struct Read {
    /// The run of packets, without its interface and bytes, which the caller fills in.
    pub(super) run: Run<'static>,
    /// Where the packets lie in the frame.
    pub(super) place: Range<usize>,
}

/// Splits what a socket delivered into the kernel's header (if `vnet`) and the frame.
pub(super) fn split_vnet(bytes: &[u8], vnet: bool) -> Result<(VnetSeen, &[u8]), Unusable> {
    if !vnet {
        return Ok((VnetSeen::default(), bytes));
    }
    let (header, frame) = bytes.split_first_chunk().ok_or(Unusable::Short)?;
    Ok((VnetSeen::parse(header).ok_or(Unusable::Foreign)?, frame))
}

/// The head of packet `index` of a merged frame with this `head`. The packet has `payload` bytes. The result is what the kernel
/// would have written, without the UDP checksum.
pub(super) fn segment_head(head: &[u8], index: u16, payload: usize) -> Vec<u8> {
    let mut head = head.to_vec();
    let is_ipv4 = u16_at(&head, 12) == Ok(ETHERTYPE_IPV4);
    let udp = ETHERNET + if is_ipv4 { IPV4 } else { IPV6 };
    if head.len() < udp + UDP {
        return head;
    }
    let len = (payload + UDP) as u16;
    head[udp + 4..udp + 6].copy_from_slice(&len.to_be_bytes());
    let ip = &mut head[ETHERNET..udp];
    if is_ipv4 {
        let ident = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(index);
        ip[2..4].copy_from_slice(&len.saturating_add(IPV4 as u16).to_be_bytes());
        ip[4..6].copy_from_slice(&ident.to_be_bytes());
        ip[10..12].fill(0);
        let sum = !folded(words(ip));
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        ip[4..6].copy_from_slice(&len.to_be_bytes());
    }
    head
}

/// Writes the UDP checksum of a frame with one packet. Frames that are not UDP over IP stay unchanged.
pub(super) fn complete_udp(frame: &mut [u8]) {
    let (udp, addresses) = match u16_at(frame, 12) {
        Ok(ETHERTYPE_IPV4) => (ETHERNET + IPV4, ETHERNET + 12..ETHERNET + 20),
        Ok(ETHERTYPE_IPV6) => (ETHERNET + IPV6, ETHERNET + 8..ETHERNET + 40),
        _ => return,
    };
    let Ok(len) = u16_at(frame, udp + 4) else { return };
    let Some(datagram) = frame.get(udp..udp + usize::from(len)).filter(|_| usize::from(len) >= UDP) else {
        return;
    };
    let pseudo = words(&frame[addresses]) + u32::from(UDP_NUMBER) + u32::from(len);
    let mut sum = pseudo + words(&datagram[..6]) + words(&datagram[UDP..]);
    if let [.., last] = datagram[UDP..]
        && !datagram.len().is_multiple_of(2)
    {
        sum += u32::from(last) << 8;
    }
    // 0 would mean "no checksum" (RFC 768).
    let sum = match !folded(sum) {
        0 => u16::MAX,
        sum => sum,
    };
    frame[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
}

/// Replaces `frame` by a RoCEv2 frame for a packet whose headers are hidden. The MAC addresses are zero; all checksums are
/// right. Returns false if the address families differ or the packet is too long for IP.
pub(in crate::net) fn make_up(record: &Record<'_>, frame: &mut Vec<u8>) -> bool {
    let headers = UDP + if record.src.is_ipv4() { IPV4 } else { 0 };
    let payload = record.payload.len();
    if record.src.is_ipv4() != record.dst.is_ipv4() || payload + headers > usize::from(u16::MAX) {
        return false;
    }
    let batch = Transmit {
        src: record.src,
        dst: record.dst,
        ifindex: 0,
        source_port: record.source_port,
        tos: record.tos,
        hop_limit: record.ttl,
        encapsulation: Encapsulation::V2,
        segment_size: payload,
    };
    frame.clear();
    frame.extend(Head::write(&batch, Ends::default(), payload, record.ident, None, false).as_ref());
    frame.extend(record.payload);
    complete_udp(frame);
    true
}

/// Reads a frame of packets with `segment` bytes each. With `segment` 0 the frame is one packet of at most `largest` bytes.
/// Bytes beyond the length in the headers are Ethernet padding and are left out. `inside` says that it came by a loopback interface.
pub(super) fn read(frame: &[u8], segment: usize, largest: usize, inside: bool) -> Result<Read, Unusable> {
    let (mut run, place) = match u16_at(frame, 12)? {
        ETHERTYPE_IPV4 => read_ipv4(frame, ETHERNET)?,
        ETHERTYPE_IPV6 => read_ipv6(frame, ETHERNET)?,
        ETHERTYPE_ROCE_V1 => read_grh(frame, ETHERNET)?,
        _ => return Err(Unusable::Foreign),
    };
    // The system drops such packets where they come from outside (RFC 1122, 3.2.1.3). Whoever trusts this host's own relies on it.
    if !inside && run.src.to_canonical().is_loopback() {
        return Err(Unusable::Foreign);
    }
    if segment == 0 && place.len() > largest {
        return Err(Unusable::Merged);
    }
    run.segment_size = if (1..place.len()).contains(&segment) { segment } else { place.len() };
    Ok(Read { run, place })
}

fn read_ipv4(frame: &[u8], at: usize) -> Result<(Run<'static>, Range<usize>), Unusable> {
    let ip = frame.get(at..at + IPV4).ok_or(Unusable::Short)?;
    if ip[0] != 0x45 || ip[9] != UDP_NUMBER {
        return Err(Unusable::Foreign);
    }
    let fragment = u16::from_be_bytes([ip[6], ip[7]]);
    if fragment & FRAGMENT != 0 {
        return Err(Unusable::Fragment);
    }
    let len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let address = |at: usize| IpAddr::V4(Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]));
    let seen = HeaderSeen::Seen { ident: u16::from_be_bytes([ip[4], ip[5]]), fragment };
    let run = run((address(12), address(16)), (ip[1], ip[8]), seen);
    read_udp(frame, at + IPV4, at + len, run)
}

fn read_ipv6(frame: &[u8], at: usize) -> Result<(Run<'static>, Range<usize>), Unusable> {
    let ip = frame.get(at..at + IPV6).ok_or(Unusable::Short)?;
    if ip[0] >> 4 != 6 || ip[6] != UDP_NUMBER {
        return Err(Unusable::Foreign);
    }
    let end = at + IPV6 + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    let seen = HeaderSeen::Seen { ident: 0, fragment: 0 };
    let addresses = (address_v6(ip, 8)?.into(), address_v6(ip, 24)?.into());
    read_udp(frame, at + IPV6, end, run(addresses, (ip[0] << 4 | ip[1] >> 4, ip[7]), seen))
}

fn read_udp(
    frame: &[u8],
    at: usize,
    end: usize,
    mut run: Run<'static>,
) -> Result<(Run<'static>, Range<usize>), Unusable> {
    if u16_at(frame, at + 2)? != ROCE_PORT {
        return Err(Unusable::Foreign);
    }
    run.src_port = u16_at(frame, at)?;
    let len = usize::from(u16_at(frame, at + 4)?);
    if end > frame.len() || len <= UDP || at + len > end {
        return Err(Unusable::Length);
    }
    Ok((run, at + UDP..at + len))
}

fn read_grh(frame: &[u8], at: usize) -> Result<(Run<'static>, Range<usize>), Unusable> {
    let grh = frame.get(at..at + GRH).ok_or(Unusable::Short)?;
    if grh[0] >> 4 != 6 || grh[6] != NEXT_HEADER_BTH {
        return Err(Unusable::Foreign);
    }
    let start = at + GRH;
    let end = start + usize::from(u16::from_be_bytes([grh[4], grh[5]]));
    if end > frame.len() || end == start {
        return Err(Unusable::Length);
    }
    let addresses = (address_v6(grh, 8)?.to_canonical(), address_v6(grh, 24)?.to_canonical());
    Ok((run(addresses, (grh[0] << 4 | grh[1] >> 4, grh[7]), HeaderSeen::Grh), start..end))
}

const fn run((src, dst): (IpAddr, IpAddr), (tos, ttl): (u8, u8), seen: HeaderSeen) -> Run<'static> {
    Run { src, src_port: 0, dst, ifindex: 0, tos, ttl, seen, segment_size: 0, bytes: &[] }
}

fn address_v6(bytes: &[u8], at: usize) -> Result<Ipv6Addr, Unusable> {
    let octets: [u8; 16] =
        bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(Unusable::Short)?;
    Ok(Ipv6Addr::from(octets))
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Unusable> {
    let pair = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Unusable::Short)?;
    Ok(u16::from_be_bytes(*pair))
}

#[cfg(test)]
mod tests;
