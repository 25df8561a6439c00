//! Memory windows of the model: type 2 windows on a flow's target, bound by the peer's own queue pair, used by the flow,
//! invalidated by either.

use crate::{
    num::Key,
    testing::rng::Rng,
    work::{Access, BindWindow},
};

/// Where a window is in its life. Steps of the owner and of the user are both waited for, as two programs that talk would.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Not bound; `key` is its present key.
    Free,
    /// Its owner has posted the bind.
    Binding,
    /// Usable.
    Bound {
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
        /// Operations through it that are not completed.
        users: u32,
    },
    /// Somebody has posted its end.
    Ending,
}

/// A window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub key: Key,
    pub phase: Phase,
}

impl Window {
    /// A bind to a random part of the `len` bytes at `addr`, registered under `region`.
    pub(super) fn bind(&self, rng: &mut Rng, region: Key, addr: u64, len: u64) -> BindWindow {
        let start = rng.range(0..len - 64) & !7;
        let size = rng.range(64..len - start + 1);
        BindWindow {
            window: self.key,
            new_rkey: self.key.with_tag(rng.next_u64() as u8),
            region,
            addr: addr + start,
            len: size,
            access: Access::REMOTE_WRITE
                | Access::REMOTE_READ
                | Access::REMOTE_ATOMIC
                | Access::FLUSH_GLOBAL
                | Access::FLUSH_PERSISTENT,
        }
    }
}
