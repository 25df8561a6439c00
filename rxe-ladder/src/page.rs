//! The ladder as one HTML page. The page contains the diagram as JSON, and draws only the visible rows, so that many thousand
//! rows scroll smoothly. Its script and its style are separate files here (`page/`), and are inserted unchanged.

use crate::{Fate, Field, Ladder, Step, text::Escaped};
use serde::Serialize;
use std::{
    collections::HashMap,
    fmt::{self, Display, Formatter},
};

const SCRIPT: &str = concat!(
    include_str!("page/model.js"),
    include_str!("page/draw.js"),
    include_str!("page/panel.js"),
    include_str!("page/main.js")
);
const STYLE: &str = include_str!("page/style.css");
const BODY: &str = include_str!("page/body.html");

/// A [`Ladder`] that is written as an HTML page by its `Display`.
#[derive(Debug)]
pub struct Page<'a>(&'a Ladder);

impl<'a> Page<'a> {
    pub(crate) const fn new(ladder: &'a Ladder) -> Self {
        Self(ladder)
    }
}

/// The data for the page's script. Texts are indices into `strings`, because rows share names and values.
#[derive(Serialize)]
struct Model<'a> {
    title: &'a str,
    notes: &'a [String],
    actors: Vec<[&'a str; 2]>,
    classes: Vec<ClassRow<'a>>,
    strings: Vec<&'a str>,
    steps: Vec<StepRow>,
}

#[derive(Serialize)]
struct ClassRow<'a> {
    name: &'a str,
    about: &'a str,
    hue: &'static str,
    notable: bool,
}

/// From, to, time of sending, time of arrival (or null), fate, label, pause before it (or null), classes, and the fields in
/// reading order. Each field is four numbers: name, value, note, and twice the number of inner fields (plus one if these are
/// folded).
#[derive(Serialize)]
struct StepRow(usize, usize, u64, Option<u64>, u8, usize, Option<u64>, Vec<usize>, Vec<usize>);

#[derive(Default)]
struct Strings<'a> {
    list: Vec<&'a str>,
    numbers: HashMap<&'a str, usize>,
}

impl<'a> Strings<'a> {
    fn number(&mut self, text: &'a str) -> usize {
        *self.numbers.entry(text).or_insert_with(|| {
            self.list.push(text);
            self.list.len() - 1
        })
    }

    fn fields(&mut self, fields: &'a [Field], out: &mut Vec<usize>) {
        for field in fields {
            let inside = 2 * field.inside.len() + usize::from(field.folded);
            let parts = [&field.name, &field.value, &field.note];
            out.extend(parts.map(|part| self.number(part)));
            out.push(inside);
            self.fields(&field.inside, out);
        }
    }

    fn step(&mut self, step: &'a Step, pause: Option<u64>) -> StepRow {
        let fate = match step.fate {
            Fate::Arrives => 0,
            Fate::Lost => 1,
            Fate::Unseen => 2,
        };
        let mut fields = Vec::new();
        self.fields(&step.fields, &mut fields);
        let classes = step.classes.iter().map(|class| class.0).collect();
        let label = self.number(&step.label);
        StepRow(step.from.0, step.to.0, step.sent, step.arrived, fate, label, pause, classes, fields)
    }
}

impl<'a> Model<'a> {
    fn new(ladder: &'a Ladder) -> Self {
        let mut strings = Strings::default();
        let rows = ladder.steps.iter().zip(ladder.pauses());
        let steps = rows.map(|(step, pause)| strings.step(step, pause)).collect();
        let class = |class: &'a crate::Class| ClassRow {
            name: &class.name,
            about: &class.about,
            hue: class.hue.name(),
            notable: class.notable,
        };
        Self {
            title: &ladder.title,
            notes: &ladder.notes,
            actors: ladder.actors.iter().map(|actor| [&*actor.name, &*actor.about]).collect(),
            classes: ladder.classes.iter().map(class).collect(),
            strings: strings.list,
            steps,
        }
    }
}

impl Display for Page<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let model = serde_json::to_string(&Model::new(self.0)).map_err(|_| fmt::Error)?;
        // Only this character can end a script element, and JSON has it only in strings.
        let model = model.replace('<', "\\u003c");
        let title = Escaped(&self.0.title);
        f.write_str("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n")?;
        // The page loads nothing, whatever the labels contain.
        f.write_str("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; ")?;
        f.write_str("style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n")?;
        f.write_str("<meta name=\"viewport\" content=\"width=device-width\">\n")?;
        writeln!(f, "<title>{title}</title>\n<style>\n{STYLE}</style></head>\n<body>\n{BODY}")?;
        writeln!(f, "<script type=\"application/json\" id=\"model\">{model}</script>")?;
        writeln!(f, "<script>\n'use strict';\n{SCRIPT}</script>\n</body></html>")
    }
}
