//! `rxe-sim`, or `rxe sim`: plays scenarios and sweeps.

use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use rxe_sim::{
    Scenario, World, on_slurm,
    pcap::Tap,
    plot, report,
    report::Report,
    sweep::{Plan, is_sweep},
};
use std::{
    error::Error,
    fs::{self, File},
    io::{self, BufWriter, IsTerminal, Write},
    path::{Path, PathBuf},
    process::{self, ExitCode},
    time::{Duration, Instant},
};

/// Networks of many hosts and switches in virtual time
///
/// Every host runs the same protocol machines as the library; links, switches and adapters are simulated. Everything follows
/// from the scenario and its seed.
#[derive(Debug, Parser)]
#[command(name = "rxe sim", args_conflicts_with_subcommands = true, arg_required_else_help = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Sub>,
    #[command(flatten)]
    play: Play,
}

#[derive(Debug, clap::Args)]
struct Play {
    /// The scenario
    #[arg(required = true)]
    scenario: Option<PathBuf>,
    /// Another seed than the scenario's
    #[arg(long)]
    seed: Option<u64>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// Folder for report.json, flows.csv, record.csv and figures
    #[arg(short, long)]
    out: Option<PathBuf>,
    /// Capture what leaves by a link, as h0-s0=FILE; may be given several times
    #[arg(long, value_name = "FROM-TO=FILE")]
    pcap: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum Sub {
    /// Play a scenario with several values of some keys, and several seeds
    Sweep(Sweep),
}

#[derive(Debug, clap::Args)]
struct Sweep {
    /// The sweep
    file: PathBuf,
    /// Folder for the jobs' reports, table.csv and summary.csv; what is there already is not played again
    #[arg(short, long)]
    out: PathBuf,
    /// Jobs at a time; as many as there are processors without it, or as many as Slurm has room for
    #[arg(short, long)]
    jobs: Option<usize>,
    /// Play this one job only (from 0)
    #[arg(long, conflicts_with_all = ["slurm", "tables"])]
    job: Option<usize>,
    /// Have Slurm play the jobs, as an array, which this waits for. Called again, it waits for what is queued still, and
    /// submits what failed or was never submitted. All nodes must see program, sweep and folder by the same paths
    #[arg(long, conflicts_with = "tables")]
    slurm: bool,
    /// Slurm ends a job after so many minutes
    #[arg(long, value_name = "MINUTES", requires = "slurm")]
    limit: Option<u64>,
    /// Only write the tables from what is there
    #[arg(long)]
    tables: bool,
}

/// The exit status that shells report for a program that SIGPIPE has ended.
const NOBODY_READS: i32 = 128 + 13;

type Outcome = Result<ExitCode, Box<dyn Error>>;

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.command {
        Some(Sub::Sweep(args)) => sweep(&args),
        None => play(&args.play),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("rxe sim: {error}");
        ExitCode::FAILURE
    })
}

/// Prints. If the reader has ended (`rxe sim FILE | head`), the program ends without a message, as others do by SIGPIPE.
fn put(text: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => process::exit(NOBODY_READS),
        other => other.map_err(|error| format!("cannot write the output: {error}")),
    }
}

fn bar(len: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {percent:>3} %  {elapsed} of {duration}  {msg}");
    ProgressBar::new(len).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn play(args: &Play) -> Outcome {
    let Some(path) = &args.scenario else { return Ok(ExitCode::FAILURE) };
    let named = |error: &dyn Error| format!("{}: {error}", path.display());
    let text = fs::read_to_string(path).map_err(|error| named(&error))?;
    if is_sweep(&text) == Some(true) {
        return Err(format!("{0}: this is a sweep: rxe sim sweep {0} --out FOLDER", path.display()).into());
    }
    let mut scenario = Scenario::read(&text).map_err(|error| named(&error))?;
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    let mut world = World::new(&scenario).map_err(|error| named(&error))?;
    let mut taps = Vec::new();
    for wish in &args.pcap {
        let (wire, file) = wish.split_once('=').ok_or_else(|| format!("--pcap {wish}: say FROM-TO=FILE"))?;
        let wire = world.wire(wire).ok_or_else(|| {
            format!("--pcap {wish}: there is no link {wire:?}; links are named by their ends, as s0-h1")
        })?;
        let tap = Tap::create(Path::new(file)).map_err(|error| format!("{file}: {error}"))?;
        world.tap(wire, tap.clone());
        taps.push((file.to_owned(), tap));
    }
    let (bar, start) = (bar(1000), Instant::now());
    world.run(|part| bar.set_position((part * 1000.0) as u64));
    bar.finish_and_clear();
    let report = Report::new(&scenario.title, scenario.seed, &world, start.elapsed());
    for (file, tap) in &taps {
        tap.finish().map_err(|error| format!("{file}: {error}"))?;
    }
    if let Some(out) = &args.out {
        write_all(out, &world, &report).map_err(|error| format!("{}: {error}", out.display()))?;
    }
    let text = match args.json {
        // On several lines for people, on one for programs.
        true if io::stdout().is_terminal() => serde_json::to_string_pretty(&report)? + "\n",
        true => serde_json::to_string(&report)? + "\n",
        false => report.text(),
    };
    put(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn write_all(out: &Path, world: &World, report: &Report) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(out)?;
    fs::write(out.join("report.json"), serde_json::to_string_pretty(report)?)?;
    let [mut flows, mut record] =
        [File::create(out.join("flows.csv"))?, File::create(out.join("record.csv"))?].map(BufWriter::new);
    report::write_flows(world, &mut flows)?;
    report::write_record(world, &mut record)?;
    // If they were only dropped, a full disk would not be noticed.
    flows.flush()?;
    record.flush()?;
    plot::draw_all(out, world, report)
}

fn sweep(args: &Sweep) -> Outcome {
    let (plan, out) = (Plan::read(&args.file)?, &args.out);
    fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    if let Some(job) = args.job {
        plan.play(out, job)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.slurm {
        play_on_slurm(args, &plan)?;
    } else if !args.tables {
        play_here(args, &plan);
    }
    let missing = plan.tabulate(out)?;
    put(&fs::read_to_string(out.join("summary.csv"))?)?;
    if missing > 0 {
        eprintln!(
            "rxe sim: {missing} of {} jobs are missing; the same command plays only those",
            plan.jobs.len()
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn play_here(args: &Sweep, plan: &Plan) {
    let here = || std::thread::available_parallelism().map_or(1, usize::from);
    let bar = bar(plan.jobs.len() as u64);
    plan.play_all(&args.out, args.jobs.unwrap_or_else(here), |job, outcome| {
        if let Err(error) = outcome {
            bar.suspend(|| eprintln!("job {}: {error}", job.number));
        }
        bar.inc(1);
    });
    bar.finish_and_clear();
}

/// Failed jobs are reported, and do not stop the others.
fn play_on_slurm(args: &Sweep, plan: &Plan) -> Result<(), Box<dyn Error>> {
    let settings = on_slurm::Settings {
        program: std::env::current_exe()?,
        file: args.file.clone(),
        out: args.out.clone(),
        at_once: args.jobs,
        limit: args.limit.map(|minutes| Duration::from_secs(minutes.saturating_mul(60))),
    };
    let bar = bar(0);
    let lost = settings.play(plan, |ended, all, word| {
        bar.set_length(all as u64);
        bar.set_position(ended as u64);
        bar.set_message(word.to_owned());
    })?;
    bar.finish_and_clear();
    for on_slurm::Lost { job, how, said } in lost {
        eprintln!("job {job}: {how}{}{said}", if said.is_empty() { "" } else { ": " });
    }
    Ok(())
}
