//! A single measurement, its outcome, and the part of the outcome that is shown.

use crate::{
    across::{self, Wire},
    ours::{self, Load, Sleep},
    place::Place,
    plan::K64,
    raw,
};
use benches::{
    ends::Result,
    turns::{beside, iperf3},
};
use serde_json::Value;
use std::{
    net::{IpAddr, Ipv4Addr},
    process::{Command, Stdio},
};

/// Percentiles of latencies.
pub(crate) const PERCENTILES: [f64; 4] = [50.0, 90.0, 99.0, 99.9];
/// Number of connections in progress at a time, and how many are made per second of a measurement.
pub(crate) const CONNECTIONS: [(usize, f64); 3] = [(1, 1000.0), (8, 4000.0), (64, 5000.0)];

/// A measurement. Equal measurements are taken once per round.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Probe {
    /// A load on our stack.
    Load(Load),
    /// WRITEs of 64 KiB between two network namespaces, on our stack.
    Across(Wire),
    /// The best that a socket could do: batches, ICRCs and copies on both sides, and a window. The number is the payload of
    /// a packet.
    Limit(u32),
    /// One TCP stream. The number is the bytes of a write.
    Tcp(u32),
    /// One-way latency of messages of 2 bytes.
    Latency(Sleep, Place),
    /// The same by UDP.
    UdpLatency(Sleep, Place),
    /// Rate of UDP datagrams of the same size as a WRITE of 64 bytes, one per call.
    UdpRate,
    /// Connections of reliable queue pairs. The number is an index of `CONNECTIONS`.
    Connections(usize),
}

/// The results of a measurement.
#[derive(Clone, Default, Debug)]
pub(crate) struct Outcome {
    /// Messages or connections per second.
    messages: f64,
    gbit: f64,
    /// Processor time of both processes for 10^9 bytes, in seconds.
    processor: f64,
    percentiles: [f64; PERCENTILES.len()],
}

/// The part of an outcome that a point shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pick {
    /// Gbit/s of payload.
    Gbit,
    /// Processor time of both processes for 10^9 bytes, in seconds.
    Processor,
    /// Millions of messages per second.
    Millions,
    /// Connections per second.
    Each,
    /// Latency in microseconds, by index of `PERCENTILES`.
    Percentile(usize),
}

impl Pick {
    pub(crate) const fn unit(self) -> &'static str {
        match self {
            Self::Gbit => "Gbit/s",
            Self::Processor => "CPU seconds/GB",
            Self::Millions => "M/s",
            Self::Each => "1/s",
            Self::Percentile(_) => "us",
        }
    }
}

impl Outcome {
    pub(crate) fn pick(&self, pick: Pick) -> f64 {
        match pick {
            Pick::Gbit => self.gbit,
            Pick::Processor => self.processor,
            Pick::Millions => self.messages * 1e-6,
            Pick::Each => self.messages,
            Pick::Percentile(index) => self.percentiles[index],
        }
    }

    fn traffic(traffic: &ours::Traffic, size: u32) -> Self {
        let bytes = f64::from(size);
        let (messages, gbit) = (traffic.messages, traffic.messages * bytes * 8e-9);
        Self { messages, gbit, processor: traffic.processor / bytes * 1e9, ..Self::default() }
    }

    fn times(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        // The nearest-rank method.
        let rank = |percent: f64| (times.len() as f64 * percent / 100.0).ceil() as usize;
        let value = |percent| times.get(rank(percent).saturating_sub(1)).copied().unwrap_or(f64::NAN);
        Self { percentiles: PERCENTILES.map(value), ..Self::default() }
    }
}

impl Probe {
    pub(crate) fn measure(self, seconds: f64) -> Result<Outcome> {
        Ok(match self {
            Self::Load(load) => Outcome::traffic(&ours::messages(load, seconds)?, load.size),
            Self::Across(wire) => Outcome::traffic(&across::measure(wire, seconds)?, K64.size),
            Self::Limit(payload) => Outcome::traffic(&raw::limit(payload as usize, seconds)?, payload),
            Self::Tcp(length) => {
                let local = |last| IpAddr::V4(Ipv4Addr::new(127, 77, 93, last));
                let whole = (seconds.ceil() as u32).max(1);
                let tcp = iperf3(local(2), local(1), &length.to_string(), whole)?;
                Outcome { gbit: tcp.gbit, processor: tcp.processor / (tcp.gbit / 8.0), ..Outcome::default() }
            }
            Self::Latency(sleep, place) => Outcome::times(ours::latency(sleep, place, seconds)?),
            Self::UdpLatency(sleep, place) => Outcome::times(raw::latency(sleep, place, seconds)?),
            Self::UdpRate => Outcome { messages: raw::rate(seconds)?, ..Outcome::default() },
            Self::Connections(index) => {
                Outcome { messages: connections(index, seconds)?, ..Outcome::default() }
            }
        })
    }
}

/// Connections made and ended per second between two processes on 127.0.0.1, as reported by `cm-load`.
fn connections(index: usize, seconds: f64) -> Result<f64> {
    let (window, rate) = CONNECTIONS[index];
    let count = ((rate * seconds) as usize).max(window);
    let mut command = Command::new(beside("cm-load")?);
    command.args(["--count", &count.to_string(), "--window", &window.to_string()]);
    // One of the two processes runs the host service, so that no service is left behind.
    let output = command.env("RXE_SERVICE", "embedded").stderr(Stdio::inherit()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let made =
        said.lines().find_map(|line| serde_json::from_str::<Value>(line).ok()?["made_per_second"].as_f64());
    match made {
        Some(made) if output.status.success() => Ok(made),
        _ => Err(format!("cm-load: {}: {said}", output.status).into()),
    }
}
