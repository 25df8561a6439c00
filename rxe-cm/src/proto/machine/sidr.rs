//! Service ID resolution: which datagram queue pair serves a service ID (IBTA vol. 1, 12.11).
//!
//! | state | what happens | next |
//! |---|---|---|
//! | requester: waiting | SIDR_REP: `Resolved` | closed |
//! | | no answer after all repetitions: `Unreachable` | closed |
//! | responder: requested | `reply`: SIDR_REP | answered |
//! | responder: answered | SIDR_REQ again: SIDR_REP again | answered |
//! | | the requester's repetitions are over, or `forget_answer` | closed |

use super::{
    event::{Ignored, in_answer},
    retry::{Retry, timeout},
};
use crate::proto::{CommId, Datagram, Message, PrivateData, ServiceId, SidrRep, SidrReq, SidrStatus};
use core::time::Duration;
use rxe_core::{
    num::{Pkey, Qkey, Qpn},
    time::Instant,
};
use std::collections::VecDeque;

/// How long and how often to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrTiming {
    /// How long the other side may take to answer, 4.096 us << code, 0 to 31. Kernels take 20.
    pub response_timeout: u8,
    /// Longest time that a packet is under way, as a code.
    pub packet_lifetime: u8,
    /// Repetitions. Kernels take 15.
    pub max_retries: u8,
}

impl SidrTiming {
    fn interval(&self) -> Duration {
        timeout(self.response_timeout) + timeout(self.packet_lifetime) * 2
    }
}

/// The answer to a resolution: what a SIDR_REP says. A status that is not defined is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resolution {
    /// Whether there is such a service. The other fields are valid only if there is.
    pub status: SidrStatus,
    /// The service.
    pub service_id: ServiceId,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The Q_Key of that queue pair.
    pub qkey: Qkey,
    /// Bytes of `info` that are valid.
    pub info_len: u8,
    /// More about the status.
    pub info: PrivateData<72>,
    /// Vendor of the enhanced connection establishment options, 0 for none.
    pub vendor_id: u32,
    /// Those options.
    pub modifier: u32,
    /// Private data.
    pub private_data: PrivateData<136>,
}

/// What happened to a resolution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SidrEvent {
    /// Responder: a request has arrived. Answer with `reply`.
    Requested {
        /// The service wanted.
        service_id: ServiceId,
        /// Partition.
        pkey: Pkey,
        /// Private data, with the IP CM header in front.
        private_data: PrivateData<216>,
    },
    /// Requester: the answer.
    Resolved(Resolution),
    /// Requester: no answer after all repetitions.
    Unreachable,
    /// Over: the request ID may be used again. Always the last event, and only once.
    Closed,
}

/// The side that asks.
#[derive(Debug)]
pub struct SidrRequester {
    request: Datagram,
    request_id: CommId,
    timing: SidrTiming,
    retry: Retry,
    /// A SIDR_REQ is due.
    sending: bool,
    events: VecDeque<SidrEvent>,
}

impl SidrRequester {
    /// Asks. Request IDs should be random: kernels confuse those of different hosts.
    #[must_use]
    pub fn new(now: Instant, req: SidrReq, transaction: u64, modifier: u32, timing: SidrTiming) -> Self {
        let mut retry = Retry::default();
        retry.start(now, timing.interval(), timing.max_retries);
        let request = Datagram { transaction, modifier, message: req.into() };
        Self { request, request_id: req.request_id, timing, retry, sending: true, events: VecDeque::new() }
    }

    /// Handles a message.
    ///
    /// # Errors
    /// [`Ignored`] if it changed nothing: a drop to be counted.
    pub fn handle(&mut self, datagram: &Datagram) -> Result<(), Ignored> {
        let Message::SidrRep(rep) = &datagram.message else { return Err(Ignored::Message) };
        if rep.request_id != self.request_id {
            return Err(Ignored::CommId);
        }
        if self.retry.due().is_none() {
            return Err(Ignored::Duplicate);
        }
        self.finish(SidrEvent::Resolved(Resolution {
            status: rep.status,
            service_id: rep.service_id,
            qpn: rep.qpn,
            qkey: rep.qkey,
            info_len: rep.info_len,
            info: rep.info,
            vendor_id: rep.vendor_id,
            modifier: datagram.modifier,
            private_data: rep.private_data,
        }));
        Ok(())
    }

    /// Handles a deadline that has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if !self.retry.is_due(now) {
            return;
        }
        if self.retry.again(now, self.timing.interval()) {
            self.sending = true;
        } else {
            self.finish(SidrEvent::Unreachable);
        }
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self) -> Option<Datagram> {
        core::mem::take(&mut self.sending).then_some(self.request)
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<SidrEvent> {
        self.events.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.retry.due()
    }

    fn finish(&mut self, event: SidrEvent) {
        self.retry.stop();
        self.sending = false;
        self.events.extend([event, SidrEvent::Closed]);
    }
}

/// The side that answers one request.
#[derive(Debug)]
pub struct SidrResponder {
    request: Datagram,
    timing: SidrTiming,
    retry: Retry,
    answer: Option<Datagram>,
    sending: bool,
    events: VecDeque<SidrEvent>,
}

impl SidrResponder {
    /// A SIDR_REQ has arrived. `timing` is what the requester is assumed to use: the answer is kept while it may repeat the request.
    ///
    /// # Errors
    /// [`Ignored::Message`] if `datagram` is no SIDR_REQ.
    pub fn requested(datagram: &Datagram, timing: SidrTiming) -> Result<Self, Ignored> {
        let Message::SidrReq(req) = &datagram.message else { return Err(Ignored::Message) };
        let SidrReq { service_id, pkey, private_data, .. } = *req;
        Ok(Self {
            request: *datagram,
            timing,
            retry: Retry::default(),
            answer: None,
            sending: false,
            events: [SidrEvent::Requested { service_id, pkey, private_data }].into(),
        })
    }

    /// Answers; request ID and service ID of `rep` are filled in here. Only the first call counts.
    pub fn reply(&mut self, now: Instant, rep: &SidrRep, modifier: u32) {
        let Message::SidrReq(req) = &self.request.message else { return };
        if self.answer.is_some() {
            return;
        }
        let rep = SidrRep { request_id: req.request_id, service_id: req.service_id, ..*rep };
        self.answer = Some(Datagram { modifier, ..in_answer(&self.request, rep) });
        self.retry.start(now, self.timing.interval() * (u32::from(self.timing.max_retries) + 1), 0);
        self.sending = true;
    }

    /// Handles a message: a repetition of the SIDR_REQ.
    ///
    /// # Errors
    /// [`Ignored`] if it changed nothing: a drop to be counted.
    pub fn handle(&mut self, datagram: &Datagram) -> Result<(), Ignored> {
        let Message::SidrReq(_) = &datagram.message else { return Err(Ignored::Message) };
        if datagram.message != self.request.message {
            return Err(Ignored::CommId);
        }
        if self.retry.due().is_none() {
            return Err(Ignored::Duplicate);
        }
        self.sending = true;
        Ok(())
    }

    /// Handles a deadline that has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.retry.is_due(now) {
            self.forget_answer();
        }
    }

    /// Forgets a request that was answered before its time has passed, to save memory.
    pub fn forget_answer(&mut self) {
        if self.retry.due().is_some() {
            self.retry.stop();
            self.sending = false;
            self.events.push_back(SidrEvent::Closed);
        }
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self) -> Option<Datagram> {
        let due = core::mem::take(&mut self.sending);
        self.answer.filter(|_| due)
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<SidrEvent> {
        self.events.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.retry.due()
    }
}
