//! Application memory for tests: one arena. Pieces of it are registered under the same rules as in the real table ([`crate::region`]).
//! Between allocations there are gaps, in which a write to a wrong place is seen. Writes can be recorded.

use crate::{
    memory::{AccessError, Asker, Memory},
    num::Key,
    region::{Region, WindowType},
    work::{Access, BindWindow, PdId},
};
use alloc::{vec, vec::Vec};
use core::{cell::RefCell, ops::Range};

/// Bytes of the gap behind each allocation.
const GAP: u64 = 64;
/// Allocations start at multiples of this.
const ALIGN: u64 = 64;

/// A write to the arena through a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    /// Who wrote.
    pub asker: Asker,
    /// The key that was used.
    pub key: Key,
    /// The application's address of the first byte.
    pub addr: u64,
    /// Number of bytes.
    pub len: u64,
    /// The right that was needed: [`Access::LOCAL_WRITE`], or one of a peer.
    pub need: Access,
}

/// A table entry: a region or window, and where its bytes are in the arena.
#[derive(Clone, Copy, Debug)]
struct Entry {
    region: Region,
    /// Offset of a region's first byte in the arena. Not used for windows.
    start: u64,
}

#[derive(Debug)]
struct Inner {
    arena: Vec<u8>,
    used: u64,
    /// By key index. Entry 0 stays empty.
    entries: Vec<Option<Entry>>,
    /// The last key of each index. The next one differs from it.
    last_keys: Vec<Key>,
    writes: Vec<Touch>,
    flushes: u64,
    /// Addresses at which accesses fail, see [`Heap::take_away`].
    gone: Vec<Range<u64>>,
    record: bool,
}

/// An arena and its table of regions and windows.
#[derive(Debug)]
pub struct Heap {
    base: u64,
    seed: u64,
    inner: RefCell<Inner>,
}

impl Heap {
    /// An arena of `size` zero bytes. The first one has address `base`.
    #[must_use]
    pub fn new(base: u64, size: usize, seed: u64) -> Self {
        let inner = Inner {
            arena: vec![0; size],
            used: 0,
            entries: vec![None],
            last_keys: vec![Key(0)],
            writes: Vec::new(),
            flushes: 0,
            gone: Vec::new(),
            record: false,
        };
        Self { base, seed, inner: RefCell::new(inner) }
    }

    /// Switches the recording of writes on or off ([`Heap::take_writes`]). It is off at first.
    pub fn record(&self, on: bool) {
        self.inner.borrow_mut().record = on;
    }

    /// Allocates `len` bytes of the arena, aligned to 64 bytes, and returns their address. They cannot be freed.
    ///
    /// # Panics
    /// If the arena is too small.
    pub fn alloc(&self, len: u64) -> u64 {
        let mut inner = self.inner.borrow_mut();
        let start = inner.used;
        let end = (start + len + GAP).next_multiple_of(ALIGN);
        assert!(end <= inner.arena.len() as u64, "the test heap of {} bytes is full", inner.arena.len());
        inner.used = end;
        self.base + start
    }

    /// Bytes that are still free.
    #[must_use]
    pub fn free(&self) -> u64 {
        let inner = self.inner.borrow();
        inner.arena.len() as u64 - inner.used
    }

    /// Registers `len` bytes at `addr`, which must be in the arena. Returns the key.
    ///
    /// # Panics
    /// If the rules of registration or the arena's size forbid it.
    pub fn register(&self, pd: PdId, addr: u64, len: u64, access: Access) -> Key {
        self.register_at(pd, addr, len, addr, access)
    }

    /// Like [`Heap::register`], but work requests and peers use addresses from `iova` on for these bytes.
    ///
    /// # Panics
    /// If the rules of registration or the arena's size forbid it.
    pub fn register_at(&self, pd: PdId, addr: u64, len: u64, iova: u64, access: Access) -> Key {
        let mut inner = self.inner.borrow_mut();
        let start = addr.checked_sub(self.base).expect("address below the arena");
        assert!(start + len <= inner.arena.len() as u64, "region beyond the arena");
        let key = inner.next_key(self.seed);
        let region = Region::memory(key, pd, iova, len, access).expect("a region by the rules");
        inner.put(Entry { region, start });
        key
    }

    /// Allocates bytes and registers them. Returns address and key.
    pub fn alloc_registered(&self, pd: PdId, len: u64, access: Access) -> (u64, Key) {
        let addr = self.alloc(len);
        (addr, self.register(pd, addr, len, access))
    }

    /// Makes a window that is not bound.
    pub fn alloc_window(&self, pd: PdId, window: WindowType) -> Key {
        let mut inner = self.inner.borrow_mut();
        let key = inner.next_key(self.seed);
        inner.put(Entry { region: Region::window(key, pd, window), start: 0 });
        key
    }

    /// Removes a region or window. False if there is none with this key, or if windows are bound to it.
    pub fn deregister(&self, key: Key) -> bool {
        let mut inner = self.inner.borrow_mut();
        let in_use = inner.entries.iter().flatten().any(|entry| entry.region.bound_to() == Some(key));
        if in_use || inner.find(key).is_err() {
            return false;
        }
        inner.entries[key.index() as usize] = None;
        true
    }

    /// The present state of the region or window that has the same index as this key. `None` if there is none.
    #[must_use]
    pub fn region(&self, key: Key) -> Option<Region> {
        let inner = self.inner.borrow();
        inner.entries.get(key.index() as usize).copied().flatten().map(|entry| entry.region)
    }

    /// From now on accesses to these bytes fail, as if the application had unmapped them.
    pub fn take_away(&self, addr: u64, len: u64) {
        self.inner.borrow_mut().gone.push(addr..addr + len);
    }

    /// Ends all [`Heap::take_away`]: accesses succeed again.
    pub fn give_back(&self) {
        self.inner.borrow_mut().gone.clear();
    }

    /// Reads bytes as the application does, without a key.
    ///
    /// # Panics
    /// If they are not in the arena.
    #[must_use]
    pub fn get(&self, addr: u64, len: u64) -> Vec<u8> {
        let at = (addr - self.base) as usize;
        self.inner.borrow().arena[at..at + len as usize].to_vec()
    }

    /// Writes bytes as the application does, without a key.
    ///
    /// # Panics
    /// If they are not in the arena.
    pub fn set(&self, addr: u64, data: &[u8]) {
        let at = (addr - self.base) as usize;
        self.inner.borrow_mut().arena[at..at + data.len()].copy_from_slice(data);
    }

    /// Address of the arena's first byte.
    #[must_use]
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// The whole arena, gaps included.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        self.inner.borrow().arena.clone()
    }

    /// Checks that the whole arena equals `expected`.
    ///
    /// # Errors
    /// The first byte that differs: its address, its value, the expected value.
    pub fn compare(&self, expected: &[u8]) -> Result<(), (u64, u8, u8)> {
        let inner = self.inner.borrow();
        if inner.arena == expected {
            return Ok(());
        }
        let at = inner.arena.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
        Err((self.base + at as u64, inner.arena[at], expected[at]))
    }

    /// Takes the recorded writes, oldest first.
    pub fn take_writes(&self) -> Vec<Touch> {
        core::mem::take(&mut self.inner.borrow_mut().writes)
    }

    /// How many FLUSHes were granted.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.inner.borrow().flushes
    }
}

impl Inner {
    fn next_key(&mut self, seed: u64) -> Key {
        let index =
            self.entries.iter().skip(1).position(Option::is_none).map_or(self.entries.len(), |at| at + 1);
        if index == self.entries.len() {
            self.entries.push(None);
            self.last_keys.push(Key::first(index as u32, seed));
        } else {
            self.last_keys[index] = self.last_keys[index].rotated();
        }
        self.last_keys[index]
    }

    fn put(&mut self, entry: Entry) {
        let key = entry.region.key;
        self.last_keys[key.index() as usize] = key;
        self.entries[key.index() as usize] = Some(entry);
    }

    fn find(&self, key: Key) -> Result<Entry, AccessError> {
        let entry = self.entries.get(key.index() as usize).copied().flatten();
        entry.filter(|entry| entry.region.key == key).ok_or(AccessError::UnknownKey(key))
    }

    /// Where in the arena the byte at an offset of a region or window is.
    fn locate(&self, entry: &Entry, offset: u64) -> Result<usize, AccessError> {
        let start = match entry.region.bound_to() {
            None => entry.start,
            Some(region) => self.find(region)?.start,
        };
        Ok((start + offset) as usize)
    }

    fn grant(&self, asker: Asker, key: Key, addr: u64, len: u64, need: Access) -> Result<usize, AccessError> {
        let entry = self.find(key)?;
        let offset = entry.region.grant(asker, key, addr, len, need)?;
        self.locate(&entry, offset)
    }

    fn note(&mut self, base: u64, asker: Asker, key: Key, at: usize, len: u64, need: Access) {
        if self.record {
            self.writes.push(Touch { asker, key, addr: base + at as u64, len, need });
        }
    }
}

impl Heap {
    /// Runs `act` on bytes if the access is granted. `changes`: whether `act` writes them.
    fn with_bytes<T>(
        &self,
        (asker, key, addr): (Asker, Key, u64),
        len: usize,
        need: Access,
        changes: bool,
        act: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, AccessError> {
        let mut inner = self.inner.borrow_mut();
        if len == 0 {
            return Ok(act(&mut []));
        }
        let at = inner.grant(asker, key, addr, len as u64, need)?;
        let touched = self.base + at as u64..self.base + (at + len) as u64;
        if inner.gone.iter().any(|gone| gone.start < touched.end && touched.start < gone.end) {
            return Err(AccessError::Fault(touched.start));
        }
        if changes {
            inner.note(self.base, asker, key, at, len as u64, need);
        }
        Ok(act(&mut inner.arena[at..at + len]))
    }

    fn atomic(
        &self,
        (asker, key, addr): (Asker, Key, u64),
        need: Access,
        change: impl FnOnce([u8; 8]) -> [u8; 8],
    ) -> Result<[u8; 8], AccessError> {
        if !addr.is_multiple_of(8) {
            return Err(AccessError::Misaligned(addr));
        }
        self.with_bytes((asker, key, addr), 8, need, true, |bytes| {
            let mut original = [0; 8];
            original.copy_from_slice(bytes);
            bytes.copy_from_slice(&change(original));
            original
        })
    }
}

impl Memory for Heap {
    fn check(&self, asker: Asker, key: Key, addr: u64, len: u64, need: Access) -> Result<(), AccessError> {
        if len == 0 {
            return Ok(());
        }
        self.inner.borrow().grant(asker, key, addr, len, need).map(|_| ())
    }

    fn read(
        &self,
        asker: Asker,
        key: Key,
        addr: u64,
        need: Access,
        out: &mut [u8],
    ) -> Result<(), AccessError> {
        self.with_bytes((asker, key, addr), out.len(), need, false, |bytes| out.copy_from_slice(bytes))
    }

    fn write(&self, asker: Asker, key: Key, addr: u64, need: Access, data: &[u8]) -> Result<(), AccessError> {
        self.with_bytes((asker, key, addr), data.len(), need, true, |bytes| bytes.copy_from_slice(data))
    }

    fn compare_swap(
        &self,
        asker: Asker,
        key: Key,
        addr: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, AccessError> {
        let original = self.atomic((asker, key, addr), Access::REMOTE_ATOMIC, |bytes| {
            if u64::from_ne_bytes(bytes) == compare { swap.to_ne_bytes() } else { bytes }
        })?;
        Ok(u64::from_ne_bytes(original))
    }

    fn fetch_add(&self, asker: Asker, key: Key, addr: u64, add: u64) -> Result<u64, AccessError> {
        let original = self.atomic((asker, key, addr), Access::REMOTE_ATOMIC, |bytes| {
            u64::from_ne_bytes(bytes).wrapping_add(add).to_ne_bytes()
        })?;
        Ok(u64::from_ne_bytes(original))
    }

    fn atomic_write(&self, asker: Asker, key: Key, addr: u64, value: [u8; 8]) -> Result<(), AccessError> {
        self.atomic((asker, key, addr), Access::REMOTE_WRITE, |_| value).map(|_| ())
    }

    fn flush(
        &self,
        asker: Asker,
        key: Key,
        range: (u64, u64),
        whole: bool,
        need: Access,
    ) -> Result<(), AccessError> {
        let mut inner = self.inner.borrow_mut();
        let entry = inner.find(key)?;
        if whole {
            entry.region.grant_whole(asker, key, need)?;
        } else {
            entry.region.grant(asker, key, range.0, range.1, need)?;
        }
        inner.flushes += 1;
        Ok(())
    }

    fn bind_window(&self, asker: Asker, bind: &BindWindow) -> Result<(), AccessError> {
        let mut inner = self.inner.borrow_mut();
        let window = inner.find(bind.window)?;
        let region = inner.find(bind.region).ok().map(|entry| entry.region);
        let bound =
            window.region.bind(asker, bind, region.as_ref()).map_err(|error| error.as_access_error(bind))?;
        inner.put(Entry { region: bound, ..window });
        Ok(())
    }

    fn invalidate(&self, asker: Asker, key: Key, _remote: bool) -> Result<(), AccessError> {
        let mut inner = self.inner.borrow_mut();
        let entry = inner.find(key)?;
        let freed = entry.region.invalidate(asker, key)?;
        inner.put(Entry { region: freed, ..entry });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::num::Qpn;

    const ASKER: Asker = Asker { pd: PdId(1), qpn: Qpn::new(5) };
    const ALL: Access = Access::LOCAL_WRITE
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC)
        .union(Access::MW_BIND);

    #[test]
    fn writes_land_where_asked_and_are_recorded() {
        let heap = Heap::new(0x7000, 4096, 1);
        heap.record(true);
        heap.alloc(100);
        let (addr, key) = heap.alloc_registered(PdId(1), 100, ALL);
        heap.write(ASKER, key, addr + 90, Access::REMOTE_WRITE, b"0123456789").expect("inside");
        assert_eq!(heap.get(addr + 90, 10), b"0123456789");
        assert!(heap.write(ASKER, key, addr + 91, Access::REMOTE_WRITE, b"0123456789").is_err());
        let touch = Touch { asker: ASKER, key, addr: addr + 90, len: 10, need: Access::REMOTE_WRITE };
        assert_eq!(heap.take_writes(), [touch]);
        let mut expected = vec![0; 4096];
        let at = (addr - 0x7000) as usize + 90;
        expected[at..at + 10].copy_from_slice(b"0123456789");
        assert_eq!(heap.compare(&expected), Ok(()));
        expected[4095] = 1;
        assert_eq!(heap.compare(&expected), Err((0x7fff, 0, 1)));
    }

    #[test]
    fn iova_and_window_lead_to_the_same_bytes() {
        let heap = Heap::new(0x7000, 4096, 1);
        let addr = heap.alloc(64);
        let key = heap.register_at(PdId(1), addr, 64, 1 << 40, ALL);
        let window = heap.alloc_window(PdId(1), WindowType::Two);
        let bind = BindWindow {
            window,
            new_rkey: window.with_tag(7),
            region: key,
            addr: (1 << 40) + 8,
            len: 8,
            access: Access::REMOTE_WRITE | Access::ZERO_BASED,
        };
        heap.bind_window(ASKER, &bind).expect("bound");
        heap.write(ASKER, bind.new_rkey, 2, Access::REMOTE_WRITE, b"ab").expect("inside");
        assert_eq!(heap.get(addr + 8, 8), b"\0\0ab\0\0\0\0");
        assert!(!heap.deregister(key), "a window is bound to it");
        heap.invalidate(ASKER, bind.new_rkey, true).expect("bound by this queue pair");
        assert!(heap.write(ASKER, bind.new_rkey, 2, Access::REMOTE_WRITE, b"ab").is_err());
        assert!(heap.deregister(key));
        let next = heap.register(PdId(1), addr, 64, ALL);
        assert_eq!((next.index(), next == key), (key.index(), false));
    }

    #[test]
    fn atomics_and_memory_that_goes() {
        let heap = Heap::new(0x7000, 4096, 1);
        let (addr, key) = heap.alloc_registered(PdId(1), 64, ALL);
        assert_eq!(heap.fetch_add(ASKER, key, addr, 5), Ok(0));
        assert_eq!(heap.compare_swap(ASKER, key, addr, 5, 9), Ok(5));
        assert_eq!(heap.compare_swap(ASKER, key, addr, 5, 1), Ok(9));
        assert_eq!(heap.get(addr, 8), 9_u64.to_ne_bytes());
        assert_eq!(heap.fetch_add(ASKER, key, addr + 4, 1), Err(AccessError::Misaligned(addr + 4)));
        heap.take_away(addr + 8, 8);
        assert_eq!(heap.atomic_write(ASKER, key, addr + 8, [1; 8]), Err(AccessError::Fault(addr + 8)));
        heap.atomic_write(ASKER, key, addr + 16, [1; 8]).expect("still there");
        heap.give_back();
        heap.atomic_write(ASKER, key, addr + 8, [1; 8]).expect("there again");
    }
}
