//! The background thread of a shard: takes turns while the application takes none.
//!
//! It waits for packets (**listens**) only if no thread of the application does: two threads that wait for the same socket
//! double the latency. It is in one of three states while it sleeps (`shard::mode`):
//!
//! * **Resting**: a thread of the application waits for packets inside the library. This thread then wakes for deadlines only.
//!   When the application's thread has its event, it sets an alarm for this thread, which then takes over if the application
//!   does not come back. Mostly the application is back before the alarm.
//! * **Ticking**: the application polls, or packets wake it by a descriptor ([`super::lookout`]). Once a millisecond this thread
//!   looks, without the lock, whether the application has polled since the last tick. If it has, and has left nothing undone,
//!   this thread sleeps on. If it has not, this thread takes a turn and listens. So packets for an application that goes away
//!   without notice wait a millisecond at most, once. If an application is absent again and again, this thread listens
//!   for a while even though the application polls ([`super::absence`]). If it polls now and then and sleeps in between, this
//!   thread takes the packets that arrive while it sleeps.
//! * **Listening**: in all other cases. The thread sleeps until packets arrive or a deadline passes, so an application that does
//!   nothing costs nothing.

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

/// Time between two ticks. [`Pace`] makes it longer where waking this thread takes much processor time.
pub(super) const TICK: Duration = Duration::from_millis(1);
/// How long a tick leaves arrived packets to an application that polls, before this thread takes them.
const GRACE: Duration = Duration::from_micros(100);
/// Most turns in a row after a tick: what has arrived since the last one can take several.
const TURNS: u32 = 16;
/// Turns between two looks at the network's changes and at what wakes this thread, while it does not sleep: one more
/// system call in thousands.
const TURNS_AWAKE: u32 = 4096;

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
    /// `Shard::polls` when the current period began ([`Self::begin_period`]).
    polls: u64,
    /// False if the last tick without polls found packets: they had woken the application, which did not take them.
    trusted: bool,
    /// Detects an application that polls and leaves packets unread all the same.
    absence: Absence,
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
        // Owed acknowledgements leave before the socket is closed.
        self.shard.turn_then(Who::Idle, drop);
    }

    /// Whether the application has polled since [`Self::begin_period`], and has not announced since that it will sleep
    /// (`Shard::expect_sleep`).
    fn is_polled(&self) -> bool {
        let polls = self.shard.polls.load(Ordering::SeqCst);
        polls != self.polls && polls != self.shard.given_up.load(Ordering::SeqCst)
    }

    /// Whether the thread that polled last sleeps. Packets would then wait until it wakes, so this thread may take them without
    /// disturbing it. Always false while arrivals wake the application (the lookout).
    fn poller_sleeps(&self) -> bool {
        let poller = self.shard.poller.load(Ordering::Relaxed);
        poller != 0 && !self.shard.is_lookout() && is_asleep(poller)
    }

    fn begin_period(&mut self) {
        self.polls = self.shard.polls.load(Ordering::SeqCst);
        self.watch_poller();
    }

    /// Has [`Absence`] observe from now on whether the thread that polled last runs.
    fn watch_poller(&mut self) {
        self.absence.watch(self.shard.poller.load(Ordering::Relaxed));
    }

    /// Ticks while the application looks for packets by itself. Returns when it does not, or when it leaves packets unread.
    fn tick(&mut self) {
        let shard = self.shard;
        while !shard.stop.load(Ordering::Acquire) {
            shard.mode.store(mode::TICKING, Ordering::SeqCst);
            self.begin_period();
            // Either the thread that is about to sleep sees the mode, or this thread sees `given_up`.
            if self.polls == shard.given_up.load(Ordering::SeqCst) && !shard.is_lookout() {
                break;
            }
            let length = self.wait.ticks().then(|| self.pace.tick());
            let Self { network, .. } = *self;
            self.pace.time(|| _ = sleep(shard, network, false, length));
            let is_waited_for = shard.waiters.load(Ordering::SeqCst) > 0;
            let polled = self.is_polled();
            if shard.stop.load(Ordering::Acquire) || is_waited_for {
                // A thread that waits for packets takes them itself.
                break;
            }
            if polled {
                self.trusted = true;
                if !self.is_left_alone() {
                    self.absence.is_here();
                    continue;
                }
            }
            // Reported before `catch_up`, whose events may wake the application.
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

    /// Whether the application, which has polled since the last tick, has left packets or a deadline, and does not poll again
    /// within [`GRACE`]. Takes no lock, because the application may be about to take it.
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

    /// Takes turns until nothing is left to do, at most [`TURNS`]. Returns whether packets had arrived.
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

    /// Sleeps until a deadline while a thread of the application waits for packets.
    fn rest(&self) {
        let shard = self.shard;
        let timeout = announce(shard, mode::RESTING, Who::Resting);
        // Either the thread that stops waiting sees the mode, or this thread sees that `waiters` has fallen.
        if shard.waiters.load(Ordering::SeqCst) > 0 {
            sleep(shard, self.network, false, timeout);
        }
        shard.mode.store(mode::AWAKE, Ordering::SeqCst);
    }

    /// Takes turns while there is something to do and a moment longer, then sleeps until packets arrive or a deadline passes.
    /// If packets wake it and the application turns out to look for packets itself, it ticks.
    fn listen(&mut self) {
        let shard = self.shard;
        let mut look = self.wait.look();
        // No turns here if the application polls, because it receives by itself. None either if it is absent: its thread
        // computes and needs the processor.
        let is_absent = self.absence.lasts();
        let mut turns = 0_u32;
        while !is_absent && !self.is_polled() && look.goes_on(|_| false) {
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(TURNS_AWAKE) {
                // With RXE_POLL=busy, or if packets never cease, this thread comes to no other sleep.
                sleep(shard, self.network, false, Some(Duration::ZERO));
            }
            let turn = shard.try_turn(Who::Idle).unwrap_or_default();
            if turn.told {
                // An event has woken the program. It must not wait for the lock.
                break;
            }
            look.looked(turn.busy);
            if !turn.busy {
                core::hint::spin_loop();
            }
            if shard.stop.load(Ordering::Acquire) || shard.waiters.load(Ordering::SeqCst) > 0 {
                return;
            }
        }
        let timeout = announce(shard, mode::LISTENING, Who::Idle);
        let mut by_packets = false;
        if !shard.stop.load(Ordering::Acquire) && shard.waiters.load(Ordering::SeqCst) == 0 {
            by_packets = sleep(shard, self.network, true, timeout);
        }
        shard.mode.store(mode::AWAKE, Ordering::SeqCst);
        let is_lookout = shard.is_lookout();
        if by_packets && !is_absent && (self.is_polled() || is_lookout && self.trusted) {
            // The packets are for the application, which polls, or which they have woken as well.
            if self.poller_sleeps() {
                self.begin_period();
            } else {
                self.tick();
            }
        }
    }
}

/// Takes a last turn before sleeping, and gives how long to sleep. Mode and deadline are published under the lock. So a thread
/// that causes an earlier deadline afterwards knows that it has to wake this one (`Shard::warn`).
fn announce(shard: &Shard, mode: u8, who: Who) -> Option<Duration> {
    shard.turn_then(who, |turn| {
        let deadline = turn.deadline.map_or(u64::MAX, Instant::nanos);
        shard.sleeps_until.store(deadline, Ordering::Relaxed);
        shard.mode.store(mode, Ordering::SeqCst);
        let until = turn.deadline.map(|deadline| deadline.since(clock::now()));
        match turn {
            // The turn had more to send than one turn may.
            Turn { blocked: true, busy: true, .. } => Some(Duration::ZERO),
            // What is overdue waits behind the batch for which there is no room.
            Turn { blocked: true, .. } => {
                Some(until.filter(|left| !left.is_zero()).map_or(TICK, |left| left.min(TICK)))
            }
            _ => until,
        }
    })
}

/// Sleeps until woken, for `timeout` at most. A change of the system's network also ends the sleep, and the contexts are told
/// of it. Returns whether packets are there.
fn sleep(shard: &Shard, network: &Network, for_packets: bool, timeout: Option<Duration>) -> bool {
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
    ready & 8 != 0
}
