//! How a peer deviates from the specification, or goes beyond it. The endpoint keeps one value for each peer's address
//! (`endpoint/hosts.rs`).

use crate::wire::FlushIcrc;

/// The quirks of one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Quirks {
    /// The form of ICRC with which the peer accepts FLUSHes, as far as is known.
    flush: FlushIcrc,
    /// Whether a FLUSH of the peer's own has shown that form.
    certain: bool,
}

impl Quirks {
    /// The form of ICRC for a FLUSH to the peer. Kernel rxe (6.12) takes and sends only its own form.
    pub(crate) const fn flush_icrc(self) -> FlushIcrc {
        self.flush
    }

    /// A FLUSH of the peer arrived undamaged with this form of ICRC.
    pub(crate) const fn saw_flush(&mut self, form: FlushIcrc) {
        *self = Self { flush: form, certain: true };
    }

    /// A FLUSH with this form of ICRC was not answered in time. The next one has the other form, unless the peer's form is
    /// certain.
    pub(crate) const fn flush_unanswered(&mut self, sent: FlushIcrc) {
        if !self.certain {
            self.flush = sent.other();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_answered_by_the_other_form_until_one_is_seen() {
        let mut quirks = Quirks::default();
        assert_eq!(quirks.flush_icrc(), FlushIcrc::Standard);
        // Two queue pairs that time out together tell of the same silence.
        quirks.flush_unanswered(FlushIcrc::Standard);
        quirks.flush_unanswered(FlushIcrc::Standard);
        assert_eq!(quirks.flush_icrc(), FlushIcrc::Rxe);
        quirks.flush_unanswered(FlushIcrc::Rxe);
        assert_eq!(quirks.flush_icrc(), FlushIcrc::Standard);
        quirks.saw_flush(FlushIcrc::Rxe);
        quirks.flush_unanswered(FlushIcrc::Rxe);
        assert_eq!(quirks.flush_icrc(), FlushIcrc::Rxe);
    }
}
