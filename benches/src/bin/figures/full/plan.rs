//! The contents of the report: sections with series of points, and the measurement for each point.

use crate::{
    ours::{Load, Op, Sleep},
    place::Place,
    probe::{CONNECTIONS, PERCENTILES, Pick, Probe},
};

/// Message sizes in bytes.
const SIZES: [u32; 9] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// The largest write that iperf3 accepts.
const TCP_MOST: u32 = 1 << 20;
/// Maximum payload of a packet.
const MTU: u32 = 4096;
/// Loss rates, and the value of `RXE_FAULT` on the side where the data arrives.
const LOSSES: [(&str, Option<&str>); 4] = [
    ("0 %", None),
    ("0.1 %", Some("loss=1,dir=rx")),
    ("1 %", Some("loss=10,dir=rx")),
    ("5 %", Some("loss=50,dir=rx")),
];
/// Number of requests in a list.
const LISTS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Number of queue pairs: powers of ten.
const QUEUE_PAIRS: [usize; 5] = [1, 10, 100, 1000, 10_000];

/// A point of a series.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) at: String,
    pub(super) probe: Probe,
    pub(super) pick: Pick,
}

/// A line of a plot.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: &'static str,
    pub(super) points: Vec<Point>,
}

/// A plot and a table.
#[derive(Clone, Debug)]
pub(super) struct Section {
    /// Also the name of the plot's file.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) across: &'static str,
    pub(super) note: &'static str,
    pub(super) series: Vec<Series>,
}

impl Section {
    pub(super) fn unit(&self) -> &'static str {
        self.series.iter().flat_map(|series| &series.points).next().map_or("", |point| point.pick.unit())
    }
}

fn load(op: Op, size: u32) -> Load {
    let most = if size <= MTU { 128 } else { 64 };
    let depth = ((8 << 20) / size as usize).clamp(4, most);
    Load::new(op, size, depth)
}

fn bytes(size: u32) -> String {
    match size {
        0..1024 => size.to_string(),
        1024..1_048_576 => format!("{} KiB", size >> 10),
        _ => format!("{} MiB", size >> 20),
    }
}

fn by_size(name: &'static str, pick: Pick, most: u32, probe: impl Fn(u32) -> Probe) -> Series {
    let sizes = SIZES.into_iter().filter(|size| *size <= most);
    Series { name, points: sizes.map(|size| Point { at: bytes(size), probe: probe(size), pick }).collect() }
}

/// All series against the message size; `pick` selects the figure to show.
fn sizes(pick: Pick) -> Vec<Series> {
    let ours = |op| move |size| Probe::Load(load(op, size));
    let asleep = |size| Probe::Load(Load { sleep: Sleep::Yes, ..load(Op::Write, size) });
    vec![
        by_size("WRITE", pick, u32::MAX, ours(Op::Write)),
        by_size("SEND", pick, u32::MAX, ours(Op::Send)),
        by_size("READ", pick, u32::MAX, ours(Op::Read)),
        by_size("WRITE, sleeping", pick, u32::MAX, asleep),
        by_size("TCP (iperf3)", pick, TCP_MOST, Probe::Tcp),
        by_size("limit of UDP", pick, u32::MAX, |size| Probe::Limit(size.min(MTU))),
    ]
}

fn latency() -> Vec<Series> {
    let series = |name, probe| {
        let point =
            |(index, percent)| Point { at: format!("{percent} %"), probe, pick: Pick::Percentile(index) };
        Series { name, points: PERCENTILES.into_iter().enumerate().map(point).collect() }
    };
    vec![
        series("SEND, polling", Probe::Latency(Sleep::No, Place::Apart)),
        series("UDP, polling", Probe::UdpLatency(Sleep::No, Place::Apart)),
        series("SEND, sleeping, 2 CPUs", Probe::Latency(Sleep::Yes, Place::Apart)),
        series("UDP, sleeping, 2 CPUs", Probe::UdpLatency(Sleep::Yes, Place::Apart)),
        series("SEND, sleeping, 1 CPU", Probe::Latency(Sleep::Yes, Place::Same)),
        series("UDP, sleeping, 1 CPU", Probe::UdpLatency(Sleep::Yes, Place::Same)),
    ]
}

fn rate() -> Vec<Series> {
    let point = |qps| {
        move |list: usize| Point {
            at: list.to_string(),
            probe: Probe::Load(Load { qps, list, ..load(Op::Write, 64) }),
            pick: Pick::Millions,
        }
    };
    let series = |name, qps| Series { name, points: LISTS.into_iter().map(point(qps)).collect() };
    let udp = Point { at: "1".to_owned(), probe: Probe::UdpRate, pick: Pick::Millions };
    vec![
        series("1 queue pair", 1),
        series("16 queue pairs", 16),
        series("256 queue pairs", 256),
        Series { name: "UDP, one a call", points: vec![udp] },
    ]
}

fn loss() -> Vec<Series> {
    let series = |name, op| {
        let point = |(at, faults): (&str, _)| {
            let probe = Probe::Load(Load { faults, ..load(op, 64 << 10) });
            Point { at: at.to_owned(), probe, pick: Pick::Gbit }
        };
        Series { name, points: LOSSES.into_iter().map(point).collect() }
    };
    vec![series("WRITE 64 KiB", Op::Write), series("SEND 64 KiB", Op::Send), series("READ 64 KiB", Op::Read)]
}

fn queue_pairs(name: &'static str, size: u32, pick: Pick) -> Vec<Series> {
    let point = |qps: usize| Point {
        at: qps.to_string(),
        probe: Probe::Load(Load { qps, ..load(Op::Write, size) }),
        pick,
    };
    vec![Series { name, points: QUEUE_PAIRS.into_iter().map(point).collect() }]
}

fn connected() -> Vec<Series> {
    let point = |(index, (window, _)): (usize, (usize, f64))| Point {
        at: window.to_string(),
        probe: Probe::Connections(index),
        pick: Pick::Each,
    };
    vec![Series { name: "ours", points: CONNECTIONS.into_iter().enumerate().map(point).collect() }]
}

/// The whole report.
pub(super) fn sections() -> Vec<Section> {
    let section = |name, title, across, note, series| Section { name, title, across, note, series };
    let asked = "queue pairs, used in turn";
    vec![
        section("bandwidth", "Bandwidth", "bytes of a message", BANDWIDTH, sizes(Pick::Gbit)),
        section("processor", "Processor time", "bytes of a message", PROCESSOR, sizes(Pick::Processor)),
        section("latency", "Latency of 2 bytes, one way", "percentile", LATENCY, latency()),
        section("rate", "WRITEs of 64 bytes", "requests of a list", RATE, rate()),
        section("loss", "Bandwidth with losses", "packets lost", LOSS, loss()),
        section(
            "queue-pairs-small",
            "Many queue pairs, small messages",
            asked,
            QPS,
            queue_pairs("WRITE 64 B", 64, Pick::Millions),
        ),
        section(
            "queue-pairs-large",
            "Many queue pairs, large messages",
            asked,
            QPS,
            queue_pairs("WRITE 64 KiB", 64 << 10, Pick::Gbit),
        ),
        section("connections", "Connections", "under way at a time", CONNECTED, connected()),
    ]
}

const BANDWIDTH: &str = "One queue pair, MTU 4096, posted singly, at most 8 MiB and 128 requests under way. TCP is one \
    stream of `iperf3 -l`, which takes no more than 1 MiB. The limit is plain UDP by GSO and GRO with the payload copied \
    and the ICRC computed on both sides, in packets as large as the message, at most 4096 bytes: nothing over one socket \
    could be faster.";
const PROCESSOR: &str = "Of both processes together, in the same measurements. Who polls needs all of both processors \
    whatever it moves; \"sleeping\" waits for an event whenever nothing is there.";
const LATENCY: &str = "Half of a round trip: SENDs beside UDP datagrams between two processes. Polling, both ends look \
    without a pause, each on a processor of its own; sleeping, both wait in the kernel, on one processor or on two: waking \
    another one costs more than everything else.";
const RATE: &str = "Posted by lists, the last of each signaled, 128 requests under way over all queue pairs. UDP: \
    datagrams as large as such a packet (96 bytes), one a system call, as many as leave.";
const LOSS: &str = "Packets are lost at random (`RXE_FAULT`) where the data arrives.";
const QPS: &str = "One completion queue, and as many requests under way as with one queue pair.";
const CONNECTED: &str = "Reliable queue pairs between two processes by the connection manager (`cm-load`): resolved, \
    connected and ended again.";
