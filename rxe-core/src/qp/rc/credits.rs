//! End-to-end credits: how many receives are posted, in the five bits of a positive syndrome (IBTA vol. 1, 9.7.7.2).
//! ConnectX sends true counts and heeds them; kernel rxe sends "unused" and heeds none.

use crate::{qp::common::QpCommon, wire::Syndrome};

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
    if qp.config.srq.is_some() {
        Syndrome::ACK_NO_CREDITS
    } else {
        Syndrome::Ack(code(qp.rq.queue.len() + usize::from(holds_receive)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
