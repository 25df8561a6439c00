//! Reports: for people, for machines, for CI systems.

pub mod capture;
pub mod html;
pub mod json;
pub mod junit;
pub mod markdown;

use crate::{
    dut::About,
    run::{Finding, Tally, tally},
    wire::{Packet, cm::Message},
};

/// Name and value of every field of a packet, and of the connection manager's message in it, if any.
fn fields(packet: &Packet) -> Vec<(&'static str, String)> {
    let message = Message::of(packet).map(|message| message.fields()).unwrap_or_default();
    packet.fields().into_iter().chain(message).collect()
}

/// A packet in one line.
fn summary(packet: &Packet) -> String {
    Message::of(packet).map_or_else(|| packet.summary(), |message| message.summary())
}

/// A whole run.
#[derive(Debug)]
pub struct Report {
    /// The device.
    pub about: About,
    /// The start time, in seconds since 1970.
    pub started: u64,
    /// The duration in seconds.
    pub seconds: f64,
    /// The result of each case, in the order in which the cases ran.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The number of findings of each verdict.
    #[must_use]
    pub fn tally(&self) -> Tally {
        tally(&self.findings)
    }

    /// The themes in the order of the run: the name, and the number of findings of each verdict.
    #[must_use]
    pub fn themes(&self) -> Vec<(String, Tally)> {
        let mut names: Vec<&str> = Vec::new();
        for finding in &self.findings {
            if !names.contains(&finding.theme.as_str()) {
                names.push(&finding.theme);
            }
        }
        names
            .into_iter()
            .map(|name| {
                (name.to_owned(), tally(self.findings.iter().filter(|finding| finding.theme == name)))
            })
            .collect()
    }
}

/// The summary in one line.
#[must_use]
pub fn line(tally: &Tally) -> String {
    let mut parts = vec![format!("{} passed", tally.pass)];
    for (count, what) in [
        (tally.fail_must, "failed (must)"),
        (tally.fail_should, "failed (should)"),
        (tally.known, "known differences"),
        (tally.mended, "differences that are gone"),
        (tally.told, "left to the device"),
        (tally.skip, "skipped"),
        (tally.gone, "not run: the device was gone"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    parts.join(", ")
}
