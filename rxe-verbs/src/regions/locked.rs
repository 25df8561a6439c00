//! What registered memory would cost of the limit for locked memory, counted as kernels count it: by the pages that each
//! region touches, for the whole process, a page once for each region it is in (Linux, ib_umem_get; memory on demand is not
//! locked and not counted).

use crate::{
    error::RegisterError,
    host::{LockedReport, Memlock},
    sys::{
        fork::{generation, is_own},
        process::{may_lock, memlock_limit, page_size},
    },
};
use core::sync::atomic::{AtomicU64, Ordering};

/// Of the process whose fork it is counted from; a child has registered nothing.
static BYTES: AtomicU64 = AtomicU64::new(0);
/// The generation that the bytes are of.
static OF: AtomicU64 = AtomicU64::new(0);
/// Regions that were refused.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// The share of one region, given back at its end.
#[derive(Debug)]
pub(crate) struct Share {
    bytes: u64,
    generation: u32,
}

impl Share {
    /// Counts memory in.
    ///
    /// # Errors
    /// [`RegisterError::Locked`] if that is above the limit which is enforced.
    pub(crate) fn take(memlock: Memlock, addr: usize, len: usize) -> Result<Self, RegisterError> {
        let generation = generation();
        if OF.swap(generation.into(), Ordering::AcqRel) != u64::from(generation) {
            BYTES.store(0, Ordering::Release);
            REFUSED.store(0, Ordering::Release);
        }
        let bytes = whole_pages(addr, len);
        let share = Self { bytes, generation };
        let all = BYTES.fetch_add(bytes, Ordering::AcqRel).saturating_add(bytes);
        if let Some(limit) = limit(memlock)
            && all > limit
            && !may_lock()
        {
            REFUSED.fetch_add(1, Ordering::Relaxed);
            return Err(RegisterError::Locked { len, held: all - bytes, limit });
        }
        Ok(share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if is_own(self.generation) {
            BYTES.fetch_sub(self.bytes, Ordering::AcqRel);
        }
    }
}

/// Bytes of the pages that a range touches.
fn whole_pages(addr: usize, len: usize) -> u64 {
    let page = page_size();
    let first = addr - addr % page;
    let end = addr.saturating_add(len).checked_next_multiple_of(page).unwrap_or(usize::MAX);
    (end - first) as u64
}

fn limit(memlock: Memlock) -> Option<u64> {
    match memlock {
        Memlock::Off => None,
        Memlock::Rlimit => memlock_limit(),
        Memlock::Bytes(u64::MAX) => None,
        Memlock::Bytes(bytes) => Some(bytes),
    }
}

/// How this process stands.
pub(crate) fn report(memlock: Memlock) -> LockedReport {
    let own = OF.load(Ordering::Acquire) == u64::from(generation());
    let count = |counter: &AtomicU64| if own { counter.load(Ordering::Relaxed) } else { 0 };
    LockedReport {
        bytes: count(&BYTES),
        limit: limit(memlock),
        enforced: memlock != Memlock::Off,
        exempt: may_lock(),
        refused: count(&REFUSED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_count_whole() {
        let page = page_size();
        let pages = |addr, len| whole_pages(addr, len) / page as u64;
        assert_eq!(
            (pages(page, 1), pages(page, page), pages(page + 1, page), pages(page - 1, 2)),
            (1, 1, 2, 2)
        );
        assert_eq!(pages(4 * page + 7, 0), 1);
        assert_eq!(whole_pages(usize::MAX - 10, 10), page as u64 - 1, "the last page");
    }
}
