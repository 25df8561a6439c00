//! Performance management (IBTA vol. 1, 16.1): a port's counters.

use super::{
    CLASS_PORT_INFO, DATA, Mad,
    bits::{get, put},
    class, class_port_info, method, status,
};

/// Attributes.
const PORT_COUNTERS: u16 = 0x12;
const PORT_COUNTERS_EXTENDED: u16 = 0x1d;
/// Capabilities: all ports at once, and counters of 64 bits without those by unicast and multicast.
const ALL_PORTS: u16 = 1 << 8;
const EXTENDED: u16 = 1 << 10;
/// "All ports" in the place of a port's number.
const EVERY: u64 = 0xff;

/// The counters of a port. Counters of the wire (symbol errors, lost links) do not exist for a socket, and are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Words of four bytes that were sent.
    pub sent_words: u64,
    /// Words of four bytes that were received.
    pub received_words: u64,
    /// Packets that were sent.
    pub sent_packets: u64,
    /// Packets that were received.
    pub received_packets: u64,
}

impl PortCounts {
    const fn each(&self) -> [u64; 4] {
        [self.sent_words, self.received_words, self.sent_packets, self.received_packets]
    }

    /// The counts since `base`.
    #[must_use]
    pub const fn since(&self, base: &Self) -> Self {
        Self {
            sent_words: self.sent_words.saturating_sub(base.sent_words),
            received_words: self.received_words.saturating_sub(base.received_words),
            sent_packets: self.sent_packets.saturating_sub(base.sent_packets),
            received_packets: self.received_packets.saturating_sub(base.received_packets),
        }
    }

    /// The new base if some counters begin anew at `now`.
    #[must_use]
    pub fn reset_to(mut self, now: &Self, reset: Reset) -> Self {
        let own = [
            &mut self.sent_words,
            &mut self.received_words,
            &mut self.sent_packets,
            &mut self.received_packets,
        ];
        for ((own, now), reset) in own.into_iter().zip(now.each()).zip(reset) {
            *own = if reset { now } else { *own };
        }
        self
    }
}

/// Counters that a request sets to 0, in the order of [`PortCounts`].
pub type Reset = [bool; 4];

/// Answers a request about the only port, and returns which counters begin anew. `None` if the request needs no answer.
#[must_use]
pub fn answer(request: &Mad, counts: &PortCounts) -> Option<(Mad, Reset)> {
    const NONE: Reset = [false; 4];
    if request.class() != class::PERF {
        return None;
    }
    let refusal = request.unmatched()?;
    if request.version() != 1 {
        return Some((request.reply(status::BAD_VERSION), NONE));
    }
    let is_set = request.method() == method::SET;
    let attribute = request.attribute();
    if attribute == CLASS_PORT_INFO && !is_set {
        let mut reply = request.reply(0);
        // What the request has there means nothing. Returned, it would be a redirection.
        reply.0[DATA..].fill(0);
        class_port_info(1, ALL_PORTS | EXTENDED, &mut reply.0[DATA..]);
        return Some((reply, NONE));
    }
    // The offset of the four counters, and the lowest of their bits in CounterSelect.
    let (at, width, selected) = match attribute {
        PORT_COUNTERS => (192, 32, 12),
        PORT_COUNTERS_EXTENDED => (64, 64, 0),
        _ => return Some((refusal, NONE)),
    };
    let port = get(&request.0[DATA..], 8, 8);
    // Tools ask for port 0 if the user has not named one.
    if !matches!(port, 0 | 1 | EVERY) {
        return Some((request.reply(status::INVALID_FIELD), NONE));
    }
    let chosen = get(&request.0[DATA..], 16, 16);
    let reset = core::array::from_fn(|index| is_set && chosen >> (selected + index) & 1 != 0);
    let mut reply = request.reply(0);
    reply.0[DATA + 4..].fill(0);
    let most = if width == 32 { u64::from(u32::MAX) } else { u64::MAX };
    for (index, value) in counts.each().into_iter().enumerate() {
        // Counters of 32 bits stay at their maximum.
        let value = if reset[index] { 0 } else { value.min(most) };
        put(&mut reply.0[DATA..], at + index * width, width, value);
    }
    Some((reply, reset))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::MAD_LEN;

    const COUNTS: PortCounts =
        PortCounts { sent_words: 1 << 40, received_words: 2, sent_packets: 3, received_packets: 4 };

    fn ask(method: u8, attribute: u16, port: u64, select: u64) -> (Mad, Reset) {
        let mut bytes = [0; MAD_LEN];
        bytes[..4].copy_from_slice(&[1, class::PERF, 1, method]);
        put(&mut bytes, 128, 16, attribute.into());
        put(&mut bytes[DATA..], 8, 8, port);
        put(&mut bytes[DATA..], 16, 16, select);
        answer(&Mad(bytes), &COUNTS).unwrap()
    }

    #[test]
    fn counters_are_read_and_reset() {
        let field = |mad: &Mad, at, width| get(&mad.0[DATA..], at, width);
        let (old, reset) = ask(method::GET, PORT_COUNTERS, 1, 0xffff);
        assert_eq!(
            ([192, 224, 256, 288].map(|at| field(&old, at, 32)), reset),
            ([0xffff_ffff, 2, 3, 4], [false; 4])
        );
        let (new, _) = ask(method::GET, PORT_COUNTERS_EXTENDED, 255, 0);
        assert_eq!([64, 128, 192, 256].map(|at| field(&new, at, 64)), [1 << 40, 2, 3, 4]);
        let (_, reset) = ask(method::SET, PORT_COUNTERS, 1, 0x3000);
        assert_eq!(reset, [true, true, false, false]);
        let (set, reset) = ask(method::SET, PORT_COUNTERS_EXTENDED, 1, 0x8);
        assert_eq!((reset, set.method(), field(&set, 256, 64)), ([false, false, false, true], 0x81, 0));
        assert_eq!(ask(method::GET, PORT_COUNTERS, 2, 0).0.status(), status::INVALID_FIELD);
        assert_eq!(ask(method::GET, 0x36, 1, 0).0.status(), status::UNSUPPORTED);
        assert_eq!(field(&ask(method::GET, CLASS_PORT_INFO, 0, 0).0, 16, 16), 0x500);
        let mut noisy = Mad([0xff; MAD_LEN]);
        noisy.0[..4].copy_from_slice(&[1, class::PERF, 1, method::GET]);
        put(&mut noisy.0, 128, 16, CLASS_PORT_INFO.into());
        let (told, _) = answer(&noisy, &COUNTS).unwrap();
        let rest = &told.0[DATA + 8..];
        assert!(
            field(&told, 32, 27) == 0 && rest.iter().all(|byte| *byte == 0),
            "no more capabilities, no redirection"
        );
        assert_eq!(
            COUNTS.since(&PortCounts { sent_packets: 9, received_words: 1, ..COUNTS }).each(),
            [0, 1, 0, 0]
        );
    }
}
