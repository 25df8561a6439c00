//! The end of connections: DREQ and DREP, crossing and repeated, and what waits afterwards; LAP.

use super::{SEVERAL, accepted, connected, listened, peer};
use crate::{
    case::{Case, Outcome, may, must, same, should},
    cm::{Link, Peer, SOON, told},
    wire::cm::{Kind, LOCAL_ID, Message, REMOTE_ID, mad, other, req},
};

/// The program is told nothing of this message, and its connection still stands afterwards, since a DREQ then ends it.
fn harmless(peer: &Peer, link: &Link, message: &Message) -> Outcome {
    peer.tx(message)?;
    peer.no_event()?;
    peer.tx(&peer.about(link, Kind::Dreq))?;
    peer.event("DISCONNECTED").map(|_| ())
}

const CASES: &[Case] = &[
    must(
        "CM.DREQ.1",
        "A program that ends its connection sends a DREQ with both IDs and our queue pair",
        "IBTA 12.6.10, 12.9.8.4",
        |b| {
            let (mut peer, link) = connected(b)?;
            peer.program("rdma_disconnect", |cm| cm.disconnect(link.id))?;
            let dreq = peer.rx(Kind::Dreq)?;
            same("local ID", dreq.get(LOCAL_ID), link.far.into())?;
            same("remote ID", dreq.get(REMOTE_ID), link.own.into())?;
            same("queue pair", dreq.get(other::DREQ_QPN), link.qpn.into())
        },
    ),
    must(
        "CM.DREQ.2",
        "A DREP ends the connection, and later its waiting",
        "IBTA 12.9.8.4, 12.9.8.9; rdma_get_cm_event(3)",
        |b| {
            let (mut peer, link) = connected(b)?;
            peer.program("rdma_disconnect", |cm| cm.disconnect(link.id))?;
            let dreq = peer.rx(Kind::Dreq)?;
            peer.tx(&peer.reply(&dreq, Kind::Drep))?;
            peer.event("DISCONNECTED")?;
            let event = peer.event_within(SEVERAL)?;
            same("the next event", event.map(|event| event.event).as_deref(), Some("TIMEWAIT_EXIT"))
        },
    ),
    must(
        "CM.DREQ.3",
        "A DREQ of ours reaches the program, and is answered by a DREP when it agrees",
        "IBTA 12.9.8.4",
        |b| {
            let (mut peer, link) = connected(b)?;
            let dreq = peer.about(&link, Kind::Dreq).with(mad::TRANSACTION, 0x77);
            let drep = peer.ended(&link, &dreq)?;
            same("local ID", drep.get(LOCAL_ID), link.far.into())?;
            same("remote ID", drep.get(REMOTE_ID), link.own.into())?;
            same("transaction ID", drep.get(mad::TRANSACTION), 0x77)
        },
    ),
    must("CM.DREQ.4", "A DREQ repeated afterwards is answered again", "IBTA 12.9.8.4, 12.9.8.9", |b| {
        let mut peer = listened(b)?;
        let link = peer.passive_with(|request| request.with(req::ACK_TIMEOUT, 19))?;
        let dreq = peer.about(&link, Kind::Dreq);
        let drep = peer.ended(&link, &dreq)?;
        peer.tx(&dreq)?;
        peer.again(&drep, SEVERAL)
    }),
    must("CM.DREQ.5", "A DREQ repeated before the program agrees is no second event", "IBTA 12.9.8.4", |b| {
        let (peer, link) = connected(b)?;
        let dreq = peer.about(&link, Kind::Dreq);
        peer.tx(&dreq)?;
        peer.event("DISCONNECTED")?;
        peer.tx(&dreq)?;
        peer.no_event()
    }),
    must("CM.DREQ.6", "A DREQ that names another queue pair ends nothing", "IBTA 12.6.10, 12.9.8.4", |b| {
        let (peer, link) = connected(b)?;
        peer.tx(&peer.about(&link, Kind::Dreq).with(other::DREQ_QPN, 0x3333))?;
        peer.no_event()
    }),
    should(
        "CM.DREQ.7",
        "A DREQ for a connection that nobody knows is answered by a DREP",
        "IBTA 12.9.8.4",
        |b| {
            let mut peer = peer(b)?;
            let own = peer.new_id();
            let dreq = Message::new(Kind::Dreq)
                .with(mad::TRANSACTION, 0x78)
                .with(LOCAL_ID, own.into())
                .with(REMOTE_ID, 0x7654_3210);
            peer.tx(&dreq)?;
            same("remote ID", peer.rx(Kind::Drep)?.get(REMOTE_ID), own.into())
        },
    ),
    must("CM.DREQ.8", "Crossing DREQs end the connection, and ours is answered", "IBTA 12.9.8.4", |b| {
        let (mut peer, link) = connected(b)?;
        peer.program("rdma_disconnect", |cm| cm.disconnect(link.id))?;
        peer.rx(Kind::Dreq)?;
        peer.tx(&peer.about(&link, Kind::Dreq))?;
        // Kernels send the DREP only when the program calls rdma_disconnect once more.
        peer.event("DISCONNECTED")?;
        let _ = peer.program("rdma_disconnect", |cm| cm.disconnect(link.id));
        peer.rx(Kind::Drep).map(|_| ())
    }),
    must(
        "CM.DREQ.9",
        "A DREQ that is not answered is sent again, and is the same",
        "IBTA 12.9.8.4, 12.10.4",
        |b| {
            let mut peer = listened(b)?;
            let link = peer.passive_with(|request| request.with(req::LOCAL_TIMEOUT, SOON))?;
            peer.program("rdma_disconnect", |cm| cm.disconnect(link.id))?;
            let dreq = peer.rx(Kind::Dreq)?;
            peer.again(&dreq, SEVERAL)
        },
    ),
    must(
        "CM.DREQ.10",
        "A peer that never answers a DREQ does not keep the connection",
        "IBTA 12.9.8.4",
        |b| {
            let mut peer = listened(b)?;
            let link =
                peer.passive_with(|request| request.with(req::LOCAL_TIMEOUT, SOON).with(req::CM_RETRIES, 2))?;
            peer.program("rdma_disconnect", |cm| cm.disconnect(link.id))?;
            let event = peer.event_within(SEVERAL)?;
            same("the next event", event.map(|event| event.event).as_deref(), Some("DISCONNECTED"))
        },
    )
    .slow(),
    must(
        "CM.DREQ.11",
        "An id that is destroyed ends its connection by a DREQ",
        "IBTA 12.9.8.4; rdma_destroy_id(3)",
        |b| {
            let (mut peer, link) = connected(b)?;
            b.world.borrow_mut().dut.close(link.id)?;
            peer.rx(Kind::Dreq).map(|_| ())
        },
    ),
    must("CM.DREQ.12", "The end that connected is ended by a DREQ, too", "IBTA 12.9.8.4", |b| {
        let mut peer = peer(b)?;
        let link = peer.active()?;
        let dreq = peer.about(&link, Kind::Dreq).with(mad::TRANSACTION, 0x79);
        same("transaction ID", peer.ended(&link, &dreq)?.get(mad::TRANSACTION), 0x79)
    }),
    must(
        "CM.DREQ.13",
        "A DREQ in place of the RTU ends a connection that has not stood yet",
        "IBTA 12.9.8.7",
        |b| {
            let (peer, _, link, _) = accepted(b, |request| request)?;
            peer.tx(&peer.about(&link, Kind::Dreq))?;
            peer.event("DISCONNECTED").map(|_| ())
        },
    ),
    must("CM.DREQ.14", "A DREP that nobody asked for ends nothing", "IBTA 12.9.8.4", |b| {
        let (peer, link) = connected(b)?;
        peer.tx(&peer.about(&link, Kind::Drep))?;
        peer.no_event()
    }),
    must("CM.TIMEWAIT.1", "Its queue pair may be connected again after the waiting", "IBTA 12.9.8.9", |b| {
        let (mut peer, link) = connected(b)?;
        peer.ended(&link, &peer.about(&link, Kind::Dreq))?;
        peer.event_within(SEVERAL)?;
        let request = peer.req().with(req::QPN, link.qpn.into()).with_private_at(36, &[6; 3]);
        peer.tx(&request)?;
        told(&peer.event("CONNECT_REQUEST")?, &[6; 3])
    }),
    must("CM.TIMEWAIT.2", "A REJ for a connection that stands, stale, ends it", "IBTA 12.9.8.3.1", |b| {
        let (peer, _, _, reply) = accepted(b, |request| request)?;
        peer.tx(&peer.rej(&reply, 10))?;
        same("status", peer.event("REJECTED")?.status, 10)
    }),
    must("CM.LAP.1", "A LAP does a connection no harm", "IBTA 12.6.11, 12.8", |b| {
        let (peer, link) = connected(b)?;
        harmless(&peer, &link, &peer.about(&link, Kind::Lap))
    }),
    may("CM.LAP.2", "A LAP is answered by an APR", "IBTA 12.6.12, 12.8", |b| {
        let (mut peer, link) = connected(b)?;
        peer.tx(&peer.about(&link, Kind::Lap))?;
        peer.rx(Kind::Apr).map(|_| ())
    }),
    must("CM.APR.1", "An APR that nobody asked for does a connection no harm", "IBTA 12.6.12", |b| {
        let (peer, link) = connected(b)?;
        harmless(&peer, &link, &peer.about(&link, Kind::Apr).with(other::APR_STATUS, 1))
    }),
    must("CM.MRA.1", "An MRA that nobody waits for does a connection no harm", "IBTA 12.6.6", |b| {
        let (peer, link) = connected(b)?;
        let wait = peer.about(&link, Kind::Mra).with(other::MESSAGE, 2).with(other::SERVICE_TIMEOUT, 24);
        harmless(&peer, &link, &wait)
    }),
];

pub(super) fn add(all: &mut Vec<Case>) {
    all.extend(CASES.iter().cloned());
}
