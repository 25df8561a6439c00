//! If it is preloaded, this library turns a program's TCP and UDP sockets into rsockets (rsocket(7)) of the drop-in. For this
//! it replaces the functions of libc that create and use sockets.
//!
//! `table` stores which descriptors are rsockets. These are duplicates of the rsocket's own descriptor, so that a program may
//! duplicate and close them. `choice` decides which sockets become rsockets, `calls`, `messages` and `descriptors` have the replaced
//! functions, `fork` handles programs that fork for each connection, `process` children that share our memory, `plain`
//! connections to peers without rsockets, and `wait`, `select` and `epoll` wait for several descriptors, under signal masks by
//! `mask`. All other calls go to libc (`real`).
//!
//! It must work inside an allocator and in signal handlers, as libc does. So it does not allocate or lock.

mod calls;
mod choice;
mod descriptors;
mod epoll;
mod fork;
mod mask;
mod messages;
mod plain;
mod process;
#[path = "../../rxe-sysfs/src/real.rs"]
mod real;
mod rs;
mod select;
mod table;
mod time;
mod wait;
