//! Flags of calls that send and receive.

/// Flags, with the system's numbers (`MSG_*`); others are passed over, as rdma-core does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub i32);

impl Flags {
    /// None.
    pub const NONE: Self = Self(0);
    /// Do not wait.
    pub const DONTWAIT: Self = Self(libc::MSG_DONTWAIT);
    /// Leave what is received where it is.
    pub const PEEK: Self = Self(libc::MSG_PEEK);
    /// Wait for as much as there is room for.
    pub const WAITALL: Self = Self(libc::MSG_WAITALL);

    /// Whether these are among them.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}
