//! Accounts registered memory against the limit for locked memory (RLIMIT_MEMLOCK), as kernels do for regions that they pin.
//!
//! The count is for the whole process: the pages that each region touches, and a page once for each region that it is in
//! (Linux, `ib_umem_get`). On-demand memory is not locked and does not count.

use crate::{
    error::RegisterError,
    host::{LockedReport, Memlock},
    sys::{
        fork::{generation, is_own},
        per_process::PerProcess,
        process::{may_lock, memlock_limit, page_size},
    },
};

#[derive(Debug, Default)]
struct Counts {
    /// Bytes that are registered.
    bytes: u64,
    /// Number of regions that were refused.
    refused: u64,
}

/// The counts of this process. A forked child starts from 0: it has registered nothing.
static COUNTS: PerProcess<Counts> = PerProcess::new(Counts::default);

/// The bytes of one region in the count. Dropping it subtracts them.
#[derive(Debug)]
pub(crate) struct Share {
    bytes: u64,
    generation: u32,
}

impl Share {
    /// Adds a region's pages to the count.
    ///
    /// # Errors
    /// [`RegisterError::Locked`] if the count is then above a limit that is enforced.
    pub(crate) fn take(memlock: Memlock, addr: usize, len: usize) -> Result<Self, RegisterError> {
        let bytes = whole_pages(addr, len);
        let mut counts = COUNTS.lock();
        let held = counts.bytes;
        if let Some(limit) = limit(memlock)
            && held.saturating_add(bytes) > limit
            && !may_lock()
        {
            counts.refused += 1;
            return Err(RegisterError::Locked { len, held, limit });
        }
        counts.bytes = held.saturating_add(bytes);
        Ok(Self { bytes, generation: generation() })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if is_own(self.generation) {
            COUNTS.lock().bytes -= self.bytes;
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

/// The count of this process, for the host service's report.
pub(crate) fn report(memlock: Memlock) -> LockedReport {
    let counts = COUNTS.lock();
    LockedReport {
        bytes: counts.bytes,
        limit: limit(memlock),
        enforced: memlock != Memlock::Off,
        exempt: may_lock(),
        refused: counts.refused,
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
