//! Mistakes in files, always with the line, and the word at which parsing stopped.

use core::fmt;

/// Why a file was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}{}: {reason}", At(token))]
pub struct FileError {
    /// The line, from 1.
    pub line: usize,
    /// The word at that place; empty at the end of the file.
    pub token: String,
    /// What is wrong, and what would be right.
    pub reason: String,
}

/// A warning: something that was perhaps meant in another way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The line, from 1; 0 if it is about the whole file.
    pub line: usize,
    /// The text of the warning.
    pub text: String,
}

/// Warnings about one file: the first ones, and the number of further ones, because a file may have one for each of its lines.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    list: Vec<Warning>,
    more: usize,
}

impl Warnings {
    /// Most warnings that are kept.
    const MOST: usize = 64;

    /// About a line; 0 for the whole file.
    pub(crate) fn push(&mut self, line: usize, text: impl Into<String>) {
        if self.list.len() < Self::MOST {
            self.list.push(Warning { line, text: text.into() });
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn into_list(mut self) -> Vec<Warning> {
        if self.more > 0 {
            self.list.push(Warning { line: 0, text: format!("and {} more like these", self.more) });
        }
        self.list
    }
}

impl FileError {
    pub(crate) fn new(line: usize, token: &str, reason: impl Into<String>) -> Self {
        // A hostile file must not cause a long message.
        const LONGEST: usize = 40;
        let mut token: String = token.trim().chars().take(LONGEST + 1).collect();
        if token.chars().count() > LONGEST {
            token.pop();
            token.push_str("...");
        }
        Self { line, token, reason: reason.into() }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.text),
            line => write!(f, "line {line}: {}", self.text),
        }
    }
}

struct At<'a>(&'a str);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ", at \"{}\"", self.0.escape_default()) }
    }
}
