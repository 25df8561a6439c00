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

/// Much longer than a device needs until it repeats a message, or until an ended connection has waited: kernels take up to
/// 6.2 s for a REQ, and 1 s for the wait that a local ACK timeout of 67 ms makes.
const SEVERAL: Duration = Duration::from_secs(20);

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

/// The same, and a connection to it that stands.
fn connected(b: &mut Bench) -> Outcome<(Peer, Link)> {
    let mut peer = listened(b)?;
    let link = peer.passive()?;
    Ok((peer, link))
}

/// A REQ of ours that is changed so and that the program has accepted: the REQ, the connection, and its REP.
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
