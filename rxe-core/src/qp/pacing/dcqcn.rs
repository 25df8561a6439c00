//! DCQCN's reaction point (Zhu et al., SIGCOMM 2015, section 3.1): a rate that notifications cut, and that timers and bytes
//! sent raise again.

use super::CongestionControl;
use crate::time::Instant;
use core::{cmp::Ordering, time::Duration};

/// DCQCN's parameters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DcqcnParams {
    /// The link's rate, with which a queue pair starts: bits per second.
    pub line: u64,
    /// The lowest rate, bits per second; the link's where that is lower.
    pub least: u64,
    /// g: what one step counts in the estimate of congestion, 0 to 1.
    pub gain: f64,
    /// Without notifications for so long the estimate shrinks by one step.
    pub alpha_timer: Duration,
    /// Steps of increase come each time this long passes,
    pub rate_timer: Duration,
    /// and each time so many bytes were sent (B).
    pub byte_counter: u64,
    /// Steps of fast recovery, of each kind (F).
    pub recovery: u32,
    /// What an additive step adds to the target, bits per second (R_AI).
    pub additive: u64,
    /// What a hyper step adds, times its number, bits per second (R_HAI).
    pub hyper: u64,
    /// Rates are cut this often at most; notifications between count only for the estimate.
    pub cut_interval: Duration,
    /// Whether every cut sets the target to the rate before it, as the paper's equation 1 does. Otherwise the target keeps its
    /// place when a cut follows another before any step of increase, so that the rate goes back to where the first cut found
    /// it. ConnectX's drivers call it by this name (`clamp_tgt_rate`).
    pub clamp_target: bool,
    /// Whether only the timer raises the rate, as in the simulator of HPCC's authors: bytes are not counted, and after one
    /// additive step each step is a hyper one, which adds `hyper` once.
    pub timer_alone: bool,
}

impl DcqcnParams {
    /// The parameters that the paper recommends (its table of section 5), for a link of `line` bits per second.
    #[must_use]
    pub const fn paper(line: u64) -> Self {
        Self {
            line,
            least: 10_000_000,
            gain: 1.0 / 256.0,
            alpha_timer: Duration::from_micros(55),
            rate_timer: Duration::from_micros(55),
            byte_counter: 10_000_000,
            recovery: 5,
            additive: 40_000_000,
            hyper: 400_000_000,
            cut_interval: Duration::from_micros(50),
            clamp_target: true,
            timer_alone: false,
        }
    }
}

/// One queue pair's rate by DCQCN.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    params: DcqcnParams,
    /// Whether it was ever notified; until then it sends at the link's rate, and nothing is counted.
    active: bool,
    rate: f64,
    target: f64,
    alpha: f64,
    alpha_due: Instant,
    rate_due: Instant,
    bytes: u64,
    timer_steps: u32,
    byte_steps: u32,
    last_cut: Option<Instant>,
}

impl Dcqcn {
    /// Starts at the link's rate.
    #[must_use]
    pub fn new(params: DcqcnParams) -> Self {
        Self {
            params,
            active: false,
            rate: params.line as f64,
            target: params.line as f64,
            alpha: 1.0,
            alpha_due: Instant::ZERO,
            rate_due: Instant::ZERO,
            bytes: 0,
            timer_steps: 0,
            byte_steps: 0,
            last_cut: None,
        }
    }

    /// Does what became due since the last call.
    fn catch_up(&mut self, now: Instant) {
        if !self.active {
            return;
        }
        // Above the largest number of steps that still changes anything: who was idle for long need not count each.
        for _ in 0..100_000 {
            let (alpha, rate) = (self.alpha_due <= now, self.rate_due <= now);
            if alpha && (!rate || self.alpha_due <= self.rate_due) {
                self.alpha *= 1.0 - self.params.gain;
                self.alpha_due += self.params.alpha_timer.max(Duration::from_nanos(1));
            } else if rate {
                self.timer_steps = self.timer_steps.saturating_add(1);
                self.rate_due += self.params.rate_timer.max(Duration::from_nanos(1));
                self.increase();
            } else {
                return;
            }
        }
        (self.alpha_due, self.rate_due) = (now + self.params.alpha_timer, now + self.params.rate_timer);
    }

    fn increase(&mut self) {
        let (f, most) = (self.params.recovery, self.timer_steps.max(self.byte_steps));
        let least = self.timer_steps.min(self.byte_steps);
        if self.params.timer_alone {
            // Their stages are counted from 0: the first step is one of fast recovery if there are any.
            self.target += match self.timer_steps.cmp(&f.saturating_add(1)) {
                Ordering::Less => 0.0,
                Ordering::Equal => self.params.additive as f64,
                Ordering::Greater => self.params.hyper as f64,
            };
        } else if least > f {
            self.target += self.params.hyper as f64 * f64::from(least - f);
        } else if most > f {
            self.target += self.params.additive as f64;
        }
        self.target = self.target.min(self.params.line as f64);
        self.rate = f64::midpoint(self.rate, self.target);
    }
}

impl CongestionControl for Dcqcn {
    fn rate(&mut self, now: Instant) -> u64 {
        self.catch_up(now);
        self.rate as u64
    }

    fn on_sent(&mut self, now: Instant, bytes: u32) {
        if !self.active || self.params.timer_alone {
            return;
        }
        self.catch_up(now);
        self.bytes += u64::from(bytes);
        if self.bytes >= self.params.byte_counter.max(1) {
            self.bytes = 0;
            self.byte_steps = self.byte_steps.saturating_add(1);
            self.increase();
        }
    }

    fn on_notified(&mut self, now: Instant) {
        self.catch_up(now);
        let cuts = self.last_cut.is_none_or(|last| now.since(last) >= self.params.cut_interval);
        if cuts {
            let risen = self.timer_steps > 0 || self.byte_steps > 0;
            if self.params.clamp_target || risen || !self.active {
                self.target = self.rate;
            }
            let least = self.params.least.min(self.params.line) as f64;
            self.rate = (self.rate * (1.0 - self.alpha / 2.0)).max(least);
            self.last_cut = Some(now);
            (self.timer_steps, self.byte_steps, self.bytes) = (0, 0, 0);
            self.rate_due = now + self.params.rate_timer;
        }
        self.active = true;
        self.alpha = (1.0 - self.params.gain) * self.alpha + self.params.gain;
        self.alpha_due = now + self.params.alpha_timer;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u64 = 40_000_000_000;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// The paper's equations 1 to 4, step by step.
    #[test]
    fn a_notification_halves_and_five_timers_bring_most_of_it_back() {
        let mut control = Dcqcn::new(DcqcnParams::paper(LINE));
        assert_eq!(control.rate(at(1000)), LINE);
        control.on_notified(at(1000));
        assert_eq!(control.rate(at(1000)), LINE / 2, "alpha starts at 1");
        for step in 1_u64..=5 {
            let missing = (LINE / 2) >> step;
            assert_eq!(
                control.rate(at(1000 + 55 * step)),
                LINE - missing,
                "step {step} halves what is missing"
            );
        }
    }

    #[test]
    fn the_target_rises_after_fast_recovery_by_timer_alone_and_faster_with_both() {
        let params = DcqcnParams::paper(LINE);
        let mut control = Dcqcn::new(params);
        control.on_notified(at(1000));
        control.on_notified(at(1050));
        let target = LINE / 2;
        let low = control.rate(at(1050));
        assert!(low < target * 52 / 100, "cut twice: {low}");
        let rate = control.rate(at(1050 + 55 * 30)) as f64;
        let most = (target + 25 * params.additive) as f64;
        assert!(rate > target as f64 && rate <= most, "25 additive steps at most: {rate} of {most}");
        let mut hyper = control.clone();
        for _ in 0..7 {
            hyper.on_sent(at(1050 + 55 * 30), 10_000_000);
        }
        assert!(hyper.rate(at(1050 + 55 * 30)) as f64 > rate + 300e6);
    }

    /// Equation 1 at the second cut in a row: the target is the rate before that cut, or, if it is not clamped, before the first.
    #[test]
    fn a_clamped_target_follows_every_cut() {
        for (clamp_target, target) in [(true, LINE / 2), (false, LINE)] {
            let mut control = Dcqcn::new(DcqcnParams { clamp_target, ..DcqcnParams::paper(LINE) });
            control.on_notified(at(1000));
            control.on_notified(at(1050));
            assert_eq!(control.rate(at(1050)), LINE / 4);
            assert_eq!(
                control.rate(at(1050 + 55)),
                u64::midpoint(LINE / 4, target),
                "clamped: {clamp_target}"
            );
        }
    }

    #[test]
    fn notifications_in_a_row_reach_the_least_rate_and_no_further() {
        let mut control = Dcqcn::new(DcqcnParams::paper(LINE));
        for step in 0..2000 {
            control.on_notified(at(1000 + 50 * step));
        }
        assert_eq!(control.rate(at(1000 + 50 * 1999)), 10_000_000);
    }

    /// As `RateIncEventMlx` of HPCC's simulator has it, with one step of fast recovery: then an additive one, then hyper ones.
    #[test]
    fn the_timer_alone_goes_from_fast_recovery_to_hyper_steps() {
        let params = DcqcnParams { timer_alone: true, recovery: 1, ..DcqcnParams::paper(LINE) };
        let mut control = Dcqcn::new(DcqcnParams { clamp_target: false, ..params });
        for time in [1000, 1050] {
            control.on_notified(at(time));
        }
        // Two cuts in a row from 40 Gbit/s; the target is lowered so that steps show.
        control.target = LINE as f64 / 2.0;
        let mut rate = LINE / 4;
        let mut endless = Dcqcn::new(DcqcnParams { recovery: u32::MAX, ..params });
        endless.on_notified(at(1000));
        assert!(endless.rate(at(2000)) > LINE / 2, "nothing but fast recovery");
        for (step, target) in [(1, 20_000), (2, 20_040), (3, 20_440), (4, 20_840)] {
            control.on_sent(at(1050 + 55 * step), 20_000_000);
            rate = u64::midpoint(rate, target * 1_000_000);
            assert_eq!(control.rate(at(1050 + 55 * step)), rate, "step {step}");
        }
    }

    #[test]
    fn a_link_below_the_least_rate_sends_at_its_own() {
        let mut control = Dcqcn::new(DcqcnParams::paper(1_000_000));
        control.on_notified(at(1000));
        assert_eq!(control.rate(at(1000)), 1_000_000);
    }
}
