//! The background thread of a shard: makes progress while the application does not.
//!
//! While the application polls, this thread never waits for packets: two threads waiting for the same socket double the
//! latency. It looks in once a millisecond, for timers; less often where that would take much of a processor ([`Pace`]).
//! When the application has not polled for a tick, it takes over: turns for a moment, then sleeps until packets arrive or a
//! deadline passes. While a thread of the application waits for packets itself, only deadlines are left; that one sets an
//! alarm when it has what it waited for, so that somebody looks in if it does not come back, and mostly it is back before
//! that.

use super::{
    clock,
    network::Network,
    pace::Pace,
    polling::Polling,
    shard::{Shard, mode},
    state::{Turn, Who},
};
use crate::sys::{poll, signals::block_signals};
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
/// How long it goes on looking for packets after the last one, before it sleeps; [`Polling`] may say otherwise.
const SPIN: Duration = Duration::from_micros(30);
/// Each time it has looked so often it offers the processor: whom it waits for may be waiting for that.
const GENEROUS: u32 = 8;

/// Starts the thread.
pub(super) fn start(
    shard: &Arc<Shard>,
    network: &Arc<Network>,
    polling: Polling,
) -> io::Result<JoinHandle<()>> {
    let (shard, network) = (Arc::clone(shard), Arc::clone(network));
    thread::Builder::new().name("rxe".to_owned()).stack_size(256 * 1024).spawn(move || {
        block_signals();
        run(&Engine { shard: &shard, network: &network, polling });
    })
}

/// What the thread works on.
#[derive(Clone, Copy)]
struct Engine<'a> {
    shard: &'a Shard,
    network: &'a Network,
    polling: Polling,
}

fn run(engine: &Engine<'_>) {
    let shard = engine.shard;
    let (mut seen, mut pace) = (shard.polls.load(Ordering::Relaxed), Pace::default());
    loop {
        if shard.stop.load(Ordering::Acquire) {
            // Acknowledgements owed leave before the socket is closed.
            shard.turn_then(Who::Idle, drop);
            return;
        }
        let polls = shard.polls.load(Ordering::Relaxed);
        let polled = core::mem::replace(&mut seen, polls) != polls;
        if shard.expects_sleep.swap(false, Ordering::Relaxed) {
            take_over(engine, polls);
        } else if shard.waiters.load(Ordering::SeqCst) > 0 {
            rest(engine);
        } else if polled {
            tick(engine, &mut pace);
        } else {
            take_over(engine, polls);
        }
    }
}

/// The application polls: sleep a moment, then a turn if nobody is in one.
fn tick(engine: &Engine<'_>, pace: &mut Pace) {
    let shard = engine.shard;
    shard.mode.store(mode::TICKING, Ordering::SeqCst);
    // Whoever is about to sleep sees the mode, or we see him.
    if shard.expects_sleep.load(Ordering::SeqCst) {
        return;
    }
    let length = pace.tick();
    pace.time(|| sleep(engine, false, Some(length)));
    // What has come for a thread that waits is his.
    if shard.waiters.load(Ordering::SeqCst) == 0 {
        shard.try_turn(Who::Idle);
    }
}

/// A thread of the application waits for packets: only deadlines are left to us.
fn rest(engine: &Engine<'_>) {
    let shard = engine.shard;
    let timeout = announce(shard, mode::RESTING, Who::Resting);
    // Whoever stops waiting now sees the mode, or we see that he has.
    if shard.waiters.load(Ordering::SeqCst) > 0 {
        sleep(engine, false, timeout);
    }
    shard.mode.store(mode::AWAKE, Ordering::SeqCst);
}

/// Nobody else makes progress: turns while there is something to do and a moment longer, then sleep.
fn take_over(engine: &Engine<'_>, polls: u64) {
    let shard = engine.shard;
    let (mut now, limit) = (clock::now(), engine.polling.look_for(SPIN));
    let (mut idle_since, mut looked_up, mut looks) = (now, now, 0u32);
    while limit.is_none_or(|limit| now.since(idle_since) < limit) {
        if shard.polls.load(Ordering::Relaxed) != polls || shard.stop.load(Ordering::Acquire) {
            return;
        }
        let busy = shard.try_turn(Who::Idle).is_some_and(|turn| turn.busy);
        now = clock::now();
        looks = looks.wrapping_add(1);
        if busy {
            idle_since = now;
        } else if looks.is_multiple_of(GENEROUS) {
            thread::yield_now();
        } else {
            core::hint::spin_loop();
        }
        if now.since(looked_up) > TICK {
            looked_up = now;
            if shard.waiters.load(Ordering::SeqCst) > 0 {
                return;
            }
            sleep(engine, false, Some(Duration::ZERO));
        }
    }
    let timeout = announce(shard, mode::LISTENING, Who::Idle);
    if shard.polls.load(Ordering::Relaxed) == polls && !shard.stop.load(Ordering::Acquire) {
        sleep(engine, true, timeout);
    }
    shard.mode.store(mode::AWAKE, Ordering::SeqCst);
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
fn sleep(engine: &Engine<'_>, for_packets: bool, timeout: Option<Duration>) {
    let shard = engine.shard;
    let fds = [shard.wake.as_fd(), engine.network.as_fd(), shard.alarm.as_fd(), shard.arrivals()];
    // Signals are blocked, so nothing interrupts.
    let ready = poll::wait(if for_packets { &fds } else { &fds[..3] }, timeout).unwrap_or(0);
    if ready & 1 != 0 {
        shard.wake.clear();
    }
    if ready & 2 != 0 && !engine.network.look_closely() {
        engine.network.put_off();
    }
    if ready & 4 != 0 {
        shard.alarm.clear();
    }
}
