//! Captures of simulated wires, with whole Ethernet frames. Payloads are not simulated, so they are zeros here, and the ICRC is
//! computed for zeros.

use crate::{packet::Packet, units::NANO, world::address};
use pcap_file::{
    DataLink, PcapError, TsResolution,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
};
use rxe_core::wire::{FlushIcrc, Ident, Sealer, icrc::Route};
use std::{
    cell::RefCell,
    fmt,
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    rc::Rc,
    time::Duration,
};

/// Ethernet, IPv4 and UDP.
const AROUND: usize = 42;

struct Sink {
    /// `None` once it is finished.
    writer: Option<PcapWriter<BufWriter<File>>>,
    error: Option<io::Error>,
}

/// A capture file. Clones write to the same file.
#[derive(Clone)]
pub struct Tap(Rc<RefCell<Sink>>);

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tap")
    }
}

impl Tap {
    /// Makes the file.
    ///
    /// # Errors
    /// The file system's error.
    pub fn create(path: &Path) -> io::Result<Self> {
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let writer = PcapWriter::with_header(BufWriter::new(File::create(path)?), header).map_err(cause)?;
        Ok(Self(Rc::new(RefCell::new(Sink { writer: Some(writer), error: None }))))
    }

    pub(crate) fn record(&self, now: u64, packet: &Packet) {
        let frame = frame(packet);
        let at = Duration::from_nanos(now / NANO);
        let sink = &mut *self.0.borrow_mut();
        if let Some(writer) = sink.writer.as_mut().filter(|_| sink.error.is_none()) {
            sink.error =
                writer.write_packet(&PcapPacket::new(at, frame.len() as u32, &frame)).err().map(cause);
        }
    }

    /// Writes what is buffered. Nothing is recorded after that.
    ///
    /// # Errors
    /// The first error of any write to the file.
    pub fn finish(&self) -> io::Result<()> {
        let sink = &mut *self.0.borrow_mut();
        let flushed = sink.writer.take().map_or(Ok(()), |writer| writer.into_writer().flush());
        match sink.error.take() {
            Some(error) => Err(error),
            None => flushed,
        }
    }
}

/// The system's error; the library's own text for it is that bytes could not be read.
fn cause(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(source) => source,
        other => io::Error::other(other),
    }
}

/// The checksum of an IPv4 header whose checksum field is 0 (RFC 1071). With it the sum of all words, with carries added, is
/// 0xffff.
fn checksum(header: &[u8; 20]) -> u16 {
    let words = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum();
    // The first addition may carry once more.
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn frame(packet: &Packet) -> Vec<u8> {
    let mac = |host: u16| [2, 0, 0, 0, (host >> 8) as u8, host as u8];
    let mut out = Vec::with_capacity(AROUND + usize::from(packet.len));
    out.extend_from_slice(&mac(packet.dst));
    out.extend_from_slice(&mac(packet.src));
    out.extend_from_slice(&[8, 0]);
    let udp_len = packet.len + 8;
    let mut ip = [0; 20];
    (ip[0], ip[1], ip[6], ip[8], ip[9]) = (0x45, packet.tos, 0x40, 64, 17);
    ip[2..4].copy_from_slice(&(udp_len + 20).to_be_bytes());
    ip[12..16].copy_from_slice(&address(packet.src.into()).octets());
    ip[16..20].copy_from_slice(&address(packet.dst.into()).octets());
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    out.extend_from_slice(&ip);
    out.extend_from_slice(&(0xc000 | packet.hash as u16 >> 2).to_be_bytes());
    out.extend_from_slice(&4791_u16.to_be_bytes());
    out.extend_from_slice(&udp_len.to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    let mut body = vec![0; usize::from(packet.len)];
    let header_len = usize::from(packet.header_len).min(body.len());
    body[..header_len].copy_from_slice(&packet.headers[..header_len]);
    let src_port = u16::from_be_bytes([out[34], out[35]]);
    let route = Route::v2(address(packet.src.into()).into(), address(packet.dst.into()).into(), src_port);
    Sealer::new(&route, Ident::Zero).seal(0, &mut body, FlushIcrc::Standard);
    out.extend_from_slice(&body);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks headers as a receiver does: the sum of all words, including the checksum, is 0xffff. With many addresses and
    /// lengths some sums carry twice.
    #[test]
    fn checksums_are_right_for_all_hosts() {
        for host in (0..60_000).step_by(7) {
            let packet = Packet { src: host, dst: host ^ 0x5a5a, len: host % 4096 + 16, ..Packet::EMPTY };
            let frame = frame(&packet);
            let words = frame[14..34].chunks_exact(2).map(|two| u16::from_be_bytes([two[0], two[1]]));
            let sum = words.fold(0_u16, |sum, word| {
                let (sum, carry) = sum.overflowing_add(word);
                sum + u16::from(carry)
            });
            assert_eq!(sum, 0xffff, "host {host}");
        }
    }

    /// A full file system. The error appears only when buffered data is written.
    #[test]
    fn a_capture_that_found_no_room_is_an_error() {
        let tap = Tap::create(Path::new("/dev/full")).expect("a device");
        tap.record(0, &Packet { len: 20, ..Packet::EMPTY });
        assert!(tap.finish().is_err());
        assert!(tap.finish().is_ok(), "told once");
    }
}
