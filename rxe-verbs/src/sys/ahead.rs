//! Prefetching: brings memory that will soon be needed into the processor's cache.

/// Bytes of a cache line on usual processors.
const LINE: usize = 64;

/// Prefetches `len` bytes at `start`, without waiting for them. This is only a hint, so any address is allowed.
#[inline]
pub(crate) fn fetch(start: *const u8, len: usize) {
    let skew = start.addr() % LINE;
    for offset in (0..len + skew).step_by(LINE) {
        fetch_line(start.wrapping_sub(skew).wrapping_add(offset));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn fetch_line(line: *const u8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: PREFETCHT0 is part of SSE, which every x86-64 has, and never faults, whatever the address (Intel SDM, vol. 2).
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn fetch_line(_: *const u8) {}
