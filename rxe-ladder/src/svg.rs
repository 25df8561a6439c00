//! The ladder as an image: a column for each actor, a row for each step, a legend above.

use crate::{
    Class, Fate, Field, Hue, Ladder, Step,
    text::{Escaped, duration, moment},
};
use std::fmt::{self, Display, Formatter};

/// Left of the first column: times.
const GUTTER: usize = 110;
/// Between two columns.
const COLUMN: usize = 380;
/// Right of the last column.
const EDGE: usize = 150;
const ROW: usize = 26;
/// Additional height of a pause.
const PAUSE: usize = 22;
const LINE: usize = 18;
/// The title's and the actors' heights.
const TITLE: usize = 34;
const HEADS: usize = 52;
/// Width of a letter of a label. Labels that do not fit are truncated.
const LETTER: usize = 7;
/// Longest tooltip.
const TOOLTIP_LINES: usize = 60;

/// A [`Ladder`] that is written as SVG by its `Display`.
#[derive(Debug)]
pub struct Svg<'a>(&'a Ladder);

impl<'a> Svg<'a> {
    pub(crate) const fn new(ladder: &'a Ladder) -> Self {
        Self(ladder)
    }

    fn x(actor: usize) -> usize {
        GUTTER + COLUMN / 4 + actor * COLUMN
    }

    fn width(&self) -> usize {
        Self::x(self.0.actors.len().max(2) - 1) + EDGE
    }

    /// The classes that steps have.
    fn classes(&self) -> Vec<&'a Class> {
        let used = |at: usize| self.0.steps.iter().any(|step| step.classes.iter().any(|class| class.0 == at));
        self.0.classes.iter().enumerate().filter(|(at, _)| used(*at)).map(|(_, class)| class).collect()
    }

    /// The position of the actors' names.
    fn heads(&self) -> usize {
        TITLE + LINE * (self.0.notes.len() + self.classes().len().div_ceil(4)) + 10
    }

    fn legend(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (notes, classes) = (&self.0.notes, self.classes());
        for (at, note) in notes.iter().enumerate() {
            writeln!(f, "<text x=\"16\" y=\"{}\">{}</text>", TITLE + LINE * at + 14, Escaped(note))?;
        }
        let (top, part) = (TITLE + LINE * notes.len() + 14, (self.width() - 32) / 4);
        for (at, class) in classes.iter().enumerate() {
            let (x, y) = (16 + part * (at % 4), top + LINE * (at / 4));
            let colour = class.hue.colour();
            write!(f, "<g><title>{}</title>", Escaped(&class.about))?;
            write!(f, "<rect x=\"{x}\" y=\"{}\" width=\"18\" height=\"4\" fill=\"{colour}\"/>", y - 6)?;
            writeln!(f, "<text x=\"{}\" y=\"{y}\">{}</text></g>", x + 24, Escaped(&class.name))?;
        }
        Ok(())
    }

    fn actors(&self, f: &mut Formatter<'_>, bottom: usize) -> fmt::Result {
        let top = self.heads();
        for (at, actor) in self.0.actors.iter().enumerate() {
            let x = Self::x(at);
            let about = cut(&actor.about, COLUMN - 20);
            write!(f, "<text class=\"actor\" x=\"{x}\" y=\"{}\">", top + 18)?;
            write!(f, "{}</text>", Escaped(&cut(&actor.name, COLUMN - 20)))?;
            write!(f, "<text class=\"mid\" x=\"{x}\" y=\"{}\">{}</text>", top + 36, Escaped(&about))?;
            writeln!(f, "<path class=\"life\" d=\"M{x} {}V{bottom}\"/>", top + HEADS - 8)?;
        }
        Ok(())
    }

    fn step(&self, f: &mut Formatter<'_>, step: &Step, y: usize) -> fmt::Result {
        let hue = self.0.hue(step);
        write!(f, "<g class=\"{}\"><title>", hue.name())?;
        tooltip(f, step)?;
        write!(
            f,
            "</title><text class=\"time\" x=\"{}\" y=\"{}\">{}</text>",
            GUTTER - 14,
            y + 4,
            moment(step.sent)
        )?;
        let (from, to) = (Self::x(step.from.0), Self::x(step.to.0));
        if step.is_event() {
            write!(f, "<circle cx=\"{from}\" cy=\"{y}\" r=\"4\"/>")?;
            let label = cut(&step.label, self.width() - from - 20);
            return writeln!(f, "<text x=\"{}\" y=\"{}\">{}</text></g>", from + 12, y + 4, Escaped(&label));
        }
        let slope = if step.arrived.is_some() { ROW / 3 } else { 0 };
        let end = y + slope;
        let (kind, reach) = match step.fate {
            Fate::Arrives => ("way", to),
            Fate::Lost => ("way", (from + 2 * to) / 3),
            Fate::Unseen => ("way unseen", to),
        };
        let end = if step.fate == Fate::Lost { y + slope * 2 / 3 } else { end };
        write!(f, "<path class=\"{kind}\" d=\"M{from} {y}L{reach} {end}")?;
        if step.fate == Fate::Lost {
            let (l, r, t, b) = (reach - 6, reach + 6, end.saturating_sub(6), end + 6);
            write!(f, "M{l} {t}L{r} {b}M{l} {b}L{r} {t}\"/>")?;
        } else {
            let back = if to > from { to - 9 } else { to + 9 };
            write!(f, "M{back} {}L{to} {end}L{back} {}\"/>", end - 4, end + 4)?;
        }
        let label = cut(&step.label, from.abs_diff(to) - 30);
        writeln!(
            f,
            "<text class=\"mid\" x=\"{}\" y=\"{}\">{}</text></g>",
            from.midpoint(to),
            y - 4,
            Escaped(&label)
        )
    }
}

impl Display for Svg<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let pauses = self.0.pauses();
        let told = pauses.iter().flatten().count();
        let (width, top) = (self.width(), self.heads() + HEADS);
        let bottom = top + ROW * self.0.steps.len() + PAUSE * told + ROW;
        write!(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {}\" ", bottom + 8)?;
        writeln!(f, "width=\"{width}\" height=\"{}\">", bottom + 8)?;
        styles(f)?;
        writeln!(f, "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>")?;
        writeln!(f, "<text class=\"title\" x=\"16\" y=\"26\">{}</text>", Escaped(&self.0.title))?;
        self.legend(f)?;
        self.actors(f, bottom)?;
        let mut y = top + ROW / 2;
        for (step, pause) in self.0.steps.iter().zip(pauses) {
            if let Some(pause) = pause {
                y += PAUSE;
                let line = y - PAUSE / 2 - ROW / 2;
                write!(f, "<path class=\"pause\" d=\"M{GUTTER} {line}H{}\"/>", width - 16)?;
                let words = duration(pause);
                writeln!(
                    f,
                    "<text class=\"time\" x=\"{}\" y=\"{}\">{words} later</text>",
                    GUTTER - 6,
                    line + 4
                )?;
            }
            self.step(f, step, y)?;
            y += ROW;
        }
        writeln!(f, "</svg>")
    }
}

fn styles(f: &mut Formatter<'_>) -> fmt::Result {
    f.write_str("<style>text{font:12px system-ui,sans-serif;fill:#1f2328}.mid,.actor{text-anchor:middle}")?;
    f.write_str(".actor{font-weight:600;font-size:14px}.title{font-weight:600;font-size:17px}")?;
    f.write_str(".time{text-anchor:end;font:11px ui-monospace,monospace;fill:#57606a}")?;
    f.write_str("path{fill:none}.way{stroke-width:1.6}.unseen{stroke-dasharray:2 4}")?;
    f.write_str(".life{stroke:#8c959f}.pause{stroke:#afb8c1;stroke-dasharray:6 6}")?;
    for hue in [Hue::Grey, Hue::Blue, Hue::Green, Hue::Violet, Hue::Teal, Hue::Orange, Hue::Red] {
        let (name, colour) = (hue.name(), hue.colour());
        write!(f, ".{name} .way{{stroke:{colour}}}.{name} circle,.{name} text:not(.time){{fill:{colour}}}")?;
    }
    f.write_str("</style>\n")
}

/// The label and the fields, one line each.
fn tooltip(f: &mut Formatter<'_>, step: &Step) -> fmt::Result {
    write!(f, "{}", Escaped(&step.label))?;
    let mut lines = Vec::new();
    flatten(&step.fields, 0, &mut lines);
    for line in &lines {
        write!(f, "\n{}", Escaped(line))?;
    }
    Ok(())
}

fn flatten(fields: &[Field], depth: usize, lines: &mut Vec<String>) {
    for field in fields {
        if lines.len() == TOOLTIP_LINES {
            return;
        }
        let note = if field.note.is_empty() { String::new() } else { format!(" ({})", field.note) };
        let line = format!("{:depth$}{} {}{note}", "", field.name, field.value, depth = 2 * depth);
        lines.push(line);
        flatten(&field.inside, depth + 1, lines);
    }
}

/// The part of a text that fits into so many pixels, with an ellipsis if it is truncated.
fn cut(text: &str, pixels: usize) -> String {
    let most = pixels / LETTER;
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['\u{2026}']).collect()
}
