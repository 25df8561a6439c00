//! Time as the protocol sees it: a point on the caller's monotonic clock. Nothing in this crate reads a clock.

use core::{
    fmt,
    num::NonZeroU64,
    ops::{Add, AddAssign},
    time::Duration,
};

/// A point in time: nanoseconds since an origin of the caller's choosing, monotonic.
///
/// It is stored as one more than that, so that an `Option` of it has the same size: queue pairs have many of these.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(NonZeroU64);

impl Instant {
    /// The origin.
    pub const ZERO: Self = Self(NonZeroU64::MIN);

    /// The point `nanos` nanoseconds after the origin; the last one is 2^64 - 2.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(nanos))
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.0.get() - 1
    }

    /// How long after `earlier` this is. Zero if it is before it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Default for Instant {
    fn default() -> Self {
        Self::ZERO
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Instant").field(&self.nanos()).finish()
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}
