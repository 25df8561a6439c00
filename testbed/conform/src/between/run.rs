//! Runs the programs on both hosts, with the bridge between them doing what a case says.

use super::{Between, Bridge, bridge::Seen};
use crate::{
    bench::{Entry, What},
    left::Left,
    run::{Finding, Verdict, judged},
};
use std::{
    io,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How often a case is begun again because the first program was not ready.
const TRIES: usize = 5;
/// How often the programs are looked at.
const GLANCE: Duration = Duration::from_millis(20);

/// What drives the devices: shell commands that end with 0 if their data came, each on its side, by ssh or as it may be.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Started first: it listens.
    pub left: String,
    /// Started then: it connects.
    pub right: String,
    /// How long the first one needs until it listens.
    pub settle: Duration,
    /// How long both may take, but for time in which nobody looked.
    pub limit: Duration,
}

fn start(command: &str) -> io::Result<Child> {
    // Nobody reads what they say.
    Command::new("sh")
        .args(["-c", &format!("exec {command}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// Why a program has not ended well, if it has not: it is looked at for what is left of the time since `opened`.
fn ended(name: &str, child: &mut Child, opened: Instant, left: &mut Left) -> io::Result<Option<String>> {
    let mut more = true;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((!status.success()).then(|| format!("the program on the {name} ended with {status}")));
        }
        if !more {
            child.kill()?;
            child.wait()?;
            return Ok(Some(format!("the program on the {name} did not end in time")));
        }
        let start = opened.elapsed();
        thread::sleep(GLANCE);
        more = left.has_more(start, opened.elapsed());
    }
}

impl Programs {
    /// Runs both once: why it did not go well, if it did not.
    fn play(&self) -> io::Result<Option<String>> {
        let mut left = start(&self.left)?;
        thread::sleep(self.settle);
        let mut right = start(&self.right)?;
        let (opened, mut rest) = (Instant::now(), Left::new(self.limit, Duration::ZERO));
        let second = ended("right", &mut right, opened, &mut rest)?;
        if second.is_some() {
            // It would wait for ever.
            let _ = left.kill();
        }
        let first = ended("left", &mut left, opened, &mut rest)?;
        Ok(second.or(first))
    }
}

fn outcome(case: &Between, why: Option<String>, seen: &Seen) -> (Verdict, String) {
    match why {
        Some(why) => (Verdict::Fail, why),
        None if case.fault.is_some() && seen.done == 0 => {
            (Verdict::Skip, "the programs sent no such packet".to_owned())
        }
        None => (Verdict::Pass, String::new()),
    }
}

fn one(case: &Between, bridge: &Bridge, programs: &Programs) -> Finding {
    let started = Instant::now();
    let (mut verdict, mut why, mut seen) = (Verdict::Gone, String::new(), bridge.seen());
    for _ in 0..TRIES {
        bridge.begin(case.fault);
        let played = programs.play();
        seen = bridge.seen();
        (verdict, why) = match (played, bridge.down()) {
            (_, Some(why)) => (Verdict::Gone, why),
            (Err(error), None) => (Verdict::Gone, format!("a program could not be run: {error}")),
            (Ok(failed), None) => outcome(case, failed, &seen),
        };
        if verdict != Verdict::Fail || seen.unheard == 0 {
            break;
        }
    }
    let note = |(at, text)| Entry { at, what: What::Note(text) };
    Finding {
        id: case.id.to_owned(),
        theme: "BETWEEN".to_owned(),
        level: case.level,
        rule: case.rule.to_owned(),
        source: case.source.to_owned(),
        verdict,
        why,
        seconds: started.elapsed().as_secs_f64(),
        log: seen.notes.into_iter().map(note).collect(),
    }
}

/// Runs cases in their order and tells `watch` of each before and after; then the laws of form, for the packets of each
/// side.
pub fn run(
    bridge: &Bridge,
    cases: &[&Between],
    programs: &Programs,
    mut watch: impl FnMut(&str, Option<&Finding>),
) -> Vec<Finding> {
    let mut findings = Vec::with_capacity(cases.len());
    for case in cases {
        watch(case.id, None);
        let finding = one(case, bridge, programs);
        watch(case.id, Some(&finding));
        let gone = finding.verdict == Verdict::Gone;
        findings.push(finding);
        if gone {
            break;
        }
    }
    for (side, laws) in ["LEFT", "RIGHT"].into_iter().zip(bridge.laws()) {
        for mut law in judged(&laws) {
            law.id = format!("{side}.{}", law.id);
            law.theme = format!("{side}.LAW");
            findings.push(law);
        }
    }
    findings
}
