//! How data and its message are divided into requests, so that they leave in few batches. A batch has packets of one length,
//! and the last may be shorter (`rxe-core/src/endpoint/batch.rs`).

use rxe_verbs::Sge;

/// A message that is sent by itself is one request if its data has at most this many packets. The first packet of a WRITE with
/// immediate data is the longest, because it has a RETH, and the last has the immediate data. A batch has packets of one length
/// and one shorter packet at the end. So two such packets fit into one batch, but more do not.
const TOGETHER: u32 = 2;
/// Bytes that immediate data adds to a packet.
const IMMEDIATE: u32 = 4;

/// The packets of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing {
    /// Data bytes of a full packet, 256 to 4096.
    pub(crate) mtu: u32,
}

/// How a message is divided into requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cut {
    /// The length of a separate WRITE, which leaves in packets of one length.
    pub(crate) before: u32,
    /// The message itself has the bytes from this offset on: where the rest begins, or before that.
    pub(crate) from: u32,
}

impl Packing {
    /// How a message with `len` bytes is divided; `None` if it is one request. With `follows` other messages are under way, so
    /// it pays to fill batches with packets of several messages. The message's own packet then has the full length, so that it
    /// does not end the batch: it also writes the bytes before the rest once more, which the peer has not been told of yet.
    /// Without `follows` it is shorter and ends its batch.
    pub(crate) fn cut(self, len: u32, follows: bool) -> Option<Cut> {
        if len <= if follows { self.mtu } else { TOGETHER * self.mtu } {
            return None;
        }
        let before = len - len % self.mtu;
        let filled = if follows { len - (self.mtu - IMMEDIATE) } else { before };
        Some(Cut { before, from: before.min(filled) })
    }
}

/// Splits two pieces of memory at byte `at`.
pub(crate) fn split(whole: [Sge; 2], at: u32) -> ([Sge; 2], [Sge; 2]) {
    let (mut first, mut last, mut left) = (whole, whole, at);
    for (first, last) in first.iter_mut().zip(&mut last) {
        first.len = first.len.min(left);
        left -= first.len;
        last.addr = last.addr.wrapping_add(first.len.into());
        last.len -= first.len;
    }
    (first, last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxe_verbs::Key;

    #[test]
    fn by_itself_a_message_has_the_rest_of_its_data() {
        let cut = |len| Packing { mtu: 1024 }.cut(len, false).map(|cut| (cut.before, cut.from));
        assert_eq!([1, 1024, 2048].map(cut), [None; 3]);
        assert_eq!([2049, 3072, 4000].map(cut), [2048, 3072, 3072].map(|at| Some((at, at))));
    }

    #[test]
    fn in_a_row_the_message_is_a_packet_like_the_others() {
        for mtu in [256, 512, 1024, 2048, 4096] {
            let packing = Packing { mtu };
            assert_eq!((packing.cut(1, true), packing.cut(mtu, true)), (None, None));
            for len in mtu + 1..4 * mtu {
                let Cut { before, from } = packing.cut(len, true).unwrap();
                assert!(before % mtu == 0 && from <= before && before <= len && len - from <= mtu);
                // If the rest is longer than the data of such a packet, it is sent once, and its packet begins a new batch.
                assert!(len - from == mtu - IMMEDIATE || from == before && len - from > mtu - IMMEDIATE);
            }
        }
    }

    #[test]
    fn pieces_are_cut_wherever_that_is() {
        let piece = |addr, len| Sge { addr, len, lkey: Key(7) };
        let whole = [piece(1000, 30), piece(500, 20)];
        let cut = |at| {
            let (first, last) = split(whole, at);
            let ranges = |[a, b]: [Sge; 2]| [(a.addr, a.len), (b.addr, b.len)];
            (ranges(first), ranges(last))
        };
        assert_eq!(cut(10), ([(1000, 10), (500, 0)], [(1010, 20), (500, 20)]));
        assert_eq!(cut(30), ([(1000, 30), (500, 0)], [(1030, 0), (500, 20)]));
        assert_eq!(cut(45), ([(1000, 30), (500, 15)], [(1030, 0), (515, 5)]));
        assert_eq!(cut(50), ([(1000, 30), (500, 20)], [(1030, 0), (520, 0)]));
    }
}
