//! Connection requests of RoCE v1 come to every process that hears frames, and not to the service. Where none of them takes one,
//! the service says which is to answer: whoever listens to its service ID, and says what is wrong with it, or else the first
//! that asks.

use super::Service;
use std::{
    collections::VecDeque,
    net::IpAddr,
    time::{Duration, Instant},
};

/// How long a request is remembered: processes ask within moments of each other, and its sender repeats it after longer.
const MEMORY: Duration = Duration::from_millis(500);
/// Requests that are remembered at most.
const MOST: usize = 1024;

/// Requests that somebody answers, the oldest in front.
#[derive(Debug, Default)]
pub(super) struct Answered(VecDeque<(Instant, u64)>);

impl Answered {
    /// Whether nobody has been told to answer that request yet. Whoever asks is told so now.
    fn is_first(&mut self, now: Instant, request: u64) -> bool {
        let is_old = |(at, _): &(Instant, u64)| now.duration_since(*at) >= MEMORY;
        while self.0.front().is_some_and(is_old) || self.0.len() >= MOST {
            self.0.pop_front();
        }
        let known = self.0.iter().any(|(_, other)| *other == request);
        if !known {
            self.0.push_back((now, request));
        }
        !known
    }
}

impl Service {
    /// Whether the process of that slot is to answer a request that it does not take.
    pub(super) fn is_to_answer(&mut self, slot: u8, request: u64, service_id: u64, address: IpAddr) -> bool {
        match self.listener_of(service_id, address) {
            Some(listener) => listener == slot,
            None => self.answered.is_first(Instant::now(), request),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_all_that_ask_answers_and_again_when_it_is_repeated() {
        let (mut answered, now) = (Answered::default(), Instant::now());
        assert!(answered.is_first(now, 1));
        assert!(!answered.is_first(now + MEMORY / 2, 1), "another process");
        assert!(answered.is_first(now + MEMORY / 2, 2), "another request");
        assert!(answered.is_first(now + MEMORY, 1), "its sender repeats it");
        (0..10_000).for_each(|request| _ = answered.is_first(now + MEMORY, request));
        assert!(answered.0.len() <= MOST);
    }
}
