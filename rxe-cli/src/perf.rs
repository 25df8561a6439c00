//! `rxe perf`: bandwidth and latency between two hosts, or two addresses of one.

use crate::{
    Result,
    follower::{self, Answer, Kind, Setup, Wire, unexpected},
    local::{self, Local},
    measure::{self, Rate, Times, Until, Work},
    output,
};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use rxe_verbs::{Context, Mtu};
use std::{
    io::{self, IsTerminal},
    net::TcpStream,
    time::Duration,
};

/// Most bytes of a message. Each side has memory for two.
const MOST: u32 = 256 << 20;
/// Default number of round trips for a latency.
const ROUNDS: u32 = 10_000;

/// Measure bandwidth or latency over reliable connections
///
/// Without HOST it waits for a peer and does what that says; with HOST it measures. Both may be on one host: `rxe perf`
/// and `rxe perf write bw 127.0.0.1`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Operation; it and KIND may be left out where we only wait
    #[arg(value_enum)]
    work: Option<Work>,
    /// Bandwidth or latency
    #[arg(value_enum)]
    kind: Option<What>,
    /// Where the other side waits; without it we wait
    #[arg(requires = "kind")]
    host: Option<String>,
    /// Bytes of a message; several sizes with commas, with K and M for 1024 and 1024² [default: 64K, for latency 8]
    #[arg(short, long, value_name = "BYTES", value_delimiter = ',', value_parser = parse_size)]
    size: Vec<u32>,
    /// Path MTU [default: the largest that fits]
    #[arg(short, long, value_name = "BYTES", value_parser = local::parse_mtu)]
    mtu: Option<Mtu>,
    /// Queue pairs: bandwidth only
    #[arg(short, long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    qps: u32,
    /// Messages
    #[arg(short = 'n', long, conflicts_with = "duration", value_parser = clap::value_parser!(u32).range(1..))]
    iters: Option<u32>,
    /// Seconds: bandwidth only [default: 2]
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = crate::cm::parse_some_seconds)]
    duration: Option<f64>,
    /// TCP port for finding each other
    #[arg(short, long, default_value_t = 18_515, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    #[command(flatten)]
    local: Local,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum What {
    /// Bandwidth
    Bw,
    /// Latency
    Lat,
}

fn parse_size(text: &str) -> std::result::Result<u32, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        _ => (text, 1),
    };
    let size = digits.parse::<u32>().ok().and_then(|size| size.checked_mul(unit));
    size.filter(|size| (1..=MOST).contains(size)).ok_or_else(|| format!("it is 1 to {}M", MOST >> 20))
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match (&args.host, args.work, args.kind) {
        (Some(host), Some(work), Some(kind)) => lead(args, host, work, kind),
        _ => wait(args),
    }
}

fn wire(tcp: &TcpStream) -> Result<Wire> {
    // A measurement may take long.
    tcp.set_read_timeout(None)?;
    Ok(Wire::new(Box::new(tcp.try_clone()?), Box::new(tcp.try_clone()?), "the other side has gone"))
}

fn wait(args: &Args) -> Result<()> {
    // Done before waiting, because an error about the device should not need a peer.
    let early = args.local.open(None)?;
    let tcp = args.local.accept(args.port)?;
    let own_ip = tcp.local_addr()?.ip().to_canonical();
    let context = args.local.open(Some(own_ip))?;
    drop(early);
    let gid = args.local.gid_index(&context, own_ip);
    let mut wire = wire(&tcp)?;
    wire.write(&Answer::Mtu(context.port().active_mtu.bytes()))?;
    // The leader may not have been there any more to be told.
    follower::serve(&context, gid, &mut wire)?.map_or(Ok(()), |why| Err(why.into()))
}

fn lead(args: &Args, host: &str, work: Work, kind: What) -> Result<()> {
    let context = args.local.open(args.local.toward(host, args.port))?;
    let tcp = args.local.connect(host, args.port)?;
    let gid = args.local.gid_index(&context, tcp.local_addr()?.ip());
    let mut wire = wire(&tcp)?;
    let theirs = match wire.answer()? {
        Answer::Mtu(mtu) => mtu,
        other => return Err(unexpected(&other)),
    };
    let ours = context.port().active_mtu.bytes();
    let mtu = args.mtu.map_or_else(|| ours.min(theirs), Mtu::bytes);
    if mtu > ours.min(theirs) {
        let most = ours.min(theirs);
        return Err(format!(
            "MTU {mtu} does not fit: this side takes {ours}, the other {theirs}; use --mtu {most}"
        )
        .into());
    }
    let default = if kind == What::Bw { 64 << 10 } else { 8 };
    let mut sizes = if args.size.is_empty() { vec![default] } else { args.size.clone() };
    if work == Work::Atomic {
        sizes = vec![8];
    }
    if !args.json {
        let name = work.to_possible_value().map(|value| value.get_name().to_uppercase()).unwrap_or_default();
        let (qps, netdev) = (queue_pairs(args, kind), context.device().netdev());
        outln!("RC {name}, MTU {mtu}, {qps} queue pair(s), from {netdev} to {host}");
        match kind {
            What::Bw => outln!("{:>10} {:>12} {:>14} {:>10}", "bytes", "Gbit/s", "messages/s", "seconds"),
            What::Lat => outln!(
                "{:>10} {:>10} {:>10} {:>10} {:>10} {:>10}   us, {}",
                "bytes",
                "min",
                "median",
                "mean",
                "99 %",
                "max",
                if matches!(work, Work::Read | Work::Atomic) { "there and back" } else { "one way" }
            ),
        }
    }
    for size in sizes {
        one(args, &context, gid, &mut wire, (work, kind, size, mtu))?;
    }
    Ok(())
}

/// A latency is that of one.
fn queue_pairs(args: &Args, kind: What) -> u32 {
    if kind == What::Bw { args.qps } else { 1 }
}

/// Measures one size.
fn one(args: &Args, context: &Context, gid: u8, wire: &mut Wire, what: (Work, What, u32, u32)) -> Result<()> {
    let (work, kind, size, mtu) = what;
    let qps = queue_pairs(args, kind);
    let setup = Setup { lines: vec![Kind::Rc; qps as usize], memory: measure::memory(size), mtu };
    let (side, _) = wire.set_up(context, gid, &setup)?;
    let until = match args.iters {
        Some(count) => Until::Count(count.into()),
        None => Until::Time(Duration::from_secs_f64(args.duration.unwrap_or(2.0))),
    };
    let rounds = args.iters.unwrap_or(ROUNDS);
    let bar = bar(args.json, if kind == What::Bw { until } else { Until::Count(rounds.into()) });
    let mut tick = |done: u64, elapsed: Duration| match (kind, until) {
        (What::Bw, Until::Time(_)) => bar.set_position(elapsed.as_millis() as u64),
        _ => bar.set_position(done),
    };
    let found = match kind {
        What::Bw => Found::Rate(measure::bandwidth(&side, wire, work, size, until, &mut tick)?),
        What::Lat => Found::Times(measure::latency(&side, wire, work, size, rounds, &mut tick)?),
    };
    bar.finish_and_clear();
    let stats = side.lines.iter().map(|line| line.qp.stats().retransmitted).sum();
    print(args.json, (work, size, mtu, qps), found, stats)
}

enum Found {
    Rate(Rate),
    Times(Times),
}

/// Shown only on a terminal, and not with JSON.
fn bar(json: bool, until: Until) -> ProgressBar {
    if json || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let length = match until {
        Until::Time(time) => time.as_millis() as u64,
        Until::Count(count) => count,
    };
    let style = ProgressStyle::with_template("{wide_bar} {percent:>3} %");
    ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn print(json: bool, what: (Work, u32, u32, u32), found: Found, retransmitted: u64) -> Result<()> {
    let (work, size, mtu, qps) = what;
    let head = serde_json::json!({
        "operation": work, "size": size, "mtu": mtu, "qps": qps, "retransmitted_packets": retransmitted,
    });
    let line = match &found {
        Found::Rate(rate) => {
            let per_second = rate.messages as f64 / rate.seconds;
            format!("{size:>10} {:>12.3} {per_second:>14.0} {:>10.2}", rate.gbit(), rate.seconds)
        }
        Found::Times(Times { min_usec, median_usec, mean_usec, p99_usec, max_usec, .. }) => format!(
            "{size:>10} {min_usec:>10.2} {median_usec:>10.2} {mean_usec:>10.2} {p99_usec:>10.2} {max_usec:>10.2}"
        ),
    };
    if !json {
        outln!("{line}");
        return Ok(());
    }
    let result = match found {
        Found::Rate(rate) => serde_json::json!({ "bandwidth": rate, "gbit_per_second": rate.gbit() }),
        Found::Times(times) => serde_json::json!({ "latency": times }),
    };
    let mut object = head;
    if let (Some(object), Some(result)) = (object.as_object_mut(), result.as_object()) {
        object.extend(result.clone());
    }
    output::json(&object)?;
    Ok(())
}
