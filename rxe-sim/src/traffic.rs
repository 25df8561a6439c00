//! The scenario's traffic as a list of flows, in the order of their start.

use crate::{
    rng::Rng,
    scenario::{Scenario, ScenarioError, Sizes, Traffic},
    topology::Topology,
    units::SECOND,
};

/// Most flows of a scenario: the state of each takes about 150 bytes.
const MOST: usize = 1 << 22;

/// A message from one host to another.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// The entry of the scenario's traffic that it belongs to.
    pub class: usize,
    /// Sender.
    pub src: usize,
    /// Receiver.
    pub dst: usize,
    /// Bytes.
    pub size: u64,
    /// Start, picoseconds.
    pub start: u64,
}

/// Cumulative distributions: a size in bytes, and the part of flows up to that size, with linear interpolation. The numbers are
/// from the files that HPCC's authors published with their simulator.
const WEB_SEARCH: &[(f64, f64)] = &[
    (0.0, 0.0),
    (10e3, 0.15),
    (20e3, 0.20),
    (30e3, 0.30),
    (50e3, 0.40),
    (80e3, 0.53),
    (200e3, 0.60),
    (1e6, 0.70),
    (2e6, 0.80),
    (5e6, 0.90),
    (10e6, 0.97),
    (30e6, 1.0),
];

const HADOOP: &[(f64, f64)] = &[
    (0.0, 0.0),
    (100.0, 0.01),
    (200.0, 0.02),
    (300.0, 0.05),
    (350.0, 0.15),
    (400.0, 0.20),
    (500.0, 0.30),
    (600.0, 0.40),
    (700.0, 0.50),
    (1e3, 0.60),
    (2e3, 0.67),
    (7e3, 0.70),
    (30e3, 0.72),
    (50e3, 0.82),
    (80e3, 0.87),
    (120e3, 0.90),
    (300e3, 0.95),
    (1e6, 0.975),
    (2e6, 0.99),
    (10e6, 1.0),
];

/// Half from 32 B to 1 KB, 35 % up to 200 KB, 15 % up to 3 MB, as described in the text of the paper.
const IRN: &[(f64, f64)] = &[(32.0, 0.0), (1e3, 0.5), (200e3, 0.85), (3e6, 1.0)];

impl Sizes {
    fn table(&self) -> &'static [(f64, f64)] {
        match self {
            Self::WebSearch => WEB_SEARCH,
            Self::Hadoop => HADOOP,
            Self::Irn => IRN,
            Self::Fixed(_) => &[],
        }
    }

    /// Mean, bytes.
    #[must_use]
    pub fn mean(&self) -> f64 {
        match self {
            Self::Fixed(size) => size.0 as f64,
            _ => self
                .table()
                .windows(2)
                .map(|pair| (pair[1].1 - pair[0].1) * f64::midpoint(pair[0].0, pair[1].0))
                .sum(),
        }
    }

    fn draw(&self, rng: &mut Rng) -> u64 {
        if let Self::Fixed(size) = self {
            return size.0.max(1);
        }
        let unit = rng.unit();
        let pair = self.table().windows(2).find(|pair| unit < pair[1].1);
        pair.map_or(1, |pair| {
            let ((low, from), (high, to)) = (pair[0], pair[1]);
            (low + (high - low) * (unit - from) / (to - from)).max(1.0) as u64
        })
    }
}

/// All flows that start before the end, in order.
///
/// # Errors
/// A host does not exist, or there are too many flows.
pub fn flows(scenario: &Scenario, topology: &Topology) -> Result<Vec<Flow>, ScenarioError> {
    let mut flows = List { flows: Vec::new(), end: scenario.end.0 };
    let host = |name: &String| {
        topology
            .node(name)
            .filter(|node| *node < topology.hosts)
            .ok_or_else(|| ScenarioError::value("traffic", format!("there is no host {name:?}")))
    };
    for (class, traffic) in scenario.traffic.iter().enumerate() {
        let mut rng = Rng::new(scenario.seed, 100 + class as u64);
        let flow = |src, dst, size, start| Flow { class, src, dst, size, start };
        match traffic {
            Traffic::Flows { from, to, size, start, apart, count } => {
                let dst = host(to)?;
                let senders = from.iter().map(host).collect::<Result<Vec<_>, _>>()?;
                if senders.contains(&dst) {
                    return Err(ScenarioError::value("traffic", format!("{to} sends to itself")));
                }
                let mut time = start.0;
                for src in senders.into_iter().flat_map(|src| std::iter::repeat_n(src, *count)) {
                    if time >= scenario.end.0 {
                        break;
                    }
                    flows.push(flow(src, dst, size.0, time))?;
                    time = time.saturating_add(apart.0);
                }
            }
            Traffic::Permutation { size, start } => {
                let mut to: Vec<usize> = (0..topology.hosts).collect();
                // Sattolo's algorithm gives a single cycle, so no host sends to itself.
                for last in (1..to.len()).rev() {
                    to.swap(last, rng.below(last));
                }
                for (src, &dst) in to.iter().enumerate() {
                    flows.push(flow(src, dst, size.0, start.0))?;
                }
            }
            Traffic::Incast { fan_in, size, every, times } => {
                if *fan_in >= topology.hosts {
                    let problem = format!("{fan_in} of {} hosts cannot send to another", topology.hosts);
                    return Err(ScenarioError::value("traffic.fan_in", problem));
                }
                for time in (1..).take(times.unwrap_or(usize::MAX)).map(|turn: u64| turn * every.0) {
                    if time >= scenario.end.0 {
                        break;
                    }
                    let mut hosts: Vec<usize> = (0..topology.hosts).collect();
                    for place in 0..=*fan_in {
                        hosts.swap(place, place + rng.below(topology.hosts - place));
                    }
                    for &src in &hosts[1..=*fan_in] {
                        flows.push(flow(src, hosts[0], size.0, time))?;
                    }
                }
            }
            Traffic::Poisson { sizes, load, until } => {
                let capacity: f64 = topology
                    .wires
                    .iter()
                    .filter(|wire| wire.from < topology.hosts)
                    .map(|wire| wire.rate as f64)
                    .sum();
                let gap = sizes.mean() * 8.0 / (capacity * load) * SECOND as f64;
                let mut time = 0.0;
                loop {
                    time += -(1.0 - rng.unit()).ln() * gap;
                    if time as u64 >= until.0.min(scenario.end.0) {
                        break;
                    }
                    let src = rng.below(topology.hosts);
                    let dst = (src + 1 + rng.below(topology.hosts - 1)) % topology.hosts;
                    flows.push(flow(src, dst, sizes.draw(&mut rng), time as u64))?;
                }
            }
        }
    }
    let mut flows = flows.flows;
    flows.sort_by_key(|flow| flow.start);
    Ok(flows)
}

/// Flows that start before the end.
struct List {
    flows: Vec<Flow>,
    end: u64,
}

impl List {
    fn push(&mut self, flow: Flow) -> Result<(), ScenarioError> {
        if flow.start >= self.end {
            return Ok(());
        }
        if self.flows.len() == MOST {
            return Err(ScenarioError::value("traffic", format!("more than {MOST} flows")));
        }
        self.flows.push(flow);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The means that the papers, and those that cite them, give: 1.7 MB and 0.12 MB.
    #[test]
    fn distributions_have_the_means_of_their_tables() {
        assert!((1.5e6..1.8e6).contains(&Sizes::WebSearch.mean()), "{}", Sizes::WebSearch.mean());
        assert!((0.1e6..0.14e6).contains(&Sizes::Hadoop.mean()), "{}", Sizes::Hadoop.mean());
        for sizes in [Sizes::WebSearch, Sizes::Hadoop, Sizes::Irn] {
            let mut rng = Rng::new(1, 1);
            let drawn = (0..200_000).map(|_| sizes.draw(&mut rng) as f64).sum::<f64>() / 200_000.0;
            assert!((drawn / sizes.mean() - 1.0).abs() < 0.03, "{sizes:?}: {drawn}");
        }
    }
}
