//! Registered memory: the table of regions and windows, and the protocol core's view of it.
//!
//! [`rxe_core::region`] decides which access is allowed. Only `sys::usercopy` touches the bytes. The table (`sys::table`) is read
//! without a lock; next read `view`, through which the core uses it.

pub(crate) mod locked;
mod view;

use crate::sys::{
    lock,
    table::{Table, Token},
    usercopy::Region as Bytes,
};
use rxe_core::{
    num::Key,
    region::{Region, RegionError, WindowType},
    work::{Access, PdId},
};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

pub(crate) use view::View;

/// All regions and windows of one stack, shared by its shards.
pub(crate) type Regions = Table<Entry>;

/// A table entry: what the index of a key names.
#[derive(Debug)]
pub(crate) enum Entry {
    /// Registered memory. Its rule never changes: registering anew replaces the entry.
    Memory(Memory),
    /// A window, which work requests bind and unbind.
    Window(Mutex<Window>),
}

#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) rule: Region,
    pub(crate) bytes: Bytes,
    /// Number of windows that are bound to it. [`CLOSED`] once it is being deregistered.
    windows: AtomicU32,
    /// The bytes must not be touched any more, not even through windows that are still bound.
    gone: AtomicBool,
}

/// Value of `Memory::windows` that forbids further binds.
const CLOSED: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) rule: Region,
    /// The memory it is bound to.
    memory: Option<Arc<Entry>>,
}

impl Memory {
    /// Counts one more bound window. False if the region is being deregistered.
    fn hold(&self) -> bool {
        !self.is_gone()
            && self
                .windows
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < CLOSED - 1).then(|| n + 1))
                .is_ok()
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    fn release(&self) {
        self.windows.fetch_sub(1, Ordering::AcqRel);
    }

    /// Forbids further binds. False, and without effect, if windows are bound.
    pub(crate) fn close(&self) -> bool {
        self.windows.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Makes windows that are still bound grant nothing. This holds for certain when the present turns of all shards have ended.
    pub(crate) fn abandon(&self) {
        self.gone.store(true, Ordering::Release);
    }
}

impl Window {
    /// Takes the rule and the memory that a bind or an invalidation has produced, and releases the memory that it had.
    fn become_bound(&mut self, rule: Region, memory: Option<Arc<Entry>>) {
        self.rule = rule;
        if let Some(old) = core::mem::replace(&mut self.memory, memory) {
            old.memory_of().release();
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(memory) = &self.memory {
            memory.memory_of().release();
        }
    }
}

impl Entry {
    /// The memory of an entry that is known to be memory.
    fn memory_of(&self) -> &Memory {
        match self {
            Self::Memory(memory) => memory,
            Self::Window(_) => unreachable!("windows are bound to memory"),
        }
    }

    /// The present key.
    pub(crate) fn key(&self) -> Key {
        match self {
            Self::Memory(memory) => memory.rule.key,
            Self::Window(window) => lock(window).rule.key,
        }
    }
}

/// Registers `bytes`, which are addressed from `iova` on. `Ok(None)` if all keys are in use.
///
/// # Errors
/// The rule that refuses the region.
pub(crate) fn register(
    table: &Regions,
    pd: PdId,
    iova: u64,
    bytes: Bytes,
    access: Access,
) -> Result<Option<Arc<Entry>>, RegionError> {
    let rule = Region::memory(Key::from_parts(1, 0), pd, iova, bytes.len() as u64, access)?;
    Ok(table.insert(|index, tag| {
        let rule = Region { key: Key::from_parts(index, tag), ..rule };
        Entry::Memory(Memory { rule, bytes, windows: AtomicU32::new(0), gone: AtomicBool::new(false) })
    }))
}

/// Puts another rule and other bytes behind the key of `old`. On return no shard touches the bytes of `old` any more.
///
/// # Errors
/// [`Replace`]. Nothing was changed then.
pub(crate) fn replace(
    table: &Regions,
    old: &Entry,
    pd: PdId,
    iova: u64,
    bytes: Bytes,
    access: Access,
) -> Result<Arc<Entry>, Replace> {
    let memory = old.memory_of();
    let rule = Region::memory(memory.rule.key, pd, iova, bytes.len() as u64, access)?;
    if !memory.close() {
        return Err(Replace::Bound);
    }
    let entry =
        Entry::Memory(Memory { rule, bytes, windows: AtomicU32::new(0), gone: AtomicBool::new(false) });
    let entry = Arc::new(entry);
    table.replace(rule.key.index(), Arc::clone(&entry));
    Ok(entry)
}

/// Why a region was not registered anew.
#[derive(Debug)]
pub(crate) enum Replace {
    /// The rules refuse it.
    Rule(RegionError),
    /// Windows are bound to it.
    Bound,
}

impl From<RegionError> for Replace {
    fn from(error: RegionError) -> Self {
        Self::Rule(error)
    }
}

/// Makes an unbound window. `None` if all keys are in use.
pub(crate) fn allocate_window(table: &Regions, pd: PdId, kind: WindowType) -> Option<Arc<Entry>> {
    table.insert(|index, tag| {
        let rule = Region::window(Key::from_parts(index, tag), pd, kind);
        Entry::Window(Mutex::new(Window { rule, memory: None }))
    })
}

/// Takes an entry out of the table. On return no shard touches its bytes any more.
pub(crate) fn remove(table: &Regions, entry: &Entry) {
    let key = entry.key();
    table.remove(key.index(), key.rotated().tag());
}

/// The entry that the index of `key` names. Its key may have another tag: the rules judge that.
fn find<'a>(table: &'a Regions, token: Token<'a>, key: Key) -> Option<&'a Entry> {
    table.get(token, key.index())
}
