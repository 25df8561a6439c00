//! Recording a link's packets as a pcapng file that Wireshark reads.
//!
//! A UDP socket shows no IP headers, so they are made up from what is known. That is all of it for packets sent. For
//! packets received over IPv4 the identification is hidden: the file has the one that makes the ICRC right, if the
//! receiver believes it ([`rxe_core::wire::IdentTracker`]), else 0. So in such a file a wrong ICRC of a received packet
//! means that it was dropped for it; that a right one is right proves less than it does for a packet sent.

use core::net::IpAddr;
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::BorrowedFd;
use std::path::Path as FilePath;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::PcapNgBlock;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};

use idents::Idents;

use super::error::SendError;
use super::{Capabilities, Link, Path, ROCE_PORT, RecvBatch, Run, Transmit};

mod headers;
mod idents;

/// Direction bits of the enhanced packet block's flags (pcapng, 4.3.1).
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
/// TTL written for packets that took the system's default.
const DEFAULT_TTL: u8 = 64;

/// A capture file. Clones write to the same file, so that all links of a process can.
#[derive(Clone)]
pub struct Capture {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    writer: PcapNgWriter<BufWriter<Box<dyn Write + Send>>>,
    packet: Vec<u8>,
    written: u64,
    /// The first failure; nothing is written after it.
    failed: Option<String>,
}

impl core::fmt::Debug for Capture {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Capture").field("packets", &self.packets()).finish()
    }
}

/// One packet to record.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same family.
    pub dst: IpAddr,
    /// UDP source port.
    pub source_port: u16,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// IPv4 identification.
    pub ident: u16,
    /// UDP payload.
    pub payload: &'a [u8],
    /// We sent it.
    pub outbound: bool,
}

impl Capture {
    /// Starts a capture file at `path`, replacing what was there. `name` is the interface's name in it.
    ///
    /// # Errors
    /// The file cannot be made or written.
    pub fn create(path: &FilePath, name: &str) -> io::Result<Self> {
        Self::new(Box::new(File::create(path)?), name)
    }

    /// Starts a capture into any writer.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(writer: Box<dyn Write + Send>, name: &str) -> io::Result<Self> {
        let mut writer = PcapNgWriter::new(BufWriter::new(writer)).map_err(io::Error::other)?;
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::RAW,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
                // Timestamps in units of 10^-9 s.
                InterfaceDescriptionOption::IfTsResol(9),
            ],
        };
        writer.write_block(&interface.into_block()).map_err(io::Error::other)?;
        let shared = Shared { writer, packet: Vec::with_capacity(9216), written: 0, failed: None };
        Ok(Self { shared: Arc::new(Mutex::new(shared)) })
    }

    /// Writes one packet, stamped now.
    pub fn record(&self, record: &Record<'_>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.with(|shared| shared.write(record, now));
    }

    /// Packets written so far.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.with(|shared| shared.written)
    }

    /// Brings everything to the file.
    ///
    /// # Errors
    /// The first failure of this capture, for instance a full disk: from it on nothing was recorded.
    pub fn flush(&self) -> io::Result<()> {
        self.with(|shared| {
            if let Some(why) = &shared.failed {
                return Err(io::Error::other(why.clone()));
            }
            shared.writer.get_mut().flush()
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Shared) -> T) -> T {
        act(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Shared {
    fn write(&mut self, record: &Record<'_>, now: Duration) {
        if self.failed.is_some() || !headers::write(record, &mut self.packet) {
            return;
        }
        let direction = if record.outbound { OUTBOUND } else { INBOUND };
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: now,
            original_len: self.packet.len() as u32,
            data: Cow::Borrowed(&self.packet),
            options: vec![EnhancedPacketOption::Flags(direction)],
        };
        match self.writer.write_block(&block.into_block()) {
            Ok(_) => self.written += 1,
            Err(error) => self.failed = Some(error.to_string()),
        }
    }
}

/// Who is told of packets.
pub trait Sink: Send {
    /// Takes note of one packet, now.
    fn record(&self, record: &Record<'_>);

    /// The link is gone; whoever wants to know of failures asks elsewhere.
    fn finish(&self) {}
}

impl Sink for Capture {
    fn record(&self, record: &Record<'_>) {
        Self::record(self, record);
    }

    fn finish(&self) {
        // What could not be written is told by `Capture::flush`.
        let _ = self.flush();
    }
}

/// A link that tells of every packet of another.
#[derive(Debug)]
pub struct TapLink<L, S: Sink> {
    inner: L,
    sink: S,
    idents: Idents,
}

impl<L: Link, S: Sink> TapLink<L, S> {
    /// Tells `sink` of the packets of `inner`.
    pub fn new(inner: L, sink: S) -> Self {
        Self { inner, sink, idents: Idents::new() }
    }
}

impl<L: Link, S: Sink> Link for TapLink<L, S> {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn path(&self, dst: IpAddr, ifindex: u32) -> Path {
        self.inner.path(dst, ifindex)
    }

    fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        let ident = self.inner.path(batch.dst, batch.ifindex).ident;
        let result = self.inner.send(batch, bytes);
        let sent = result.as_ref().map_or_else(SendError::sent, |()| usize::MAX);
        for (index, payload) in bytes.chunks(batch.segment_size.max(1)).enumerate().take(sent) {
            self.sink.record(&Record {
                src: batch.src,
                dst: batch.dst,
                source_port: batch.source_port,
                tos: batch.tos,
                ttl: if batch.hop_limit == 0 { DEFAULT_TTL } else { batch.hop_limit },
                ident: ident.of(index),
                payload,
                outbound: true,
            });
        }
        result
    }

    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        let count = self.inner.recv(into)?;
        for run in into.iter() {
            self.record_run(&run);
        }
        Ok(count)
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.poll_fds()
    }

    fn drops(&self) -> u64 {
        self.inner.drops()
    }

    fn join(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        self.inner.join(group, ifindex)
    }

    fn leave(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        self.inner.leave(group, ifindex)
    }
}

impl<L, S: Sink> TapLink<L, S> {
    fn record_run(&mut self, run: &Run<'_>) {
        for (payload, ident) in run.packets().zip(self.idents.of_run(run)) {
            self.sink.record(&Record {
                src: run.src,
                dst: run.dst,
                source_port: run.src_port,
                tos: run.tos,
                ttl: run.ttl,
                ident,
                payload,
                outbound: false,
            });
        }
    }
}

impl<L, S: Sink> Drop for TapLink<L, S> {
    fn drop(&mut self) {
        self.sink.finish();
    }
}
