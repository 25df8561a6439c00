//! `rxe listen`: accepts connections or requests for a datagram service, and prints each message.

use super::{
    Data, find_listen, next, parse_seconds,
    show::{Look, Show},
};
use crate::Result;
use rxe_cm::{
    CmError, CmEvent, CmId, ConnParams, EventChannel, EventKind, Manager, Offer,
    proto::{PortSpace, PrivateData, ServiceId},
};
use rxe_verbs::{QpInit, QpType};
use std::{collections::VecDeque, thread, time::Duration};

/// Most datagram services that are kept after an answer, so that their queue pairs exist for a while.
const KEPT: usize = 64;

/// Listen, and print each message of the connection manager, with its fields
///
/// Every connection is accepted, and ended when the other side ends it. That may be `rxe connect ADDR:PORT`, or any
/// program that connects by rdma_cm.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Port, and which address of ours if not all
    #[arg(value_name = "[ADDR:]PORT")]
    at: String,
    /// Be a datagram service (SIDR, port space UDP) instead
    #[arg(long)]
    datagram: bool,
    /// Refuse everybody
    #[arg(long)]
    reject: bool,
    /// Send this along with each answer: text, or bytes as 0x...
    #[arg(long, value_name = "HEX|TEXT", default_value = "", value_parser = Data::parse)]
    private_data: Data,
    /// Take so long to answer
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = parse_seconds)]
    delay: f64,
    /// End after so many connections [default: never]
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Give up when nothing happens for so long [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    timeout: Option<f64>,
    #[command(flatten)]
    look: Look,
}

struct Listener<'a> {
    args: &'a Args,
    show: &'a Show,
    /// Connections and services that have ended.
    over: u32,
    kept: VecDeque<CmId>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let address = find_listen(&args.at)?;
    let (len, room) = (args.private_data.0.len(), room(args));
    if len > room {
        return Err(format!("--private-data has {len} bytes, and these answers have room for {room}").into());
    }
    let manager = Manager::open()?;
    let show = Show::new(&manager, args.look)?;
    let events = EventChannel::new()?;
    let space = if args.datagram { PortSpace::Udp } else { PortSpace::Tcp };
    let id = manager.create_id(&events, space)?;
    id.bind(address)?;
    id.listen(0)?;
    let service = ServiceId::new(space, address.port());
    let mut json = serde_json::Map::new();
    json.insert("local".to_owned(), address.to_string().into());
    json.insert("service_id".to_owned(), format!("{:#018x}", service.0).into());
    show.say("LISTENING", format!("on {address}, service ID {service}"), json);
    let mut listener = Listener { args, show: &show, over: 0, kept: VecDeque::new() };
    let result = listener.serve(&events);
    show.finish();
    result
}

/// How many bytes of private data an answer takes: SIDR_REP, REJ or REP.
const fn room(args: &Args) -> usize {
    match (args.datagram, args.reject) {
        (true, _) => PrivateData::<136>::LIMIT,
        (false, true) => PrivateData::<148>::LIMIT,
        (false, false) => PrivateData::<196>::LIMIT,
    }
}

impl Listener<'_> {
    /// Until there were as many connections as were asked for.
    fn serve(&mut self, events: &EventChannel) -> Result<()> {
        let timeout = self.args.timeout.map(Duration::from_secs_f64);
        while self.args.count.is_none_or(|count| self.over < count) {
            let Some(event) = next(events, timeout)? else {
                let seconds = timeout.unwrap_or_default().as_secs_f64();
                return Err(format!(
                    "nothing has happened for {seconds} s; is the port right that the others connect to, and does UDP port 4791 reach us?"
                )
                .into());
            };
            self.handle(event)?;
        }
        Ok(())
    }

    fn handle(&mut self, event: CmEvent) -> Result<()> {
        self.show.event(&event);
        match event.kind {
            EventKind::ConnectRequest(offer) => {
                thread::sleep(Duration::from_secs_f64(self.args.delay));
                let is_datagram = matches!(offer, Offer::Datagram(_));
                if self.args.reject {
                    // What was refused needs no id any more.
                    let refused = answered(event.id.reject(&self.args.private_data.0))?;
                    self.over += u32::from(refused || is_datagram);
                } else {
                    self.accept(&event.id, &offer)?;
                    self.keep(event.id);
                    self.over += u32::from(is_datagram);
                }
            }
            EventKind::Disconnected { .. } => {
                // The peer may have ended it at the same time.
                let _ = event.id.disconnect();
            }
            EventKind::Established(_) => {}
            // The connection has ended, or the peer has given up.
            _ => {
                self.kept.retain(|id| !id.is_same(&event.id));
                self.over += 1;
            }
        }
        Ok(())
    }

    fn accept(&self, id: &CmId, offer: &Offer) -> Result<()> {
        let context = id.context().ok_or("the device of the connection is not known")?;
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None)?);
        let qp_type = if matches!(offer, Offer::Datagram(_)) { QpType::Ud } else { QpType::Rc };
        id.create_qp(&pd, &QpInit::new(qp_type, &cq))?;
        let answer = ConnParams { private_data: &self.args.private_data.0, ..ConnParams::default() };
        answered(id.accept(&answer)).map(|_| ())
    }

    /// Dropping an id ends its connection or service.
    fn keep(&mut self, id: CmId) {
        if self.args.datagram && self.kept.len() >= KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(id);
    }
}

/// Whether there was somebody to be answered. If not, the peer has given up meanwhile, and of a connection an event will follow.
fn answered(result: std::result::Result<(), CmError>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(CmError::State { .. } | CmError::Machine(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
