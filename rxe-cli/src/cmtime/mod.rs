//! `rxe cmtime`: how fast connections are made and ended, step by step; a peer of cmtime of rdmacm-utils.

mod client;
mod server;
mod steps;

use crate::{Result, cm, output};
use rxe_cm::{CmId, EventChannel};
use rxe_verbs::{Context, Cq, Pd, QpCaps, QpInit, QpType};
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// Measure connections per second, and the time of each step
///
/// Without HOST it is the server. The other side may be cmtime of rdmacm-utils. Both may be on one host: `rxe cmtime` and
/// `rxe cmtime 127.0.0.1`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the server is; without it we are the server
    host: Option<String>,
    /// Connections [default: 100; a server serves without end]
    #[arg(short = 'n', long = "count", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: Option<u32>,
    /// Connections that are at work on a step at a time (client only)
    #[arg(short, long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    window: u32,
    /// Address of ours to connect from, or to listen to
    #[arg(short, long, value_name = "IP")]
    bind: Option<IpAddr>,
    /// Port that the server listens to
    #[arg(short, long, default_value_t = 7471, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Retries of the queue pairs after timeouts (client only)
    #[arg(short, long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=7))]
    retries: u8,
    /// Give up when nothing happens for so long (client only)
    #[arg(short, long, value_name = "SECONDS", default_value_t = 30.0, value_parser = cm::parse_some_seconds)]
    timeout: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let table = match &args.host {
        Some(host) => client::run(args, cm::find(host, args.port)?)?,
        None => {
            let address = SocketAddr::new(args.bind.unwrap_or(cm::ANYWHERE), args.port);
            server::run(address, args.connections.map(|count| count as usize))?
        }
    };
    if args.json {
        output::json(&table)?;
    } else {
        out!("{table}")
    }
    Ok(())
}

impl Args {
    fn patience(&self) -> Duration {
        Duration::from_secs_f64(self.timeout)
    }
}

/// The objects for queue pairs, on each device.
#[derive(Default)]
struct Shelf(Vec<(Context, Pd, Cq)>);

/// The smallest queue pair, because nothing is sent.
const CAPS: QpCaps =
    QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };

impl Shelf {
    /// Creates the queue pair of an id.
    fn equip(&mut self, id: &CmId) -> Result<()> {
        let context = id.context().ok_or("the device of the connection is not known")?;
        let same = |shelf: &Context| shelf.device().name() == context.device().name();
        if !self.0.iter().any(|(shelf, ..)| same(shelf)) {
            let (pd, cq) = (context.alloc_pd()?, context.create_cq(2, None)?);
            self.0.push((context.clone(), pd, cq));
        }
        if let Some((_, pd, cq)) = self.0.iter().find(|(shelf, ..)| same(shelf)) {
            id.create_qp(pd, &QpInit { caps: CAPS, ..QpInit::new(QpType::Rc, cq) })?;
        }
        Ok(())
    }
}

/// A channel for the events of all connections.
fn channel() -> Result<EventChannel> {
    Ok(EventChannel::new()?)
}
