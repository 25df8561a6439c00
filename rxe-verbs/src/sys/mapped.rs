//! Checks whether memory is mapped before it is registered, as pinning would.

use super::process::page_size;
use core::ffi::c_void;
use std::sync::OnceLock;

/// Pages that one `mincore` call checks.
const PAGES: usize = 4096;

/// Whether all of a range is mapped, and its first and last page can be read (and written, if `write`). The pages between them are
/// not brought in: that would take as long as pinning them. `msync(2)` would say the same as `mincore(2)`, but tools that follow
/// a program's memory (valgrind) take its argument for memory that is read.
pub(crate) fn is_mapped(address: usize, len: usize, write: bool) -> bool {
    let page = page_size();
    let start = address / page * page;
    let Some(last) = address.checked_add(len.saturating_sub(1)).map(|last| last / page * page) else {
        return false;
    };
    let mapped = (start..=last).step_by(page * PAGES).all(|at| {
        let mut resident = [0_u8; PAGES];
        let len = (last - at + page).min(page * PAGES);
        // SAFETY: the kernel writes a byte a page, for which there is room, and changes nothing else.
        unsafe { libc::mincore(at as *mut c_void, len, resident.as_mut_ptr().cast()) == 0 }
    });
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    mapped && (!can_populate() || (populate(start, advice) && populate(last, advice)))
}

/// Brings a page in, as an access of that kind would. False if the access would fail.
fn populate(page: usize, advice: i32) -> bool {
    // SAFETY: changes no byte; where nothing can be brought in it says so.
    unsafe { libc::madvise(page as *mut c_void, page_size(), advice) == 0 }
}

/// Whether the kernel has MADV_POPULATE_READ and MADV_POPULATE_WRITE (Linux 5.14).
fn can_populate() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let here = 0u8;
        let page = page_size();
        populate((&raw const here).addr() / page * page, libc::MADV_POPULATE_READ)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::MmapOptions;

    #[test]
    fn mapped_read_only_and_gone() {
        let page = page_size();
        let pages = MmapOptions::new().len(3 * page).map_anon().unwrap();
        let start = pages.as_ptr().addr();
        assert!(is_mapped(start + 5, 2 * page, true));
        assert!(!is_mapped(start, usize::MAX / 2, false));
        assert!(!is_mapped(0, 1, false));
        assert!(!is_mapped(usize::MAX, 2, false));
        let _pages = pages.make_read_only().unwrap();
        assert!(is_mapped(start, 3 * page, false));
        assert_eq!(is_mapped(start, 3 * page, true), !can_populate());
    }
}
