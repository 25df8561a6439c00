//! Recording a link's packets as a pcapng file for Wireshark. The raw link sees whole frames and records them as they are (link
//! type Ethernet).
//!
//! A UDP socket shows no IP headers, so a [`TapLink`] makes them up. For packets sent, all fields are known. For packets
//! received over IPv4, the identification is hidden. The file then has the identification that makes the ICRC right, if the
//! receiver accepts it ([`rxe_core::wire::IdentTracker`]), else 0. So a wrong ICRC of a received packet in such a file means
//! that the receiver dropped the packet. A right ICRC proves less than for a sent packet, because the identification was chosen
//! to fit.

use core::net::IpAddr;
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::BorrowedFd;
use std::path::Path as FilePath;
use std::sync::{Arc, Mutex, TryLockError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::PcapNgBlock;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};
use rxe_core::wire::Encapsulation;

use idents::Idents;

use super::error::SendError;
use super::file::Output;
use super::raw::frame::{self, ETHERNET};
use super::{Capabilities, Link, Path, RawDrops, RecvBatch, Run, Transmit};
use crate::sys::{
    fork::{generation, is_own},
    lock,
};

pub(super) mod idents;

/// Direction bits of the enhanced packet block's flags (pcapng, 4.3.1).
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// At the process's exit a capture that is being written to is tried so often, with such a pause.
const LAST_TRIES: usize = 100;
const LAST_PAUSE: Duration = Duration::from_millis(1);

/// A capture file. Clones write to the same file, so all links of a process can share one.
#[derive(Clone)]
pub struct Capture {
    shared: Arc<Mutex<Shared>>,
    /// Fork generation of the process that made it.
    generation: u32,
}

struct Shared {
    writer: PcapNgWriter<BufWriter<Box<dyn Write + Send>>>,
    /// The interface's name in the file.
    name: String,
    /// The link types that have an interface entry, in their order in the file.
    kinds: Vec<DataLink>,
    frame: Vec<u8>,
    written: u64,
    /// The first failure. Nothing is written after it.
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
    /// TTL or hop limit; 0, where the system does not tell it, is written as 64.
    pub ttl: u8,
    /// IPv4 identification.
    pub ident: u16,
    /// Encapsulation.
    pub encapsulation: Encapsulation,
    /// BTH to ICRC.
    pub payload: &'a [u8],
    /// This host sent the packet.
    pub outbound: bool,
}

impl<'a> Record<'a> {
    /// A packet of a batch that was sent.
    pub(super) fn sent(batch: &Transmit, ident: u16, payload: &'a [u8]) -> Self {
        Self {
            src: batch.src,
            dst: batch.dst,
            source_port: batch.source_port,
            tos: batch.tos,
            ttl: batch.hops(),
            ident,
            encapsulation: batch.encapsulation,
            payload,
            outbound: true,
        }
    }

    /// A packet of a run that was received.
    pub(super) fn arrived(run: &Run<'_>, ident: u16, payload: &'a [u8]) -> Self {
        Self {
            src: run.src,
            dst: run.dst,
            source_port: run.src_port,
            tos: run.tos,
            ttl: run.ttl,
            ident,
            encapsulation: run.seen.encapsulation(),
            payload,
            outbound: false,
        }
    }
}

impl Capture {
    /// Starts a capture file at `path`, replacing what was there. `name` is the interface's name in it.
    ///
    /// # Errors
    /// The file cannot be created or written.
    pub fn create(path: &FilePath, name: &str) -> io::Result<Self> {
        Self::new(Box::new(Output::new(File::create(path)?)), name)
    }

    /// Starts a capture into any writer.
    ///
    /// # Errors
    /// The writer fails.
    pub fn new(writer: Box<dyn Write + Send>, name: &str) -> io::Result<Self> {
        let writer =
            PcapNgWriter::new(BufWriter::new(writer)).map_err(|error| io::Error::other(why(error)))?;
        let (frame, kinds) = (Vec::with_capacity(9216), Vec::new());
        let shared = Shared { writer, name: name.to_owned(), kinds, frame, written: 0, failed: None };
        Ok(Self { shared: Arc::new(Mutex::new(shared)), generation: generation() })
    }

    /// Writes a frame from its Ethernet header on, without the frame check sequence. The timestamp is now.
    pub(super) fn record_frame(&self, frame: &[u8], outbound: bool) {
        let now = now();
        self.with(|shared| shared.write(DataLink::ETHERNET, frame, outbound, now));
    }

    /// Writes one packet. The timestamp is now.
    pub fn record(&self, record: &Record<'_>) {
        let now = now();
        self.with(|shared| {
            let mut frame = core::mem::take(&mut shared.frame);
            if frame::make_up(record, &mut frame) {
                shared.write(DataLink::RAW, &frame[ETHERNET..], record.outbound, now);
            }
            shared.frame = frame;
        });
    }

    /// Packets written so far.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.with(|shared| shared.written)
    }

    /// Writes all buffered packets to the file.
    ///
    /// # Errors
    /// The first failure of this capture, for instance a full disk. Nothing was recorded after it.
    pub fn flush(&self) -> io::Result<()> {
        self.with(Shared::flush)
    }

    /// As [`Self::flush`], at the process's exit. It does not wait long for the lock: the thread that exits may have it, if a handler of a
    /// signal calls exit(3).
    pub(crate) fn flush_last(&self) {
        for _ in 0..LAST_TRIES {
            let shared = match self.shared.try_lock() {
                Ok(shared) => Some(shared),
                Err(TryLockError::Poisoned(shared)) => Some(shared.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            if let Some(mut shared) = shared {
                // Nothing is left that could report an error.
                let _ = shared.flush();
                return;
            }
            thread::sleep(LAST_PAUSE);
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Shared) -> T) -> T {
        act(&mut lock(&self.shared))
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Why something was not written, in the words of the system. The library would say that bytes could not be read.
fn why(error: PcapError) -> String {
    match error {
        PcapError::IoError(source) => source.to_string(),
        other => other.to_string(),
    }
}

impl Shared {
    fn flush(&mut self) -> io::Result<()> {
        if self.kinds.is_empty() && self.failed.is_none() {
            // A pcapng file needs at least one interface entry.
            self.failed = self.interface(DataLink::RAW).err();
        }
        if let Some(why) = &self.failed {
            return Err(io::Error::other(why.clone()));
        }
        self.writer.get_mut().flush()
    }

    fn write(&mut self, kind: DataLink, packet: &[u8], outbound: bool, now: Duration) {
        if self.failed.is_some() {
            return;
        }
        match self.try_write(kind, packet, outbound, now) {
            Ok(()) => self.written += 1,
            Err(why) => self.failed = Some(why),
        }
    }

    fn try_write(
        &mut self,
        kind: DataLink,
        packet: &[u8],
        outbound: bool,
        now: Duration,
    ) -> Result<(), String> {
        let direction = if outbound { OUTBOUND } else { INBOUND };
        let block = EnhancedPacketBlock {
            interface_id: self.interface(kind)?,
            timestamp: now,
            original_len: packet.len() as u32,
            data: Cow::Borrowed(packet),
            options: vec![EnhancedPacketOption::Flags(direction)],
        };
        self.writer.write_block(&block.into_block()).map(drop).map_err(why)
    }

    /// The number of the interface entry for packets of this link type. Most readers accept only one link type in a file, so an
    /// entry is written when its first packet comes.
    fn interface(&mut self, kind: DataLink) -> Result<u32, String> {
        if let Some(number) = self.kinds.iter().position(|known| *known == kind) {
            return Ok(number as u32);
        }
        let interface = InterfaceDescriptionBlock {
            linktype: kind,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(&self.name)),
                // Timestamps in units of 10^-9 s.
                InterfaceDescriptionOption::IfTsResol(9),
            ],
        };
        self.writer.write_block(&interface.into_block()).map_err(why)?;
        self.kinds.push(kind);
        Ok(self.kinds.len() as u32 - 1)
    }
}

/// A receiver of the packets that a [`TapLink`] sees.
pub trait Sink: Send {
    /// Records one packet that was sent or received just now.
    fn record(&self, record: &Record<'_>);

    /// The link was dropped. Failures cannot be returned here; [`Capture::flush`] reports those of a capture.
    fn finish(&self) {}
}

impl Sink for Capture {
    fn record(&self, record: &Record<'_>) {
        Self::record(self, record);
    }

    fn finish(&self) {
        // In a forked child the lock may be held by a thread that is not there, and what is buffered is the parent's.
        if is_own(self.generation) {
            // A failure stays in the capture: the next `Capture::flush` returns it.
            let _ = self.flush();
        }
    }
}

/// A link that passes every packet of another link to a [`Sink`], too.
#[derive(Debug)]
pub struct TapLink<S: Sink> {
    inner: Box<dyn Link>,
    sink: S,
    idents: Idents,
}

impl<S: Sink> TapLink<S> {
    /// Wraps `inner` and passes its packets to `sink`.
    pub fn new(inner: Box<dyn Link>, sink: S) -> Self {
        Self { inner, sink, idents: Idents::new() }
    }
}

impl<S: Sink> Link for TapLink<S> {
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
            self.sink.record(&Record::sent(batch, ident.of(index), payload));
        }
        result
    }

    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        // What arrived before an error is used, too.
        let received = self.inner.recv(into);
        for run in into.iter() {
            for (payload, ident) in run.packets().zip(self.idents.of_run(&run)) {
                self.sink.record(&Record::arrived(&run, ident, payload));
            }
        }
        received
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.poll_fds()
    }

    fn drops(&self) -> u64 {
        self.inner.drops()
    }

    fn late_error(&mut self) -> Option<(IpAddr, SendError)> {
        self.inner.late_error()
    }

    fn frame_drops(&self) -> RawDrops {
        self.inner.frame_drops()
    }

    fn join(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        self.inner.join(group, ifindex)
    }

    fn leave(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        self.inner.leave(group, ifindex)
    }
}

impl<S: Sink> Drop for TapLink<S> {
    fn drop(&mut self) {
        self.sink.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_in_the_middle_of_a_record_ends() {
        let capture = Capture::new(Box::new(io::sink()), "x").unwrap();
        capture.with(|_| capture.flush_last());
        assert!(capture.with(|shared| shared.kinds.is_empty()), "it could not");
        capture.flush_last();
        assert!(!capture.with(|shared| shared.kinds.is_empty()));
    }
}
