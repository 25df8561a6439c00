//! The connection manager. The suite plays its peer message by message; the device's program listens, or connects.

mod active;
mod end;
mod form;
mod passive;
mod sidr;

use crate::{
    bench::Bench,
    case::{Case, Outcome},
    cm::Peer,
    dut::{Feature, Space},
};

/// What all of them need.
const NEEDS: &[Feature] = &[Feature::Cm];

/// A peer for connections.
fn peer(b: &mut Bench) -> Outcome<Peer> {
    Peer::new(&b.world, Space::Tcp)
}

/// A peer for connections, and a program at the device that listens.
fn listened(b: &mut Bench) -> Outcome<Peer> {
    let peer = peer(b)?;
    peer.listen()?;
    Ok(peer)
}

pub(super) fn add(all: &mut Vec<Case>) {
    let mut found = Vec::new();
    form::add(&mut found);
    passive::add(&mut found);
    active::add(&mut found);
    end::add(&mut found);
    sidr::add(&mut found);
    all.extend(found.into_iter().map(|case| case.needs(NEEDS)));
}
