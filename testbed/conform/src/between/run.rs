//! Runs the programs on both hosts, while the bridge between them applies the fault of a case.

use super::{Between, Bridge, bridge::Seen};
use crate::{
    bench::{Entry, What},
    left::Left,
    run::{Finding, Verdict, judged},
};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How often a case is repeated because the first program was not ready.
const TRIES: usize = 5;
/// The interval at which the programs are polled.
const GLANCE: Duration = Duration::from_millis(20);

/// The programs that drive the devices. Each is a shell command, for example an ssh call, that exits with 0 if its data
/// arrived.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The program on the left host. It is started first and listens.
    pub left: String,
    /// The program on the right host. It is started second and connects.
    pub right: String,
    /// How long the first program needs until it listens.
    pub settle: Duration,
    /// How long both may take. Time during which the suite itself did not run does not count.
    pub limit: Duration,
}

/// Starts a shell in a process group of its own, which ends with all that the shell has started.
fn start(command: &str) -> io::Result<Child> {
    // The output of the programs is not read.
    Command::new("sh")
        .args(["-c", command])
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// Ends what [`start`] has started. The group has the shell's number, which the shell keeps until it is waited for.
fn kill(shell: &Child) {
    let group = Pid::from_raw(shell.id().cast_signed());
    // It may have ended by itself.
    let _ = killpg(group, Signal::SIGKILL);
}

/// Waits for a program to end, for the time left since `opened`. Returns why it did not end well, or `None` if it did.
fn ended(name: &str, child: &mut Child, opened: Instant, left: &mut Left) -> io::Result<Option<String>> {
    let mut more = true;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((!status.success()).then(|| format!("the program on the {name} ended with {status}")));
        }
        if !more {
            kill(child);
            child.wait()?;
            return Ok(Some(format!("the program on the {name} did not end in time")));
        }
        let start = opened.elapsed();
        thread::sleep(GLANCE);
        more = left.has_more(start, opened.elapsed());
    }
}

impl Programs {
    /// Runs both programs once. Returns why they did not end well, or `None` if they did.
    fn play(&self) -> io::Result<Option<String>> {
        let mut left = start(&self.left)?;
        thread::sleep(self.settle);
        let mut right = start(&self.right)?;
        let (opened, mut rest) = (Instant::now(), Left::new(self.limit, Duration::ZERO));
        let second = ended("right", &mut right, opened, &mut rest)?;
        if second.is_some() {
            // The first program would wait for a connection for ever.
            kill(&left);
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

/// Runs the cases in order, and calls `watch` before and after each. Then it reports on the laws of form, for the packets of
/// each side.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn play(left: &str, right: &str, limit: u64) -> Option<String> {
        let (settle, limit) = (Duration::ZERO, Duration::from_secs(limit));
        Programs { left: left.to_owned(), right: right.to_owned(), settle, limit }.play().expect("a shell")
    }

    #[test]
    fn all_parts_of_a_command_count() {
        assert_eq!(play("true; true", "cd / && A=1 test -d usr", 60), None);
        assert!(play("true", "true && exit 7", 60).is_some_and(|why| why.contains("7")));
    }

    #[test]
    fn nothing_of_a_command_is_left() {
        let sleep = format!("sleep 97.{}", std::process::id());
        assert!(play(&format!("{sleep}; true"), "false", 60).is_some());
        assert!(play("true", &format!("{sleep} & wait"), 0).is_some());
        let left = Command::new("pgrep").args(["-xf", &sleep]).output().expect("pgrep");
        assert_eq!(String::from_utf8_lossy(&left.stdout), "");
    }
}
