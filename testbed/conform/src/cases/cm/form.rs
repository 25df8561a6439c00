//! Management datagrams: which ones the device takes, and the form of those that it sends.

use super::{accepted, listened};
use crate::{
    bench::Bench,
    case::{Case, Outcome, check, must, same, should},
    cm::Peer,
    wire::{
        Packet,
        cm::{GSI, GSI_QKEY, Kind, LOCAL_ID, Message, REMOTE_ID, mad, other, rep},
    },
};

/// The device ignores a REQ whose packet `change` has altered, and takes a right REQ after it.
fn ignored(b: &mut Bench, change: impl FnOnce(Packet) -> Packet) -> Outcome {
    let mut peer = listened(b)?;
    let header = peer.headed(&[0xbb; 4]);
    let wrong = peer.req().with_private(&header).packet();
    b.world.borrow_mut().send(&change(wrong))?;
    right_one(&mut peer)
}

/// Sends a right REQ, and the next request that the program is told of is this one.
fn right_one(peer: &mut Peer) -> Outcome {
    let header = peer.headed(&[0x77; 4]);
    let request = peer.req().with_private(&header);
    peer.tx(&request)?;
    let event = peer.event("CONNECT_REQUEST")?;
    crate::cm::told(&event, &[0x77; 4])
}

/// Like [`ignored`], with a change to the message instead of the packet.
fn ignored_with(b: &mut Bench, change: impl FnOnce(Message) -> Message) -> Outcome {
    let mut peer = listened(b)?;
    let header = peer.headed(&[0xbb; 4]);
    let wrong = change(peer.req().with_private(&header));
    peer.tx(&wrong)?;
    right_one(&mut peer)
}

/// The device's REP to a right REQ. Returns the REQ, and the REP as a packet and as a message.
fn reply(b: &mut Bench) -> Outcome<(Message, Packet, Message)> {
    let (_, request, _, reply) = accepted(b, |request| request)?;
    let world = b.world.borrow();
    let packet = world.log.iter().rev().find_map(|entry| match &entry.what {
        crate::bench::What::Got(packet, _) if Message::of(packet).as_ref() == Some(&reply) => {
            Some(packet.clone())
        }
        _ => None,
    });
    Ok((request, packet.unwrap_or_default(), reply))
}

const CASES: &[Case] = &[
    must(
        "CM.MAD.VERSION.1",
        "A datagram of another base version is passed by",
        "IBTA 13.4.3, 13.5.3.3",
        |b| ignored_with(b, |message| message.with(mad::BASE_VERSION, 2)),
    ),
    must(
        "CM.MAD.VERSION.2",
        "A REQ of another class version makes no request",
        "IBTA 12.6.7.2, 13.4.3",
        |b| ignored_with(b, |message| message.with(mad::CLASS_VERSION, 1)),
    ),
    must("CM.MAD.CLASS.1", "A datagram of another management class makes no request", "IBTA 13.4.3", |b| {
        ignored_with(b, |message| message.with(mad::CLASS, 0x04))
    }),
    must("CM.MAD.METHOD.1", "A method beside Send makes no request", "IBTA 16.7.1", |b| {
        ignored_with(b, |message| message.with(mad::METHOD, 1))
    }),
    must("CM.MAD.ATTRIBUTE.1", "An attribute that nobody knows is passed by", "IBTA 16.7.2", |b| {
        ignored_with(b, |message| message.with(mad::ATTRIBUTE, 0x40))
    }),
    must(
        "CM.MAD.QKEY.1",
        "A datagram without the Q_Key of queue pair 1 is dropped",
        "IBTA 9.6.1.4.1, 10.2.5",
        |b| ignored(b, |packet| packet.qkey(0x1111_1111)),
    ),
    must("CM.MAD.LENGTH.1", "A datagram of less than 256 bytes makes no request", "IBTA 13.4.2", |b| {
        ignored(b, |packet| {
            let mut data = packet.data.clone().unwrap_or_default();
            data.truncate(252);
            packet.data(data)
        })
    }),
    must("CM.MAD.ICRC.1", "A datagram with a wrong ICRC is dropped", "IBTA 9.8", |b| {
        ignored(b, |packet| packet.icrc_xor(0x8000))
    }),
    must(
        "CM.MAD.PKEY.1",
        "A datagram of a partition that the port is not in is dropped",
        "IBTA 9.6.1.1.3",
        |b| ignored(b, |packet| packet.pkey(0x1234)),
    ),
    must(
        "CM.MAD.SEND.1",
        "The device's messages go from queue pair 1 to queue pair 1 with its Q_Key",
        "IBTA 13.5.1, 10.2.5",
        |b| {
            let (_, packet, _) = reply(b)?;
            same("source queue pair", packet.src_qp, Some(GSI))?;
            same("Q_Key", packet.qkey, Some(GSI_QKEY))
        },
    ),
    should("CM.MAD.SEND.2", "They do not ask for an acknowledgement", "IBTA 9.2.7", |b| {
        same("AckReq", reply(b)?.1.ack_req, Some(false))
    }),
    must("CM.MAD.SEND.3", "Version 1, class 7 version 2, method Send, status 0", "IBTA 13.4.3, 16.7", |b| {
        let (_, _, reply) = reply(b)?;
        for (field, value) in [
            (mad::BASE_VERSION, 1),
            (mad::CLASS, 7),
            (mad::CLASS_VERSION, 2),
            (mad::METHOD, 3),
            (mad::STATUS, 0),
        ] {
            same(field.name, reply.get(field), value)?;
        }
        Ok(())
    }),
    must("CM.MAD.SEND.4", "What is reserved is 0", "IBTA 12.6", |b| {
        let (_, _, reply) = reply(b)?;
        check(reply.strays().is_empty(), || format!("bits are set in bytes {:?}", reply.strays()))
    }),
    must("CM.MAD.SEND.5", "An answer has the request's transaction ID", "IBTA 12.6.1, 13.4.6.4", |b| {
        let (request, _, reply) = reply(b)?;
        same("transaction ID", reply.get(mad::TRANSACTION), request.get(mad::TRANSACTION))
    }),
    must("CM.MAD.SEND.6", "An answer names both communication IDs", "IBTA 12.6.8", |b| {
        let (request, _, reply) = reply(b)?;
        same("remote ID", reply.get(REMOTE_ID), request.get(LOCAL_ID))
    }),
    must("CM.MAD.GUID.1", "A REP names the adapter by its GUID", "IBTA 12.6.8, 12.9.8.3.1", |b| {
        let (_, _, reply) = reply(b)?;
        check(reply.get(rep::GUID) != 0, || "the GUID is 0".into())
    }),
    must(
        "CM.MAD.REJ.1",
        "A REJ says which message is rejected, and what is reserved in it is 0",
        "IBTA 12.6.7",
        |b| {
            let mut peer = super::peer(b)?;
            let request = peer.req();
            peer.tx(&request)?;
            let reject = peer.rx(Kind::Rej)?;
            same("message", reject.get(other::MESSAGE), 0)?;
            check(reject.strays().is_empty(), || format!("bits are set in bytes {:?}", reject.strays()))
        },
    ),
];

pub(super) fn add(all: &mut Vec<Case>) {
    all.extend(CASES.iter().cloned());
}
