//! A whole packet, which is the payload of a UDP datagram: BTH, extension headers, payload, pad and ICRC.

use super::{
    bth::Bth,
    ext::Ext,
    opcode::{BTH_LEN, Opcode, OpcodeInfo},
};
use thiserror::Error;

/// Size of the invariant CRC behind every packet, bytes.
pub const ICRC_LEN: usize = 4;

/// Why a datagram is not a packet. Such datagrams are dropped and counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DecodeError {
    /// It is shorter than a BTH and an ICRC.
    #[error("datagram shorter than a base transport header and its ICRC")]
    Short,
    /// The opcode is not in the table.
    #[error("unknown opcode {0:?}")]
    Opcode(Opcode),
    /// It is shorter than the headers of its opcode, its pad and its ICRC.
    #[error("datagram shorter than the headers of its opcode")]
    Headers,
    /// The transport header version is not 0.
    #[error("transport version {0} is not 0")]
    Version(u8),
    /// It has this many bytes of payload, but its opcode has none.
    #[error("payload of {0} bytes behind an opcode without payload")]
    Payload(usize),
}

/// A decoded packet; the payload is borrowed from the datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// The opcode's row of the table.
    pub info: &'static OpcodeInfo,
    /// Extension headers.
    pub ext: Ext,
    /// Payload without its pad.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Decodes a UDP payload. The last four bytes are the ICRC; it is not checked (see `icrc`).
    ///
    /// # Errors
    /// [`DecodeError`] says what is wrong; nothing panics whatever the bytes are.
    pub fn decode(datagram: &'a [u8]) -> Result<Self, DecodeError> {
        let head = datagram.first_chunk().ok_or(DecodeError::Short)?;
        let (bth, info, end) = Head::parse(head, datagram.len())?;
        let payload = &datagram[info.header_len..end];
        Ok(Self { bth, info, ext: Ext::parse(info.extensions, &datagram[BTH_LEN..]), payload })
    }
}

/// Why no headers could be read from the front of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum HeadError {
    /// The front ends before the headers end.
    #[error("{have} of {need} bytes of headers are there")]
    Cut {
        /// Bytes that are there.
        have: usize,
        /// Bytes that the headers take: those of the BTH alone if even that is cut.
        need: usize,
    },
    /// The datagram is no packet.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// The headers of a packet of which maybe only the front is known, as in captures that keep a limited number of bytes of each packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Base transport header.
    pub bth: Bth,
    /// The opcode's row of the table.
    pub info: &'static OpcodeInfo,
    /// Extension headers.
    pub ext: Ext,
    /// Bytes of payload on the wire, without the pad.
    pub payload_len: usize,
}

impl Head {
    /// Reads the BTH of a datagram of `len` bytes. Also returns the row of its opcode, and where the payload ends.
    #[inline]
    fn parse(head: &[u8; BTH_LEN], len: usize) -> Result<(Bth, &'static OpcodeInfo, usize), DecodeError> {
        let end = len.checked_sub(ICRC_LEN).filter(|&end| end >= BTH_LEN).ok_or(DecodeError::Short)?;
        let bth = Bth::parse(head);
        let info = bth.opcode.info().ok_or(DecodeError::Opcode(bth.opcode))?;
        if bth.version != 0 {
            return Err(DecodeError::Version(bth.version));
        }
        let Some(end) = end.checked_sub(bth.pad as usize).filter(|&end| end >= info.header_len) else {
            return Err(DecodeError::Headers);
        };
        if !info.payload && end > info.header_len {
            return Err(DecodeError::Payload(end - info.header_len));
        }
        Ok((bth, info, end))
    }

    /// Decodes the headers at the front of a UDP payload that has `len` bytes on the wire, with the same checks as [`Packet::decode`].
    ///
    /// # Errors
    /// [`HeadError`] says what is wrong or missing; nothing panics whatever the bytes are.
    pub fn decode(front: &[u8], len: usize) -> Result<Self, HeadError> {
        if len < BTH_LEN + ICRC_LEN {
            return Err(DecodeError::Short.into());
        }
        let cut = |need| HeadError::Cut { have: front.len(), need };
        let (bth, info, end) = Self::parse(front.first_chunk().ok_or_else(|| cut(BTH_LEN))?, len)?;
        let extensions = front.get(BTH_LEN..info.header_len).ok_or_else(|| cut(info.header_len))?;
        let payload_len = end - info.header_len;
        Ok(Self { bth, info, ext: Ext::parse(info.extensions, extensions), payload_len })
    }
}

/// Size on the wire, BTH to ICRC, of a packet of `opcode` with this many bytes of payload. 0 if the opcode is unknown.
#[must_use]
pub fn wire_len(opcode: Opcode, payload: usize) -> usize {
    opcode.info().map_or(0, |info| info.header_len + payload.next_multiple_of(4) + ICRC_LEN)
}

/// Writes a packet's headers, with the pad count, and its pad into `out`, and returns the place for its payload. The last four bytes are
/// left for the ICRC. `None` if the length of `out` is not [`wire_len`], or if the opcode is unknown.
pub fn emit<'a>(bth: &Bth, ext: &Ext, payload: usize, out: &'a mut [u8]) -> Option<&'a mut [u8]> {
    let info = bth.opcode.info()?;
    if out.len() != wire_len(bth.opcode, payload) {
        return None;
    }
    let pad = payload.next_multiple_of(4) - payload;
    out[..BTH_LEN].copy_from_slice(&Bth { pad: pad as u8, ..*bth }.emit());
    ext.emit(info.extensions, &mut out[BTH_LEN..]);
    let end = info.header_len + payload;
    out[end..end + pad].fill(0);
    Some(&mut out[info.header_len..end])
}
