//! Headers at the start of messages to a tag matching queue (`infiniband/tm_types.h`; all fields in network order).

use rxe_core::{num::Key, work::Remote};

/// Bytes of the tag matching header (struct ibv_tmh).
pub(super) const TMH: usize = 16;
/// Bytes of the tag matching header and the rendezvous header behind it (struct ibv_rvh).
pub(super) const BOTH: usize = 32;

/// What a message is for (enum ibv_tmh_op).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Has no tag: the receiving program gets the whole message. It may be only one byte long.
    NoTag,
    /// The data is in the sender's memory, and the receiver has to read it.
    Rendezvous,
    /// Notice to the sender: the data of its rendezvous has been read.
    Finished,
    /// The data follows the header.
    Eager,
}

/// Number of [`Kind::Finished`] in the header.
const FINISHED: u8 = 2;

/// The tag matching header: the first [`TMH`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// A value of the sender's own.
    pub(super) app_ctx: u32,
    pub(super) tag: u64,
}

/// Where the data of a rendezvous is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rendezvous {
    pub(super) from: Remote,
    /// Bytes.
    pub(super) len: u32,
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

impl Header {
    /// Parses a message's first bytes. `None` if the kind is unknown, or if there are too few bytes for it.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let kind = match bytes.first()? {
            0 => return Some(Self { kind: Kind::NoTag, app_ctx: 0, tag: 0 }),
            1 => Kind::Rendezvous,
            &FINISHED => Kind::Finished,
            3 => Kind::Eager,
            _ => return None,
        };
        let app_ctx = u32::from_be_bytes(field(bytes, 4)?);
        let tag = u64::from_be_bytes(field(bytes, 8)?);
        Some(Self { kind, app_ctx, tag })
    }
}

impl Rendezvous {
    /// Parses the first bytes of a rendezvous message. `None` if there are too few.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let addr = u64::from_be_bytes(field(bytes, TMH)?);
        let rkey = Key(u32::from_be_bytes(field(bytes, TMH + 8)?));
        let len = u32::from_be_bytes(field(bytes, TMH + 12)?);
        Some(Self { from: Remote { addr, rkey }, len })
    }
}

/// The notice that tells the sender that its data has been read: the sender's own headers, with another kind.
pub(super) fn finished(mut headers: [u8; BOTH]) -> [u8; BOTH] {
    headers[0] = FINISHED;
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_header_file_has_them() {
        let mut bytes = [0; BOTH];
        bytes[0] = 1;
        bytes[4..8].copy_from_slice(&[1, 2, 3, 4]);
        bytes[8..16].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0x12, 0x34]);
        bytes[16..24].copy_from_slice(&[0, 0, 0x7f, 0, 0, 0, 0x10, 0]);
        bytes[24..28].copy_from_slice(&[0, 0, 9, 8]);
        bytes[28..32].copy_from_slice(&[0, 1, 0, 0]);
        let header = Header::parse(&bytes).unwrap();
        assert_eq!(header, Header { kind: Kind::Rendezvous, app_ctx: 0x0102_0304, tag: 0x1234 });
        let remote = Remote { addr: 0x7f00_0000_1000, rkey: Key(0x908) };
        assert_eq!(Rendezvous::parse(&bytes), Some(Rendezvous { from: remote, len: 0x1_0000 }));
        let told = finished(bytes);
        assert_eq!(Header::parse(&told).unwrap().kind, Kind::Finished);
        assert_eq!(told[1..], bytes[1..]);
    }

    #[test]
    fn what_is_too_short_or_unknown_is_none() {
        assert_eq!(Header::parse(&[]), None);
        assert_eq!(Header::parse(&[0]).unwrap().kind, Kind::NoTag);
        for kind in 1..=3 {
            let mut bytes = [0; TMH];
            bytes[0] = kind;
            assert!(Header::parse(&bytes).is_some());
            assert_eq!(Header::parse(&bytes[..TMH - 1]), None);
            assert_eq!(Rendezvous::parse(&bytes), None);
        }
        assert_eq!(Header::parse(&[4; BOTH]), None);
    }
}
