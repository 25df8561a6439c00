//! The device's program connects: its REQ, and how it takes each possible answer.

use super::{SEVERAL, peer};
use crate::{
    bench::Bench,
    case::{Case, Outcome, check, may, must, numbered, same, should},
    cm::{IP_HEADER, Peer, told},
    dut::Handle,
    wire::cm::{Kind, LOCAL_ID, Message, REMOTE_ID, mad, other, rep, req},
};
use std::time::Duration;

/// The device's program has called rdma_connect and been told of our REP. Returns its ID, its REQ and our REP.
fn responded(b: &mut Bench) -> Outcome<(Peer, Handle, Message, Message)> {
    let mut peer = peer(b)?;
    let (id, _, request) = peer.called(&[])?;
    let reply = peer.rep(&request);
    peer.tx(&reply)?;
    peer.event("CONNECT_RESPONSE")?;
    Ok((peer, id, request, reply))
}

/// The device's program has called rdma_connect, and we sent a REP with a communication ID that it has not given out. Returns
/// its REQ.
fn misled(b: &mut Bench) -> Outcome<(Peer, Message)> {
    let mut peer = peer(b)?;
    let (_, _, request) = peer.called(&[])?;
    let strange = peer.rep(&request).with(REMOTE_ID, request.get(LOCAL_ID) ^ 0x5555);
    peer.tx(&strange)?;
    Ok((peer, request))
}

const REQUEST: &[Case] = &[
    must(
        "CM.CONNECT.1",
        "A REQ has the program's queue pair, its service and its private data",
        "IBTA 12.6.5, A11; rdma_connect(3)",
        |b| {
            let mut peer = peer(b)?;
            let data: Vec<u8> = (1..=56).collect();
            let (_, qpn, request) = peer.called(&data)?;
            same("queue pair", request.get(req::QPN), qpn.into())?;
            same("service", request.get(req::SERVICE), peer.service())?;
            check(request.private()[IP_HEADER..] == data, || "the private data is not the program's".into())
        },
    ),
    must("CM.CONNECT.2", "Its IP header has version, family and both addresses", "IBTA A11.5", |b| {
        let mut peer = peer(b)?;
        let (_, _, request) = peer.called(&[])?;
        let ours = peer.headed(&[]);
        let theirs = request.private();
        same("version and family", &theirs[..2], &ours[..2])?;
        // The device's destination is our source, and its source our destination.
        same("source address", &theirs[4..20], &ours[20..36])?;
        same("destination address", &theirs[20..36], &ours[4..20])
    }),
    must("CM.CONNECT.3", "Its path goes from the device's address to ours", "IBTA 12.6.5, A17.3", |b| {
        let mut peer = peer(b)?;
        let ours = peer.req();
        let (_, _, request) = peer.called(&[])?;
        for half in 0..2 {
            same("local GID", request.get(req::LOCAL_GID[half]), ours.get(req::REMOTE_GID[half]))?;
            same("remote GID", request.get(req::REMOTE_GID[half]), ours.get(req::LOCAL_GID[half]))?;
        }
        Ok(())
    }),
    must(
        "CM.CONNECT.4",
        "Path MTU, partition, transport and retries are within their ranges",
        "IBTA 12.6.5",
        |b| {
            let mut peer = peer(b)?;
            let (_, _, request) = peer.called(&[])?;
            check((1..=5).contains(&request.get(req::MTU)), || format!("MTU {}", request.get(req::MTU)))?;
            same("partition", request.get(req::PKEY) & 0x7fff, 0x7fff)?;
            same("transport", request.get(req::TRANSPORT), 0)?;
            same("RNR retries", request.get(req::RNR_RETRY), 7)?;
            check(request.get(req::GUID) != 0, || "the GUID is 0".into())
        },
    ),
    must("CM.CONNECT.5", "What is reserved in a REQ is 0", "IBTA 12.6.5", |b| {
        let mut peer = peer(b)?;
        let (_, _, request) = peer.called(&[])?;
        // No case sets the flow label, the service level and the traffic class; a device may choose them.
        let strays: Vec<_> = request
            .strays()
            .into_iter()
            .filter(|at| ![24 + 88, 24 + 89, 24 + 90, 24 + 92, 24 + 94].contains(at))
            .collect();
        check(strays.is_empty(), || format!("bits are set in bytes {strays:?}"))
    }),
    must("CM.CONNECT.6", "Two connections have different communication IDs", "IBTA 12.7.1", |b| {
        let mut peer = peer(b)?;
        let (_, _, first) = peer.called(&[])?;
        let (_, _, second) = peer.called(&[])?;
        check(first.get(LOCAL_ID) != second.get(LOCAL_ID), || "both have the same".into())
    }),
    must(
        "CM.CONNECT.7",
        "A REQ that is not answered is sent again, and is the same",
        "IBTA 12.9.8.5, 12.10.4",
        |b| {
            let mut peer = peer(b)?;
            let (_, _, request) = peer.called(&[])?;
            peer.again(&request, SEVERAL)
        },
    )
    .slow(),
    must(
        "CM.CONNECT.8",
        "An MRA makes the device wait longer before it repeats its REQ",
        "IBTA 12.6.6, 12.9.8.5",
        |b| {
            let mut peer = peer(b)?;
            let (_, _, request) = peer.called(&[])?;
            let id = peer.new_id();
            // A service timeout of 22 is 17 s.
            let wait =
                peer.reply(&request, Kind::Mra).with(LOCAL_ID, id.into()).with(other::SERVICE_TIMEOUT, 22);
            peer.tx(&wait)?;
            peer.quiet(Duration::from_secs(8))
        },
    )
    .slow(),
    should(
        "CM.CONNECT.9",
        "A program that destroys its id while a REQ is on its way rejects: timeout (4)",
        "IBTA 12.9.8.5; rdma_destroy_id(3)",
        |b| {
            let mut peer = peer(b)?;
            let (id, _, request) = peer.called(&[])?;
            // The program has heard of no REP, so its REJ names no communication ID of ours. We know the REJ by the device's ID.
            b.world.borrow_mut().dut.close(id)?;
            peer.expect_id(0);
            let reject = peer.rx(Kind::Rej)?;
            same("local ID", reject.get(LOCAL_ID), request.get(LOCAL_ID))?;
            same("reason", reject.get(other::REASON), 4)
        },
    ),
];

const REPLY: &[Case] = &[
    must(
        "CM.CONNECT.REP.1",
        "A REP reaches the program, with its private data",
        "IBTA 12.9.8.5; rdma_get_cm_event(3)",
        |b| {
            let mut peer = peer(b)?;
            let (_, _, request) = peer.called(&[])?;
            let data: Vec<u8> = (1..=196).collect();
            let reply = peer.rep(&request).with_private(&data);
            peer.tx(&reply)?;
            told(&peer.event("CONNECT_RESPONSE")?, &data)
        },
    ),
    must(
        "CM.CONNECT.REP.2",
        "A REP is confirmed by an RTU with both communication IDs",
        "IBTA 12.6.9, 12.9.8.5",
        |b| {
            let (mut peer, id, request, reply) = responded(b)?;
            let rtu = peer.established(id)?;
            same("local ID", rtu.get(LOCAL_ID), request.get(LOCAL_ID))?;
            same("remote ID", rtu.get(REMOTE_ID), reply.get(LOCAL_ID))?;
            same("transaction ID", rtu.get(mad::TRANSACTION), request.get(mad::TRANSACTION))?;
            check(rtu.strays().is_empty(), || format!("bits are set in bytes {:?}", rtu.strays()))
        },
    ),
    must(
        "CM.CONNECT.REP.3",
        "A repeated REP is confirmed again, and is no second event",
        "IBTA 12.9.8.5, 12.9.8.7",
        |b| {
            let (mut peer, id, _, reply) = responded(b)?;
            let rtu = peer.established(id)?;
            peer.tx(&reply)?;
            peer.again(&rtu, SEVERAL)?;
            peer.no_event()
        },
    ),
    must(
        "CM.CONNECT.REP.4",
        "A REP repeated before the program has confirmed is no second event",
        "IBTA 12.9.8.5",
        |b| {
            let (peer, _, _, reply) = responded(b)?;
            peer.tx(&reply)?;
            peer.no_event()?;
            peer.none(Kind::Rej)
        },
    ),
    must(
        "CM.CONNECT.REP.5",
        "A REP for a communication ID that nobody has makes no connection",
        "IBTA 12.9.8.5",
        |b| {
            let (mut peer, request) = misled(b)?;
            peer.no_event()?;
            let reply = peer.rep(&request);
            peer.tx(&reply)?;
            peer.event("CONNECT_RESPONSE").map(|_| ())
        },
    ),
    may("CM.CONNECT.REP.6", "It is rejected: invalid communication ID (6)", "IBTA 12.6.7.2, 12.9.8.5", |b| {
        let (mut peer, _) = misled(b)?;
        same("reason", peer.rx(Kind::Rej)?.get(other::REASON), 6)
    }),
    should(
        "CM.CONNECT.REP.7",
        "A REP for a queue pair of a connection that stands is rejected: stale connection (10)",
        "IBTA 12.9.8.3.1",
        |b| {
            let mut peer = peer(b)?;
            let link = peer.active()?;
            let (_, _, request) = peer.called(&[])?;
            let reply = peer.rep(&request).with(rep::QPN, link.qpn.into());
            peer.tx(&reply)?;
            let first = peer.rx_any(&[Kind::Rej, Kind::Dreq])?;
            let reject = if first.kind() == Some(Kind::Rej) { first } else { peer.rx(Kind::Rej)? };
            same("reason", reject.get(other::REASON), 10)?;
            same("message", reject.get(other::MESSAGE), 1)
        },
    ),
    must(
        "CM.CONNECT.REP.8",
        "A connection that the program does not want after all is rejected",
        "IBTA 12.9.8.5; rdma_reject(3)",
        |b| {
            let (mut peer, id, ..) = responded(b)?;
            peer.program("rdma_reject", |cm| cm.reject(id, &[]))?;
            let reject = peer.rx(Kind::Rej)?;
            same("reason", reject.get(other::REASON), 28)?;
            same("message", reject.get(other::MESSAGE), 1)
        },
    ),
    must(
        "CM.CONNECT.REJ.DATA",
        "Private data of a REJ reaches the program",
        "IBTA 12.6.7; rdma_get_cm_event(3)",
        |b| {
            let mut peer = peer(b)?;
            let (_, _, request) = peer.called(&[])?;
            let data: Vec<u8> = (1..=148).collect();
            peer.tx(&peer.rej(&request, 28).with_private(&data))?;
            told(&peer.event("REJECTED")?, &data)
        },
    ),
    must(
        "CM.CONNECT.REJ.ID",
        "A REJ for a communication ID that nobody has is passed by",
        "IBTA 12.6.7",
        |b| {
            let mut peer = peer(b)?;
            let (_, _, request) = peer.called(&[])?;
            peer.tx(&peer.rej(&request, 28).with(REMOTE_ID, request.get(LOCAL_ID) ^ 0x5555))?;
            peer.no_event()
        },
    ),
    must("CM.CONNECT.REJ.TWICE", "A second REJ is no second event", "IBTA 12.6.7", |b| {
        let mut peer = peer(b)?;
        let (_, _, request) = peer.called(&[])?;
        let reject = peer.rej(&request, 28);
        peer.tx(&reject)?;
        peer.event("REJECTED")?;
        peer.tx(&reject)?;
        peer.no_event()
    }),
];

/// The reasons of a REJ (IBTA vol. 1, 12.6.7.2) without 4, the timeout, which has to name the GUID of its sender.
fn reasons() -> impl Iterator<Item = u32> {
    (1..=33).chain([35]).filter(|reason| *reason != 4)
}

pub(super) fn add(all: &mut Vec<Case>) {
    all.extend(REQUEST.iter().chain(REPLY).cloned());
    let family = must(
        "CM.CONNECT.REJ",
        "A REQ rejected for reason {}: the program is told of it",
        "IBTA 12.6.7.2; rdma_get_cm_event(3)",
        crate::case::template,
    );
    all.extend(family.family(numbered(reasons()), |b, reason| {
        let mut peer = peer(b)?;
        let (_, _, request) = peer.called(&[])?;
        peer.tx(&peer.rej(&request, reason.into()))?;
        same("the event's status", peer.event("REJECTED")?.status, reason as i32)
    }));
}
