//! Memory that a region owns: anonymous pages to which nobody else has a pointer.

use memmap2::{MmapOptions, MmapRaw};
use std::io;

use super::usercopy::Region;

/// Whole pages, zeroed at first.
#[derive(Debug)]
pub(crate) struct Owned {
    pages: MmapRaw,
    region: Region,
}

impl Owned {
    /// At least `len` bytes, aligned to a page.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let pages = MmapRaw::from(MmapOptions::new().len(len.max(1)).map_anon()?);
        // SAFETY: the pages are private to this value, which makes no reference to them and gives out copies of `region`
        // to readers and writers of its bytes only. After it is gone they may be mapped anew by others, so whoever keeps
        // a copy keeps this value too (`Mr` removes its table entry before it drops its memory).
        let region = unsafe { Region::new(pages.as_mut_ptr() as usize, len) }
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(Self { pages, region })
    }

    /// Address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        self.pages.as_mut_ptr() as u64
    }

    /// The bytes asked for.
    pub(crate) const fn region(&self) -> Region {
        self.region
    }
}
