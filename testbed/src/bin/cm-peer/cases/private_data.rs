//! Private data of every length that a message has room for: the other program gets the bytes, then zeroes to the field's end.
//! The fields are the same for both IP versions: over IPv6 each eighth length is tried, in the suite's time; with `set=brief`
//! also over IPv4.

use super::{Bench, Case};
use crate::peer::same;
use rxe_cm::{CmId, proto::PortSpace};
use testbed::{agent::Failure, pattern::pattern};

pub(super) const ALL: &[Case] = &[
    Case {
        name: "private data of REQ (0 to 56 bytes) and REP (0 to 196)",
        ours: Some(connect),
        kernel: Some(connect_here),
    },
    Case { name: "private data of REJ (0 to 148 bytes)", ours: Some(reject), kernel: Some(reject_here) },
    Case {
        name: "private data of SIDR_REQ (0 to 180 bytes) and SIDR_REP (0 to 136)",
        ours: Some(datagram),
        kernel: Some(datagram_here),
    },
];
const REQ: usize = 56;
const REP: usize = 196;
const REJ: usize = 148;
const SIDR_REQ: usize = 180;
const SIDR_REP: usize = 136;

/// The lengths to try.
fn lengths(bench: &Bench, most: usize) -> impl Iterator<Item = usize> {
    let options = &bench.peer.options;
    let brief = options.ours.is_ipv6() || options.get("set", String::new()).is_ok_and(|set| set == "brief");
    (0..=most).step_by(if brief { 8 } else { 1 }).chain([most])
}

/// Bytes of a length within the field, and what the other side's program has to see.
fn field(round: usize, size: usize) -> (Vec<u8>, Vec<u8>) {
    let data = pattern(round as u64 + 1, round % (size + 1));
    let mut whole = data.clone();
    whole.resize(size, 0);
    (data, whole)
}

/// Ends a connection from the kernel's side, so that ours has to answer it.
fn end(bench: &Bench, ours: &CmId, theirs: &super::Theirs<'_>) -> Result<(), Failure> {
    theirs.call("cm_disconnect", &[])?;
    bench.we_get("DISCONNECTED")?;
    ours.disconnect()?;
    bench.they_get("DISCONNECTED").map(drop)
}

fn connect(bench: &Bench) -> Result<(), Failure> {
    let (_listener, address) = bench.their_listener(PortSpace::Tcp)?;
    for round in lengths(bench, REP) {
        let ((asked, seen), (answered, answer)) = (field(round, REQ), field(round, REP));
        let ours = bench.peer.resolved(PortSpace::Tcp, address)?;
        ours.connect(&bench.params(&asked))?;
        let (theirs, told) = bench.they_are_asked()?;
        same("the REQ's", &told.data, &seen)?;
        theirs.call("cm_accept", &answered)?;
        same("the REP's", &bench.we_get("CONNECT_RESPONSE")?.private_data, &answer)?;
        ours.establish()?;
        bench.they_get("ESTABLISHED")?;
        end(bench, &ours, &theirs)?;
    }
    Ok(())
}

fn connect_here(bench: &Bench) -> Result<(), Failure> {
    let (_listener, address) = bench.our_listener(PortSpace::Tcp)?;
    for round in lengths(bench, REP) {
        let ((asked, seen), (answered, answer)) = (field(round, REQ), field(round, REP));
        let theirs = bench.their_resolved(PortSpace::Tcp, address)?;
        theirs.call("cm_connect", &asked)?;
        let request = bench.we_get("CONNECT_REQUEST")?;
        same("the REQ's", &request.private_data, &seen)?;
        request.id.accept(&bench.params(&answered))?;
        same("the REP's", &bench.they_get("CONNECT_RESPONSE")?.data, &answer)?;
        theirs.call("cm_establish", &[])?;
        bench.we_get("ESTABLISHED")?;
        end(bench, &request.id, &theirs)?;
    }
    Ok(())
}

fn reject(bench: &Bench) -> Result<(), Failure> {
    let (_listener, address) = bench.their_listener(PortSpace::Tcp)?;
    let ours = bench.peer.resolved(PortSpace::Tcp, address)?;
    for round in lengths(bench, REJ) {
        let (data, whole) = field(round, REJ);
        ours.connect(&bench.params(&[]))?;
        bench.they_are_asked()?.0.call("cm_reject", &data)?;
        same("the REJ's", &bench.we_get_status("REJECTED", 28)?.private_data, &whole)?;
    }
    Ok(())
}

fn reject_here(bench: &Bench) -> Result<(), Failure> {
    let (_listener, address) = bench.our_listener(PortSpace::Tcp)?;
    for round in lengths(bench, REJ) {
        let (data, whole) = field(round, REJ);
        let theirs = bench.their_resolved(PortSpace::Tcp, address)?;
        theirs.call("cm_connect", &[])?;
        bench.we_get("CONNECT_REQUEST")?.id.reject(&data)?;
        same("the REJ's", &bench.they_get("REJECTED")?.data, &whole)?;
    }
    Ok(())
}

fn datagram(bench: &Bench) -> Result<(), Failure> {
    let (_listener, address) = bench.their_listener(PortSpace::Udp)?;
    let mut earlier = None;
    for round in lengths(bench, SIDR_REQ) {
        let ((asked, seen), (answered, answer)) = (field(round, SIDR_REQ), field(round, SIDR_REP));
        let ours = bench.peer.resolved(PortSpace::Udp, address)?;
        ours.connect(&bench.params(&asked))?;
        let (mut theirs, mut told) = bench.they_are_asked()?;
        // A kernel forgets a request as soon as it has answered: if that took it longer than we wait, our repetition is another.
        while earlier.as_ref() == Some(&told.data) && told.data != seen {
            println!("  a repetition of the last SIDR_REQ was told as a new one");
            drop(theirs);
            (theirs, told) = bench.they_are_asked()?;
        }
        same("the SIDR_REQ's", &told.data, &seen)?;
        theirs.call("cm_accept", &answered)?;
        same("the SIDR_REP's", &bench.we_get("ESTABLISHED")?.private_data, &answer)?;
        earlier = Some(seen);
    }
    Ok(())
}

fn datagram_here(bench: &Bench) -> Result<(), Failure> {
    let (_listener, address) = bench.our_listener(PortSpace::Udp)?;
    for round in lengths(bench, SIDR_REQ) {
        let ((asked, seen), (answered, answer)) = (field(round, SIDR_REQ), field(round, SIDR_REP));
        let theirs = bench.their_resolved(PortSpace::Udp, address)?;
        theirs.call("cm_connect", &asked)?;
        let request = bench.we_get("CONNECT_REQUEST")?;
        same("the SIDR_REQ's", &request.private_data, &seen)?;
        request.id.accept(&bench.params(&answered))?;
        same("the SIDR_REP's", &bench.they_get("ESTABLISHED")?.data, &answer)?;
    }
    Ok(())
}
