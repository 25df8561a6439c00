//! Compares RC WRITE with one TCP stream on loopback. Both are measured in turns, because the speed of the machine drifts
//! while the ratio hardly changes.
//!
//! Our side is two processes of `rxe perf write bw`. TCP is `iperf3 -l 128K` (Debian package iperf3). `scripts/bench` builds
//! everything and runs this.

use benches::{
    ends::Result,
    turns::{Server, ask, extremes, free_port, idle_share, iperf3, load, machine, median, ratios},
};
use clap::Parser;
use serde_json::{Value, json};
use std::{net::IpAddr, path::PathBuf, process::Command};

/// RC WRITE beside one TCP stream, on loopback, in turns
#[derive(Debug, Parser)]
struct Args {
    /// Repetitions of each
    #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of each measurement
    #[arg(short = 'D', long, default_value_t = 2)]
    seconds: u32,
    /// Bytes of a message, several with commas
    #[arg(short, long, value_delimiter = ',', default_values = ["65536", "1048576"])]
    size: Vec<u32>,
    /// Path MTU
    #[arg(short, long, default_value_t = 4096)]
    mtu: u32,
    /// Address of the side that answers
    #[arg(long, default_value = "127.0.0.1")]
    server: IpAddr,
    /// Address of the side that asks
    #[arg(long, default_value = "127.0.0.2")]
    client: IpAddr,
    /// The `rxe` program [default: beside this one]
    #[arg(long)]
    rxe: Option<PathBuf>,
    /// Exit with 1 if the median ratio of a size is below this
    #[arg(long)]
    least: Option<f64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let rxe = match &args.rxe {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("rxe"),
    };
    let machine = machine();
    let idle = idle_share();
    let mut rows = Vec::new();
    for &size in &args.size {
        let (mut ours, mut tcp) = (Vec::new(), Vec::new());
        for round in 1..=args.rounds {
            let mine = rc_write(&args, &rxe, size).map_err(|error| format!("rxe perf: {error}"))?;
            let theirs = iperf3(args.client, args.server, "128K", args.seconds)
                .map_err(|error| format!("iperf3: {error}"))?
                .gbit;
            eprintln!("{size} bytes, round {round}: rxe {mine:.2}, iperf3 {theirs:.2} Gbit/s");
            ours.push(mine);
            tcp.push(theirs);
        }
        rows.push((size, ours, tcp));
    }
    let load = load();
    if args.json {
        let sizes: Vec<Value> = rows.iter().map(row_json).collect();
        let object = json!({
            "machine": machine, "idle_before": idle, "load_after": load, "mtu": args.mtu, "seconds": args.seconds, "sizes": sizes,
        });
        println!("{}", serde_json::to_string_pretty(&object)?);
    } else {
        println!("{machine}; {:.0} % of its processors idle before, load {load} after.\n", idle * 100.0);
        println!(
            "| RC WRITE, MTU {} | rxe, Gbit/s | iperf3 -l 128K, Gbit/s | ratio of medians | ratios of the rounds |",
            args.mtu
        );
        println!("|---|---|---|---|---|");
        for (size, ours, tcp) in &rows {
            let (mine, theirs) = (median(ours), median(tcp));
            let (low, high) = extremes(&ratios(ours, tcp));
            let ratio = mine / theirs;
            println!("| {size} bytes | {mine:.1} | {theirs:.1} | **{ratio:.2}** | {low:.2} to {high:.2} |");
        }
    }
    let least = args.least.unwrap_or(0.0);
    let short = rows.iter().find(|(_, ours, tcp)| median(ours) / median(tcp) < least);
    match short {
        Some((size, ..)) => Err(format!("the ratio for {size} bytes is below {least}").into()),
        None => Ok(()),
    }
}

fn row_json((size, ours, tcp): &(u32, Vec<f64>, Vec<f64>)) -> Value {
    json!({
        "bytes": size, "rxe_gbit": ours, "iperf3_gbit": tcp, "rxe_median": median(ours), "iperf3_median": median(tcp),
        "ratio": median(ours) / median(tcp), "ratios": ratios(ours, tcp),
    })
}

/// Throughput of one RC WRITE measurement in Gbit/s.
fn rc_write(args: &Args, rxe: &PathBuf, size: u32) -> Result<f64> {
    let port = free_port(args.server)?.to_string();
    let [near, far] = [args.client.to_string(), args.server.to_string()];
    let mut server = Server::start(Command::new(rxe).args(["perf", "--bind", &far, "--port", &port]))?;
    let (size, mtu, seconds) = (size.to_string(), args.mtu.to_string(), args.seconds.to_string());
    let client = || {
        let mut client = Command::new(rxe);
        client.args(["perf", "write", "bw", &far, "--bind", &near, "--port", &port, "--json"]);
        client.args(["--size", &size, "--mtu", &mtu, "--duration", &seconds]);
        client
    };
    let found = ask(&mut server, client, |printed| printed["gbit_per_second"].as_f64())?;
    server.wait()?;
    Ok(found)
}
