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
//! for the others' packets.

use super::{reach::ShardSet, shard::Shard, stack::Stack};
use crate::sys::{poll::AnyReadable, socket::Event};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// Descriptors of a stack that can become the lookout, at one time: those take two numbers each, and others one.
const CANDIDATES: u32 = 16;
/// So often a program that has events of other channels is sent to those and takes none, before it looks for more. Its list of
/// ready descriptors may begin with the lookout again.
const MOST_IN_VAIN: u32 = 2;
/// A thread has to ask so often, and no other in between, before its descriptor becomes the lookout.
const STREAK: u32 = 8;

/// What a program waits for.
#[derive(Debug)]
pub(crate) struct Descriptor {
    /// Readable while events wait.
    events: Event,
    /// What the program has, where the sockets can be added to it; else it has `events`.
    set: Option<AnyReadable>,
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
        let (looks_out, watched) = (AtomicBool::new(false), Mutex::default());
        Ok(Arc::new(Self { events, set, looks_out, watched, stack: Arc::downgrade(stack) }))
    }

    /// Events wait.
    pub(crate) fn raise(&self) {
        self.events.raise();
    }

    /// None waits any more.
    pub(crate) fn clear(&self) {
        self.events.clear();
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
    fn watch<'a>(&self, shards: impl Iterator<Item = &'a Arc<Shard>>) -> bool {
        let Some(set) = &self.set else { return false };
        let mut watched = lock(&self.watched);
        for shard in shards {
            if watched.iter().any(|known| Arc::ptr_eq(known, shard)) {
                continue;
            }
            if shard.each_socket(|fd| set.add(fd)).is_err() {
                return false;
            }
            shard.lookout.store(true, Ordering::SeqCst);
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
        stack.lookout.candidates.fetch_sub(1, Ordering::Relaxed);
        if self.looks_out() {
            stack.lookout.is_there.store(false, Ordering::SeqCst);
        }
        for shard in lock(&self.watched).drain(..) {
            shard.end_lookout();
        }
    }
}

/// Who looks out, of a stack.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    /// Descriptors that there are.
    candidates: AtomicU32,
    /// The thread that last asked for an event without waiting for one, and how often in a row it has.
    reader: AtomicUsize,
    streak: AtomicU32,
    /// Whether there is one.
    is_there: AtomicBool,
    /// Events that the program has not taken since it last looked at the sockets.
    untaken: AtomicU32,
    /// How many those were when it last was sent to them, and how often it has taken none of them then.
    put_off: AtomicU32,
    in_vain: AtomicU32,
    present: Mutex<Weak<Descriptor>>,
}

/// A number for the calling thread, other than 0.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| core::ptr::from_ref(here).addr())
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
    pub(super) fn is_on_the_way(&self) -> bool {
        self.is_there() && self.untaken.load(Ordering::Relaxed) > 0
    }

    /// An event waits for the program.
    pub(crate) fn event_waits(&self) {
        self.untaken.fetch_add(1, Ordering::Relaxed);
    }

    /// The program has taken one. Only a hint, so lost updates do not matter.
    pub(crate) fn event_taken(&self) {
        self.untaken.store(self.untaken.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }

    /// The program would look at the sockets. Whether it is to take the events of its other channels before that. It may have
    /// left some lying: where it has taken none after it was sent to them twice, it looks.
    pub(crate) fn has_others_first(&self) -> bool {
        let untaken = self.untaken.load(Ordering::Relaxed);
        let before = self.put_off.swap(untaken, Ordering::Relaxed);
        let in_vain =
            if before == untaken { self.in_vain.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        let others = untaken > 0 && in_vain < MOST_IN_VAIN;
        self.in_vain.store(if others { in_vain } else { 0 }, Ordering::Relaxed);
        if !others {
            self.untaken.store(0, Ordering::Relaxed);
            self.put_off.store(0, Ordering::Relaxed);
        }
        others
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
        if streak < STREAK || descriptor.looks_out() && self.only.is_some() || descriptor.set.is_none() {
            return;
        }
        let mut present = lock(&self.lookout.present);
        if present.upgrade().is_some_and(|other| !Arc::ptr_eq(&other, descriptor)) {
            return;
        }
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
