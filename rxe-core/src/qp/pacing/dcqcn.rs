//! DCQCN's reaction point (Zhu et al., SIGCOMM 2015, section 3.1). Notifications cut the rate. A timer and a counter of sent
//! bytes raise it again.

use super::CongestionControl;
use crate::time::Instant;
use core::time::Duration;

/// DCQCN's parameters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DcqcnParams {
    /// The link's rate, bits per second. A queue pair starts with it.
    pub line: u64,
    /// The lowest rate, bits per second. If the link's rate is lower, that is the lowest one.
    pub least: u64,
    /// The weight of one step in the estimate of congestion, 0 to 1 (g).
    pub gain: f64,
    /// The estimate of congestion shrinks by one step each time this passes without notifications.
    pub alpha_timer: Duration,
    /// The timer causes a step of increase each time this passes.
    pub rate_timer: Duration,
    /// The byte counter causes a step of increase each time so many bytes were sent (B).
    pub byte_counter: u64,
    /// Steps of fast recovery, of the timer and of the byte counter each (F).
    pub recovery: u32,
    /// Bits per second that an additive step adds to the target (R_AI).
    pub additive: u64,
    /// Bits per second that a hyper step adds to the target, times the number of the hyper step (R_HAI).
    pub hyper: u64,
    /// The rate is cut at most once in this time. Other notifications count only in the estimate of congestion.
    pub cut_interval: Duration,
    /// Whether every cut sets the target to the rate before the cut, as in the paper's equation 1. Otherwise the target stays
    /// when a cut follows another one before any step of increase. Then the rate returns to its value before the first cut.
    /// ConnectX's drivers have the same parameter (`clamp_tgt_rate`).
    pub clamp_target: bool,
    /// Whether only the timer raises the rate, as in the simulator of HPCC's authors. Bytes are not counted. After one additive
    /// step each step is a hyper step, which adds `hyper` once.
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

    /// What a step of increase adds to the target, by the steps of both kinds that there have been, this one included.
    const fn raise(&self, timer: u32, bytes: u32) -> u64 {
        let (least, most) = if timer < bytes { (timer, bytes) } else { (bytes, timer) };
        let f = self.recovery;
        match self.timer_alone {
            // The simulator counts stages from 0.
            true if timer <= f => 0,
            true if timer == f + 1 => self.additive,
            true => self.hyper,
            false if least > f => self.hyper.saturating_mul((least - f) as u64),
            false if most > f => self.additive,
            false => 0,
        }
    }
}

/// Most steps of increase that are calculated at once. After a rest there may be millions, and the caller holds the lock of all queue pairs.
/// With the paper's parameters the link's rate is reached after a thousand.
const MOST_STEPS: u64 = 1 << 16;

/// What a step of increase comes from.
#[derive(Clone, Copy, Debug)]
enum Trigger {
    Timer,
    Bytes,
}

/// One queue pair's rate by DCQCN.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    params: DcqcnParams,
    /// Whether it was ever notified. Until then it sends at the link's rate and counts nothing.
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

    /// Runs the timers that became due since the last call.
    fn catch_up(&mut self, now: Instant) {
        if !self.active {
            return;
        }
        // The two timers do not depend on each other, so their order does not matter.
        let due = times_due(&mut self.alpha_due, self.params.alpha_timer, now);
        self.alpha *= power(1.0 - self.params.gain, due);
        let due = times_due(&mut self.rate_due, self.params.rate_timer, now);
        self.increase(Trigger::Timer, due);
    }

    /// Does `steps` steps of increase of one kind. Each raises the target, and then moves the rate half-way to it (the paper's equations 2
    /// and 3). A rate of less than one bit per second below the link's is the link's; further steps do not change that. They, and those
    /// beyond [`MOST_STEPS`], are only counted.
    fn increase(&mut self, trigger: Trigger, steps: u64) {
        let line = self.params.line as f64;
        let (mut left, mut most) = (steps, MOST_STEPS);
        while left > 0 {
            let own = match trigger {
                Trigger::Timer => &mut self.timer_steps,
                Trigger::Bytes => &mut self.byte_steps,
            };
            if most == 0 || self.rate >= line {
                *own = u32::try_from(u64::from(*own).saturating_add(left)).unwrap_or(u32::MAX);
                return;
            }
            *own = own.saturating_add(1);
            let raise = self.params.raise(self.timer_steps, self.byte_steps);
            self.target = (self.target + raise as f64).min(line);
            self.rate = f64::midpoint(self.rate, self.target);
            if line - self.rate < 1.0 {
                self.rate = line;
            }
            (left, most) = (left - 1, most - 1);
        }
    }
}

/// `base` to the power of `n`.
fn power(mut base: f64, mut n: u64) -> f64 {
    let mut result = 1.0;
    while n > 0 {
        if n % 2 == 1 {
            result *= base;
        }
        base *= base;
        n /= 2;
    }
    result
}

/// How often a timer became due until `now`. Moves `due` to the first time after `now`.
fn times_due(due: &mut Instant, every: Duration, now: Instant) -> u64 {
    if *due > now {
        return 0;
    }
    let every = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX).max(1);
    let times = (now.nanos() - due.nanos()) / every + 1;
    *due = Instant::from_nanos(due.nanos().saturating_add(times.saturating_mul(every)));
    times
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
            self.increase(Trigger::Bytes, 1);
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

    fn restart(&mut self) {
        *self = Self::new(self.params);
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

    /// The rate after a long rest is the same whether it was asked for in between or not.
    #[test]
    fn a_long_rest_is_the_same_as_many_short_ones() {
        let mut often = Dcqcn::new(DcqcnParams::paper(LINE));
        for time in [1000, 1050, 1100] {
            often.on_notified(at(time));
        }
        let mut seldom = often.clone();
        for rest in [60_000, 70_000, 1_000_000, 5_000_000] {
            let end = 1100 + rest;
            (1100..=end).step_by(1000).for_each(|time| _ = often.rate(at(time)));
            let (one, other) = (often.rate(at(end)), seldom.rate(at(end)));
            assert!(one.abs_diff(other) <= LINE / 1_000_000_000, "{rest} us: {one}, {other}");
            assert!((often.alpha - seldom.alpha).abs() < 1e-9, "{rest} us");
            assert_eq!(
                (often.timer_steps, often.rate_due, often.alpha_due),
                (seldom.timer_steps, seldom.rate_due, seldom.alpha_due),
                "{rest} us"
            );
        }
    }

    /// The longest possible rest with the shortest timers. The test would not end if each step were calculated.
    #[test]
    fn a_rest_of_all_time_ends() {
        let timer = Duration::ZERO;
        let params = DcqcnParams { alpha_timer: timer, rate_timer: timer, ..DcqcnParams::paper(LINE) };
        let mut control = Dcqcn::new(params);
        control.on_notified(at(1000));
        assert_eq!(control.rate(Instant::from_nanos(u64::MAX)), LINE);
        assert_eq!(control.rate(Instant::from_nanos(u64::MAX)), LINE);
    }

    /// The stages of the paper (fast recovery, additive and hyper increase), and those of the simulator.
    #[test]
    fn what_a_step_adds_depends_on_the_steps_before() {
        let params = DcqcnParams::paper(LINE);
        let (additive, hyper) = (params.additive, params.hyper);
        for (timer, bytes, raise) in [
            (5, 5, 0),
            (6, 5, additive),
            (5, 9, additive),
            (6, 6, hyper),
            (9, 7, 2 * hyper),
            (7, 100, 2 * hyper),
        ] {
            assert_eq!(params.raise(timer, bytes), raise, "{timer} by the timer, {bytes} by bytes");
        }
        let alone = DcqcnParams { timer_alone: true, ..params };
        assert_eq!([5, 6, 7, 9].map(|timer| alone.raise(timer, 0)), [0, additive, hyper, hyper]);
        assert_eq!(DcqcnParams { recovery: u32::MAX, ..alone }.raise(u32::MAX, 0), 0);
    }

    #[test]
    fn powers_are_products() {
        assert_eq!((power(0.5, 0), power(0.5, 1), power(0.5, 10)), (1.0, 0.5, 1.0 / 1024.0));
        assert_eq!((power(0.9, u64::MAX), power(1.0, u64::MAX)), (0.0, 1.0));
    }

    #[test]
    fn a_restart_is_a_new_one() {
        let mut control = Dcqcn::new(DcqcnParams::paper(LINE));
        control.on_notified(at(1000));
        assert_eq!(control.rate(at(1000)), LINE / 2);
        control.restart();
        assert_eq!(control.rate(at(1001)), LINE);
    }

    #[test]
    fn a_link_below_the_least_rate_sends_at_its_own() {
        let mut control = Dcqcn::new(DcqcnParams::paper(1_000_000));
        control.on_notified(at(1000));
        assert_eq!(control.rate(at(1000)), 1_000_000);
    }
}
