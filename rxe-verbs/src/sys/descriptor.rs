//! Reading and writing descriptors directly into and from registered memory (`read(2)`, `write(2)`). The kernel copies, so memory
//! that is gone gives EFAULT.

use super::usercopy::{Fault, Region};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

fn fault(_: Fault) -> io::Error {
    io::Error::from_raw_os_error(libc::EFAULT)
}

fn told(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Reads at most `len` bytes into a part of `region`.
pub(crate) fn read(source: BorrowedFd<'_>, region: &Region, offset: usize, len: usize) -> io::Result<usize> {
    let (address, len) = region.part(offset, len).map_err(fault)?;
    // SAFETY: the range is inside the region, which no Rust reference covers; the kernel checks that it is there.
    told(unsafe { libc::read(source.as_raw_fd(), address as *mut libc::c_void, len) })
}

/// Writes a part of `region`.
pub(crate) fn write(sink: BorrowedFd<'_>, region: &Region, offset: usize, len: usize) -> io::Result<usize> {
    let (address, len) = region.part(offset, len).map_err(fault)?;
    // SAFETY: as in `read`; the kernel only reads.
    told(unsafe { libc::write(sink.as_raw_fd(), address as *const libc::c_void, len) })
}
