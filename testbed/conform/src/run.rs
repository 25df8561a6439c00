//! Runs cases on a bench, and determines the result of each.

use crate::{
    bench::{Bench, Entry, What},
    case::{Case, Fail, Level, Outcome},
    laws::{Evidence, LAWS, Laws},
};
use serde::{Deserialize, Serialize};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

/// The result of a case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The rule is kept.
    Pass,
    /// The rule is broken.
    Fail,
    /// The rule is broken, and the list of known differences of this device says so.
    Known,
    /// The rule is kept, although the list of known differences says otherwise: the list is out of date.
    Mended,
    /// The device does not follow a rule that is left to it.
    Told,
    /// Not run, because a requirement is missing.
    Skip,
    /// The connection to the device was lost before or while the case ran.
    Gone,
}

/// A case and its result.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The case's name.
    pub id: String,
    /// Its theme.
    pub theme: String,
    /// How strongly its rule binds.
    pub level: Level,
    /// The rule.
    pub rule: String,
    /// The source of the rule.
    pub source: String,
    /// The result.
    pub verdict: Verdict,
    /// The reason, unless the rule is kept.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// The wall-clock time that it took, in seconds.
    pub seconds: f64,
    /// The log of the case.
    #[serde(skip)]
    pub log: Vec<Entry>,
}

/// A known deviation of a device.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// The id of the case. `RC.RNR.*` stands for all cases whose id begins with `RC.RNR.`.
    pub id: String,
    /// A description of the deviation.
    pub why: String,
    /// Whether it shows only sometimes. If it does not show, the list does not count as out of date.
    #[serde(default)]
    pub sometimes: bool,
}

/// The list of a device's known deviations.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Differences {
    /// Each of them.
    #[serde(default)]
    pub difference: Vec<Difference>,
}

impl Differences {
    /// Reads a list in TOML.
    ///
    /// # Errors
    /// The error in the list, and its place.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    fn of(&self, id: &str) -> Option<&Difference> {
        self.difference.iter().find(|known| match known.id.strip_suffix('*') {
            Some(start) => id.starts_with(start),
            None => known.id == id,
        })
    }
}

/// The number of findings of each verdict.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "named as the verdicts are")]
pub struct Tally {
    pub pass: usize,
    /// Binding rules ("must") that are broken.
    pub fail_must: usize,
    /// Recommended rules ("should") that are broken.
    pub fail_should: usize,
    pub known: usize,
    pub mended: usize,
    pub told: usize,
    pub skip: usize,
    pub gone: usize,
}

/// Counts findings.
#[must_use]
pub fn tally<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Tally {
    let mut tally = Tally::default();
    for finding in findings {
        *match finding.verdict {
            Verdict::Pass => &mut tally.pass,
            Verdict::Fail if finding.level == Level::Must => &mut tally.fail_must,
            Verdict::Fail => &mut tally.fail_should,
            Verdict::Known => &mut tally.known,
            Verdict::Mended => &mut tally.mended,
            Verdict::Told => &mut tally.told,
            Verdict::Skip => &mut tally.skip,
            Verdict::Gone => &mut tally.gone,
        } += 1;
    }
    tally
}

fn finding(case: &Case, seconds: f64) -> Finding {
    Finding {
        id: case.id.to_string(),
        theme: case.theme().to_owned(),
        level: case.level,
        rule: case.rule.to_string(),
        source: case.source.to_owned(),
        verdict: Verdict::Pass,
        why: String::new(),
        seconds,
        log: Vec::new(),
    }
}

/// Applies the list of known differences to a finding.
#[must_use]
pub fn weigh(mut finding: Finding, differences: &Differences) -> Finding {
    match (finding.verdict, differences.of(&finding.id)) {
        (Verdict::Fail, Some(known)) => {
            finding.verdict = Verdict::Known;
            finding.why = format!("{} [known: {}]", finding.why, known.why);
        }
        (Verdict::Fail, None) if finding.level == Level::May => finding.verdict = Verdict::Told,
        // A whole family may be listed even if some of its members pass.
        (Verdict::Pass, Some(known)) if !known.id.ends_with('*') && !known.sometimes => {
            finding.verdict = Verdict::Mended;
            finding.why = format!("passes, but is listed as a difference: {}", known.why);
        }
        _ => {}
    }
    finding
}

/// Runs one case. A panic of the device or of the script counts as a failure.
fn play(case: &Case, bench: &mut Bench) -> Outcome {
    let lacking = case.needs.iter().find(|feature| !bench.has(**feature));
    if let Some(feature) = lacking {
        return Err(Fail::Skip(format!("needs {feature:?}, which is not here")));
    }
    let run = AssertUnwindSafe(|| {
        bench.clear()?;
        bench.world.borrow_mut().case = case.id.to_string();
        case.run(bench)
    });
    catch_unwind(run).unwrap_or_else(|panic| {
        let words = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
        Err(Fail::Broken(format!("panic: {}", words.unwrap_or_default())))
    })
}

/// Runs the cases in order, and calls `watch` before and after each. If the connection to the device is lost, the remaining
/// cases are not run, but are still listed. So the report is complete.
pub fn run(
    bench: &mut Bench,
    cases: &[Case],
    differences: &Differences,
    mut watch: impl FnMut(&Case, Option<&Finding>),
) -> Vec<Finding> {
    let mut findings = Vec::with_capacity(cases.len() + LAWS.len());
    let mut gone: Option<String> = None;
    for case in cases {
        watch(case, None);
        let start = Instant::now();
        let outcome = match &gone {
            Some(why) => Err(Fail::Gone(why.clone())),
            None => {
                // The expected packet may well never arrive if the rule is left to the device, or is listed as a known
                // difference.
                let hurried = case.level == Level::May || differences.of(&case.id).is_some();
                bench.world.borrow_mut().hurry(hurried);
                play(case, bench)
            }
        };
        let mut finding = finding(case, start.elapsed().as_secs_f64());
        match outcome {
            Ok(()) => {}
            Err(Fail::Broken(why)) => (finding.verdict, finding.why) = (Verdict::Fail, why),
            Err(Fail::Skip(why)) => (finding.verdict, finding.why) = (Verdict::Skip, why),
            Err(Fail::Gone(why)) => {
                (finding.verdict, finding.why) = (Verdict::Gone, why.clone());
                gone = Some(why);
            }
        }
        if !matches!(finding.verdict, Verdict::Skip | Verdict::Gone) {
            finding.log = bench.world.borrow().log.clone();
        }
        let finding = weigh(finding, differences);
        watch(case, Some(&finding));
        findings.push(finding);
    }
    findings
        .extend(judged(&bench.world.borrow().laws).into_iter().map(|finding| weigh(finding, differences)));
    findings
}

/// The log of a law that was broken: in which case, and the packet.
fn evidence(first: Evidence) -> Vec<Entry> {
    let at = first.at;
    let note = (!first.case.is_empty()).then(|| What::Note(format!("seen in {}", first.case)));
    note.into_iter().chain([What::Got(first.packet, first.bytes)]).map(|what| Entry { at, what }).collect()
}

/// The findings for the laws of form, which are decided by all packets of the run.
#[must_use]
pub fn judged(laws: &Laws) -> Vec<Finding> {
    LAWS.iter()
        .map(|&(words, id, level, source)| {
            let law = laws.found(words);
            let (verdict, why) = match (law.checked, law.broken) {
                (0, _) => (Verdict::Skip, "no packet showed it".to_owned()),
                (_, 0) => (Verdict::Pass, String::new()),
                (checked, broken) => {
                    let first = law.first.as_ref().map(|first| match &*first.case {
                        "" => format!("{:?}", first.packet),
                        case => format!("{:?}, in {case}", first.packet),
                    });
                    let first = first.unwrap_or_default();
                    (Verdict::Fail, format!("{broken} of {checked} packets broke it, first: {first}"))
                }
            };
            let log = law.first.filter(|_| verdict == Verdict::Fail).map(evidence).unwrap_or_default();
            Finding {
                id: id.to_owned(),
                theme: "LAW".to_owned(),
                level,
                rule: format!("Every packet: {words}"),
                source: source.to_owned(),
                verdict,
                why,
                seconds: 0.0,
                log,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{case::must, dut::core};

    fn bench() -> Bench {
        let (dut, link) = core::open(false);
        Bench::new(Box::new(dut), Box::new(link))
    }

    const CASES: &[Case] = &[
        must("T.PASS", "", "", |_| Ok(())),
        must("T.FAIL", "", "", |_| Err(Fail::Broken("no".into()))),
        must("T.PANIC", "", "", |_| panic!("oh")),
        must("T.SKIP", "", "", |_| Err(Fail::Skip("later".into()))),
        must("T.GONE", "", "", |_| Err(Fail::Gone("away".into()))),
        must("T.AFTER", "", "", |_| Ok(())),
    ];

    fn verdicts(list: &str) -> Vec<Verdict> {
        let differences = Differences::parse(list).unwrap();
        let findings = run(&mut bench(), CASES, &differences, |_, _| ());
        findings[..CASES.len()].iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn each_outcome_has_its_verdict_and_nothing_is_left_out() {
        use Verdict::{Fail, Gone, Pass, Skip};
        assert_eq!(verdicts(""), [Pass, Fail, Fail, Skip, Gone, Gone]);
    }

    #[test]
    fn known_differences_neither_fail_nor_hide_that_they_are_gone() {
        use Verdict::{Fail, Gone, Known, Mended, Skip};
        let list =
            "[[difference]]\nid = 'T.PASS'\nwhy = ''\n[[difference]]\nid = 'T.FAIL'\nwhy = 'so it is'\n";
        assert_eq!(verdicts(list), [Mended, Known, Fail, Skip, Gone, Gone]);
        let list = "[[difference]]\nid = 'T.PA*'\nwhy = ''\n";
        assert_eq!(verdicts(list), [Verdict::Pass, Fail, Known, Skip, Gone, Gone]);
        assert!(Differences::parse("[[difference]]\nid = 'T'\n").is_err());
    }

    /// The packet of a law that is broken is there as it came, with its time and the case.
    #[test]
    fn a_broken_law_has_evidence() {
        let case = must("T.LAW.1", "", "", |b| {
            b.wait(std::time::Duration::from_secs(7))?;
            // The device's packets are to have a hop limit of 64.
            let mut c = b.rc()?;
            let mut change =
                c.options.step(crate::dut::State::Rtr, c.qpn, crate::dut::Av { hop_limit: 9, ..c.way() });
            for state in [crate::dut::State::Reset, crate::dut::State::Init] {
                c.step(state)?;
            }
            change.state = Some(crate::dut::State::Rtr);
            c.modify(&change)?;
            c.alive().map(|_| ())
        });
        let findings = run(&mut bench(), &[case], &Differences::default(), |_, _| ());
        let law = findings.iter().find(|finding| finding.id == "LAW.TTL").unwrap();
        assert!(law.verdict == Verdict::Fail && law.why.ends_with(", in T.LAW.1"), "{law:?}");
        let [Entry { what: What::Note(note), .. }, Entry { at, what: What::Got(packet, bytes) }] =
            &law.log[..]
        else {
            panic!("{:?}", law.log)
        };
        assert_eq!(note, "seen in T.LAW.1");
        assert!(
            at.as_secs() == 7 && packet.ttl == Some(9) && bytes.len() == 48,
            "{at:?} {packet:?} {bytes:?}"
        );
    }
}
