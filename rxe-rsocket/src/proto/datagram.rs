//! Headers of datagrams. Datagrams by UDP, which are used until the peer's queue pair is known, contain the sender's queue
//! pair. Datagrams between queue pairs contain the source address and port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The tag of our UDP datagrams.
const TAG: u32 = 0x5555_5555;
/// Bytes of a header between queue pairs, for IPv4 and IPv6.
const LENGTHS: [usize; 2] = [8, 24];
/// Bytes of a header by UDP.
const UDP_LENGTHS: [usize; 2] = [16, 28];

/// The purpose of a UDP datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It has data of the program; the receiver answers.
    Data,
    /// It only announces the queue pair.
    Answer,
}

/// The header by UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Introduction {
    /// Its purpose.
    pub kind: Kind,
    /// The sender's queue pair for its address; 24 bits.
    pub qpn: u32,
    /// The source address.
    pub from: IpAddr,
}

impl Introduction {
    /// Most bytes of a header.
    pub const MOST: usize = UDP_LENGTHS[1];

    /// The bytes to send.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = TAG.to_be_bytes().to_vec();
        let (version, len) = match self.from {
            IpAddr::V4(_) => (4, UDP_LENGTHS[0]),
            IpAddr::V6(_) => (6, UDP_LENGTHS[1]),
        };
        let kind = if self.kind == Kind::Data { 0 } else { 7 };
        out.extend([version, kind, len as u8, 0]);
        out.extend((self.qpn & 0xff_ffff).to_be_bytes());
        match self.from {
            IpAddr::V4(ip) => out.extend(ip.octets()),
            IpAddr::V6(ip) => out.extend(ip.octets()),
        }
        out
    }

    /// Parses a header. Returns it with the data behind it; `None` if it is not such a header.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let tag = u32::from_be_bytes(*bytes.first_chunk()?);
        let (version, kind, len) = (*bytes.get(4)?, *bytes.get(5)?, usize::from(*bytes.get(6)?));
        let kind = match kind {
            0 => Kind::Data,
            7 => Kind::Answer,
            _ => return None,
        };
        let header = bytes.get(..len)?;
        let from = match version {
            4 if len == UDP_LENGTHS[0] => IpAddr::V4(Ipv4Addr::from(*header.last_chunk::<4>()?)),
            6 if len == UDP_LENGTHS[1] => IpAddr::V6(Ipv6Addr::from(*header.last_chunk::<16>()?)),
            _ => return None,
        };
        let qpn = u32::from_be_bytes(header[8..12].try_into().ok()?) & 0xff_ffff;
        (tag == TAG).then(|| (Self { kind, qpn, from }, &bytes[len..]))
    }
}

/// The header between queue pairs: the source of a datagram.
#[must_use]
pub fn encode_source(from: SocketAddr) -> Vec<u8> {
    let mut out = Vec::with_capacity(LENGTHS[1]);
    match from {
        SocketAddr::V4(from) => {
            out.extend([4, LENGTHS[0] as u8]);
            out.extend(from.port().to_be_bytes());
            out.extend(from.ip().octets());
        }
        SocketAddr::V6(from) => {
            out.extend([6, LENGTHS[1] as u8]);
            out.extend(from.port().to_be_bytes());
            out.extend(from.flowinfo().to_be_bytes());
            out.extend(from.ip().octets());
        }
    }
    out
}

/// The source of a datagram, and its data; `None` if it has no such header.
#[must_use]
pub fn decode_source(bytes: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (version, len) = (*bytes.first()?, usize::from(*bytes.get(1)?));
    let header = bytes.get(..len)?;
    let port = u16::from_be_bytes(header.get(2..4)?.try_into().ok()?);
    let ip = match version {
        4 if len == LENGTHS[0] => IpAddr::V4(Ipv4Addr::from(*header.last_chunk::<4>()?)),
        6 if len == LENGTHS[1] => IpAddr::V6(Ipv6Addr::from(*header.last_chunk::<16>()?)),
        _ => return None,
    };
    Some((SocketAddr::new(ip, port), &bytes[len..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_field_has_its_place() {
        let told = Introduction { kind: Kind::Data, qpn: 0x0102_0304, from: "10.0.0.1".parse().unwrap() };
        let bytes = told.encode();
        assert_eq!(bytes, [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 2, 3, 4, 10, 0, 0, 1]);
        let told = Introduction { qpn: 0x02_0304, ..told };
        let with_data = [&bytes[..], b"data"].concat();
        assert_eq!(Introduction::decode(&with_data), Some((told, &b"data"[..])));
        let told = Introduction { kind: Kind::Answer, qpn: 1, from: "fd00::1".parse().unwrap() };
        let bytes = told.encode();
        assert_eq!((bytes.len(), bytes[4..7].to_vec()), (28, vec![6, 7, 28]));
        assert_eq!(Introduction::decode(&bytes), Some((told, &b""[..])));

        let bytes = encode_source("10.0.0.1:258".parse().unwrap());
        assert_eq!(bytes, [4, 8, 1, 2, 10, 0, 0, 1]);
        let bytes = [&encode_source("[fd00::1]:258".parse().unwrap())[..], b"x"].concat();
        assert_eq!((bytes.len(), &bytes[..8]), (25, &[6, 24, 1, 2, 0, 0, 0, 0][..]));
        assert_eq!(decode_source(&bytes), Some(("[fd00::1]:258".parse().unwrap(), &b"x"[..])));
    }

    proptest! {
        #[test]
        fn anything_may_come(bytes in prop::collection::vec(any::<u8>(), 0..40), tagged: bool) {
            let mut bytes = bytes;
            if tagged && bytes.len() > 6 {
                bytes[..4].copy_from_slice(&TAG.to_be_bytes());
                bytes[4] = if bytes[4] & 1 == 0 { 4 } else { 6 };
                bytes[5] = 0;
            }
            let _ = Introduction::decode(&bytes);
            let _ = decode_source(&bytes);
        }
    }
}
