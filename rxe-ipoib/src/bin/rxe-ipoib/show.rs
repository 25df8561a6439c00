//! Showing interfaces.

use super::Result;
use rxe_ipoib::{Error, Report, control};
use std::{
    fmt::Write as _,
    io::{IsTerminal, Write as _},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// An interface [default: all of this network namespace]
    name: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let reports: Vec<Report> = match &args.name {
        Some(name) => vec![control::show(name)?],
        None => {
            let mut reports = Vec::new();
            for name in control::names()? {
                match control::show(&name) {
                    Ok(report) => reports.push(report),
                    // The interface has ended meanwhile.
                    Err(Error::NoInterface(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            reports
        }
    };
    let text = match (args.json, &args.name) {
        (true, Some(_)) => json(&reports[0])?,
        (true, None) => json(&reports)?,
        (false, _) => reports.iter().map(describe).collect(),
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        // The reader has closed the pipe.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        done => Ok(done?),
    }
}

/// On several lines for people, on one for programs.
fn json(value: &impl serde::Serialize) -> Result<String> {
    let is_read_by_people = std::io::stdout().is_terminal();
    let text =
        if is_read_by_people { serde_json::to_string_pretty(value)? } else { serde_json::to_string(value)? };
    Ok(text + "\n")
}

fn describe(report: &Report) -> String {
    let mut text = String::new();
    let mode = serde_json::to_value(report.mode).unwrap_or_default();
    let mode = mode.as_str().unwrap_or_default();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{}: {} pkey {:#06x} mode {mode} mtu {} (datagrams {}) pid {}\n    link/infiniband {}",
        report.name, report.device, report.pkey, report.mtu, report.datagram_mtu, report.pid, report.address
    );
    for one in &report.neighbours {
        let address = one.address.as_deref().unwrap_or("-");
        let _ = writeln!(text, "    neighbour {} lladdr {address} {}", one.ip, one.state);
    }
    for one in &report.connections {
        let _ = writeln!(text, "    connection to {} qp {:#08x} mtu {}", one.address, one.qpn, one.mtu);
    }
    for mgid in &report.groups {
        let _ = writeln!(text, "    group {mgid}");
    }
    let counters = serde_json::to_value(report.counters).unwrap_or_default();
    let counters = counters.as_object().into_iter().flatten();
    for (name, value) in counters.filter(|(_, value)| value.as_u64() != Some(0)) {
        let _ = writeln!(text, "    {name} {value}");
    }
    text
}
