//! How threads wait for packets: whether they look for them before they sleep, when they give up the processor, and how often
//! the background thread looks in. All that is decided from four inputs:
//!
//! | input | decides |
//! |---|---|
//! | what the user has chosen ([`Polling`], `RXE_POLL`) | `busy`: always look, never sleep; `sleep`: never look |
//! | how long the processor was gone when it was offered to others (`sched_yield(2)`) | whether anybody looks at all ([`WaitPolicy`]) |
//! | how long earlier waits slept ([`Patience`], one a channel) | how long a look lasts beyond the usual time |
//! | what a wake-up takes of a processor ([`Pace`]) | the time between two looks of the background thread |
//!
//! Looking costs a processor and saves a wake-up, so it pays only where nobody else wants that processor. A thread that
//! looks offers it to others again and again. If it is gone for long then, somebody is computing there:
//! from now on nobody of this process looks for a while, because whoever sleeps gets the processor back as soon as a packet
//! arrives, and whoever looks loses it for a whole time slice. The first look after that while tells whether it is still so.

mod pace;
mod patience;

pub(super) use pace::Pace;
pub(crate) use patience::{Patience, Spent};

use super::{clock, polling::Polling};
use core::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use rxe_core::time::Instant;

/// How long a thread looks after the last packet; as long as one round trip between two idle processors.
const LOOK: Duration = Duration::from_micros(25);
/// Looks between two offers of the processor.
const OFFER_EVERY: u32 = 8;
/// A thread that gets its processor back only after so long has lost it to a thread that computes. A thread that waits as we do
/// gives it back within [`LOOK`]; a time slice takes milliseconds.
const LOST: Duration = Duration::from_micros(400);
/// For so long no thread of the stack looks after that: at first, and at most. It doubles each time that the next look at once
/// finds the processor lost again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(8), Duration::from_millis(512));

/// The policy of a stack. All threads that use the stack follow it, and what they observe changes it.
#[derive(Debug)]
pub(crate) struct WaitPolicy {
    polling: Polling,
    /// Whether the background thread looks in now and then while the program polls.
    ticks: bool,
    /// Until when the processors count as wanted by others: nanoseconds of the engine's clock.
    wanted_until: AtomicU64,
    /// How long that was the last time, nanoseconds.
    pause: AtomicU64,
}

impl WaitPolicy {
    pub(crate) const fn new(polling: Polling, ticks: bool) -> Self {
        Self { polling, ticks, wanted_until: AtomicU64::new(0), pause: AtomicU64::new(0) }
    }

    /// What the user has chosen.
    pub(crate) const fn polling(&self) -> Polling {
        self.polling
    }

    pub(super) const fn ticks(&self) -> bool {
        self.ticks
    }

    /// Whether somebody else wants the processors, as far as is known.
    pub(crate) fn is_wanted(&self) -> bool {
        let until = self.wanted_until.load(Ordering::Relaxed);
        until != 0 && clock::now().nanos() < until
    }

    /// Offers the processor to others. Whether one of them took it for long.
    pub(crate) fn offer(&self) -> bool {
        let before = clock::now();
        std::thread::yield_now();
        self.learn(before, clock::now())
    }

    /// The processor was offered at `before`, and had back at `after`.
    fn learn(&self, before: Instant, after: Instant) -> bool {
        let lost = after.since(before) >= LOST;
        if lost {
            let (least, most) = (PAUSE.0.as_nanos() as u64, PAUSE.1.as_nanos() as u64);
            let (until, pause) =
                (self.wanted_until.load(Ordering::Relaxed), self.pause.load(Ordering::Relaxed));
            // Lost again soon after the last pause: it is likely to last.
            let again = before.nanos().saturating_sub(until) < pause;
            let pause = if again { (pause * 2).clamp(least, most) } else { least };
            self.pause.store(pause, Ordering::Relaxed);
            self.wanted_until.store(after.nanos() + pause, Ordering::Relaxed);
        }
        lost
    }

    /// A thread begins to look.
    pub(crate) fn look(&self) -> Looking<'_> {
        let now = clock::now();
        Looking { policy: self, since: now, now, looks: 0, may: self.may_look() }
    }

    fn may_look(&self) -> bool {
        match self.polling {
            Polling::Busy => true,
            Polling::Adaptive => !self.is_wanted(),
            Polling::Sleep => false,
        }
    }
}

/// A thread that looks for packets.
#[derive(Debug)]
pub(crate) struct Looking<'a> {
    policy: &'a WaitPolicy,
    /// When it began, or found something last.
    since: Instant,
    now: Instant,
    /// Looks in vain since.
    looks: u32,
    may: bool,
}

impl Looking<'_> {
    /// Whether to look once more before sleeping, where `longer` says whether more than the usual time is worth it. Now and
    /// then it offers the processor.
    pub(crate) fn goes_on(&mut self, longer: impl FnOnce(Spent) -> bool) -> bool {
        if !self.may {
            return false;
        }
        let spent = self.spent();
        if self.policy.polling != Polling::Busy && spent.time >= LOOK && !longer(spent) {
            return false;
        }
        self.looks += 1;
        if self.looks.is_multiple_of(OFFER_EVERY) && self.policy.offer() {
            // Not for one that never sleeps.
            self.may = self.policy.polling == Polling::Busy;
        }
        true
    }

    /// A look is over, which found something or not.
    pub(crate) fn looked(&mut self, found: bool) {
        self.now = clock::now();
        if found {
            (self.since, self.looks) = (self.now, 0);
        }
    }

    /// Looks in vain, and the time they took.
    pub(crate) fn spent(&self) -> Spent {
        Spent { looks: self.looks, time: self.now.since(self.since) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// The processor is offered at `micros`, and had back `gone` later: for how many milliseconds nobody looks then.
    fn paused(policy: &WaitPolicy, micros: u64, gone: u64) -> u64 {
        let (before, after) = (at(micros), at(micros + gone));
        if policy.learn(before, after) {
            (policy.wanted_until.load(Ordering::Relaxed) - after.nanos()) / 1_000_000
        } else {
            0
        }
    }

    #[test]
    fn who_loses_the_processor_looks_less_and_less_often() {
        let policy = WaitPolicy::new(Polling::Adaptive, true);
        assert_eq!(paused(&policy, 1_000_000, 30), 0, "somebody who waits, too");
        let mut now = 2_000_000;
        let mut seen = Vec::new();
        for _ in 0..8 {
            let pause = paused(&policy, now, 3000);
            seen.push(pause);
            // The next look comes when it may.
            now += 3000 + pause * 1000 + 10;
        }
        assert_eq!(seen, [8, 16, 32, 64, 128, 256, 512, 512]);
        // Quiet for longer than the last pause: it begins anew.
        assert_eq!(paused(&policy, now + 600_000, 3000), 8);
    }

    #[test]
    fn who_sleeps_at_once_does_not_look_and_who_never_sleeps_always_does() {
        for (polling, looks) in [(Polling::Sleep, false), (Polling::Adaptive, true), (Polling::Busy, true)] {
            let policy = WaitPolicy::new(polling, true);
            assert_eq!(policy.look().goes_on(|_| false), looks, "{polling:?}");
            policy.learn(clock::now(), clock::now() + 2 * LOST);
            let wanted = policy.look().goes_on(|_| false);
            assert_eq!(wanted, polling == Polling::Busy, "{polling:?} where the processor is wanted");
        }
    }

    #[test]
    fn it_looks_for_a_moment_after_what_it_found_last() {
        let policy = WaitPolicy::new(Polling::Adaptive, true);
        let mut look = policy.look();
        let begun = look.since;
        look.now = begun + LOOK;
        assert!(!look.goes_on(|_| false));
        assert!(look.goes_on(|spent| spent.looks == 0 && spent.time == LOOK), "as long as it is worth it");
        look.looked(true);
        assert!(look.since > begun && look.goes_on(|_| false));
    }
}
