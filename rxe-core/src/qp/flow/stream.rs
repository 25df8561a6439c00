//! What several endpoints of a process send to one destination socket: the shards of `RXE_THREADS`.
//!
//! They take each other into account without a lock and without waking each other: each may have its part of the window
//! under way, and a packet at least, whose acknowledgement has it look again.

use alloc::sync::Arc;
use core::{
    fmt::Debug,
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering},
};

/// All bytes that the endpoints of a process have ever sent to one destination socket, as positions in one stream. It is
/// theirs in common.
///
/// Positions are given out when packets are written, and packets leave a little later. So where two endpoints send at once
/// up to a batch of each may be ahead of its position: what is said to have left may still be under way.
#[derive(Debug)]
pub struct Stream {
    /// Bytes that the socket takes, as far as is known.
    room: u32,
    sent: AtomicU64,
    /// Before this position nothing is under way any more, as an acknowledgement to any of them has proven.
    left: AtomicU64,
    /// Where the last packet of each ended.
    last: [AtomicU64; Self::MOST],
}

impl Stream {
    /// Endpoints that may have one in common, at most.
    pub const MOST: usize = 16;

    /// One to a socket that takes `room` bytes, as far as is known; of a packet its payload and 64 bytes count. All endpoints together
    /// have no more under way, but for a packet of each that has nothing under way.
    #[must_use]
    pub fn new(room: u32) -> Self {
        Self { room, sent: AtomicU64::default(), left: AtomicU64::default(), last: Default::default() }
    }

    /// Bytes under way, of all endpoints.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        // In this order, or what another one sends and has acknowledged between would be missing from `sent`.
        let left = self.left.load(Ordering::Acquire);
        self.sent.load(Ordering::Acquire).saturating_sub(left)
    }
}

/// Where endpoints find the streams that they have in common.
pub trait Streams: Debug + Send + Sync {
    /// The one to the socket of `slot` at `address`: the same for all who ask, as long as any of them keeps it.
    fn to(&self, address: IpAddr, slot: u8) -> Arc<Stream>;
}

/// An endpoint's place among those who send in a stream.
#[derive(Debug)]
pub(super) struct Sender {
    stream: Arc<Stream>,
    /// Below [`Stream::MOST`].
    index: usize,
}

impl Sender {
    pub(super) fn new(stream: Arc<Stream>, index: u8) -> Self {
        Self { stream, index: usize::from(index) % Stream::MOST }
    }

    /// Whether there is no room for `more` bytes.
    pub(super) fn is_taken(&self, more: u32) -> bool {
        self.stream.in_flight() + u64::from(more) > self.stream.room.into()
    }

    /// What this endpoint may have under way of the room, which is divided by those that have something under way.
    pub(super) fn part(&self) -> u32 {
        self.stream.room / self.count()
    }

    /// How many endpoints have something under way, and this one, which is about to.
    fn count(&self) -> u32 {
        let left = self.stream.left.load(Ordering::Relaxed);
        let others = (0..).zip(&self.stream.last).filter(|(index, _)| *index != self.index);
        others.fold(1, |count, (_, last)| count + u32::from(last.load(Ordering::Relaxed) > left))
    }

    /// A packet of `bytes` leaves. Where it ends.
    pub(super) fn sent(&self, bytes: u32) -> u64 {
        let end = self.stream.sent.fetch_add(bytes.into(), Ordering::AcqRel) + u64::from(bytes);
        self.stream.last[self.index].store(end, Ordering::Relaxed);
        end
    }

    /// What was sent before `position` is not under way any more.
    pub(super) fn left(&self, position: u64) {
        self.stream.left.fetch_max(position, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_nothing_under_way_is_not_counted() {
        let stream = Arc::new(Stream::new(200 * 1024));
        let [first, second] = [0, 15].map(|index| Sender::new(Arc::clone(&stream), index));
        assert_eq!((first.count(), first.part()), (1, 200 * 1024));
        assert_eq!(first.sent(100), 100);
        assert_eq!((first.count(), second.count()), (1, 2));
        assert_eq!(second.sent(50), 150);
        assert_eq!((first.count(), second.count(), stream.in_flight()), (2, 2, 150));
        assert_eq!((first.part(), second.part()), (100 * 1024, 100 * 1024));
        assert_eq!([200 * 1024 - 150, 200 * 1024 - 149].map(|more| first.is_taken(more)), [false, true]);

        // What one had answered proves that the other's has left before it.
        second.left(150);
        assert_eq!((first.count(), second.count(), stream.in_flight()), (1, 1, 0));
        first.left(100);
        assert_eq!(stream.in_flight(), 0, "it does not come back");
    }
}
