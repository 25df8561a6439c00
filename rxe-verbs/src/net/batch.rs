//! Received packets: runs of packets in buffers that are allocated once.

use core::fmt;
use core::net::IpAddr;
use core::ops::Range;
use rxe_core::{endpoint::RunMeta, wire::HeaderSeen};
use std::io;
use std::os::fd::BorrowedFd;

use crate::sys::message::{FrameArrival, RecvRing};

/// Size of a buffer: a full run of merged packets, and the headers that a raw link receives in front of it.
const RUN_BYTES: usize = MOST_BYTES + 128;
/// Largest run, bytes.
pub(super) const MOST_BYTES: usize = 65_536;

/// Packets from one sender to one address that arrived together: BTH to ICRC, laid end to end.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Sender's address.
    pub src: IpAddr,
    /// Sender's UDP port; 0 for RoCEv1.
    pub src_port: u16,
    /// Destination address in the IP header: one of ours, or a multicast group.
    pub dst: IpAddr,
    /// Interface it arrived on, 0 if unknown.
    pub ifindex: u32,
    /// TOS or traffic class, ECN included.
    pub tos: u8,
    /// TTL or hop limit as it arrived, 0 if unknown.
    pub ttl: u8,
    /// What the link saw of the packets' headers. It tells the encapsulation, too.
    pub seen: HeaderSeen,
    /// Bytes of every packet but the last, which may be shorter; at least 1.
    pub segment_size: usize,
    /// The packets.
    pub bytes: &'a [u8],
}

/// The packets of a run, in order of arrival.
pub type Packets<'a> = core::slice::Chunks<'a, u8>;

impl<'a> Run<'a> {
    /// The headers as a [`RunMeta`] of rxe-core.
    #[must_use]
    pub const fn meta(&self) -> RunMeta {
        let Self { src, dst, src_port, ifindex, tos, ttl: hop_limit, seen, .. } = *self;
        RunMeta { src, dst, src_port, ifindex, tos, hop_limit, seen }
    }

    /// The packets of the run. None is empty.
    pub fn packets(&self) -> Packets<'a> {
        self.bytes.chunks(self.segment_size.max(1))
    }
}

#[derive(Clone, Copy)]
struct Entry {
    run: Run<'static>,
    buffer: usize,
    start: usize,
    len: usize,
}

/// Receive buffers of a shard, and the runs in them.
///
/// Arrivals alone touch the memory, so unused buffers cost only address space.
pub struct RecvBatch {
    ring: RecvRing,
    entries: Vec<Entry>,
    /// Buffers in use: those of the entries, and those of arrivals that were dropped.
    used: usize,
    /// How many datagrams the next receive call asks for.
    wanted: usize,
    malformed: u64,
}

impl Default for RecvBatch {
    fn default() -> Self {
        Self::new(Self::RUNS)
    }
}

impl RecvBatch {
    /// Number of runs that fit into a default batch: 2 MiB of address space.
    pub const RUNS: usize = 32;

    /// Room for `runs` runs (at least 1) of 64 KiB each.
    #[must_use]
    pub fn new(runs: usize) -> Self {
        let ring = RecvRing::new(runs, RUN_BYTES);
        Self { entries: Vec::with_capacity(ring.messages()), ring, used: 0, wanted: 1, malformed: 0 }
    }

    /// Number of runs held.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether no further run fits.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.used == self.ring.messages()
    }

    /// Forgets the runs held.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.used = 0;
    }

    /// The runs in order of arrival.
    pub fn iter(&self) -> impl Iterator<Item = Run<'_>> {
        self.entries.iter().map(|entry| Run {
            bytes: &self.ring.buffer(entry.buffer)[entry.start..][..entry.len],
            ..entry.run
        })
    }

    /// Adds a copy of `run`. Returns false if there is no room or the run is longer than 64 KiB. For links
    /// without sockets.
    pub fn push(&mut self, run: &Run<'_>) -> bool {
        let bytes = run.bytes;
        self.push_with(Run { bytes: &[], ..*run }, bytes.len(), |buffer| buffer.copy_from_slice(bytes))
    }

    /// Adds a run of `len` bytes, which `fill` writes into the buffer. Returns false, without a call of `fill`, in the cases of
    /// [`Self::push`].
    pub(super) fn push_with(&mut self, run: Run<'static>, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        if self.is_full() || len > MOST_BYTES {
            return false;
        }
        fill(&mut self.ring.buffer_mut(self.used)[..len]);
        self.entries.push(Entry { run, buffer: self.used, start: 0, len });
        self.used += 1;
        true
    }

    /// Arrivals dropped since the batch was made, because the system delivered them truncated or empty.
    #[must_use]
    pub const fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Reads from a socket into the buffers that are free. Returns the number of datagrams.
    fn receive(&mut self, fd: BorrowedFd<'_>, one_by_one: bool) -> io::Result<usize> {
        // A call that asks for more datagrams than there are also finds the socket empty. For a single datagram that doubles
        // the time.
        let wanted = self.wanted.min(self.ring.messages() - self.used);
        let count = self.ring.receive(fd, self.used, wanted, one_by_one)?;
        self.wanted = match count {
            _ if count == wanted => (4 * wanted).min(self.ring.messages()),
            0 | 1 => 1,
            _ => count,
        };
        self.used += count;
        Ok(count)
    }

    /// Appends what has arrived at a socket. Returns the number of datagrams taken from it.
    pub(super) fn fill(&mut self, fd: BorrowedFd<'_>, bound: IpAddr, one_by_one: bool) -> io::Result<usize> {
        if self.is_full() {
            return Ok(0);
        }
        let first = self.used;
        let count = self.receive(fd, one_by_one)?;
        for buffer in first..first + count {
            let Some(arrival) = self.ring.arrival(buffer).filter(|a| !a.truncated && a.len > 0) else {
                self.malformed += 1;
                continue;
            };
            let about = arrival.ancillary;
            let segment_size =
                if (1..arrival.len).contains(&about.segment) { about.segment } else { arrival.len };
            let run = Run {
                src: arrival.source,
                src_port: arrival.source_port,
                dst: about.destination.unwrap_or(bound),
                ifindex: about.ifindex,
                tos: about.tos,
                ttl: about.ttl,
                seen: HeaderSeen::Hidden,
                segment_size,
                bytes: &[],
            };
            self.entries.push(Entry { run, buffer, start: 0, len: arrival.len });
        }
        Ok(count)
    }

    /// Appends the runs that `read` finds in frames from a packet socket. Frames for which `read` returns `None` are dropped.
    /// Returns the number of frames taken from the socket. The packets are not copied: a run is a part of its frame's buffer.
    pub(super) fn fill_frames(
        &mut self,
        fd: BorrowedFd<'_>,
        mut read: impl FnMut(FrameArrival, &[u8]) -> Option<(Run<'static>, Range<usize>)>,
    ) -> io::Result<usize> {
        if self.is_full() {
            return Ok(0);
        }
        let first = self.used;
        let count = self.receive(fd, false)?;
        for buffer in first..first + count {
            let Some(arrival) = self.ring.frame(buffer).filter(|arrival| !arrival.truncated) else {
                self.malformed += 1;
                continue;
            };
            if let Some((run, place)) = read(arrival, &self.ring.buffer(buffer)[..arrival.len]) {
                self.entries.push(Entry { run, buffer, start: place.start, len: place.len() });
            }
        }
        Ok(count)
    }
}

impl fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.entries.iter().map(|e| (e.run.src, e.run.dst, e.len, e.run.segment_size)))
            .finish()
    }
}
