//! ucmatose (librdmacm/examples/cmatose.c): many connections at once. The server sends its messages on all of them, the
//! client answers from the very buffer that it has received into, the server disconnects.

use crate::{
    node::Node,
    options::Role,
    peer::{PATIENCE, Peer, tell},
};
use rxe_cm::{ConnParams, EventKind, proto::PortSpace};
use std::{
    thread::sleep,
    time::{Duration, Instant},
};
use testbed::{agent::Failure, pattern::pattern};

const PORT: u16 = 7471;

pub(crate) fn play(peer: &Peer) -> Result<(), Failure> {
    let options = &peer.options;
    let (connections, messages, size) = (options.connections()?, options.messages()?, options.size()?);
    match options.role {
        Role::Server => {
            let nodes = accept_all(peer, connections)?;
            nodes.iter().try_for_each(|node| node.send(messages))?;
            for (seed, node) in (1..).zip(&nodes) {
                node.receive(messages)?;
                // What we had sent to it.
                node.compare(messages, 0, &pattern(seed, size))?;
            }
            nodes.iter().try_for_each(|node| node.id.disconnect())?;
            disconnected(peer, connections, false)
        }
        Role::Client => {
            let to = options.there(PORT)?;
            let nodes = (1..=connections)
                .map(|seed| Node::new(peer.resolved(PortSpace::Tcp, to)?, messages, size, seed as u64))
                .collect::<Result<Vec<_>, _>>()?;
            let ids: Vec<_> = nodes.iter().map(|node| node.id.clone()).collect();
            let params = ConnParams {
                responder_resources: Some(1),
                initiator_depth: Some(1),
                retry_count: 5,
                ..ConnParams::default()
            };
            peer.connect(&ids, &params)?;
            nodes.iter().try_for_each(|node| node.receive(messages).map(drop))?;
            nodes.iter().try_for_each(|node| node.send(messages))?;
            disconnected(peer, connections, true)
        }
    }
}

/// Takes connections until there are so many and all stand.
fn accept_all(peer: &Peer, connections: usize) -> Result<Vec<Node>, Failure> {
    let (messages, size) = (peer.options.messages()?, peer.options.size()?);
    let _listener = peer.listen(PortSpace::Tcp, peer.options.here(PORT)?)?;
    let (mut nodes, mut stand) = (Vec::new(), 0);
    while stand < connections {
        let event = peer.next()?;
        match event.kind {
            EventKind::ConnectRequest(_) => {
                let node = Node::new(event.id, messages, size, nodes.len() as u64 + 1)?;
                node.id.accept(&ConnParams::default())?;
                nodes.push(node);
            }
            EventKind::Established(_) => stand += 1,
            _ => return Err(tell(&event)),
        }
    }
    Ok(nodes)
}

/// Waits for the end of all connections, then for that of TIMEWAIT: nothing may be left.
fn disconnected(peer: &Peer, connections: usize, agree: bool) -> Result<(), Failure> {
    for _ in 0..connections {
        let event = peer.expect("DISCONNECTED")?;
        if agree {
            event.id.disconnect()?;
        }
    }
    nothing_left(peer)
}

/// Waits until the connection manager has forgotten all connections.
pub(crate) fn nothing_left(peer: &Peer) -> Result<(), Failure> {
    let end = Instant::now() + PATIENCE;
    while peer.manager.connections() > 0 {
        if Instant::now() > end {
            return Err(format!("{} connections are left", peer.manager.connections()).into());
        }
        sleep(Duration::from_millis(10));
    }
    Ok(())
}
