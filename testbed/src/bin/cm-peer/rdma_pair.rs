//! rdma_client and rdma_server (one message of 16 bytes there and one back), rdma_xclient and rdma_xserver over RC (one
//! message there): librdmacm's examples of its synchronous calls. Their bytes are zeroes.

use crate::{
    options::Role,
    peer::{Peer, completion, part, same},
};
use rxe_cm::{CmId, ConnParams, proto::PortSpace};
use rxe_verbs::{Access, Cq, Mr, Pd, Qp, QpInit, QpType, RecvWr, SendOp, SendWr};
use std::sync::Arc;
use testbed::agent::Failure;

const PORT: u16 = 7471;
const LEN: usize = 16;
/// What must not be left of the place that is received into.
const STALE: u8 = 0xee;

struct End {
    id: CmId,
    qp: Arc<Qp>,
    cq: Cq,
    memory: Mr,
    _pd: Pd,
}

impl End {
    fn new(id: CmId) -> Result<Self, Failure> {
        let context = id.context().ok_or("an id without a device")?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(4, None)?;
        let qp = id.create_qp(&pd, &QpInit::new(QpType::Rc, &cq))?;
        let memory = pd.alloc_mr(2 * LEN, Access::LOCAL_WRITE)?;
        memory.write_at(LEN, &[STALE; LEN])?;
        qp.post_recv(&RecvWr { wr_id: 1, sges: &[part(&memory, LEN, LEN)] })?;
        Ok(Self { id, qp, cq, memory, _pd: pd })
    }

    fn open(peer: &Peer) -> Result<Self, Failure> {
        match peer.options.role {
            Role::Client => {
                let end = Self::new(peer.resolved(PortSpace::Tcp, peer.options.there(PORT)?)?)?;
                peer.connect(std::slice::from_ref(&end.id), &ConnParams::default())?;
                Ok(end)
            }
            Role::Server => {
                let _listener = peer.listen(PortSpace::Tcp, peer.options.here(PORT)?)?;
                let end = Self::new(peer.expect("CONNECT_REQUEST")?.id)?;
                end.id.accept(&ConnParams::default())?;
                peer.expect("ESTABLISHED")?;
                Ok(end)
            }
        }
    }

    fn send(&self) -> Result<(), Failure> {
        let sges = [part(&self.memory, 0, LEN)];
        self.qp.post_send(&SendWr::new(2, SendOp::Send, &sges))?;
        let wc = completion(&self.cq)?;
        if wc.wr_id == 2 { Ok(()) } else { Err(format!("expected the SEND's end, not {wc:?}").into()) }
    }

    fn receive(&self) -> Result<(), Failure> {
        let wc = completion(&self.cq)?;
        if (wc.wr_id, wc.byte_len as usize) != (1, LEN) {
            return Err(format!("expected {LEN} bytes, not {wc:?}").into());
        }
        same("what was received", &self.memory.read_vec(LEN, LEN)?, &[0; LEN])
    }

    /// Both ends hang up as soon as they have theirs: either may be the first.
    fn end(self, peer: &Peer) -> Result<(), Failure> {
        self.id.disconnect()?;
        peer.expect("DISCONNECTED").map(drop)
    }
}

pub(crate) fn play(peer: &Peer) -> Result<(), Failure> {
    let end = End::open(peer)?;
    match peer.options.role {
        Role::Client => {
            end.send()?;
            end.receive()?;
        }
        Role::Server => {
            end.receive()?;
            // rdma_client destroys its queue pair as soon as it has the answer, acknowledged or not; its exit code tells.
            if let Err(error) = end.send() {
                println!("the answer was not acknowledged: {error}");
            }
        }
    }
    end.end(peer)
}

pub(crate) fn play_one_way(peer: &Peer) -> Result<(), Failure> {
    let end = End::open(peer)?;
    match peer.options.role {
        Role::Client => end.send()?,
        Role::Server => end.receive()?,
    }
    end.end(peer)
}
