//! Pairs of processes on one address exchange checked traffic over one port, while clients and the host service are
//! killed: nobody but the partners of the dead may notice anything.
//!
//! ```text
//! host-chaos [--address IP] [--other IP] [--run COMMAND] [--run-other COMMAND] [--seconds N] [--pairs N]
//!            [--service-every SECONDS] --rxe PATH
//! host-chaos scale ...             200 idle processes with 100 queue pairs each
//! ```
//!
//! `--other` is the address of the second process of each pair, the same by default; COMMAND is put in front of all that
//! is run on that side (`ip netns exec ...`). It is run by scripts/host-chaos, in network namespaces of its own and as an
//! ordinary user. Prints counts; exit 1 if a byte was wrong, an innocent pair saw an error or stood still, a partner of a
//! dead process noticed nothing, or a packet came to the wrong process without being handed on.

mod pair;
mod scale;
mod worker;

use pair::{Event, Pair};
use serde_json::Value;
use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};
use testbed::agent::Failure;

/// After this long a partner must have noticed.
const PATIENCE: Duration = Duration::from_secs(20);
/// A pair that stands still for so long is broken: less than the shortest run.
const STILL: Duration = Duration::from_secs(8);

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

#[derive(Default, Debug)]
struct Counts {
    messages: u64,
    bytes: u64,
    clients_killed: u64,
    services_killed: u64,
    noticed: u64,
    slowest: Duration,
    rejoined: u64,
    handed_on: u64,
}

impl Counts {
    /// Adds what a service has counted that will not be asked again.
    fn take(&mut self, report: &Value) {
        let counter = |name: &str| report["counters"][name].as_u64().unwrap_or(0);
        self.rejoined += counter("rejoined");
        self.handed_on += counter("handed_on");
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("worker") => worker::run(&arguments[1..]),
        Some("idle") => scale::idle(&arguments[1..]),
        Some("scale") => options(&arguments).and_then(|options| scale::play(&options, 200, 100)),
        _ => options(&arguments).and_then(|options| play(&options)),
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
        seconds: value("--seconds").unwrap_or("10").parse()?,
        pairs: value("--pairs").unwrap_or("8").parse()?,
        service_every: value("--service-every").unwrap_or("3").parse()?,
    })
}

fn play(options: &Options) -> Result<(), Failure> {
    let (tell, events) = channel();
    let mut pairs = Vec::new();
    for number in 0..options.pairs {
        pairs.push(Pair::start(number, &options.homes, &tell)?);
    }
    let mut counts = Counts::default();
    let begin = Instant::now();
    let mut victim = 0_usize;
    for second in 1.. {
        if second > options.seconds {
            break;
        }
        let until = begin + Duration::from_secs(second);
        hear(&mut pairs, &events, until, &mut counts)?;
        // Pairs take turns, and so do the two sides of each.
        victim += 5;
        let number = victim % pairs.len();
        if pairs[number].is_whole() {
            let side = victim / pairs.len() % 2;
            pairs[number].kill(side)?;
            counts.clients_killed += 1;
        }
        if second.is_multiple_of(options.service_every) {
            for home in options.places() {
                if let Some(report) = home.ask(&["service", "status"]) {
                    counts.take(&report);
                    home.command(Path::new("kill")).args(["-9", &report["pid"].to_string()]).status()?;
                    counts.services_killed += 1;
                }
            }
        }
        for pair in pairs.iter_mut().filter(|pair| pair.is_over()) {
            pair.start_again(&tell)?;
        }
    }
    hear(&mut pairs, &events, Instant::now() + Duration::from_secs(3), &mut counts)?;
    check_end(&mut pairs, &events, &mut counts)?;
    let mut merged = 0;
    for home in options.places() {
        counts.take(&home.ask(&["service", "status"]).ok_or("no service at the end")?);
        let stats = home.ask(&["stat"]).ok_or("no counters at the end")?;
        check_steering(&stats, &counts)?;
        merged += sum_of(&stats, "merged_receives");
    }
    if merged == 0 {
        return Err(
            "the system never merged packets (UDP_GRO), so their steering as one was not tried".into()
        );
    }
    println!(
        "{} - {}: {} pairs, {} messages, {} MiB, {} clients killed and {} partners told (the slowest after {:.1} s), \
         {} services killed, {} times a client came back, {} packets handed on, {merged} merged arrivals at the living",
        options.homes[0].address,
        options.homes[1].address,
        options.pairs,
        counts.messages,
        counts.bytes >> 20,
        counts.clients_killed,
        counts.noticed,
        counts.slowest.as_secs_f64(),
        counts.services_killed,
        counts.rejoined,
        counts.handed_on
    );
    if counts.noticed < counts.clients_killed || counts.services_killed == 0 || counts.rejoined == 0 {
        return Err(format!("not everything happened that should have: {counts:?}").into());
    }
    Ok(())
}

/// Each process received its own packets only, but for those that it gave back to be handed on.
fn check_steering(stats: &Value, counts: &Counts) -> Result<(), Failure> {
    let clients = stats["clients"].as_array().ok_or("no clients at the end")?;
    let astray = sum_of(stats, "dropped_other_slot");
    if clients.is_empty() || astray > counts.handed_on {
        return Err(format!(
            "{astray} packets came to the wrong one of {} processes, {} were handed on",
            clients.len(),
            counts.handed_on
        )
        .into());
    }
    Ok(())
}

/// A counter of all clients together.
fn sum_of(stats: &Value, name: &str) -> u64 {
    let counters =
        stats["clients"].as_array().into_iter().flatten().filter_map(|client| client["port"].as_array());
    counters.flatten().filter(|counter| counter[0] == name).filter_map(|counter| counter[1].as_u64()).sum()
}

/// Takes what the workers say until then.
fn hear(
    pairs: &mut [Pair],
    events: &Receiver<Event>,
    until: Instant,
    counts: &mut Counts,
) -> Result<(), Failure> {
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        if let Ok(event) = events.recv_timeout(left) {
            let number = event.pair;
            pairs[number].handle(event)?;
        }
        for pair in pairs.iter_mut() {
            let (messages, bytes) = pair.take_progress();
            counts.messages += messages;
            counts.bytes += bytes;
            if let Some(after) = pair.take_notice() {
                counts.noticed += 1;
                counts.slowest = counts.slowest.max(after);
            }
            pair.check(PATIENCE, STILL)?;
        }
    }
    Ok(())
}

/// Waits for the last partners to notice, and wants progress of every pair.
fn check_end(pairs: &mut [Pair], events: &Receiver<Event>, counts: &mut Counts) -> Result<(), Failure> {
    let begin = Instant::now();
    while pairs.iter().any(Pair::is_mourning) && begin.elapsed() < PATIENCE {
        hear(pairs, events, Instant::now() + Duration::from_millis(100), counts)?;
    }
    // After the last death everybody who lives goes on.
    pairs.iter_mut().for_each(Pair::mark);
    let begin = Instant::now();
    loop {
        let Some(pair) = pairs.iter().find(|pair| pair.is_whole() && !pair.has_moved()) else {
            return Ok(());
        };
        if begin.elapsed() > STILL {
            return Err(format!("pair {} has not moved since the last death", pair.number()).into());
        }
        hear(pairs, events, Instant::now() + Duration::from_millis(100), counts)?;
    }
}
