//! udaddy (librdmacm/examples/udaddy.c): datagram services found by SIDR. The client sends its messages; the server answers
//! each id's from the buffer that it has received into, network header and all, to the number in the immediate data.

use crate::{
    node::{GRH, Node},
    options::Role,
    peer::{Peer, tell},
};
use rxe_cm::{ConnParams, EventKind, Offer, UDP_QKEY, proto::PortSpace};
use rxe_verbs::{Gid, Qpn, UdDest, WcExtra};
use testbed::{agent::Failure, pattern::pattern};

const PORT: u16 = 7174;

pub(crate) fn play(peer: &Peer) -> Result<(), Failure> {
    let options = &peer.options;
    let (connections, messages, size) = (options.connections()?, options.messages()?, options.size()?);
    match options.role {
        Role::Server => {
            let nodes = answer_all(peer, connections)?;
            for node in &nodes {
                let last = node.receive(messages)?.ok_or("no message")?;
                let WcExtra::Immediate(qpn) = last.extra else {
                    return Err(format!("{last:?} has no immediate data").into());
                };
                let qpn = Qpn::new(u32::from_be_bytes(qpn));
                if qpn != last.src_qp {
                    return Err(format!("queue pair {qpn} says that it is {}", last.src_qp).into());
                }
                let context = node.id.context().ok_or("an id without a device")?;
                let local = node.id.local_addr().ok_or("an id without an address")?.ip();
                let index = context.gids().iter().find(|(_, gid)| *gid == Gid::from(local));
                let (index, _) = index.ok_or("our address has no GID")?;
                let av = context.address_vector(index, Gid::from(options.theirs))?;
                node.send_to(UdDest { av, remote_qpn: qpn, remote_qkey: UDP_QKEY, pkey: None }, messages)?;
            }
            Ok(())
        }
        Role::Client => {
            let to = options.there(PORT)?;
            let nodes = (1..=connections)
                .map(|seed| Node::new(peer.resolved(PortSpace::Udp, to)?, messages, size, seed as u64))
                .collect::<Result<Vec<_>, _>>()?;
            let ids: Vec<_> = nodes.iter().map(|node| node.id.clone()).collect();
            for event in peer.connect(&ids, &ConnParams::default())? {
                let EventKind::Established(Offer::Datagram(Some(terms))) = event.kind else {
                    return Err(tell(&event));
                };
                let node = nodes.iter().find(|node| node.id.is_same(&event.id)).ok_or("an unknown id")?;
                let dest =
                    UdDest { av: terms.av, remote_qpn: terms.qpn, remote_qkey: terms.qkey, pkey: None };
                node.send_to(dest, messages)?;
            }
            for (seed, node) in (1..).zip(&nodes) {
                node.receive(messages)?;
                node.compare(messages, GRH, &pattern(seed, size)[..size - GRH])?;
            }
            Ok(())
        }
    }
}

/// Answers so many requests.
fn answer_all(peer: &Peer, connections: usize) -> Result<Vec<Node>, Failure> {
    let (messages, size) = (peer.options.messages()?, peer.options.size()?);
    let _listener = peer.listen(PortSpace::Udp, peer.options.here(PORT)?)?;
    (0..connections)
        .map(|seed| {
            let event = peer.expect("CONNECT_REQUEST")?;
            let node = Node::new(event.id, messages, size, seed as u64)?;
            node.id.accept(&ConnParams::default())?;
            Ok(node)
        })
        .collect()
}
