//! The protocol core's view of registered memory. The core gets it for one call, under a shard's lock.

use super::{Entry, Regions, Window, find};
use crate::sys::{
    lock,
    process::sync_to_storage,
    table::Token,
    usercopy::{Atomic, Region as Bytes},
};
use core::sync::atomic::{Ordering, fence};
use rxe_core::{
    memory::{AccessError, Asker, Memory},
    num::Key,
    region::Region,
    work::{Access, BindWindow},
};

/// Access to registered memory. The token proves that a shard's lock is held, so no entry that it finds can go away.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    table: &'a Regions,
    token: Token<'a>,
}

impl<'a> View<'a> {
    pub(crate) const fn new(table: &'a Regions, token: Token<'a>) -> Self {
        Self { table, token }
    }

    /// Lets `judge` apply the rule behind `key`. If the rule grants the access, `act` gets the bytes and the offset in them.
    fn with<T>(
        &self,
        key: Key,
        judge: impl FnOnce(&Region) -> Result<u64, AccessError>,
        act: impl FnOnce(&Bytes, u64) -> Result<T, AccessError>,
    ) -> Result<T, AccessError> {
        match find(self.table, self.token, key).ok_or(AccessError::UnknownKey(key))? {
            Entry::Memory(memory) => act(&memory.bytes, judge(&memory.rule)?),
            // The window's lock is held while the bytes are touched. So after an invalidation by another shard no shard uses the
            // window any more.
            Entry::Window(window) => {
                let window = lock(window);
                let offset = judge(&window.rule)?;
                let memory = window.memory.as_deref().map(Entry::memory_of);
                let memory = memory.filter(|memory| !memory.is_gone()).ok_or(AccessError::UnknownKey(key))?;
                act(&memory.bytes, offset)
            }
        }
    }

    fn atomic(
        &self,
        asker: Asker,
        key: Key,
        addr: u64,
        need: Access,
        operation: Atomic,
    ) -> Result<u64, AccessError> {
        self.with(
            key,
            |rule| rule.grant_atomic(asker, key, addr, need),
            |bytes, offset| bytes.atomic(at(offset), operation).map_err(|_| AccessError::Fault(addr)),
        )
    }

    fn change_window(
        &self,
        key: Key,
        change: impl FnOnce(&mut Window) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        match find(self.table, self.token, key).ok_or(AccessError::UnknownKey(key))? {
            Entry::Memory(_) => Err(AccessError::Denied(Access::empty())),
            Entry::Window(window) => change(&mut lock(window)),
        }
    }
}

/// Converts an offset. None is lost: offsets lie inside a range of this address space.
const fn at(offset: u64) -> usize {
    offset as usize
}

impl Memory for View<'_> {
    fn check(&self, asker: Asker, key: Key, addr: u64, len: u64, need: Access) -> Result<(), AccessError> {
        if len == 0 {
            return Ok(());
        }
        self.with(key, |rule| rule.grant(asker, key, addr, len, need), |_, _| Ok(()))
    }

    fn read(
        &self,
        asker: Asker,
        key: Key,
        addr: u64,
        need: Access,
        out: &mut [u8],
    ) -> Result<(), AccessError> {
        if out.is_empty() {
            return Ok(());
        }
        let len = out.len() as u64;
        self.with(
            key,
            |rule| rule.grant(asker, key, addr, len, need),
            |bytes, offset| bytes.read(at(offset), out).map_err(|_| AccessError::Fault(addr)),
        )
    }

    fn write(&self, asker: Asker, key: Key, addr: u64, need: Access, data: &[u8]) -> Result<(), AccessError> {
        if data.is_empty() {
            return Ok(());
        }
        let len = data.len() as u64;
        self.with(
            key,
            |rule| rule.grant(asker, key, addr, len, need),
            |bytes, offset| bytes.write(at(offset), data).map_err(|_| AccessError::Fault(addr)),
        )
    }

    fn compare_swap(
        &self,
        asker: Asker,
        key: Key,
        addr: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, AccessError> {
        let operation = Atomic::CompareSwap { expected: compare, new: swap };
        self.atomic(asker, key, addr, Access::REMOTE_ATOMIC, operation)
    }

    fn fetch_add(&self, asker: Asker, key: Key, addr: u64, add: u64) -> Result<u64, AccessError> {
        self.atomic(asker, key, addr, Access::REMOTE_ATOMIC, Atomic::FetchAdd(add))
    }

    fn atomic_write(&self, asker: Asker, key: Key, addr: u64, value: [u8; 8]) -> Result<(), AccessError> {
        let operation = Atomic::Swap(u64::from_ne_bytes(value));
        self.atomic(asker, key, addr, Access::REMOTE_WRITE, operation).map(drop)
    }

    fn flush(
        &self,
        asker: Asker,
        key: Key,
        range: (u64, u64),
        whole: bool,
        need: Access,
    ) -> Result<(), AccessError> {
        let (addr, len) = range;
        if len == 0 && !whole {
            return Ok(());
        }
        let mut length = len;
        self.with(
            key,
            |rule| {
                if !whole {
                    return rule.grant(asker, key, addr, len, need);
                }
                let (offset, all) = rule.grant_whole(asker, key, need)?;
                length = all;
                Ok(offset)
            },
            |bytes, offset| Ok((*bytes, offset)),
        )
        .and_then(|(bytes, offset)| {
            // Orders earlier stores before the answer to this FLUSH: a thread that acts on the answer sees them.
            fence(Ordering::SeqCst);
            if need.contains(Access::FLUSH_PERSISTENT) {
                let (address, len) =
                    bytes.part(at(offset), at(length)).map_err(|_| AccessError::Fault(addr))?;
                sync_to_storage(address, len).map_err(|_| AccessError::Fault(addr))?;
            }
            Ok(())
        })
    }

    fn bind_window(&self, asker: Asker, bind: &BindWindow) -> Result<(), AccessError> {
        let region = self
            .table
            .share(self.token, bind.region.index())
            .filter(|entry| matches!(&**entry, Entry::Memory(_)));
        self.change_window(bind.window, |window| {
            let rule = region.as_deref().map(|entry| &entry.memory_of().rule);
            let bound = window.rule.bind(asker, bind, rule).map_err(|e| e.as_access_error(bind))?;
            let memory = region.filter(|_| bound.bound_to().is_some());
            if let Some(memory) = &memory
                && !memory.memory_of().hold()
            {
                return Err(AccessError::UnknownKey(bind.region));
            }
            window.become_bound(bound, memory);
            Ok(())
        })
    }

    fn invalidate(&self, asker: Asker, key: Key, _remote: bool) -> Result<(), AccessError> {
        self.change_window(key, |window| {
            let unbound = window.rule.invalidate(asker, key)?;
            window.become_bound(unbound, None);
            Ok(())
        })
    }
}
