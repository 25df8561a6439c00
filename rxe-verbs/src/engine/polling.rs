//! How threads that wait for packets spend their time.

use crate::net::ConfigError;

/// How a thread that waits for packets spends its time: one in [`CompChannel::get_event`](crate::CompChannel::get_event), and
/// the background thread of a program that makes no calls. A program that polls (`ibv_poll_cq`) is not concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Polling {
    /// It looks all the time: the shortest latency, and a processor for each such thread.
    Busy,
    /// It looks for a moment (20 to 30 us) after the last packet, then sleeps; a thread in `get_event` looks longer where that
    /// has been worth it.
    #[default]
    Adaptive,
    /// It sleeps at once: the least processor time.
    Sleep,
}

impl Polling {
    /// The value of `RXE_POLL`.
    pub(super) fn parse(text: &str) -> Result<Self, ConfigError> {
        match text {
            "busy" => Ok(Self::Busy),
            "" | "adaptive" => Ok(Self::Adaptive),
            "sleep" => Ok(Self::Sleep),
            _ => Err(ConfigError::new("RXE_POLL", text, "busy, adaptive, sleep")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_has_three_values() {
        let good = [
            ("busy", Polling::Busy),
            ("adaptive", Polling::Adaptive),
            ("", Polling::Adaptive),
            ("sleep", Polling::Sleep),
        ];
        for (text, polling) in good {
            assert_eq!(Polling::parse(text), Ok(polling));
        }
        let error = Polling::parse("Busy").unwrap_err().to_string();
        assert_eq!(error, "RXE_POLL=\"Busy\" is not understood; allowed: busy, adaptive, sleep");
    }
}
