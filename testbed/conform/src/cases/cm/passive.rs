//! The device's program listens: requests, refusals, and all messages until the connection is established.

use super::{SEVERAL, accepted, connected, listened, peer};
use crate::{
    bench::Bench,
    case::{Case, Outcome, check, must, numbered, same, should},
    cm::{IP_HEADER, Link, Peer, SOON, told},
    wire::cm::{Kind, LOCAL_ID, Message, REMOTE_ID, mad, other, rep, req},
};
use std::time::Duration;

/// The device refuses a REQ that `change` has altered, and does not tell its program.
fn refused(b: &mut Bench, change: impl FnOnce(Message) -> Message) -> Outcome<u64> {
    let mut peer = listened(b)?;
    let request = change(peer.req());
    peer.tx(&request)?;
    let reject = peer.rx(Kind::Rej)?;
    same("remote ID", reject.get(REMOTE_ID), request.get(LOCAL_ID))?;
    peer.no_event()?;
    Ok(reject.get(other::REASON))
}

/// Establishes a connection, then sends another REQ for its queue pair.
fn asked_again(b: &mut Bench) -> Outcome<(Peer, Link)> {
    let (mut peer, link) = connected(b)?;
    let request = peer.req().with(req::QPN, link.qpn.into());
    peer.tx(&request)?;
    Ok((peer, link))
}

const REQUESTS: &[Case] = &[
    must(
        "CM.REQ.1",
        "A REQ reaches the program that listens, with its private data",
        "IBTA 12.9.7; rdma_get_cm_event(3)",
        |b| {
            let mut peer = listened(b)?;
            let data: Vec<u8> = (1..=56).collect();
            let request = peer.req().with_private_at(IP_HEADER, &data);
            peer.tx(&request)?;
            told(&peer.event("CONNECT_REQUEST")?, &data)
        },
    ),
    must("CM.REQ.2", "Where nobody listens a REQ is refused: invalid service ID (8)", "IBTA 12.6.7.2", |b| {
        let mut peer = peer(b)?;
        let request = peer.req();
        peer.tx(&request)?;
        let reject = peer.rx(Kind::Rej)?;
        same("reason", reject.get(other::REASON), 8)?;
        same("remote ID", reject.get(REMOTE_ID), request.get(LOCAL_ID))
    }),
    must(
        "CM.REQ.3",
        "A REQ repeated before the program has answered is no second request",
        "IBTA 12.9.7.2, 12.9.8.1",
        |b| {
            let mut peer = listened(b)?;
            let request = peer.req();
            peer.asks(&request)?;
            peer.tx(&request)?;
            peer.no_event()?;
            peer.none(Kind::Rej)
        },
    ),
    must("CM.REQ.4", "A REQ repeated after the REP is no second request", "IBTA 12.9.8.1", |b| {
        let (peer, request, ..) = accepted(b, |request| request)?;
        peer.tx(&request)?;
        peer.no_event()?;
        peer.none(Kind::Rej)
    }),
    must("CM.REQ.5", "A REQ repeated after the connection stands does it no harm", "IBTA 12.9.8.1", |b| {
        let (peer, request, link, _) = accepted(b, |request| request)?;
        peer.tx(&peer.about(&link, Kind::Rtu))?;
        peer.event("ESTABLISHED")?;
        peer.tx(&request)?;
        peer.no_event()?;
        peer.none(Kind::Rej)
    }),
    must("CM.REQ.6", "Two REQs with different queue pairs are two requests", "IBTA 12.9.7", |b| {
        let mut peer = listened(b)?;
        let (first, second) = (peer.req(), peer.req());
        let ids = (peer.asks(&first)?, peer.asks(&second)?);
        check(ids.0 != ids.1, || "both have the same id".into())
    }),
    must(
        "CM.REQ.7",
        "A request that the program refuses is rejected: consumer defined (28), with its private data",
        "IBTA 12.6.7.2; rdma_reject(3)",
        |b| {
            let mut peer = listened(b)?;
            let request = peer.req();
            let id = peer.asks(&request)?;
            let data: Vec<u8> = (1..=148).collect();
            peer.program("rdma_reject", |cm| cm.reject(id, &data))?;
            let reject = peer.rx(Kind::Rej)?;
            same("reason", reject.get(other::REASON), 28)?;
            same("message", reject.get(other::MESSAGE), 0)?;
            check(reject.private() == data, || "the private data is not the program's".into())
        },
    ),
    should(
        "CM.REQ.8",
        "A request whose id the program destroys is rejected",
        "IBTA 12.9.7.2; rdma_destroy_id(3)",
        |b| {
            let mut peer = listened(b)?;
            let request = peer.req();
            let id = peer.asks(&request)?;
            b.world.borrow_mut().dut.close(id)?;
            peer.rx(Kind::Rej).map(|_| ())
        },
    ),
    must("CM.REQ.9", "After a rejected request the same queue pair may ask again", "IBTA 12.9.7.2", |b| {
        let mut peer = listened(b)?;
        let request = peer.req();
        let id = peer.asks(&request)?;
        peer.program("rdma_reject", |cm| cm.reject(id, &[]))?;
        peer.rx(Kind::Rej)?;
        let next = peer.new_id();
        let request = request.with(LOCAL_ID, next.into()).with(mad::TRANSACTION, u64::from(next) << 32);
        peer.asks(&request).map(|_| ())
    }),
    must(
        "CM.REQ.STALE.1",
        "A REQ for a queue pair of a connection that stands is refused: stale connection (10)",
        "IBTA 12.9.8.3.1",
        |b| {
            let (mut peer, _) = asked_again(b)?;
            let first = peer.rx_any(&[Kind::Rej, Kind::Dreq])?;
            let reject = if first.kind() == Some(Kind::Rej) { first } else { peer.rx(Kind::Rej)? };
            same("reason", reject.get(other::REASON), 10)
        },
    ),
    must(
        "CM.REQ.STALE.2",
        "That ends the connection that stood: a DREQ goes out for it",
        "IBTA 12.9.8.3.1",
        |b| {
            let (mut peer, link) = asked_again(b)?;
            let first = peer.rx_any(&[Kind::Rej, Kind::Dreq])?;
            let second = peer.rx_any(&[Kind::Rej, Kind::Dreq])?;
            let ended = [first, second].into_iter().find(|message| message.kind() == Some(Kind::Dreq));
            check(ended.is_some_and(|dreq| dreq.get(REMOTE_ID) == u64::from(link.own)), || {
                "no DREQ for it".into()
            })
        },
    ),
    must(
        "CM.REQ.STALE.3",
        "The same queue pair number of another adapter is another connection's",
        "IBTA 12.9.8.3.1",
        |b| {
            let (mut peer, link) = connected(b)?;
            let request = peer.req().with(req::QPN, link.qpn.into()).with(req::GUID, peer.guid ^ 0xff00);
            peer.asks(&request).map(|_| ())
        },
    ),
];

const WRONG: &[Case] = &[
    must("CM.REQ.GID.1", "A REQ for an address that is not the device's is refused", "IBTA 12.6.7.2", |b| {
        refused(b, |request| request.with(req::REMOTE_GID[1], 0xffff_c000_0263)).map(|_| ())
    }),
    should("CM.REQ.GID.2", "The reason is: invalid primary remote port GID (12)", "IBTA 12.6.7.2", |b| {
        same("reason", refused(b, |request| request.with(req::REMOTE_GID[1], 0xffff_c000_0263))?, 12)
    }),
    must(
        "CM.REQ.TRANSPORT.1",
        "A REQ for an unreliable connection is refused by a program that wants a reliable one",
        "IBTA 12.6.7.2; rdma_create_id(3)",
        |b| refused(b, |request| request.with(req::TRANSPORT, 1)).map(|_| ()),
    ),
    should("CM.REQ.TRANSPORT.2", "The reason is: invalid transport service type (9)", "IBTA 12.6.7.2", |b| {
        same("reason", refused(b, |request| request.with(req::TRANSPORT, 1))?, 9)
    }),
    must("CM.REQ.PKEY.1", "A REQ for a partition that the port is not in is refused", "IBTA 12.6.7.2", |b| {
        refused(b, |request| request.with(req::PKEY, 0x1234)).map(|_| ())
    }),
    should(
        "CM.REQ.MTU.1",
        "A REQ with a path MTU that does not exist is refused: invalid path MTU (26)",
        "IBTA 12.6.7.2",
        |b| same("reason", refused(b, |request| request.with(req::MTU, 9))?, 26),
    ),
    should("CM.REQ.IP.1", "A REQ whose IP header is of another version is refused", "IBTA A11.5", |b| {
        refused(b, |request| request.with_private_at(0, &[0x10])).map(|_| ())
    }),
    must(
        "CM.REQ.ALTERNATE.1",
        "A REQ with an alternate path is taken, or refused for it (18 to 23)",
        "IBTA 12.6.7.2",
        |b| {
            let mut peer = listened(b)?;
            let request = peer.req().with(req::ALTERNATE_LID, 0xffff);
            peer.tx(&request)?;
            let Some(reject) = peer.decision()? else { return Ok(()) };
            let reason = reject.get(other::REASON);
            check((18..=23).contains(&reason), || format!("the reason is {reason}"))
        },
    ),
];

const REPLIES: &[Case] = &[
    must(
        "CM.REP.1",
        "A REP has the program's queue pair and private data",
        "IBTA 12.6.8; rdma_accept(3)",
        |b| {
            let mut peer = listened(b)?;
            let request = peer.req();
            let id = peer.asks(&request)?;
            let data: Vec<u8> = (1..=196).collect();
            peer.program("rdma_accept", |cm| cm.accept(id, 0x41_2345, &data))?;
            let reply = peer.rx(Kind::Rep)?;
            same("queue pair", reply.get(rep::QPN), 0x41_2345)?;
            check(reply.private() == data, || "the private data is not the program's".into())
        },
    ),
    must(
        "CM.REP.2",
        "A REP grants no more READs at a time than the program allows",
        "IBTA 12.6.8, 12.7.30",
        |b| {
            let much = |request: Message| request.with(req::RESOURCES, 100).with(req::DEPTH, 100);
            let (_, _, _, reply) = accepted(b, much)?;
            same("responder resources", reply.get(rep::RESOURCES), 1)?;
            same("initiator depth", reply.get(rep::DEPTH), 1)
        },
    ),
    must("CM.REP.3", "A REP without an RTU is sent again, and is the same", "IBTA 12.9.8.7, 12.10.4", |b| {
        let (peer, _, _, reply) = accepted(b, |request| request.with(req::LOCAL_TIMEOUT, SOON))?;
        peer.again(&reply, SEVERAL)
    }),
    must(
        "CM.REP.4",
        "It is sent again as often as the REQ says, and then given up",
        "IBTA 12.7.27, 12.9.8.7",
        |b| {
            let twice = |request: Message| request.with(req::LOCAL_TIMEOUT, SOON).with(req::CM_RETRIES, 2);
            let (peer, _, _, reply) = accepted(b, twice)?;
            peer.again(&reply, SEVERAL)?;
            peer.again(&reply, SEVERAL)?;
            peer.event("UNREACHABLE")?;
            peer.none(Kind::Rep)
        },
    )
    .slow(),
    must(
        "CM.REP.5",
        "An MRA makes the device wait longer before it repeats its REP",
        "IBTA 12.6.6, 12.9.8.7",
        |b| {
            let (peer, _, link, _) = accepted(b, |request| request.with(req::LOCAL_TIMEOUT, SOON))?;
            // A service timeout of 20 is 4.3 s.
            let wait = peer.about(&link, Kind::Mra).with(other::MESSAGE, 1).with(other::SERVICE_TIMEOUT, 20);
            peer.tx(&wait)?;
            // Passes over REPs that were on their way before the MRA arrived.
            peer.none(Kind::Rej)?;
            peer.quiet(Duration::from_millis(1500))?;
            peer.tx(&peer.about(&link, Kind::Rtu))?;
            peer.event("ESTABLISHED").map(|_| ())
        },
    )
    .slow(),
    must("CM.REP.6", "An RTU makes the connection stand", "IBTA 12.9.8.7", |b| {
        let mut peer = listened(b)?;
        peer.passive().map(|_| ())
    }),
    must("CM.REP.7", "A second RTU is no second event", "IBTA 12.9.8.7", |b| {
        let (peer, link) = connected(b)?;
        peer.tx(&peer.about(&link, Kind::Rtu))?;
        peer.no_event()
    }),
    must("CM.REP.8", "An RTU for other communication IDs makes nothing stand", "IBTA 12.9.8.7", |b| {
        let (peer, _, link, _) = accepted(b, |request| request)?;
        peer.tx(&peer.about(&link, Kind::Rtu).with(REMOTE_ID, u64::from(link.far) ^ 0x5555))?;
        peer.no_event()?;
        peer.tx(&peer.about(&link, Kind::Rtu))?;
        peer.event("ESTABLISHED").map(|_| ())
    }),
    must(
        "CM.REP.9",
        "An RTU that comes before the program has answered makes nothing stand",
        "IBTA 12.9.7.2",
        |b| {
            let mut peer = listened(b)?;
            let request = peer.req();
            let id = peer.asks(&request)?;
            let early = Message::new(Kind::Rtu).with(LOCAL_ID, request.get(LOCAL_ID)).with(REMOTE_ID, 0);
            peer.tx(&early)?;
            peer.no_event()?;
            peer.accepted(&request, id).map(|_| ())
        },
    ),
];

/// Reasons that a peer may reject a REP for (IBTA vol. 1, 12.6.7.2).
const REP_REASONS: [u32; 6] = [3, 4, 5, 10, 28, 35];

pub(super) fn add(all: &mut Vec<Case>) {
    all.extend(REQUESTS.iter().chain(WRONG).chain(REPLIES).cloned());
    let family = must(
        "CM.REP.REJECTED",
        "A REP rejected for reason {}: the program is told of it",
        "IBTA 12.6.7.2, 12.9.8.7; rdma_get_cm_event(3)",
        crate::case::template,
    );
    all.extend(family.family(numbered(REP_REASONS), |b, reason| {
        let (peer, _, _, reply) = accepted(b, |request| request)?;
        let mut reject = peer.rej(&reply, reason.into()).with_private(&[9, 8, 7]);
        if reason == 4 {
            // A REJ for a timeout names the GUID of its sender.
            reject = reject.with(other::INFO_LEN, 8).with(other::INFO, peer.guid);
        }
        peer.tx(&reject)?;
        let event = peer.event("REJECTED")?;
        same("the event's status", event.status, reason as i32)?;
        told(&event, &[9, 8, 7])
    }));
}
