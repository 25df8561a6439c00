//! Preloaded, this library has a program's TCP and UDP sockets be rsockets (rsocket(7), the drop-in's), by standing before
//! the functions of libc that make and use sockets.
//!
//! `table` knows which descriptors are rsockets: those are duplicates of an rsocket's own descriptor, so that a program may
//! duplicate and close them as it likes. `choice` says which sockets are to be rsockets, `calls` what each function does with
//! them, `fork` how a connection gets past fork(2), `wait` waits for several. All else goes to libc (`real`).
//!
//! It must work below an allocator and in signal handlers as libc does: it allocates nothing and locks nothing.

mod calls;
mod choice;
mod fork;
#[path = "../../rxe-sysfs/src/real.rs"]
mod real;
mod rs;
mod table;
mod wait;
