//! Private data: bytes that applications send along, and the header by which rdma_cm puts IP addresses into them (IBTA annex A11).

use core::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};
use thiserror::Error;

/// More private data than the message has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{len} bytes of private data, at most {limit} fit")]
pub struct TooLong {
    /// Bytes wanted.
    pub len: usize,
    /// Bytes that fit.
    pub limit: usize,
}

/// A message's private data. It always has the full length, filled up with zeroes. The receiver cannot tell how long the data was.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData<const N: usize>(pub [u8; N]);

impl<const N: usize> PrivateData<N> {
    /// Bytes that fit.
    pub const LIMIT: usize = N;

    /// `data`, followed by zeroes.
    ///
    /// # Errors
    /// [`TooLong`] if it does not fit.
    pub fn new(data: &[u8]) -> Result<Self, TooLong> {
        let mut out = Self::default();
        out.put(0, data)?;
        Ok(out)
    }

    /// An IP CM header with `data` and zeroes behind it: private data of a REQ (56 bytes of `data` at most) or SIDR_REQ (180).
    ///
    /// # Errors
    /// [`TooLong`] if it does not fit.
    pub fn with_header(header: &CmaHeader, data: &[u8]) -> Result<Self, TooLong> {
        let mut out = Self::default();
        out.put(0, &header.emit())?;
        out.put(CMA_HEADER_LEN, data)?;
        Ok(out)
    }

    fn put(&mut self, at: usize, data: &[u8]) -> Result<(), TooLong> {
        let limit = N.saturating_sub(at);
        if data.len() > limit {
            return Err(TooLong { len: data.len(), limit });
        }
        self.0[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    /// Reads the IP CM header at the front; the application's data follows it.
    ///
    /// # Errors
    /// [`CmaError`] if there is no such header.
    pub fn split_header(&self) -> Result<(CmaHeader, &[u8]), CmaError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(CmaError::Short)?;
        Ok((CmaHeader::parse(head)?, rest))
    }
}

impl<const N: usize> Default for PrivateData<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> fmt::Debug for PrivateData<N> {
    /// Hexadecimal, without the zeroes at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.0.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        for byte in &self.0[..len] {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "[{len}/{N}]")
    }
}

/// Size of the IP CM header, bytes.
pub const CMA_HEADER_LEN: usize = 36;

/// The header in front of a REQ's or SIDR_REQ's private data: the IP addresses of both ends. The destination port is in the service ID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmaHeader {
    /// The sender's port.
    pub src_port: u16,
    /// The sender's address.
    pub src: IpAddr,
    /// The address it wants to reach, of the same family.
    pub dst: IpAddr,
}

/// Why private data holds no IP CM header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum CmaError {
    /// The message's private data is shorter than the header.
    #[error("private data shorter than an IP CM header")]
    Short,
    /// A version other than 0.0.
    #[error("IP CM header of version {0:#04x}")]
    Version(u8),
    /// Neither IPv4 nor IPv6; the peer may use native InfiniBand addresses.
    #[error("IP version {0} is neither 4 nor 6")]
    Family(u8),
}

impl CmaHeader {
    const SRC: usize = 4;
    const DST: usize = 20;
    /// Where an IPv4 address stands in the 16 bytes of an address.
    const V4: usize = 12;

    /// Reads a header. Bytes that an IPv4 address does not use are ignored.
    ///
    /// # Errors
    /// [`CmaError::Version`] or [`CmaError::Family`].
    pub fn parse(bytes: &[u8; CMA_HEADER_LEN]) -> Result<Self, CmaError> {
        if bytes[0] != 0 {
            return Err(CmaError::Version(bytes[0]));
        }
        let family = bytes[1] >> 4;
        let address = |at: usize| -> Result<IpAddr, CmaError> {
            let mut octets = [0; 16];
            octets.copy_from_slice(&bytes[at..at + 16]);
            match (family, octets[Self::V4..].first_chunk::<4>()) {
                (4, Some(v4)) => Ok(Ipv4Addr::from(*v4).into()),
                (6, _) => Ok(Ipv6Addr::from(octets).into()),
                _ => Err(CmaError::Family(family)),
            }
        };
        Ok(Self {
            src_port: u16::from_be_bytes([bytes[2], bytes[3]]),
            src: address(Self::SRC)?,
            dst: address(Self::DST)?,
        })
    }

    /// Writes the header. If the families differ, both are written as IPv6.
    #[must_use]
    pub fn emit(&self) -> [u8; CMA_HEADER_LEN] {
        let mut out = [0; CMA_HEADER_LEN];
        out[2..4].copy_from_slice(&self.src_port.to_be_bytes());
        if let (IpAddr::V4(src), IpAddr::V4(dst)) = (self.src, self.dst) {
            out[1] = 4 << 4;
            out[Self::SRC + Self::V4..Self::SRC + 16].copy_from_slice(&src.octets());
            out[Self::DST + Self::V4..Self::DST + 16].copy_from_slice(&dst.octets());
        } else {
            let octets = |address: IpAddr| match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            out[1] = 6 << 4;
            out[Self::SRC..Self::SRC + 16].copy_from_slice(&octets(self.src));
            out[Self::DST..Self::DST + 16].copy_from_slice(&octets(self.dst));
        }
        out
    }
}
