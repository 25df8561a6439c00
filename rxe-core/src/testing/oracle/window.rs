//! Memory windows of the model: type 2 windows on the target of a flow. The peer's queue pair binds them, the flow uses them, and either
//! invalidates them.

use crate::{
    num::Key,
    testing::rng::Rng,
    work::{Access, BindWindow},
};

/// The state of a window. Each side waits for the steps of the other one, as two programs do that exchange messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Not bound. Its present key is [`Window::key`].
    Free,
    /// Its owner has posted a request that binds it.
    Binding,
    /// Bound: the flow may use it.
    Bound {
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
        /// Number of operations that use it and have not completed.
        users: u32,
    },
    /// A request that invalidates it has been posted.
    Ending,
}

/// A window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub key: Key,
    pub phase: Phase,
}

impl Window {
    /// Binds it to a random part of `len` bytes at `addr`, which have the key `region`.
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
