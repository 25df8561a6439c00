//! Results of a simulation: a summary (JSON), and tables of all flows and of all samples (CSV).

use crate::{
    units::{MICRO, SECOND},
    world::{Counts, Ended, World},
};
use serde::Serialize;
use std::{io::Write, time::Duration};

/// The upper ends of the size classes, bytes.
const SIZES: [u64; 10] =
    [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, u64::MAX];

/// Completion of a group of flows. Times are of the flows that were delivered.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Number of flows.
    pub flows: usize,
    /// Number of flows that were delivered.
    pub delivered: usize,
    /// Slowdown: the completion time divided by that of the flow alone. Mean,
    pub slowdown_mean: f64,
    /// median,
    pub slowdown_p50: f64,
    /// 95th percentile,
    pub slowdown_p95: f64,
    /// 99th percentile.
    pub slowdown_p99: f64,
    /// Completion time, microseconds: mean,
    pub fct_mean_us: f64,
    /// 99th percentile.
    pub fct_p99_us: f64,
}

/// Flows of a size class.
#[derive(Clone, Debug, Serialize)]
pub struct SizeClass {
    /// The upper end of the class, in bytes.
    pub up_to: u64,
    /// Their completion.
    #[serde(flatten)]
    pub summary: Summary,
}

/// A recorded queue.
#[derive(Clone, Debug, Serialize)]
pub struct QueueRecord {
    /// The two ends of its wire.
    pub name: String,
    /// Bytes: mean over time,
    pub mean: f64,
    /// median,
    pub p50: u64,
    /// 90th percentile,
    pub p90: u64,
    /// 99th percentile,
    pub p99: u64,
    /// longest.
    pub longest: u64,
}

/// A recorded flow.
#[derive(Clone, Debug, Serialize)]
pub struct FlowRecord {
    /// Sender and receiver.
    pub name: String,
    /// Payload delivered in the second half of the record, bits per second.
    pub goodput: f64,
}

/// The whole summary.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The scenario's.
    pub title: String,
    /// The scenario's.
    pub seed: u64,
    /// Simulated time, microseconds.
    pub simulated_us: f64,
    /// Seconds that the simulation took.
    pub seconds: f64,
    /// Packet hops and deliveries to endpoints in each of those seconds.
    pub hops_per_second: f64,
    /// Packets that reached endpoints, in a second.
    pub deliveries_per_second: f64,
    /// Counters.
    pub counts: Counts,
    /// All flows.
    pub all: Summary,
    /// By traffic, in the scenario's order.
    pub traffic: Vec<Summary>,
    /// By size class, without empty classes.
    pub sizes: Vec<SizeClass>,
    /// Queue pairs that failed.
    pub failed: usize,
    /// Payload of all flows over simulated time, bits per second.
    pub goodput: f64,
    /// The longest queue: its place and its bytes.
    pub longest_queue: (String, u64),
    /// Total time that ports were paused, in microseconds.
    pub paused_us: f64,
    /// The record's queues.
    pub queues: Vec<QueueRecord>,
    /// The record's flows.
    pub flows: Vec<FlowRecord>,
}

/// The quantile `part` of sorted values.
#[must_use]
pub fn percentile<T: Copy + Default>(sorted: &[T], part: f64) -> T {
    let at = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(at.saturating_sub(1).min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

fn summary<'a>(flows: impl Iterator<Item = &'a Ended>) -> Summary {
    let (mut all, mut slowdown, mut took) = (0, Vec::new(), Vec::new());
    for ended in flows {
        all += 1;
        if let Some(time) = ended.took {
            slowdown.push(time as f64 / ended.ideal.max(1) as f64);
            took.push(time as f64 / MICRO as f64);
        }
    }
    slowdown.sort_unstable_by(f64::total_cmp);
    took.sort_unstable_by(f64::total_cmp);
    Summary {
        flows: all,
        delivered: took.len(),
        slowdown_mean: mean(&slowdown),
        slowdown_p50: percentile(&slowdown, 0.5),
        slowdown_p95: percentile(&slowdown, 0.95),
        slowdown_p99: percentile(&slowdown, 0.99),
        fct_mean_us: mean(&took),
        fct_p99_us: percentile(&took, 0.99),
    }
}

impl Report {
    /// The summary of a simulation that took this much real time.
    #[must_use]
    pub fn new(title: &str, seed: u64, world: &World, took: Duration) -> Self {
        let flows: Vec<Ended> = world.ended().collect();
        let (samples, queues) = world.record();
        let queues = queues.enumerate().map(|(index, name)| {
            let counted = samples.iter().filter(|sample| sample.at >= world.record_from());
            let mut lengths: Vec<u64> = counted.map(|sample| sample.queues[index]).collect();
            lengths.sort_unstable();
            QueueRecord {
                name: name.to_owned(),
                mean: lengths.iter().sum::<u64>() as f64 / lengths.len().max(1) as f64,
                p50: percentile(&lengths, 0.5),
                p90: percentile(&lengths, 0.9),
                p99: percentile(&lengths, 0.99),
                longest: lengths.last().copied().unwrap_or(0),
            }
        });
        let half = &samples[samples.len() / 2..];
        let recorded = samples.first().map_or(0, |sample| sample.delivered.len());
        let records = (0..recorded).map(|index| {
            let bytes: u64 = half.iter().skip(1).map(|sample| sample.delivered[index]).sum();
            let time = half.last().zip(half.first()).map_or(0, |(last, first)| last.at - first.at);
            let flow = flows[index].flow;
            FlowRecord {
                name: format!("{}-{}", world.name(flow.src), world.name(flow.dst)),
                goodput: bytes as f64 * 8.0 * SECOND as f64 / time.max(1) as f64,
            }
        });
        let sizes = SIZES.iter().enumerate().filter_map(|(index, &up_to)| {
            let from = if index == 0 { 0 } else { SIZES[index - 1] };
            let those = flows.iter().filter(|ended| ended.flow.size > from && ended.flow.size <= up_to);
            let summary = summary(those);
            (summary.flows > 0).then_some(SizeClass { up_to, summary })
        });
        let classes = flows.iter().map(|ended| ended.flow.class + 1).max().unwrap_or(0);
        let seconds = took.as_secs_f64();
        let delivered: u64 = flows.iter().map(|ended| ended.delivered).sum();
        Self {
            title: title.to_owned(),
            seed,
            simulated_us: world.now() as f64 / MICRO as f64,
            seconds,
            hops_per_second: world.counts().hops as f64 / seconds.max(1e-9),
            deliveries_per_second: world.counts().deliveries as f64 / seconds.max(1e-9),
            counts: *world.counts(),
            all: summary(flows.iter()),
            traffic: (0..classes)
                .map(|class| summary(flows.iter().filter(|ended| ended.flow.class == class)))
                .collect(),
            sizes: sizes.collect(),
            failed: flows.iter().filter(|ended| ended.failed).count(),
            goodput: delivered as f64 * 8.0 * SECOND as f64 / world.now().max(1) as f64,
            longest_queue: world.longest_queue(),
            paused_us: world.paused() as f64 / MICRO as f64,
            queues: queues.collect(),
            flows: records.collect(),
        }
    }

    /// How many times as long as alone the flows took, by size.
    fn slowdowns(&self) -> String {
        if self.all.delivered == 0 {
            return format!("\nnone of the {} flows has ended\n", self.all.flows);
        }
        let mut out = String::new();
        macro_rules! line {
            ($($part:tt)*) => { out += &(format!($($part)*) + "\n") };
        }
        line!(
            "\n{:>12} {:>8} {:>9} {:>8} {:>8} {:>8} {:>8} {:>12}",
            "size up to",
            "flows",
            "delivered",
            "mean",
            "p50",
            "p95",
            "p99",
            "FCT mean us"
        );
        let all = SizeClass { up_to: 0, summary: self.all.clone() };
        for class in self.sizes.iter().chain([&all]) {
            let Summary {
                flows,
                delivered,
                slowdown_mean,
                slowdown_p50,
                slowdown_p95,
                slowdown_p99,
                fct_mean_us,
                ..
            } = &class.summary;
            let name = match class.up_to {
                0 => "all".to_owned(),
                u64::MAX => "more".to_owned(),
                bytes => bytes.to_string(),
            };
            line!(
                "{name:>12} {flows:>8} {delivered:>9} {slowdown_mean:>8.2} {slowdown_p50:>8.2} {slowdown_p95:>8.2} {slowdown_p99:>8.2} {fct_mean_us:>12.1}"
            );
        }
        out
    }

    /// The summary as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        macro_rules! line {
            ($($part:tt)*) => { out += &(format!($($part)*) + "\n") };
        }
        let counts = &self.counts;
        line!(
            "{} us simulated in {:.2} s: {:.2} M hops/s, {:.2} M deliveries/s",
            self.simulated_us.round(),
            self.seconds,
            self.hops_per_second / 1e6,
            self.deliveries_per_second / 1e6
        );
        line!(
            "packets {}  dropped {}  lost {}  sent again {}  timeouts {}  marked {}  pauses {} ({:.0} us)",
            counts.packets,
            counts.dropped,
            counts.lost,
            counts.retransmitted,
            counts.timeouts,
            counts.marked,
            counts.pauses,
            self.paused_us
        );
        line!(
            "goodput {:.3} Gbit/s  longest queue {} bytes ({})",
            self.goodput / 1e9,
            self.longest_queue.1,
            self.longest_queue.0
        );
        out += &self.slowdowns();
        for queue in &self.queues {
            line!(
                "queue {}: mean {:.0}, p50 {}, p90 {}, p99 {}, longest {} bytes",
                queue.name,
                queue.mean,
                queue.p50,
                queue.p90,
                queue.p99,
                queue.longest
            );
        }
        for flow in &self.flows {
            line!("flow {}: {:.3} Gbit/s", flow.name, flow.goodput / 1e9);
        }
        out
    }
}

/// All flows as CSV.
///
/// # Errors
/// The error of `out`.
pub fn write_flows(world: &World, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "traffic,from,to,bytes,start_us,fct_us,slowdown,delivered_bytes,failed")?;
    for Ended { flow, took, ideal, delivered, failed } in world.ended() {
        let (from, to, start) =
            (world.name(flow.src), world.name(flow.dst), flow.start as f64 / MICRO as f64);
        let (fct, slowdown) = took.map_or_else(Default::default, |took| {
            (
                format!("{:.3}", took as f64 / MICRO as f64),
                format!("{:.4}", took as f64 / ideal.max(1) as f64),
            )
        });
        writeln!(
            out,
            "{},{from},{to},{},{start:.3},{fct},{slowdown},{delivered},{failed}",
            flow.class, flow.size
        )?;
    }
    Ok(())
}

/// The samples as CSV: bytes of each queue, delivered bits per second of each flow, and its rate
/// ([`crate::world::Sample::rates`]).
///
/// # Errors
/// The error of `out`.
pub fn write_record(world: &World, out: &mut dyn Write) -> std::io::Result<()> {
    let (samples, queues) = world.record();
    let names: Vec<String> = queues.map(|name| format!("queue {name}")).collect();
    let flows = samples.first().map_or(0, |sample| sample.delivered.len());
    let header: Vec<String> = std::iter::once("us".to_owned())
        .chain(names)
        .chain((0..flows).map(|flow| format!("flow {flow}")))
        .chain((0..flows).map(|flow| format!("rate {flow}")))
        .collect();
    writeln!(out, "{}", header.join(","))?;
    let mut before = 0;
    for sample in samples {
        write!(out, "{:.3}", sample.at as f64 / MICRO as f64)?;
        sample.queues.iter().try_for_each(|bytes| write!(out, ",{bytes}"))?;
        let time = (sample.at - before).max(1) as f64 / SECOND as f64;
        sample.delivered.iter().try_for_each(|bytes| write!(out, ",{:.0}", *bytes as f64 * 8.0 / time))?;
        sample.rates.iter().try_for_each(|rate| write!(out, ",{rate}"))?;
        writeln!(out)?;
        before = sample.at;
    }
    Ok(())
}
