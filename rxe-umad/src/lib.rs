//! libibumad.so.3 for C programs that use management datagrams, such as infiniband-diags. There is no device node behind it.
//! Datagrams are passed to the host service, which sends them from queue pair 1 and answers for the host (`rxe_verbs::host`).
//!
//! `c` has the structures of the header, `border` the conversion of pointers, `open` the open ports, `devices` the managed
//! devices, `datagrams` sending and receiving, and `words` the printed texts. `libibumad.map` lists the exported functions with
//! their versions.

#[cfg(not(all(target_pointer_width = "64", target_endian = "little")))]
compile_error!("the drop-in is for 64-bit little-endian hosts");

mod border;
mod c;
mod datagrams;
mod devices;
mod open;
mod words;
