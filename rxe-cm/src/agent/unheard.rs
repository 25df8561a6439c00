//! Requests for services that nobody listens to yet wait a moment: programs that agree by other ways on when to connect
//! (perftest -R does) let the listener and the request race, and a busy host must not decide that against them. Kernels
//! refuse at once; no peer minds the moment, as all wait for seconds.

use super::{Turn, gsi::Arrival};
use crate::proto::ServiceId;
use core::time::Duration;
use rxe_core::time::Instant;
use std::collections::VecDeque;

/// How long one waits.
const PATIENCE: Duration = Duration::from_millis(100);
/// Requests that wait at most; others are refused at once.
const MOST: usize = 256;

/// Requests that wait, the oldest in front.
#[derive(Debug, Default)]
pub(super) struct Unheard(VecDeque<Request>);

#[derive(Debug)]
struct Request {
    service: ServiceId,
    arrival: Arrival,
    due: Instant,
}

impl Unheard {
    /// When the first is to be refused.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.front().map(|request| request.due)
    }
}

impl Turn<'_> {
    /// Whether a request waits now, instead of being refused.
    pub(super) fn may_wait(&mut self, service: ServiceId, arrival: &Arrival) -> bool {
        let waits = !arrival.has_waited && !self.is_listened_to(service) && self.state.unheard.0.len() < MOST;
        if waits {
            let arrival = Arrival { has_waited: true, ..*arrival };
            self.state.unheard.0.push_back(Request { service, arrival, due: self.now + PATIENCE });
        }
        waits
    }

    /// Somebody listens who did not.
    pub(crate) fn hear_waiting(&mut self) {
        for request in core::mem::take(&mut self.state.unheard.0) {
            if self.is_listened_to(request.service) {
                self.take_request_of(&request.arrival);
            } else {
                self.state.unheard.0.push_back(request);
            }
        }
    }

    /// Those that have waited long enough.
    pub(super) fn refuse_waiting(&mut self) {
        while self.state.unheard.deadline().is_some_and(|due| due <= self.now) {
            if let Some(request) = self.state.unheard.0.pop_front() {
                self.take_request_of(&request.arrival);
            }
        }
    }
}
