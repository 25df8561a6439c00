//! `rxe doctor`: finds what prevents rxe, or one program, from working here, and what helps.

mod host;
mod program;

use crate::{Result, output};
use serde::Serialize;
use std::{
    ffi::{OsStr, OsString},
    fmt::Write,
};

/// Say what is in the way of rxe here, and what helps; with a program, also what is in the way of that
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// A program that is to run under `rxe run`
    #[arg(value_name = "PROGRAM")]
    program: Option<OsString>,
}

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// Everything is right.
    Good,
    /// Works, but may surprise or be slow.
    Note,
    /// Does not work.
    Bad,
    /// It could not be checked.
    Unknown,
}

/// One check.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    state: State,
    /// What was found.
    text: String,
    /// What helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    cure: Option<String>,
}

impl Finding {
    /// The result in one sentence.
    fn in_words(self) -> String {
        match self.cure {
            Some(cure) => format!("{}; {cure}", self.text),
            None => self.text,
        }
    }

    fn good(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, state: State::Good, text: text.into(), cure: None }
    }

    fn of(state: State, check: &'static str, text: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { check, state, text: text.into(), cure: Some(cure.into()) }
    }

    fn note(check: &'static str, text: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::of(State::Note, check, text, cure)
    }

    fn bad(check: &'static str, text: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::of(State::Bad, check, text, cure)
    }
}

/// What prevents a program from using our devices under `rxe run`, as text.
pub(crate) fn obstacles(program: &OsStr) -> Vec<String> {
    program::obstacles(program)
}

/// Libraries that must be loaded before ours.
pub(crate) fn first_libraries(program: &OsStr) -> Vec<String> {
    program::first_libraries(program)
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut findings = host::examine();
    if let Some(program) = &args.program {
        findings.extend(program::examine(program));
    }
    if args.json {
        output::json(&findings)?;
    } else {
        out!("{}", describe(&findings));
    }
    let bad = findings.iter().filter(|finding| finding.state == State::Bad).count();
    match bad {
        0 => Ok(()),
        1 => Err("one thing is in the way".into()),
        many => Err(format!("{many} things are in the way").into()),
    }
}

fn describe(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { check, state, text: found, cure } in findings {
        let mark = match state {
            State::Good => "ok  ",
            State::Note => "note",
            State::Bad => "BAD ",
            State::Unknown => "?   ",
        };
        let _ = writeln!(text, "{mark}  {check}: {found}");
        if let Some(cure) = cure {
            let _ = writeln!(text, "      -> {cure}");
        }
    }
    text
}
