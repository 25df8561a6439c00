//! End-to-end credits: how many receives are posted, in the five bits of a positive syndrome (IBTA vol. 1, 9.7.7.2).
//! ConnectX sends true counts and heeds them; kernel rxe sends "unused" and heeds none.

use crate::{num::Msn, qp::common::QpCommon, wire::Syndrome};

/// Receives that each code stands for; code 31 is "not used".
const RECEIVES: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// The code that promises the most, but not more than `receives`.
fn code(receives: usize) -> u8 {
    let above = RECEIVES.partition_point(|&count| usize::from(count) <= receives);
    (above - 1) as u8
}

/// The positive syndrome of a queue pair. A limit is MSN plus credits; the MSN does not count an open message, so the
/// receive which that one holds is still to be counted. A shared queue promises nothing to one of its users.
pub(super) fn syndrome(qp: &QpCommon, holds_receive: bool) -> Syndrome {
    if qp.config.srq.is_some() || qp.config.qp_type.is_xrc() {
        Syndrome::ACK_NO_CREDITS
    } else {
        Syndrome::Ack(code(qp.rq.queue.len() + usize::from(holds_receive)))
    }
}

/// How many messages the peer has receives for, as the requester knows (IBTA vol. 1, 9.7.7.2.5). Nothing is known before
/// the first acknowledgement: until then the receives that applications post beforehand are taken to be there.
#[derive(Debug, Default)]
pub(super) struct Limit {
    /// Messages started: what the peer's MSN will be when it has completed them.
    started: Msn,
    /// The last message that surely finds a receive, if it needs one; `None` while the peer counts none.
    last: Option<Msn>,
}

impl Limit {
    /// Half the circle of MSNs: what is farther ahead lies behind.
    const HALF: u32 = 1 << 23;

    /// Whether a message that takes a receive may start. One beyond the promised ones may: its answer tells of receives
    /// posted since.
    pub(super) const fn allows(&self) -> bool {
        match self.last {
            Some(last) => last.since(self.started) < Self::HALF,
            None => true,
        }
    }

    /// A message started. One that takes no receive leaves what is promised to those after it.
    pub(super) fn start(&mut self, takes_receive: bool) {
        self.started = self.started.next();
        if !takes_receive {
            self.last = self.last.map(Msn::next);
        }
    }

    /// The peer acknowledged with this MSN and credit code. Promises are not taken back: an acknowledgement that says
    /// less than an earlier one only rounded down.
    pub(super) fn learn(&mut self, msn: Msn, code: u8) {
        self.last = RECEIVES.get(usize::from(code)).map(|&receives| {
            let told = Msn::new(msn.value() + u32::from(receives));
            match self.last {
                Some(last) if told.since(last) >= Self::HALF => last,
                _ => told,
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_beyond_the_promised_ones() {
        let mut limit = Limit::default();
        (0..5).for_each(|_| limit.start(true));
        assert!(limit.allows(), "nothing is known yet");
        limit.learn(Msn::new(5), 2);
        limit.learn(Msn::new(5), 0);
        for _ in 0..3 {
            assert!(limit.allows());
            limit.start(true);
        }
        assert!(!limit.allows());
        limit.learn(Msn::new(4), 1);
        limit.learn(Msn::new(6), 2);
        assert!(limit.allows(), "8 of 8 started");
        limit.start(true);
        assert!(!limit.allows());
        limit.start(false);
        assert!(!limit.allows());
        limit.learn(Msn::new(6), 31);
        assert!(limit.allows());
    }

    #[test]
    fn the_circle_of_msns() {
        let mut limit = Limit { started: Msn::new(0xff_ffff), last: None };
        limit.learn(Msn::new(0xff_ffff), 1);
        for _ in 0..2 {
            assert!(limit.allows());
            limit.start(true);
        }
        assert!(!limit.allows());
    }

    #[test]
    fn the_code_never_promises_more_than_there_is() {
        for (code_of, &count) in RECEIVES.iter().enumerate() {
            assert_eq!(usize::from(code(count.into())), code_of);
            if count > 0 {
                assert_eq!(usize::from(code(usize::from(count) - 1)), code_of - 1);
            }
        }
        assert_eq!(code(5), 4);
        assert_eq!(code(7), 5);
        assert_eq!(code(usize::MAX), 30);
    }
}
