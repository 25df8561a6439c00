//! What the processes of a host have received for each other, slot by slot: as they count it themselves, and as the
//! services count that saw to it. The two must agree to the packet.

use crate::Home;
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};
use testbed::agent::Failure;

/// How long a service may be hard to find after the death of the one before.
const SUCCESSION: Duration = Duration::from_secs(5);
/// How long counts may take to agree once nobody sends: each look asks every process, on a machine that may be busy.
const SETTLING: Duration = Duration::from_secs(60);
/// How long one that was killed may take to die: it needs a processor for that, as everybody here does.
const DEATH: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// A process: its slot and number.
type Process = (u64, u64);

/// What one process has exchanged with the services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Exchanged {
    /// Packets for others that came to it.
    strayed: u64,
    /// Packets that it was given.
    given: u64,
}

/// What the services of one host have said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    exchanged: BTreeMap<Process, Exchanged>,
    /// Services that were killed.
    killed: HashSet<u64>,
    /// Times that a client came back to a new service.
    pub(crate) rejoined: u64,
    /// Packets handed on.
    pub(crate) handed_on: u64,
    /// Packets that the services dropped, for whatever reason.
    dropped: u64,
    /// Packets left to those who died.
    pub(crate) drained: u64,
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

impl Ledger {
    /// Adds what a service has counted that will not be asked again.
    fn take(&mut self, report: &Value) {
        let counter = |name: &str| number(&report["counters"][name]);
        self.rejoined += counter("rejoined");
        self.handed_on += counter("handed_on");
        self.drained += counter("drained");
        self.dropped += counter("dropped") + counter("corrupt") + counter("unheard");
        for client in report["clients"].as_array().into_iter().flatten() {
            let process = (number(&client["slot"]), number(&client["pid"]));
            let own = self.exchanged.entry(process).or_default();
            let told = report["exchanged"].as_array().into_iter().flatten();
            for told in told.filter(|told| told["slot"] == client["slot"]) {
                own.strayed += number(&told["strayed"]);
                own.given += number(&told["given"]);
            }
        }
    }

    /// Kills the service of a host, if one can be found; false if not.
    pub(crate) fn kill_service(&mut self, home: &Home) -> Result<bool, Failure> {
        let begin = Instant::now();
        let report = loop {
            match home.ask(&["service", "status"]) {
                Some(report) => break report,
                None if begin.elapsed() > SUCCESSION => return Ok(false),
                None => thread::sleep(PAUSE),
            }
        };
        let pid = number(&report["pid"]);
        if pid == 0 || !self.killed.insert(pid) {
            return Err(format!("process {pid}, which was killed, is the service again").into());
        }
        self.take(&report);
        let status = home
            .command(Path::new("kill"))
            .args(["-9", &pid.to_string()])
            .stderr(Stdio::inherit())
            .status()?;
        if !status.success() {
            return Err(format!("service {pid} was gone before it was killed").into());
        }
        let begin = Instant::now();
        while is_alive(pid) {
            if begin.elapsed() > DEATH {
                return Err(format!("service {pid} survives being killed").into());
            }
            thread::sleep(PAUSE / 10);
        }
        Ok(true)
    }

    /// What the services have counted with the one that is there now.
    fn so_far(&self, report: &Value) -> Self {
        let mut all = self.clone();
        all.take(report);
        all
    }

    /// Where the processes' own counts differ from the services'; nothing if they agree.
    fn differences(&self, clients: &[Value]) -> Vec<String> {
        let mut wrong = Vec::new();
        for client in clients {
            let process = (number(&client["slot"]), number(&client["pid"]));
            let counted = Exchanged {
                strayed: port(client, "dropped_other_slot"),
                given: port(client, "handed_over") + port(client, "dropped_mailbox_full"),
            };
            let told = self.exchanged.get(&process).copied().unwrap_or_default();
            if counted != told {
                wrong.push(format!(
                    "slot {} (process {}): it counts {counted:?}, the service {told:?}",
                    process.0, process.1
                ));
            }
        }
        wrong
    }
}

/// A counter of a process's share of the port.
fn port(client: &Value, name: &str) -> u64 {
    let counters = client["port"].as_array().into_iter().flatten();
    counters.filter(|counter| counter[0] == name).map(|counter| number(&counter[1])).sum()
}

/// Whether a process lives; who has ended and is not yet waited for does not.
fn is_alive(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// A host on which nobody sends any more.
#[derive(Clone, Debug)]
pub(crate) struct Calm {
    /// What its services have said.
    pub(crate) ledger: Ledger,
    /// What its processes have counted.
    clients: Vec<Value>,
}

impl Calm {
    /// Waits until the counts agree, and `missing` has no more to say of what is not there yet.
    pub(crate) fn wait(
        home: &Home,
        ledger: &Ledger,
        processes: usize,
        missing: impl Fn(&Self) -> Option<String>,
    ) -> Result<Self, Failure> {
        let begin = Instant::now();
        loop {
            let late = begin.elapsed() > SETTLING;
            let (stats, report) = (home.ask(&["stat"]), home.ask(&["service", "status"]));
            if let (Some(stats), Some(report)) = (stats, report) {
                let clients = stats["clients"].as_array().cloned().unwrap_or_default();
                let calm = Self { ledger: ledger.so_far(&report), clients };
                let mut wrong = calm.ledger.differences(&calm.clients);
                wrong.extend(missing(&calm));
                if calm.clients.len() == processes && wrong.is_empty() {
                    return Ok(calm);
                }
                if late {
                    let counts: Vec<String> = calm.clients.iter().map(drops).collect();
                    return Err(format!(
                        "{}: {} of {processes} processes answer, or their counts are wrong:\n{}\nservice: {}\n{}",
                        home.address,
                        calm.clients.len(),
                        wrong.join("\n"),
                        report["counters"],
                        counts.join("\n")
                    )
                    .into());
                }
            } else if late {
                return Err(format!("{}: no service answers", home.address).into());
            }
            thread::sleep(PAUSE);
        }
    }

    /// A counter of one slot's process.
    pub(crate) fn of_slot(&self, slot: u64, name: &str) -> u64 {
        self.clients.iter().filter(|client| number(&client["slot"]) == slot).map(|c| port(c, name)).sum()
    }

    /// A counter of all processes together.
    pub(crate) fn sum(&self, name: &str) -> u64 {
        self.clients.iter().map(|client| port(client, name)).sum()
    }

    /// Packets that were dropped, by whomever.
    pub(crate) fn dropped(&self) -> u64 {
        let all = self.clients.iter().filter_map(|client| client["port"].as_array()).flatten();
        let drops = all.filter(|counter| counter[0].as_str().is_some_and(is_drop));
        self.ledger.dropped + drops.map(|counter| number(&counter[1])).sum::<u64>()
    }
}

fn is_drop(name: &str) -> bool {
    name.starts_with("dropped_") || name == "receive_drops"
}

/// For words: what a process has dropped.
fn drops(client: &Value) -> String {
    let counters = client["port"].as_array().into_iter().flatten();
    let drops = counters.filter(|counter| {
        counter[0].as_str().is_some_and(|name| is_drop(name) || name == "handed_over")
            && number(&counter[1]) > 0
    });
    let drops: Vec<String> = drops.map(|counter| format!("{} {}", counter[0], counter[1])).collect();
    format!("slot {}: {}", client["slot"], drops.join(", "))
}
