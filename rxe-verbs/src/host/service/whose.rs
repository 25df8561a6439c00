//! Connection requests of RoCE v1 arrive at every process that receives frames, and not at the service. If none of them accepts a
//! request, the service decides which process is to refuse it: the one that listens to its service ID and receives frames, else the
//! first that asks.

use super::{
    Service,
    clients::{Client, Kind},
};
use crate::host::message::FRAMES;
use std::{
    collections::VecDeque,
    net::IpAddr,
    time::{Duration, Instant},
};

/// How long a refused request is remembered. All processes ask within a short time, and the sender repeats the request only later.
const REFUSED: Duration = Duration::from_millis(500);
/// How long an accepted request is remembered. Its listener may end before others ask, and its program may take a while to answer.
const TAKEN: Duration = Duration::from_secs(60);
/// Most requests of each kind that are remembered.
const MOST: usize = 1024;

/// Recent requests, the oldest first.
#[derive(Debug)]
struct Recent {
    all: VecDeque<(Instant, u64)>,
    memory: Duration,
}

impl Recent {
    fn has(&mut self, now: Instant, request: u64) -> bool {
        let is_old = |(at, _): &(Instant, u64)| now.duration_since(*at) >= self.memory;
        while self.all.front().is_some_and(is_old) {
            self.all.pop_front();
        }
        self.all.iter().any(|(_, other)| *other == request)
    }

    fn add(&mut self, now: Instant, request: u64) {
        if self.all.len() >= MOST {
            self.all.pop_front();
        }
        self.all.push_back((now, request));
    }
}

/// Requests that a process answers.
#[derive(Debug)]
pub(super) struct Answered {
    refused: Recent,
    taken: Recent,
}

impl Default for Answered {
    fn default() -> Self {
        let recent = |memory| Recent { all: VecDeque::new(), memory };
        Self { refused: recent(REFUSED), taken: recent(TAKEN) }
    }
}

impl Answered {
    /// Whether no process answers that request yet. If so, the process that asks has to refuse it, which is noted.
    fn is_first(&mut self, now: Instant, request: u64) -> bool {
        let known = self.taken.has(now, request) || self.refused.has(now, request);
        if !known {
            self.refused.add(now, request);
        }
        !known
    }

    /// Notes that a process answers a request.
    pub(super) fn take(&mut self, now: Instant, request: u64) {
        if !self.taken.has(now, request) {
            self.taken.add(now, request);
        }
    }
}

impl Service {
    /// Whether the process of that slot is to answer a request that it does not accept.
    pub(super) fn is_to_answer(&mut self, slot: u8, request: u64, service_id: u64, address: IpAddr) -> bool {
        match self.listener_of(service_id, address).filter(|listener| !self.is_deaf(*listener)) {
            Some(listener) => listener == slot,
            None => self.answered.is_first(Instant::now(), request),
        }
    }

    /// Whether the process of that slot does not receive RoCE v1. False if it is not connected, because it may.
    fn is_deaf(&self, slot: u8) -> bool {
        let is_its = |client: &Client| matches!(client.kind, Kind::Member(own) if own == slot);
        self.clients.iter().any(|(_, client)| is_its(client) && client.features & FRAMES == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_all_that_ask_answers_and_again_when_it_is_repeated() {
        let (mut answered, now) = (Answered::default(), Instant::now());
        assert!(answered.is_first(now, 1));
        assert!(!answered.is_first(now + REFUSED / 2, 1), "another process");
        assert!(answered.is_first(now + REFUSED / 2, 2), "another request");
        assert!(answered.is_first(now + REFUSED, 1), "its sender repeats it");
        (0..10_000).for_each(|request| _ = answered.is_first(now + REFUSED, request));
        assert!(answered.refused.all.len() <= MOST);
    }

    #[test]
    fn a_request_that_was_taken_is_refused_by_nobody_else_when_its_listener_is_gone() {
        let (mut answered, now) = (Answered::default(), Instant::now());
        answered.take(now, 1);
        assert!(!answered.is_first(now + TAKEN / 2, 1));
        assert!(answered.is_first(now + TAKEN / 2, 2));
        assert!(answered.is_first(now + TAKEN, 1));
        (0..10_000).for_each(|request| answered.take(now + TAKEN, request));
        assert!(answered.taken.all.len() <= MOST);
    }
}
