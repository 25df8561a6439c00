//! The RC operations while packets are lost, doubled and overtaken: nothing may be lost or doubled above.
//!
//! The faults are made in the guest (netem, on what it sends and on what it receives) or by our own `RXE_FAULT`.

use crate::cases::{Case, Tally};
use rxe_verbs::QpStats;
use serde_json::{Value, json};
use testbed::agent::{Agent, Failure};

mod kernel;
mod ours;

use crate::{
    bench::{RC, Setup},
    bulk,
    cases::case,
};

/// Times out sooner than usual: much is lost here. (The kernel's 7 retries are without end, so it may.)
const LOSSY: Setup = Setup { their_timeout: 14, ..RC };

/// The operations, each often enough, or on enough bytes, to meet a fault in a hundred packets.
pub(crate) const ALL: &[Case] = &[
    case("RC SEND, 64 x 12000 B in order", LOSSY, ours::sends, kernel::sends),
    case("RC WRITE, 2 x 1 MiB", LOSSY, ours::writes, kernel::writes),
    case("RC WRITE with immediate, 24 x 5000 B", LOSSY, ours::writes_imm, kernel::writes_imm),
    case("RC READ, 2 x 1 MiB", LOSSY, ours::reads, kernel::reads),
    case("RC READ, 14 x 15000 B in a row", LOSSY, bulk::we_read_a_row, bulk::they_read_a_row),
    case("RC fetch and add, 240 to one sum", LOSSY, ours::adds, kernel::adds),
    case("RC compare and swap, a chain of 120", LOSSY, ours::swaps, kernel::swaps),
    case("RC ATOMIC WRITE, 60", LOSSY, ours::atomic_writes, kernel::atomic_writes),
    case("RC FLUSH, 30", LOSSY, ours::flushes, kernel::flushes),
];

/// Faults of the guest, by name: percentages of netem.
const PLANS: &[(&str, [u8; 3])] = &[
    ("none", [0, 0, 0]),
    ("loss", [1, 0, 0]),
    ("duplicate", [0, 1, 0]),
    ("reorder", [0, 0, 1]),
    ("all", [1, 1, 1]),
];

/// The faults of one run, from before its first case to after its last.
pub(crate) struct Faults {
    agent: Agent,
    device: String,
    /// Percentages of loss, duplication, reordering.
    plan: [u8; 3],
    before: Value,
}

impl Faults {
    pub(crate) fn begin(agent: &str, device: &str, plan: &str) -> Result<Self, Failure> {
        let (_, plan) = PLANS.iter().find(|(name, _)| *name == plan).ok_or("no such plan")?;
        let mut agent = Agent::connect(agent)?;
        if *plan != [0; 3] {
            for direction in ["egress", "ingress"] {
                let [loss, duplicate, reorder] = plan;
                let order = json!({
                    "direction": direction, "loss": loss, "duplicate": duplicate, "reorder": reorder,
                });
                agent.call("netem", &order)?;
            }
        }
        let before = agent.call("counters", &json!({ "dev": device }))?;
        Ok(Self { agent, device: device.to_owned(), plan: *plan, before })
    }

    /// What the faults did, in words; an error if they did nothing.
    pub(crate) fn end(&mut self, tally: &Tally) -> Result<String, Failure> {
        let after = self.agent.call("counters", &json!({ "dev": self.device }))?;
        let grown = |name: &str| {
            after[name]
                .as_u64()
                .unwrap_or_default()
                .saturating_sub(self.before[name].as_u64().unwrap_or_default())
        };
        let theirs = ["duplicate_request", "out_of_seq_request", "rcvd_seq_err", "completer_retry_err"]
            .map(|name| (name, grown(name)));
        let ours = tally.stats.each().filter(|(name, _)| TELLING.contains(name));
        let mut text = format!("ours: {}; kernel: {}", listed(ours), listed(theirs.into_iter()));
        let [loss, duplicate, reorder] = self.plan;
        let mut injected = Vec::new();
        if loss > 0 {
            for direction in ["egress", "ingress"] {
                let stats = self.agent.call("netem_stats", &json!({ "direction": direction }))?;
                let dropped = stats["dropped"].as_u64().unwrap_or_default();
                injected.push((direction, dropped));
                text += &format!("; netem {direction}: {} packets, dropped {dropped}", stats["sent"]);
            }
        }
        let stats = &tally.stats;
        if duplicate > 0 {
            injected.push(("doubled on the way to us", stats.duplicates + stats.responses_ignored));
            injected.push(("doubled on the way to the kernel", grown("duplicate_request")));
        }
        if reorder > 0 {
            injected.push(("overtaken on the way to us", stats.psn_naks_sent + stats.implied_naks));
            injected.push(("overtaken on the way to the kernel", grown("out_of_seq_request")));
        }
        if self.plan == [0; 3] {
            injected.push(("sent again by us", stats.retransmitted));
            injected.push(("NAKs of ours for what the kernel sent", stats.psn_naks_sent));
        }
        // Here and now: what the end of the connection clears could meet the next run.
        self.agent.call("close_all", &json!({}))?;
        match injected.iter().find(|(_, count)| *count == 0) {
            None => Ok(text),
            Some((what, _)) => Err(format!("no fault was in fact injected: {what}: 0; {text}").into()),
        }
    }
}

/// Counters that are not 0, in words.
fn listed<'a>(counters: impl Iterator<Item = (&'a str, u64)>) -> String {
    let words: Vec<String> =
        counters.filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect();
    words.join(", ")
}

/// Counters that grow with faults.
const TELLING: [&str; 9] = [
    "retransmitted",
    "timeouts",
    "psn_naks_received",
    "psn_naks_sent",
    "duplicates",
    "responses_ignored",
    "implied_naks",
    "dropped_out_of_order",
    "rnr_naks_sent",
];

/// The sum of two queue pairs' counters that grow with faults.
pub(crate) fn add(sum: &mut QpStats, more: &QpStats) {
    sum.retransmitted += more.retransmitted;
    sum.timeouts += more.timeouts;
    sum.psn_naks_received += more.psn_naks_received;
    sum.psn_naks_sent += more.psn_naks_sent;
    sum.duplicates += more.duplicates;
    sum.responses_ignored += more.responses_ignored;
    sum.implied_naks += more.implied_naks;
    sum.dropped_out_of_order += more.dropped_out_of_order;
    sum.rnr_naks_sent += more.rnr_naks_sent;
}
