//! The report as JSON: one object, whose field names are stable.

use super::{Report, fields, summary};
use crate::{
    bench::{Entry, What},
    run::Verdict,
    wire::Packet,
};
use serde_json::{Map, Value, json};

fn by_name(packet: &Packet) -> Map<String, Value> {
    fields(packet).into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
}

/// The log of a case, entry by entry.
fn log(entries: &[Entry]) -> Value {
    entries
        .iter()
        .map(|entry| {
            let at = entry.at.as_secs_f64();
            match &entry.what {
                What::Note(text) => json!({ "at": at, "note": text }),
                What::Instead(expected, _) => {
                    json!({ "at": at, "expected": summary(expected), "fields": by_name(expected) })
                }
                What::Sent(packet, _) | What::Got(packet, _) => {
                    let way = if matches!(entry.what, What::Sent(..)) { "to" } else { "from" };
                    json!({ "at": at, "device": way, "packet": summary(packet), "fields": by_name(packet) })
                }
            }
        })
        .collect()
}

/// The report. It contains packets only for cases that did not pass.
#[must_use]
pub fn json(report: &Report) -> Value {
    let cases: Vec<Value> = report
        .findings
        .iter()
        .map(|finding| {
            let mut value = json!(finding);
            if finding.verdict != Verdict::Pass
                && let Some(map) = value.as_object_mut()
            {
                map.insert("log".into(), log(&finding.log));
            }
            value
        })
        .collect();
    json!({
        "suite": "rxe-conform",
        "version": env!("CARGO_PKG_VERSION"),
        "device": report.about,
        "started": report.started,
        "seconds": report.seconds,
        "summary": report.tally(),
        "cases": cases,
    })
}
