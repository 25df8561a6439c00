//! The structures of `<infiniband/verbs.h>`, one file a topic. Names are the header's without `ibv_`; the header of
//! rdma-core is the source of every field. `layout.rs` has a C compiler check sizes and offsets.
//!
//! Objects that C programs hold have [`Pointer`] fields: both sides may store into them at any time.

pub(crate) mod attr;
pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod object;
pub(crate) mod rdma;
pub(crate) mod value;
pub(crate) mod work;

#[cfg(test)]
mod layout;

use core::sync::atomic::AtomicPtr;

/// A pointer in an object that C programs see.
pub(crate) type Pointer<T> = AtomicPtr<T>;

/// A function that is never there: only its place counts.
pub(crate) type Absent = Option<unsafe extern "C" fn()>;

/// union ibv_gid: 16 bytes, aligned as its 64-bit view is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C, align(8))]
pub(crate) struct Gid(pub(crate) [u8; 16]);
