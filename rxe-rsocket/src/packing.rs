//! How data and their message are cut into requests, so that they leave in few batches: packets of one length fill a batch, and the last
//! may be shorter (`rxe-core/src/endpoint/batch.rs`).

use rxe_verbs::Sge;

/// Packets of data up to which a message that goes by itself is one request. The first packet of a WRITE with immediate data is the
/// longest, for its RETH, and the last has the immediate data. A batch is packets of one length and a shorter one behind them, so that
/// two such packets are one batch, and more are not.
const TOGETHER: u32 = 2;
/// Bytes by which the immediate data make a packet longer.
const IMMEDIATE: u32 = 4;

/// What is known of the packets of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing {
    /// Bytes of data of a packet that is whole, 256 to 4096.
    pub(crate) mtu: u32,
}

/// The requests of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cut {
    /// So many bytes are a WRITE of their own, which leaves in packets of one length.
    pub(crate) before: u32,
    /// The message has the bytes from here on: where the rest begins, or before it.
    pub(crate) from: u32,
}

impl Packing {
    /// How a message with `len` bytes is cut; none where it is one request. `follows`: others are under way, so that it is worth
    /// filling batches with packets of several messages. Then the message's own packet is as long as the others, and ends no batch: it
    /// writes bytes before the rest once more, of which the peer has not been told yet. By itself it ends its batch, as short as it is.
    pub(crate) fn cut(self, len: u32, follows: bool) -> Option<Cut> {
        if len <= if follows { self.mtu } else { TOGETHER * self.mtu } {
            return None;
        }
        let before = len - len % self.mtu;
        let filled = if follows { len - (self.mtu - IMMEDIATE) } else { before };
        Some(Cut { before, from: before.min(filled) })
    }
}

/// The first `at` bytes of two pieces of memory, and those behind them.
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
                // A rest that is longer than such a packet's data is sent once, and its packet begins a batch.
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
