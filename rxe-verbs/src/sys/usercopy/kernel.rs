//! Access to application memory by system calls, which return EFAULT where an instruction would fault.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{Atomic, Fault};
use crate::sys::{kept::Kept, unix::out_of_the_way};

/// Which system calls work here.
static WAY: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const PROCESS_VM: u8 = 1;
const MEMORY_FILE: u8 = 2;

fn way() -> u8 {
    match WAY.load(Ordering::Relaxed) {
        UNKNOWN => {
            let word = 0x5au8;
            let mut copy = 0u8;
            // SAFETY: both are ours.
            let works =
                unsafe { process_vm_read((&raw const word) as usize, core::slice::from_mut(&mut copy)) };
            let way = if works.is_ok() && copy == word { PROCESS_VM } else { MEMORY_FILE };
            WAY.store(way, Ordering::Relaxed);
            way
        }
        known => known,
    }
}

/// See [`super::read`].
pub(super) unsafe fn read(address: usize, out: &mut [u8]) -> Result<(), Fault> {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        if way() == PROCESS_VM {
            let result = process_vm_read(address, out);
            if way() == PROCESS_VM {
                return result;
            }
        }
        memory_file_read(address, out)
    }
}

/// See [`super::write`]; the last `tail` bytes (1 to `data.len()`) are stored last.
pub(super) unsafe fn write(address: usize, data: &[u8], tail: usize) -> Result<(), Fault> {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        if way() == PROCESS_VM {
            let result = process_vm_write(address, data, tail);
            if way() == PROCESS_VM {
                return result;
            }
        }
        memory_file_write(address, data, tail)
    }
}

fn vector(address: usize, len: usize) -> libc::iovec {
    libc::iovec { iov_base: address as *mut c_void, iov_len: len }
}

unsafe fn process_vm_read(address: usize, out: &mut [u8]) -> Result<(), Fault> {
    let local = vector(out.as_mut_ptr() as usize, out.len());
    let remote = vector(address, out.len());
    // SAFETY: one vector each; the kernel checks the remote one and writes only to `out`.
    let copied =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    process_vm_outcome(copied, out.len())
}

/// The result of a call: it copied all bytes, or it is a fault. If a sandbox forbids the call, perhaps only from now on, all
/// further copies go through the memory file.
fn process_vm_outcome(copied: isize, wanted: usize) -> Result<(), Fault> {
    if usize::try_from(copied) == Ok(wanted) {
        return Ok(());
    }
    if copied < 0
        && matches!(
            io::Error::last_os_error().raw_os_error(),
            Some(libc::EPERM | libc::ENOSYS | libc::EACCES)
        )
    {
        WAY.store(MEMORY_FILE, Ordering::Relaxed);
    }
    Err(Fault)
}

unsafe fn process_vm_write(address: usize, data: &[u8], tail: usize) -> Result<(), Fault> {
    let body = data.len() - tail;
    let write = |from: usize, remote: &[libc::iovec]| {
        let local = vector(data[from..].as_ptr() as usize, remote.iter().map(|v| v.iov_len).sum());
        // SAFETY: the kernel only reads `data`, and checks the remote vectors, which the caller may write.
        let copied = unsafe {
            libc::process_vm_writev(
                libc::getpid(),
                &raw const local,
                1,
                remote.as_ptr(),
                remote.len() as libc::c_ulong,
                0,
            )
        };
        process_vm_outcome(copied, local.iov_len)
    };
    let parts = [vector(address, body), vector(address.wrapping_add(body), tail)];
    if cfg!(target_arch = "x86_64") || body == 0 {
        // One call: the kernel copies vector by vector, and this architecture keeps stores in program order.
        return write(0, if body == 0 { &parts[1..] } else { &parts });
    }
    write(0, &parts[..1])?;
    // Orders what the kernel stored for us, like our own stores, before what it stores next.
    fence(Ordering::SeqCst);
    write(body, &parts[1..])
}

/// Bytes staged in the memory file at a time.
const STAGE: usize = 64 << 10;

/// A memory file through which a thread copies. The kernel moves data between the file and application memory, and reports faults.
struct Stage {
    file: Kept<OwnedFd>,
    /// The process that made the file. A forked child must not use its parent's file.
    process: libc::pid_t,
}

impl Stage {
    fn new(process: libc::pid_t) -> io::Result<Self> {
        // SAFETY: the name is a terminated string; a non-negative result is a descriptor nobody else owns.
        let file = unsafe {
            let fd = libc::memfd_create(c"rxe-usercopy".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Self { file: Kept::new(out_of_the_way(file)), process })
    }

    /// Moves `len` bytes from memory at `address` to the file's start.
    unsafe fn put(&self, address: usize, len: usize) -> Result<(), Fault> {
        // SAFETY: the kernel reads the range and reports a fault.
        let moved = unsafe { libc::pwrite(self.file.as_raw_fd(), address as *const c_void, len, 0) };
        if usize::try_from(moved) == Ok(len) { Ok(()) } else { Err(Fault) }
    }

    /// Moves `len` bytes from the file at `offset` to memory at `address`.
    unsafe fn get(&self, offset: usize, address: usize, len: usize) -> Result<(), Fault> {
        // SAFETY: the kernel writes the range, which the caller may, and reports a fault.
        let moved =
            unsafe { libc::pread(self.file.as_raw_fd(), address as *mut c_void, len, offset as libc::off_t) };
        if usize::try_from(moved) == Ok(len) { Ok(()) } else { Err(Fault) }
    }
}

thread_local! {
    static THREAD_STAGE: RefCell<Option<Stage>> = const { RefCell::new(None) };
}

fn with_stage<T>(act: impl FnOnce(&Stage) -> Result<T, Fault>) -> Result<T, Fault> {
    THREAD_STAGE
        .try_with(|stage| {
            // SAFETY: no arguments, cannot fail.
            let process = unsafe { libc::getpid() };
            let mut stage = stage.try_borrow_mut().map_err(|_| Fault)?;
            // The program may have closed all descriptors.
            if stage.as_ref().is_none_or(|stage| stage.process != process || !stage.file.is_intact()) {
                *stage = Some(Stage::new(process).map_err(|_| Fault)?);
            }
            stage.as_ref().map_or(Err(Fault), act)
        })
        .unwrap_or(Err(Fault))
}

pub(super) unsafe fn memory_file_read(address: usize, out: &mut [u8]) -> Result<(), Fault> {
    with_stage(|stage| {
        for (index, chunk) in out.chunks_mut(STAGE).enumerate() {
            // SAFETY: the caller's promise for the source; the destination is `out`.
            unsafe {
                stage.put(address.wrapping_add(index * STAGE), chunk.len())?;
                stage.get(0, chunk.as_mut_ptr() as usize, chunk.len())?;
            }
        }
        Ok(())
    })
}

pub(super) unsafe fn memory_file_write(address: usize, data: &[u8], tail: usize) -> Result<(), Fault> {
    let body = data.len() - tail;
    with_stage(|stage| {
        for (index, chunk) in data[..body].chunks(STAGE).enumerate() {
            // SAFETY: the source is `data`; the caller's promise for the destination.
            unsafe {
                stage.put(chunk.as_ptr() as usize, chunk.len())?;
                stage.get(0, address.wrapping_add(index * STAGE), chunk.len())?;
            }
        }
        fence(Ordering::SeqCst);
        // SAFETY: as above.
        unsafe {
            stage.put(data[body..].as_ptr() as usize, tail)?;
            stage.get(0, address.wrapping_add(body), tail)
        }
    })
}

/// See [`super::atomic`].
pub(super) unsafe fn atomic(address: usize, operation: Atomic) -> Result<u64, Fault> {
    writable(address)?;
    // SAFETY: aligned by the caller's check, and accessible a moment ago; the caller promises the rest.
    let word = unsafe { AtomicU64::from_ptr(address as *mut u64) };
    Ok(match operation {
        Atomic::CompareSwap { expected, new } => {
            match word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(old) | Err(old) => old,
            }
        }
        Atomic::FetchAdd(value) => word.fetch_add(value, Ordering::SeqCst),
        Atomic::Swap(value) => word.swap(value, Ordering::SeqCst),
    })
}

/// Checks whether the aligned word can be written, without changing it. A futex operation adds 0 to the word's first half
/// atomically, and returns EFAULT if it cannot. If the half has the value of the operation's comparison, it wakes a waiter, even
/// if told to wake none. So the comparison gets a value that the half does not have.
fn writable(address: usize) -> Result<(), Fault> {
    /// `FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 0)` of futex(2).
    const ADD_NOTHING: u32 = 1 << 28;
    let mut half = [0; 4];
    // SAFETY: four bytes of the word.
    unsafe { read(address, &mut half) }?;
    let another = u32::from(half == [0; 4]);
    let nobody_waits = 0u32;
    // SAFETY: the kernel checks both addresses; nobody waits for the first, which is our own.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            &raw const nobody_waits,
            libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG,
            0,
            0usize,
            address as *mut u32,
            ADD_NOTHING | another,
        )
    };
    if result >= 0 { Ok(()) } else { Err(Fault) }
}
