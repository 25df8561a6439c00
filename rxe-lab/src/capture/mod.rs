//! Capture files: pcap and pcapng, from a file, a pipe, or a file that still grows. For any bytes the result is a record, the
//! end, or an error that describes the damage. Memory is bounded by the largest accepted record.

mod follow;

pub use follow::Follow;

use pcap_parser::{
    Block, PcapBlockOwned, PcapError,
    pcapng::{EnhancedPacketBlock, OptionCode},
    traits::{PcapNGPacketBlock, PcapReaderIterator},
};
use std::{
    fmt,
    io::{self, Read},
};
use thiserror::Error;

/// Bytes that are read at first, because most captures are small.
const CAPACITY: usize = 1 << 13;
/// Bytes that are read at a time from larger captures.
const COMFORTABLE: usize = 1 << 18;
/// The largest accepted record.
const LARGEST: usize = 32 << 20;
/// Bytes of a pcapng section's first block that contain its length.
const BLOCK_HEAD: u64 = 12;
/// The largest accepted first block.
const LARGEST_FIRST: u64 = 1 << 16;
/// The option of a pcapng packet that has its flags (4.3.1), of which the lowest two bits are the direction.
const FLAGS: OptionCode = OptionCode(2);

/// How the bytes of a record begin (the tcpdump group's LINKTYPE numbers).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkType {
    /// Ethernet.
    Ethernet,
    /// Linux "cooked" captures (`-i any`).
    Sll,
    /// Their second version.
    Sll2,
    /// IPv4 or IPv6, told apart by the first byte.
    RawIp,
    /// BSD loopback: four bytes of address family.
    Null,
    /// Another link type.
    Other(i32),
}

impl LinkType {
    const fn from_number(number: i32) -> Self {
        match number {
            1 => Self::Ethernet,
            113 => Self::Sll,
            276 => Self::Sll2,
            12 | 14 | 101 | 228 | 229 => Self::RawIp,
            0 | 108 => Self::Null,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ethernet => f.write_str("Ethernet"),
            Self::Sll => f.write_str("Linux cooked"),
            Self::Sll2 => f.write_str("Linux cooked v2"),
            Self::RawIp => f.write_str("raw IP"),
            Self::Null => f.write_str("BSD loopback"),
            Self::Other(number) => write!(f, "link type {number}"),
        }
    }
}

/// One captured frame.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Its time, in nanoseconds since 1970; 0 if the capture has none.
    pub time: u64,
    /// How its bytes begin.
    pub link: LinkType,
    /// The interface it was seen on, by its number in the capture.
    pub interface: u32,
    /// The direction in a pcapng file: 1 for inbound, 2 for outbound, 0 if unknown (pcapng, 4.3.1).
    pub direction: u8,
    /// Bytes of the frame on the wire.
    pub wire_len: usize,
    /// The captured bytes.
    pub data: &'a [u8],
}

/// Why there are no records, or no more.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The source cannot be read.
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    /// It is not a capture file.
    #[error("is neither a pcap nor a pcapng file")]
    NotACapture,
    /// It is empty.
    #[error("is empty")]
    Empty,
    /// It ends in the middle of a record, for example because it was copied while it was written.
    #[error("ends in the middle of a record, {at} bytes from its start")]
    CutShort {
        /// The offset of that record.
        at: u64,
    },
    /// Bytes that are not a record.
    #[error("is damaged {at} bytes from its start: {what}")]
    Damaged {
        /// Their offset.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link: LinkType,
    /// Units of its clock in a second.
    resolution: u64,
    /// Seconds to add to its times.
    offset: i64,
    /// Bytes that are kept of each frame; 0 for all.
    snaplen: u32,
}

impl Interface {
    fn time(&self, units: u64) -> u64 {
        let seconds = i128::from(units / self.resolution) + i128::from(self.offset);
        let part = i128::from(units % self.resolution) * 1_000_000_000 / i128::from(self.resolution);
        u64::try_from(seconds * 1_000_000_000 + part).unwrap_or(0)
    }
}

/// Reads a capture record by record.
pub struct Capture {
    reader: Box<dyn PcapReaderIterator + Send>,
    interfaces: Vec<Interface>,
    /// The byte order of the present pcapng section.
    big_endian: bool,
    /// Bytes of the block that was given out last.
    given: usize,
    read: u64,
    /// Whether damage was reported already.
    ended: bool,
    capacity: usize,
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("interfaces", &self.interfaces).field("read", &self.read).finish()
    }
}

impl Capture {
    /// Begins to read.
    ///
    /// # Errors
    /// [`CaptureError`] if it is not a capture, or cannot be read.
    pub fn new(mut source: impl Read + Send + 'static) -> Result<Self, CaptureError> {
        // A pipe may give only a few bytes at first, but the parser needs the whole first block at once.
        let mut front = Vec::new();
        source.by_ref().take(BLOCK_HEAD).read_to_end(&mut front)?;
        if front.is_empty() {
            return Err(CaptureError::Empty);
        }
        let whole = first_len(&front).filter(|len| *len <= LARGEST_FIRST).ok_or(CaptureError::NotACapture)?;
        source.by_ref().take(whole.saturating_sub(front.len() as u64)).read_to_end(&mut front)?;
        if (front.len() as u64) < whole {
            return Err(CaptureError::CutShort { at: 0 });
        }
        let reader = pcap_parser::create_reader(CAPACITY, io::Cursor::new(front).chain(source));
        let reader = reader.map_err(|_| CaptureError::NotACapture)?;
        Ok(Self {
            reader,
            interfaces: Vec::new(),
            big_endian: false,
            given: 0,
            read: 0,
            ended: false,
            capacity: CAPACITY,
        })
    }

    /// Bytes of the capture that were read.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.read
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// [`CaptureError`] once, if the capture is truncated or damaged; `None` after that.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, CaptureError> {
        if self.ended {
            return Ok(None);
        }
        match self.advance() {
            Ok(true) => {}
            Ok(false) => {
                self.ended = true;
                return Ok(None);
            }
            Err(error) => {
                self.ended = true;
                return Err(error);
            }
        }
        // The parser returns the block again, because it was not consumed.
        let Ok((_, block)) = self.reader.next() else { return Ok(None) };
        Ok(record(block, &self.interfaces))
    }

    /// Goes to the next block that is a record. `false` at the end.
    fn advance(&mut self) -> Result<bool, CaptureError> {
        self.reader.consume(self.given);
        self.read += self.given as u64;
        self.given = 0;
        loop {
            let damaged = |what| CaptureError::Damaged { at: self.read, what };
            let had = self.reader.data().len();
            match self.reader.next() {
                Ok((len, block)) => {
                    let found = match &block {
                        PcapBlockOwned::LegacyHeader(header) => {
                            self.interfaces = vec![legacy(header)];
                            false
                        }
                        PcapBlockOwned::NG(Block::SectionHeader(section)) => {
                            self.interfaces.clear();
                            self.big_endian = section.big_endian();
                            false
                        }
                        PcapBlockOwned::NG(Block::InterfaceDescription(about)) => {
                            if self.interfaces.len() == LARGEST_FIRST as usize {
                                return Err(damaged("more interfaces than there can be"));
                            }
                            self.interfaces.push(interface(about, self.big_endian));
                            false
                        }
                        PcapBlockOwned::NG(Block::EnhancedPacket(packet))
                            if packet.if_id as usize >= self.interfaces.len() =>
                        {
                            return Err(damaged("a packet of an interface that was not described"));
                        }
                        PcapBlockOwned::NG(Block::SimplePacket(_)) if self.interfaces.is_empty() => {
                            return Err(damaged("a packet before any interface was described"));
                        }
                        PcapBlockOwned::NG(Block::EnhancedPacket(_) | Block::SimplePacket(_))
                        | PcapBlockOwned::Legacy(_) => true,
                        PcapBlockOwned::NG(_) => false,
                    };
                    if found {
                        self.given = len;
                        return Ok(true);
                    }
                    self.reader.consume(len);
                    self.read += len as u64;
                }
                Err(PcapError::Eof) => return Ok(false),
                Err(PcapError::UnexpectedEof) => return Err(CaptureError::CutShort { at: self.read }),
                Err(PcapError::Incomplete(_) | PcapError::BufferTooSmall) => self.more(had)?,
                Err(_) => return Err(damaged("no record that could be read")),
            }
        }
    }

    /// Reads more bytes. The buffer grows if the record did not fit.
    fn more(&mut self, had: usize) -> Result<(), CaptureError> {
        let at = self.read;
        let refill = |reader: &mut Box<dyn PcapReaderIterator + Send>| match reader.refill() {
            Ok(()) => Ok(()),
            Err(_) => Err(CaptureError::Read(io::ErrorKind::Other.into())),
        };
        if self.capacity < COMFORTABLE && self.read > 0 {
            self.capacity *= 4;
            self.reader.grow(self.capacity);
        }
        refill(&mut self.reader)?;
        if self.reader.data().len() > had {
            return Ok(());
        }
        if self.reader.reader_exhausted() {
            // The rest is not a complete record. The parser reports this only if nothing is left.
            return if had == 0 { Ok(()) } else { Err(CaptureError::CutShort { at }) };
        }
        self.capacity *= 2;
        if self.capacity > LARGEST {
            return Err(CaptureError::Damaged { at, what: "a record of more than 32 MiB" });
        }
        self.reader.grow(self.capacity);
        refill(&mut self.reader)
    }
}

/// The length of the first block, as stated in it; `None` if it is not such a block.
fn first_len(front: &[u8]) -> Option<u64> {
    const PCAP_HEADER: u64 = 24;
    let magic = front.first_chunk::<4>()?;
    match u32::from_le_bytes(*magic) {
        0xa1b2_c3d4 | 0xa1b2_3c4d | 0xa1b2_cd34 | 0xd4c3_b2a1 | 0x4d3c_b2a1 => Some(PCAP_HEADER),
        0x0a0d_0d0a => {
            let len = front.get(4..8)?.first_chunk::<4>()?;
            let order = front.get(8..12)?.first_chunk::<4>()?;
            match u32::from_le_bytes(*order) {
                0x1a2b_3c4d => Some(u32::from_le_bytes(*len).into()),
                0x4d3c_2b1a => Some(u32::from_be_bytes(*len).into()),
                _ => None,
            }
        }
        _ => None,
    }
}

fn legacy(header: &pcap_parser::PcapHeader) -> Interface {
    // The upper bits may contain the length of a frame check sequence.
    let link = LinkType::from_number(header.network.0 & 0xffff);
    let resolution = if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
    Interface { link, resolution, offset: 0, snaplen: header.snaplen }
}

/// An interface of a pcapng section. What the parser says of its clock is not used: it takes powers of 2 for impossible, and
/// reads the offset in one byte order only.
fn interface(about: &pcap_parser::InterfaceDescriptionBlock<'_>, big_endian: bool) -> Interface {
    let power = u32::from(about.if_tsresol & 0x7f);
    let resolution = match about.if_tsresol & 0x80 {
        0 => 10_u64.checked_pow(power),
        _ => 1_u64.checked_shl(power),
    };
    let offset = about.options.iter().rfind(|option| option.code == OptionCode::IfTsoffset);
    let offset = offset.and_then(|option| option.value.first_chunk::<8>());
    let offset = offset.map_or(0, |bytes| match big_endian {
        true => i64::from_be_bytes(*bytes),
        false => i64::from_le_bytes(*bytes),
    });
    Interface {
        link: LinkType::from_number(about.linktype.0),
        // A unit that no clock can have is ignored.
        resolution: resolution.unwrap_or(1_000_000),
        offset,
        snaplen: about.snaplen,
    }
}

fn record<'a>(block: PcapBlockOwned<'a>, interfaces: &[Interface]) -> Option<Record<'a>> {
    match block {
        PcapBlockOwned::Legacy(packet) => {
            let about = interfaces.first()?;
            let units = u64::from(packet.ts_sec) * about.resolution + u64::from(packet.ts_usec);
            let wire_len = (packet.origlen as usize).max(packet.data.len());
            Some(Record {
                time: about.time(units),
                link: about.link,
                interface: 0,
                direction: 0,
                wire_len,
                data: packet.data,
            })
        }
        PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
            let about = interfaces.get(packet.if_id as usize)?;
            let units = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
            let data = packet.data.get(..packet.caplen as usize).unwrap_or(packet.data);
            let wire_len = (packet.origlen as usize).max(data.len());
            Some(Record {
                time: about.time(units),
                link: about.link,
                interface: packet.if_id,
                direction: direction(&packet),
                wire_len,
                data,
            })
        }
        PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
            let about = interfaces.first()?;
            let wire_len = packet.origlen as usize;
            let kept = if about.snaplen == 0 { wire_len } else { wire_len.min(about.snaplen as usize) };
            let data = packet.data.get(..kept).unwrap_or(packet.data);
            let wire_len = wire_len.max(data.len());
            Some(Record { time: 0, link: about.link, interface: 0, direction: 0, wire_len, data })
        }
        _ => None,
    }
}

/// Whether a packet came in or went out.
fn direction(packet: &EnhancedPacketBlock<'_>) -> u8 {
    let flags = packet.options.iter().find(|option| option.code == FLAGS);
    let bytes = flags.and_then(|flags| flags.value.first_chunk::<4>());
    let flags = bytes.map_or(0, |bytes| match packet.big_endian() {
        true => u32::from_be_bytes(*bytes),
        false => u32::from_le_bytes(*bytes),
    });
    (flags & 3) as u8
}

#[cfg(test)]
mod tests;
