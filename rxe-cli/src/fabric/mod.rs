//! `rxe fabric`: the hosts that this host knows: its own devices, hosts with which programs had connections, and those in the
//! configuration. With `--probe` also their answers to a query.

mod probe;

use crate::{
    Result,
    listing::{Listed, listed},
    output,
};
use probe::Answer;
use rxe_fabric::mad::{NodeSays, lid_of, release_of};
use rxe_verbs::{
    Device, Gid, VENDOR_ID,
    host::{Habit, HostConfig, KnownPort, Observer, PeerReport, report::HostStats},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt::Write, fs, net::IpAddr};

/// Show who is there: this host's devices, hosts that connections were made with, and ports that the configuration names.
/// Without --probe nothing is sent
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Ask these hosts who they are, and those in the kernel's table of neighbours (IPv4): one management datagram each, 100 a second,
    /// 256 hosts at most
    #[arg(long)]
    probe: bool,
    /// Ask this host, too
    #[arg(value_name = "HOST", requires = "probe")]
    hosts: Vec<IpAddr>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Another host.
#[derive(Clone, Debug, Default)]
struct Other<'a> {
    /// How it was found, if not by the fields below.
    found: Option<IpAddr>,
    met: Option<&'a PeerReport>,
    named: Option<&'a KnownPort>,
    habit: Option<Habit>,
    answer: Option<&'a Answer>,
}

impl Other<'_> {
    /// Each once.
    fn addresses(&self) -> Vec<IpAddr> {
        let met = self.met.map(|met| met.address);
        let named = self.named.into_iter().flat_map(|named| named.addresses.iter().copied());
        let mut all = Vec::new();
        for address in self.found.into_iter().chain(met).chain(named) {
            if !all.contains(&address) {
                all.push(address);
            }
        }
        all
    }

    const fn says(&self) -> Option<&NodeSays> {
        match self.answer {
            Some(Answer::Says(says)) => Some(says),
            _ => None,
        }
    }

    fn guid(&self) -> u64 {
        let met = || self.met.map(|met| met.guid);
        let named = || self.named.and_then(|named| named.port.guids.first().copied());
        self.says().map(|says| says.guid).or_else(met).or_else(named).unwrap_or(0)
    }

    /// The LID of its first address.
    fn lid(&self) -> u16 {
        self.addresses().first().map_or(0, |address| lid_of(*address))
    }

    fn name(&self) -> &str {
        self.named.map_or("", |named| &named.port.name)
    }

    /// The release, if it identifies itself as rxe.
    fn release(&self) -> Option<String> {
        let own = self.says().filter(|says| says.model.0 == VENDOR_ID);
        own.map(|says| release_of(says.revision))
    }

    /// Its kind; `None` if unknown. rxe sends like an adapter, but would not refuse the query.
    fn kind(&self) -> Option<&'static str> {
        match (self.release(), self.habit, self.answer) {
            (Some(_), ..) => Some("rxe"),
            (None, Some(Habit::Kernel), _) => Some("kernel"),
            (None, Some(Habit::Adapter), Some(Answer::Refuses)) => Some("adapter"),
            (None, ..) => None,
        }
    }

    /// The same as text, with the evidence.
    fn described(&self) -> String {
        match (self.release(), self.kind(), self.habit) {
            (Some(release), ..) => format!("rxe {release}"),
            (None, Some("kernel"), _) => "sends like kernel rdma_rxe".to_owned(),
            (None, Some(_), _) => "sends and answers like an adapter".to_owned(),
            (None, None, Some(_)) => "sends like an adapter, or like rxe".to_owned(),
            (None, None, None) => "of unknown kind".to_owned(),
        }
    }

    /// Its kind by its packets only.
    fn habit(&self) -> Option<&'static str> {
        self.habit.map(|habit| match habit {
            Habit::Kernel => "kernel",
            Habit::Adapter => "adapter",
        })
    }

    fn answered(&self) -> Option<bool> {
        self.answer.map(|answer| *answer != Answer::Silent)
    }

    fn json(&self) -> Value {
        let gids: Vec<_> = self.addresses().iter().map(|address| Gid::from(*address).to_string()).collect();
        json!({
            "addresses": self.addresses(), "gids": gids, "guid": in_groups(self.guid()), "lid": self.lid(),
            "name": self.name(), "pkeys": self.met.map(|met| &met.pkeys), "seconds": self.met.map(|met| met.seconds),
            "kind": self.kind(), "habit": self.habit(), "release": self.release(), "answered": self.answered(),
            "says": self.says().map(|says| &says.name),
        })
    }

    fn line(&self) -> String {
        let addresses: Vec<_> = self.addresses().iter().map(ToString::to_string).collect();
        let mut text = format!("  {}  lid {}", addresses.join(" "), self.lid());
        // Writing to a string cannot fail.
        if self.guid() != 0 {
            let _ = write!(text, "  guid {}", in_groups(self.guid()));
        }
        if !self.name().is_empty() {
            let _ = write!(text, "  \"{}\"", self.name());
        }
        if let Some(met) = self.met {
            let _ = write!(text, "{}  heard of {} s ago", keys(&met.pkeys), met.seconds);
        } else if self.named.is_some() {
            text.push_str("  named by the configuration");
            text.push_str(if self.answered() == Some(true) { "" } else { ", not heard of" });
        }
        let answered = match self.answered() {
            None => "",
            Some(true) => ", answers",
            Some(false) => ", does not answer",
        };
        let _ = write!(text, "  {}{answered}", self.described());
        text
    }
}

/// A GUID in four groups.
pub(crate) fn in_groups(guid: u64) -> String {
    let groups = [48, 32, 16, 0].map(|shift| format!("{:04x}", guid >> shift & 0xffff));
    groups.join(":")
}

fn keys(list: &[u16]) -> String {
    let keys: Vec<_> = list.iter().map(|key| format!(" {key:#06x}")).collect();
    if keys.is_empty() { String::new() } else { format!("  P_Keys{}", keys.concat()) }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let config = HostConfig::load()?;
    let fabric = config.host_fabric();
    let own = listed(None)?;
    let mut stats = stats()?;
    let mut answers = BTreeMap::new();
    if args.probe {
        let asked = asked(&args.hosts, &stats, fabric.ports(), &own);
        if asked.len() > probe::MOST {
            eprintln!("rxe: {} hosts are known, of which the first {} are asked", asked.len(), probe::MOST);
        }
        answers = probe::ask(&asked)?;
        let mut named = asked.iter().take(probe::MOST).filter(|host| args.hosts.contains(host));
        if let Some(host) = named.find(|host| !answers.contains_key(host)) {
            return Err(format!("{host} was not asked: there is no way to it by a device of rxe").into());
        }
        // The kinds of their packets.
        stats = self::stats()?;
    }
    let others = others(&stats, fabric.ports(), &answers);
    if args.json {
        let own: Vec<_> = own.iter().map(|device| device.json(config.pkeys_of(&device.netdev))).collect();
        let others: Vec<_> = others.iter().map(Other::json).collect();
        return output::json(&json!({ "own": own, "others": others }));
    }
    outln!("this host");
    for device in &own {
        outln!("{}", describe(device, config.pkeys_of(&device.netdev)));
    }
    outln!("others");
    // Most neighbours that do not answer are not RDMA hosts.
    let is_shown = |other: &&Other<'_>| {
        let is_wanted = other.found.is_none_or(|found| args.hosts.contains(&found));
        is_wanted || other.answered() == Some(true)
    };
    let shown: Vec<_> = others.iter().filter(is_shown).collect();
    for other in &shown {
        outln!("{}", other.line());
    }
    if shown.len() < others.len() {
        outln!("  {} neighbours do not answer", others.len() - shown.len());
    }
    Ok(())
}

/// The hosts that the host service knows; none if there is no service.
fn stats() -> Result<HostStats> {
    match Observer::connect()? {
        Some(observer) => Ok(observer.stats()?),
        None => Ok(HostStats::default()),
    }
}

fn is_own(address: &IpAddr) -> bool {
    Device::of_address(*address).is_ok()
}

/// The hosts to query: those that the user names, known ones, and neighbours, each once, without this host.
fn asked(hosts: &[IpAddr], stats: &HostStats, named: &[KnownPort], own: &[Listed]) -> Vec<IpAddr> {
    let interfaces: Vec<&str> = own.iter().map(|device| &*device.netdev).collect();
    let table = fs::read_to_string("/proc/net/arp").unwrap_or_default();
    let met = stats.peers.iter().map(|met| met.address);
    let named = named.iter().filter_map(|named| named.addresses.first().copied());
    let mut all = Vec::new();
    let each = hosts.iter().copied().chain(met).chain(named).chain(probe::neighbours(&table, &interfaces));
    for address in each.filter(|address| !is_own(address)) {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    all
}

/// Known hosts, configured ports, and hosts that were queried, each once, without this host.
fn others<'a>(
    stats: &'a HostStats,
    named: &'a [KnownPort],
    answers: &'a BTreeMap<IpAddr, Answer>,
) -> Vec<Other<'a>> {
    let is_same = |met: &PeerReport, named: &KnownPort| {
        named.addresses.contains(&met.address) || named.port.guids.contains(&met.guid)
    };
    let met: Vec<_> = stats.peers.iter().filter(|met| !is_own(&met.address)).collect();
    let unmet = |named: &&KnownPort| {
        !met.iter().any(|met| is_same(met, named)) && !named.addresses.iter().any(is_own)
    };
    let unmet = named.iter().filter(unmet).map(|named| Other { named: Some(named), ..Other::default() });
    let of_met = |met: &&'a PeerReport| Other {
        met: Some(*met),
        named: named.iter().find(|named| is_same(met, named)),
        ..Other::default()
    };
    let mut all: Vec<_> = met.iter().map(of_met).chain(unmet).collect();
    let known: Vec<IpAddr> = all.iter().flat_map(Other::addresses).collect();
    let found = answers.keys().filter(|address| !known.contains(address));
    all.extend(found.map(|address| Other { found: Some(*address), ..Other::default() }));
    for other in &mut all {
        let addresses = other.addresses();
        other.answer = addresses.iter().find_map(|address| answers.get(address));
        let habit = |address| stats.habits.iter().find(|(who, _)| who == address);
        other.habit = addresses.iter().find_map(habit).map(|(_, habit)| *habit);
    }
    all
}

fn describe(device: &Listed, pkeys: &[u16]) -> String {
    let Listed { name, netdev, lid, guid, state, addresses, .. } = device;
    format!(
        "  {name} {netdev} {}  lid {lid}  guid {guid}{}  {}",
        state.short,
        keys(pkeys),
        addresses.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(vendor: u32) -> Answer {
        let (lid, guid, revision) = (7, 9, 0x100);
        Answer::Says(NodeSays { lid, guid, model: (vendor, 1), revision, name: "host".to_owned() })
    }

    /// The kind is only based on the host's answer and its packets.
    #[test]
    fn what_a_host_is_follows_from_what_it_shows() {
        let (kernel, adapter) = (Some(Habit::Kernel), Some(Habit::Adapter));
        for (habit, answer, kind, words) in [
            (adapter, Some(says(VENDOR_ID)), Some("rxe"), "rxe 0.1.0, answers"),
            (None, Some(says(VENDOR_ID)), Some("rxe"), "rxe 0.1.0, answers"),
            (None, Some(says(0x2c9)), None, "of unknown kind, answers"),
            (kernel, Some(Answer::Refuses), Some("kernel"), "sends like kernel rdma_rxe, answers"),
            (kernel, None, Some("kernel"), "sends like kernel rdma_rxe"),
            (adapter, Some(Answer::Refuses), Some("adapter"), "sends and answers like an adapter, answers"),
            (adapter, Some(Answer::Silent), None, "sends like an adapter, or like rxe, does not answer"),
            (adapter, None, None, "sends like an adapter, or like rxe"),
            (None, Some(Answer::Refuses), None, "of unknown kind, answers"),
            (None, Some(Answer::Silent), None, "of unknown kind, does not answer"),
        ] {
            let found = Some(IpAddr::from([10, 0, 0, 7]));
            let other = Other { found, habit, answer: answer.as_ref(), ..Other::default() };
            assert_eq!(other.kind(), kind, "{habit:?} {answer:?}");
            assert!(other.line().ends_with(&format!("  {words}")), "{}: {words}", other.line());
        }
    }

    /// The address that it was met by may stand anywhere in what the configuration says of it.
    #[test]
    fn an_address_is_shown_once() {
        let [one, two, three] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let named = KnownPort { addresses: vec![one, two, three], ..KnownPort::default() };
        let met = PeerReport { address: two, guid: 0, pkeys: Vec::new(), seconds: 0 };
        let other = Other { met: Some(&met), named: Some(&named), ..Other::default() };
        assert_eq!(other.addresses(), [two, one, three]);
    }
}
