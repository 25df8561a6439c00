//! The definition of a case: a rule that a device keeps or breaks, and the script that tests it.

use crate::{
    bench::Bench,
    dut::Feature,
    dut::Refusal,
    link::{LinkError, Unsent},
};
use serde::Serialize;
use std::borrow::Cow;

/// How strongly a rule binds (in the words of RFC 2119).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The specification requires it, or peers do not work without it.
    Must,
    /// The specification recommends it, and peers work better with it.
    Should,
    /// The specification leaves it to the device. A deviation is reported, but is never a failure.
    May,
}

/// Why a case did not pass.
#[derive(Clone, Debug)]
pub enum Fail {
    /// The device broke the rule.
    Broken(String),
    /// The case cannot be run here.
    Skip(String),
    /// The connection to the device is lost.
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

impl From<Unsent> for Fail {
    fn from(unsent: Unsent) -> Self {
        match unsent {
            Unsent::TooLong(why) => Self::Skip(why),
            Unsent::Link(error) => error.into(),
        }
    }
}

/// The result of a case, or of a part of one.
pub type Outcome<T = ()> = Result<T, Fail>;

/// Fails the case: the rule is broken, for this reason.
///
/// # Errors
/// Always.
pub fn broken<T>(why: impl Into<String>) -> Outcome<T> {
    Err(Fail::Broken(why.into()))
}

/// Fails the case unless `holds` is true.
///
/// # Errors
/// If `holds` is false.
pub fn check(holds: bool, why: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Fail::Broken(why())) }
}

/// Fails the case unless both values are equal. `what` names the value in the error message.
///
/// # Errors
/// If they are not equal.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, expected: T) -> Outcome {
    check(got == expected, || format!("{what} is {got:x?}, not {expected:x?}"))
}

/// The script of a case. The script of a family takes the number of the member as an argument.
#[derive(Clone, Copy)]
pub enum Script {
    /// The script of a single case.
    One(fn(&mut Bench) -> Outcome),
    /// The script of a member of a family.
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
    /// Its name, which begins with the theme: `RC.PSN.DUP.1`.
    pub id: Cow<'static, str>,
    /// How strongly its rule binds.
    pub level: Level,
    /// The rule in one line.
    pub rule: Cow<'static, str>,
    /// The source of the rule.
    pub source: &'static str,
    /// The features that the device and the link must have for it.
    pub needs: &'static [Feature],
    /// Whether `--quick` leaves it out because it takes long in real time.
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

/// A case for a rule that binds ("must").
#[must_use]
pub const fn must(
    id: &'static str,
    rule: &'static str,
    source: &'static str,
    run: fn(&mut Bench) -> Outcome,
) -> Case {
    case(id, Level::Must, rule, source, run)
}

/// A case for a rule that is recommended ("should").
#[must_use]
pub const fn should(
    id: &'static str,
    rule: &'static str,
    source: &'static str,
    run: fn(&mut Bench) -> Outcome,
) -> Case {
    case(id, Level::Should, rule, source, run)
}

/// A case for a rule that is left to the device ("may").
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
    /// The same case, run only if the device and the link have these features.
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

    /// A family of cases that differ in one number. For each number, `member` gives the last part of the case's id, and the
    /// text that replaces `{}` in the rule.
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
    /// The reason why it did not pass.
    pub fn run(&self, bench: &mut Bench) -> Outcome {
        match self.script {
            Script::One(run) => run(bench),
            Script::Of(number, run) => run(bench, number),
        }
    }
}

/// Members of a family that are named by their number alone: the number is the last part of the id, and appears in the rule.
pub fn numbered(numbers: impl IntoIterator<Item = u32>) -> Vec<(u32, String, String)> {
    numbers.into_iter().map(|number| (number, number.to_string(), number.to_string())).collect()
}

/// Members of a family: the number, the last part of the id, and the text for the rule.
pub fn named<'a>(list: impl IntoIterator<Item = (u32, &'a str, &'a str)>) -> Vec<(u32, String, String)> {
    list.into_iter().map(|(number, id, words)| (number, id.to_owned(), words.to_owned())).collect()
}

/// A script that is never run: the template of a family has no script.
///
/// # Errors
/// Always: it is not a case.
pub fn template(_: &mut Bench) -> Outcome {
    Err(Fail::Skip("a template".into()))
}
