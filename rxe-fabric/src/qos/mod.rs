//! Quality of service: the level of a path by OpenSM's `qos-policy.conf`.
//!
//! The rules of `qos-match-rules` are tried in the order of the file, and then those of `qos-ulps`. The first matching rule
//! determines the level. If none matches, it is the level called "default", or that of `default :` in `qos-ulps`.

mod cursor;
mod parse;
mod short;
mod ulps;

use crate::{
    arbiter::Entry,
    error::{FileError, Warning},
    partitions::Partitions,
    port::{NodeType, Port},
    ranges::Ranges,
};

/// A level: the properties of its paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Its name.
    pub name: String,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// Largest MTU, 1 to 5 for 256 to 4096 bytes.
    pub mtu_limit: Option<u8>,
    /// Highest rate, a code of path records.
    pub rate_limit: Option<u8>,
    /// Longest lifetime of packets, 4.096 us << code.
    pub packet_life: Option<u8>,
    /// P_Keys without their membership bits. If there are any, paths of this level are in one of these partitions.
    pub pkeys: Ranges,
}

/// A group of ports for rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PortGroup {
    name: String,
    guids: Ranges,
    names: Vec<String>,
    /// Members of these partitions, by key and by name.
    pkeys: Ranges,
    partitions: Vec<String>,
    types: Vec<NodeType>,
    manager: bool,
}

impl PortGroup {
    /// The range of the GUIDs of its ports; all numbers if the group is not only defined by GUIDs.
    fn span(&self) -> Span {
        let others = self.names.is_empty() && self.pkeys.is_empty() && self.partitions.is_empty();
        if others && self.types.is_empty() && !self.manager { Span::of(&self.guids) } else { Span::ALL }
    }

    fn contains(&self, port: &Port, partitions: &Partitions) -> bool {
        let is_named = |name: &String| !port.name.is_empty() && *name == port.name;
        let in_partition = || {
            partitions
                .list()
                .iter()
                .filter(|p| self.pkeys.contains(u64::from(p.key)) || self.partitions.contains(&p.name))
                .any(|p| partitions.is_member(p, port))
        };
        self.types.contains(&port.node_type)
            || self.manager && port.is_manager
            || port.guids.iter().any(|guid| self.guids.contains(*guid))
            || self.names.iter().any(is_named)
            || !(self.pkeys.is_empty() && self.partitions.is_empty()) && in_partition()
    }
}

/// A rule that determines the level of a query. Conditions that it does not have match anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rule {
    services: Ranges,
    classes: Ranges,
    pkeys: Ranges,
    /// Indices of groups. If there are any, the end of the path must be in one of them.
    sources: Vec<usize>,
    destinations: Vec<usize>,
    level: usize,
    line: usize,
}

impl Rule {
    fn fits(&self, request: &Request<'_>, groups: &[PortGroup]) -> bool {
        if !self.services.is_empty() {
            let Some(service) = request.service_id else { return false };
            if !self.services.contains(service) {
                return false;
            }
        }
        let among = |set: &Ranges, value: Option<u16>| {
            set.is_empty() || value.is_some_and(|value| set.contains(u64::from(value)))
        };
        let in_any = |list: &[usize], port| {
            list.is_empty()
                || list.iter().any(|at| groups.get(*at).is_some_and(|g| g.contains(port, request.partitions)))
        };
        among(&self.classes, request.qos_class)
            && among(&self.pkeys, request.pkey.map(|key| key & 0x7fff))
            && in_any(&self.sources, request.from)
            && in_any(&self.destinations, request.to)
    }
}

/// The first and the last of some numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span(u64, u64);

impl Span {
    const ALL: Self = Self(0, u64::MAX);

    const fn has(self, number: u64) -> bool {
        self.0 <= number && number <= self.1
    }

    fn of(ranges: &Ranges) -> Self {
        let ends = ranges.iter().next().zip(ranges.iter().last());
        ends.map_or(Self::ALL, |((first, _), (_, last))| Self(first, last))
    }
}

/// The ranges of values for which a rule may match. A policy may have ten thousand rules, and most can be skipped by these few
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gate {
    service: Span,
    from: Span,
    to: Span,
}

impl Gate {
    fn of(rule: &Rule, groups: &[PortGroup]) -> Self {
        let ends = |list: &[usize]| {
            let spans = list.iter().filter_map(|at| groups.get(*at)).map(PortGroup::span);
            spans.reduce(|a, b| Span(a.0.min(b.0), a.1.max(b.1))).unwrap_or(Span::ALL)
        };
        Self { service: Span::of(&rule.services), from: ends(&rule.sources), to: ends(&rule.destinations) }
    }

    fn is_open(self, request: &Request<'_>) -> bool {
        let has =
            |span: Span, port: &Port| span == Span::ALL || port.guids.iter().any(|guid| span.has(*guid));
        request.service_id.is_none_or(|id| self.service.has(id))
            && has(self.to, request.to)
            && has(self.from, request.from)
    }
}

/// A request to a policy. A rule with a condition on a field that the request does not have does not match.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The end that asks for the path.
    pub from: &'a Port,
    /// The other end.
    pub to: &'a Port,
    /// Service ID.
    pub service_id: Option<u64>,
    /// QoS class, 12 bits.
    pub qos_class: Option<u16>,
    /// P_Key. The membership bit is ignored.
    pub pkey: Option<u16>,
    /// The partitions.
    pub partitions: &'a Partitions,
}

/// Settings of lanes, which only the short form has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaneWishes {
    /// Service level and lane.
    pub(crate) sl2vl: Vec<(u8, u8)>,
    pub(crate) high: Option<Vec<Entry>>,
    pub(crate) low: Option<Vec<Entry>>,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QosPolicy {
    groups: Vec<PortGroup>,
    levels: Vec<Level>,
    rules: Vec<Rule>,
    /// The ranges of each rule.
    gates: Vec<Gate>,
    default: usize,
    pub(crate) lanes: LaneWishes,
}

impl QosPolicy {
    fn new(
        groups: Vec<PortGroup>,
        levels: Vec<Level>,
        rules: Vec<Rule>,
        default: usize,
        lanes: LaneWishes,
    ) -> Self {
        let gates = rules.iter().map(|rule| Gate::of(rule, &groups)).collect();
        Self { groups, levels, rules, gates, default, lanes }
    }

    /// Reads a policy: OpenSM's, or the short form (`service_id 0x1000-0x1fff sl 4`), which OpenSM cannot read.
    ///
    /// # Errors
    /// [`FileError`]. OpenSM would use no policy.
    pub fn parse(text: &str) -> Result<(Self, Vec<Warning>), FileError> {
        if short::is_short(text) { short::parse(text) } else { parse::parse(text) }
    }

    /// The level of a request, and the line of the rule; no line for the default level.
    #[must_use]
    pub fn level(&self, request: &Request<'_>) -> (&Level, Option<usize>) {
        let mut open = self.gates.iter().zip(&self.rules).filter(|(gate, _)| gate.is_open(request));
        match open.find(|(_, rule)| rule.fits(request, &self.groups)) {
            Some((_, rule)) => (&self.levels[rule.level], Some(rule.line)),
            None => (&self.levels[self.default], None),
        }
    }
}

#[cfg(test)]
mod tests;
