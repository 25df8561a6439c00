//! What is remarkable about a packet.

bitflags::bitflags! {
    /// What is remarkable about a packet, seen alone or among the others.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Marks: u32 {
        /// Sent before, and sent again.
        const RETRANSMITTED = 1;
        /// The same packet, seen at another place.
        const COPY = 1 << 1;
        /// It arrived after later packets, and is not a retransmission.
        const LATE = 1 << 2;
        /// Packets before it are not in the capture.
        const GAP = 1 << 3;
        /// A negative acknowledgement.
        const NAK = 1 << 4;
        /// The receiver is not ready.
        const RNR = 1 << 5;
        /// Its ICRC is wrong.
        const BAD_ICRC = 1 << 6;
        /// It was captured incompletely.
        const CUT = 1 << 7;
        /// A switch has marked it: congestion experienced.
        const MARKED = 1 << 8;
        /// A congestion notification.
        const CNP = 1 << 9;
        /// Its message sequence number is not the one that follows from the messages before it.
        const MSN = 1 << 10;
        /// It was lost after the point of capture, as its retransmission shows.
        const LOST = 1 << 11;
        /// It was not answered by the end of the capture.
        const UNANSWERED = 1 << 12;
        /// Its ICRC is wrong in the same way as those of other packets of the stream: its headers were rewritten on the way, or
        /// its sender computes it wrongly.
        const REWRITTEN = 1 << 13;
        /// Its headers cannot be read.
        const UNREADABLE = 1 << 14;
        /// A message of the connection manager.
        const CM = 1 << 15;
    }
}

impl Marks {
    /// The marks that users look for.
    pub const NOTABLE: Self =
        Self::all().difference(Self::CUT.union(Self::CM).union(Self::COPY).union(Self::CNP));

    /// The words of the set marks, as in filters.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        WORDS.iter().filter(move |(mark, _, _)| self.contains(*mark)).map(|(_, word, _)| *word)
    }
}

/// Each mark, its word, and what it means.
pub const WORDS: [(Marks, &str, &str); 16] = [
    (Marks::LOST, "lost", "lost behind the place of the capture: it was sent again for that"),
    (Marks::RETRANSMITTED, "retransmitted", "sent before, and sent again"),
    (Marks::GAP, "gap", "packets before it are not in the capture"),
    (Marks::NAK, "nak", "negative acknowledgements"),
    (Marks::RNR, "rnr", "the receiver was not ready (RNR NAK)"),
    (Marks::LATE, "late", "came after later ones, without being sent again"),
    (Marks::BAD_ICRC, "bad", "the ICRC is wrong"),
    (
        Marks::REWRITTEN,
        "rewritten",
        "addresses or ports were rewritten on the way (NAT), or the sender computes the ICRC wrongly",
    ),
    (Marks::UNREADABLE, "unreadable", "headers that cannot be read"),
    (Marks::MSN, "msn", "the message sequence number does not follow from the messages before"),
    (Marks::UNANSWERED, "unanswered", "no answer by the end of the capture"),
    (Marks::MARKED, "marked", "marked by a switch: congestion experienced (ECN)"),
    (Marks::CNP, "cnp", "congestion notifications"),
    (Marks::COPY, "copy", "the same packet, seen at another place (a mirror)"),
    (Marks::CUT, "cut", "not all of it was kept"),
    (Marks::CM, "cm", "messages of the connection manager"),
];
