//! The cases, a file per theme.

mod access;
mod ack;
mod atomic;
mod bth;
mod cm;
mod icrc;
mod length;
mod multicast;
mod nak;
mod psn;
mod queue;
mod read;
mod retry;
mod rnr;
mod sequence;
mod unreliable;
mod window;

use crate::case::Case;

/// All cases, in the order of the specification.
#[must_use]
pub fn all() -> Vec<Case> {
    let mut all = Vec::new();
    for add in [
        icrc::add,
        bth::add,
        length::add,
        sequence::add,
        psn::add,
        ack::add,
        access::add,
        nak::add,
        rnr::add,
        retry::add,
        read::add,
        atomic::add,
        window::add,
        queue::add,
        unreliable::add,
        multicast::add,
        cm::add,
    ] {
        add(&mut all);
    }
    all
}
