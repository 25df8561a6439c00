//! Path records: the properties of the path between two ports (IBTA vol. 1, 15.2.5.16), as OpenSM would answer.

use crate::{
    arbiter::Tables,
    lanes::{Lanes, SL_COUNT, VL_COUNT},
    options::Options,
    partitions::Partitions,
    port::Port,
    qos::{Level, QosPolicy, Request},
};

/// The configuration of a subnet manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fabric {
    policy: Option<QosPolicy>,
    partitions: Partitions,
    lanes: Lanes,
    tables: Tables,
    qos: bool,
    packet_life: Option<u8>,
}

/// A query for a path. Fields that are `None` are chosen by the policy.
#[derive(Clone, Copy, Debug)]
pub struct PathQuery<'a> {
    /// The port that asks.
    pub from: &'a Port,
    /// The other end.
    pub to: &'a Port,
    /// Service ID.
    pub service_id: Option<u64>,
    /// QoS class, 12 bits.
    pub qos_class: Option<u16>,
    /// P_Key. The answer has the same.
    pub pkey: Option<u16>,
    /// The required service level.
    pub sl: Option<u8>,
    /// MTU between the two: 1 to 5 for 256 to 4096 bytes.
    pub mtu: u8,
    /// Rate between the two, a code of path records; 0 if it is not known.
    pub rate: u8,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Service level.
    pub sl: u8,
    /// Virtual lane of that level.
    pub vl: u8,
    /// Traffic class that packets of the lane have.
    pub traffic_class: u8,
    /// P_Key, with the membership that the asking port has.
    pub pkey: u16,
    /// MTU, 1 to 5.
    pub mtu: u8,
    /// Rate, a code of path records; 0 if it is not known.
    pub rate: u8,
    /// Lifetime of packets, 4.096 us << code, if it is configured.
    pub packet_life: Option<u8>,
    /// Name of the policy's level, if there is a policy.
    pub level: Option<String>,
    /// Line of the policy's rule that applied, if any.
    pub rule_line: Option<usize>,
    /// Name of the partition.
    pub partition: String,
}

/// Why there is no path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPath {
    /// There is no key of which both are members, at least one of them a full member.
    #[error(
        "the two ports share no partition: there is none of which both are members, and not both limited ones"
    )]
    NoPartition,
    /// They do not share this key.
    #[error("the two ports do not share P_Key {0:#06x}: one is no member, or both are limited members")]
    NotShared(u16),
    /// The policy keeps paths of this kind in other partitions.
    #[error("QoS level \"{level}\" is not for P_Key {pkey:#06x}")]
    LevelForbidsPkey {
        /// The level's name.
        level: String,
        /// The P_Key asked for.
        pkey: u16,
    },
    /// The policy keeps paths of this kind in partitions that the ports do not share.
    #[error("the two ports share none of the P_Keys of QoS level \"{0}\"")]
    LevelsPkeys(String),
    /// The policy requires another service level than was asked for.
    #[error("service level {wanted} is not possible: QoS level \"{level}\" has {has}")]
    OtherLevel {
        /// What was asked for.
        wanted: u8,
        /// The level's name.
        level: String,
        /// Its service level.
        has: u8,
    },
    /// The service level has no lane.
    #[error("packets of service level {0} are not carried: sl2vl has lane 15 for it")]
    NoLane(u8),
}

impl Fabric {
    /// Combines the files.
    #[must_use]
    pub fn new(options: &Options, policy: Option<QosPolicy>, partitions: Partitions) -> Self {
        let (mut sl2vl, mut tables) = (options.sl2vl, options.tables.clone());
        if let Some(policy) = &policy {
            for (sl, vl) in &policy.lanes.sl2vl {
                sl2vl[usize::from(*sl) % SL_COUNT] = *vl;
            }
            if let Some(high) = &policy.lanes.high {
                tables.high.clone_from(high);
            }
            if let Some(low) = &policy.lanes.low {
                tables.low.clone_from(low);
            }
        }
        let lanes = Lanes::new(sl2vl, Lanes::DEFAULT_DSCP).unwrap_or_default();
        let packet_life = options.packet_life;
        Self {
            policy: policy.filter(|_| options.qos),
            partitions,
            lanes,
            tables,
            qos: options.qos,
            packet_life,
        }
    }

    /// The same with other DSCPs for lanes 0 to 14. `None` if one is above 63.
    #[must_use]
    pub fn with_dscp(mut self, dscp: [u8; VL_COUNT]) -> Option<Self> {
        self.lanes = self.lanes.with_dscp(dscp)?;
        Some(self)
    }

    /// The lanes.
    #[must_use]
    pub const fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// How lanes share a link.
    #[must_use]
    pub const fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The partitions.
    #[must_use]
    pub const fn partitions(&self) -> &Partitions {
        &self.partitions
    }

    /// Answers a query.
    ///
    /// # Errors
    /// [`NoPath`] says which rule forbids it.
    pub fn path(&self, query: &PathQuery<'_>) -> Result<Path, NoPath> {
        let &PathQuery { from, to, service_id, qos_class, pkey, .. } = query;
        let request = Request { from, to, service_id, qos_class, pkey, partitions: &self.partitions };
        let (level, rule_line) = match &self.policy {
            Some(policy) => {
                let (level, line) = policy.level(&request);
                (Some(level), line)
            }
            None => (None, None),
        };
        let pkey = self.pkey(query, level)?;
        let partition = self.partitions.of_key(pkey);
        let sl = match (query.sl, level) {
            (Some(wanted), Some(level)) if level.sl != wanted => {
                return Err(NoPath::OtherLevel { wanted, level: level.name.clone(), has: level.sl });
            }
            (Some(wanted), _) => wanted,
            (None, Some(level)) => level.sl,
            (None, None) if self.qos => partition.map_or(0, |partition| partition.sl),
            (None, None) => 0,
        };
        let vl = self.lanes.vl(sl).ok_or(NoPath::NoLane(sl))?;
        let limited = |value: u8, limit: Option<u8>, order: fn(u8) -> u32| match limit {
            Some(limit) if value == 0 || order(value) > order(limit) => limit,
            _ => value,
        };
        Ok(Path {
            sl,
            vl,
            traffic_class: self.lanes.traffic_class(vl),
            pkey,
            mtu: limited(query.mtu, level.and_then(|level| level.mtu_limit), u32::from),
            rate: limited(query.rate, level.and_then(|level| level.rate_limit), speed),
            packet_life: level.and_then(|level| level.packet_life).or(self.packet_life),
            level: level.map(|level| level.name.clone()),
            rule_line,
            partition: partition.map_or_else(String::new, |partition| partition.name.clone()),
        })
    }

    fn pkey(&self, query: &PathQuery<'_>, level: Option<&Level>) -> Result<u16, NoPath> {
        let (from, to) = (query.from, query.to);
        let level = level.filter(|level| !level.pkeys.is_empty());
        match (query.pkey, level) {
            (Some(pkey), level) => {
                if !self.partitions.share(from, to, pkey) {
                    return Err(NoPath::NotShared(pkey));
                }
                match level.filter(|level| !level.pkeys.contains(u64::from(pkey & 0x7fff))) {
                    Some(level) => Err(NoPath::LevelForbidsPkey { level: level.name.clone(), pkey }),
                    None => Ok(pkey),
                }
            }
            // OpenSM gives the number in the file, which has no membership bit.
            (None, Some(level)) => {
                let mut keys: Vec<u16> =
                    self.partitions.list().iter().map(|partition| partition.key).collect();
                keys.sort_unstable();
                let fits = |key: &u16| {
                    level.pkeys.contains(u64::from(*key)) && self.partitions.share(from, to, *key)
                };
                keys.into_iter().find(fits).ok_or_else(|| NoPath::LevelsPkeys(level.name.clone()))
            }
            (None, None) => self.partitions.common(from, to).ok_or(NoPath::NoPartition),
        }
    }
}

/// The rate of a code, in 0.1 Gbit/s (IBTA vol. 1, 15.2.5.16; codes from 19 on by release 1.6).
pub(crate) const fn speed(rate: u8) -> u32 {
    const TENTHS: [u32; 25] = [
        0, 0, 25, 100, 300, 50, 200, 400, 600, 800, 1200, 140, 560, 1120, 1680, 250, 1000, 2000, 3000, 280,
        500, 4000, 6000, 8000, 12_000,
    ];
    if (rate as usize) < TENTHS.len() { TENTHS[rate as usize] } else { u32::MAX }
}
