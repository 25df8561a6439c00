//! A line of a page, with marks around what differs from run to run: ‹12›.

use regex::Regex;

/// A line as the page shows it.
pub(crate) struct Pattern(Regex);

impl Pattern {
    pub(crate) fn new(line: &str) -> Self {
        let mut pattern = String::from(r"^\s*");
        let mut rest = line.trim();
        while let Some((before, after)) = rest.split_once('‹') {
            let (value, after) = after.split_once('›').expect("the end of a mark");
            pattern += &literal(before);
            pattern += kind(value);
            rest = after;
        }
        pattern += &literal(rest);
        pattern += r"\s*$";
        Self(Regex::new(&pattern).unwrap())
    }

    pub(crate) fn fits(&self, printed: &str) -> bool {
        self.0.is_match(printed)
    }
}

/// Exactly this, but columns may be wider or narrower.
fn literal(text: &str) -> String {
    let mut pattern = String::new();
    for part in text.split_inclusive(char::is_whitespace) {
        let word = part.trim_end();
        pattern += &regex::escape(word);
        if word.len() < part.len() && !pattern.ends_with(r"\s+") {
            pattern += r"\s+";
        }
    }
    pattern
}

/// Anything of the same kind as the value that the page shows.
fn kind(value: &str) -> &'static str {
    let is_number =
        |text: &str| text.parse::<f64>().is_ok() && text.starts_with(|first: char| first.is_ascii_digit());
    let all = |text: &str, of: fn(&u8) -> bool| !text.is_empty() && text.bytes().all(|byte| of(&byte));
    match value.split_once(' ') {
        Some((number, "ns" | "us" | "ms" | "s")) if is_number(number) => r"[0-9]+(\.[0-9]+)? (ns|us|ms|s)",
        Some(_) => ".+",
        None if all(value, u8::is_ascii_digit) => "[0-9]+",
        None if value.strip_prefix("0x").is_some_and(|digits| all(digits, u8::is_ascii_hexdigit)) => {
            "0x[0-9a-f]+"
        }
        None if all(value, u8::is_ascii_hexdigit) => "[0-9a-f]+",
        None if is_number(value) => r"[0-9]+(\.[0-9]+)?",
        None => r"\S+",
    }
}
