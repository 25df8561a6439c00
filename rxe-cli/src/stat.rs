//! `rxe stat`: the counters of the processes that share the port.

use crate::{
    Result,
    fabric::in_groups,
    output,
    service::{counted, observer},
};
use rxe_verbs::host::report::{ClientStats, HostStats, LockedReport};
use serde_json::Value;
use std::fmt::Write;

/// Counters of every process that uses the port: packets, bytes, retransmissions, NAKs, drops by reason
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only the process with this slot (`rxe service status`)
    #[arg(long, value_name = "SLOT")]
    slot: Option<u8>,
    /// Show each queue pair too, and why it refused and failed the last time
    #[arg(short, long)]
    qps: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut stats = observer()?.stats()?;
    if let Some(slot) = args.slot {
        stats.clients.retain(|client| client.slot == slot);
        stats.silent.retain(|silent| *silent == slot);
        if stats.clients.is_empty() && stats.silent.is_empty() {
            return Err(format!("no process has slot {slot}; `rxe service status` lists them").into());
        }
    }
    if args.json {
        output::json(&shown(&stats)?)?;
    } else {
        out!("{}", describe(&stats, args.qps));
    }
    Ok(())
}

/// As JSON. GUIDs are written as by the other commands, because many programs round numbers of 64 bits.
fn shown(stats: &HostStats) -> Result<Value> {
    let mut json = serde_json::to_value(stats)?;
    let of_clients =
        stats.clients.iter().enumerate().map(|(at, client)| (format!("/clients/{at}"), &client.peers));
    for (place, peers) in of_clients.chain([(String::new(), &stats.peers)]) {
        for (at, peer) in peers.iter().enumerate() {
            if let Some(guid) = json.pointer_mut(&format!("{place}/peers/{at}/guid")) {
                *guid = in_groups(peer.guid).into();
            }
        }
    }
    Ok(json)
}

fn describe(stats: &HostStats, qps: bool) -> String {
    let mut text = String::new();
    if stats.clients.is_empty() && stats.silent.is_empty() {
        text.push_str("no process uses the port now\n");
    }
    for client in &stats.clients {
        describe_client(&mut text, client, qps);
    }
    for slot in &stats.silent {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "slot {slot}: its process does not answer (is it stopped?)");
    }
    text
}

fn describe_client(text: &mut String, client: &ClientStats, qps: bool) {
    let _ = writeln!(
        text,
        "slot {}: process {} ({}), {}",
        client.slot,
        client.pid,
        client.name,
        counted(client.qps.len(), "queue pair", "queue pairs")
    );
    counters(text, "  port", &client.port);
    for lane in &client.lanes {
        counters(text, &format!("  lane {}", lane.lane), &lane.counters);
    }
    locked(text, &client.locked);
    if qps {
        for qp in &client.qps {
            counters(text, &format!("  qp {:#08x} {} {}", qp.qpn, qp.service, qp.state), &qp.counters);
            for (what, why) in [("refused", &qp.refused), ("failed", &qp.failed)] {
                if let Some(why) = why {
                    let _ = writeln!(text, "    {what}: {why}");
                }
            }
        }
    }
}

/// Registered memory, as a kernel would count it against the limit for locked memory.
fn locked(text: &mut String, locked: &LockedReport) {
    let kib = |bytes: u64| bytes / 1024;
    let limit = match locked {
        LockedReport { enforced: false, .. } => "not limited".to_owned(),
        LockedReport { limit: None, .. } => "limit unlimited".to_owned(),
        LockedReport { limit: Some(limit), exempt, .. } => {
            format!("limit {} KiB{}", kib(*limit), if *exempt { ", exempt by CAP_IPC_LOCK" } else { "" })
        }
    };
    let _ = write!(text, "  registered memory: {} KiB, {limit}", kib(locked.bytes));
    if locked.refused > 0 {
        let _ = write!(text, ", {} refused", counted(locked.refused as usize, "region", "regions"));
    }
    text.push('\n');
}

/// The counters that are not 0, on one line.
fn counters(text: &mut String, title: &str, list: &[(String, u64)]) {
    let _ = write!(text, "{title}:");
    for (name, value) in list.iter().filter(|(_, value)| *value > 0) {
        let _ = write!(text, " {name} {value}");
    }
    if list.iter().all(|(_, value)| *value == 0) {
        text.push_str(" nothing yet");
    }
    text.push('\n');
}
