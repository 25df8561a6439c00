//! ucmatose (librdmacm/examples/cmatose.c): many connections at once. The server sends its messages on all of them, the
//! client answers from the very buffer that it has received into, the server disconnects.

use crate::{
    options::Role,
    peer::{PATIENCE, Peer, completion, part, same, tell},
};
use rxe_cm::{CmId, ConnParams, EventKind, proto::PortSpace};
use rxe_verbs::{Access, Cq, Mr, Pd, Qp, QpCaps, QpInit, QpType, RecvWr, SendOp, SendWr};
use std::{sync::Arc, time::Instant};
use testbed::{agent::Failure, pattern::pattern};

const PORT: u16 = 7471;

/// One connection.
struct Node {
    id: CmId,
    qp: Arc<Qp>,
    sent: Cq,
    received: Cq,
    /// What we send, and behind it a place for each message that we receive.
    memory: Mr,
    seed: u64,
    _pd: Pd,
}

impl Node {
    fn new(peer: &Peer, id: CmId, seed: u64) -> Result<Self, Failure> {
        let (messages, size) = (peer.options.messages()?, peer.options.size()?);
        let context = id.context().ok_or("an id without a device")?;
        let pd = context.alloc_pd()?;
        let depth = u32::try_from(messages.max(1))?;
        let (sent, received) = (context.create_cq(depth, None)?, context.create_cq(depth, None)?);
        let init = QpInit { recv_cq: &received, ..QpInit::new(QpType::Rc, &sent) };
        let caps = QpCaps { max_send_wr: depth, max_recv_wr: depth, ..init.caps };
        let init = QpInit { caps, ..init };
        let qp = id.create_qp(&pd, &init)?;
        let memory = pd.alloc_mr(size * (messages + 1), Access::LOCAL_WRITE)?;
        memory.write_at(0, &pattern(seed, size))?;
        for message in 0..messages {
            let place = part(&memory, size * (message + 1), size);
            qp.post_recv(&RecvWr { wr_id: message as u64, sges: &[place] })?;
        }
        Ok(Self { id, qp, sent, received, memory, seed, _pd: pd })
    }

    fn send(&self, messages: usize, size: usize) -> Result<(), Failure> {
        for message in 0..messages {
            let sges = [part(&self.memory, 0, size)];
            self.qp.post_send(&SendWr::new(message as u64, SendOp::Send, &sges))?;
        }
        Ok(())
    }

    fn await_sent(&self, messages: usize) -> Result<(), Failure> {
        (0..messages).try_for_each(|_| completion(&self.sent).map(drop))
    }

    /// Takes all messages, which come in order and have their full length.
    fn receive(&self, messages: usize, size: usize) -> Result<(), Failure> {
        for message in 0..messages {
            let wc = completion(&self.received)?;
            if (wc.wr_id, wc.byte_len as usize) != (message as u64, size) {
                return Err(format!("message {message} of {size} bytes came as {wc:?}").into());
            }
        }
        Ok(())
    }

    /// Whether the client's answers are what we had sent to it.
    fn compare(&self, messages: usize, size: usize) -> Result<(), Failure> {
        let want = pattern(self.seed, size);
        (0..messages).try_for_each(|message| {
            same("an answer", &self.memory.read_vec(size * (message + 1), size)?, &want)
        })
    }
}

pub(crate) fn play(peer: &Peer) -> Result<(), Failure> {
    let (connections, messages, size) =
        (peer.options.connections()?, peer.options.messages()?, peer.options.size()?);
    match peer.options.role {
        Role::Server => {
            let nodes = accept_all(peer, connections)?;
            nodes.iter().try_for_each(|node| node.send(messages, size))?;
            nodes.iter().try_for_each(|node| node.await_sent(messages))?;
            nodes.iter().try_for_each(|node| node.receive(messages, size))?;
            nodes.iter().try_for_each(|node| node.compare(messages, size))?;
            nodes.iter().try_for_each(|node| node.id.disconnect())?;
            disconnected(peer, connections, false)
        }
        Role::Client => {
            let to = peer.options.there(PORT)?;
            let nodes = (0..connections)
                .map(|seed| Node::new(peer, peer.resolved(PortSpace::Tcp, to)?, seed as u64 + 1))
                .collect::<Result<Vec<_>, _>>()?;
            let ids: Vec<_> = nodes.iter().map(|node| node.id.clone()).collect();
            let params = ConnParams {
                responder_resources: Some(1),
                initiator_depth: Some(1),
                retry_count: 5,
                ..ConnParams::default()
            };
            peer.connect(&ids, &params)?;
            nodes.iter().try_for_each(|node| node.receive(messages, size))?;
            nodes.iter().try_for_each(|node| node.send(messages, size))?;
            nodes.iter().try_for_each(|node| node.await_sent(messages))?;
            disconnected(peer, connections, true)
        }
    }
}

/// Takes connections until there are so many and all stand.
fn accept_all(peer: &Peer, connections: usize) -> Result<Vec<Node>, Failure> {
    let _listener = peer.listen(PortSpace::Tcp, peer.options.here(PORT)?)?;
    let (mut nodes, mut stand) = (Vec::new(), 0);
    while stand < connections {
        let event = peer.next()?;
        match event.kind {
            EventKind::ConnectRequest(_) => {
                let node = Node::new(peer, event.id, nodes.len() as u64 + 1)?;
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
    let end = Instant::now() + PATIENCE;
    while peer.manager.connections() > 0 {
        if Instant::now() > end {
            return Err(format!("{} connections are left", peer.manager.connections()).into());
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Ok(())
}
