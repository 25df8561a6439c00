//! A bad network on demand: loss, duplication, reordering and flipped bits, the same ones for the same seed and the
//! same packets.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use super::config::ConfigError;
use super::error::SendError;
use super::{Capabilities, Ident, Link, Path, RecvBatch, Run, Transmit, check_batch};
use crate::{sys::socket::Event, trust::variable};

/// The longest a packet is held back for reordering.
const LONGEST_DELAY: Duration = Duration::from_millis(1);
/// Most packets that may overtake a held one.
const LARGEST_SHIFT: u64 = 4;
/// Most packets held back in one direction.
const MOST_HELD: usize = 64;

/// How bad the network is: chances per packet, in thousandths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    /// Packets lost.
    pub loss: u16,
    /// Packets doubled.
    pub duplicate: u16,
    /// Packets overtaken by 1 to 4 later ones (or delayed by 1 ms).
    pub reorder: u16,
    /// Packets with one bit flipped.
    pub corrupt: u16,
    /// Where the pseudo-random choices start.
    pub seed: u64,
    /// Disturb packets we send. They then leave one by one, each with identification 0.
    pub sending: bool,
    /// Disturb packets we receive.
    pub receiving: bool,
}

impl Default for FaultPlan {
    fn default() -> Self {
        Self { loss: 0, duplicate: 0, reorder: 0, corrupt: 0, seed: 1, sending: true, receiving: true }
    }
}

impl FaultPlan {
    /// Reads a plan such as `loss=10,dup=5,reorder=10,corrupt=1,seed=7,dir=rx`: thousandths, and `dir` one of `tx`,
    /// `rx`, `both`.
    ///
    /// # Errors
    /// [`ConfigError`] naming the first part that is not understood.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        const ALLOWED: &str =
            "loss=N,dup=N,reorder=N,corrupt=N (0 to 1000 thousandths), seed=N, dir=tx|rx|both";
        let mut plan = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let wrong = || ConfigError::new("RXE_FAULT", part, ALLOWED);
            let (key, value) = part.split_once('=').ok_or_else(wrong)?;
            let chance = || value.parse().ok().filter(|n: &u16| *n <= 1000).ok_or_else(wrong);
            match (key, value) {
                ("loss", _) => plan.loss = chance()?,
                ("dup", _) => plan.duplicate = chance()?,
                ("reorder", _) => plan.reorder = chance()?,
                ("corrupt", _) => plan.corrupt = chance()?,
                ("seed", _) => plan.seed = value.parse().map_err(|_| wrong())?,
                ("dir", "both") => (plan.sending, plan.receiving) = (true, true),
                ("dir", "tx") => (plan.sending, plan.receiving) = (true, false),
                ("dir", "rx") => (plan.sending, plan.receiving) = (false, true),
                _ => return Err(wrong()),
            }
        }
        Ok(plan)
    }

    /// The plan in the environment variable `RXE_FAULT`, if it is set and not empty.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn from_environment() -> Result<Option<Self>, ConfigError> {
        let text = variable("RXE_FAULT").filter(|text| !text.is_empty());
        text.map(|text| Self::parse(&text.to_string_lossy())).transpose()
    }
}

/// What was done to the packets of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Packets seen.
    pub packets: u64,
    /// Packets thrown away.
    pub lost: u64,
    /// Extra copies made.
    pub duplicated: u64,
    /// Packets held back.
    pub reordered: u64,
    /// Packets with a flipped bit.
    pub corrupted: u64,
}

/// The packets of one direction on their way through the faults.
#[derive(Debug)]
struct Lane<H> {
    random: u64,
    held: Vec<Held<H>>,
    ready: VecDeque<(H, Vec<u8>)>,
    counts: FaultCounts,
}

#[derive(Debug)]
struct Held<H> {
    head: H,
    bytes: Vec<u8>,
    overtakers: u64,
    until: Instant,
}

impl<H: Copy> Lane<H> {
    fn new(seed: u64) -> Self {
        Self { random: seed, held: Vec::new(), ready: VecDeque::new(), counts: FaultCounts::default() }
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn chance(&mut self, thousandths: u16) -> bool {
        self.next() % 1000 < u64::from(thousandths)
    }

    /// Takes one packet in; what may go on, it or others, is then in `ready`.
    fn take(&mut self, plan: &FaultPlan, head: H, bytes: &[u8]) {
        self.counts.packets += 1;
        if self.chance(plan.loss) {
            self.counts.lost += 1;
        } else {
            let mut bytes = bytes.to_vec();
            if self.chance(plan.corrupt) && !bytes.is_empty() {
                let bit = self.next() as usize % (bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
                self.counts.corrupted += 1;
            }
            if self.chance(plan.duplicate) {
                self.counts.duplicated += 1;
                self.place(plan, head, bytes.clone());
            }
            self.place(plan, head, bytes);
        }
        for held in &mut self.held {
            held.overtakers = held.overtakers.saturating_sub(1);
        }
        self.release();
    }

    fn place(&mut self, plan: &FaultPlan, head: H, bytes: Vec<u8>) {
        if self.chance(plan.reorder) && self.held.len() < MOST_HELD {
            self.counts.reordered += 1;
            // One more than overtake it: its own arrival counts too.
            let overtakers = 2 + self.next() % LARGEST_SHIFT;
            self.held.push(Held { head, bytes, overtakers, until: Instant::now() + LONGEST_DELAY });
        } else {
            self.ready.push_back((head, bytes));
        }
    }

    fn release(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let now = Instant::now();
        let Self { held, ready, .. } = self;
        for due in held.extract_if(.., |held| held.overtakers == 0 || held.until <= now) {
            ready.push_back((due.head, due.bytes));
        }
    }
}

/// A link that disturbs the packets of another.
#[derive(Debug)]
pub struct FaultLink<L> {
    inner: L,
    plan: FaultPlan,
    capabilities: Capabilities,
    sending: Lane<Transmit>,
    receiving: Lane<Run<'static>>,
    arrivals: RecvBatch,
    /// Readable while packets are held back or wait to be fetched.
    pending: Event,
    raised: bool,
}

impl<L: Link> FaultLink<L> {
    /// Puts `plan` between us and `inner`.
    ///
    /// # Errors
    /// What the system says if it has no event counters left.
    pub fn new(inner: L, plan: FaultPlan) -> io::Result<Self> {
        let mut capabilities = inner.capabilities().clone();
        if plan.sending {
            capabilities.gso = false;
            capabilities.ident = Ident::Zero;
        }
        Ok(Self {
            sending: Lane::new(plan.seed),
            receiving: Lane::new(plan.seed ^ 0x5555_5555_5555_5555),
            inner,
            plan,
            capabilities,
            arrivals: RecvBatch::default(),
            pending: Event::new()?,
            raised: false,
        })
    }

    /// What happened to the packets sent and received so far.
    #[must_use]
    pub const fn counts(&self) -> (FaultCounts, FaultCounts) {
        (self.sending.counts, self.receiving.counts)
    }

    /// Sends what may leave now. A packet the inner link cannot send is lost.
    fn flush(&mut self) -> Result<(), SendError> {
        let mut result = Ok(());
        self.sending.release();
        while let Some((head, bytes)) = self.sending.ready.pop_front() {
            let sent = self.inner.send(&head, &bytes);
            if matches!(sent, Err(SendError::MessageTooLong { .. } | SendError::Unreachable { .. })) {
                result = sent;
            }
        }
        result
    }

    fn signal(&mut self) {
        let waiting = !(self.sending.held.is_empty()
            && self.receiving.held.is_empty()
            && self.receiving.ready.is_empty());
        if waiting != self.raised {
            self.raised = waiting;
            if waiting { self.pending.raise() } else { self.pending.clear() }
        }
    }
}

impl<L: Link> Link for FaultLink<L> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn path(&self, dst: IpAddr, ifindex: u32) -> Path {
        let path = self.inner.path(dst, ifindex);
        if self.plan.sending { Path { ident: Ident::Zero, ..path } } else { path }
    }

    fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        if !self.plan.sending {
            return self.inner.send(batch, bytes);
        }
        let path = self.path(batch.dst, batch.ifindex);
        check_batch(batch, bytes, path, self.capabilities.max_batch_bytes)?;
        for packet in bytes.chunks(batch.segment_size) {
            self.sending.take(&self.plan, *batch, packet);
        }
        let result = self.flush();
        self.signal();
        result
    }

    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        // Nobody waits for held packets, so their errors are nobody's.
        let _ = self.flush();
        if !self.plan.receiving {
            let result = self.inner.recv(into);
            self.signal();
            return result;
        }
        into.clear();
        if self.receiving.ready.is_empty() {
            let received = self.inner.recv(&mut self.arrivals);
            for run in self.arrivals.iter() {
                for packet in run.packets() {
                    self.receiving.take(&self.plan, Run { bytes: &[], ..run }, packet);
                }
            }
            self.arrivals.clear();
            received?;
        }
        self.receiving.release();
        while !into.is_full() {
            let Some((run, bytes)) = self.receiving.ready.pop_front() else { break };
            into.push(&Run { segment_size: bytes.len().max(1), bytes: &bytes, ..run });
        }
        self.signal();
        Ok(into.len())
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = self.inner.poll_fds();
        fds.push(self.pending.as_fd());
        fds
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
