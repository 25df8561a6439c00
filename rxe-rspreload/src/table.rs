//! Which descriptors are rsockets.
//!
//! There is a number for each descriptor of the program: 0 if it is not one of ours. It is read at each call of the program, so
//! the table is an array without locks. Descriptors beyond its end are never rsockets.

use core::{
    ffi::c_int,
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

/// Number of descriptors that can be rsockets.
pub(crate) const MOST: usize = 65536;

static ENTRIES: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// One more than the highest descriptor that was ever in the table.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
/// Duplicates of an rsocket's descriptor, by that descriptor.
static USERS: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];
/// Sets of repoll, by the epoll descriptor that has rsockets, plus one. Duplicates have the same, which are counted in `USERS`, too.
static SETS: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];
/// Threads that wait by the system, by the epoll descriptor.
static WAITING: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];

/// What the program has asked for a descriptor: of an rsocket, in case that it becomes an ordinary socket.
static NOTES: [AtomicU8; MOST] = [const { AtomicU8::new(0) }; MOST];
/// It is to survive exec(2).
pub(crate) const INHERITED: u8 = 1;
/// It is bound to an address.
pub(crate) const BOUND: u8 = 2;
/// It is no rsocket, but an epoll instance.
pub(crate) const EPOLL: u8 = 4;

/// The kind of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// A duplicate of this rsocket.
    Rsocket(c_int),
    /// A TCP socket that becomes an rsocket at its first use: see `fork`.
    Fresh,
    /// The same, listening.
    Listener,
    /// Connected by this side. The peer decides when it becomes an rsocket.
    Active,
    /// Accepted by this side, which decides when it becomes an rsocket.
    Passive,
    /// A thread has it become an rsocket now.
    Settling,
}

const RSOCKET: u64 = 1 << 32;
const STATES: [Entry; 5] = [Entry::Fresh, Entry::Listener, Entry::Active, Entry::Passive, Entry::Settling];

/// The kind of a descriptor; `None` if it is one of libc.
pub(crate) fn get(fd: c_int) -> Option<Entry> {
    let entry = ENTRIES.get(usize::try_from(fd).ok()?)?.load(Ordering::Acquire);
    match entry {
        0 => None,
        entry if entry & RSOCKET != 0 => Some(Entry::Rsocket(entry as u32 as c_int)),
        state => STATES.get(state as usize - 1).copied(),
    }
}

/// The rsocket of a descriptor.
pub(crate) fn rsocket(fd: c_int) -> Option<c_int> {
    match get(fd)? {
        Entry::Rsocket(rs) => Some(rs),
        _ => None,
    }
}

/// Whether there is anything about a descriptor.
pub(crate) fn is_known(fd: c_int) -> bool {
    get(fd).is_some() || poll_set(fd).is_some() || is_noted(fd, EPOLL)
}

/// Whether a descriptor of this number can be an rsocket. Numbers that are none count, because the system refuses them.
pub(crate) fn has_room(fd: c_int) -> bool {
    usize::try_from(fd).is_ok_and(|fd| fd < MOST) || fd < 0
}

/// Sets the kind of a descriptor. False if its number is too large.
pub(crate) fn set(fd: c_int, entry: Entry) -> bool {
    let (Some(place), number) = (usize::try_from(fd).ok().and_then(|fd| ENTRIES.get(fd)), number(entry))
    else {
        return false;
    };
    if let Entry::Rsocket(rs) = entry {
        let Some(users) = usize::try_from(rs).ok().and_then(|rs| USERS.get(rs)) else { return false };
        users.fetch_add(1, Ordering::AcqRel);
    }
    HIGHEST.fetch_max(fd as usize + 1, Ordering::AcqRel);
    place.store(number, Ordering::Release);
    true
}

/// Changes the kind of a descriptor, to none if `to` is `None`. False if it is no longer what it was, or its number is too large.
pub(crate) fn change(fd: c_int, from: Entry, to: Option<Entry>) -> bool {
    let Some(place) = usize::try_from(fd).ok().and_then(|fd| ENTRIES.get(fd)) else { return false };
    let users = match to {
        Some(Entry::Rsocket(rs)) => usize::try_from(rs).ok().and_then(|rs| USERS.get(rs)),
        _ => None,
    };
    // Before another thread can see it, and close it.
    if let Some(users) = users {
        users.fetch_add(1, Ordering::AcqRel);
    }
    let to = to.map_or(0, number);
    let done = place.compare_exchange(number(from), to, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if let (Some(users), false) = (users, done) {
        users.fetch_sub(1, Ordering::AcqRel);
    }
    done
}

fn number(entry: Entry) -> u64 {
    match entry {
        Entry::Rsocket(rs) => RSOCKET | rs as u32 as u64,
        state => STATES.iter().position(|other| *other == state).map_or(0, |place| place as u64 + 1),
    }
}

/// Removes a descriptor. If it was the last one of an rsocket, returns the rsocket, which is to be closed then.
pub(crate) fn clear(fd: c_int) -> Option<c_int> {
    let had = ENTRIES.get(usize::try_from(fd).ok()?)?.swap(0, Ordering::AcqRel);
    if had & RSOCKET == 0 {
        return None;
    }
    let rs = had as u32 as c_int;
    let users = USERS.get(usize::try_from(rs).ok()?)?;
    (users.fetch_sub(1, Ordering::AcqRel) == 1).then_some(rs)
}

/// Notes, or no longer notes, that the program has asked for something.
pub(crate) fn note(fd: c_int, what: u8, holds: bool) {
    if let Some(notes) = usize::try_from(fd).ok().and_then(|fd| NOTES.get(fd)) {
        if holds {
            notes.fetch_or(what, Ordering::Relaxed)
        } else {
            notes.fetch_and(!what, Ordering::Relaxed)
        };
    }
}

/// Whether it has been noted.
pub(crate) fn is_noted(fd: c_int, what: u8) -> bool {
    let notes = usize::try_from(fd).ok().and_then(|fd| NOTES.get(fd));
    notes.is_some_and(|notes| notes.load(Ordering::Relaxed) & what != 0)
}

/// One more than the highest descriptor that may be in the table.
pub(crate) fn highest() -> usize {
    HIGHEST.load(Ordering::Acquire)
}

/// All descriptors that may be in the table.
pub(crate) fn all() -> impl Iterator<Item = c_int> {
    (0..highest()).map(|fd| fd as c_int)
}

/// The set of repoll for an epoll descriptor.
pub(crate) fn poll_set(epoll: c_int) -> Option<c_int> {
    // In one order with `WAITING`: either a thread that begins to wait sees the set, or who has entered it sees the thread.
    let set = place(&SETS, epoll)?.load(Ordering::SeqCst);
    set.checked_sub(1).map(|set| set as c_int)
}

/// Stores a set. If another thread has stored one meanwhile, returns that one.
pub(crate) fn enter_poll_set(epoll: c_int, set: c_int) -> Result<(), Option<c_int>> {
    let (place, users) = place(&SETS, epoll).zip(place(&USERS, set)).ok_or(None)?;
    let entered = place.compare_exchange(0, set as u32 + 1, Ordering::SeqCst, Ordering::SeqCst);
    entered.map_err(|other| Some(other as c_int - 1))?;
    users.fetch_add(1, Ordering::AcqRel);
    HIGHEST.fetch_max(epoll as usize + 1, Ordering::AcqRel);
    Ok(())
}

/// Gives a duplicate of an epoll descriptor the same set, if there is one.
pub(crate) fn copy_poll_set(epoll: c_int, new: c_int) {
    if let Some(set) = poll_set(epoll)
        && let Some((place, users)) = place(&SETS, new).zip(place(&USERS, set))
    {
        users.fetch_add(1, Ordering::AcqRel);
        place.store(set as u32 + 1, Ordering::SeqCst);
        HIGHEST.fetch_max(new as usize + 1, Ordering::AcqRel);
    }
}

/// Removes a set. If this was the last descriptor that has it, returns the set, which is to be closed then.
pub(crate) fn clear_poll_set(epoll: c_int) -> Option<c_int> {
    let set = place(&SETS, epoll)?.swap(0, Ordering::SeqCst).checked_sub(1)? as c_int;
    (place(&USERS, set)?.fetch_sub(1, Ordering::AcqRel) == 1).then_some(set)
}

fn place(places: &'static [AtomicU32; MOST], fd: c_int) -> Option<&'static AtomicU32> {
    places.get(usize::try_from(fd).ok()?)
}

/// Whether a thread waits by the system for an epoll descriptor.
pub(crate) fn is_waited_for(epoll: c_int) -> bool {
    place(&WAITING, epoll).is_some_and(|waiting| waiting.load(Ordering::SeqCst) != 0)
}

/// A thread that waits by the system for an epoll descriptor, until this is dropped.
pub(crate) struct Waiting(Option<&'static AtomicU32>);

impl Waiting {
    pub(crate) fn begin(epoll: c_int) -> Self {
        let waiting = place(&WAITING, epoll);
        if let Some(waiting) = waiting {
            waiting.fetch_add(1, Ordering::SeqCst);
        }
        Self(waiting)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(waiting) = self.0 {
            waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
