//! mckey (librdmacm/examples/mckey.c): datagrams to a multicast group that both ends have joined. The receiver is the server
//! here. No end waits for the other: the sender goes on until the receiver's program has ended.

use crate::{
    node::Node,
    options::Role,
    peer::{Peer, tell},
};
use rxe_cm::{EventKind, proto::PortSpace};
use rxe_verbs::{Qpn, UdDest};
use std::net::{IpAddr, SocketAddr};
use testbed::agent::Failure;

pub(crate) fn play(peer: &Peer) -> Result<(), Failure> {
    let options = &peer.options;
    let (messages, size) = (options.messages()?, options.size()?);
    let group: IpAddr = options.get("group", IpAddr::from([239, 1, 2, 3]))?;
    let id = peer.id(PortSpace::Udp)?;
    id.bind(SocketAddr::new(options.ours, 0))?;
    let node = Node::new(id, messages, size, 5)?;
    node.id.join_multicast(group)?;
    let event = peer.expect("MULTICAST_JOIN")?;
    let EventKind::MulticastJoin(terms) = event.kind else { return Err(tell(&event)) };
    if terms.qpn != Qpn::MULTICAST || terms.av.dst != group {
        return Err(format!("joined {terms:?}, not {group}").into());
    }
    match options.role {
        Role::Server => {
            crate::peer::ready()?;
            let last = node.receive(messages)?;
            println!("the last: {last:?}");
        }
        Role::Client => {
            let dest = UdDest { av: terms.av, remote_qpn: terms.qpn, remote_qkey: terms.qkey, pkey: None };
            // Until it is stopped.
            loop {
                node.send_to(dest, messages)?;
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
        }
    }
    Ok(node.id.leave_multicast(group)?)
}
