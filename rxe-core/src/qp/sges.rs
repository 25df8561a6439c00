//! Scatter/gather lists: copies a message's bytes between a packet and the elements of a work request.

use crate::{
    memory::{AccessError, Asker, Memory},
    work::{Access, Sge},
};
use smallvec::SmallVec;

/// A request's elements. Up to four, enough for most queue pairs, are stored in the queue itself. Only longer lists are
/// allocated, one for each request.
pub(crate) type Elements = SmallVec<[Sge; 4]>;

/// The sum of the elements' bytes.
pub(crate) fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}

/// Calls `each` with (element, address, range of the packet) for the `len` bytes that start `offset` bytes into the list, in
/// order. Stops at the first error. Bytes beyond the list's end are left out.
fn walk(
    sges: &[Sge],
    mut offset: u64,
    len: usize,
    mut each: impl FnMut(&Sge, u64, core::ops::Range<usize>) -> Result<(), AccessError>,
) -> Result<(), AccessError> {
    let mut done = 0;
    for sge in sges {
        if done == len {
            break;
        }
        let size = u64::from(sge.len);
        if offset >= size {
            offset -= size;
            continue;
        }
        let part = usize::try_from(size - offset).unwrap_or(usize::MAX).min(len - done);
        each(sge, sge.addr.wrapping_add(offset), done..done + part)?;
        done += part;
        offset = 0;
    }
    Ok(())
}

/// Reads the bytes at `offset` of a list of elements into `out`. The part of `out` beyond the list's end is left as it is.
///
/// # Errors
/// Why a part of it could not be read.
pub fn gather(
    sges: &[Sge],
    memory: &dyn Memory,
    asker: Asker,
    offset: u64,
    out: &mut [u8],
) -> Result<(), AccessError> {
    let len = out.len();
    walk(sges, offset, len, |sge, addr, range| {
        memory.read(asker, sge.lkey, addr, Access::empty(), &mut out[range])
    })
}

/// Writes `data` to the bytes at `offset` of a list of elements, in order. Data beyond the list's end is left out.
///
/// # Errors
/// Why a part of it could not be written. The parts before it were written.
pub fn scatter(
    sges: &[Sge],
    memory: &dyn Memory,
    asker: Asker,
    offset: u64,
    data: &[u8],
) -> Result<(), AccessError> {
    walk(sges, offset, data.len(), |sge, addr, range| {
        memory.write(asker, sge.lkey, addr, Access::LOCAL_WRITE, &data[range])
    })
}
