//! Datagram services: SIDR_REQ and SIDR_REP.

use crate::{
    bench::Bench,
    case::{Case, Outcome, check, must, numbered, same},
    cm::{IP_HEADER, Peer, told},
    dut::Space,
    wire::cm::{Kind, LOCAL_ID, Message, mad, sidr},
};

/// The Q_Key that rdma_cm gives datagram queue pairs (RDMA_UDP_QKEY).
const QKEY: u64 = 0x0123_4567;

fn listened(b: &mut Bench) -> Outcome<Peer> {
    let peer = Peer::new(&b.world, Space::Udp)?;
    peer.listen()?;
    Ok(peer)
}

/// Our SIDR_REP to a SIDR_REQ of the device.
fn answer(peer: &Peer, request: &Message, status: u64) -> Message {
    peer.reply(request, Kind::SidrRep)
        .with(LOCAL_ID, request.get(LOCAL_ID))
        .with(sidr::STATUS, status)
        .with(sidr::REP_SERVICE, request.get(sidr::SERVICE))
}

const CASES: &[Case] = &[
    must(
        "CM.SIDR.1",
        "A SIDR_REQ reaches the program that listens, with its private data",
        "IBTA 12.11; rdma_get_cm_event(3)",
        |b| {
            let mut peer = listened(b)?;
            let data: Vec<u8> = (1..=180).collect();
            let request = peer.sidr_req().with_private_at(IP_HEADER, &data);
            peer.tx(&request)?;
            told(&peer.event("CONNECT_REQUEST")?, &data)
        },
    ),
    must(
        "CM.SIDR.2",
        "An accepted one is answered with queue pair, Q_Key, service and private data",
        "IBTA 12.11.2; rdma_accept(3)",
        |b| {
            let mut peer = listened(b)?;
            let request = peer.sidr_req();
            let id = peer.asks(&request)?;
            let data: Vec<u8> = (1..=136).collect();
            peer.program("rdma_accept", |cm| cm.accept(id, 0x41_0203, &data))?;
            let reply = peer.rx(Kind::SidrRep)?;
            for (field, value) in [
                (LOCAL_ID, request.get(LOCAL_ID)),
                (sidr::STATUS, 0),
                (sidr::QPN, 0x41_0203),
                (sidr::QKEY, QKEY),
                (sidr::REP_SERVICE, peer.service()),
                (mad::TRANSACTION, request.get(mad::TRANSACTION)),
            ] {
                same(field.name, reply.get(field), value)?;
            }
            check(reply.private() == data, || "the private data is not the program's".into())
        },
    ),
    must(
        "CM.SIDR.3",
        "Where nobody listens the answer is: service not supported (1)",
        "IBTA 12.11.2.1",
        |b| {
            let mut peer = Peer::new(&b.world, Space::Udp)?;
            let request = peer.sidr_req();
            peer.tx(&request)?;
            same("status", peer.rx(Kind::SidrRep)?.get(sidr::STATUS), 1)
        },
    ),
    must("CM.SIDR.4", "A refused one is answered: rejected (2)", "IBTA 12.11.2.1; rdma_reject(3)", |b| {
        let mut peer = listened(b)?;
        let request = peer.sidr_req();
        let id = peer.asks(&request)?;
        peer.program("rdma_reject", |cm| cm.reject(id, &[]))?;
        same("status", peer.rx(Kind::SidrRep)?.get(sidr::STATUS), 2)
    }),
    must(
        "CM.SIDR.5",
        "A SIDR_REQ repeated before the program has answered is no second request",
        "IBTA 12.11",
        |b| {
            let mut peer = listened(b)?;
            let request = peer.sidr_req();
            peer.asks(&request)?;
            peer.tx(&request)?;
            peer.no_event()
        },
    ),
    must(
        "CM.SIDR.6",
        "A program that looks up a service asks with port, partition and private data",
        "IBTA 12.11.1; rdma_connect(3)",
        |b| {
            let mut peer = Peer::new(&b.world, Space::Udp)?;
            let data: Vec<u8> = (1..=180).collect();
            let (_, _, request) = peer.called(&data)?;
            same("partition", request.get(sidr::PKEY) & 0x7fff, 0x7fff)?;
            check(request.private()[IP_HEADER..] == data, || "the private data is not the program's".into())?;
            check(request.strays().is_empty(), || format!("bits are set in bytes {:?}", request.strays()))
        },
    ),
    must(
        "CM.SIDR.7",
        "The answer reaches it, with its private data",
        "IBTA 12.11.2; rdma_get_cm_event(3)",
        |b| {
            let mut peer = Peer::new(&b.world, Space::Udp)?;
            let (_, _, request) = peer.called(&[])?;
            let reply = answer(&peer, &request, 0).with(sidr::QPN, 0x777).with(sidr::QKEY, QKEY);
            peer.tx(&reply.with_private(&[5; 16]))?;
            told(&peer.event("ESTABLISHED")?, &[5; 16])
        },
    ),
    must("CM.SIDR.8", "A second answer is no second event", "IBTA 12.11", |b| {
        let mut peer = Peer::new(&b.world, Space::Udp)?;
        let (_, _, request) = peer.called(&[])?;
        let reply = answer(&peer, &request, 0).with(sidr::QPN, 0x777).with(sidr::QKEY, QKEY);
        peer.tx(&reply)?;
        peer.event("ESTABLISHED")?;
        peer.tx(&reply)?;
        peer.no_event()
    }),
    must("CM.SIDR.9", "An answer to another request is passed by", "IBTA 12.11.2", |b| {
        let mut peer = Peer::new(&b.world, Space::Udp)?;
        let (_, _, request) = peer.called(&[])?;
        let reply = answer(&peer, &request, 0).with(sidr::QPN, 0x777).with(sidr::QKEY, QKEY);
        peer.tx(&reply.with(LOCAL_ID, request.get(LOCAL_ID) ^ 0x5555))?;
        peer.no_event()
    }),
];

pub(super) fn add(all: &mut Vec<Case>) {
    all.extend(CASES.iter().cloned());
    let family = must(
        "CM.SIDR.STATUS",
        "An answer with status {}: the program is told of it",
        "IBTA 12.11.2.1; rdma_get_cm_event(3)",
        crate::case::template,
    );
    all.extend(family.family(numbered(1..=5), |b, status| {
        let mut peer = Peer::new(&b.world, Space::Udp)?;
        let (_, _, request) = peer.called(&[])?;
        peer.tx(&answer(&peer, &request, status.into()))?;
        same("the event's status", peer.event("UNREACHABLE")?.status, status as i32)
    }));
}
