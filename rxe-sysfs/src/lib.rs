//! Programs look for RDMA devices below `/sys/class/infiniband` too. Preloaded, this library takes such paths to a
//! folder that `rxe run` has filled (`RXE_SYSFS`), by standing before the functions of libc that take paths.
//!
//! It must work in any program at any time: before `main`, in signal handlers, below an allocator. So it allocates
//! nothing, locks nothing, and does no more than compare the start of a path; for the few files that change while programs run it
//! asks the host service for what is in them. Programs that make system calls themselves
//! (static ones) do not come by here.

mod ask;
mod hooks;
mod path;
mod real;
