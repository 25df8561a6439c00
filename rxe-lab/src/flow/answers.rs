//! The responses of one direction (acknowledgements, NAKs, READ responses), and how they match the requests of the other
//! direction.

use super::{
    marks::Marks,
    order::{self, Corrupted},
    requests::{Cause, Outcome, Place, Requests},
};
use rxe_core::{
    num::Psn,
    wire::{Class, Head, Syndrome},
};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Answers {
    /// By name.
    pub(super) naks: BTreeMap<String, u64>,
    pub(super) acks: u64,
    pub(super) responses: u64,
    /// Smallest and largest credit code that was granted, where credits are used.
    pub(super) credits: Option<(u8, u8)>,
    pub(super) msn_mismatches: u64,
    pub(super) missing: u64,
    /// An MSN, and the number of completed messages in the capture at that time.
    msn: Option<(u32, u64)>,
    /// The PSN after the last answer.
    next_response: Option<Psn>,
    /// READ responses.
    corrupted: Corrupted,
}

impl Answers {
    /// Handles a response. `requests` are those that it answers, if known.
    pub(super) fn take(
        &mut self,
        head: &Head,
        time: u64,
        place: Place,
        requests: Option<&mut Requests>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let syndrome = head.ext.aeth.syndrome;
        match head.info.class {
            Class::ReadResponse => self.responses += 1,
            _ => self.acks += 1,
        }
        let has_aeth = head.info.class != Class::ReadResponse
            || head.info.position.is_start()
            || head.info.position.is_end();
        if has_aeth {
            self.look_at(syndrome, &mut outcome);
        }
        let Some(requests) = requests else { return outcome };
        match head.info.class {
            Class::ReadResponse => self.response(head, time, place, requests, &mut outcome),
            _ => self.acknowledge(head, time, place, requests, &mut outcome),
        }
        outcome
    }

    /// A READ response whose ICRC is wrong.
    pub(super) fn corrupted(&mut self, psn: Psn) {
        self.corrupted.put(psn, self.next_response);
    }

    fn look_at(&mut self, syndrome: Syndrome, outcome: &mut Outcome) {
        match syndrome {
            Syndrome::Ack(0x1f) => {}
            Syndrome::Ack(code) => {
                let (least, most) = self.credits.unwrap_or((code, code));
                self.credits = Some((least.min(code), most.max(code)));
            }
            Syndrome::RnrNak(_) => {
                outcome.marks |= Marks::NAK | Marks::RNR;
                *self.naks.entry(syndrome.to_string()).or_default() += 1;
            }
            Syndrome::Nak(_) => {
                outcome.marks |= Marks::NAK;
                *self.naks.entry(syndrome.to_string()).or_default() += 1;
            }
            Syndrome::Reserved(_) => *self.naks.entry(syndrome.to_string()).or_default() += 1,
        }
    }

    fn acknowledge(
        &mut self,
        head: &Head,
        time: u64,
        place: Place,
        requests: &mut Requests,
        outcome: &mut Outcome,
    ) {
        let psn = head.bth.psn;
        let syndrome = head.ext.aeth.syndrome;
        let is_nak = matches!(syndrome, Syndrome::RnrNak(_) | Syndrome::Nak(_));
        let end = if is_nak { psn } else { psn.next() };
        requests.answer(end, time, place);
        // Later READ responses have higher PSNs than this one.
        if self.next_response.is_none_or(|next| end.is_after(next)) {
            self.next_response = Some(end);
        }
        match syndrome {
            Syndrome::RnrNak(_) => requests.cause = Some(Cause::Rnr(psn)),
            Syndrome::Nak(rxe_core::wire::NakCode::PsnSequence) => requests.cause = Some(Cause::Nak(psn)),
            Syndrome::Nak(_) => requests.refuse(psn),
            _ => self.check_msn(head, requests, outcome),
        }
    }

    /// The responder counts messages. If none is missing in the capture, so can we.
    fn check_msn(&mut self, head: &Head, requests: &Requests, outcome: &mut Outcome) {
        if head.info.class != Class::Acknowledge {
            return;
        }
        // What was asked for before the capture began is not counted here.
        if self.msn.is_none() && requests.first.is_none_or(|first| head.bth.psn.is_before(first)) {
            return;
        }
        let (found, count) = (head.ext.aeth.msn.value(), requests.completed);
        if let Some((msn, at)) = self.msn
            && requests.missing + requests.late == 0
        {
            let wanted = (u64::from(msn) + (count - at)) as u32 & 0xff_ffff;
            if wanted != found && requests.answered.is_some_and(|(last, _)| last == head.bth.psn) {
                self.msn_mismatches += 1;
                outcome.marks |= Marks::MSN;
                outcome.why = Some(format!("MSN {found} where {wanted} messages are complete"));
            } else if wanted != found {
                // An old acknowledgement that arrived late.
                return;
            }
        }
        self.msn = Some((found, count));
    }

    fn response(
        &mut self,
        head: &Head,
        time: u64,
        place: Place,
        requests: &mut Requests,
        outcome: &mut Outcome,
    ) {
        let psn = head.bth.psn;
        requests.learn_mtu(head);
        let next = self.next_response.unwrap_or(psn);
        let ahead = psn.distance(next);
        if ahead >= 0 {
            self.next_response = Some(psn.next());
            let corrupted = self.corrupted.take(next, psn);
            // Between two READs other requests may have been answered. A response is certainly missing only within one READ.
            if ahead > 0 && !head.info.position.is_start() {
                let missing = ahead as u32 - corrupted.len() as u32;
                self.missing += u64::from(missing);
                outcome.marks.set(Marks::GAP, missing > 0);
                outcome.why = Some(order::fate("answer", next, ahead as u32, corrupted.len() as u32));
                let what = if corrupted.contains(&next) { "corrupted" } else { "missing" };
                requests.cause = Some(Cause::MissingAnswer(next, what));
            } else if let Some(first) = corrupted.first() {
                requests.cause = Some(Cause::MissingAnswer(*first, "corrupted"));
            }
        } else {
            // Sent again, because the requester has repeated its request.
            outcome.marks |= Marks::RETRANSMITTED;
            outcome.why = Some("the answer to a READ that was asked again".to_owned());
        }
        requests.response(psn, place);
        let end = if head.info.position.is_end() { psn.next() } else { psn };
        requests.answer(end, time, place);
    }
}
