//! Memory of other devices, as dma-bufs. If the processor can map a dma-buf, it can be used to send and receive.

use super::memory::{make_mr, register};
use crate::{
    border::{Errno, INVALID, Result, UNSUPPORTED, given, pointer},
    convert::access,
    object::{Mr, Pd, Users},
};
use core::{ffi::c_int, ptr};
use memmap2::{MmapOptions, MmapRaw};
use rxe_verbs::Access;
use std::{
    fs,
    os::fd::{AsRawFd, BorrowedFd},
    sync::Arc,
};

/// ibv_reg_dmabuf_mr(3): maps a part of a dma-buf, and registers the mapping. EOPNOTSUPP if the driver refuses the mapping because the
/// processor cannot access its memory.
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_dmabuf_mr(
    pd: Option<&Pd>,
    offset: u64,
    len: usize,
    iova: u64,
    fd: c_int,
    rights: c_int,
) -> *mut Mr {
    pointer(|| import(given(pd)?, (fd, offset), len, iova, access(rights.cast_unsigned())?, None))
}

/// The region of `len` bytes at an offset of a dma-buf.
pub(super) fn import(
    pd: &Pd,
    (fd, offset): (c_int, u64),
    len: usize,
    iova: u64,
    rights: Access,
    hints: Option<Users>,
) -> Result<*mut Mr> {
    if fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: the program's number is used in this call only. If it is no open descriptor, the system calls fail.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    check_kind(fd)?;
    let mapped = map(fd, offset, len, rights)?;
    let mr = register(&pd.pd, mapped.as_mut_ptr().expose_provenance() as u64, len as u64, iova, rights)?;
    let kept: Arc<dyn core::fmt::Debug + Send + Sync> = Arc::new((mapped, hints));
    // The program does not know the address of the mapping. It sees the offset in that place, as with libibverbs.
    Ok(make_mr(pd, mr, ptr::without_provenance_mut(offset as usize), len, Some(kept)))
}

/// EBADF if it is no open descriptor, EINVAL if it is not that of a dma-buf, as from kernels (`dma_buf_get`).
fn check_kind(fd: BorrowedFd<'_>) -> Result<()> {
    let link = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(|_| Errno(libc::EBADF))?;
    if link.to_string_lossy().starts_with("/dmabuf:") { Ok(()) } else { Err(INVALID) }
}

/// Memory of `len` bytes, which may begin within a page.
fn map(fd: BorrowedFd<'_>, offset: u64, len: usize, rights: Access) -> Result<MmapRaw> {
    if len == 0 {
        return Err(INVALID);
    }
    let mut options = MmapOptions::new();
    options.offset(offset).len(len);
    let writes = rights.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    let memory = if writes { options.map_raw(&fd) } else { options.map_raw_read_only(&fd) };
    memory.map_err(|error| match error.raw_os_error() {
        // A range beyond its end; a file opened for reading only.
        Some(errno @ (libc::EINVAL | libc::EACCES | libc::ENOMEM)) => Errno(errno),
        _ => UNSUPPORTED,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, io::Write, os::fd::AsFd};

    /// Few machines have a driver that exports dma-bufs. For this part any file that can be mapped will do.
    #[test]
    fn a_part_of_a_file_is_mapped() {
        let fd = nix::sys::memfd::memfd_create("rxe", nix::sys::memfd::MFdFlags::empty()).unwrap();
        let mut file = File::from(fd);
        file.write_all(&(0..=255).cycle().take(10_000).collect::<Vec<u8>>()).unwrap();
        let mapped = map(file.as_fd(), 5000, 100, Access::LOCAL_WRITE).unwrap();
        assert_eq!(mapped.len(), 100);
        // SAFETY: inside the mapping.
        assert_eq!(unsafe { *mapped.as_ptr() }, (5000 % 256) as u8);
        assert!(
            matches!(map(file.as_fd(), 0, 0, Access::LOCAL_WRITE), Err(error) if error.0 == libc::EINVAL)
        );
        assert!(matches!(check_kind(file.as_fd()), Err(error) if error.0 == libc::EINVAL));
    }
}
