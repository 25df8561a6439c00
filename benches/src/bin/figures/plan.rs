//! The ratios with an aim: the pairs of measurements that make a row.

use crate::{
    across::{self, Wire},
    ours::{Load, Op, Sleep},
    place::Place,
    probe::{Pick, Probe},
};

/// A measurement, and the part of its outcome that counts.
pub(crate) type Figure = (Probe, Pick);

/// Two measurements and the ratio aimed at. If a side lists several measurements, the best one counts.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) above: &'static [Figure],
    pub(crate) below: &'static [Figure],
    pub(crate) aim: &'static str,
}

impl Row {
    /// Whether this user may take the measurements.
    fn is_possible(&self) -> bool {
        self.probes().all(|probe| !matches!(probe, Probe::Across(_)) || across::is_possible())
    }

    pub(crate) fn probes(&self) -> impl Iterator<Item = Probe> {
        self.above.iter().chain(self.below).map(|(probe, _)| *probe)
    }
}

pub(crate) const K64: Load = Load::new(Op::Write, 64 << 10, 64);
const M1: Load = Load::new(Op::Write, 1 << 20, 8);
const SMALL: Load = Load::new(Op::Write, 64, 128);

const WRITE: Figure = bandwidth(K64);
const WRITE_1M: Figure = bandwidth(M1);
const TCP: Figure = tcp(128);
const TCP_ALL: &[Figure] = &[tcp(64), TCP, tcp(256), tcp(512), tcp(1024)];
const UDP_RATE: Figure = (Probe::UdpRate, Pick::Millions);

const fn bandwidth(load: Load) -> Figure {
    (Probe::Load(load), Pick::Gbit)
}

const fn by(wire: Wire) -> Figure {
    (Probe::Across(wire), Pick::Gbit)
}

const fn rate(load: Load) -> Figure {
    (Probe::Load(load), Pick::Millions)
}

const fn tcp(kib: u32) -> Figure {
    (Probe::Tcp(kib << 10), Pick::Gbit)
}

const fn median_of(probe: Probe) -> Figure {
    (probe, Pick::Percentile(0))
}

const fn row(
    name: &'static str,
    above: &'static [Figure],
    below: &'static [Figure],
    aim: &'static str,
) -> Row {
    Row { name, above, below, aim }
}

/// The rows with a wanted name. Rows that this user may not measure are left out, with a message.
pub(crate) fn possible(wanted: impl Fn(&str) -> bool) -> Vec<&'static Row> {
    let (rows, others): (Vec<&Row>, _) =
        ROWS.iter().filter(|row| wanted(row.name)).partition(|row| row.is_possible());
    for row in others {
        eprintln!("skipped: {}: needs root (network namespaces and packet sockets)", row.name);
    }
    rows
}

const ROWS: &[Row] = &[
    row("WRITE 64 KiB / TCP -l 128K", &[WRITE], &[TCP], ">= 1.5"),
    row("WRITE 1 MiB / TCP -l 128K", &[WRITE_1M], &[TCP], ">= 1.5"),
    row("WRITE 1 MiB / TCP's best of -l 64K to 1M", &[WRITE_1M], TCP_ALL, ">= 1.1"),
    row("WRITE 1 MiB / limit of the socket", &[WRITE_1M], &[(Probe::Limit(4096), Pick::Gbit)], ">= 0.9"),
    row(
        "WRITE 64 KiB, RXE_RCVBUF=default / max",
        &[bandwidth(Load { environment: Some(("RXE_RCVBUF", "default")), ..K64 })],
        &[WRITE],
        ">= 0.8",
    ),
    row("SEND 64 KiB / WRITE", &[bandwidth(Load { op: Op::Send, ..K64 })], &[WRITE], ">= 0.9"),
    row("READ 64 KiB / WRITE", &[bandwidth(Load { op: Op::Read, ..K64 })], &[WRITE], ">= 0.9"),
    row(
        "SEND 2 B, busy / UDP",
        &[median_of(Probe::Latency(Sleep::No, Place::Apart))],
        &[median_of(Probe::UdpLatency(Sleep::No, Place::Apart))],
        "<= 1.3",
    ),
    row(
        "SEND 2 B, sleeping / UDP",
        &[median_of(Probe::Latency(Sleep::Yes, Place::Free))],
        &[median_of(Probe::UdpLatency(Sleep::Yes, Place::Free))],
        "<= 1.25",
    ),
    row(
        "SEND 2 B, sleeping / UDP, on one processor",
        &[median_of(Probe::Latency(Sleep::Yes, Place::Same))],
        &[median_of(Probe::UdpLatency(Sleep::Yes, Place::Same))],
        "",
    ),
    row(
        "SEND 2 B, sleeping / UDP, on one each",
        &[median_of(Probe::Latency(Sleep::Yes, Place::Apart))],
        &[median_of(Probe::UdpLatency(Sleep::Yes, Place::Apart))],
        "",
    ),
    row("WRITE 64 B, lists of 32 / UDP singly", &[rate(Load { list: 32, ..SMALL })], &[UDP_RATE], ">= 5"),
    row("WRITE 64 B, posted singly / UDP singly", &[rate(SMALL)], &[UDP_RATE], ""),
    row(
        "WRITE 64 KiB, 1 % loss / none",
        &[bandwidth(Load { faults: Some("loss=10,dir=rx"), ..K64 })],
        &[WRITE],
        ">= 0.5",
    ),
    row(
        "WRITE 64 B, 10,000 queue pairs in turn / 1",
        &[rate(Load { qps: 10_000, ..SMALL })],
        &[rate(SMALL)],
        ">= 0.7",
    ),
    row("veth: WRITE 64 KiB, raw link / UDP link", &[by(Wire::VethRaw)], &[by(Wire::VethUdp)], ">= 0.6"),
    row(
        "veth: WRITE 64 KiB, raw link without PACKET_VNET_HDR / UDP link",
        &[by(Wire::VethFrames)],
        &[by(Wire::VethUdp)],
        ">= 0.3",
    ),
    row("WRITE 64 KiB, 16 queue pairs / 1", &[bandwidth(Load { qps: 16, ..K64 })], &[WRITE], ">= 0.9"),
];
