//! The connection manager. The suite plays its peer message by message; the device's program listens, or connects.

mod active;
mod end;
mod form;
mod passive;
mod sidr;

use crate::{
    bench::Bench,
    case::{Case, Outcome},
    cm::{Link, Peer},
    dut::{Feature, Space},
    wire::cm::Message,
};
use std::time::Duration;

/// Much longer than a device takes to repeat a message, or keeps an ended connection in TIMEWAIT. Kernels repeat a REQ after up
/// to 6.2 s, and a local ACK timeout of 67 ms gives 1 s of TIMEWAIT.
const SEVERAL: Duration = Duration::from_secs(20);

/// The features that all cases of this theme need.
const NEEDS: &[Feature] = &[Feature::Cm];

/// A peer that connects queue pairs of the device's TCP port space.
fn peer(b: &mut Bench) -> Outcome<Peer> {
    Peer::new(&b.world, Space::Tcp)
}

/// The same, while a program at the device listens.
fn listened(b: &mut Bench) -> Outcome<Peer> {
    let peer = peer(b)?;
    peer.listen()?;
    Ok(peer)
}

/// The same, and a connection to that program.
fn connected(b: &mut Bench) -> Outcome<(Peer, Link)> {
    let mut peer = listened(b)?;
    let link = peer.passive()?;
    Ok((peer, link))
}

/// Sends a REQ that `change` has altered, and the program accepts it. Returns the peer, the REQ, the connection and the REP.
fn accepted(
    b: &mut Bench,
    change: impl FnOnce(Message) -> Message,
) -> Outcome<(Peer, Message, Link, Message)> {
    let mut peer = listened(b)?;
    let request = change(peer.req());
    let id = peer.asks(&request)?;
    let (link, reply) = peer.accepted(&request, id)?;
    Ok((peer, request, link, reply))
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
