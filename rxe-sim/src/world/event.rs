//! What happens in a simulation, and how the calendar keeps it: as one number.

/// Something that happens. The kind is in the top bits, the index below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// The first packet of a wire is at its end.
    Arrive(usize),
    /// A port has finished a packet.
    Free(usize),
    /// A pause frame has come to the sender of a wire.
    Pause(usize),
    /// One that ends the pause.
    Resume(usize),
    /// An endpoint's deadline.
    Wake(usize),
    /// A flow starts.
    Start(usize),
    /// A flow's timeout of selective repeat.
    Silence(usize),
    /// It is time to record.
    Sample,
}

/// The index in a code.
const INDEX: u32 = (1 << 28) - 1;

impl Event {
    /// As the calendar keeps it. Of events at one time the one with the lowest code comes first.
    pub(super) const fn code(self) -> u32 {
        let (kind, index) = match self {
            Self::Arrive(wire) => (0, wire),
            Self::Free(wire) => (1, wire),
            Self::Pause(wire) => (2, wire),
            Self::Resume(wire) => (3, wire),
            Self::Wake(host) => (4, host),
            Self::Start(flow) => (5, flow),
            Self::Silence(flow) => (6, flow),
            Self::Sample => (7, 0),
        };
        kind << 28 | index as u32
    }

    /// What [`Self::code`] gave.
    pub(super) const fn from_code(code: u32) -> Self {
        let index = (code & INDEX) as usize;
        match code >> 28 {
            0 => Self::Arrive(index),
            1 => Self::Free(index),
            2 => Self::Pause(index),
            3 => Self::Resume(index),
            4 => Self::Wake(index),
            5 => Self::Start(index),
            6 => Self::Silence(index),
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
            Event::Resume(0),
            Event::Wake(59_999),
            Event::Start(most),
            Event::Silence(4),
            Event::Sample,
        ] {
            assert_eq!(Event::from_code(event.code()), event);
        }
    }
}
