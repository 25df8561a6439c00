//! Atomics by system calls on words for which the application's threads wait by futex(2). They must not wake the waiters.

use super::*;
use core::sync::atomic::{AtomicBool, AtomicU32};

fn futex(word: &AtomicU32, operation: c_int, value: u32, timeout: Option<libc::timespec>) -> c_int {
    let timeout = timeout.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: a word that lives, and a time or null.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, timeout) as c_int }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[test]
fn nobody_is_woken() {
    for value in [0u64, 1, u64::MAX] {
        let pages = Pages::new(1);
        // SAFETY: reached as an atomic only, here and by what is tested.
        let word = unsafe { AtomicU32::from_ptr(pages.start as *mut u32) };
        word.store(value as u32, Ordering::SeqCst);
        let (waits, ended) = (&AtomicBool::new(false), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(move || {
                waits.store(true, Ordering::SeqCst);
                let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
                let timeout = libc::timespec { tv_sec: 0, tv_nsec: 300_000_000 };
                let outcome = futex(word, operation, value as u32, Some(timeout));
                let errno = errno();
                ended.store(true, Ordering::SeqCst);
                (outcome, errno)
            });
            spin_until(|| waits.load(Ordering::SeqCst));
            // At least one of these operations finds the waiter asleep.
            while !ended.load(Ordering::SeqCst) {
                // SAFETY: inside the mapping.
                unsafe { kernel::atomic(pages.start, Atomic::FetchAdd(0)) }.unwrap();
                std::thread::yield_now();
            }
            assert_eq!(waiter.join().unwrap(), (-1, libc::ETIMEDOUT), "{value}");
        });
    }
}

/// A lock with priority inheritance. For such waiters futex(2) refuses a wake-up by the operation that probes the word (EINVAL).
#[test]
fn a_lock_with_priority_inheritance_is_no_fault() {
    const LOCK: c_int = libc::FUTEX_LOCK_PI | libc::FUTEX_PRIVATE_FLAG;
    const UNLOCK: c_int = libc::FUTEX_UNLOCK_PI | libc::FUTEX_PRIVATE_FLAG;
    let pages = Pages::new(1);
    // SAFETY: reached as an atomic only, here and by what is tested.
    let word = unsafe { AtomicU32::from_ptr(pages.start as *mut u32) };
    assert_eq!(futex(word, LOCK, 0, None), 0, "errno {}", errno());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let locked = futex(word, LOCK, 0, None) == 0;
            locked && futex(word, UNLOCK, 0, None) == 0
        });
        spin_until(|| word.load(Ordering::SeqCst) & libc::FUTEX_WAITERS != 0);
        // `FUTEX_WAITERS` is set a moment before the kernel has the waiter in its list.
        let tried = (0..1000).all(|_| {
            std::thread::yield_now();
            // SAFETY: inside the mapping.
            unsafe { kernel::atomic(pages.start, Atomic::FetchAdd(0)) }.is_ok()
        });
        assert_eq!(futex(word, UNLOCK, 0, None), 0, "errno {}", errno());
        assert!(waiter.join().unwrap());
        assert!(tried, "a word that can be written");
    });
}
