//! The background thread of a shard: makes progress while the application does not.
//!
//! It listens to the sockets unless somebody else does; two threads that wait for the same socket double the latency:
//!
//! * While a thread of the application waits for packets inside the library, only deadlines are left to this one. That
//!   thread sets an alarm when it has what it waited for, so that somebody looks in if it does not come back; mostly it is
//!   back before that.
//! * While the application polls, or is woken by arrivals itself ([`super::lookout`]), this thread **ticks**: it comes once a
//!   millisecond and sees, without the lock, whether the application has been there since the last time. If it has, and has
//!   left nothing undone, the thread sleeps on. If it has not, the thread takes a turn and listens. So an application that goes away
//!   without a word is missed for a millisecond at most, once. One that does so again and again is not left alone with packets any
//!   more, for a while ([`super::absence`]); one that polls now and then and sleeps in between is not while it sleeps.
//! * Else it listens: it sleeps until packets arrive or a deadline passes. An application that does nothing costs nothing.

use super::{
    absence::Absence,
    clock,
    network::Network,
    shard::{Shard, mode},
    state::{Turn, Who},
    wait::{Pace, WaitPolicy},
};
use crate::sys::{poll, process::is_asleep, signals::block_signals};
use core::{sync::atomic::Ordering, time::Duration};
use rxe_core::time::Instant;
use std::{
    io,
    os::fd::AsFd,
    sync::Arc,
    thread::{self, JoinHandle},
};

/// How often it looks in while the application polls, where it takes little to do so.
pub(super) const TICK: Duration = Duration::from_millis(1);
/// For so long packets lie there while the application is on its way to them.
const GRACE: Duration = Duration::from_micros(100);
/// Turns in a row after a tick: what arrived meanwhile takes more than one.
const TURNS: u32 = 16;

/// Starts the thread.
pub(super) fn start(
    shard: &Arc<Shard>,
    network: &Arc<Network>,
    wait: &Arc<WaitPolicy>,
) -> io::Result<JoinHandle<()>> {
    let (shard, network, wait) = (Arc::clone(shard), Arc::clone(network), Arc::clone(wait));
    thread::Builder::new().name("rxe".to_owned()).stack_size(256 * 1024).spawn(move || {
        block_signals();
        let polls = shard.polls.load(Ordering::Relaxed);
        let mut engine = Engine {
            shard: &shard,
            network: &network,
            wait: &wait,
            pace: Pace::default(),
            polls,
            trusted: true,
            absence: Absence::default(),
        };
        engine.run();
    })
}

/// What the thread works on.
struct Engine<'a> {
    shard: &'a Shard,
    network: &'a Network,
    wait: &'a WaitPolicy,
    pace: Pace,
    /// The application's polls as they were last seen.
    polls: u64,
    /// Whether the application has looked at packets that woke it, when that was last to be expected.
    trusted: bool,
    /// Whether it polls, and is not there for packets all the same.
    absence: Absence,
}

/// What ended a sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Woken {
    ByPackets,
    Otherwise,
}

impl Engine<'_> {
    fn run(&mut self) {
        while !self.shard.stop.load(Ordering::Acquire) {
            if self.shard.waiters.load(Ordering::SeqCst) > 0 {
                self.rest();
            } else {
                self.listen();
            }
        }
        // Acknowledgements owed leave before the socket is closed.
        self.shard.turn_then(Who::Idle, drop);
    }

    /// Whether the application polls: it has since [`Self::begin_period`], and has not said that it will sleep.
    fn is_polled(&self) -> bool {
        let polls = self.shard.polls.load(Ordering::SeqCst);
        polls != self.polls && polls != self.shard.given_up.load(Ordering::SeqCst)
    }

    /// Whether the thread that polled last sleeps in a call that is not the library's: what arrives would lie there until it comes
    /// back, and taking it disturbs nobody.
    fn poller_sleeps(&self) -> bool {
        let poller = self.shard.poller.load(Ordering::Relaxed);
        poller != 0 && !self.shard.is_lookout() && is_asleep(poller)
    }

    fn begin_period(&mut self) {
        self.polls = self.shard.polls.load(Ordering::SeqCst);
        self.watch_poller();
    }

    /// From now on it is noted whether the thread that polled last runs.
    fn watch_poller(&mut self) {
        self.absence.watch(self.shard.poller.load(Ordering::Relaxed));
    }

    /// The application looks for packets: this thread comes now and then, until it finds that nobody else has.
    fn tick(&mut self) {
        let shard = self.shard;
        loop {
            shard.mode.store(mode::TICKING, Ordering::SeqCst);
            self.begin_period();
            // Whoever is about to sleep sees the mode, or we see him.
            if self.polls == shard.given_up.load(Ordering::SeqCst) && !shard.is_lookout() {
                break;
            }
            let length = self.wait.ticks().then(|| self.pace.tick());
            let Self { network, .. } = *self;
            self.pace.time(|| _ = sleep(shard, network, false, length));
            let is_waited_for = shard.waiters.load(Ordering::SeqCst) > 0;
            let polled = self.is_polled();
            if shard.stop.load(Ordering::Acquire) || is_waited_for {
                // What has come for a thread that waits is his.
                break;
            }
            if polled {
                self.trusted = true;
                if !self.is_left_alone() {
                    self.absence.is_here();
                    continue;
                }
            }
            // Before it is woken by what is found.
            let is_lookout = shard.is_lookout();
            if is_lookout && self.has_arrivals() {
                shard.miss_lookout();
            }
            let found = self.catch_up();
            let is_absent = found && !is_lookout && (self.absence.missed() || self.poller_sleeps());
            if !polled {
                self.trusted = !found;
            }
            if !polled || is_absent {
                break;
            }
        }
        shard.mode.store(mode::AWAKE, Ordering::SeqCst);
    }

    /// Whether the application, which has been there since the last tick, has left something undone and does not come back
    /// for it. Found out without the lock, which it may be about to take.
    fn is_left_alone(&mut self) -> bool {
        let shard = self.shard;
        let polls = shard.polls.load(Ordering::SeqCst);
        if !shard.is_overdue() && !self.has_arrivals() {
            return false;
        }
        self.watch_poller();
        sleep(shard, self.network, false, Some(GRACE));
        polls == shard.polls.load(Ordering::SeqCst)
    }

    fn has_arrivals(&self) -> bool {
        poll::wait(&[self.shard.arrivals()], Some(Duration::ZERO)).is_ok_and(|ready| ready != 0)
    }

    /// Turns until there is nothing left to do; whether packets had been lying there.
    fn catch_up(&self) -> bool {
        let mut found = false;
        for _ in 0..TURNS {
            let Some(turn) = self.shard.try_turn(Who::Idle) else { break };
            found |= turn.received;
            if !turn.busy {
                break;
            }
        }
        found
    }

    /// A thread of the application waits for packets: only deadlines are left to us.
    fn rest(&self) {
        let shard = self.shard;
        let timeout = announce(shard, mode::RESTING, Who::Resting);
        // Whoever stops waiting now sees the mode, or we see that he has.
        if shard.waiters.load(Ordering::SeqCst) > 0 {
            sleep(shard, self.network, false, timeout);
        }
        shard.mode.store(mode::AWAKE, Ordering::SeqCst);
    }

    /// Nobody else makes progress: turns while there is something to do and a moment longer, then sleep.
    fn listen(&mut self) {
        let shard = self.shard;
        let mut look = self.wait.look();
        // Who polls looks for himself, and who runs while he does not needs the processor.
        let is_absent = self.absence.lasts();
        while !is_absent && !self.is_polled() && look.goes_on(|_| false) {
            let turn = shard.try_turn(Who::Idle);
            if turn.is_some_and(|turn| turn.told) {
                // The program has been woken, and is not to wait for the lock.
                break;
            }
            let busy = turn.is_some_and(|turn| turn.busy);
            look.looked(busy);
            if !busy {
                core::hint::spin_loop();
            }
            if shard.stop.load(Ordering::Acquire) || shard.waiters.load(Ordering::SeqCst) > 0 {
                return;
            }
        }
        let timeout = announce(shard, mode::LISTENING, Who::Idle);
        let mut woken = Woken::Otherwise;
        if !shard.stop.load(Ordering::Acquire) && shard.waiters.load(Ordering::SeqCst) == 0 {
            woken = sleep(shard, self.network, true, timeout);
        }
        shard.mode.store(mode::AWAKE, Ordering::SeqCst);
        let is_lookout = shard.is_lookout();
        if woken == Woken::ByPackets && !is_absent && (self.is_polled() || is_lookout && self.trusted) {
            // They are somebody else's, who polls or was woken by them, too.
            if self.poller_sleeps() {
                self.begin_period();
            } else {
                self.tick();
            }
        }
    }
}

/// A last turn before sleeping. Mode and deadline are made known under the lock, so that whoever brings about an earlier
/// deadline afterwards knows that he has to wake us.
fn announce(shard: &Shard, mode: u8, who: Who) -> Option<Duration> {
    shard.turn_then(who, |turn| {
        let deadline = turn.deadline.map_or(u64::MAX, Instant::nanos);
        shard.sleeps_until.store(deadline, Ordering::Relaxed);
        shard.mode.store(mode, Ordering::SeqCst);
        let until = turn.deadline.map(|deadline| deadline.since(clock::now()));
        match turn {
            // It had more to send than a turn may.
            Turn { blocked: true, busy: true, .. } => Some(Duration::ZERO),
            Turn { blocked: true, .. } => Some(until.unwrap_or(TICK).min(TICK)),
            _ => until,
        }
    })
}

/// Sleeps until woken, or for `timeout`; also until the system's network changes, of which the contexts are told.
fn sleep(shard: &Shard, network: &Network, for_packets: bool, timeout: Option<Duration>) -> Woken {
    let fds = [shard.wake.as_fd(), network.as_fd(), shard.alarm.as_fd(), shard.arrivals()];
    // Signals are blocked, so nothing interrupts.
    let ready = poll::wait(if for_packets { &fds } else { &fds[..3] }, timeout).unwrap_or(0);
    if ready & 1 != 0 {
        shard.wake.clear();
    }
    if ready & 2 != 0 && !network.look_closely() {
        network.put_off();
    }
    if ready & 4 != 0 {
        shard.alarm.clear();
    }
    if ready & 8 != 0 { Woken::ByPackets } else { Woken::Otherwise }
}
