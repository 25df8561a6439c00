//! The events of a simulation, and their codes: the calendar stores each event as one number.

/// An event. In its code the kind is in the top bits, and the index below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// The first packet of a wire has reached its end.
    Arrive(usize),
    /// A port has sent a packet completely.
    Free(usize),
    /// A frame that begins or ends a pause has arrived at the sender of a wire.
    Pause(usize),
    /// An endpoint's deadline.
    Wake(usize),
    /// A flow starts.
    Start(usize),
    /// A flow's timeout of selective repeat.
    Silence(usize),
    /// A sample is due.
    Sample,
}

/// The index in a code.
const INDEX: u32 = (1 << 28) - 1;

impl Event {
    /// Its code. Of events at the same time, the one with the lowest code comes first.
    pub(super) const fn code(self) -> u32 {
        let (kind, index) = match self {
            Self::Arrive(wire) => (0, wire),
            Self::Free(wire) => (1, wire),
            Self::Pause(wire) => (2, wire),
            Self::Wake(host) => (3, host),
            Self::Start(flow) => (4, flow),
            Self::Silence(flow) => (5, flow),
            Self::Sample => (6, 0),
        };
        kind << 28 | index as u32
    }

    /// The event of a code of [`Self::code`].
    pub(super) const fn from_code(code: u32) -> Self {
        let index = (code & INDEX) as usize;
        match code >> 28 {
            0 => Self::Arrive(index),
            1 => Self::Free(index),
            2 => Self::Pause(index),
            3 => Self::Wake(index),
            4 => Self::Start(index),
            5 => Self::Silence(index),
            _ => Self::Sample,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_back() {
        let most = INDEX as usize;
        for event in [
            Event::Arrive(most),
            Event::Free(1),
            Event::Pause(2),
            Event::Wake(59_999),
            Event::Start(most),
            Event::Silence(4),
            Event::Sample,
        ] {
            assert_eq!(Event::from_code(event.code()), event);
        }
    }
}
