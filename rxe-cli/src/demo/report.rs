//! The output of the demonstration: a line for each check as soon as it is done, or one JSON object at the end.

use crate::{
    Result,
    measure::{Rate, Times},
    output,
};
use serde::Serialize;
use std::{path::Path, time::Duration};

/// A line of the table.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Row {
    Rate { name: String, rate: Rate },
    Times { name: String, times: Times },
}

#[derive(Debug, Serialize)]
struct Check {
    service: &'static str,
    operation: &'static str,
    passed: bool,
    detail: String,
}

/// The results so far.
#[derive(Debug)]
pub(super) struct Report {
    json: bool,
    checks: Vec<Check>,
    rows: Vec<Row>,
}

impl Report {
    pub(super) const fn new(json: bool) -> Self {
        Self { json, checks: Vec::new(), rows: Vec::new() }
    }

    pub(super) fn title(&self, text: &str) {
        if !self.json {
            outln!("rxe demo: {text}\n");
        }
    }

    pub(super) fn check(&mut self, service: &'static str, operation: &'static str, result: Result<String>) {
        let passed = result.is_ok();
        let detail = result.unwrap_or_else(|error| error.to_string());
        if !self.json {
            let word = if passed { "ok" } else { "FAILED" };
            outln!("  {service:<4} {operation:<28} {word:<6} {detail}");
        }
        self.checks.push(Check { service, operation, passed, detail });
    }

    pub(super) fn row(&mut self, row: Row) {
        if !self.json {
            let first_time = !self.rows.iter().any(|row| matches!(row, Row::Times { .. }));
            match &row {
                Row::Rate { name, rate } => {
                    if self.rows.is_empty() {
                        outln!("\n  {:<28} {:>12} {:>14}", "bandwidth", "Gbit/s", "messages/s");
                    }
                    let per_second = rate.messages as f64 / rate.seconds;
                    outln!("  {name:<28} {:>12.2} {per_second:>14.0}", rate.gbit());
                }
                Row::Times { name, times } => {
                    if first_time {
                        outln!("\n  {:<28} {:>12} {:>14}", "latency, one way", "median us", "99 % us");
                    }
                    outln!("  {name:<28} {:>12.2} {:>14.2}", times.median_usec, times.p99_usec);
                }
            }
        }
        self.rows.push(row);
    }

    /// Whether all checks were made and were right.
    pub(super) fn passed(&self) -> bool {
        self.checks.len() == super::checks::ALL.len() && self.checks.iter().all(|check| check.passed)
    }

    pub(super) fn finish(&self, pcap: &Path, packets: u64, time: Duration) -> Result<()> {
        let (passed, done, all) = (self.passed(), self.checks.len(), super::checks::ALL.len());
        let seconds = time.as_secs_f64();
        if self.json {
            // A name may be no UTF-8, which JSON cannot hold.
            let path = pcap.to_string_lossy();
            let json = serde_json::json!({
                "passed": passed, "checks": self.checks, "measurements": self.rows,
                "capture": { "path": path, "packets": packets }, "seconds": seconds,
            });
            output::json(&json)?;
        } else {
            outln!("\n  capture: {} ({packets} packets; Wireshark and tshark read it)", pcap.display());
        }
        if !passed {
            return Err(format!(
                "not everything was right: {done} of {all} checks were made, the last one failed"
            )
            .into());
        }
        if !self.json {
            outln!("  all {all} checks passed, every byte compared, in {seconds:.1} s");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    #[test]
    fn a_capture_may_have_any_name() {
        let name = Path::new(OsStr::from_bytes(b"/tmp/\xff.pcapng"));
        for json in [true, false] {
            let finished = Report::new(json).finish(name, 0, Duration::ZERO);
            assert!(finished.unwrap_err().to_string().contains("0 of"), "no check was made");
        }
    }
}
