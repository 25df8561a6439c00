//! Showing packets and summaries: as lines of text, as JSON, as a ladder.

pub mod ladder;
pub mod line;
pub mod text;

use crate::{
    fields::{fields, object},
    flow::{Marks, Remark},
    packet::Packet,
};
use serde_json::{Value, json};

/// A packet as JSON: its number and time, a label, all fields, and what is remarkable.
#[must_use]
pub fn json(packet: &Packet<'_>, remark: &Remark) -> Value {
    json!({
        "number": packet.number,
        "part": packet.part,
        "time_ns": packet.time,
        "label": packet.label(),
        "marks": remark.marks.words().collect::<Vec<_>>(),
        "why": remark.why,
        "fields": object(&fields(packet)),
    })
}

/// The words of marks that are shown in a line.
fn told(marks: Marks) -> String {
    (marks - Marks::CM - Marks::NAK - Marks::RNR).words().collect::<Vec<_>>().join(", ")
}
