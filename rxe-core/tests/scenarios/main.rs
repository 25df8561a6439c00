//! One behaviour a file, on two endpoints in virtual time. A failure prints every packet and leaves a capture.

mod access;
mod acks;
mod atomics;
mod bench;
mod congestion;
mod corruption;
mod counters;
mod credits;
mod datagrams;
mod fence;
mod flush;
mod messages;
mod modify;
mod multicast;
mod read_limits;
mod read_split;
mod reset;
mod retry;
mod rnr;
mod shared_receive;
mod sqd;
mod strangers;
mod unreliable;
mod window_shared;
mod windows;
mod xrc;
