//! What several endpoints of a process (the shards of `RXE_THREADS`) send to one destination socket.
//!
//! They take each other into account without a lock and without waking each other. Each may have its part of the window under
//! way, and at least one packet. When that packet is acknowledged the endpoint checks again what it may send.

use alloc::sync::Arc;
use core::{
    fmt::Debug,
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering},
};

/// All bytes that the endpoints of a process have ever sent to one destination socket, as positions in one shared stream.
///
/// A packet gets its position when it is written, and is sent a little later. If two endpoints send at the same time, packets may
/// be sent in another order than that of their positions, by up to a batch of each. So bytes that count as left may still be
/// under way.
#[derive(Debug)]
pub struct Stream {
    /// Bytes that the socket's buffer takes, as far as is known.
    room: u32,
    sent: AtomicU64,
    /// Nothing before this position is under way, as an acknowledgement to one of the endpoints has proven.
    left: AtomicU64,
    /// End of each endpoint's last packet.
    last: [AtomicU64; Self::MOST],
}

impl Stream {
    /// Endpoints that may share a stream at most.
    pub const MOST: usize = 16;

    /// A stream to a socket that takes `room` bytes, as far as is known. A packet counts as its payload and 64 bytes. All
    /// endpoints together have no more under way, except that each may always have one packet.
    #[must_use]
    pub fn new(room: u32) -> Self {
        Self { room, sent: AtomicU64::default(), left: AtomicU64::default(), last: Default::default() }
    }

    /// Bytes under way, of all endpoints.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        // `left` is read first. Otherwise bytes that another endpoint sends and has acknowledged in between would count in `left`
        // but not in `sent`.
        let left = self.left.load(Ordering::Acquire);
        self.sent.load(Ordering::Acquire).saturating_sub(left)
    }
}

/// Where endpoints find the streams that they share.
pub trait Streams: Debug + Send + Sync {
    /// The stream to the socket of `slot` at `address`. It is the same one for all callers, as long as any of them keeps it.
    fn to(&self, address: IpAddr, slot: u8) -> Arc<Stream>;
}

/// An endpoint's place in a stream.
#[derive(Debug)]
pub(super) struct StreamShare {
    stream: Arc<Stream>,
    /// Below [`Stream::MOST`].
    index: usize,
}

impl StreamShare {
    pub(super) fn new(stream: Arc<Stream>, index: u8) -> Self {
        Self { stream, index: usize::from(index) % Stream::MOST }
    }

    /// Whether the socket has no room for `more` bytes.
    pub(super) fn is_taken(&self, more: u32) -> bool {
        self.stream.in_flight() + u64::from(more) > self.stream.room.into()
    }

    /// Bytes that this endpoint may have under way: the room divided by the number of endpoints that have something under way.
    pub(super) fn part(&self) -> u32 {
        self.stream.room / self.count()
    }

    /// How many endpoints have something under way. This one counts, because it is about to send.
    fn count(&self) -> u32 {
        let left = self.stream.left.load(Ordering::Relaxed);
        let others = (0..).zip(&self.stream.last).filter(|(index, _)| *index != self.index);
        others.fold(1, |count, (_, last)| count + u32::from(last.load(Ordering::Relaxed) > left))
    }

    /// A packet of `bytes` is sent. Returns its end position.
    pub(super) fn sent(&self, bytes: u32) -> u64 {
        let end = self.stream.sent.fetch_add(bytes.into(), Ordering::AcqRel) + u64::from(bytes);
        self.stream.last[self.index].store(end, Ordering::Relaxed);
        end
    }

    /// Nothing that was sent before `position` is under way any more.
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
        let [first, second] = [0, 15].map(|index| StreamShare::new(Arc::clone(&stream), index));
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
