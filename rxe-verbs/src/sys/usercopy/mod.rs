//! Fault-safe access to application memory. This is the only place where this crate touches it.
//!
//! An application may unmap, protect or truncate memory that it has registered. A copy to or from such memory must end with an
//! error, never with a signal. There are two ways, and each access chooses one:
//!
//! * **Fix-up** (x86-64): a small copy routine whose faults a SIGSEGV/SIGBUS handler turns into an error return. It is used
//!   while the handlers are ours and the thread has the signals unblocked (a blocked SIGSEGV would kill the process). Each
//!   thread checks both again after about a millisecond. A program that replaces the handlers *and* unmaps registered memory
//!   within that time does get a signal.
//! * **Kernel**: `process_vm_readv` and `process_vm_writev` on this process itself, or copies through a memory file where those
//!   calls are forbidden. This is several times slower. Copies then never cause a signal; for atomics see [`atomic`].
//!
//! `RXE_USERCOPY=kernel` forces the second.
//!
//! **Placement contract** of [`write()`]: the last byte (the last eight if the range ends on a multiple of eight and is
//! that long) is stored after all others have become visible. A reader that polls the last byte and then reads the rest
//! in order (acquire) never sees an old byte. On x86-64 stores become visible in the order of the program (Intel SDM vol. 3,
//! "Memory Ordering"), and the last one is the last of the routine.

mod kernel;
mod region;
#[cfg(test)]
mod tests;

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod fixup;

/// On other processors there is no copy routine whose faults could be caught.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod fixup {
    use super::Fault;

    pub(super) const fn prepare() {}

    pub(super) fn usable() -> bool {
        false
    }

    pub(super) unsafe fn read(_: usize, _: &mut [u8]) -> Result<(), Fault> {
        Err(Fault)
    }

    pub(super) unsafe fn write(_: usize, _: &[u8], _: usize) -> Result<(), Fault> {
        Err(Fault)
    }

    pub(super) unsafe fn atomic(_: usize, _: super::Atomic) -> Result<u64, Fault> {
        Err(Fault)
    }
}

#[allow(unused_imports, reason = "the engine is its user")]
pub(crate) use region::Region;

/// The memory is not there, or not accessible in the way asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault;

/// One atomic operation on an aligned 64-bit word in the host's byte order; its result is the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    /// Stores `new` if the word is `expected`.
    CompareSwap { expected: u64, new: u64 },
    /// Adds, modulo 2^64.
    FetchAdd(u64),
    /// Stores.
    Swap(u64),
}

/// Number of bytes at the end of a range that are stored last, in one store.
const fn tail(address: usize, len: usize) -> usize {
    if len >= 8 && address.wrapping_add(len).is_multiple_of(8) { 8 } else { 1 }
}

/// Copies from application memory at `address` to `out`. After a fault `out` holds anything.
///
/// # Safety
/// No Rust reference that promises otherwise covers the range: others may change it at any time. It does not have to be
/// mapped.
pub(crate) unsafe fn read(address: usize, out: &mut [u8]) -> Result<(), Fault> {
    if out.is_empty() {
        return Ok(());
    }
    // SAFETY: the caller's promise is passed on.
    unsafe { if fixup::usable() { fixup::read(address, out) } else { kernel::read(address, out) } }
}

/// Copies `data` to application memory at `address`, keeping the placement contract. After a fault some bytes from the
/// start may have been stored, but not the last.
///
/// # Safety
/// No Rust reference covers the range. It does not have to be mapped.
pub(crate) unsafe fn write(address: usize, data: &[u8]) -> Result<(), Fault> {
    if data.is_empty() {
        return Ok(());
    }
    let tail = tail(address, data.len());
    // SAFETY: the caller's promise is passed on.
    unsafe {
        if fixup::usable() { fixup::write(address, data, tail) } else { kernel::write(address, data, tail) }
    }
}

/// Does one atomic operation, sequentially consistent. A misaligned address is a fault.
///
/// Without the fix-up a probe first checks that the word can be written, without changing it. Then the operation follows. If
/// another thread unmaps the memory between the two, the process gets a signal.
///
/// # Safety
/// No Rust reference other than to an `AtomicU64` covers the word. It does not have to be mapped.
pub(crate) unsafe fn atomic(address: usize, operation: Atomic) -> Result<u64, Fault> {
    if !address.is_multiple_of(8) {
        return Err(Fault);
    }
    // SAFETY: the caller's promise is passed on.
    unsafe {
        if fixup::usable() { fixup::atomic(address, operation) } else { kernel::atomic(address, operation) }
    }
}
