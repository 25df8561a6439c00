//! Whole RoCEv2 packets built byte by byte, and the raw socket that sends them under any source address. None of it is
//! the library's: a mistake there would not be made here too.

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    io,
    net::{IpAddr, SocketAddr},
};

const ROCE_PORT: u16 = 4791;
/// `IPPROTO_RAW`: the caller brings the IP header.
const OWN_HEADER: i32 = 255;
/// Identification of the IPv4 packets. Not 0, for which the system would put another.
const IDENT: u16 = 1;

/// A packet to be.
#[derive(Clone, Debug)]
pub(crate) struct Forgery {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) opcode: u8,
    pub(crate) version: u8,
    pub(crate) pkey: u16,
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    /// Extension headers and payload, a multiple of four bytes.
    pub(crate) body: Vec<u8>,
    /// Bytes of the packet that are left in front of the ICRC; the ICRC is right for them.
    pub(crate) keep: usize,
    /// A bit of the ICRC is turned.
    pub(crate) spoilt: bool,
}

impl Forgery {
    /// BTH to ICRC.
    fn packet(&self) -> Vec<u8> {
        let mut packet = vec![self.opcode, self.version];
        packet.extend(self.pkey.to_be_bytes());
        packet.extend(self.qpn.to_be_bytes());
        // It asks for an acknowledgement.
        packet.extend((0x8000_0000 | self.psn & 0xff_ffff).to_be_bytes());
        packet.extend(&self.body);
        packet.truncate(self.keep);
        let icrc = self.icrc(&packet) ^ u32::from(self.spoilt) << 9;
        packet.extend(icrc.to_le_bytes());
        packet
    }

    /// IP and UDP header in front of `payload` bytes. The UDP checksum is 0, as RoCE NICs send it.
    fn headers(&self, payload: usize) -> Vec<u8> {
        let udp_len = payload as u16 + 8;
        let mut headers = Vec::new();
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                headers.extend([0x45, 0]);
                headers.extend((udp_len + 20).to_be_bytes());
                headers.extend(IDENT.to_be_bytes());
                // Don't fragment; TTL; UDP; the system fills in the checksum.
                headers.extend([0x40, 0, 64, 17, 0, 0]);
                headers.extend(src.octets());
                headers.extend(dst.octets());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                headers.extend([0x60, 0, 0, 0]);
                headers.extend(udp_len.to_be_bytes());
                headers.extend([17, 64]);
                headers.extend(src.octets());
                headers.extend(dst.octets());
            }
            _ => panic!("two families"),
        }
        for field in [0xc123, ROCE_PORT, udp_len, 0] {
            headers.extend(field.to_be_bytes());
        }
        headers
    }

    /// The invariant CRC (IBTA vol. 1, 7.8.1, and annex A17), from the definition.
    fn icrc(&self, packet: &[u8]) -> u32 {
        let mut masked = self.headers(packet.len() + 4);
        let (changing, udp): (&[usize], usize) =
            if self.src.is_ipv4() { (&[1, 8, 10, 11], 20) } else { (&[1, 2, 3, 7], 40) };
        changing.iter().for_each(|at| masked[*at] = 0xff);
        if self.src.is_ipv6() {
            masked[0] |= 0x0f;
        }
        masked[udp + 6..udp + 8].fill(0xff);
        let mut packet = packet.to_vec();
        if let Some(congestion) = packet.get_mut(4) {
            *congestion = 0xff;
        }
        crc32fast::hash(&[&[0xff; 8][..], &masked, &packet].concat())
    }

    /// The IP packet.
    fn whole(&self) -> Vec<u8> {
        let packet = self.packet();
        [self.headers(packet.len()), packet].concat()
    }
}

/// A socket that sends packets with their IP headers as they are.
pub(crate) struct Injector(Socket);

impl Injector {
    /// To be made in the namespace it is to send in; needs CAP_NET_RAW there.
    pub(crate) fn new(ipv4: bool) -> io::Result<Self> {
        let domain = if ipv4 { Domain::IPV4 } else { Domain::IPV6 };
        Socket::new(domain, Type::RAW, Some(Protocol::from(OWN_HEADER))).map(Self)
    }

    pub(crate) fn inject(&self, forgery: &Forgery) {
        let to = SockAddr::from(SocketAddr::new(forgery.dst, 0));
        let packet = forgery.whole();
        assert_eq!(self.0.send_to(&packet, &to).expect("the packet leaves"), packet.len());
    }
}
