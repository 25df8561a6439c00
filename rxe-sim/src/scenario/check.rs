//! Checks values that have the right form, but make no sense: impossible ones, and ones that would take too much memory.

use super::{Network, Recovery, Scenario, ScenarioError, Sizes, Switch, Traffic};
use crate::units::{Size, Span};

/// Most hosts of a network: their numbers have 16 bits in a packet.
pub(super) const MOST_HOSTS: usize = 60_000;
/// Most links between leaves and spines: a wire's number has 28 bits in an event, and hosts have wires, too.
const MOST_UPLINKS: usize = 1 << 24;
/// Most samples of queues and flows: each takes about 600 bytes with 64 flows.
const MOST_SAMPLES: u64 = 1_000_000;
/// Longest message (IBTA vol. 1, 9.7.2).
const LONGEST: u64 = 1 << 31;

fn wrong<T>(key: &'static str, problem: impl Into<String>) -> Result<T, ScenarioError> {
    Err(ScenarioError::value(key, problem))
}

impl Scenario {
    /// Checks the values.
    ///
    /// # Errors
    /// The first value that makes no sense.
    pub fn check(&self) -> Result<(), ScenarioError> {
        check_network(&self.network)?;
        check_switch(&self.switch)?;
        self.check_adapter()?;
        self.traffic.iter().try_for_each(check_traffic)?;
        if self.record.every.is_some_and(|every| self.end.0 / every.0.max(1) > MOST_SAMPLES) {
            return wrong("record.every", format!("more than {MOST_SAMPLES} records until the end"));
        }
        Ok(())
    }

    fn check_adapter(&self) -> Result<(), ScenarioError> {
        let adapter = &self.adapter;
        if rxe_core::qp::Mtu::from_bytes(adapter.mtu).is_none() {
            return wrong("adapter.mtu", format!("{} is none of 256, 512, 1024, 2048, 4096", adapter.mtu));
        }
        if adapter.recovery == Recovery::Selective && adapter.window.is_none_or(|window| window.0 > 4_000_000)
        {
            return wrong(
                "adapter.window",
                "selective repeat needs one, up to 4 MB: what receivers may have to keep",
            );
        }
        if adapter.recovery == Recovery::Selective && adapter.timeout.min(adapter.short_timeout) == Span(0) {
            return wrong(
                "adapter.timeout",
                "selective repeat needs timeouts above 0, or time would stand still",
            );
        }
        match adapter.dcqcn.gain {
            Some(gain) if !(0.0..=1.0).contains(&gain) => {
                wrong("adapter.dcqcn.gain", format!("{gain} is not between 0 and 1"))
            }
            _ => Ok(()),
        }
    }
}

/// Checks the size of the network before it is built. With a huge number the names alone would take all memory.
fn check_network(network: &Network) -> Result<(), ScenarioError> {
    let hosts = match network {
        Network::Star { hosts, .. } => *hosts,
        // The number of its ports is checked when it is built.
        Network::FatTree { .. } => return Ok(()),
        Network::LeafSpine { leaves, spines, hosts, .. } => {
            if leaves.saturating_mul(*spines) > MOST_UPLINKS {
                return wrong(
                    "network.spines",
                    format!("{leaves} leaves with {spines} links each are too many"),
                );
            }
            leaves.saturating_mul(*hosts)
        }
        Network::Pods { pods, tors, aggregations, cores, hosts, .. } => {
            let uplinks = tors.saturating_add(*cores).saturating_mul(*aggregations).saturating_mul(*pods);
            if uplinks > MOST_UPLINKS {
                return wrong("network.pods", format!("{uplinks} links between switches are too many"));
            }
            pods.saturating_mul(*tors).saturating_mul(*hosts)
        }
        Network::Custom { hosts, .. } => hosts.len(),
    };
    if !(2..=MOST_HOSTS).contains(&hosts) {
        return wrong("network.hosts", format!("{hosts} hosts: at least 2, at most {MOST_HOSTS}"));
    }
    Ok(())
}

fn check_switch(switch: &Switch) -> Result<(), ScenarioError> {
    let is_share = |alpha: Option<f64>| alpha.is_none_or(|alpha| alpha.is_finite() && alpha > 0.0);
    if !is_share(switch.alpha) {
        return wrong("switch.alpha", "must be above 0");
    }
    if let Some(ecn) = switch.ecn {
        if ecn.kmin > ecn.kmax {
            return wrong("switch.ecn", format!("kmin {} is above kmax {}", ecn.kmin.0, ecn.kmax.0));
        }
        if ecn.at.is_some_and(|rate| rate.0 == 0) {
            return wrong("switch.ecn.at", "must be above 0");
        }
        if !(0.0..=1.0).contains(&ecn.pmax) {
            return wrong("switch.ecn.pmax", format!("{} is not between 0 and 1", ecn.pmax));
        }
    }
    if let Some(pfc) = switch.pfc {
        match (pfc.xoff, pfc.alpha) {
            (_, alpha) if !is_share(alpha) => return wrong("switch.pfc.alpha", "must be above 0"),
            (Some(_), None) => {}
            (None, Some(_)) if switch.buffer.is_some() => {}
            (None, Some(_)) => {
                return wrong(
                    "switch.pfc.alpha",
                    "needs a shared buffer (switch.buffer), of which it is a part",
                );
            }
            _ => return wrong("switch.pfc", "say either xoff or alpha"),
        }
    }
    if switch.buffer.is_some() && switch.port_buffer.is_some() {
        return wrong("switch.port_buffer", "a switch has either a shared buffer or one for each port");
    }
    Ok(())
}

fn check_traffic(traffic: &Traffic) -> Result<(), ScenarioError> {
    match traffic {
        Traffic::Poisson { load, .. } if !(*load > 0.0 && *load <= 1.0) => {
            wrong("traffic.load", format!("{load} is not above 0 and up to 1"))
        }
        Traffic::Flows { size, .. }
        | Traffic::Permutation { size, .. }
        | Traffic::Incast { size, .. }
        | Traffic::Poisson { sizes: Sizes::Fixed(size), .. }
            if *size == Size(0) || size.0 > LONGEST =>
        {
            wrong("traffic.size", format!("{} bytes: a message has 1 B to 2 GiB", size.0))
        }
        Traffic::Incast { fan_in: 0, .. } => wrong("traffic.fan_in", "nobody sends"),
        Traffic::Incast { every, .. } if every.0 == 0 => {
            wrong("traffic.every", "must be longer than nothing")
        }
        _ => Ok(()),
    }
}
