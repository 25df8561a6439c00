//! Captures of simulated wires: whole frames from Ethernet on. Payloads, which are nowhere, are zeros, and the ICRC is over
//! those.

use crate::{packet::Packet, units::NANO, world::address};
use pcap_file::{
    DataLink, PcapError, TsResolution,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
};
use rxe_core::wire::{FlushIcrc, Ident, Sealer, icrc::Route};
use std::{cell::RefCell, fmt, fs::File, io::BufWriter, path::Path, rc::Rc, time::Duration};

/// Ethernet, IPv4 and UDP.
const AROUND: usize = 42;

struct Sink {
    writer: PcapWriter<BufWriter<File>>,
    error: Option<PcapError>,
}

/// A capture file; clones write into the same one.
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
    /// What the file system says.
    pub fn create(path: &Path) -> Result<Self, PcapError> {
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let writer =
            PcapWriter::with_header(BufWriter::new(File::create(path).map_err(PcapError::IoError)?), header)?;
        Ok(Self(Rc::new(RefCell::new(Sink { writer, error: None }))))
    }

    pub(crate) fn record(&self, now: u64, packet: &Packet) {
        let frame = frame(packet);
        let at = Duration::from_nanos(now / NANO);
        let sink = &mut *self.0.borrow_mut();
        if sink.error.is_none() {
            sink.error = sink.writer.write_packet(&PcapPacket::new(at, frame.len() as u32, &frame)).err();
        }
    }

    /// The first error of writing, if there was one.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        self.0.borrow().error.as_ref().map(ToString::to_string)
    }
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
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
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
