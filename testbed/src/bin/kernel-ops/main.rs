//! Operations between this process and a kernel's rxe, in both roles, each payload compared by the side whose memory it
//! is.
//!
//! ```text
//! kernel-ops AGENT DEVICE OUR-IP THEIR-IP [operations | bulk | faults PLAN]
//! ```
//! `operations` (the default) tries each once; `bulk` moves 1 MiB messages; `faults` repeats the RC ones over a network
//! that the guest makes bad by PLAN (`loss`, `duplicate`, `reorder`: 1 % each way; `all`) or, with `none`, our `RXE_FAULT`.
//!
//! Prints a line a case: the verdict (`ok`, `deviates` where the kernel does it in a way of its own that the case
//! expects, `absent` where it lacks the operation and says so as it should, `FAILED`, `skipped`), whose requests they are (`ours`, `kernel`), the name, and notes in brackets. Exit 1 if one failed.

mod bench;
mod bulk;
mod cases;
mod faults;
mod kernel;
mod ours;
mod pair;
mod refusals;
mod srq;
mod uc;
mod ud;
mod windows;

use bench::Bench;
use cases::{Case, Role, Run, Tally};
use faults::Faults;
use pair::SILENT;
use std::process::ExitCode;
use testbed::agent::Failure;

/// Prints a line of the result.
fn print(verdict: &str, role: &str, text: &str) {
    println!("{verdict:9}{role:8}{text}");
}

/// Plays one case in one role, prints and counts how it went. A kernel that fell silent is asked once more.
fn play(bench: &mut Bench, case: &Case, role: Role, run: Run, tally: &mut Tally) {
    let mut notes = Vec::new();
    let mut verdict = "";
    let mut once = |verdict: &mut &'static str| {
        bench.pair(&case.setup).and_then(|mut pair| {
            let played = run(&mut pair);
            notes.append(&mut pair.notes);
            *verdict = pair.verdict;
            faults::add(&mut tally.stats, &pair.qp.stats());
            played
        })
    };
    let mut played = once(&mut verdict);
    if played.is_ok() && verdict == SILENT {
        played = once(&mut verdict);
        if played.is_ok() && verdict == SILENT {
            played = Err("the kernel fell silent twice".into());
        }
        verdict = "deviates";
    }
    let notes = if notes.is_empty() { String::new() } else { format!(" [{}]", notes.join("; ")) };
    let text = format!("{}{notes}", case.name);
    match played {
        Ok(()) => {
            *(if verdict == "skipped" { &mut tally.skipped } else { &mut tally.passed }) += 1;
            print(verdict, role.name(), &text);
        }
        Err(error) => {
            tally.failed += 1;
            print("FAILED", role.name(), &format!("{text}: {error}"));
        }
    }
}

fn run() -> Result<Tally, Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [agent, device, ours, theirs, set @ ..] = words.as_slice() else {
        return Err("usage: kernel-ops AGENT DEVICE OUR-IP THEIR-IP [operations | bulk | faults PLAN]".into());
    };
    let mut faults = None;
    let cases = match set {
        [] | ["operations"] => cases::ALL,
        ["bulk"] => bulk::ALL,
        ["faults", plan] => {
            faults = Some(Faults::begin(agent, device, plan)?);
            faults::ALL
        }
        _ => return Err(format!("no set of cases {set:?}").into()),
    };
    let mut bench = Bench::open(agent, device, ours.parse()?, theirs.parse()?)?;
    let mut tally = Tally::default();
    for case in cases {
        for (role, run) in [(Role::Ours, case.ours), (Role::Kernels, case.kernel)] {
            play(&mut bench, case, role, run, &mut tally);
        }
    }
    if let Some(mut faults) = faults {
        match faults.end(&tally) {
            Ok(text) => {
                tally.passed += 1;
                print("ok", "both", &format!("faults were met [{text}]"));
            }
            Err(error) => {
                tally.failed += 1;
                print("FAILED", "both", &format!("faults were met: {error}"));
            }
        }
    }
    Ok(tally)
}

fn main() -> ExitCode {
    match run() {
        Ok(tally) => {
            println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
            ExitCode::from(u8::from(tally.failed > 0))
        }
        Err(error) => {
            eprintln!("kernel-ops: {error}");
            ExitCode::from(2)
        }
    }
}
