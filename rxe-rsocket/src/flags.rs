//! Flags of calls that send and receive.

/// Flags, with the system's numbers (`MSG_*`). Others are ignored, as by rdma-core.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub i32);

impl Flags {
    /// No flags.
    pub const NONE: Self = Self(0);
    /// Do not wait.
    pub const DONTWAIT: Self = Self(libc::MSG_DONTWAIT);
    /// Leave the received data in the buffer.
    pub const PEEK: Self = Self(libc::MSG_PEEK);
    /// Wait until the buffer is full.
    pub const WAITALL: Self = Self(libc::MSG_WAITALL);
    /// Return the length of the datagram, even if it did not fit.
    pub const TRUNC: Self = Self(libc::MSG_TRUNC);

    /// Whether all of these flags are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}
