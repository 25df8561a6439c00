//! cmtime (librdmacm/examples/cmtime.c): connections made and ended as fast as they can be, without a message.

use crate::{
    options::Role,
    peer::{Peer, tell},
    ucmatose::nothing_left,
};
use rxe_cm::{CmId, ConnParams, EventKind, proto::PortSpace};
use rxe_verbs::{Cq, Pd, QpInit, QpType};
use testbed::agent::Failure;

const PORT: u16 = 7471;

/// One domain and completion queue for all.
#[derive(Default)]
struct Shared(Option<(Pd, Cq)>);

impl Shared {
    fn qp(&mut self, id: &CmId) -> Result<(), Failure> {
        if self.0.is_none() {
            let context = id.context().ok_or("an id without a device")?;
            self.0 = Some((context.alloc_pd()?, context.create_cq(16, None)?));
        }
        let (pd, cq) = self.0.as_ref().ok_or("no domain")?;
        id.create_qp(pd, &QpInit::new(QpType::Rc, cq))?;
        Ok(())
    }
}

pub(crate) fn play(peer: &Peer) -> Result<(), Failure> {
    let mut shared = Shared::default();
    let connections = peer.options.connections()?;
    match peer.options.role {
        Role::Server => serve(peer, connections, &mut shared)?,
        Role::Client => {
            let to = peer.options.there(PORT)?;
            let ids =
                (0..connections).map(|_| peer.resolved(PortSpace::Tcp, to)).collect::<Result<Vec<_>, _>>()?;
            ids.iter().try_for_each(|id| shared.qp(id))?;
            let params = ConnParams {
                responder_resources: Some(1),
                initiator_depth: Some(1),
                retry_count: 2,
                rnr_retry_count: 0,
                ..ConnParams::default()
            };
            peer.connect(&ids, &params)?;
            ids.iter().try_for_each(|id| id.disconnect())?;
            (0..connections).try_for_each(|_| peer.expect("DISCONNECTED").map(drop))?;
        }
    }
    nothing_left(peer)
}

fn serve(peer: &Peer, connections: usize, shared: &mut Shared) -> Result<(), Failure> {
    let _listener = peer.listen(PortSpace::Tcp, peer.options.here(PORT)?)?;
    let (mut open, mut stood, mut ended) = (Vec::new(), 0, 0);
    while ended < connections {
        let event = peer.next()?;
        match event.kind {
            EventKind::ConnectRequest(_) => {
                shared.qp(&event.id)?;
                event.id.accept(&ConnParams::default())?;
                open.push(event.id);
            }
            EventKind::Established(_) => stood += 1,
            EventKind::Disconnected => {
                event.id.disconnect()?;
                ended += 1;
            }
            _ => return Err(tell(&event)),
        }
    }
    if stood == connections { Ok(()) } else { Err(format!("{stood} of {connections} stood").into()) }
}
