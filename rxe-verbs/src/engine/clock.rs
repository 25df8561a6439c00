//! The clock that the protocol core is told the time of.

use rxe_core::time::Instant;
use std::{sync::OnceLock, time};

static ORIGIN: OnceLock<time::Instant> = OnceLock::new();

/// Nanoseconds of the monotonic clock since this was first asked.
pub(crate) fn now() -> Instant {
    let origin = *ORIGIN.get_or_init(time::Instant::now);
    Instant::from_nanos(u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
}
