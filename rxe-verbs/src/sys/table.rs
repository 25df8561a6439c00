//! A table of shared entries that has no lock for readers. When a removal returns, no reader has the entry any more.
//!
//! Each reader holds one of a set of mutexes. A shard's state lives in such a [`Guarded`] mutex, which the table has made. The
//! holder may read entries; the references end with the guard. A removal takes the entry out of the table, and then locks and
//! unlocks each of these mutexes once. After that no thread that might have seen the entry still uses it (the grace period of
//! RCU, where the critical sections of the mutexes are the readers).

use super::lock;
use core::marker::PhantomData;
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};

/// Entries of a chunk.
const CHUNK: usize = 4096;
/// Number of chunks, so that an index has 24 bits.
const CHUNKS: usize = 4096;
/// How many returned indices wait before the oldest is used again, while there are fresh ones. So an old key stays unknown for a
/// while.
const RESTING: usize = 1024;

type Chunk<T> = [AtomicPtr<T>; CHUNK];

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A table of shared entries, each with an index of 24 bits and a tag that changes when the index is used again.
pub(crate) struct Table<T> {
    id: u64,
    chunks: Box<[AtomicPtr<Chunk<T>>]>,
    free: Mutex<Free>,
    readers: Mutex<Vec<Weak<dyn Quiesce>>>,
    owns: PhantomData<Arc<T>>,
}

impl<T> core::fmt::Debug for Table<T> {
    /// Does not show the entries: there are thousands of places for them.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Table").field("id", &self.id).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Free {
    /// Indices given back, oldest first, each with the tag for its next entry.
    returned: VecDeque<(u32, u8)>,
    /// First index never used.
    fresh: u32,
    /// Tag of fresh indices.
    tag: u8,
}

/// A mutex whose critical sections a removal waits for.
trait Quiesce: Send + Sync + core::fmt::Debug {
    /// Returns when every critical section that began before this call has ended.
    fn quiesce(&self);
}

/// A mutex whose holder may read the table that made it.
#[derive(Debug)]
pub(crate) struct Guarded<S> {
    table: u64,
    state: Mutex<S>,
}

/// A held [`Guarded`] mutex.
#[derive(Debug)]
pub(crate) struct Guard<'a, S> {
    table: u64,
    state: MutexGuard<'a, S>,
}

/// Proof that a mutex of the table is held for `'a`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    table: u64,
    held: PhantomData<&'a ()>,
}

impl<S: Send + core::fmt::Debug> Quiesce for Guarded<S> {
    fn quiesce(&self) {
        drop(self.lock());
    }
}

impl<S> Guarded<S> {
    pub(crate) fn lock(&self) -> Guard<'_, S> {
        Guard { table: self.table, state: lock(&self.state) }
    }

    /// Locks it, or returns `None` if another thread holds it.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, S>> {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Guard { table: self.table, state })
    }
}

impl<S> Guard<'_, S> {
    /// The state, and a token that allows reading the table while the guard is borrowed.
    pub(crate) fn parts(&mut self) -> (&mut S, Token<'_>) {
        (&mut self.state, Token { table: self.table, held: PhantomData })
    }
}

impl<T: Send + Sync> Table<T> {
    /// An empty table. Indices start at 1, their tags at `tag`.
    pub(crate) fn new(tag: u8) -> Self {
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            chunks: (0..CHUNKS).map(|_| AtomicPtr::new(null_mut())).collect(),
            free: Mutex::new(Free { returned: VecDeque::new(), fresh: 1, tag }),
            readers: Mutex::default(),
            owns: PhantomData,
        }
    }

    /// A mutex whose holder may read this table.
    pub(crate) fn guard<S: Send + core::fmt::Debug + 'static>(&self, state: S) -> Arc<Guarded<S>> {
        let guarded = Arc::new(Guarded { table: self.id, state: Mutex::new(state) });
        let reader: Arc<dyn Quiesce> = Arc::<Guarded<S>>::clone(&guarded);
        lock(&self.readers).push(Arc::downgrade(&reader));
        guarded
    }

    /// Adds the entry that `make` builds from its index and tag. `None` if all indices are in use.
    pub(crate) fn insert(&self, make: impl FnOnce(u32, u8) -> T) -> Option<Arc<T>> {
        let mut free = lock(&self.free);
        let (index, tag) = if free.returned.len() < RESTING && (free.fresh as usize) < CHUNK * CHUNKS {
            free.fresh += 1;
            (free.fresh - 1, free.tag)
        } else {
            free.returned.pop_front()?
        };
        let entry = Arc::new(make(index, tag));
        self.slot_or_new(index).store(Arc::into_raw(Arc::clone(&entry)).cast_mut(), Ordering::Release);
        drop(free);
        Some(entry)
    }

    /// The entry at `index`.
    pub(crate) fn get<'a>(&'a self, token: Token<'a>, index: u32) -> Option<&'a T> {
        assert_eq!(token.table, self.id, "a token of another table");
        let entry = self.slot(index)?.load(Ordering::Acquire);
        // SAFETY: if not null, the pointer came from `Arc::into_raw`. `swap` releases that count only after it has taken the
        // pointer out and then held every mutex of this table once. The token proves that one of them is held for 'a, by a
        // section that began before `swap` could hold that mutex.
        unsafe { entry.as_ref() }
    }

    /// The entry at `index`, as a shared handle that may live longer than the token.
    pub(crate) fn share(&self, token: Token<'_>, index: u32) -> Option<Arc<T>> {
        let entry: *const T = self.get(token, index)?;
        // SAFETY: from `Arc::into_raw` in `insert`, and its count is at least 1 while the token is held (see `get`).
        unsafe {
            Arc::increment_strong_count(entry);
            Some(Arc::from_raw(entry))
        }
    }

    /// Takes an entry out. On return no reader has a reference to it. `tag` is for the index's next entry. The caller must not hold
    /// a mutex of this table: it would wait for itself.
    pub(crate) fn remove(&self, index: u32, tag: u8) {
        if self.swap(index, null_mut()) {
            lock(&self.free).returned.push_back((index, tag));
        }
    }

    /// Replaces an entry by another. On return no reader has a reference to the old one. The caller must not hold a mutex of this
    /// table, and two threads must not replace or remove the same index at a time.
    pub(crate) fn replace(&self, index: u32, entry: Arc<T>) {
        let entry = Arc::into_raw(entry).cast_mut();
        if !self.swap(index, entry) {
            unreachable!("whoever replaces an entry has it");
        }
    }

    /// Puts `new` (null, or from `Arc::into_raw`) in the place of an entry, and drops the old entry when no reader has it any more.
    /// False if there was none.
    fn swap(&self, index: u32, new: *mut T) -> bool {
        let Some(slot) = self.slot(index) else { return false };
        let old = slot.swap(new, Ordering::AcqRel);
        if old.is_null() {
            return false;
        }
        let readers: Vec<_> = {
            let mut readers = lock(&self.readers);
            readers.retain(|reader| reader.strong_count() > 0);
            readers.iter().filter_map(Weak::upgrade).collect()
        };
        for reader in readers {
            reader.quiesce();
        }
        // SAFETY: from `Arc::into_raw` in `insert` or `replace`, swapped out by nobody else, and no reader is left (see
        // `get`).
        drop(unsafe { Arc::from_raw(old) });
        true
    }

    fn slot(&self, index: u32) -> Option<&AtomicPtr<T>> {
        let chunk = self.chunks.get(index as usize / CHUNK)?.load(Ordering::Acquire);
        // SAFETY: chunks come from `Box::into_raw` in `slot_or_new` and live as long as the table.
        unsafe { chunk.as_ref() }?.get(index as usize % CHUNK)
    }

    /// The slot of an index. Makes its chunk if needed, so it is called under the lock of `free` only.
    fn slot_or_new(&self, index: u32) -> &AtomicPtr<T> {
        let place = &self.chunks[index as usize / CHUNK];
        let mut chunk = place.load(Ordering::Acquire);
        if chunk.is_null() {
            let empty: Box<Chunk<T>> = (0..CHUNK)
                .map(|_| AtomicPtr::new(without_provenance_mut(0)))
                .collect::<Box<[_]>>()
                .try_into()
                .unwrap_or_else(|_| unreachable!("as many as the array holds"));
            chunk = Box::into_raw(empty);
            place.store(chunk, Ordering::Release);
        }
        // SAFETY: from `Box::into_raw`, freed by the table's drop only.
        let chunk = unsafe { &*chunk };
        &chunk[index as usize % CHUNK]
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        for place in &mut self.chunks {
            let chunk = *place.get_mut();
            if chunk.is_null() {
                continue;
            }
            // SAFETY: from `Box::into_raw`, and nobody else has the table any more.
            let mut chunk = unsafe { Box::from_raw(chunk) };
            for slot in chunk.iter_mut() {
                let entry = *slot.get_mut();
                if !entry.is_null() {
                    // SAFETY: from `Arc::into_raw` in `insert`; readers borrow the table, so there is none.
                    drop(unsafe { Arc::from_raw(entry) });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn entries_come_and_go() {
        let table = Table::new(7);
        let mutex = table.guard(());
        let mut indices = Vec::new();
        for n in 0..3u32 {
            let entry = table.insert(|index, tag| (index, tag, n)).expect("room");
            assert_eq!((entry.1, entry.2), (7, n));
            indices.push(entry.0);
        }
        let mut guard = mutex.lock();
        let (_, token) = guard.parts();
        assert_eq!(table.get(token, indices[1]).map(|entry| entry.2), Some(1));
        assert_eq!(table.get(token, 0), None);
        assert_eq!(table.get(token, 5000), None);
        assert_eq!(table.get(token, u32::MAX), None);
        drop(guard);
        table.remove(indices[1], 8);
        table.remove(indices[1], 8);
        let mut guard = mutex.lock();
        let (_, token) = guard.parts();
        assert_eq!(table.get(token, indices[1]), None);
        assert_eq!(table.get(token, indices[2]).map(|entry| entry.2), Some(2));
        drop(guard);
        table.replace(indices[2], Arc::new((indices[2], 7, 9)));
        let mut guard = mutex.lock();
        let (_, token) = guard.parts();
        assert_eq!(table.get(token, indices[2]).map(|entry| entry.2), Some(9));
    }

    #[test]
    fn an_index_is_used_again_with_another_tag() {
        let table = Table::new(0);
        lock(&table.free).fresh = (CHUNK * CHUNKS - 1) as u32;
        let last = table.insert(|index, tag| (index, tag)).expect("the last one");
        assert_eq!(*last, (0x00ff_ffff, 0));
        assert!(table.insert(|index, tag| (index, tag)).is_none());
        table.remove(last.0, 1);
        assert_eq!(*table.insert(|index, tag| (index, tag)).expect("the one given back"), (0x00ff_ffff, 1));
    }

    #[test]
    fn a_removed_entry_is_seen_by_nobody() {
        const ROUNDS: usize = if cfg!(miri) { 20 } else { 2000 };
        let table = Arc::new(Table::new(0));
        let mutexes: Vec<_> = (0..2).map(|_| table.guard(())).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let current = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = mutexes
            .iter()
            .map(|mutex| {
                let (table, mutex, stop, current) =
                    (Arc::clone(&table), Arc::clone(mutex), Arc::clone(&stop), Arc::clone(&current));
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let mut guard = mutex.lock();
                        let (_, token) = guard.parts();
                        let entry: Option<&AtomicBool> =
                            table.get(token, current.load(Ordering::Relaxed) as u32);
                        if let Some(alive) = entry {
                            for _ in 0..20 {
                                assert!(alive.load(Ordering::Relaxed), "a reader saw a removed entry");
                                core::hint::spin_loop();
                            }
                        }
                    }
                })
            })
            .collect();
        // On a busy machine each round costs time slices of other processes, so the rounds end after 5 s.
        let begun = std::time::Instant::now();
        for _ in (0..ROUNDS).take_while(|round| *round < 20 || begun.elapsed().as_secs() < 5) {
            let mut index = 0;
            let entry = table
                .insert(|at, _| {
                    index = at;
                    AtomicBool::new(true)
                })
                .expect("room");
            current.store(u64::from(index), Ordering::Relaxed);
            std::thread::yield_now();
            let next = Arc::new(AtomicBool::new(true));
            table.replace(index, Arc::clone(&next));
            entry.store(false, Ordering::Relaxed);
            assert_eq!(Arc::strong_count(&entry), 1);
            std::thread::yield_now();
            table.remove(index, 0);
            next.store(false, Ordering::Relaxed);
            assert_eq!(Arc::strong_count(&next), 1);
        }
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().expect("no reader failed");
        }
    }
}
