//! TIMELY (Mittal et al., SIGCOMM 2015, algorithm 1): the rate follows the gradient of the round-trip time.

use super::CongestionControl;
use crate::time::Instant;
use core::time::Duration;

/// TIMELY's parameters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TimelyParams {
    /// The link's rate, bits per second. A queue pair starts with it.
    pub line: u64,
    /// The lowest rate, bits per second. If the link's rate is lower, that is the lowest one.
    pub least: u64,
    /// Weight of a new difference in the moving average, 0 to 1 (alpha).
    pub gain: f64,
    /// How strongly the gradient lowers the rate, 0 to 1 (beta).
    pub decrease: f64,
    /// Bits per second that a step adds (delta).
    pub additive: u64,
    /// Below this round-trip time the rate always rises.
    pub low: Duration,
    /// Above this round-trip time the rate always falls.
    pub high: Duration,
    /// The network's smallest round-trip time. It is the unit of the gradient.
    pub smallest: Duration,
    /// From so many steps in a row without a positive gradient on, a step adds five times as much (N).
    pub hyper_after: u32,
}

impl TimelyParams {
    /// The paper's parameters for a link of `line` bits per second, as its authors' later papers use them.
    #[must_use]
    pub const fn paper(line: u64) -> Self {
        Self {
            line,
            least: 10_000_000,
            gain: 0.875,
            decrease: 0.8,
            additive: 10_000_000,
            low: Duration::from_micros(50),
            high: Duration::from_micros(500),
            smallest: Duration::from_micros(20),
            hyper_after: 5,
        }
    }
}

/// One queue pair's rate by TIMELY.
#[derive(Clone, Debug)]
pub struct Timely {
    params: TimelyParams,
    rate: f64,
    last: Option<Duration>,
    /// Smoothed difference of round-trip times, seconds.
    difference: f64,
    rising: u32,
    /// When the rate was last changed. It changes at most once in a smallest round-trip time.
    changed: Instant,
}

impl Timely {
    /// Starts at the link's rate.
    #[must_use]
    pub const fn new(params: TimelyParams) -> Self {
        Self {
            rate: params.line as f64,
            params,
            last: None,
            difference: 0.0,
            rising: 0,
            changed: Instant::ZERO,
        }
    }
}

impl CongestionControl for Timely {
    fn rate(&mut self, _: Instant) -> u64 {
        self.rate as u64
    }

    fn on_round_trip(&mut self, now: Instant, trip: Duration) {
        let params = &self.params;
        if now.since(self.changed) < params.smallest {
            return;
        }
        self.changed = now;
        let Some(last) = self.last.replace(trip) else { return };
        let difference = trip.as_secs_f64() - last.as_secs_f64();
        self.difference = (1.0 - params.gain) * self.difference + params.gain * difference;
        let gradient = self.difference / params.smallest.as_secs_f64().max(1e-9);
        if trip < params.low {
            self.rate += params.additive as f64;
        } else if trip > params.high {
            let excess = 1.0 - params.high.as_secs_f64() / trip.as_secs_f64();
            self.rate *= 1.0 - params.decrease * excess;
            self.rising = 0;
        } else if gradient <= 0.0 {
            self.rising += 1;
            let steps = if self.rising >= params.hyper_after { 5.0 } else { 1.0 };
            self.rate += steps * params.additive as f64;
        } else {
            self.rising = 0;
            self.rate *= 1.0 - params.decrease * gradient.min(1.0);
        }
        // `clamp` would panic if the lowest rate is above the link's rate. Then the link's rate counts.
        self.rate = self.rate.max(params.least as f64).min(params.line as f64);
    }

    fn restart(&mut self) {
        *self = Self::new(self.params);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_round_trips_slow_and_steady_ones_speed_up() {
        let mut control = Timely::new(TimelyParams::paper(10_000_000_000));
        let mut now = Instant::from_nanos(1_000_000);
        for micros in [60, 70, 80, 90] {
            now += Duration::from_micros(100);
            control.on_round_trip(now, Duration::from_micros(micros));
        }
        let slowed = control.rate(now);
        assert!(slowed < 5_000_000_000, "{slowed}");
        for _ in 0..20 {
            now += Duration::from_micros(100);
            control.on_round_trip(now, Duration::from_micros(80));
        }
        assert!(control.rate(now) > slowed, "steady");
        let before = control.rate(now);
        now += Duration::from_micros(100);
        control.on_round_trip(now, Duration::from_micros(1000));
        assert_eq!(
            control.rate(now),
            (before as f64 * 0.6) as u64,
            "beyond the high threshold: 1 - 0.8 (1 - 0.5)"
        );
    }

    #[test]
    fn a_restart_is_a_new_one() {
        let mut control = Timely::new(TimelyParams::paper(10_000_000_000));
        for turn in 1..5 {
            control.on_round_trip(Instant::from_nanos(turn * 100_000_000), Duration::from_millis(turn));
        }
        let now = Instant::from_nanos(1_000_000_000);
        assert!(control.rate(now) < 10_000_000_000);
        control.restart();
        assert_eq!((control.rate(now), control.last), (10_000_000_000, None));
    }

    #[test]
    fn a_link_below_the_lowest_rate_sends_at_its_own() {
        let line = 1_000_000;
        let mut control = Timely::new(TimelyParams::paper(line));
        for turn in 1..5 {
            control.on_round_trip(Instant::from_nanos(turn * 100_000_000), Duration::from_millis(turn));
            assert_eq!(control.rate(Instant::from_nanos(turn * 100_000_000)), line);
        }
    }
}
