//! End-to-end credits: the number of posted receives, coded in the five bits of a positive syndrome (IBTA vol. 1, 9.7.7.2).
//! ConnectX sends true counts and obeys them. Kernel rxe sends "not used" and ignores them.

use crate::{num::Msn, qp::common::QpCommon, wire::Syndrome};

/// The number of receives for each code. Code 31 is "not used".
const RECEIVES: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// The code for the largest number that is not above `receives`.
fn code(receives: usize) -> u8 {
    let above = RECEIVES.partition_point(|&count| usize::from(count) <= receives);
    (above - 1) as u8
}

/// The positive syndrome of a queue pair. The peer's limit is MSN plus credits. The MSN does not count an open message, so the
/// receive that this message holds must count in the credits. A shared queue gives no credits, because others use it, too.
pub(super) fn syndrome(qp: &QpCommon, holds_receive: bool) -> Syndrome {
    if qp.config.srq.is_some() || qp.config.qp_type.is_xrc() {
        Syndrome::ACK_NO_CREDITS
    } else {
        Syndrome::Ack(code(qp.rq.queue.len() + usize::from(holds_receive)))
    }
}

/// How many messages the requester may start, by the peer's credits (IBTA vol. 1, 9.7.7.2.5). Before the first acknowledgement
/// nothing is known. Until then there is no limit, because applications usually post receives beforehand.
#[derive(Debug, Default)]
pub(super) struct Credits {
    /// Messages started. It is the peer's MSN after these are completed.
    started: Msn,
    /// The last message for which a receive is promised. `None` if the peer gives no credits.
    last: Option<Msn>,
}

impl Credits {
    /// Half the number space of MSNs: an MSN this far ahead or more counts as behind.
    const HALF: u32 = 1 << 23;

    /// Whether a message that takes a receive may start. One message beyond the promised ones may, because its answer reports
    /// receives that were posted since.
    pub(super) const fn allows(&self) -> bool {
        match self.last {
            Some(last) => last.since(self.started) < Self::HALF,
            None => true,
        }
    }

    /// A message started. If it takes no receive the promised receives remain for later messages.
    pub(super) fn start(&mut self, takes_receive: bool) {
        self.started = self.started.next();
        if !takes_receive {
            self.last = self.last.map(Msn::next);
        }
    }

    /// The peer acknowledged with this MSN and credit code. The limit never goes back: an acknowledgement that gives less than an
    /// earlier one was only rounded down.
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
        let mut limit = Credits::default();
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
        let mut limit = Credits { started: Msn::new(0xff_ffff), last: None };
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
