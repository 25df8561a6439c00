//! RC WRITE beside one TCP stream, on loopback, in turns: what the machine can do drifts, the ratio hardly does.
//!
//! Ours is two processes of `rxe perf write bw`, TCP is `iperf3 -l 128K` (Debian package iperf3). `scripts/bench` builds
//! everything and runs this.

use clap::Parser;
use serde_json::{Value, json};
use std::{
    error::Error,
    fs,
    net::{IpAddr, TcpListener},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How long a server may take to listen, and how long a finished one to end.
const PATIENCE: Duration = Duration::from_secs(10);

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
            let theirs = iperf3(&args).map_err(|error| format!("iperf3: {error}"))?;
            eprintln!("{size} bytes, round {round}: rxe {mine:.2}, iperf3 {theirs:.2} Gbit/s");
            ours.push(mine);
            tcp.push(theirs);
        }
        rows.push((size, ours, tcp));
    }
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
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

fn ratios(ours: &[f64], tcp: &[f64]) -> Vec<f64> {
    ours.iter().zip(tcp).map(|(mine, theirs)| mine / theirs).collect()
}

/// The middle value; of an even number the mean of the two in the middle.
fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let (low, high) = ((values.len() - 1) / 2, values.len() / 2);
    f64::midpoint(values[low], values[high])
}

fn extremes(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, 0.0), |(low, high), &value| (low.min(value), high.max(value)))
}

/// A process that ends with us.
struct Server(Child);

impl Server {
    fn start(command: &mut Command) -> Result<Self> {
        Ok(Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
    }

    /// It has served one client and goes by itself.
    fn wait(mut self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.0.try_wait()? {
                return if status.success() {
                    Ok(())
                } else {
                    Err(format!("the server says {status}").into())
                };
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err("the server does not end".into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It is gone already unless something went wrong.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A TCP port that is free at this moment.
fn free_port(address: IpAddr) -> Result<u16> {
    Ok(TcpListener::bind((address, 0))?.local_addr()?.port())
}

/// Runs a client until it finds its server listening; gives the figure in what it printed.
fn ask(
    server: &mut Server,
    mut client: impl FnMut() -> Command,
    figure: impl Fn(&Value) -> Option<f64>,
) -> Result<f64> {
    let start = Instant::now();
    loop {
        let output = client().stdin(Stdio::null()).output()?;
        // iperf3 reports failures with a status of 0.
        let found = serde_json::from_slice(&output.stdout).ok().and_then(|printed| figure(&printed));
        if let Some(found) = found {
            return Ok(found);
        }
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if let Some(status) = server.0.try_wait()? {
            return Err(format!("the server says {status}, the client {out}{err}").into());
        }
        if start.elapsed() > PATIENCE {
            return Err(format!("the client failed: {out}{err}").into());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Gbit/s of one RC WRITE measurement.
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

/// Gbit/s of one TCP stream between the same addresses, as its receiver counts.
fn iperf3(args: &Args) -> Result<f64> {
    let port = free_port(args.server)?.to_string();
    let [near, far] = [args.client.to_string(), args.server.to_string()];
    let mut server = Server::start(Command::new("iperf3").args(["-s", "-1", "-B", &far, "-p", &port]))?;
    let seconds = args.seconds.to_string();
    let client = || {
        let mut client = Command::new("iperf3");
        client.args(["-c", &far, "-B", &near, "-p", &port, "-l", "128K", "-t", &seconds, "-J"]);
        client
    };
    let found = ask(&mut server, client, |printed| {
        printed["end"]["sum_received"]["bits_per_second"].as_f64().filter(|bits| *bits > 0.0)
    })?;
    server.wait()?;
    Ok(found * 1e-9)
}

/// Processor, cores and kernel, without names.
fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown processor");
    let model = model.trim_start_matches([' ', '\t', ':']).to_owned();
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version: Vec<&str> = kernel.split(['.', '-']).take(2).collect();
    format!("{model}, {cores} cores, Linux {}", version.join("."))
}

/// The share of all processors' time that was idle during a second in which we do nothing.
fn idle_share() -> f64 {
    let sample = || -> Option<(u64, u64)> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let fields: Vec<u64> =
            stat.lines().next()?.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
        // idle and iowait (proc_stat(5)).
        Some((fields.get(3)? + fields.get(4)?, fields.iter().take(8).sum()))
    };
    let before = sample();
    thread::sleep(Duration::from_secs(1));
    match (before, sample()) {
        (Some(before), Some(after)) if after.1 > before.1 => {
            (after.0 - before.0) as f64 / (after.1 - before.1) as f64
        }
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(extremes(&ratios(&[1.0, 6.0], &[2.0, 2.0])), (0.5, 3.0));
    }
}
