//! `rxe connect`: establishes one connection, or resolves one datagram service, and prints each message.

use super::{
    Data, failure, find_pair, next,
    show::{Look, Show},
};
use crate::{
    Result,
    local::{parse_code, parse_some_code},
};
use rxe_cm::{CmEvent, CmId, CmOptions, ConnParams, EventChannel, EventKind, Manager, proto::PortSpace};
use rxe_verbs::{GidType, QpInit, QpType};
use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

/// How long to wait for the end of a connection after it was requested.
const FAREWELL: Duration = Duration::from_secs(30);

/// Connect to a listener and print each message of the connection manager, with its fields
///
/// The connection is ended after a moment. The other side may be `rxe listen PORT`, or any program that listens by
/// rdma_cm.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the listener is
    #[arg(value_name = "ADDR:PORT")]
    to: String,
    /// Ask for a datagram service (SIDR, port space UDP) instead
    #[arg(long)]
    datagram: bool,
    /// Send this along: text, or bytes as 0x...
    #[arg(long, value_name = "HEX|TEXT", default_value = "", value_parser = Data::parse)]
    private_data: Data,
    /// Address of ours to connect from
    #[arg(short, long, value_name = "IP")]
    bind: Option<IpAddr>,
    /// How long the connection is held
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2, value_parser = super::parse_seconds)]
    hold: f64,
    /// Give up when there is no answer for so long [default: when no request was answered, after 26 s]
    #[arg(long, value_name = "SECONDS", value_parser = super::parse_seconds)]
    timeout: Option<f64>,
    /// How long the listener may take to answer, until we ask again
    #[arg(long, value_name = "SECONDS", value_parser = parse_code)]
    response_timeout: Option<u8>,
    /// How long the queue pairs wait for an acknowledgement; also tells how long packets live
    #[arg(long, value_name = "SECONDS", value_parser = parse_some_code)]
    ack_timeout: Option<u8>,
    /// Type of service (traffic class) of the connection's packets; without it the host's rules decide
    #[arg(long, value_name = "BYTE", value_parser = clap::value_parser!(u8))]
    tos: Option<u8>,
    #[command(flatten)]
    look: Look,
}

/// The state of the connection.
struct Client<'a> {
    args: &'a Args,
    show: &'a Show,
    events: EventChannel,
    peer: SocketAddr,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let peer = find_pair(&args.to)?;
    let manager = Manager::open()?;
    let show = Show::new(&manager, args.look)?;
    let events = EventChannel::new()?;
    let space = if args.datagram { PortSpace::Udp } else { PortSpace::Tcp };
    let id = manager.create_id(&events, space)?;
    let client = Client { args, show: &show, events, peer };
    let result = client.play(id);
    show.finish();
    result
}

impl Client<'_> {
    /// Prints and returns the next event; `None` when the time is over.
    fn next(&self, timeout: Option<Duration>) -> Result<Option<CmEvent>> {
        let event = next(&self.events, timeout)?;
        if let Some(event) = &event {
            self.show.event(event);
        }
        Ok(event)
    }

    /// Waits for an expected event.
    fn expect(&self, timeout: Option<Duration>, hoped: impl Fn(&EventKind) -> bool) -> Result<bool> {
        match self.next(timeout)? {
            None => Ok(false),
            Some(event) if hoped(&event.kind) => Ok(true),
            Some(event) => Err(failure(&event.kind, self.peer).into()),
        }
    }

    fn play(&self, id: CmId) -> Result<()> {
        let Args { datagram, bind, response_timeout, ack_timeout, tos, .. } = *self.args;
        id.set_options(CmOptions { response_timeout, ack_timeout, tos, ..CmOptions::default() })?;
        id.resolve_addr(bind.map(|ip| SocketAddr::new(ip, 0)), self.peer)?;
        self.expect(None, |kind| matches!(kind, EventKind::AddrResolved))?;
        id.resolve_route()?;
        self.expect(None, |kind| matches!(kind, EventKind::RouteResolved))?;
        let context = id.context().ok_or("the device of the connection is not known")?;
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None)?);
        let qp_type = if datagram { QpType::Ud } else { QpType::Rc };
        id.create_qp(&pd, &QpInit::new(qp_type, &cq))?;
        id.connect(&ConnParams { private_data: &self.args.private_data.0, ..ConnParams::default() })?;
        let timeout = self.args.timeout.map(Duration::from_secs_f64);
        if !self.expect(timeout, |kind| matches!(kind, EventKind::Established(_)))? {
            // Tells the peer.
            drop(id);
            let seconds = timeout.unwrap_or_default().as_secs_f64();
            let why = failure(&EventKind::Unreachable(GidType::RoceV2), self.peer);
            return Err(format!("given up after {seconds} s: {why}").into());
        }
        if datagram { Ok(()) } else { self.end(&id) }
    }

    /// Keeps the connection for a while, and then ends it, unless the peer does.
    fn end(&self, id: &CmId) -> Result<()> {
        let start = Instant::now();
        let hold = Duration::from_secs_f64(self.args.hold);
        let mut ours = false;
        loop {
            let left = if ours { FAREWELL } else { hold.saturating_sub(start.elapsed()) };
            match self.next(Some(left))?.map(|event| event.kind) {
                None if ours => return Err(format!("{} does not let the connection end", self.peer).into()),
                None => {
                    ours = true;
                    id.disconnect()?;
                }
                Some(EventKind::Disconnected { .. }) if !ours => {
                    ours = true;
                    id.disconnect()?;
                }
                Some(EventKind::Disconnected { .. }) => {}
                Some(EventKind::TimewaitExit) => return Ok(()),
                Some(other) => return Err(failure(&other, self.peer).into()),
            }
        }
    }
}
