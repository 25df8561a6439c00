//! What C programs find in libibumad.so.3: infiniband-diags, and whoever else manages by datagrams. There is no device node behind
//! it; datagrams go by a connection to the host service, which sends them from queue pair 1 and answers for the host
//! (`rxe_verbs::host`).
//!
//! `c` has the header's structures, `border` the pointers that cross, `open` the ports that are open, `devices` what there is to
//! be managed, `datagrams` sending and receiving, `words` what is printed. `libibumad.map` lists what is exported, under which
//! versions.

#[cfg(not(all(target_pointer_width = "64", target_endian = "little")))]
compile_error!("the drop-in is for 64-bit little-endian hosts");

mod border;
mod c;
mod datagrams;
mod devices;
mod open;
mod words;
