//! Programs also look for RDMA devices below `/sys/class/infiniband`. If it is preloaded, this library redirects such paths to
//! a folder that `rxe run` has filled (`RXE_SYSFS`). For this it replaces the functions of libc that take paths.
//!
//! It must work in any program at any time: before `main`, in signal handlers, inside an allocator. So it does not allocate or
//! lock, and only compares the start of a path. The content of the few files that change while programs run comes from the host
//! service. Programs that make system calls themselves (static ones) do not use this library.

mod ask;
mod hooks;
mod path;
mod real;
