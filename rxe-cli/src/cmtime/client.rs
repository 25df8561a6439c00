//! The client: all connections complete a step before the next step begins.

use super::{
    Args, Shelf, channel,
    steps::{Step, Table, Watch},
};
use crate::{Result, cm};
use rxe_cm::{CmError, CmId, ConnParams, EventChannel, EventKind, Manager, proto::PortSpace};
use std::{collections::HashMap, net::SocketAddr, time::Instant};

struct Client<'a> {
    args: &'a Args,
    peer: SocketAddr,
    events: EventChannel,
    ids: Vec<CmId>,
    numbers: HashMap<CmId, usize>,
    steps: Vec<Step>,
}

pub(super) fn run(args: &Args, peer: SocketAddr) -> Result<Table> {
    let count = args.connections.unwrap_or(100) as usize;
    let manager = Manager::open()?;
    let (ids, numbers) = (Vec::with_capacity(count), HashMap::with_capacity(count));
    let mut client = Client { args, peer, events: channel()?, ids, numbers, steps: Vec::new() };
    client.create(&manager, count)?;
    let from = args.bind.map(|ip| SocketAddr::new(ip, 0));
    if let Some(from) = from {
        client.simple("bind addr", |id| Ok(id.bind(from)?))?;
    }
    client.exchange(
        "resolve addr",
        |id| id.resolve_addr(None, peer),
        |kind| matches!(kind, EventKind::AddrResolved),
    )?;
    client.exchange("resolve route", CmId::resolve_route, |kind| matches!(kind, EventKind::RouteResolved))?;
    let mut shelf = Shelf::default();
    client.simple("create qp", |id| shelf.equip(id))?;
    let params = ConnParams {
        responder_resources: Some(1),
        initiator_depth: Some(1),
        retry_count: args.retries,
        ..ConnParams::default()
    };
    client.exchange("connect", |id| id.connect(&params), |kind| matches!(kind, EventKind::Established(_)))?;
    client.exchange("disconnect", CmId::disconnect, |kind| matches!(kind, EventKind::Disconnected { .. }))?;
    client.destroy();
    Ok(Table::new(count, client.steps, "connect").in_sequence("connect"))
}

impl Client<'_> {
    fn create(&mut self, manager: &Manager, count: usize) -> Result<()> {
        let mut watch = Watch::new("create id");
        for number in 0..count {
            let start = Instant::now();
            let id = manager.create_id(&self.events, PortSpace::Tcp)?;
            watch.lap(start);
            self.numbers.insert(id.clone(), number);
            self.ids.push(id);
        }
        self.steps.push(watch.read());
        Ok(())
    }

    /// A step that is complete when its call returns.
    fn simple(&mut self, step: &'static str, mut work: impl FnMut(&CmId) -> Result<()>) -> Result<()> {
        let mut watch = Watch::new(step);
        for (number, id) in self.ids.iter().enumerate() {
            let start = Instant::now();
            work(id).map_err(|error| self.says(step, number, &error))?;
            watch.lap(start);
        }
        self.steps.push(watch.read());
        Ok(())
    }

    /// A step that is complete when its event arrives.
    fn exchange(
        &mut self,
        step: &'static str,
        begin: impl Fn(&CmId) -> std::result::Result<(), CmError>,
        hoped: impl Fn(&EventKind) -> bool,
    ) -> Result<()> {
        let mut watch = Watch::new(step);
        let mut starts: Vec<Instant> = Vec::with_capacity(self.ids.len());
        let mut done = 0;
        while done < self.ids.len() {
            while starts.len() < self.ids.len() && starts.len() - done < self.args.window as usize {
                let number = starts.len();
                starts.push(Instant::now());
                begin(&self.ids[number]).map_err(|error| self.says(step, number, &error))?;
            }
            let Some(event) = cm::next(&self.events, Some(self.args.patience()))? else {
                let (ip, left) = (self.peer.ip(), starts.len() - done);
                let seconds = self.args.timeout;
                return Err(format!(
                    "{step}: {left} connections wait for {ip}, and nothing has happened for {seconds} s; is it still there?"
                )
                .into());
            };
            let number = self.numbers.get(&event.id).copied();
            let Some((number, start)) = number.and_then(|number| Some((number, *starts.get(number)?))) else {
                continue;
            };
            match event.kind {
                EventKind::TimewaitExit => {}
                kind if hoped(&kind) => {
                    watch.lap(start);
                    done += 1;
                }
                kind => return Err(self.says(step, number, &cm::failure(&kind, self.peer))),
            }
        }
        self.steps.push(watch.read());
        Ok(())
    }

    fn says(&self, step: &str, number: usize, what: &dyn std::fmt::Display) -> crate::Error {
        format!("{step}, connection {} of {}: {what}", number + 1, self.ids.len()).into()
    }

    fn destroy(&mut self) {
        self.numbers.clear();
        let mut watch = Watch::new("destroy");
        // Events keep their ids alive.
        while self.events.try_get_event().is_some() {}
        for id in self.ids.drain(..) {
            let start = Instant::now();
            drop(id);
            watch.lap(start);
        }
        self.steps.push(watch.read());
    }
}
