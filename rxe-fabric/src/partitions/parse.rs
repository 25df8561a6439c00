//! The grammar of `partitions.conf`:
//!
//! ```text
//! [Name][=P_Key][,ipoib][,mtu=n][,rate=n][,sl=n][,scope=n][,Q_Key=n][,TClass=n][,FlowLabel=n][,indx0]
//!               [,defmember=full|limited|both] : port[=full|limited|both][, ...] ;
//! ```
//!
//! A port is a GUID, ALL, ALL_CAS, ALL_SWITCHES, ALL_ROUTERS, SELF or NONE. The list of ports may have several lines, up to the
//! semicolon. A line `mgid=ff12:401b::1[,sl=n ...]` in it creates a multicast group. Words may be abbreviated, as in OpenSM.

use super::{DEFAULT_KEY, FULL, Membership, Partition, Who};
use crate::{
    error::{FileError, Warning, Warnings},
    number,
    port::NodeType,
};
use core::net::Ipv6Addr;

/// Most partitions: the number of keys in a table (IBTA vol. 1, 10.9.2 allows 65535; hosts have 128).
const MAX_PARTITIONS: usize = 4096;
/// Most lines about members of one partition.
const MAX_MEMBERS: usize = 65_536;

struct Parser {
    list: Vec<Partition>,
    warnings: Warnings,
    /// The present definition, whose end was not read yet.
    open: Option<Open>,
    line: usize,
    /// The last key that was assigned automatically.
    made_up: u16,
    found_any: bool,
}

/// A definition that is being read.
struct Open {
    /// Its index in the list.
    index: usize,
    default: Membership,
    indx0: bool,
}

/// The part before the colon.
struct Flags {
    sl: u8,
    rate: u8,
    mtu: u8,
    ipoib: bool,
    indx0: bool,
    default: Membership,
}

/// The partitions; `None` if the file defines none.
pub(super) fn parse(text: &str) -> Result<(Option<Vec<Partition>>, Vec<Warning>), FileError> {
    let mut default = Partition::new("Default", DEFAULT_KEY);
    default.members = vec![(Who::All, Membership::Limited), (Who::Manager, Membership::Full)];
    let mut parser = Parser {
        list: vec![default],
        warnings: Warnings::default(),
        open: None,
        line: 0,
        made_up: 0,
        found_any: false,
    };
    for (index, line) in text.lines().enumerate() {
        parser.line = index + 1;
        parser.line(line.split('#').next().unwrap_or_default())?;
    }
    if parser.open.is_some() {
        parser.warnings.push(parser.line, "the last definition has no semicolon at its end");
    }
    if !parser.found_any {
        parser.warnings.push(0, "no partition is defined: all are full members of the default one");
    }
    Ok((parser.found_any.then_some(parser.list), parser.warnings.into_list()))
}

impl Parser {
    fn error(&self, token: &str, reason: impl Into<String>) -> FileError {
        FileError::new(self.line, token, reason)
    }

    fn warn(&mut self, text: String) {
        self.warnings.push(self.line, text);
    }

    fn line(&mut self, line: &str) -> Result<(), FileError> {
        let mut rest = line;
        loop {
            let (part, more) = match rest.split_once(';') {
                Some((part, more)) => (part, Some(more)),
                None => (rest, None),
            };
            // A single semicolon also ends a definition.
            if !part.trim().is_empty() {
                self.part(part)?;
                self.found_any = true;
            }
            let Some(more) = more else { return Ok(()) };
            self.open = None;
            rest = more;
        }
    }

    /// A definition, the beginning of one, or more members.
    fn part(&mut self, part: &str) -> Result<(), FileError> {
        let (open, members) = match self.open.take() {
            Some(open) => (open, part),
            None => {
                let Some((header, members)) = part.split_once(':') else {
                    return Err(self.error(part, "a definition is expected: Name=P_Key, flags : members ;"));
                };
                (self.header(header)?, members)
            }
        };
        let words: Vec<&str> = members.split(',').collect();
        for (at, word) in words.iter().enumerate() {
            let (name, value) = name_and_value(word);
            if name == "mgid" {
                self.group(&open, value.unwrap_or_default(), &words[at + 1..]);
                break;
            }
            self.member(&open, name, value)?;
        }
        self.open = Some(open);
        Ok(())
    }

    fn header(&mut self, header: &str) -> Result<Open, FileError> {
        let mut words = header.split(',');
        let (mut name, mut id) = name_and_value(words.next().unwrap_or_default());
        if id.is_none() && name.starts_with(|first: char| first.is_ascii_digit()) {
            (name, id) = ("", Some(name));
        }
        let key = match id {
            None => 0,
            Some(id) => {
                let number = number::parse(id).map_err(|why| self.error(id, format!("P_Key: {why}")))?;
                let key = u16::try_from(number).map_err(|_| self.error(id, "a P_Key has 16 bits"))?;
                key & !FULL
            }
        };
        let mut flags =
            Flags { sl: 0, rate: 3, mtu: 4, ipoib: false, indx0: false, default: Membership::Limited };
        for word in words {
            let (flag, value) = name_and_value(word);
            self.flag(&mut flags, flag, value);
        }
        let index = self.partition(name, key)?;
        let partition = &mut self.list[index];
        (partition.sl, partition.rate, partition.mtu) = (flags.sl, flags.rate, flags.mtu);
        partition.ipoib |= flags.ipoib;
        Ok(Open { index, default: flags.default, indx0: flags.indx0 })
    }

    /// Finds or creates the partition of a header.
    fn partition(&mut self, name: &str, mut key: u16) -> Result<usize, FileError> {
        if key == 0 {
            let named = |partition: &Partition| !name.is_empty() && partition.name == name;
            if let Some(index) = self.list.iter().position(named) {
                return Ok(index);
            }
            loop {
                if self.made_up >= DEFAULT_KEY - 1 {
                    return Err(self.error(name, "there is no P_Key left for it"));
                }
                self.made_up += 1;
                if !self.list.iter().any(|partition| partition.key == self.made_up) {
                    break;
                }
            }
            key = self.made_up;
        }
        if let Some(index) = self.list.iter().position(|partition| partition.key == key) {
            let first = self.list[index].name.clone();
            if first != name {
                self.warn(format!("P_Key {key:#06x} is that of partition \"{first}\" already, and stays it"));
            }
            return Ok(index);
        }
        if self.list.len() >= MAX_PARTITIONS {
            return Err(self.error(name, format!("{MAX_PARTITIONS} partitions are possible")));
        }
        // OpenSM has room for 31 bytes.
        let name: String =
            if name.is_empty() { format!("{key:04x}") } else { name.chars().take(31).collect() };
        self.list.push(Partition::new(&name, key));
        Ok(self.list.len() - 1)
    }

    fn flag(&mut self, flags: &mut Flags, flag: &str, value: Option<&str>) {
        let number = |max: u64| value.and_then(|text| number::parse(text).ok()).filter(|n| *n <= max);
        let is = |word: &str| word.starts_with(flag);
        // In OpenSM's order, because an abbreviated word may match several.
        let (fits, what) = if is("mtu") {
            let mtu = number(255).filter(|n| *n != 0);
            flags.mtu = mtu.map_or(flags.mtu, |n| n as u8);
            (mtu.is_some(), "mtu = 1 to 5 (256 to 4096 bytes)")
        } else if is("rate") {
            let rate = number(255).filter(|n| *n != 0);
            flags.rate = rate.map_or(flags.rate, |n| n as u8);
            (rate.is_some(), "rate = a code of path records (3 for 10 Gbit/s)")
        } else if is("scope") {
            (number(15).is_some_and(|n| n != 0), "scope = 1 to 15")
        } else if is("Q_Key") {
            (number(u64::from(u32::MAX)).is_some(), "Q_Key = 32 bits")
        } else if is("TClass") {
            (number(255).is_some(), "TClass = 0 to 255")
        } else if is("sl") {
            let sl = number(15);
            flags.sl = sl.map_or(flags.sl, |n| n as u8);
            (sl.is_some(), "sl = 0 to 15")
        } else if is("FlowLabel") {
            (number(0xf_ffff).is_some(), "FlowLabel = 20 bits")
        } else if is("ipoib") {
            flags.ipoib = true;
            (true, "")
        } else if is("defmember") {
            let membership = value.and_then(membership);
            flags.default = membership.unwrap_or(flags.default);
            (membership.is_some(), "defmember = full, limited or both")
        } else if flag == "indx0" {
            flags.indx0 = true;
            (true, "")
        } else {
            (false, "a flag of partitions")
        };
        if !fits {
            let said = value.map_or_else(|| flag.to_owned(), |value| format!("{flag}={value}"));
            self.warn(format!("\"{}\" is passed over; {what} is expected", said.escape_default()));
        }
    }

    fn member(&mut self, open: &Open, name: &str, value: Option<&str>) -> Result<(), FileError> {
        let is = |word: &str| word.starts_with(name);
        let who = if name.is_empty() || is("NONE") {
            return Ok(());
        } else if is("ALL") {
            Who::All
        } else if is("ALL_CAS") {
            Who::Type(NodeType::Ca)
        } else if is("ALL_SWITCHES") {
            Who::Type(NodeType::Switch)
        } else if is("ALL_ROUTERS") {
            Who::Type(NodeType::Router)
        } else if is("SELF") {
            Who::Manager
        } else {
            match number::parse(name) {
                Ok(guid) if guid != 0 => Who::Guid(guid),
                _ => {
                    let reason =
                        "a port GUID is expected, or ALL, ALL_CAS, ALL_SWITCHES, ALL_ROUTERS, SELF, NONE";
                    return Err(self.error(name, reason));
                }
            }
        };
        let as_what = match value {
            None => open.default,
            Some(word) => membership(word).unwrap_or_else(|| {
                self.warn(format!("\"{}\" is no membership; taken for limited", word.escape_default()));
                Membership::Limited
            }),
        };
        let partition = &mut self.list[open.index];
        if partition.members.len() >= MAX_MEMBERS {
            let reason = format!("{MAX_MEMBERS} members are possible");
            return Err(FileError::new(self.line, name, reason));
        }
        partition.members.push((who, as_what));
        if open.indx0 {
            partition.first_for.push(who);
        }
        Ok(())
    }

    /// A line that creates a multicast group. A wrong line is ignored, as by OpenSM.
    fn group(&mut self, open: &Open, mgid: &str, flags: &[&str]) {
        match mgid.parse::<Ipv6Addr>() {
            Ok(mgid) if mgid.is_multicast() => self.list[open.index].groups.push(mgid),
            _ => self
                .warn(format!("mgid \"{}\" is no multicast GID, and is passed over", mgid.escape_default())),
        }
        // The values are not used on Ethernet, but invalid ones are reported.
        let mut unused =
            Flags { sl: 0, rate: 3, mtu: 4, ipoib: false, indx0: false, default: Membership::Limited };
        for word in flags {
            let (flag, value) = name_and_value(word);
            self.flag(&mut unused, flag, value);
        }
    }
}

/// Parses a membership as OpenSM does: by its first letters. An empty word means "full".
fn membership(word: &str) -> Option<Membership> {
    let words = [("full", Membership::Full), ("both", Membership::Both), ("limited", Membership::Limited)];
    words.into_iter().find(|(name, _)| name.starts_with(word)).map(|(_, membership)| membership)
}

fn name_and_value(word: &str) -> (&str, Option<&str>) {
    match word.split_once('=') {
        Some((name, value)) => (name.trim(), Some(value.trim())),
        None => (word.trim(), None),
    }
}
