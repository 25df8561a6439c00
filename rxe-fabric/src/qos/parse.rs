//! The sections of `qos-policy.conf`.

use super::{
    LaneWishes, Level, PortGroup, QosPolicy, Rule,
    cursor::Cursor,
    ulps::{self, Ends},
};
use crate::{
    error::{FileError, Warning, Warnings},
    port::NodeType,
    ranges::Ranges,
};
use std::collections::BTreeMap;

/// Most rules, most levels and most groups.
const MAX: usize = 100_000;
/// QoS classes are 12 bits.
const MAX_CLASS: u64 = 0xfff;
/// Valid codes for limits of MTU and rate (IBTA vol. 1, 15.2.5.16 with the rates of 1.6).
const MTUS: (u64, u64) = (1, 5);
const RATES: (u64, u64) = (2, 24);

/// A rule with the names of its level and groups.
struct Named {
    rule: Rule,
    level: String,
    sources: Vec<String>,
    destinations: Vec<String>,
}

#[derive(Default)]
struct Parser {
    groups: Vec<PortGroup>,
    levels: Vec<Level>,
    rules: Vec<Named>,
    /// Service ID, P_Key or ends, and the level.
    ulps: Vec<(ulps::Ulp, u8)>,
    ulp_default: Option<u8>,
    warnings: Warnings,
}

pub(super) fn parse(text: &str) -> Result<(QosPolicy, Vec<Warning>), FileError> {
    let mut cursor = Cursor::new(text);
    let mut parser = Parser::default();
    while !cursor.at_end() {
        let section = cursor.peek();
        match section {
            "qos-ulps" => parser.ulps(&mut cursor)?,
            "port-groups" => parser.list(&mut cursor, "port-group", Parser::port_group)?,
            "qos-setup" => parser.setup(&mut cursor)?,
            "qos-levels" => parser.list(&mut cursor, "qos-level", Parser::level)?,
            "qos-match-rules" => parser.list(&mut cursor, "qos-match-rule", Parser::rule)?,
            _ => {
                let reason =
                    "a section is expected: qos-ulps, port-groups, qos-setup, qos-levels or qos-match-rules";
                return Err(cursor.error(reason));
            }
        }
    }
    parser.finish(&mut cursor)
}

/// Whether a block ends here. Consumes its end.
fn ends(cursor: &mut Cursor<'_>, end: &str) -> Result<bool, FileError> {
    if cursor.at_end() {
        return Err(cursor.error(format!("{end} is missing")));
    }
    let comes = cursor.peek() == end;
    if comes {
        cursor.word();
    }
    Ok(comes)
}

fn once<T>(cursor: &mut Cursor<'_>, place: &mut Option<T>, value: T, key: &str) -> Result<(), FileError> {
    if place.replace(value).is_some() {
        return Err(cursor.error(format!("\"{key}\" was said before")));
    }
    Ok(())
}

fn between(cursor: &mut Cursor<'_>, (first, last): (u64, u64)) -> Result<u8, FileError> {
    let line = cursor.line();
    let number = cursor.number(last)?;
    if number < first {
        return Err(FileError::new(line, &number.to_string(), format!("{first} to {last} is possible")));
    }
    Ok(number as u8)
}

/// P_Keys without their membership bits, sorted.
pub(super) fn pkeys(cursor: &mut Cursor<'_>) -> Result<Vec<(u64, u64)>, FileError> {
    let base = |(first, last): (u64, u64)| (first & 0x7fff, last & 0x7fff);
    Ok(cursor.ranges(0xffff)?.into_iter().map(base).collect())
}

impl Parser {
    /// A section that is a list of blocks.
    fn list(
        &mut self,
        cursor: &mut Cursor<'_>,
        block: &str,
        read: fn(&mut Self, &mut Cursor<'_>) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let end = format!("end-{}", cursor.word());
        while !ends(cursor, &end)? {
            if cursor.peek() != block {
                return Err(cursor.error(format!("{block} or {end} is expected")));
            }
            cursor.word();
            read(self, cursor)?;
            if self.groups.len().max(self.levels.len()).max(self.rules.len()) > MAX {
                return Err(cursor.error(format!("{MAX} of them are possible")));
            }
        }
        Ok(())
    }

    fn ulps(&mut self, cursor: &mut Cursor<'_>) -> Result<(), FileError> {
        cursor.word();
        let mut count = 0;
        while !ends(cursor, "end-qos-ulps")? {
            match ulps::parse(cursor)? {
                (None, sl) => self.ulp_default = Some(sl),
                (Some(ulp), sl) => self.ulps.push((ulp, sl)),
            }
            count += 1;
            if self.ulps.len() > MAX {
                return Err(cursor.error(format!("{MAX} rules are possible")));
            }
        }
        // OpenSM's grammar does not allow an empty section of this kind.
        if count == 0 {
            return Err(cursor.error("there is no rule between qos-ulps and end-qos-ulps"));
        }
        Ok(())
    }

    fn port_group(&mut self, cursor: &mut Cursor<'_>) -> Result<(), FileError> {
        let (mut group, mut name, mut purpose) = (PortGroup::default(), None, None);
        let mut guids = Vec::new();
        while !ends(cursor, "end-port-group")? {
            let key = cursor.peek();
            let known = ["name", "use", "port-guid", "port-name", "pkey", "partition", "node-type"];
            if !known.contains(&key) {
                return Err(
                    cursor.error(format!("one of {} or end-port-group is expected", known.join(", ")))
                );
            }
            cursor.word();
            cursor.colon(key)?;
            match key {
                "name" => {
                    let text = cursor.text()?;
                    once(cursor, &mut name, text, key)?;
                }
                "use" => {
                    let text = cursor.text()?;
                    once(cursor, &mut purpose, text, key)?;
                }
                "port-guid" => guids.extend(cursor.ranges(u64::MAX)?),
                "pkey" => group.pkeys.add(pkeys(cursor)?),
                "partition" => group.partitions.extend(cursor.texts()?),
                "port-name" => {
                    for text in cursor.texts()? {
                        group.names.push(port_name(cursor, &text)?);
                    }
                }
                _ => node_types(cursor, &mut group)?,
            }
        }
        group.guids = Ranges::new(guids);
        group.name = name.ok_or_else(|| cursor.error("the port-group above has no name"))?;
        self.groups.push(group);
        Ok(())
    }

    fn level(&mut self, cursor: &mut Cursor<'_>) -> Result<(), FileError> {
        let (mut level, mut name, mut purpose, mut sl) = (Level::default(), None, None, None);
        while !ends(cursor, "end-qos-level")? {
            let key = cursor.peek();
            let known = ["name", "use", "sl", "mtu-limit", "rate-limit", "packet-life", "path-bits", "pkey"];
            if !known.contains(&key) {
                return Err(cursor.error(format!("one of {} or end-qos-level is expected", known.join(", "))));
            }
            cursor.word();
            cursor.colon(key)?;
            match key {
                "name" | "use" => {
                    let text = cursor.text()?;
                    once(cursor, if key == "name" { &mut name } else { &mut purpose }, text, key)?;
                }
                "pkey" => level.pkeys.add(pkeys(cursor)?),
                "path-bits" => {
                    let line = cursor.line();
                    cursor.ranges(u64::MAX)?;
                    self.warnings.push(line, "path-bits choose among LIDs, which Ethernet does not have");
                }
                _ => {
                    let (place, range) = match key {
                        "sl" => (&mut sl, (0, 15)),
                        "mtu-limit" => (&mut level.mtu_limit, MTUS),
                        "rate-limit" => (&mut level.rate_limit, RATES),
                        _ => (&mut level.packet_life, (0, 63)),
                    };
                    let number = between(cursor, range)?;
                    once(cursor, place, number, key)?;
                }
            }
        }
        level.sl = sl.ok_or_else(|| cursor.error("the qos-level above has no sl"))?;
        level.name = name.ok_or_else(|| cursor.error("the qos-level above has no name"))?;
        self.levels.push(level);
        Ok(())
    }

    fn rule(&mut self, cursor: &mut Cursor<'_>) -> Result<(), FileError> {
        let mut rule = Rule { line: cursor.here(), ..Rule::default() };
        let (mut level, mut purpose) = (None, None);
        let (mut sources, mut destinations, mut services) = (Vec::new(), Vec::new(), Vec::new());
        while !ends(cursor, "end-qos-match-rule")? {
            let key = cursor.peek();
            let known = ["use", "qos-class", "qos-level-name", "source", "destination", "service-id", "pkey"];
            if !known.contains(&key) {
                let reason = format!("one of {} or end-qos-match-rule is expected", known.join(", "));
                return Err(cursor.error(reason));
            }
            cursor.word();
            cursor.colon(key)?;
            match key {
                "use" | "qos-level-name" => {
                    let text = cursor.text()?;
                    once(cursor, if key == "use" { &mut purpose } else { &mut level }, text, key)?;
                }
                "qos-class" => rule.classes.add(cursor.ranges(MAX_CLASS)?),
                "source" => sources.extend(cursor.texts()?),
                "destination" => destinations.extend(cursor.texts()?),
                "service-id" => services.extend(cursor.ranges(u64::MAX)?),
                _ => rule.pkeys.add(pkeys(cursor)?),
            }
        }
        rule.services = Ranges::new(services);
        let level = level.ok_or_else(|| cursor.error("the qos-match-rule above has no qos-level-name"))?;
        self.rules.push(Named { rule, level, sources, destinations });
        Ok(())
    }

    /// OpenSM reads this section and ignores it. The lanes are those of `opensm.conf`.
    fn setup(&mut self, cursor: &mut Cursor<'_>) -> Result<(), FileError> {
        let line = cursor.line();
        cursor.word();
        while !ends(cursor, "end-qos-setup")? {
            match cursor.peek() {
                "vlarb-tables" => self.list(cursor, "vlarb-scope", Self::vlarb_scope)?,
                "sl2vl-tables" => self.list(cursor, "sl2vl-scope", Self::sl2vl_scope)?,
                _ => return Err(cursor.error("vlarb-tables, sl2vl-tables or end-qos-setup is expected")),
            }
        }
        let text = "qos-setup is read and not used, as by OpenSM; lanes are those of opensm.conf";
        self.warnings.push(line, text);
        Ok(())
    }

    fn vlarb_scope(&mut self, cursor: &mut Cursor<'_>) -> Result<(), FileError> {
        let mut groups = 0;
        while !ends(cursor, "end-vlarb-scope")? {
            let key = cursor.peek();
            let known = ["group", "across", "vlarb-high", "vlarb-low", "vl-high-limit"];
            if !known.contains(&key) {
                return Err(
                    cursor.error(format!("one of {} or end-vlarb-scope is expected", known.join(", ")))
                );
            }
            cursor.word();
            cursor.colon(key)?;
            match key {
                "group" | "across" => groups += cursor.texts()?.len(),
                "vl-high-limit" => {
                    cursor.number(255)?;
                }
                _ => loop {
                    cursor.number(14)?;
                    cursor.colon("the lane")?;
                    cursor.number(255)?;
                    if !cursor.takes(',') {
                        break;
                    }
                },
            }
        }
        if groups == 0 {
            return Err(cursor.error("the vlarb-scope above has neither group nor across"));
        }
        Ok(())
    }

    fn sl2vl_scope(&mut self, cursor: &mut Cursor<'_>) -> Result<(), FileError> {
        let (mut groups, mut table) = (0, None);
        while !ends(cursor, "end-sl2vl-scope")? {
            let key = cursor.peek();
            let known = ["group", "across", "across-from", "across-to", "from", "to", "sl2vl-table"];
            if !known.contains(&key) {
                return Err(
                    cursor.error(format!("one of {} or end-sl2vl-scope is expected", known.join(", ")))
                );
            }
            cursor.word();
            cursor.colon(key)?;
            match key {
                "from" | "to" => {
                    if !cursor.takes('*') {
                        cursor.ranges(255)?;
                    }
                }
                "sl2vl-table" => {
                    let lanes = cursor.numbers(15)?;
                    if lanes.len() != 16 {
                        return Err(cursor.error(format!("{} lanes above; 16 are expected", lanes.len())));
                    }
                    once(cursor, &mut table, lanes, key)?;
                }
                _ => groups += cursor.texts()?.len(),
            }
        }
        match (groups, table) {
            (0, _) => Err(cursor.error("the sl2vl-scope above has no group, across-to or across-from")),
            (_, None) => Err(cursor.error("the sl2vl-scope above has no sl2vl-table")),
            _ => Ok(()),
        }
    }

    /// Resolves names, and appends the rules of `qos-ulps`.
    fn finish(mut self, cursor: &mut Cursor<'_>) -> Result<(QosPolicy, Vec<Warning>), FileError> {
        let levels = places(self.levels.iter().map(|level| &*level.name));
        let groups = places(self.groups.iter().map(|group| &*group.name));
        let mut rules = Vec::with_capacity(self.rules.len() + self.ulps.len());
        for Named { mut rule, level, sources, destinations } in self.rules.drain(..) {
            rule.level = place(&levels, &level)
                .ok_or_else(|| FileError::new(rule.line, &level, "there is no qos-level of this name"))?;
            let find = |names: Vec<String>| {
                let of_name = |name: String| {
                    place(&groups, &name).ok_or_else(|| {
                        FileError::new(rule.line, &name, "there is no port-group of this name")
                    })
                };
                names.into_iter().map(of_name).collect::<Result<Vec<_>, _>>()
            };
            (rule.sources, rule.destinations) = (find(sources)?, find(destinations)?);
            rules.push(rule);
        }
        let default = match (place(&levels, "default"), self.ulp_default) {
            (Some(default), _) => default,
            (None, Some(sl)) => simple_level(&mut self.levels, sl),
            (None, None) => {
                let reason =
                    "there is neither a qos-level called \"default\" nor a \"default : SL\" in qos-ulps";
                return Err(cursor.error(reason));
            }
        };
        // The level of each SL, found once: the search by name takes longer the more levels there are.
        let mut simple = [None; 16];
        for (ulp, sl) in self.ulps {
            let level =
                *simple[usize::from(sl & 15)].get_or_insert_with(|| simple_level(&mut self.levels, sl));
            let mut rule = Rule { line: ulp.line, level, ..Rule::default() };
            (rule.services, rule.pkeys) = (Ranges::new(ulp.services), Ranges::new(ulp.pkeys));
            if let Some((ends, guids)) = ulp.guids {
                self.groups.push(PortGroup { guids: Ranges::new(guids), ..PortGroup::default() });
                let group = vec![self.groups.len() - 1];
                if ends != Ends::Target {
                    rule.sources.clone_from(&group);
                }
                if ends != Ends::Source {
                    rule.destinations = group;
                }
            }
            rules.push(rule);
        }
        let Self { groups, levels, warnings, .. } = self;
        Ok((QosPolicy::new(groups, levels, rules, default, LaneWishes::default()), warnings.into_list()))
    }
}

/// Indices of names, without regard to case. If names are equal, the first one counts. A map, because files may have as many
/// names as rules.
fn places<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<String, usize> {
    let mut places = BTreeMap::new();
    for (place, name) in names.enumerate() {
        places.entry(name.to_ascii_lowercase()).or_insert(place);
    }
    places
}

fn place(places: &BTreeMap<String, usize>, name: &str) -> Option<usize> {
    places.get(&name.to_ascii_lowercase()).copied()
}

/// The index of the level that has this service level and no limits.
pub(super) fn simple_level(levels: &mut Vec<Level>, sl: u8) -> usize {
    // Names in files have no blanks.
    let name = format!("service level {sl}");
    if let Some(place) = levels.iter().position(|level| level.name == name) {
        return place;
    }
    levels.push(Level { name, sl, ..Level::default() });
    levels.len() - 1
}

/// A port in the form "description/P1". Its number is behind the last slash.
fn port_name(cursor: &mut Cursor<'_>, text: &str) -> Result<String, FileError> {
    let parsed = text.rsplit_once('/').and_then(|(node, port)| {
        let number = port.strip_prefix(['p', 'P'])?.parse::<u8>().ok().filter(|number| *number > 0)?;
        Some(format!("{node}/P{number}"))
    });
    let line = cursor.line();
    parsed.ok_or_else(|| {
        FileError::new(line, text, "a port name is the node's description, a slash, and P1, P2, ...")
    })
}

fn node_types(cursor: &mut Cursor<'_>, group: &mut PortGroup) -> Result<(), FileError> {
    loop {
        let word = cursor.peek().to_ascii_uppercase();
        let types: &[NodeType] = match word.as_str() {
            "CA" => &[NodeType::Ca],
            "SWITCH" => &[NodeType::Switch],
            "ROUTER" => &[NodeType::Router],
            "ALL" => &[NodeType::Ca, NodeType::Switch, NodeType::Router],
            "SELF" => {
                group.manager = true;
                &[]
            }
            _ => return Err(cursor.error("CA, SWITCH, ROUTER, SELF or ALL is expected")),
        };
        group.types.extend_from_slice(types);
        cursor.word();
        if !cursor.takes(',') {
            return Ok(());
        }
    }
}
