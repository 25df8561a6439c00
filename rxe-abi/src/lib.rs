//! The drop-in: what C programs find in libibverbs.so.1 and librdmacm.so.1, over rxe-verbs, rxe-cm and rxe-rsocket.
//!
//! It only converts and decides nothing. `c/` has the structures of the headers, `border.rs` the pointers that cross, `object.rs`
//! our objects behind those structures, `convert.rs` the numbers, `verbs/`, `rdma/` and `rsocket/` the functions. `scripts/build-dropin` makes
//! the shared library from it; `symbols` lists what that exports, under which versions.

#[cfg(not(all(target_pointer_width = "64", target_endian = "little")))]
compile_error!("the drop-in is for 64-bit little-endian hosts");

mod border;
mod c;
mod convert;
mod object;
mod poll;
mod rdma;
mod refuse;
mod rsocket;
mod signals;
mod turns;
mod verbs;
mod wr;
