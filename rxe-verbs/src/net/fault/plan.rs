//! The properties of a bad network, in one line of text: `loss=1%,delay=200us,rate=1gbit,seed=7`.

use super::{outage::Outage, script::Script};
use crate::{net::config::ConfigError, trust::variable};
use core::time::Duration;
use std::{io, path::Path, sync::Arc};

/// The value of a chance of 100%: chances are in millionths.
pub const WHOLE: u32 = 1_000_000;
/// The unit of a chance without `%`.
const THOUSANDTH: u32 = WHOLE / 1000;
/// Slowest rate, bits per second. With it a packet takes less than a minute.
const LEAST_RATE: u64 = 1_000;
/// Longest delay.
const LONGEST: Duration = Duration::from_secs(60);

/// How bad the network is: a chance of each fault per packet, in millionths, and delays for all packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    /// Packets lost.
    pub loss: u32,
    /// Packets doubled.
    pub duplicate: u32,
    /// Packets overtaken by 1 to 4 later ones (or delayed by 1 ms, if that is shorter).
    pub reorder: u32,
    /// Packets with one bit flipped.
    pub corrupt: u32,
    /// Additional delay of each packet.
    pub delay: Duration,
    /// Rate limit in bits per second, counting 46 bytes of lower layers for each packet; 0 for no limit. A packet is lost if it
    /// would wait for longer than 1 MiB takes at this rate.
    pub rate: u64,
    /// Seed of the pseudo-random numbers.
    pub seed: u64,
    /// Disturb packets that are sent. They then leave one by one, each with identification 0.
    pub sending: bool,
    /// Disturb packets that are received.
    pub receiving: bool,
    /// Faults for single packets.
    pub script: Option<Arc<Script>>,
}

impl Default for FaultPlan {
    fn default() -> Self {
        Self {
            loss: 0,
            duplicate: 0,
            reorder: 0,
            corrupt: 0,
            delay: Duration::ZERO,
            rate: 0,
            seed: 1,
            sending: true,
            receiving: true,
            script: None,
        }
    }
}

impl FaultPlan {
    /// A new outage for the links of one port to share; `None` if the script never takes the port down.
    ///
    /// # Errors
    /// The system's error if no timer can be made.
    pub(crate) fn outage(&self) -> io::Result<Option<Arc<Outage>>> {
        let takes_down = self.script.as_ref().is_some_and(|script| script.takes_port_down());
        takes_down.then(|| Outage::new().map(Arc::new)).transpose()
    }

    /// Reads a plan such as `loss=1%,dup=5,reorder=10,corrupt=1,delay=200us,rate=1gbit,seed=7,dir=rx`: chances in thousandths
    /// or with `%`, times in ns, us, ms or s, rates in kbit, mbit or gbit (a second), and `dir` one of `tx`, `rx`, `both`.
    ///
    /// # Errors
    /// [`ConfigError`] naming the first part that is not understood.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        const ALLOWED: &str = "loss=N,dup=N,reorder=N,corrupt=N (0 to 1000 thousandths, or 0% to 100%), delay=200us, \
                               rate=1gbit, seed=N, dir=tx|rx|both";
        let mut plan = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let wrong = || ConfigError::new("RXE_FAULT", part, ALLOWED);
            let (key, value) = part.split_once('=').ok_or_else(wrong)?;
            let chance = || parse_chance(value).ok_or_else(wrong);
            match (key, value) {
                ("loss", _) => plan.loss = chance()?,
                ("dup", _) => plan.duplicate = chance()?,
                ("reorder", _) => plan.reorder = chance()?,
                ("corrupt", _) => plan.corrupt = chance()?,
                ("delay", _) => plan.delay = parse_time(value).ok_or_else(wrong)?,
                ("rate", _) => plan.rate = parse_rate(value).ok_or_else(wrong)?,
                ("seed", _) => plan.seed = value.parse().map_err(|_| wrong())?,
                ("dir", "both") => (plan.sending, plan.receiving) = (true, true),
                ("dir", "tx") => (plan.sending, plan.receiving) = (true, false),
                ("dir", "rx") => (plan.sending, plan.receiving) = (false, true),
                _ => return Err(wrong()),
            }
        }
        Ok(plan)
    }

    /// The plan in the environment: `RXE_FAULT`, and the file that `RXE_FAULT_SCRIPT` names. `None` if neither is set.
    ///
    /// # Errors
    /// As [`parse`](Self::parse) and [`Script::parse`].
    pub fn from_environment() -> Result<Option<Self>, ConfigError> {
        let text = variable("RXE_FAULT").filter(|text| !text.is_empty());
        let script = variable("RXE_FAULT_SCRIPT").filter(|path| !path.is_empty());
        if text.is_none() && script.is_none() {
            return Ok(None);
        }
        let mut plan = Self::parse(&text.unwrap_or_default().to_string_lossy())?;
        if let Some(path) = script {
            let script = Script::load(Path::new(&path)).map_err(|error| {
                ConfigError::in_file("RXE_FAULT_SCRIPT", &path.to_string_lossy(), error.to_string())
            })?;
            plan.script = Some(Arc::new(script));
        }
        Ok(Some(plan))
    }
}

/// Parses a chance: `1%`, `0.05%`, or thousandths without a unit. Returns millionths.
pub(super) fn parse_chance(text: &str) -> Option<u32> {
    if let Some(percent) = text.strip_suffix('%') {
        let percent: f64 = percent.parse().ok().filter(|percent| (0.0..=100.0).contains(percent))?;
        return Some((percent * f64::from(WHOLE) / 100.0).round() as u32);
    }
    text.parse()
        .ok()
        .filter(|thousandths: &u32| *thousandths <= 1000)
        .map(|thousandths| thousandths * THOUSANDTH)
}

/// Parses a time such as `200us`, at most a minute.
pub(super) fn parse_time(text: &str) -> Option<Duration> {
    let at = text.find(|character: char| character.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(at);
    let number: f64 = number.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)?;
    let seconds = match unit {
        "ns" => number / 1e9,
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" => number,
        _ => return None,
    };
    Duration::try_from_secs_f64(seconds).ok().filter(|time| *time <= LONGEST)
}

/// Parses a rate such as `1gbit` (per second). Returns bits per second.
pub(crate) fn parse_rate(text: &str) -> Option<u64> {
    let units = [("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
    let (number, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    let number: f64 = number.parse().ok().filter(|number: &f64| number.is_finite())?;
    Some((number * unit) as u64).filter(|rate| *rate >= LEAST_RATE)
}
