//! A connection that is held until somebody kills us.

use crate::{options::Role, peer::Peer};
use rxe_cm::{CmId, ConnParams, proto::PortSpace};
use rxe_verbs::{QpInit, QpType};
use std::{
    io::{Write, stdout},
    thread::park,
};
use testbed::agent::Failure;

/// What is printed when the connection stands.
pub(crate) const STANDS: &str = "stands";
const PORT: u16 = 7471;

pub(crate) fn play(peer: &Peer) -> Result<(), Failure> {
    let _listener;
    let id = match peer.options.role {
        Role::Client => {
            let id = peer.resolved(PortSpace::Tcp, peer.options.there(PORT)?)?;
            equip(&id)?;
            id.connect(&ConnParams::default())?;
            id
        }
        Role::Server => {
            _listener = peer.listen(PortSpace::Tcp, peer.options.here(PORT)?)?;
            let id = peer.expect("CONNECT_REQUEST")?.id;
            equip(&id)?;
            id.accept(&ConnParams::default())?;
            id
        }
    };
    peer.expect("ESTABLISHED")?;
    println!("{STANDS}");
    stdout().flush()?;
    loop {
        park();
        // Not ours to end.
        let _ = &id;
    }
}

/// The id keeps what belongs to its queue pair.
fn equip(id: &CmId) -> Result<(), Failure> {
    let context = id.context().ok_or("an id without a device")?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(4, None)?);
    id.create_qp(&pd, &QpInit::new(QpType::Rc, &cq))?;
    Ok(())
}
