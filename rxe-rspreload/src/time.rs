//! Times to wait.

use core::{ffi::c_int, mem::MaybeUninit};
use libc::timespec;

/// Milliseconds, rounded up; -1 for ever.
pub(crate) fn milliseconds(time: Option<(i64, i64)>) -> c_int {
    let Some((seconds, nanos)) = time else { return -1 };
    let all = seconds.saturating_mul(1000).saturating_add(nanos.saturating_add(999_999) / 1_000_000);
    c_int::try_from(all.max(0)).unwrap_or(c_int::MAX)
}

/// Microseconds by a clock that only goes forward.
pub(crate) fn now() -> i64 {
    let mut now = MaybeUninit::<timespec>::zeroed();
    // SAFETY: a place of ours, for which zeros are valid.
    let now = unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, now.as_mut_ptr());
        now.assume_init()
    };
    now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1000)
}

/// When a wait ends that may begin several times.
#[derive(Clone, Copy)]
pub(crate) struct Until(Option<i64>);

impl Until {
    /// So many milliseconds from now; below zero never.
    pub(crate) fn after(timeout: c_int) -> Self {
        Self((timeout >= 0).then(|| now().saturating_add(i64::from(timeout) * 1000)))
    }

    /// The milliseconds that are left, as for [`Self::after`].
    pub(crate) fn left(self) -> c_int {
        let left =
            |end: i64| c_int::try_from((end - now()).max(0).saturating_add(999) / 1000).unwrap_or(c_int::MAX);
        self.0.map_or(-1, left)
    }
}
