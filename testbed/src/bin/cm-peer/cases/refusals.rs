//! Connections that are refused, with the reason as each side's program sees it.

use super::{Bench, Case};
use crate::peer::same;
use rxe_cm::proto::{PortSpace, RejectReason};
use std::{thread::sleep, time::Duration};
use testbed::agent::Failure;

pub(super) const ALL: &[Case] = &[
    Case { name: "refused, nobody listens (8)", ours: Some(nobody), kernel: Some(nobody_here) },
    Case { name: "refused by the program (28)", ours: Some(by_program), kernel: Some(by_program_here) },
    Case {
        name: "refused by the program for its connection options (35)",
        ours: Some(by_options),
        kernel: Some(by_options_here),
    },
    Case {
        name: "refused for each reason there is, and an unknown one",
        ours: None,
        kernel: Some(each_reason),
    },
    Case { name: "refused, the request is given up (4)", ours: Some(given_up), kernel: Some(given_up_here) },
    Case {
        name: "refused, the queue pair is in use (10), its connection is ended",
        ours: Some(stale),
        kernel: None,
    },
    Case {
        name: "refused, the id is dropped before it is answered (28)",
        ours: Some(dropped),
        kernel: Some(dropped_here),
    },
    Case {
        name: "no such datagram service (1), and one that says no (2)",
        ours: Some(no_service),
        kernel: Some(no_service_here),
    },
];

fn nobody(bench: &Bench) -> Result<(), Failure> {
    let (listener, address) = bench.their_listener(PortSpace::Tcp)?;
    drop(listener);
    let id = bench.peer.resolved(PortSpace::Tcp, address)?;
    id.connect(&bench.params(&[]))?;
    bench.we_get_status("REJECTED", 8).map(drop)
}

fn nobody_here(bench: &Bench) -> Result<(), Failure> {
    let (listener, address) = bench.our_listener(PortSpace::Tcp)?;
    drop(listener);
    let id = bench.their_resolved(PortSpace::Tcp, address)?;
    id.call("cm_connect", &[])?;
    they_are_refused(bench, 8)
}

fn they_are_refused(bench: &Bench, reason: i64) -> Result<(), Failure> {
    let told = bench.they_get("REJECTED")?;
    if told.status == reason {
        Ok(())
    } else {
        Err(format!("the kernel's program sees reason {}, not {reason}", told.status).into())
    }
}

fn by_program(bench: &Bench) -> Result<(), Failure> {
    let (_listener, address) = bench.their_listener(PortSpace::Tcp)?;
    let id = bench.peer.resolved(PortSpace::Tcp, address)?;
    id.connect(&bench.params(&[]))?;
    let (theirs, _) = bench.they_are_asked()?;
    theirs.call("cm_reject", b"no")?;
    let event = bench.we_get_status("REJECTED", 28)?;
    same("what came with it", &event.private_data[..3], b"no\0")?;
    // The id may ask again.
    id.connect(&bench.params(&[]))?;
    let (theirs, _) = bench.they_are_asked()?;
    theirs.call("cm_reject", &[])?;
    bench.we_get_status("REJECTED", 28).map(drop)
}

fn by_program_here(bench: &Bench) -> Result<(), Failure> {
    let (_listener, address) = bench.our_listener(PortSpace::Tcp)?;
    for text in [&b"no"[..], b""] {
        // A kernel's id asks once only.
        let id = bench.their_resolved(PortSpace::Tcp, address)?;
        id.call("cm_connect", &[])?;
        bench.we_get("CONNECT_REQUEST")?.id.reject(text)?;
        let told = bench.they_get("REJECTED")?;
        let mut want = text.to_vec();
        want.resize(told.data.len(), 0);
        same("what came with it", &told.data, &want)?;
        if (told.status, told.data.len()) != (28, 148) {
            return Err(format!("reason {} with {} bytes", told.status, told.data.len()).into());
        }
    }
    Ok(())
}

/// The only other reason that a kernel's program can give (rdma_reject_ece).
fn by_options(bench: &Bench) -> Result<(), Failure> {
    let (_listener, address) = bench.their_listener(PortSpace::Tcp)?;
    for text in [&b"no"[..], b""] {
        let id = bench.peer.resolved(PortSpace::Tcp, address)?;
        id.connect(&bench.params(&[]))?;
        let (theirs, _) = bench.they_are_asked()?;
        theirs.call("cm_reject_ece", text)?;
        let event = bench.we_get_status("REJECTED", 35)?;
        let mut want = text.to_vec();
        want.resize(event.private_data.len(), 0);
        same("what came with it", &event.private_data[..], &want)?;
    }
    Ok(())
}

fn by_options_here(bench: &Bench) -> Result<(), Failure> {
    let (_listener, address) = bench.our_listener(PortSpace::Tcp)?;
    let id = bench.their_resolved(PortSpace::Tcp, address)?;
    id.call("cm_connect", &[])?;
    bench.we_get("CONNECT_REQUEST")?.id.reject_because(RejectReason::VENDOR_OPTION_NOT_SUPPORTED, b"no")?;
    let told = bench.they_get("REJECTED")?;
    if told.status != 35 {
        return Err(format!("the kernel's program sees reason {}, not 35", told.status).into());
    }
    same("what came with it", &told.data[..2], b"no")
}

/// The kernel hands on whatever it is told. "Timeout" is for whom has asked: the kernel looks for another connection then.
fn each_reason(bench: &Bench) -> Result<(), Failure> {
    let (_listener, address) = bench.our_listener(PortSpace::Tcp)?;
    let known = RejectReason::KNOWN.iter().copied().filter(|reason| *reason != RejectReason::TIMEOUT);
    for reason in known.chain([RejectReason(0x1234)]) {
        let id = bench.their_resolved(PortSpace::Tcp, address)?;
        id.call("cm_connect", &[])?;
        bench.we_get("CONNECT_REQUEST")?.id.reject_because(reason, &[])?;
        they_are_refused(bench, reason.0.into()).map_err(|error| format!("{reason}: {error}"))?;
    }
    Ok(())
}

/// We give up before the kernel's program has answered: it cannot accept any more, and learns that when it tries (ucma tells
/// nothing about requests that were not answered).
fn given_up(bench: &Bench) -> Result<(), Failure> {
    let (_listener, address) = bench.their_listener(PortSpace::Tcp)?;
    let id = bench.peer.resolved(PortSpace::Tcp, address)?;
    id.connect(&bench.params(&[]))?;
    let (theirs, _) = bench.they_are_asked()?;
    drop(id);
    // The kernel takes messages in turn, on each processor: with another request what came before has arrived, and soon been heard.
    let another = bench.peer.resolved(PortSpace::Tcp, address)?;
    another.connect(&bench.params(&[]))?;
    let (other, _) = bench.they_are_asked()?;
    sleep(Duration::from_millis(500));
    if theirs.call("cm_accept", &[]).is_ok() {
        return Err("a request that was taken back could be accepted".into());
    }
    other.call("cm_reject", &[])?;
    bench.we_get_status("REJECTED", 28).map(drop)
}

/// The kernel's program gives up.
fn given_up_here(bench: &Bench) -> Result<(), Failure> {
    let (_listener, address) = bench.our_listener(PortSpace::Tcp)?;
    let theirs = bench.their_resolved(PortSpace::Tcp, address)?;
    theirs.call("cm_connect", &[])?;
    let ours = bench.we_get("CONNECT_REQUEST")?.id;
    drop(theirs);
    bench.we_get_status("REJECTED", 4)?;
    match ours.accept(&bench.params(&[])) {
        Err(_) => Ok(()),
        Ok(()) => Err("a request that was taken back could be accepted".into()),
    }
}

/// A second connection of the same queue pair: the kernel takes the first for dead.
fn stale(bench: &Bench) -> Result<(), Failure> {
    let (listener, address) = bench.their_listener(PortSpace::Tcp)?;
    let params = bench.params(&[]);
    let first = bench.peer.resolved(PortSpace::Tcp, address)?;
    first.connect(&params)?;
    let (theirs, _) = bench.they_are_asked()?;
    theirs.call("cm_accept", &[])?;
    bench.we_get("CONNECT_RESPONSE")?;
    first.establish()?;
    bench.they_get("ESTABLISHED")?;
    let second = bench.peer.resolved(PortSpace::Tcp, address)?;
    second.connect(&params)?;
    let (mut refused, mut ended) = (false, false);
    while !(refused && ended) {
        let event = bench.peer.next()?;
        match (event.kind.name(), event.status()) {
            ("REJECTED", 10) if event.id.is_same(&second) => refused = true,
            ("DISCONNECTED", 0) if event.id.is_same(&first) => {
                event.id.disconnect()?;
                ended = true;
            }
            other => return Err(format!("unexpected {other:?}").into()),
        }
    }
    bench.they_get("DISCONNECTED")?;
    drop(listener);
    Ok(())
}

fn dropped(bench: &Bench) -> Result<(), Failure> {
    let (_listener, address) = bench.their_listener(PortSpace::Tcp)?;
    let id = bench.peer.resolved(PortSpace::Tcp, address)?;
    id.connect(&bench.params(&[]))?;
    drop(bench.they_are_asked()?);
    bench.we_get_status("REJECTED", 28).map(drop)
}

fn dropped_here(bench: &Bench) -> Result<(), Failure> {
    let (_listener, address) = bench.our_listener(PortSpace::Tcp)?;
    let id = bench.their_resolved(PortSpace::Tcp, address)?;
    id.call("cm_connect", &[])?;
    drop(bench.we_get("CONNECT_REQUEST")?);
    they_are_refused(bench, 28)
}

fn no_service(bench: &Bench) -> Result<(), Failure> {
    let (listener, address) = bench.their_listener(PortSpace::Udp)?;
    let id = bench.peer.resolved(PortSpace::Udp, address)?;
    id.connect(&bench.params(&[]))?;
    let (theirs, _) = bench.they_are_asked()?;
    theirs.call("cm_reject", b"no")?;
    let event = bench.we_get_status("UNREACHABLE", 2)?;
    same("what came with it", &event.private_data[..3], b"no\0")?;
    drop((theirs, listener));
    id.connect(&bench.params(&[]))?;
    bench.we_get_status("UNREACHABLE", 1).map(drop)
}

fn no_service_here(bench: &Bench) -> Result<(), Failure> {
    let (listener, address) = bench.our_listener(PortSpace::Udp)?;
    let id = bench.their_resolved(PortSpace::Udp, address)?;
    id.call("cm_connect", &[])?;
    bench.we_get("CONNECT_REQUEST")?.id.reject(b"no")?;
    not_found(bench, 2)?;
    drop(listener);
    let id = bench.their_resolved(PortSpace::Udp, address)?;
    id.call("cm_connect", &[])?;
    not_found(bench, 1)
}

fn not_found(bench: &Bench, status: i64) -> Result<(), Failure> {
    let told = bench.they_get("UNREACHABLE")?;
    if told.status == status {
        Ok(())
    } else {
        Err(format!("the kernel's program sees {}, not {status}", told.status).into())
    }
}
