//! Pairs of processes on one address exchange checked traffic over one port, while clients and the host service are
//! killed: nobody but the partners of the dead may notice anything.
//!
//! ```text
//! host-chaos [--address IP] [--other IP] [--run COMMAND] [--run-other COMMAND] [--run-stranger COMMAND]
//!            [--seconds N] [--pairs N] [--service-every SECONDS] --rxe PATH
//! host-chaos scale ...             200 idle processes with 100 queue pairs each
//! ```
//!
//! `--other` is the address of the second process of each pair, the same by default; COMMAND is put in front of all that
//! is run on that side (`ip netns exec ...`). `--run-stranger` is in front of a program that sends rubbish to port 4791 of
//! the first address meanwhile. It is run by scripts/host-chaos, in network namespaces of its own and as an ordinary user.
//!
//! Prints counts; exit 1 if a byte was wrong, an innocent pair saw an error, or nothing arrived in one of its directions
//! for long; if a partner of a dead process noticed nothing; if fewer were killed than planned; and unless, at the end and
//! for each slot by itself, the packets that came to the wrong process are those that were handed on.

mod pair;
mod play;
mod scale;
mod steering;
mod strangers;
mod worker;

use serde_json::Value;
use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};
use testbed::agent::Failure;

/// Which process of a run it is: no other of any pair or life has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name(u64);

impl Name {
    const fn new(life: u64, pair: usize, side: usize, pairs: usize) -> Self {
        Self((life * pairs as u64 + pair as u64) * 2 + side as u64)
    }

    /// Multiples of the golden section of 2^24 stay far from each other: what is left of one process's packets is outside
    /// of what another expects.
    const fn first_psn(self) -> u32 {
        ((self.0 * 0x9e_3779) & 0xff_ffff) as u32
    }
}

/// Where one process of each pair lives.
#[derive(Clone)]
struct Home {
    address: IpAddr,
    /// In front of every command there.
    run: Vec<String>,
    rxe: PathBuf,
}

impl Home {
    fn command(&self, program: &Path) -> Command {
        let Some((first, rest)) = self.run.split_first() else { return Command::new(program) };
        let mut command = Command::new(first);
        command.args(rest).arg(program);
        command
    }

    /// What `rxe COMMAND --json` prints there.
    fn ask(&self, arguments: &[&str]) -> Option<Value> {
        let output = self.command(&self.rxe).args(arguments).arg("--json").output().ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }
}

struct Options {
    /// Of the first process of each pair, and of the second.
    homes: [Home; 2],
    /// Of the program that sends rubbish, if there is to be one; the address is the one it sends to.
    stranger: Option<Home>,
    seconds: u64,
    pairs: usize,
    service_every: u64,
}

impl Options {
    /// One for each service there is.
    fn places(&self) -> &[Home] {
        if self.homes[0].run == self.homes[1].run { &self.homes[..1] } else { &self.homes }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("worker") => worker::run(&arguments[1..]),
        Some("idle") => scale::idle(&arguments[1..]),
        Some("stray") => strangers::stray(&arguments[1..]),
        Some("rubbish") => strangers::rubbish(&arguments[1..]),
        Some("scale") => options(&arguments).and_then(|options| scale::play(&options, 200, 100)),
        _ => options(&arguments).and_then(|options| play::play(&options)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("host-chaos: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options(arguments: &[String]) -> Result<Options, Failure> {
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).map(String::as_str)
    };
    let address = value("--address").unwrap_or("127.0.0.1");
    let run = value("--run").unwrap_or_default();
    let rxe: PathBuf = value("--rxe").ok_or("--rxe PATH is needed")?.into();
    let home = |address: &str, run: &str| -> Result<Home, Failure> {
        let run = run.split_whitespace().map(str::to_owned).collect();
        Ok(Home { address: address.parse()?, run, rxe: rxe.clone() })
    };
    Ok(Options {
        homes: [
            home(address, run)?,
            home(value("--other").unwrap_or(address), value("--run-other").unwrap_or(run))?,
        ],
        stranger: value("--run-stranger").map(|run| home(address, run)).transpose()?,
        seconds: value("--seconds").unwrap_or("10").parse()?,
        pairs: value("--pairs").unwrap_or("8").parse()?,
        service_every: value("--service-every").unwrap_or("3").parse()?,
    })
}

#[cfg(test)]
mod tests {
    use super::Name;
    use std::collections::HashSet;

    #[test]
    fn no_two_processes_look_alike() {
        let lives =
            (0..100).flat_map(|life| (0..8).flat_map(move |pair| [0, 1].map(|side| (life, pair, side))));
        let names: Vec<Name> = lives.map(|(life, pair, side)| Name::new(life, pair, side, 8)).collect();
        assert_eq!(names.iter().map(|name| name.0).collect::<HashSet<_>>().len(), 1600);
        assert!(names.iter().all(|name| name.0 < 1 << 24), "contents are made of 24 bits of it");
        // Those who may meet a packet of each other: the processes that live and those of two lives before.
        for names in names.windows(48) {
            let mut psns: Vec<u32> = names.iter().map(|name| name.first_psn()).collect();
            psns.sort_unstable();
            let nearest = psns.windows(2).map(|two| two[1] - two[0]).min();
            assert!(nearest > Some(100_000), "{nearest:?}");
        }
    }
}
