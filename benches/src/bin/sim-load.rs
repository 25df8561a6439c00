//! Measures the simulator's speed and memory:
//!
//! ```text
//! sim-load [--rounds N] [SCENARIO...]
//! ```
//!
//! Plays each scenario N times on one core, each time in a process of its own. Without any scenario, these are docs/lab's
//! `hops.toml` and `go-back-n.toml`. Prints a table with the packet hops and the deliveries to endpoints per second, for the
//! fastest round and for the median one, and the largest amount of memory that a process used. A second here is a second of
//! processor time. Wall-clock time is not used: on a machine with other work the figures would drop to a third, and would
//! vary from run to run.

use clap::Parser;
use rxe_sim::{Scenario, World};
use serde::{Deserialize, Serialize};
use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The simulator's speed and memory
#[derive(Debug, Parser)]
struct Args {
    /// How often each scenario is played
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Play one, and print its figures
    #[arg(long, hide = true)]
    play: bool,
    /// Scenarios of `rxe sim`
    scenarios: Vec<PathBuf>,
}

/// The figures of one process.
#[derive(Debug, Serialize, Deserialize)]
struct Figures {
    hops: f64,
    deliveries: f64,
    /// Peak memory in KiB.
    memory: u64,
}

fn main() -> ExitCode {
    let mut args = Args::parse();
    if args.scenarios.is_empty() {
        let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/lab");
        args.scenarios = ["hops.toml", "go-back-n.toml"].map(|name| lab.join(name)).to_vec();
    }
    let outcome = if args.play { play(&args.scenarios[0]) } else { compare(&args) };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sim-load: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Processor time that this thread has used, in nanoseconds (proc_pid_schedstat(5): the first number).
fn processor_time() -> Result<f64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split_whitespace().next().ok_or("an empty schedstat")?.parse()?)
}

fn play(file: &Path) -> Result<()> {
    let mut world = World::new(&Scenario::read(&fs::read_to_string(file)?)?)?;
    let start = processor_time()?;
    world.run(|_| ());
    let seconds = (processor_time()? - start).max(1.0) / 1e9;
    let status = fs::read_to_string("/proc/self/status")?;
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    let figures = Figures {
        hops: world.counts().hops as f64 / seconds,
        deliveries: world.counts().deliveries as f64 / seconds,
        memory: peak.ok_or("no VmHWM in /proc/self/status")?,
    };
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

fn compare(args: &Args) -> Result<()> {
    println!("| scenario | M hops/s, best | median | M deliveries/s, best | median | memory, MiB |");
    println!("|---|---|---|---|---|---|");
    for scenario in &args.scenarios {
        let mut rounds = Vec::new();
        for _ in 0..args.rounds.max(1) {
            let output = Command::new(std::env::current_exe()?).arg("--play").arg(scenario).output()?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).trim().into());
            }
            rounds.push(serde_json::from_slice::<Figures>(&output.stdout)?);
        }
        rounds.sort_by(|one, other| other.hops.total_cmp(&one.hops));
        let (best, median) = (&rounds[0], &rounds[rounds.len() / 2]);
        let memory = rounds.iter().map(|round| round.memory).max().unwrap_or(0);
        println!(
            "| {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} |",
            scenario.file_stem().unwrap_or_default().display(),
            best.hops / 1e6,
            median.hops / 1e6,
            best.deliveries / 1e6,
            median.deliveries / 1e6,
            memory as f64 / 1024.0
        );
    }
    Ok(())
}
