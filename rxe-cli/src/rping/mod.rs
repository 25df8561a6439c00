//! `rxe rping`: what rping of rdmacm-utils does, and a peer for it.
//!
//! Each ping: the client tells where its data is; the server READs them and says go ahead; the client tells where it
//! wants the answer; the server WRITEs what it has read there, and says go ahead.

mod link;
mod message;

use crate::{Result, cm};
use link::{Link, Next, Terms};
use message::{Buffer, LEAST, MOST, shown, text};
use rxe_cm::{CmEvent, CmId, EventChannel, EventKind, Manager, proto::PortSpace};
use rxe_verbs::SendOp;
use std::{
    net::{IpAddr, SocketAddr},
    thread,
    time::Duration,
};

/// Ping over connections made by address and port; the other side may be rping of rdmacm-utils
///
/// The server READs each ping from the client's memory and WRITEs it back. Both may be on one host: `rxe rping -s` and
/// `rxe rping -c -a 127.0.0.1 -C 10 -v`.
#[derive(Debug, clap::Args)]
#[command(disable_version_flag = true, group = clap::ArgGroup::new("role").required(true))]
pub(crate) struct Args {
    /// Be the server
    #[arg(short, long, group = "role")]
    server: bool,
    /// Be the client
    #[arg(short, long, group = "role", requires = "address")]
    client: bool,
    /// Where the server is; for a server, which address of ours to listen to [default: all]
    #[arg(short, long, value_name = "HOST")]
    address: Option<String>,
    /// Port that the server listens to
    #[arg(short, long, default_value_t = 7174, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Pings; 0 is without end (client only)
    #[arg(short = 'C', long, default_value_t = 0)]
    count: u32,
    /// Bytes of a ping (client only; the server follows)
    #[arg(short = 'S', long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(i64::from(LEAST)..=i64::from(MOST)))]
    size: u32,
    /// Print each ping
    #[arg(short, long)]
    verbose: bool,
    /// Compare every byte; a server does so with what the client should have sent
    #[arg(short = 'V', long)]
    validate: bool,
    /// Print what happens on each connection
    #[arg(short, long)]
    debug: bool,
    /// Serve one connection after the other, or several at once, without end (server only)
    #[arg(short = 'P', long, conflicts_with = "client")]
    persistent: bool,
    /// Make and change the queue pair ourselves, instead of leaving it to the connection manager
    #[arg(short = 'q', long)]
    own_qp: bool,
    /// Address of ours to connect from (client only)
    #[arg(short = 'I', long, value_name = "IP", conflicts_with = "server")]
    source: Option<IpAddr>,
    /// Give up on a peer that is silent for so long; 0 is never [default: 30, for a server 0]
    #[arg(short, long, value_name = "SECONDS", value_parser = cm::parse_seconds)]
    timeout: Option<f64>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.server { serve(args) } else { ping(args) }
}

impl Args {
    fn terms(&self) -> Terms {
        let seconds = self.timeout.unwrap_or(if self.server { 0.0 } else { 30.0 });
        let patience = (seconds > 0.0).then(|| Duration::from_secs_f64(seconds));
        Terms { patience, debug: self.debug, own_qp: self.own_qp }
    }
}

fn serve(args: &Args) -> Result<()> {
    let address = match &args.address {
        Some(host) => cm::find(host, args.port)?,
        None => SocketAddr::new(cm::ANYWHERE, args.port),
    };
    let manager = Manager::open()?;
    let events = EventChannel::new()?;
    let listener = manager.create_id(&events, PortSpace::Tcp)?;
    listener.bind(address)?;
    listener.listen(0)?;
    args.terms().note(|| format!("listening on {address}"));
    let (validate, verbose, terms) = (args.validate, args.verbose, args.terms());
    let work = move |id, peer| converse(id, peer, terms, validate, verbose);
    loop {
        let (id, peer) = next_request(&events)?;
        if !args.persistent {
            // Nobody else is to wait for us in vain.
            drop(listener);
            return work(id, peer);
        }
        thread::spawn(move || {
            if let Err(error) = work(id, peer) {
                eprintln!("rxe: {error}");
            }
        });
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

/// Serves one client until it hangs up.
fn converse(id: CmId, peer: SocketAddr, terms: Terms, validate: bool, verbose: bool) -> Result<()> {
    let events = EventChannel::new()?;
    id.migrate(&events)?;
    let link = Link::new(id, events, peer, terms)?;
    link.accept()?;
    let mut ping = 0;
    let result = loop {
        match answer(&link, ping, validate, verbose) {
            Ok(true) => ping = ping.wrapping_add(1),
            Ok(false) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    if result.is_ok() {
        link.agree();
        terms.note(|| format!("{peer} has hung up after {ping} pings"));
    } else {
        link.hang_up();
    }
    result
}

/// Answers one ping; false if there is none because the client has hung up.
fn answer(link: &Link, ping: u32, validate: bool, verbose: bool) -> Result<bool> {
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
    if validate {
        compare(link, ping, &data, &text(ping, len))?;
    }
    if verbose {
        outln!("server ping data: {}", shown(&data));
    }
    link.go_ahead()?;
    let sink = wait_for_message(link)?.ok_or_else(gone)?;
    // A string goes back with its zero, as rping does it.
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

fn ping(args: &Args) -> Result<()> {
    let host = args.address.as_deref().ok_or("a client needs the server's address, -a")?;
    let peer = cm::find(host, args.port)?;
    let events = EventChannel::new()?;
    let id = Manager::open()?.create_id(&events, PortSpace::Tcp)?;
    cm::resolve(&id, &events, args.source, peer)?;
    let link = Link::new(id, events, peer, args.terms())?;
    link.connect()?;
    let mut done = 0_u32;
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
    if args.validate {
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
    if args.validate {
        compare(link, ping, &back, &sent)?;
    }
    if args.verbose {
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
