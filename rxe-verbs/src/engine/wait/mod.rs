//! How threads wait for packets. A thread **looks** if it reads the sockets again and again instead of sleeping until packets arrive.
//! This module decides whether threads look before they sleep, when they offer the processor to others, and how often the background
//! thread ticks. It does so from four inputs:
//!
//! | input | decides |
//! |---|---|
//! | what the user has chosen ([`Polling`], `RXE_POLL`) | `busy`: always look, never sleep; `sleep`: never look |
//! | how long the processor was gone when it was offered to others (`sched_yield(2)`) | whether threads look at all ([`WaitPolicy`]) |
//! | how long earlier waits slept ([`Patience`], one a channel) | how long a thread looks beyond the usual time |
//! | what a wake-up takes of a processor ([`Pace`]) | the time between two ticks of the background thread |
//!
//! Looking occupies a processor and saves a wake-up, so it pays only where no other thread wants that processor. A thread that looks
//! offers its processor to others again and again. If it gets it back only after long, another thread computes there. Then no thread of
//! the stack looks for a while: a thread that sleeps gets the processor back as soon as a packet arrives, while a thread that looks
//! loses it for whole time slices. The first look after that while finds out whether it is still so.

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

/// How long a thread looks after the last packet: about a round trip between two idle processors.
const LOOK: Duration = Duration::from_micros(25);
/// Looks between two offers of the processor.
const OFFER_EVERY: u32 = 8;
/// A thread that gets its processor back only after so long has lost it to a thread that computes. A thread that waits as we do
/// gives it back within [`LOOK`]; a time slice takes milliseconds.
const LOST: Duration = Duration::from_micros(400);
/// For so long no thread of the stack looks after that: the first time, and at most. The time doubles if the first look after it finds
/// the processor lost again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(8), Duration::from_millis(512));

/// The policy of a stack. All threads that use the stack follow it, and what they observe changes it.
#[derive(Debug)]
pub(crate) struct WaitPolicy {
    polling: Polling,
    /// Whether the background thread ticks while the program polls.
    ticks: bool,
    /// Until when other threads count as wanting the processors, in nanoseconds of the engine's clock.
    wanted_until: AtomicU64,
    /// The length of the last such pause, in nanoseconds.
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

    /// Whether other threads want the processors, as far as is known.
    pub(crate) fn is_wanted(&self) -> bool {
        let until = self.wanted_until.load(Ordering::Relaxed);
        until != 0 && clock::now().nanos() < until
    }

    /// Offers the processor to others. Returns whether one of them took it for long.
    pub(crate) fn offer(&self) -> bool {
        let before = clock::now();
        std::thread::yield_now();
        self.learn(before, clock::now())
    }

    /// The processor was offered at `before`, and was back at `after`. Returns whether that was long.
    fn learn(&self, before: Instant, after: Instant) -> bool {
        let lost = after.since(before) >= LOST;
        if lost {
            let (least, most) = (PAUSE.0.as_nanos() as u64, PAUSE.1.as_nanos() as u64);
            let (until, pause) =
                (self.wanted_until.load(Ordering::Relaxed), self.pause.load(Ordering::Relaxed));
            // It was lost again soon after the last pause, so the other thread is likely to go on.
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
    /// When it began to look, or last found something.
    since: Instant,
    now: Instant,
    /// How often it has looked in vain since then.
    looks: u32,
    may: bool,
}

impl Looking<'_> {
    /// Whether to look once more before sleeping. `longer` says whether it is worth more than the usual time. Every few looks this offers
    /// the processor.
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
            // A thread that never sleeps looks on.
            self.may = self.policy.polling == Polling::Busy;
        }
        true
    }

    /// A look is over. `found` says whether it found something.
    pub(crate) fn looked(&mut self, found: bool) {
        self.now = clock::now();
        if found {
            (self.since, self.looks) = (self.now, 0);
        }
    }

    /// How often it has looked in vain, and how long that took.
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
