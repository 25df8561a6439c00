//! Helpers for measuring two things in turns: child processes, medians, a description of the machine, and iperf3.

use crate::ends::Result;
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeVal,
};
use serde_json::Value;
use std::{
    fs,
    net::{IpAddr, TcpListener},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long a server may take to start listening, and how long a finished server may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// The quotient of each pair of values.
#[must_use]
pub fn ratios(ours: &[f64], tcp: &[f64]) -> Vec<f64> {
    ours.iter().zip(tcp).map(|(mine, theirs)| mine / theirs).collect()
}

/// The median. For an even number of values, it is the mean of the two in the middle.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let (low, high) = ((values.len() - 1) / 2, values.len() / 2);
    f64::midpoint(values[low], values[high])
}

/// The smallest and the largest value.
#[must_use]
pub fn extremes(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, 0.0), |(low, high), &value| (low.min(value), high.max(value)))
}

/// A child process that is killed when this value is dropped.
#[derive(Debug)]
pub struct Server(Child);

impl Server {
    /// Starts the process, with no input and with its output discarded.
    ///
    /// # Errors
    /// The error of the system.
    pub fn start(command: &mut Command) -> Result<Self> {
        Ok(Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
    }

    /// Waits for a server that ends by itself after serving one client.
    ///
    /// # Errors
    /// If it fails or does not end.
    pub fn wait(mut self) -> Result<()> {
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
        // The process has already ended, unless an error occurred.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that keeps a processor busy, until it is dropped.
#[derive(Debug)]
pub struct Hog(Child);

impl Hog {
    /// Starts this many of them.
    ///
    /// # Errors
    /// The error of the system.
    pub fn start(count: usize) -> Result<Vec<Self>> {
        let one = || Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn();
        (0..count).map(|_| Ok(Self(one()?))).collect()
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        // The process does not end by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The path of a program of this workspace, which is in the same folder as this program.
///
/// # Errors
/// If the folder is unknown, or the program is not in it.
pub fn beside(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    if path.exists() { Ok(path) } else { Err(format!("{} is not there: build it", path.display()).into()) }
}

/// A TCP port that is free at this moment.
///
/// # Errors
/// If no port is free at this address.
pub fn free_port(address: IpAddr) -> Result<u16> {
    Ok(TcpListener::bind((address, 0))?.local_addr()?.port())
}

/// Runs a client repeatedly until it finds its server listening. Returns the figure from the client's output.
///
/// # Errors
/// The messages of both if they gave no figure.
pub fn ask<T>(
    server: &mut Server,
    mut client: impl FnMut() -> Command,
    figure: impl Fn(&Value) -> Option<T>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        let output = client().stdin(Stdio::null()).output()?;
        // iperf3 exits with status 0 even if it failed.
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

/// The result of a TCP stream.
#[derive(Clone, Copy, Debug)]
pub struct Tcp {
    /// Throughput in Gbit/s, as counted by the receiver.
    pub gbit: f64,
    /// Processor time of both ends per second of the stream, in seconds.
    pub processor: f64,
}

/// Runs one TCP stream between two addresses. The data are written in pieces of `length`.
///
/// # Errors
/// The error that iperf3 reports.
pub fn iperf3(client: IpAddr, server: IpAddr, length: &str, seconds: u32) -> Result<Tcp> {
    let port = free_port(server)?.to_string();
    let [near, far] = [client.to_string(), server.to_string()];
    let mut server = Server::start(Command::new("iperf3").args(["-s", "-1", "-B", &far, "-p", &port]))?;
    let seconds = seconds.to_string();
    let client = || {
        let mut client = Command::new("iperf3");
        client.args(["-c", &far, "-B", &near, "-p", &port, "-l", length, "-t", &seconds, "-J"]);
        client
    };
    let found = ask(&mut server, client, |printed| {
        let end = &printed["end"];
        let bits = end["sum_received"]["bits_per_second"].as_f64().filter(|bits| *bits > 0.0)?;
        let percent = |whose| end["cpu_utilization_percent"][whose].as_f64();
        Some(Tcp {
            gbit: bits * 1e-9,
            processor: (percent("host_total")? + percent("remote_total")?) / 100.0,
        })
    })?;
    server.wait()?;
    Ok(found)
}

/// Processor, cores and kernel, without names.
#[must_use]
pub fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown processor");
    let model = model.trim_start_matches([' ', '\t', ':']).to_owned();
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version: Vec<&str> = kernel.split(['.', '-']).take(2).collect();
    format!("{model}, {cores} cores, Linux {}", version.join("."))
}

/// The load of the last minute (proc_loadavg(5)).
#[must_use]
pub fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or_default().to_owned()
}

/// Processor time that this process has used so far, in seconds.
///
/// # Errors
/// The error of the system (getrusage(2)).
pub fn processor_seconds() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 * 1e-6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// The share of all processors' time that was idle during one second in which this program does nothing.
#[must_use]
pub fn idle_share() -> f64 {
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
