//! `rxe rping`: does what rping of rdmacm-utils does, and is a peer for it.
//!
//! In each ping the client sends the address of its data. The server READs the data, and sends a go-ahead. The client sends the
//! address for the answer. The server WRITEs the data there, and sends a go-ahead.

mod link;
mod message;

use crate::{Result, cm, output};
use link::{Link, Next, Terms};
use message::{Buffer, LEAST, MOST, shown, text};
use rxe_cm::{CmEvent, CmId, EventChannel, EventKind, Manager, proto::PortSpace};
use rxe_verbs::SendOp;
use std::{
    net::{IpAddr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

/// Ping over connections made by address and port; the other side may be rping of rdmacm-utils
///
/// Without HOST it is the server, which READs each ping from the client's memory and WRITEs it back. Both may be on one host:
/// `rxe rping` and `rxe rping 127.0.0.1 -n 10 -v`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the server is; without it we are the server
    host: Option<String>,
    /// Address of ours to connect from, or to listen to
    #[arg(short, long, value_name = "IP")]
    bind: Option<IpAddr>,
    /// Port that the server listens to
    #[arg(short, long, default_value_t = 7174, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Pings; 0 is without end (client only)
    #[arg(short = 'n', long, default_value_t = 0)]
    count: u32,
    /// Bytes of a ping (client only; the server follows)
    #[arg(short, long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(i64::from(LEAST)..=i64::from(MOST)))]
    size: u32,
    /// Print each ping
    #[arg(short, long)]
    verbose: bool,
    /// Compare every byte; a server does so with what the client should have sent
    #[arg(short, long)]
    check: bool,
    /// Print what happens on each connection
    #[arg(long)]
    debug: bool,
    /// Serve one connection after the other, or several at once, without end (server only)
    #[arg(long, conflicts_with = "host")]
    persistent: bool,
    /// Make and change the queue pair ourselves, instead of leaving it to the connection manager
    #[arg(long)]
    own_qp: bool,
    /// Give up on a peer that is silent for so long; 0 is never [default: 30, for a server 0]
    #[arg(short, long, value_name = "SECONDS", value_parser = cm::parse_seconds)]
    timeout: Option<f64>,
    /// Print JSON, one object for each connection
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.host {
        None => serve(args),
        Some(host) => ping(args, cm::find(host, args.port)?),
    }
}

/// What is printed in addition to errors.
#[derive(Clone, Copy)]
struct Look {
    /// Each ping.
    verbose: bool,
    /// A sum at the end of each connection.
    json: bool,
}

impl Look {
    fn of(args: &Args) -> Self {
        // Other lines between the objects would make the output unreadable for programs.
        Self { verbose: args.verbose && !args.json, json: args.json }
    }
}

/// The result of a connection. `size` is in bytes, if this side has chosen it.
fn sum_up(peer: SocketAddr, pings: u32, size: Option<u32>, checked: bool, start: Instant) -> Result<()> {
    let seconds = start.elapsed().as_secs_f64();
    output::json(&serde_json::json!({
        "peer": peer.to_string(), "pings": pings, "bytes": size, "checked": checked, "seconds": seconds,
    }))
}

impl Args {
    fn terms(&self) -> Terms {
        let seconds = self.timeout.unwrap_or_else(|| if self.host.is_none() { 0.0 } else { 30.0 });
        let patience = (seconds > 0.0).then(|| Duration::from_secs_f64(seconds));
        Terms { patience, debug: self.debug, own_qp: self.own_qp }
    }
}

fn serve(args: &Args) -> Result<()> {
    let address = SocketAddr::new(args.bind.unwrap_or(cm::ANYWHERE), args.port);
    let manager = Manager::open()?;
    let events = EventChannel::new()?;
    let listener = manager.create_id(&events, PortSpace::Tcp)?;
    listener.bind(address)?;
    listener.listen(0)?;
    args.terms().note(|| format!("listening on {address}"));
    output::waits(address);
    let (check, look, terms) = (args.check, Look::of(args), args.terms());
    let work = move |id, peer| converse(id, peer, terms, check, look);
    loop {
        let (id, peer) = next_request(&events)?;
        if !args.persistent {
            // So that other peers do not wait in vain.
            drop(listener);
            return work(id, peer);
        }
        let conversation = move || {
            if let Err(error) = work(id, peer) {
                eprintln!("rxe: {error}");
            }
        };
        // If that fails, the request is refused, because its id is dropped.
        if let Err(error) = thread::Builder::new().spawn(conversation) {
            eprintln!("rxe: no thread for the connection with {peer}: {error}");
        }
    }
}

fn next_request(events: &EventChannel) -> Result<(CmId, SocketAddr)> {
    loop {
        if let Some(CmEvent { id, kind: EventKind::ConnectRequest(_), .. }) = cm::next(events, None)?
            && let Some(peer) = id.peer_addr()
        {
            return Ok((id, peer));
        }
    }
}

/// Serves one client until it ends the connection.
fn converse(id: CmId, peer: SocketAddr, terms: Terms, check: bool, look: Look) -> Result<()> {
    let events = EventChannel::new()?;
    id.migrate(&events)?;
    let link = Link::new(id, events, peer, terms)?;
    link.accept()?;
    let (mut ping, start) = (0, Instant::now());
    let result = loop {
        match answer(&link, ping, check, look) {
            Ok(true) => ping = ping.wrapping_add(1),
            Ok(false) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    if result.is_ok() {
        link.agree();
        if look.json {
            sum_up(peer, ping, None, check, start)?;
        }
        terms.note(|| format!("{peer} has hung up after {ping} pings"));
    } else {
        link.hang_up();
    }
    result
}

/// Answers one ping. False if the client has ended the connection.
fn answer(link: &Link, ping: u32, check: bool, look: Look) -> Result<bool> {
    let source = match link.next()? {
        Next::Message(source) => source,
        Next::HungUp => return Ok(false),
        Next::Done => return Err(link.lost("a transfer that nobody asked for is done")),
    };
    let gone = || link.lost(&format!("it has hung up in the middle of ping {ping}"));
    let len = source.len;
    if !(1..=MOST).contains(&len) {
        return Err(link.lost(&format!("ping {ping} has {len} bytes; 1 to {MOST} are possible")));
    }
    if !link.transfer(SendOp::Read(source.remote()), len)? {
        return Err(gone());
    }
    let data = link.data.read_vec(0, len as usize)?;
    if check {
        compare(link, ping, &data, &text(ping, len))?;
    }
    if look.verbose {
        outln!("server ping data: {}", shown(&data));
    }
    link.go_ahead()?;
    let sink = wait_for_message(link)?.ok_or_else(gone)?;
    // The string is returned with its zero, as by rping.
    let answer = data.iter().position(|byte| *byte == 0).map_or(len, |zero| zero as u32 + 1);
    if !link.transfer(SendOp::Write(sink.remote()), answer)? {
        return Err(gone());
    }
    link.go_ahead()?;
    Ok(true)
}

fn wait_for_message(link: &Link) -> Result<Option<Buffer>> {
    match link.next()? {
        Next::Message(buffer) => Ok(Some(buffer)),
        Next::HungUp => Ok(None),
        Next::Done => Err(link.lost("a transfer that nobody asked for is done")),
    }
}

fn ping(args: &Args, peer: SocketAddr) -> Result<()> {
    let events = EventChannel::new()?;
    let id = Manager::open()?.create_id(&events, PortSpace::Tcp)?;
    cm::resolve(&id, &events, args.bind, peer)?;
    let link = Link::new(id, events, peer, args.terms())?;
    link.connect()?;
    let (mut done, start) = (0_u32, Instant::now());
    let result = loop {
        if args.count != 0 && done == args.count {
            break Ok(());
        }
        if let Err(error) = ask(&link, done, args) {
            break Err(error);
        }
        done = done.wrapping_add(1);
    };
    link.hang_up();
    result?;
    if args.json {
        sum_up(peer, done, Some(args.size), args.check, start)?;
    } else if args.check {
        outln!("{done} pings of {} bytes came back as they were sent", args.size);
    }
    Ok(())
}

/// One ping.
fn ask(link: &Link, ping: u32, args: &Args) -> Result<()> {
    let sent = text(ping, args.size);
    link.source.write_at(0, &sent)?;
    link.tell(&link.source, args.size)?;
    let gone = || link.lost(&format!("it has hung up in the middle of ping {ping}"));
    wait_for_message(link)?.ok_or_else(gone)?;
    link.tell(&link.data, args.size)?;
    wait_for_message(link)?.ok_or_else(gone)?;
    let back = link.data.read_vec(0, args.size as usize)?;
    if args.check {
        compare(link, ping, &back, &sent)?;
    }
    if Look::of(args).verbose {
        outln!("ping data: {}", shown(&back));
    }
    Ok(())
}

fn compare(link: &Link, ping: u32, data: &[u8], expected: &[u8]) -> Result<()> {
    match data.iter().zip(expected).position(|(have, want)| have != want) {
        None => Ok(()),
        Some(at) => {
            let (have, want) = (data[at], expected[at]);
            let what =
                format!("the data of ping {ping} are wrong: byte {at} is {have:#04x} instead of {want:#04x}");
            Err(link.lost(&what))
        }
    }
}
