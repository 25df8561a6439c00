//! What a case is: a rule that a device keeps or breaks, and the script that finds out.

use crate::{bench::Bench, dut::Feature, dut::Refusal, link::LinkError};
use serde::Serialize;
use std::borrow::Cow;

/// How much a rule binds (RFC 2119's words).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The specification demands it, or peers do not work without it.
    Must,
    /// Peers work better with it, and the specification asks for it.
    Should,
    /// Left to the device: told, and never a failure.
    May,
}

/// Why a case did not pass.
#[derive(Clone, Debug)]
pub enum Fail {
    /// The device broke the rule.
    Broken(String),
    /// The case cannot be run here.
    Skip(String),
    /// Nobody can talk to the device any more.
    Gone(String),
}

impl From<Refusal> for Fail {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Refused { .. } => Self::Broken(format!("the device refused a call: {refusal}")),
            Refusal::Gone(_) => Self::Gone(refusal.to_string()),
            Refusal::Lacks(_) => Self::Skip(refusal.to_string()),
        }
    }
}

impl From<LinkError> for Fail {
    fn from(error: LinkError) -> Self {
        Self::Gone(error.to_string())
    }
}

/// What running a case, or a part of it, gave.
pub type Outcome<T = ()> = Result<T, Fail>;

/// The rule is broken, for this reason.
///
/// # Errors
/// Always.
pub fn broken<T>(why: impl Into<String>) -> Outcome<T> {
    Err(Fail::Broken(why.into()))
}

/// The rule is broken unless `holds`.
///
/// # Errors
/// If it does not hold.
pub fn check(holds: bool, why: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Fail::Broken(why())) }
}

/// The rule is broken unless both are the same; `what` says of what.
///
/// # Errors
/// If they differ.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, expected: T) -> Outcome {
    check(got == expected, || format!("{what} is {got:x?}, not {expected:x?}"))
}

/// The script of a case; those of a family are told which member they are.
#[derive(Clone, Copy)]
pub enum Script {
    /// A case of its own.
    One(fn(&mut Bench) -> Outcome),
    /// A member of a family.
    Of(u32, fn(&mut Bench, u32) -> Outcome),
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("script")
    }
}

/// A case.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name, theme first: `RC.PSN.DUP.1`.
    pub id: Cow<'static, str>,
    /// How much its rule binds.
    pub level: Level,
    /// The rule in one line.
    pub rule: Cow<'static, str>,
    /// Where the rule comes from.
    pub source: &'static str,
    /// What the device and the link must have for it.
    pub needs: &'static [Feature],
    /// Left out by `--quick`: it takes long on real time.
    pub slow: bool,
    /// The script.
    pub script: Script,
}

const fn case(
    id: &'static str,
    level: Level,
    rule: &'static str,
    source: &'static str,
    run: fn(&mut Bench) -> Outcome,
) -> Case {
    let (id, rule) = (Cow::Borrowed(id), Cow::Borrowed(rule));
    Case { id, level, rule, source, needs: &[], slow: false, script: Script::One(run) }
}

/// A case whose rule binds.
#[must_use]
pub const fn must(
    id: &'static str,
    rule: &'static str,
    source: &'static str,
    run: fn(&mut Bench) -> Outcome,
) -> Case {
    case(id, Level::Must, rule, source, run)
}

/// A case whose rule is asked for.
#[must_use]
pub const fn should(
    id: &'static str,
    rule: &'static str,
    source: &'static str,
    run: fn(&mut Bench) -> Outcome,
) -> Case {
    case(id, Level::Should, rule, source, run)
}

/// A case about what is left to the device.
#[must_use]
pub const fn may(
    id: &'static str,
    rule: &'static str,
    source: &'static str,
    run: fn(&mut Bench) -> Outcome,
) -> Case {
    case(id, Level::May, rule, source, run)
}

impl Case {
    /// The same case, run only where these are.
    #[must_use]
    pub const fn needs(mut self, needs: &'static [Feature]) -> Self {
        self.needs = needs;
        self
    }

    /// The same case, left out by `--quick`.
    #[must_use]
    pub const fn slow(mut self) -> Self {
        self.slow = true;
        self
    }

    /// A family of cases that differ in one number. `member` gives a number its last part of the id and its words, which
    /// stand in for `{}` in the rule.
    pub fn family<'a>(
        &'a self,
        members: impl IntoIterator<Item = (u32, String, String)> + 'a,
        run: fn(&mut Bench, u32) -> Outcome,
    ) -> impl Iterator<Item = Self> + 'a {
        members.into_iter().map(move |(number, last, words)| Self {
            id: Cow::Owned(format!("{}.{last}", self.id)),
            rule: Cow::Owned(self.rule.replace("{}", &words)),
            script: Script::Of(number, run),
            ..self.clone()
        })
    }

    /// Its theme: the id without its last part.
    #[must_use]
    pub fn theme(&self) -> &str {
        self.id.rsplit_once('.').map_or(&self.id, |(theme, _)| theme)
    }

    /// Runs it.
    ///
    /// # Errors
    /// Why it did not pass.
    pub fn run(&self, bench: &mut Bench) -> Outcome {
        match self.script {
            Script::One(run) => run(bench),
            Script::Of(number, run) => run(bench, number),
        }
    }
}

/// Members of a family that are known by their number alone: it is the last part of the id, and stands in the rule.
pub fn numbered(numbers: impl IntoIterator<Item = u32>) -> Vec<(u32, String, String)> {
    numbers.into_iter().map(|number| (number, number.to_string(), number.to_string())).collect()
}

/// Members of a family: number, last part of the id, words for the rule.
pub fn named<'a>(list: impl IntoIterator<Item = (u32, &'a str, &'a str)>) -> Vec<(u32, String, String)> {
    list.into_iter().map(|(number, id, words)| (number, id.to_owned(), words.to_owned())).collect()
}

/// A script that never runs: the template of a family has none of its own.
///
/// # Errors
/// Always: it is not a case.
pub fn template(_: &mut Bench) -> Outcome {
    Err(Fail::Skip("a template".into()))
}
