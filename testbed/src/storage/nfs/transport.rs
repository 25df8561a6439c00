//! RPC over RDMA, version 1 (RFC 8166): the header in front of each message.

use super::xdr::{Reader, Writer, XdrError};

/// The version of the protocol.
const VERSION: u32 = 1;
/// Bytes of a message, header included, that both ends have receives for: what Linux has. Ends that do not say so count on
/// [`SHORTEST_MESSAGE`].
pub const MESSAGE: usize = 4096;
/// Bytes of a message that every end has receives for (RFC 8166, 3.3.2).
pub const SHORTEST_MESSAGE: usize = 1024;
/// Segments of a header at most.
const MOST_SEGMENTS: usize = 64;
/// What private data of RPC over RDMA begin with (RFC 8797, 4.1).
const PRIVATE_DATA: u32 = 0xf6ab_0e18;

/// A piece of the client's memory (RFC 8166, 3.4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Its R_Key.
    pub key: u32,
    /// Bytes.
    pub len: u32,
    /// Address of the first byte.
    pub addr: u64,
}

/// A piece of memory with a part of a call that was left out (RFC 8166, 3.4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadSegment {
    /// Where in the call it belongs; 0 if the whole call was left out.
    pub position: u32,
    /// Where it is.
    pub segment: Segment,
}

/// The memory that a header names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Chunks {
    /// What was left out of a call.
    pub reads: Vec<ReadSegment>,
    /// Where parts of the reply go, each in some segments; in a reply with the lengths that were written.
    pub writes: Vec<Vec<Segment>>,
    /// Where the whole reply goes if it is too long for a message.
    pub reply: Option<Vec<Segment>>,
}

/// What a message is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The call or reply follows (RDMA_MSG).
    Message(Chunks),
    /// It is elsewhere (RDMA_NOMSG).
    NoMessage(Chunks),
    /// The call could not be taken (RDMA_ERROR).
    Error(Refusal),
}

/// Why (RFC 8166, 4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Another version than 1.
    Version,
    /// The chunks make no sense, or the reply does not fit into them.
    Chunks,
}

/// A header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The number of the call.
    pub xid: u32,
    /// Calls that the client wants to have under way, or may have.
    pub credits: u32,
    /// What follows.
    pub kind: Kind,
}

/// Why a header was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderError {
    /// It is shorter than the fixed part, or nothing that a client may send: nobody can be told.
    Garbage,
    /// For this reason, which is to be told for this call.
    Refused(u32, Refusal),
}

impl Header {
    /// As it crosses; the call or reply is to follow.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.word(self.xid).word(VERSION).word(self.credits);
        match &self.kind {
            Kind::Message(chunks) => chunks.write(out.word(0_u32)),
            Kind::NoMessage(chunks) => chunks.write(out.word(1_u32)),
            Kind::Error(Refusal::Version) => drop(out.word(4_u32).word(1_u32).word(VERSION).word(VERSION)),
            Kind::Error(Refusal::Chunks) => drop(out.word(4_u32).word(2_u32)),
        }
        out.0
    }

    /// Reads one, and gives what follows it.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), HeaderError> {
        let mut from = Reader::new(bytes);
        let mut word = || from.word().map_err(|_| HeaderError::Garbage);
        let (xid, version, credits, kind) = (word()?, word()?, word()?, word()?);
        if version != VERSION {
            return Err(HeaderError::Refused(xid, Refusal::Version));
        }
        let mut chunks = || Chunks::read(&mut from).map_err(|_| HeaderError::Refused(xid, Refusal::Chunks));
        let kind = match kind {
            0 => Kind::Message(chunks()?),
            1 => Kind::NoMessage(chunks()?),
            4 => match from.word() {
                Ok(1) => Kind::Error(Refusal::Version),
                Ok(2) => Kind::Error(Refusal::Chunks),
                _ => return Err(HeaderError::Garbage),
            },
            _ => return Err(HeaderError::Garbage),
        };
        Ok((Self { xid, credits, kind }, from.rest()))
    }
}

impl Chunks {
    /// Each list ends with a 0.
    fn write(&self, out: &mut Writer) {
        for read in &self.reads {
            write_segment(out.word(1_u32).word(read.position), read.segment);
        }
        out.word(0_u32);
        for chunk in &self.writes {
            write_chunk(out.word(1_u32), chunk);
        }
        out.word(0_u32);
        match &self.reply {
            Some(chunk) => write_chunk(out.word(1_u32), chunk),
            None => drop(out.word(0_u32)),
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, XdrError> {
        let (mut chunks, mut left) = (Self::default(), MOST_SEGMENTS);
        while from.flag()? {
            left = left.checked_sub(1).ok_or(XdrError)?;
            let position = from.word()?;
            chunks.reads.push(ReadSegment { position, segment: read_segment(from)? });
        }
        while from.flag()? {
            chunks.writes.push(read_chunk(from, &mut left)?);
        }
        if from.flag()? {
            chunks.reply = Some(read_chunk(from, &mut left)?);
        }
        Ok(chunks)
    }
}

fn write_segment(out: &mut Writer, segment: Segment) {
    out.word(segment.key).word(segment.len).long(segment.addr);
}

fn write_chunk(out: &mut Writer, chunk: &[Segment]) {
    out.word(chunk.len() as u32);
    chunk.iter().for_each(|segment| write_segment(out, *segment));
}

fn read_segment(from: &mut Reader<'_>) -> Result<Segment, XdrError> {
    Ok(Segment { key: from.word()?, len: from.word()?, addr: from.long()? })
}

fn read_chunk(from: &mut Reader<'_>, left: &mut usize) -> Result<Vec<Segment>, XdrError> {
    let count = from.word()? as usize;
    // An empty one takes a place, too: a header may not have any number of those.
    *left = left.checked_sub(count.max(1)).ok_or(XdrError)?;
    (0..count).map(|_| read_segment(from)).collect()
}

/// The private data of a connection: how long messages may be, in kilobytes counted from 0 (RFC 8797, 4.1).
#[must_use]
pub fn private_data() -> [u8; 8] {
    let code = (MESSAGE / 1024 - 1) as u8;
    let [a, b, c, d] = PRIVATE_DATA.to_be_bytes();
    [a, b, c, d, 1, 0, code, code]
}

/// Bytes of a message that the peer has receives for, by its private data.
#[must_use]
pub fn longest_message(private_data: &[u8]) -> usize {
    match private_data {
        [a, b, c, d, 1, _, _, receives, ..] if [*a, *b, *c, *d] == PRIVATE_DATA.to_be_bytes() => {
            ((usize::from(*receives) + 1) * 1024).min(MESSAGE)
        }
        _ => SHORTEST_MESSAGE,
    }
}
