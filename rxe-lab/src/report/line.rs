//! A packet in one line, and its fields below it.

use super::told;
use crate::{
    fields::fields,
    flow::{Marks, Remark},
    packet::Packet,
};
use anstyle::{AnsiColor, Style};
use std::fmt::Write;

/// How lines are shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// With colours.
    pub colours: bool,
    /// With all fields below each line.
    pub fields: bool,
}

/// The line of a packet. `start` is the time of the first frame.
#[must_use]
pub fn line(packet: &Packet<'_>, remark: &Remark, start: u64, look: Look) -> String {
    let (src, dst) = packet.addresses();
    let part = if packet.part > 0 { format!(".{}", packet.part) } else { String::new() };
    let number = format!("{}{part}", packet.number);
    let time = rxe_ladder::moment(packet.time.saturating_sub(start));
    let style = if look.colours { style(remark.marks) } else { Style::new() };
    let mut text = format!("{number:>7} {time:>12} {src} > {dst} {style}{}{style:#}", packet.label());
    let words = told(remark.marks);
    if !words.is_empty() || remark.why.is_some() {
        let why = remark.why.as_deref().unwrap_or_default();
        let colon = if words.is_empty() || why.is_empty() { "" } else { ": " };
        let _ = write!(text, " {style}[{words}{colon}{why}]{style:#}");
    }
    if look.fields {
        let mut lines = Vec::new();
        for field in fields(packet) {
            field.lines(4, &mut lines);
        }
        for line in lines {
            text.push('\n');
            text.push_str(&line);
        }
    }
    text
}

fn style(marks: Marks) -> Style {
    let red = Marks::LOST | Marks::BAD_ICRC | Marks::UNREADABLE | Marks::GAP;
    let yellow = Marks::NOTABLE - red;
    if marks.intersects(red) {
        AnsiColor::Red.on_default()
    } else if marks.intersects(yellow) {
        AnsiColor::Yellow.on_default()
    } else if marks.contains(Marks::CM) {
        AnsiColor::Cyan.on_default()
    } else {
        Style::new()
    }
}
