//! The descriptor by which a program waits for events in its own way (`epoll(7)`, `poll(2)`, `select(2)`), and what wakes it
//! when packets arrive.
//!
//! Usually the background thread listens to the sockets, takes the turn, and tells the program by an event counter. Two threads
//! are then woken for each packet, one after the other. If the program has made its descriptor non-blocking, one is enough: the
//! sockets themselves are added to the epoll set that the descriptor is. A packet then wakes the program, which takes the turn
//! itself when it asks for an event. Such a descriptor is the **lookout** of its stack.
//!
//! * It must be non-blocking, because it also becomes readable for packets that bring no event. A program that then asks for
//!   one is told that there is none, and does not wait. If it may not bear that, it is given an extra event
//!   (`channel/extra.rs`).
//! * A stack has one lookout at most, because each would be woken by every packet. (The kernel also refuses, with EINVAL, a
//!   socket that is in 500 sets of one program.) The turn of the thread that asks the lookout finds the events of the
//!   other channels, too.
//! * There is none where several threads ask for events: one of them would be woken for the others' packets.
//! * A program may wait for the lookout's channel alone, once that is readable. It shows by leaving the events of its other
//!   channels untaken ([`First::Never`]). Its stack has no lookout from then on.
//!
//! The engine can also make the lookout readable by itself, to call the program. So messages that a program posts between
//! two calls may wait ([`super::hold`]), and leave together in the turn that it takes when it is called.

use super::{clock, promise::Promise, reach::ShardSet, shard::Shard, stack::Stack};
use crate::sys::{
    lock,
    poll::{self, AnyReadable},
    process::this_thread,
    socket::Event,
};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, Weak},
};

/// Most descriptors of a stack that can become the lookout, at one time. Each of them takes two file descriptors, others take
/// one.
const CANDIDATES: u32 = 16;
/// A program may be sent so often to the events of its other channels and take none, before the sockets are read for it all
/// the same. Its list of ready descriptors may begin with the lookout again, so the first time proves nothing.
const MOST_IN_VAIN: u32 = 2;
/// If the program has still taken none after so many nanoseconds, and asks the lookout again, it never will ([`First::Never`]).
const LONGEST_IN_VAIN: u64 = 5_000_000;
/// A descriptor becomes the lookout after one thread has asked so often for an event without waiting, with no other thread
/// in between.
const STREAK: u32 = 8;

/// The descriptor of a completion channel, by which a program waits for events.
#[derive(Debug)]
pub(crate) struct Descriptor {
    /// Readable while events wait, or after [`Self::raise`].
    events: Event,
    /// Whether `events` is readable.
    raised: Mutex<bool>,
    /// An epoll set of `events`, to which the sockets can be added. The program waits for the set if there is one, else for `events`.
    set: Option<AnyReadable>,
    /// Whether it is counted in [`Lookout::candidates`].
    counts: AtomicBool,
    /// Whether it is the lookout.
    looks_out: AtomicBool,
    /// The shards whose sockets are in the set.
    watched: Mutex<Vec<Arc<Shard>>>,
    stack: Weak<Stack>,
}

impl Descriptor {
    pub(crate) fn new(stack: &Arc<Stack>) -> io::Result<Arc<Self>> {
        let events = Event::new()?;
        let candidates = &stack.lookout.candidates;
        let made = if candidates.fetch_add(1, Ordering::Relaxed) < CANDIDATES {
            AnyReadable::in_sight(&[events.as_fd()]).map(|set| (events, Some(set)))
        } else {
            Event::in_sight().map(|events| (events, None))
        };
        let (events, set) = made.inspect_err(|_| _ = candidates.fetch_sub(1, Ordering::Relaxed))?;
        Ok(Arc::new(Self {
            events,
            raised: Mutex::default(),
            set,
            counts: AtomicBool::new(true),
            looks_out: AtomicBool::new(false),
            watched: Mutex::default(),
            stack: Arc::downgrade(stack),
        }))
    }

    /// Tells of a new event. Raises `events` even if it is readable, so that a program that waits for edges (EPOLLET) is woken too.
    pub(crate) fn announce(&self) {
        *lock(&self.raised) = true;
        self.events.raise();
    }

    /// Makes it readable, if it is not, so that the program calls and takes a turn.
    pub(crate) fn raise(&self) {
        let mut raised = lock(&self.raised);
        if !*raised {
            self.events.raise();
            *raised = true;
        }
    }

    /// Makes it unreadable: no event waits.
    pub(crate) fn clear(&self) {
        let mut raised = lock(&self.raised);
        if *raised {
            self.events.clear();
            *raised = false;
        }
    }

    /// The program uses it no more, even if it stays open. Another descriptor can become the lookout.
    pub(crate) fn retire(&self) {
        let Some(stack) = self.stack.upgrade() else { return };
        self.count_no_more(&stack);
        if self.looks_out() {
            stack.dismiss_lookout(Some(self));
        }
    }

    fn count_no_more(&self, stack: &Stack) {
        if self.counts.swap(false, Ordering::Relaxed) {
            stack.lookout.candidates.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Readable while events wait, but not for packets. For threads inside the library.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Whether arrivals make it readable.
    pub(crate) fn looks_out(&self) -> bool {
        self.looks_out.load(Ordering::Relaxed)
    }

    /// Adds the sockets of those `shards` to the set that are not in it.
    ///
    /// # Errors
    /// The system's, if a socket cannot be added; [`Self::unwatch`] then takes out the others.
    fn watch<'a>(&self, shards: impl Iterator<Item = &'a Arc<Shard>>) -> io::Result<()> {
        let Some(set) = &self.set else { return Ok(()) };
        let mut watched = lock(&self.watched);
        for shard in shards {
            if watched.iter().any(|known| Arc::ptr_eq(known, shard)) {
                continue;
            }
            watched.push(Arc::clone(shard));
            shard.each_socket(|fd| set.add(fd))?;
            shard.begin_lookout();
        }
        Ok(())
    }

    /// Takes the sockets out of the set. Closing them does not suffice, because epoll keeps a socket while any duplicate of it is
    /// open in any process.
    fn unwatch(&self) {
        self.looks_out.store(false, Ordering::SeqCst);
        for shard in lock(&self.watched).drain(..) {
            if let Some(set) = &self.set {
                // A socket that is not in the set needs nothing.
                let _ = shard.each_socket(|fd| set.remove(fd).or(Ok(())));
            }
            shard.end_lookout();
        }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_ref().map_or_else(|| self.events.as_fd(), AsFd::as_fd)
    }
}

impl Drop for Descriptor {
    /// The set is closed with it. This takes no shard's lock, because it may run under one, where a queue pair is dropped.
    fn drop(&mut self) {
        let Some(stack) = self.stack.upgrade().filter(|stack| stack.check().is_ok()) else { return };
        self.count_no_more(&stack);
        if self.looks_out() {
            stack.lookout.is_there.store(false, Ordering::SeqCst);
        }
        for shard in lock(&self.watched).drain(..) {
            shard.end_lookout();
        }
    }
}

/// What a program has to do before it looks at the sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum First {
    Nothing,
    /// It takes the events of its other channels first.
    Others,
    /// It was sent to those events repeatedly and took none, so it waits for this channel alone. libvalkey's read does so, once
    /// its descriptor is readable. Such a program must not be woken for other channels' packets.
    Never,
}

/// The lookout of a stack, and what decides whether there is one.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    /// Descriptors of the stack that count towards [`CANDIDATES`].
    candidates: AtomicU32,
    /// The thread that last asked for an event without waiting for one, and how often in a row it has.
    reader: AtomicI32,
    streak: AtomicU32,
    /// Whether the stack has a lookout.
    is_there: AtomicBool,
    /// Whether the stack can never have a lookout again.
    refused: AtomicBool,
    /// Events that wait in channels which the program asks without waiting.
    untaken: AtomicU32,
    /// Events that the program has ever taken from those channels,
    taken: AtomicU32,
    /// the same count when it was last sent to other channels ([`First::Others`]), and how often in a row it took none after that.
    put_off: AtomicU32,
    in_vain: AtomicU32,
    /// When it was last sent to them, in nanoseconds of the engine's clock.
    sent: AtomicU64,
    present: Mutex<Weak<Descriptor>>,
    /// Whether the program calls when packets wake it.
    pub(crate) promise: Promise,
}

impl Lookout {
    /// How often in a row the calling thread has asked for an event. Only a hint, so lost updates do not matter.
    fn streak(&self) -> u32 {
        let this = this_thread();
        let streak = if self.reader.load(Ordering::Relaxed) == this {
            self.streak.load(Ordering::Relaxed).saturating_add(1)
        } else {
            self.reader.store(this, Ordering::Relaxed);
            0
        };
        self.streak.store(streak, Ordering::Relaxed);
        streak
    }

    /// Whether a program that waits for its descriptors is woken by arrivals.
    pub(crate) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    /// Whether there is a lookout and the program still has events of channels to take. It asks the lookout again after those.
    pub(crate) fn is_on_the_way(&self) -> bool {
        self.is_there() && self.untaken.load(Ordering::Relaxed) > 0
    }

    /// Makes the descriptor readable, although nothing has arrived, so that the program calls and takes a turn. The caller has no
    /// shard's lock.
    pub(super) fn call(&self) {
        let descriptor = lock(&self.present).upgrade();
        if let Some(descriptor) = descriptor {
            descriptor.raise();
        }
    }

    /// Events wait for the program, `more` than before.
    pub(crate) fn events_wait(&self, more: usize) {
        self.untaken.fetch_add(more as u32, Ordering::Relaxed);
    }

    /// So many of them wait no more, without the program's having taken them.
    pub(crate) fn events_gone(&self, count: usize) {
        self.untaken.fetch_sub(count as u32, Ordering::Relaxed);
    }

    /// The program has taken one.
    pub(crate) fn event_taken(&self) {
        self.events_gone(1);
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// The program would look at the sockets: what it is to do first.
    pub(crate) fn first(&self) -> First {
        let taken = self.taken.load(Ordering::Relaxed);
        let in_vain = if self.put_off.swap(taken, Ordering::Relaxed) == taken {
            self.in_vain.load(Ordering::Relaxed).saturating_add(1)
        } else {
            0
        };
        let any = self.untaken.load(Ordering::Relaxed) > 0;
        self.in_vain.store(if any { in_vain } else { 0 }, Ordering::Relaxed);
        match in_vain {
            _ if !any => First::Nothing,
            0..MOST_IN_VAIN => {
                self.sent.store(clock::now().nanos(), Ordering::Relaxed);
                First::Others
            }
            _ if clock::now().nanos() >= self.sent.load(Ordering::Relaxed) + LONGEST_IN_VAIN => First::Never,
            _ => First::Nothing,
        }
    }
}

impl Stack {
    /// A thread asks for an event that came by `descriptor`, and does not wait if there is none: it may be the lookout from
    /// now on, for the shards of `reach`.
    pub(crate) fn ask_without_waiting(&self, descriptor: &Arc<Descriptor>, reach: ShardSet) {
        let streak = self.lookout.streak();
        if streak == 0 {
            self.dismiss_lookout(None);
        }
        if self.lookout.promise.is_broken() {
            // Shards have given it up by themselves.
            self.dismiss_lookout(None);
            if !self.lookout.promise.again() {
                return;
            }
        }
        if streak < STREAK || descriptor.looks_out() && !self.may_grow() || descriptor.set.is_none() {
            return;
        }
        if self.lookout.refused.load(Ordering::Relaxed) {
            return;
        }
        let mut present = lock(&self.lookout.present);
        if present.upgrade().is_some_and(|other| !Arc::ptr_eq(&other, descriptor)) {
            return;
        }
        self.lookout.promise.given_by(this_thread());
        let Err(error) = descriptor.watch(self.among(reach)) else {
            descriptor.looks_out.store(true, Ordering::SeqCst);
            self.lookout.is_there.store(true, Ordering::SeqCst);
            *present = Arc::downgrade(descriptor);
            return;
        };
        descriptor.unwatch();
        *present = Weak::new();
        self.lookout.is_there.store(false, Ordering::SeqCst);
        // Other reasons, such as a lack of memory, pass.
        self.lookout.refused.fetch_or(poll::is_impossible(&error), Ordering::Relaxed);
        self.lookout.streak.store(0, Ordering::Relaxed);
    }

    /// A thread asks for an event that came by `descriptor`, and waits if there is none: it is readable for events alone again.
    pub(crate) fn ask_and_wait(&self, descriptor: &Descriptor) {
        if descriptor.looks_out() {
            self.dismiss_lookout(Some(descriptor));
        }
    }

    /// Ends the lookout for good: this program does not bear with a descriptor that is readable without an event.
    pub(crate) fn refuse_lookout(&self) {
        self.lookout.refused.store(true, Ordering::Relaxed);
        self.dismiss_lookout(None);
    }

    /// Ends the lookout, if there is one and it is `only`.
    fn dismiss_lookout(&self, only: Option<&Descriptor>) {
        if !self.lookout.is_there() {
            return;
        }
        let mut present = lock(&self.lookout.present);
        if let Some(descriptor) = present.upgrade()
            && only.is_none_or(|only| core::ptr::eq(&raw const *descriptor, only))
        {
            descriptor.unwatch();
            *present = Weak::new();
            self.lookout.is_there.store(false, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ContextOptions, net::InprocNet, sys::child::in_child};
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    /// Fewer descriptors than a channel takes are left.
    #[test]
    fn a_channel_that_was_not_made_is_no_candidate() {
        let context = ContextOptions::new().open_inproc(&InprocNet::new(), &[[10, 0, 0, 1].into()]).unwrap();
        let stack = &context.0.stack;
        in_child(|| {
            let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            let lowest = (0..).find(|fd| !std::fs::exists(format!("/proc/self/fd/{fd}")).unwrap()).unwrap();
            setrlimit(Resource::RLIMIT_NOFILE, lowest + 1, hard).unwrap();
            let failed = (0..=CANDIDATES).all(|_| Descriptor::new(stack).is_err());
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
            failed && Descriptor::new(stack).unwrap().set.is_some()
        });
    }
}
