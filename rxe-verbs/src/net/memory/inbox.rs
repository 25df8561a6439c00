//! An inbox: shared memory in which other processes of the host leave batches of packets for one process. Each sender has a
//! lane.
//!
//! A lane is a ring with one writer and one reader, so neither waits for the other. A writer announces a record by moving
//! [`TAIL`]. If the writer dies before that, the reader never sees the record. The reader trusts nothing in the memory: it
//! checks all lengths, and copies the bytes out before it looks at them.
//!
//! Layout, in words of 64 bits: first a page with [`CLOSED`], [`RAISED`], [`DROPS`] and a mark for each lane that may have
//! records ([`MARKS`]). Then the lanes follow, each a page with [`TAIL`] and [`HEAD`], and the ring. A record is [`RECORD`]
//! words that describe a batch, then the batch's bytes. A record never wraps around the end of the ring.

use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rxe_core::wire::HeaderSeen;

use crate::net::{RecvBatch, Run, Transmit, batch::MOST_BYTES};
use crate::sys::{
    fork::{generation, is_own},
    kept::Kept,
    poll,
    shared::{SharedFile, SharedWords, address_of_words, words_of_address},
    socket::Event,
    unix::out_of_the_way,
};

/// Lanes: one for each slot of the host.
const LANES: usize = 256;
/// Words of a page.
const PAGE: usize = 512;
/// Words of a ring: 2 MiB, more than one process has in flight to another.
const RING: usize = 1 << 18;
/// Words of a lane.
const LANE: usize = PAGE + RING;
/// Words of an inbox. Only pages that are used take memory.
const INBOX: usize = PAGE + LANES * LANE;

// Places in the first page, each in a cache line of its own.

/// Not 0: the owner does not read the inbox any more.
const CLOSED: usize = 0;
/// Not 0: a writer has made the inbox's descriptor readable, or is about to.
const RAISED: usize = 8;
/// Batches that were lost because the lane was full.
const DROPS: usize = 16;
/// A bit for each lane.
const MARKS: usize = 24;
const MARK_WORDS: usize = LANES / 64;

// Places in a lane.

/// Words ever written.
const TAIL: usize = 0;
/// Words ever read.
const HEAD: usize = 8;

/// Words that describe a batch.
const RECORD: usize = 8;
/// A length with this value means that the next record is at the beginning of the ring.
const SKIP: u32 = u32::MAX;
/// Every this many calls of [`Inbox::take`] that find nothing, the descriptor is cleared. A writer that is stopped between
/// marking its lane and raising the descriptor may raise the descriptor long after its batch was read.
const SETTLE_EVERY: u32 = 64;

/// The descriptors by which an inbox is passed to other processes.
#[derive(Debug)]
pub(crate) struct InboxFiles {
    memory: SharedFile,
    event: Kept<Event>,
}

impl InboxFiles {
    /// Number of descriptors of an inbox.
    pub(crate) const DESCRIPTORS: usize = 2;

    /// Makes a new inbox.
    ///
    /// # Errors
    /// As [`SharedFile::new`], or no descriptors are left.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { memory: SharedFile::new("rxe-inbox", INBOX * 8)?, event: Kept::new(Event::new()?) })
    }

    /// The inbox that another process made.
    ///
    /// # Errors
    /// As [`SharedFile::adopt`].
    pub(crate) fn adopt([memory, event]: [OwnedFd; Self::DESCRIPTORS]) -> io::Result<Self> {
        Ok(Self { memory: SharedFile::adopt(memory, INBOX * 8)?, event: Kept::new(Event::adopt(event)) })
    }

    /// The process that reads the inbox has gone. Whoever writes to it learns of that with the next batch.
    pub(crate) fn close(&self) {
        // If it cannot be mapped, they learn of it when their lane is full.
        if let Ok(words) = self.memory.map(PAGE) {
            words.words()[CLOSED].store(1, Ordering::Release);
        }
    }

    #[cfg(test)]
    pub(crate) fn is_closed(&self) -> bool {
        self.memory.map(PAGE).unwrap().words()[CLOSED].load(Ordering::Acquire) != 0
    }

    /// The descriptors, to pass on.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; Self::DESCRIPTORS] {
        [self.memory.as_fd(), self.event.as_fd()]
    }
}

/// The reader's end.
#[derive(Debug)]
pub(crate) struct Inbox {
    words: SharedWords,
    event: Kept<Event>,
    /// The fork generation of the process that reads the inbox. A forked child inherits the inbox and does not read it.
    generation: u32,
    /// Lanes that are marked but not yet read completely.
    left: [u64; MARK_WORDS],
    /// The lane that is read first.
    first: usize,
    /// Calls of [`Self::take`] that found nothing.
    vain: u32,
}

impl Inbox {
    /// The inbox of this process.
    ///
    /// # Errors
    /// The memory cannot be mapped.
    pub(crate) fn open(files: InboxFiles) -> io::Result<Self> {
        let words = files.memory.map(INBOX)?;
        Ok(Self {
            words,
            event: files.event,
            generation: generation(),
            left: [0; MARK_WORDS],
            first: 0,
            vain: 0,
        })
    }

    /// A descriptor that is readable while the inbox may have something.
    pub(crate) fn arrivals(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Batches that were lost because their lane was full.
    pub(crate) fn drops(&self) -> u64 {
        self.words.words()[DROPS].load(Ordering::Relaxed)
    }

    /// Appends runs from the inbox to `into`, as far as there is room. Returns the number of runs.
    pub(crate) fn take(&mut self, into: &mut RecvBatch) -> usize {
        let words = self.words.words();
        if words[RAISED].load(Ordering::Acquire) == 0 {
            self.vain = self.vain.wrapping_add(1);
            if self.vain.is_multiple_of(SETTLE_EVERY) {
                self.clear_event();
            }
            return 0;
        }
        let before = into.len();
        for (left, mark) in self.left.iter_mut().zip(&words[MARKS..]) {
            *left |= mark.swap(0, Ordering::AcqRel);
        }
        while let Some(lane) = next_mark(&self.left, self.first) {
            let all = take_lane(&self.words, PAGE + lane * LANE, into);
            // Next time the other lanes come first.
            self.first = (lane + 1) % LANES;
            if !all {
                break;
            }
            self.left[lane / 64] &= !(1 << (lane % 64));
        }
        if self.left == [0; MARK_WORDS] {
            self.clear_event();
        }
        into.len() - before
    }

    /// Clears the descriptor after all lanes were read. If a writer has marked its lane meanwhile, the descriptor is raised
    /// again.
    fn clear_event(&self) {
        let words = self.words.words();
        words[RAISED].store(0, Ordering::SeqCst);
        self.event.clear();
        fence(Ordering::SeqCst);
        if words[MARKS..][..MARK_WORDS].iter().any(|mark| mark.load(Ordering::SeqCst) != 0) {
            words[RAISED].store(1, Ordering::SeqCst);
            self.event.raise();
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        if is_own(self.generation) {
            self.words.words()[CLOSED].store(1, Ordering::Release);
        }
    }
}

/// The first marked lane, searched from lane `from` on and then from lane 0.
fn next_mark(marks: &[u64; MARK_WORDS], from: usize) -> Option<usize> {
    let of_word = |word: usize, mask: u64| {
        let marks = marks[word % MARK_WORDS] & mask;
        (marks != 0).then(|| (word * 64 + marks.trailing_zeros() as usize) % LANES)
    };
    let (word, above) = (from / 64, u64::MAX << (from % 64));
    of_word(word, above)
        .or_else(|| (word + 1..word + MARK_WORDS).find_map(|word| of_word(word, u64::MAX)))
        .or_else(|| of_word(word, !above))
}

/// Appends the runs of the lane that begins at word `start`. Returns false if there was no room for all of them.
fn take_lane(inbox: &SharedWords, start: usize, into: &mut RecvBatch) -> bool {
    let (places, ring) = inbox.words()[start..][..LANE].split_at(PAGE);
    let tail = places[TAIL].load(Ordering::Acquire);
    let mut head = places[HEAD].load(Ordering::Relaxed);
    let mut all = true;
    if tail.wrapping_sub(head) > RING as u64 {
        head = tail;
    }
    while head != tail {
        let at = head as usize % RING;
        // Our writers leave only valid records. If there is an invalid one, the rest of the lane is skipped.
        let Some((len, next)) = measure(&ring[at..], tail.wrapping_sub(head)) else {
            head = tail;
            break;
        };
        if let Some(len) = len {
            let record = &ring[at..][..next];
            let Some(run) = run_of(record, len) else {
                head = tail;
                break;
            };
            let bytes = start + PAGE + at + RECORD;
            // If the bytes cannot be read, the packets fail their checks later.
            if !into.push_with(run, len, |buffer| _ = inbox.load(bytes, buffer)) {
                all = false;
                break;
            }
        }
        head = head.wrapping_add(next as u64);
    }
    places[HEAD].store(head, Ordering::Release);
    all
}

/// Measures the record at the beginning of `ring`: the bytes of its batch (`None` for [`SKIP`]), and the words to the next
/// record. Returns `None` if the record is not within the ring and the `announced` words.
fn measure(ring: &[AtomicU64], announced: u64) -> Option<(Option<usize>, usize)> {
    let len = ring[0].load(Ordering::Relaxed) as u32;
    let (len, words) = match len {
        SKIP => (None, ring.len()),
        len if len as usize > MOST_BYTES => return None,
        len => (Some(len as usize), RECORD + words_of(len as usize)),
    };
    (words <= ring.len() && words as u64 <= announced).then_some((len, words))
}

/// The words that so many bytes take, rounded up to whole cache lines.
const fn words_of(bytes: usize) -> usize {
    bytes.div_ceil(64) * 8
}

fn run_of(record: &[AtomicU64], len: usize) -> Option<Run<'static>> {
    let word = |at: usize| record[at].load(Ordering::Relaxed);
    let [src, dst] = [2, 4].map(|at| address_of_words([word(at), word(at + 1)]));
    let segment_size = (word(0) >> 32) as usize;
    let about = word(1);
    (src.is_ipv4() == dst.is_ipv4() && segment_size != 0 && len != 0).then_some(Run {
        src,
        src_port: about as u16,
        dst,
        ifindex: 0,
        tos: (about >> 16) as u8,
        ttl: (about >> 24) as u8,
        seen: HeaderSeen::Hidden,
        segment_size: segment_size.min(len),
        bytes: &[],
    })
}

/// The words at the beginning of a record, which describe the batch.
fn describe(batch: &Transmit, len: usize) -> [u64; 6] {
    let ([a, b], [c, d]) = (words_of_address(batch.src), words_of_address(batch.dst));
    let about = u64::from(batch.source_port) | u64::from(batch.tos) << 16 | u64::from(batch.hops()) << 24;
    [len as u64 | (batch.segment_size as u64) << 32, about, a, b, c, d]
}

/// A writer's end of one lane of another process's inbox.
#[derive(Debug)]
pub(crate) struct Lane {
    /// The first page of the inbox.
    common: SharedWords,
    /// The lane.
    words: SharedWords,
    event: Kept<Event>,
    /// A pidfd of the reader. It is readable once the process is dead.
    owner: Kept<OwnedFd>,
    /// The number of the lane.
    slot: u8,
    /// [`HEAD`] at the last call of [`Self::send`].
    read: u64,
}

impl Lane {
    /// Opens lane `slot` of an inbox. `owner` is a pidfd of the process that reads the inbox.
    ///
    /// # Errors
    /// The memory cannot be mapped.
    pub(super) fn open(files: InboxFiles, owner: OwnedFd, slot: u8) -> io::Result<Self> {
        let InboxFiles { memory, event } = files;
        let (common, words) = (memory.map(PAGE)?, memory.map_part(PAGE + usize::from(slot) * LANE, LANE)?);
        Ok(Self { common, words, event, owner: Kept::new(out_of_the_way(owner)), slot, read: 0 })
    }

    /// Whether the reader lives and has not closed the inbox. A signal that ends the look at its pidfd says nothing of it.
    pub(super) fn is_alive(&self) -> bool {
        let is_dead =
            || poll::wait(&[self.owner.as_fd()], Some(Duration::ZERO)).is_ok_and(|ready| ready != 0);
        self.common.words()[CLOSED].load(Ordering::Acquire) == 0 && self.owner.is_intact() && !is_dead()
    }

    /// Writes a batch into the lane. If there is no room the batch is lost, as with a full socket buffer. Returns false if it sees that the
    /// reader is gone.
    pub(super) fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> bool {
        let common = self.common.words();
        if common[CLOSED].load(Ordering::Relaxed) != 0 {
            return false;
        }
        let places = self.words.words();
        let (head, tail) = (places[HEAD].load(Ordering::Relaxed), places[TAIL].load(Ordering::Relaxed));
        if self.write(batch, bytes).is_none() {
            if !self.is_alive() {
                return false;
            }
            common[DROPS].fetch_add(1, Ordering::Relaxed);
        }
        let slot = usize::from(self.slot);
        common[MARKS + slot / 64].fetch_or(1 << (slot % 64), Ordering::SeqCst);
        // The writer that set `RAISED` may have died before it raised the descriptor. So raise it again if the reader has read
        // nothing since the last call.
        let unread = head == self.read && head != tail;
        self.read = head;
        if common[RAISED].swap(1, Ordering::SeqCst) == 0 || unread {
            self.event.raise();
        }
        true
    }

    fn write(&self, batch: &Transmit, bytes: &[u8]) -> Option<()> {
        let (places, ring) = self.words.words().split_at(PAGE);
        let head = places[HEAD].load(Ordering::Acquire);
        let mut tail = places[TAIL].load(Ordering::Relaxed);
        let need = RECORD + words_of(bytes.len());
        let mut at = tail as usize % RING;
        let end = RING - at;
        let skipped = if end < need { end } else { 0 };
        // A faulty reader may have stored any value in `HEAD`.
        let free = (RING as u64).checked_sub(tail.wrapping_sub(head))?;
        if free < (skipped + need) as u64 {
            return None;
        }
        if skipped > 0 {
            ring[at].store(u64::from(SKIP), Ordering::Relaxed);
            (tail, at) = (tail.wrapping_add(skipped as u64), 0);
        }
        for (word, value) in ring[at..].iter().zip(describe(batch, bytes.len())) {
            word.store(value, Ordering::Relaxed);
        }
        self.words.store(PAGE + at + RECORD, bytes).ok()?;
        places[TAIL].store(tail.wrapping_add(need as u64), Ordering::Release);
        Some(())
    }
}

#[cfg(test)]
mod tests;
