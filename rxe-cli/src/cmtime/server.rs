//! The server: accepts every connection, and ends it when the client does.

use super::{
    Shelf, channel,
    steps::{Table, Watch},
};
use crate::{Result, cm, output};
use rxe_cm::{CmId, ConnParams, EventKind, Manager, proto::PortSpace};
use std::{collections::HashMap, net::SocketAddr, time::Instant};

struct Server {
    shelf: Shelf,
    /// Connections, and when they were accepted.
    open: HashMap<CmId, Instant>,
    create_qp: Watch,
    accept: Watch,
    destroy: Watch,
    stood: usize,
    ended: usize,
}

/// Runs until `count` connections have ended, or without a count for ever.
pub(super) fn run(address: SocketAddr, count: Option<usize>) -> Result<Table> {
    let manager = Manager::open()?;
    let events = channel()?;
    let listener = manager.create_id(&events, PortSpace::Tcp)?;
    listener.bind(address)?;
    listener.listen(0)?;
    output::waits(address);
    let mut server = Server {
        shelf: Shelf::default(),
        open: HashMap::new(),
        create_qp: Watch::new("create qp"),
        accept: Watch::new("accept"),
        destroy: Watch::new("destroy"),
        stood: 0,
        ended: 0,
    };
    while count.is_none_or(|count| server.ended < count) {
        if let Some(event) = cm::next(&events, None)? {
            server.handle(event.id, event.kind);
        }
        if count.is_none() {
            server.forget();
        }
    }
    let steps = [server.create_qp, server.accept, server.destroy].map(Watch::read).into();
    Ok(Table::new(server.stood, steps, "accept"))
}

impl Server {
    fn accept(&mut self, id: &CmId) -> Result<()> {
        let start = Instant::now();
        self.shelf.equip(id)?;
        self.create_qp.lap(start);
        let start = Instant::now();
        id.accept(&ConnParams::default())?;
        self.open.insert(id.clone(), start);
        Ok(())
    }

    fn handle(&mut self, id: CmId, kind: EventKind) {
        match kind {
            EventKind::ConnectRequest(_) => {
                if let Err(error) = self.accept(&id) {
                    // Refused, because its id is dropped, or the client has given up meanwhile.
                    eprintln!("rxe: a connection was not accepted: {error}");
                }
            }
            EventKind::Established(_) => {
                if let Some(start) = self.open.get(&id) {
                    self.accept.lap(*start);
                    self.stood += 1;
                }
            }
            EventKind::TimewaitExit => {}
            other => {
                if let EventKind::Disconnected { .. } = other {
                    // The client may have ended it at the same time.
                    let _ = id.disconnect();
                    self.ended += 1;
                } else {
                    let peer = id.peer_addr().map_or_else(String::new, |peer| format!(" {peer}"));
                    eprintln!("rxe: the connection with{peer} was not made: {}", other.words());
                }
                let start = Instant::now();
                self.open.remove(&id);
                drop(id);
                self.destroy.lap(start);
            }
        }
    }

    /// A server without a count keeps no times, because they would not be printed.
    fn forget(&mut self) {
        (self.create_qp, self.accept, self.destroy) = (Watch::new(""), Watch::new(""), Watch::new(""));
    }
}
