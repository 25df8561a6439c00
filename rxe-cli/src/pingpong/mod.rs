//! `rxe pingpong`: does what ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong and ibv_srq_pingpong do, and is a peer for them.

mod contact;
mod play;

use crate::{
    Result,
    local::{self, Connection, Local},
    output,
};
use clap::ValueEnum;
use contact::{Contact, SRQ_CONTACTS};
use play::Table;
use rxe_verbs::{Context, Gid, Mtu, Psn, QpType, Qpn};
use std::{net::TcpStream, time::Duration};

/// Send messages back and forth; the other side may be ibv_rc_pingpong and its sisters
///
/// Without HOST it waits for a peer, with HOST it is the peer. The programs of rdma-core need `-g INDEX` to be peers.
/// Both may be on one host: `rxe pingpong rc` and `rxe pingpong rc 127.0.0.1`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Service
    #[arg(value_enum)]
    service: Service,
    /// Where the other side waits; without it we wait
    host: Option<String>,
    /// Bytes of a message [default: 4096, or 2048 for ud and the port's MTU if that is less]
    #[arg(short, long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    size: Option<u32>,
    /// Messages each way, of all queue pairs together
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// Path MTU: the same on both sides
    #[arg(short, long, value_name = "BYTES", default_value = "1024", value_parser = local::parse_mtu)]
    mtu: Mtu,
    /// Receives posted at a time (large messages: as many as fit in 64 MiB)
    #[arg(short, long, value_name = "COUNT", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    rx_depth: u32,
    /// Queue pairs: srq only
    #[arg(short = 'q', long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    num_qp: u32,
    /// How long rc and srq wait for an acknowledgement; 0 is without end [default: 0.067]
    #[arg(short = 'u', long, value_name = "SECONDS", value_parser = local::parse_code_or_none)]
    ack_timeout: Option<u8>,
    /// TCP port for finding each other
    #[arg(short, long, default_value_t = 18_515, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Compare every byte of every message received (of a peer from rdma-core: what it can send)
    #[arg(short, long)]
    check: bool,
    /// Sleep until a completion comes instead of polling
    #[arg(short, long)]
    events: bool,
    #[command(flatten)]
    local: Local,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Service {
    /// Reliable connection
    Rc,
    /// Unreliable connection
    Uc,
    /// Unreliable datagrams
    Ud,
    /// Reliable connections with a shared receive queue
    Srq,
}

impl Service {
    const fn qp_type(self) -> QpType {
        match self {
            Self::Rc | Self::Srq => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let client = args.host.is_some();
    let hint = args.host.as_deref().and_then(|host| args.local.toward(host, args.port));
    // Done before waiting, because an error about the device should not need a peer.
    let context = args.local.open(hint)?;
    let size = size(args, &context)?;
    check_mtu(args.mtu, &context)?;
    let mut tcp = match &args.host {
        Some(host) => args.local.connect(host, args.port)?,
        None => args.local.accept(args.port)?,
    };
    let own_ip = tcp.local_addr()?.ip().to_canonical();
    // The peer may have connected by another interface than the first.
    let context = if args.host.is_none() { args.local.open(Some(own_ip))? } else { context };
    check_mtu(args.mtu, &context)?;
    let gid_index = args.local.gid_index(&context, own_ip);

    let mut table = Table::new(&context, args.service, size, args)?;
    let own = table.contacts(context.gids().get(gid_index));
    let quiet = args.json;
    own.iter().for_each(|contact| say(quiet, "local address: ", contact));
    let peers = exchange(&mut tcp, args, &own, client, |peers| {
        peers.iter().for_each(|contact| say(quiet, "remote address:", contact));
        for (index, (peer, own)) in peers.iter().zip(&own).enumerate() {
            table.connect(index, &connection(peer, own, gid_index, args))?;
        }
        Ok(())
    })?;
    table.aim(&peers, gid_index)?;
    let time = table.play(client, args.iters)?;
    report(args, size, time)
}

fn connection(peer: &Contact, own: &Contact, gid_index: u8, args: &Args) -> Connection {
    Connection {
        gid_index,
        remote_gid: peer.gid,
        remote_qpn: peer.qpn,
        remote_psn: peer.psn,
        psn: own.psn,
        mtu: args.mtu,
        depth: 1,
        timeout: args.ack_timeout.unwrap_or(local::TIMEOUT),
    }
}

fn size(args: &Args, context: &Context) -> Result<u32> {
    if args.service != Service::Ud {
        return Ok(args.size.unwrap_or(4096));
    }
    let most = context.port().active_mtu.bytes();
    let size = args.size.unwrap_or_else(|| most.min(2048));
    if size > most {
        let netdev = context.device().netdev();
        return Err(
            format!("a datagram has at most {most} bytes on {netdev}: use --size {most} or less").into()
        );
    }
    Ok(size)
}

fn check_mtu(mtu: Mtu, context: &Context) -> Result<()> {
    let active = context.port().active_mtu;
    if mtu > active {
        let (wanted, most, netdev) = (mtu.bytes(), active.bytes(), context.device().netdev());
        return Err(format!(
            "MTU {wanted} does not fit {netdev}: use --mtu {most} on both sides, or give {netdev} a larger MTU"
        )
        .into());
    }
    Ok(())
}

/// Exchanges the parameters. Both sides can receive before anything is sent: the server connects its queue pair before it
/// answers, and the client sends only after that.
fn exchange(
    tcp: &mut TcpStream,
    args: &Args,
    own: &[Contact],
    client: bool,
    connect: impl FnOnce(&[Contact]) -> Result<()>,
) -> Result<Vec<Contact>> {
    // ibv_srq_pingpong always sends as many lines as it could have queue pairs.
    let lines = if args.service == Service::Srq { SRQ_CONTACTS } else { 1 };
    let nobody = Contact { qpn: Qpn::new(0), psn: Psn::new(0), gid: Gid::ZERO };
    let padded: Vec<_> = own.iter().copied().chain(std::iter::repeat(nobody)).take(lines).collect();
    let read = |tcp: &mut TcpStream| -> Result<Vec<Contact>> {
        let mut peers = (0..lines).map(|_| Contact::read(tcp)).collect::<Result<Vec<_>>>()?;
        peers.truncate(own.len());
        peers.iter().try_for_each(Contact::check)?;
        Ok(peers)
    };
    if client {
        Contact::write_all(&padded, tcp)?;
        let peers = read(tcp)?;
        connect(&peers)?;
        contact::write_done(tcp)?;
        Ok(peers)
    } else {
        let peers = read(tcp)?;
        connect(&peers)?;
        Contact::write_all(&padded, tcp)?;
        contact::read_done(tcp)?;
        Ok(peers)
    }
}

fn say(quiet: bool, whose: &str, contact: &Contact) {
    if !quiet {
        outln!("  {whose} {contact}");
    }
}

fn report(args: &Args, size: u32, time: Duration) -> Result<()> {
    let bytes = u64::from(size) * u64::from(args.iters) * 2;
    let seconds = time.as_secs_f64();
    let mbit = bytes as f64 * 8e-6 / seconds;
    let usec = seconds * 1e6 / f64::from(args.iters);
    if args.json {
        let json = serde_json::json!({
            "bytes": bytes, "seconds": seconds, "mbit_per_second": mbit,
            "iters": args.iters, "usec_per_iter": usec, "size": size, "mtu": args.mtu.bytes(), "checked": args.check,
        });
        output::json(&json)?;
        return Ok(());
    }
    outln!("{bytes} bytes in {seconds:.2} seconds = {mbit:.2} Mbit/sec");
    outln!("{} iters in {seconds:.2} seconds = {usec:.2} usec/iter", args.iters);
    if args.check {
        outln!("every byte received was right");
    }
    Ok(())
}
