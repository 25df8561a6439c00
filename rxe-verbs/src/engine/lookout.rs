//! The descriptor by which a program waits for events in its own way (`epoll(7)`, `poll(2)`, `select(2)`), and who is woken
//! when packets arrive.
//!
//! Usually the background thread listens, and tells the program by an event counter: two threads are woken for each
//! packet. A program that has made its descriptor non-blocking need not wait for the first of them: the sockets themselves
//! are put behind the descriptor, so that an arrival wakes the program, which looks at the packets when it asks for an
//! event. Such a descriptor is the **lookout** of its stack.
//!
//! It must be non-blocking, because it becomes readable also for packets that bring no event: a program that then asks for
//! one must be told that there is none, and not wait. There is one lookout at most, because each would be woken by every packet
//! (and a socket that is in 500 sets of one program is refused by the kernel, EINVAL). Where a program has many channels, the
//! thread that looks finds their events, too. So there is none where several threads ask for events: one of them would be woken
//! for the others' packets. And a program that waits for one of its channels alone, once that is readable, is found out by the
//! events of the others which it leaves lying: its stack has none from then on.
//!
//! The lookout can also be called, by making it readable: so messages of a program that posts many between two looks wait for each
//! other, and leave together when it comes by.

use super::{clock, promise::Promise, reach::ShardSet, shard::Shard, stack::Stack};
use crate::sys::{poll::AnyReadable, process::this_thread, socket::Event};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// Descriptors of a stack that can become the lookout, at one time: those take two numbers each, and others one.
const CANDIDATES: u32 = 16;
/// So often a program that has events of other channels may be sent to those and take none: its list of ready descriptors may
/// begin with the lookout again.
const MOST_IN_VAIN: u32 = 2;
/// Nanoseconds after which one that still has taken none, and asks for more, takes them never.
const LONGEST_IN_VAIN: u64 = 5_000_000;
/// A thread has to ask so often, and no other in between, before its descriptor becomes the lookout.
const STREAK: u32 = 8;

/// What a program waits for.
#[derive(Debug)]
pub(crate) struct Descriptor {
    /// Readable while events wait, or the program has been asked to come.
    events: Event,
    /// Whether it is readable.
    raised: Mutex<bool>,
    /// What the program has, where the sockets can be added to it; else it has `events`.
    set: Option<AnyReadable>,
    /// Whether it counts among the candidates.
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
        let taken = stack.lookout.candidates.fetch_add(1, Ordering::Relaxed);
        let set = if taken < CANDIDATES { Some(AnyReadable::in_sight(&[events.as_fd()])?) } else { None };
        let events = if set.is_some() { events } else { Event::in_sight()? };
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

    /// Something new waits for the program: also who waits for edges is to hear of it.
    pub(crate) fn announce(&self) {
        *lock(&self.raised) = true;
        self.events.raise();
    }

    /// Makes it readable, if it is not: the program is to come by.
    pub(crate) fn raise(&self) {
        let mut raised = lock(&self.raised);
        if !*raised {
            self.events.raise();
            *raised = true;
        }
    }

    /// Nothing waits any more.
    pub(crate) fn clear(&self) {
        let mut raised = lock(&self.raised);
        if *raised {
            self.events.clear();
            *raised = false;
        }
    }

    /// The program is done with it, even if it stays: another one may be what it looks out by.
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

    /// Readable while events wait, and for nothing else: for threads of our own.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Whether arrivals make it readable.
    pub(crate) fn looks_out(&self) -> bool {
        self.looks_out.load(Ordering::Relaxed)
    }

    /// Puts the sockets of `shards` behind it, if they are not. Whether all are.
    fn watch<'a>(self: &Arc<Self>, shards: impl Iterator<Item = &'a Arc<Shard>>) -> bool {
        let Some(set) = &self.set else { return false };
        let mut watched = lock(&self.watched);
        for shard in shards {
            if watched.iter().any(|known| Arc::ptr_eq(known, shard)) {
                continue;
            }
            if shard.each_socket(|fd| set.add(fd)).is_err() {
                return false;
            }
            shard.begin_lookout(self);
            watched.push(Arc::clone(shard));
        }
        true
    }

    /// Takes them away again. They stay in a set for as long as any duplicate of them is open anywhere, so this is not left to
    /// their being closed.
    fn unwatch(&self) {
        self.looks_out.store(false, Ordering::SeqCst);
        for shard in lock(&self.watched).drain(..) {
            if let Some(set) = &self.set {
                // One that is not in it any more need not be taken out.
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
    /// The set ends with it. No shard's lock is taken: one that lets go of a queue pair may be what drops it.
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
    /// It takes the events of its other channels.
    Others,
    /// It was sent to those again and again and took none: it waits for this one alone. libvalkey's read does, once its
    /// descriptor is readable. It must not be woken for the others.
    Never,
}

/// Who looks out, of a stack.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    /// Descriptors that there are.
    candidates: AtomicU32,
    /// The thread that last asked for an event without waiting for one, and how often in a row it has.
    reader: AtomicI32,
    streak: AtomicU32,
    /// Whether there is one.
    is_there: AtomicBool,
    /// There is to be none any more.
    refused: AtomicBool,
    /// Events that wait in channels for which the program comes by.
    untaken: AtomicU32,
    /// Events that it has taken ever,
    taken: AtomicU32,
    /// and had when it last was sent to others; and how often it has taken none then.
    put_off: AtomicU32,
    in_vain: AtomicU32,
    /// When it was sent to them last: nanoseconds of the engine's clock.
    sent: AtomicU64,
    present: Mutex<Weak<Descriptor>>,
    /// Whether the program that has one comes when packets do.
    promise: Promise,
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
    pub(super) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    /// Whether the program, which looks at the sockets when it has gone through its descriptors, has some of them before it.
    pub(crate) fn is_on_the_way(&self) -> bool {
        self.is_there() && self.untaken.load(Ordering::Relaxed) > 0
    }

    /// Packets have lain there for a tick. Whether nobody may rely any more on the program's coming.
    pub(super) fn missed(&self) -> bool {
        self.promise.missed()
    }

    /// The program has come because of arrivals.
    pub(crate) fn has_come(&self) {
        self.promise.kept();
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
        if descriptor.watch(self.among(reach)) {
            descriptor.looks_out.store(true, Ordering::SeqCst);
            self.lookout.is_there.store(true, Ordering::SeqCst);
            *present = Arc::downgrade(descriptor);
        } else {
            descriptor.unwatch();
        }
    }

    /// Whether the program is woken by arrivals.
    pub(crate) fn has_lookout(&self) -> bool {
        self.lookout.is_there()
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
