//! A packet as a tree of named fields, from the outermost header on, for people (`-v`, the ladder) and for programs (`--json`).

mod cm;
mod headers;

pub use headers::fields;

use serde_json::{Map, Value as Json};
use std::net::IpAddr;

/// The value of a field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// No value, only inner fields.
    None,
    /// Yes or no.
    Flag(bool),
    /// A number for calculations, in decimal.
    Count(u64),
    /// A number for comparisons, with this many hexadecimal digits.
    Number(u64, u8),
    /// An address.
    Address(IpAddr),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

/// A named value, what it means, and fields inside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// The name in the specification, in lower case.
    pub name: &'static str,
    /// The value.
    pub value: Value,
    /// The meaning of the value; empty if the value is clear.
    pub note: String,
    /// Inner fields.
    pub inside: Vec<Self>,
}

impl Field {
    pub(crate) const fn new(name: &'static str, value: Value) -> Self {
        Self { name, value, note: String::new(), inside: Vec::new() }
    }

    pub(crate) const fn group(name: &'static str, inside: Vec<Self>) -> Self {
        Self { name, value: Value::None, note: String::new(), inside }
    }

    pub(crate) const fn count(name: &'static str, value: u64) -> Self {
        Self::new(name, Value::Count(value))
    }

    pub(crate) const fn number(name: &'static str, value: u64, digits: u8) -> Self {
        Self::new(name, Value::Number(value, digits))
    }

    pub(crate) const fn flag(name: &'static str, value: bool) -> Self {
        Self::new(name, Value::Flag(value))
    }

    pub(crate) fn text(name: &'static str, value: impl Into<String>) -> Self {
        Self::new(name, Value::Text(value.into()))
    }

    pub(crate) fn note(mut self, text: impl Into<String>) -> Self {
        self.note = text.into();
        self
    }

    /// The value for people.
    #[must_use]
    pub fn shown(&self) -> String {
        match &self.value {
            Value::None => String::new(),
            Value::Flag(set) => if *set { "yes" } else { "no" }.to_owned(),
            Value::Count(value) => value.to_string(),
            Value::Number(value, digits) => format!("{value:#0width$x}", width = usize::from(*digits) + 2),
            Value::Address(address) => address.to_string(),
            Value::Text(text) => text.clone(),
            Value::Bytes(bytes) => hex(bytes),
        }
    }

    /// The value for programs: numbers as numbers, bytes as hexadecimal digits, groups as objects.
    #[must_use]
    pub fn json(&self) -> Json {
        match &self.value {
            Value::None => object(&self.inside),
            Value::Flag(set) => (*set).into(),
            Value::Count(value) | Value::Number(value, _) => (*value).into(),
            Value::Address(address) => address.to_string().into(),
            Value::Text(text) => text.clone().into(),
            Value::Bytes(bytes) => hex(bytes).into(),
        }
    }

    /// The field for a ladder.
    #[must_use]
    pub fn drawn(&self) -> rxe_ladder::Field {
        let mut field = rxe_ladder::Field::new(self.name, self.shown()).note(self.note.clone());
        field.extend(self.inside.iter().map(Self::drawn));
        // The fields of lower layers are seldom of interest.
        if matches!(self.name, "frame" | "primary" | "alternate") { field.folded() } else { field }
    }

    /// Lines of text, two spaces deeper for what is inside.
    pub fn lines(&self, depth: usize, out: &mut Vec<String>) {
        let note = if self.note.is_empty() { String::new() } else { format!("  ({})", self.note) };
        out.push(
            format!("{:depth$}{} {}{note}", "", self.name, self.shown(), depth = 2 * depth)
                .trim_end()
                .to_owned(),
        );
        for field in &self.inside {
            field.lines(depth + 1, out);
        }
    }
}

/// Fields as an object.
#[must_use]
pub fn object(fields: &[Field]) -> Json {
    let pairs = fields.iter().map(|field| (field.name.to_owned(), field.json()));
    Json::Object(pairs.collect::<Map<_, _>>())
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
