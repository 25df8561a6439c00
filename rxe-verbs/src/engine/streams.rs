//! What the shards of a stack send to the same sockets, which they share (`rxe_core::endpoint::Stream`).

use crate::sys::lock;
use rxe_core::endpoint::{Stream, Streams};
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, Weak},
};

/// Most streams without a user. If there are more, all of them are dropped.
const UNUSED: usize = 64;

/// The streams of a stack, by address and slot of the destination.
#[derive(Debug)]
pub(super) struct Destinations {
    /// Bytes that each of the sockets takes, as far as is known.
    room: u32,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    streams: HashMap<(IpAddr, u8), Weak<Stream>>,
    /// How many were in use when unused ones were last dropped.
    used: usize,
}

impl Destinations {
    pub(super) fn new(room: u32) -> Self {
        Self { room, known: Mutex::default() }
    }
}

impl Streams for Destinations {
    fn to(&self, address: IpAddr, slot: u8) -> Arc<Stream> {
        let mut known = lock(&self.known);
        if let Some(stream) = known.streams.get(&(address, slot)).and_then(Weak::upgrade) {
            return stream;
        }
        if known.streams.len() >= known.used + UNUSED {
            known.streams.retain(|_, stream| stream.strong_count() > 0);
            known.used = known.streams.len();
        }
        let stream = Arc::new(Stream::new(self.room));
        known.streams.insert((address, slot), Arc::downgrade(&stream));
        stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_has_one_as_long_as_somebody_sends_there() {
        let destinations = Destinations::new(1 << 20);
        let address = |n: u8| IpAddr::from([10, 0, 0, n]);
        let first = destinations.to(address(1), 7);
        assert!(Arc::ptr_eq(&first, &destinations.to(address(1), 7)));
        assert!(!Arc::ptr_eq(&first, &destinations.to(address(1), 8)));
        assert!(!Arc::ptr_eq(&first, &destinations.to(address(2), 7)));
        for slot in 0..=255 {
            destinations.to(address(3), slot);
        }
        let known = destinations.known.lock().unwrap().streams.len();
        assert!(known <= UNUSED + 2, "{known} are remembered");
        assert!(Arc::ptr_eq(&first, &destinations.to(address(1), 7)), "it is in use");
    }
}
