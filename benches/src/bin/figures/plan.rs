//! What is measured, and which two measurements make a row.

use crate::{
    ours::{self, Load, Op, Sleep},
    place::Place,
    raw,
};
use benches::{
    ends::Result,
    turns::{iperf3, median},
};
use std::net::{IpAddr, Ipv4Addr};

/// One measurement.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Figure {
    /// Throughput of one or several queue pairs, Gbit/s.
    Bandwidth(Load),
    /// Messages of it, millions a second.
    Rate(Load),
    /// One way of a SEND of 2 bytes, microseconds.
    Latency(Sleep, Place),
    /// One way of a UDP datagram of 2 bytes, microseconds.
    UdpLatency(Sleep, Place),
    /// UDP datagrams as large as a WRITE of 64 bytes, one a call, millions a second.
    UdpRate,
    /// What a socket could carry at best: batches, ICRCs and copies on both sides, a window. Gbit/s of payload.
    Limit,
    /// One TCP stream, Gbit/s, by the bytes of a write.
    Tcp(&'static str),
}

impl Figure {
    pub(crate) const fn unit(self) -> &'static str {
        match self {
            Self::Bandwidth(_) | Self::Limit | Self::Tcp(_) => "Gbit/s",
            Self::Rate(_) | Self::UdpRate => "M/s",
            Self::Latency(..) | Self::UdpLatency(..) => "us",
        }
    }

    pub(crate) fn measure(self, seconds: f64) -> Result<f64> {
        match self {
            Self::Bandwidth(load) => {
                Ok(ours::messages(load, seconds)?.messages * f64::from(load.size) * 8e-9)
            }
            Self::Rate(load) => Ok(ours::messages(load, seconds)?.messages * 1e-6),
            Self::Latency(sleep, place) => Ok(median(&ours::latency(sleep, place, seconds)?)),
            Self::UdpLatency(sleep, place) => Ok(median(&raw::latency(sleep, place, seconds)?)),
            Self::UdpRate => Ok(raw::rate(seconds)? * 1e-6),
            Self::Limit => Ok(raw::limit(4096, seconds)?.messages * 4096.0 * 8e-9),
            Self::Tcp(length) => {
                let local = |last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
                Ok(iperf3(local(2), local(1), length, (seconds.ceil() as u32).max(1))?.gbit)
            }
        }
    }
}

/// Two measurements (of several the best one), and the ratio aimed at.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) above: &'static [Figure],
    pub(crate) below: &'static [Figure],
    pub(crate) aim: &'static str,
}

const K64: Load =
    Load { op: Op::Write, size: 64 << 10, qps: 1, depth: 64, list: 1, sleep: Sleep::No, environment: None };
const M1: Load = Load { size: 1 << 20, depth: 8, ..K64 };
const SMALL: Load = Load { size: 64, depth: 128, ..K64 };

const WRITE: Figure = Figure::Bandwidth(K64);
const WRITE_1M: Figure = Figure::Bandwidth(M1);
const TCP: Figure = Figure::Tcp("128K");
const TCP_ALL: &[Figure] =
    &[Figure::Tcp("64K"), TCP, Figure::Tcp("256K"), Figure::Tcp("512K"), Figure::Tcp("1M")];

const fn row(
    name: &'static str,
    above: &'static [Figure],
    below: &'static [Figure],
    aim: &'static str,
) -> Row {
    Row { name, above, below, aim }
}

pub(crate) const ROWS: &[Row] = &[
    row("WRITE 64 KiB / TCP -l 128K", &[WRITE], &[TCP], ">= 1.5"),
    row("WRITE 1 MiB / TCP -l 128K", &[WRITE_1M], &[TCP], ">= 1.5"),
    row("WRITE 1 MiB / TCP's best of -l 64K to 1M", &[WRITE_1M], TCP_ALL, ">= 1.1"),
    row("WRITE 1 MiB / limit of the socket", &[WRITE_1M], &[Figure::Limit], ">= 0.9"),
    row(
        "WRITE 64 KiB, RXE_RCVBUF=default / max",
        &[Figure::Bandwidth(Load { environment: Some(("RXE_RCVBUF", "default")), ..K64 })],
        &[WRITE],
        ">= 0.8",
    ),
    row("SEND 64 KiB / WRITE", &[Figure::Bandwidth(Load { op: Op::Send, ..K64 })], &[WRITE], ">= 0.9"),
    row("READ 64 KiB / WRITE", &[Figure::Bandwidth(Load { op: Op::Read, ..K64 })], &[WRITE], ">= 0.9"),
    row(
        "SEND 2 B, busy / UDP",
        &[Figure::Latency(Sleep::No, Place::Free)],
        &[Figure::UdpLatency(Sleep::No, Place::Free)],
        "<= 1.3",
    ),
    row(
        "SEND 2 B, sleeping / UDP",
        &[Figure::Latency(Sleep::Yes, Place::Free)],
        &[Figure::UdpLatency(Sleep::Yes, Place::Free)],
        "<= 1.25",
    ),
    row(
        "SEND 2 B, sleeping / UDP, on one processor",
        &[Figure::Latency(Sleep::Yes, Place::Same)],
        &[Figure::UdpLatency(Sleep::Yes, Place::Same)],
        "",
    ),
    row(
        "SEND 2 B, sleeping / UDP, on one each",
        &[Figure::Latency(Sleep::Yes, Place::Apart)],
        &[Figure::UdpLatency(Sleep::Yes, Place::Apart)],
        "",
    ),
    row(
        "WRITE 64 B, lists of 32 / UDP singly",
        &[Figure::Rate(Load { list: 32, ..SMALL })],
        &[Figure::UdpRate],
        ">= 5",
    ),
    row("WRITE 64 B, posted singly / UDP singly", &[Figure::Rate(SMALL)], &[Figure::UdpRate], ""),
    row(
        "WRITE 64 KiB, 1 % loss / none",
        &[Figure::Bandwidth(Load { environment: Some(("RXE_FAULT", "loss=10,dir=rx")), ..K64 })],
        &[WRITE],
        ">= 0.5",
    ),
    row(
        "WRITE 64 B, 10,000 queue pairs in turn / 1",
        &[Figure::Rate(Load { qps: 10_000, ..SMALL })],
        &[Figure::Rate(SMALL)],
        ">= 0.7",
    ),
    row(
        "WRITE 64 KiB, 16 queue pairs / 1",
        &[Figure::Bandwidth(Load { qps: 16, ..K64 })],
        &[WRITE],
        ">= 0.9",
    ),
];
