//! What reliable connections do about congestion.

use crate::net::{ConfigError, fault::parse_rate};
use core::time::Duration;
use rxe_core::qp::{CongestionControl, Dcqcn, DcqcnParams, Pacing, Timely, TimelyParams, Timing};

/// How late a turn may be for a packet, and no rate is lost by it: threads that sleep are woken some 60 us late, and later
/// where others compute.
const CATCH_UP: Duration = Duration::from_millis(1);
/// TIMELY measures by acknowledgements: one is asked for after so many bytes, its paper's largest segment.
const SEGMENT: u32 = 64 * 1024;

/// What reliable connections do about congestion: by the variable `RXE_CONGESTION`, or
/// [`ContextOptions::congestion`](crate::ContextOptions::congestion).
///
/// With a rate of its own a queue pair still keeps to the window that all share which send to one peer. READ responses leave
/// without a rate, as do the unreliable services.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Congestion {
    /// The window to a peer, which all queue pairs share, shrinks by losses and notifications.
    #[default]
    Window,
    /// DCQCN (SIGCOMM 2015): each queue pair has a rate, which notifications of marked packets cut.
    Dcqcn(DcqcnParams),
    /// TIMELY (SIGCOMM 2015): each queue pair has a rate, which follows its round-trip times. The paper's thresholds are those of
    /// cards; between processes that sleep, round trips take longer.
    Timely(TimelyParams),
}

impl Congestion {
    /// The value of `RXE_CONGESTION`: `window`, or `dcqcn@10gbit` and `timely@10gbit` with the papers' parameters and the rate of the
    /// link, at which queue pairs start.
    pub(super) fn parse(text: &str) -> Result<Self, ConfigError> {
        const ALLOWED: &str = "window, dcqcn@RATE, timely@RATE (the link's, as 10gbit)";
        let wrong = || ConfigError::new("RXE_CONGESTION", text, ALLOWED);
        match text.split_once('@') {
            None if matches!(text, "" | "window") => Ok(Self::Window),
            Some(("dcqcn", line)) => Ok(Self::Dcqcn(DcqcnParams::paper(parse_rate(line).ok_or_else(wrong)?))),
            Some(("timely", line)) => {
                Ok(Self::Timely(TimelyParams::paper(parse_rate(line).ok_or_else(wrong)?)))
            }
            _ => Err(wrong()),
        }
    }

    /// What a new queue pair is paced by, if it is.
    pub(crate) fn pacing(&self) -> Option<Pacing> {
        let (control, ask_after): (Box<dyn CongestionControl>, u32) = match *self {
            Self::Window => return None,
            Self::Dcqcn(params) => (Box::new(Dcqcn::new(params)), u32::MAX),
            Self::Timely(params) => (Box::new(Timely::new(params)), SEGMENT),
        };
        let timing = Timing::default();
        Some(Pacing { control, window: u32::MAX, ask_after, catch_up: CATCH_UP, timing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_names_a_law_and_a_rate() {
        let ten = 10_000_000_000;
        for (text, wanted) in [
            ("", Congestion::Window),
            ("window", Congestion::Window),
            ("dcqcn@10gbit", Congestion::Dcqcn(DcqcnParams::paper(ten))),
            ("timely@10000mbit", Congestion::Timely(TimelyParams::paper(ten))),
        ] {
            assert_eq!(Congestion::parse(text), Ok(wanted), "{text}");
        }
        for text in ["dcqcn", "dcqcn@", "dcqcn@fast", "dcqcn@0gbit", "cubic@10gbit", "window@10gbit"] {
            let error = Congestion::parse(text).expect_err(text).to_string();
            assert!(error.contains(text) && error.contains("dcqcn@RATE"), "{error}");
        }
    }
}
