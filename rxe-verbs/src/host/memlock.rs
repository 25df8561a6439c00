//! How much memory a program may register: the limit for locked memory (`ulimit -l`, RLIMIT_MEMLOCK), if the host's
//! configuration says so.
//!
//! An adapter needs memory that stays in place. So kernels lock registered memory, and count it against this limit. We lock
//! nothing, so nothing is refused by default. With `memlock = "enforce"` we refuse what a kernel would refuse, so that a program which
//! works here works with an adapter, too.
//!
//! ```toml
//! memlock = "enforce"
//! # In the syntax of limits.conf(5); without it the process's own limit counts.
//! memlock_limits = "/etc/security/limits.conf"
//! ```

use nix::unistd::{Group, Uid, User, getgrouplist};
use serde::{Deserialize, Serialize};
use std::ffi::CString;

/// Bytes of a unit in limits.conf.
const UNIT: u64 = 1024;

/// The setting in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemlockMode {
    /// Registered memory is counted, and never refused.
    #[default]
    Off,
    /// Registrations above the limit are refused (ENOMEM), unless the program has CAP_IPC_LOCK.
    Enforce,
}

/// The rule for a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Memlock {
    /// Nothing is refused.
    #[default]
    Off,
    /// The process's soft RLIMIT_MEMLOCK counts.
    Rlimit,
    /// This many bytes, from the file.
    Bytes(u64),
}

/// Whom a line is about, from the least to the most specific (limits.conf(5): a line for a user takes precedence over one for a group,
/// and that over one for all).
#[derive(Clone, Debug, PartialEq, Eq)]
enum Domain {
    Everybody,
    Group(String),
    /// Group IDs, both included.
    Gids(u32, u32),
    User(String),
    /// User IDs, both included.
    Uids(u32, u32),
}

/// A line about locked memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    domain: Domain,
    /// Whether it sets the soft limit, which is what counts, and the hard one, which bounds it ("-" sets both).
    soft: bool,
    hard: bool,
    bytes: u64,
}

/// The user whose limit is asked for.
#[derive(Clone, Debug, Default)]
struct Who {
    uid: u32,
    name: String,
    /// By number and name.
    groups: Vec<(u32, String)>,
}

/// The lines of limits.conf about locked memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits(Vec<Rule>);

impl Limits {
    /// Reads a file of that syntax.
    ///
    /// # Errors
    /// The line, the wrong word in it, and what is allowed there.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut rules = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
            let wrong = |word: &str, why: &str| {
                Err(format!("line {number}, at \"{}\": {why}", word.escape_default()))
            };
            let [domain, kind, item, value] = words[..] else {
                match words[..] {
                    // "domain -": no limits at all for these.
                    [] | [_, "-"] => continue,
                    _ => return wrong(words[words.len() - 1], "domain, type, item and value are expected"),
                }
            };
            if !["soft", "hard", "-"].contains(&kind) {
                return wrong(kind, "soft, hard or - is expected");
            }
            if item != "memlock" {
                continue;
            }
            let bytes = match value {
                "unlimited" | "infinity" | "-1" => u64::MAX,
                _ => match value.parse::<u64>() {
                    Ok(units) => units.saturating_mul(UNIT),
                    Err(_) => return wrong(value, "a number of KiB, or \"unlimited\", is expected"),
                },
            };
            let Some(domain) = domain_of(domain) else { return wrong(domain, "a range of IDs is expected") };
            // Lines for logins only ("%") do not concern us.
            let Some(domain) = domain else { continue };
            rules.push(Rule { domain, soft: kind != "hard", hard: kind != "soft", bytes });
        }
        Ok(Self(rules))
    }

    /// The limit of this process's user, in bytes. `None` if no line is about that user.
    pub(crate) fn own(&self) -> Option<u64> {
        let uid = Uid::effective();
        let user = User::from_uid(uid).ok().flatten();
        let name = user.as_ref().map(|user| user.name.clone()).unwrap_or_default();
        let groups = user.and_then(|user| getgrouplist(&CString::new(user.name).ok()?, user.gid).ok());
        let named = |gid| {
            let name = Group::from_gid(gid).ok().flatten().map(|group| group.name).unwrap_or_default();
            (gid.as_raw(), name)
        };
        let groups = groups.unwrap_or_default().into_iter().map(named).collect();
        self.of(&Who { uid: uid.as_raw(), name, groups })
    }

    /// The soft limit if a line sets one, but not more than the hard limit. Else the hard limit.
    fn of(&self, who: &Who) -> Option<u64> {
        let find = |sets: fn(&Rule) -> bool| {
            let fits = self.0.iter().filter(|rule| sets(rule));
            let ranked = fits.filter_map(|rule| Some((rank(&rule.domain, who)?, rule.bytes)));
            // Of equally specific lines the last counts.
            ranked.max_by_key(|(rank, _)| *rank).map(|(_, bytes)| bytes)
        };
        match (find(|rule| rule.soft), find(|rule| rule.hard)) {
            (Some(soft), Some(hard)) => Some(soft.min(hard)),
            (soft, hard) => soft.or(hard),
        }
    }
}

/// `Some(None)` for a line that does not concern us.
fn domain_of(word: &str) -> Option<Option<Domain>> {
    let range = |text: &str| -> Option<(u32, u32)> {
        let (first, last) = text.split_once(':')?;
        let number = |text: &str, none| if text.is_empty() { Some(none) } else { text.parse().ok() };
        let (least, most) = (number(first, 0)?, number(last, u32::MAX)?);
        // ":max" means that ID alone.
        Some(if first.is_empty() { (most, most) } else { (least, most) })
    };
    Some(Some(match (word, word.strip_prefix('@')) {
        ("*", _) => Domain::Everybody,
        (_, Some(group)) if group.contains(':') => {
            let (first, last) = range(group)?;
            Domain::Gids(first, last)
        }
        (_, Some(group)) => Domain::Group(group.to_owned()),
        _ if word.starts_with('%') => return Some(None),
        _ if word.contains(':') => {
            let (first, last) = range(word)?;
            Domain::Uids(first, last)
        }
        _ => Domain::User(word.to_owned()),
    }))
}

/// How specific a line is for a user. `None` if it is not about that user. Lines for groups and for all do not hold for root.
fn rank(domain: &Domain, who: &Who) -> Option<u8> {
    let plain = who.uid != 0;
    match domain {
        Domain::User(name) => (*name == who.name).then_some(4),
        Domain::Uids(first, last) => (first..=last).contains(&&who.uid).then_some(3),
        Domain::Group(name) => (plain && who.groups.iter().any(|(_, group)| group == name)).then_some(2),
        Domain::Gids(first, last) => {
            (plain && who.groups.iter().any(|(gid, _)| (first..=last).contains(&gid))).then_some(1)
        }
        Domain::Everybody => plain.then_some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_particular_line_counts() {
        let text = "# limits\n* soft memlock 64\n@rdma - memlock unlimited\n*  hard  nofile 4096\n\
                    ann soft memlock 1024 # her own\n1000:1010 soft memlock 2048\n:77 - memlock 5\nbob hard memlock 16\n%all - maxlogins 3\n";
        let limits = Limits::parse(text).unwrap();
        let who = |uid, name: &str, groups: &[(u32, &str)]| Who {
            uid,
            name: name.to_owned(),
            groups: groups.iter().map(|(gid, name)| (*gid, (*name).to_owned())).collect(),
        };
        for (who, kib) in [
            (who(5, "joe", &[]), Some(64)),
            (who(5, "joe", &[(9, "rdma")]), Some(u64::MAX / UNIT)),
            (who(1005, "joe", &[(9, "rdma")]), Some(2048)),
            (who(1005, "ann", &[(9, "rdma")]), Some(1024)),
            (who(77, "joe", &[]), Some(5)),
            (who(5, "bob", &[]), Some(16)),
            (who(0, "root", &[(9, "rdma")]), None),
        ] {
            assert_eq!(limits.of(&who).map(|bytes| bytes / UNIT), kib, "{who:?}");
        }
    }

    /// A line with "-" sets the hard limit, too: a less particular one does not bound it.
    #[test]
    fn both_limits_at_once() {
        let limits = Limits::parse("* hard memlock 64\n@rdma - memlock unlimited\n").unwrap();
        let of = |group: &str| {
            let groups = vec![(9, group.to_owned())];
            limits.of(&Who { uid: 5, name: "joe".to_owned(), groups })
        };
        assert_eq!((of("rdma"), of("staff")), (Some(u64::MAX), Some(64 * UNIT)));
    }

    #[test]
    fn mistakes_have_a_line_and_a_word() {
        for (text, says) in [
            ("\n* soft memlock", "line 2, at \"memlock\""),
            ("* firm memlock 4", "at \"firm\""),
            ("* soft memlock 4k", "at \"4k\""),
            ("1:x soft memlock 4", "at \"1:x\""),
        ] {
            let error = Limits::parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
        assert_eq!(Limits::parse("joe -\n\n# nothing\n").unwrap(), Limits::default());
    }
}
