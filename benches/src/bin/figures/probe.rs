//! One measurement, what it tells, and which part of that is meant.

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
/// Connections under way, and how many are made in a second of a measurement.
pub(crate) const CONNECTIONS: [(usize, f64); 3] = [(1, 1000.0), (8, 4000.0), (64, 5000.0)];

/// A measurement. What is equal is measured once a round.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Probe {
    /// Ours.
    Load(Load),
    /// Ours, WRITEs of 64 KiB between two network namespaces.
    Across(Wire),
    /// What a socket could carry at best: batches, ICRCs and copies on both sides, a window; by the payload of a packet.
    Limit(u32),
    /// One TCP stream, by the bytes of a write.
    Tcp(u32),
    /// Messages of 2 bytes, one way.
    Latency(Sleep, Place),
    /// The same by UDP.
    UdpLatency(Sleep, Place),
    /// UDP datagrams as large as a WRITE of 64 bytes, one a call.
    UdpRate,
    /// Connections of reliable queue pairs, by index of `CONNECTIONS`.
    Connections(usize),
}

/// All that a measurement may tell.
#[derive(Clone, Default, Debug)]
pub(crate) struct Outcome {
    /// Messages or connections a second.
    messages: f64,
    gbit: f64,
    /// Seconds of processor time of both processes for 10^9 bytes.
    processor: f64,
    percentiles: [f64; PERCENTILES.len()],
}

/// Which part of an outcome a point shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pick {
    /// Gbit/s of payload.
    Gbit,
    /// Seconds of processor time of both processes for 10^9 bytes.
    Processor,
    /// Millions of messages a second.
    Millions,
    /// Connections a second.
    Each,
    /// Microseconds, by index of `PERCENTILES`.
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
        // Nearest rank.
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

/// Connections a second, ends included, between two processes on 127.0.0.1, as `cm-load` tells.
fn connections(index: usize, seconds: f64) -> Result<f64> {
    let (window, rate) = CONNECTIONS[index];
    let count = ((rate * seconds) as usize).max(window);
    let mut command = Command::new(beside("cm-load")?);
    command.args(["--count", &count.to_string(), "--window", &window.to_string()]);
    // One of the two is the host service, so that none is left behind.
    let output = command.env("RXE_SERVICE", "embedded").stderr(Stdio::inherit()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let made =
        said.lines().find_map(|line| serde_json::from_str::<Value>(line).ok()?["made_per_second"].as_f64());
    match made {
        Some(made) if output.status.success() => Ok(made),
        _ => Err(format!("cm-load: {}: {said}", output.status).into()),
    }
}
