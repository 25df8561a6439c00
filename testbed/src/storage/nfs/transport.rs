//! RPC over RDMA, version 1 (RFC 8166): the header in front of each message.

use super::xdr::{Reader, Writer, XdrError};

/// The version of the protocol.
const VERSION: u32 = 1;
/// Size of the largest message that both ends can receive, in bytes, header included: the value that Linux uses. If an end
/// does not announce its size, [`SHORTEST_MESSAGE`] is assumed for it.
pub const MESSAGE: usize = 4096;
/// Size of a message that every end can receive, in bytes (RFC 8166, 3.3.2).
pub const SHORTEST_MESSAGE: usize = 1024;
/// Maximum number of segments in a header.
const MOST_SEGMENTS: usize = 64;
/// The first bytes of the private data of RPC over RDMA (RFC 8797, 4.1).
const PRIVATE_DATA: u32 = 0xf6ab_0e18;

/// A piece of the client's memory (RFC 8166, 3.4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Its R_Key.
    pub key: u32,
    /// Length in bytes.
    pub len: u32,
    /// Address of the first byte.
    pub addr: u64,
}

/// A piece of memory that holds a part of a call that was left out of the message (RFC 8166, 3.4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadSegment {
    /// The offset of the part in the call; 0 if the whole call was left out.
    pub position: u32,
    /// The place of the memory.
    pub segment: Segment,
}

/// The memory that a header names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Chunks {
    /// The parts that were left out of a call.
    pub reads: Vec<ReadSegment>,
    /// Memory for parts of the reply, each of several segments. In a reply, with the lengths that were written.
    pub writes: Vec<Vec<Segment>>,
    /// Memory for the whole reply if it is too long for a message.
    pub reply: Option<Vec<Segment>>,
}

/// The type of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The call or reply follows (RDMA_MSG).
    Message(Chunks),
    /// The call or reply is in memory that the header names (RDMA_NOMSG).
    NoMessage(Chunks),
    /// The call could not be processed (RDMA_ERROR).
    Error(Refusal),
}

/// The reason of an RDMA_ERROR (RFC 8166, 4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The version is not 1.
    Version,
    /// The chunks are invalid, or the reply does not fit into them.
    Chunks,
}

/// A header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The ID of the call (XID).
    pub xid: u32,
    /// Credits: the number of outstanding calls that the client requests, or that the server grants.
    pub credits: u32,
    /// The type of the message.
    pub kind: Kind,
}

/// Why a header was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderError {
    /// It is shorter than the fixed part, or of a type that a client must not send. No error can be sent back.
    Garbage,
    /// It was refused for this reason, which has to be sent back for this call.
    Refused(u32, Refusal),
}

impl Header {
    /// Encodes the header; the call or reply is to follow.
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

    /// Decodes a header, and returns the bytes that follow it.
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
    /// Writes the lists of chunks. Each list ends with a 0.
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
    // An empty chunk counts, too, so that a header cannot have an unlimited number of them.
    *left = left.checked_sub(count.max(1)).ok_or(XdrError)?;
    (0..count).map(|_| read_segment(from)).collect()
}

/// The private data of a connection: the sizes of messages in kilobytes, counted from 0 (RFC 8797, 4.1).
#[must_use]
pub fn private_data() -> [u8; 8] {
    let code = (MESSAGE / 1024 - 1) as u8;
    let [a, b, c, d] = PRIVATE_DATA.to_be_bytes();
    [a, b, c, d, 1, 0, code, code]
}

/// The size of the longest message that the peer receives, according to its private data.
#[must_use]
pub fn longest_message(private_data: &[u8]) -> usize {
    match private_data {
        [a, b, c, d, 1, _, _, receives, ..] if [*a, *b, *c, *d] == PRIVATE_DATA.to_be_bytes() => {
            ((usize::from(*receives) + 1) * 1024).min(MESSAGE)
        }
        _ => SHORTEST_MESSAGE,
    }
}
