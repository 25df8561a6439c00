//! What a peer does in its own way, against the specification or beside it: one value for each peer's address, which the
//! endpoint keeps and changes (`endpoint/hosts.rs`).

use crate::wire::FlushIcrc;

/// One peer's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Quirks {
    /// The ICRC of the FLUSHes that it takes, as far as is known.
    flush: FlushIcrc,
    /// Whether one of its own has shown that.
    certain: bool,
}

impl Quirks {
    /// Linux 6.1 takes the start of a repeated READ for the start of what may be repeated from then on, and is silent if a
    /// piece before it has to be sent once more. Nothing tells such a peer from others, so READs are repeated to all of them as
    /// they were asked for at first.
    pub(crate) const READS_AGAIN_WHOLE: bool = true;

    /// Which ICRC a FLUSH to it has. Kernel rxe (6.12) takes and sends only its own form.
    pub(crate) const fn flush_icrc(self) -> FlushIcrc {
        self.flush
    }

    /// A whole FLUSH of its own came with this ICRC.
    pub(crate) const fn saw_flush(&mut self, form: FlushIcrc) {
        *self = Self { flush: form, certain: true };
    }

    /// A FLUSH that left with this ICRC got no answer in time: the next one leaves with the other, unless what it takes is
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
