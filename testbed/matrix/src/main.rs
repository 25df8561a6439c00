//! `rxe-interop`, or `rxe interop`: every program between every pair of hosts.

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use rxe_interop::{
    hosts::Hosts,
    plan::{Plan, Wish},
    play::{Outcome, Verdict},
    report::Report,
    run,
};
use std::{
    error::Error,
    fs,
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// Plays programs between all pairs of hosts, by ssh or on Slurm, and gathers one report
#[derive(Debug, Parser)]
#[command(name = "rxe interop", version, after_help = AFTER_HELP)]
struct Arguments {
    /// The hosts, and how commands are run on them (TOML)
    #[arg(long, value_name = "FILE")]
    hosts: PathBuf,
    /// Folder for the jobs' results and the report (report.json, report.md, report.html); what has passed there is kept
    #[arg(short, long, value_name = "FOLDER")]
    out: PathBuf,
    /// Only this program (again for more); without it all
    #[arg(short, long, value_name = "NAME")]
    program: Vec<String>,
    /// Bytes of messages (again for more)
    #[arg(short, long, value_name = "BYTES", default_values_t = [64, 4096, 1 << 20])]
    size: Vec<u64>,
    /// Messages of each job
    #[arg(long, default_value_t = 100)]
    count: u64,
    /// Seconds that a job may take, up to a week
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=604_800))]
    limit: u64,
    /// Jobs at a time: 1 without it, so that none is in another's way; on Slurm as many as it has room for
    #[arg(short, long, value_name = "N")]
    jobs: Option<usize>,
    /// TCP port of the first job, by which its two ends find each other; the others have those above
    #[arg(long, default_value_t = 18600)]
    port: u16,
    /// Have Slurm play the jobs, as an array. Nodes must see this program, the hosts file and the folder by the same paths
    #[arg(long)]
    slurm: bool,
    /// Only list the jobs
    #[arg(long)]
    list: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Play this one job (from 0) and leave its file; what Slurm's tasks do
    #[arg(long, conflicts_with_all = ["slurm", "list"])]
    job: Option<usize>,
}

const AFTER_HELP: &str = "Exit codes: 0 nothing failed, 1 a job failed, hung or was lost, 2 wrong arguments, 3 nothing could be played.\n\
    A hosts file:\n  shell = [\"ssh\", \"-o\", \"BatchMode=yes\", \"{host}\"]\n  [[host]]\n  name = \"node1\"\n  address = \"192.0.2.1\"\n  \
    device = \"mlx5_0\"\n  gid = 3\n  [[host]]\n  name = \"node2\"\n  address = \"192.0.2.2\"\n  before = \"rxe run --\"";

fn main() -> ExitCode {
    match start(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("rxe interop: {error}");
            ExitCode::from(3)
        }
    }
}

fn start(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let named = |path: &Path, error: &dyn Error| format!("{}: {error}", path.display());
    let hosts = Hosts::read(&arguments.hosts).map_err(|error| named(&arguments.hosts, &error))?;
    let plan = Plan::new(
        hosts,
        &Wish {
            programs: arguments.program.clone(),
            sizes: arguments.size.clone(),
            count: arguments.count,
            limit: Duration::from_secs(arguments.limit),
            first_port: arguments.port,
        },
    )?;
    if arguments.list {
        return Ok(list(&plan, arguments.json));
    }
    fs::create_dir_all(&arguments.out).map_err(|error| named(&arguments.out, &error))?;
    if let Some(number) = arguments.job {
        let job = plan
            .jobs
            .get(number)
            .ok_or_else(|| format!("there is no job {number} of {}", plan.jobs.len()))?;
        let outcome =
            run::play_one(&plan, &arguments.out, job).map_err(|error| named(&arguments.out, &error))?;
        println!("{}: {}", outcome.verdict.word(), outcome.why);
        return Ok(if outcome.verdict == Verdict::Pass { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let numbers = run::open(&plan, &arguments.out);
    let lost = if arguments.slurm {
        on_slurm(arguments, &plan, &numbers)?
    } else {
        here(arguments, &plan, &numbers);
        Vec::new()
    };
    let known = plan.jobs.iter().filter_map(|job| run::known(&arguments.out, job));
    let report = Report::new(&plan, known.chain(lost).collect());
    for (name, text) in [
        ("report.json", serde_json::to_string_pretty(&report)?),
        ("report.md", report.markdown()),
        ("report.html", report.html()),
    ] {
        let path = arguments.out.join(name);
        fs::write(&path, text).map_err(|error| named(&path, &error))?;
    }
    if arguments.json {
        // On several lines for people, on one for programs.
        let is_read_by_people = std::io::stdout().is_terminal();
        let text = if is_read_by_people {
            serde_json::to_string_pretty(&report)?
        } else {
            serde_json::to_string(&report)?
        };
        println!("{text}");
    } else {
        for Outcome { job, verdict, why, .. } in
            report.jobs.iter().filter(|outcome| outcome.verdict != Verdict::Pass)
        {
            println!(
                "{} {} {} bytes, {} to {}: {why}",
                verdict.word(),
                job.program,
                job.size,
                job.client,
                job.server
            );
        }
    }
    eprintln!("{}; {}", report.line(), arguments.out.join("report.html").display());
    if !report.jobs.is_empty() && report.count(Verdict::Absent) == report.jobs.len() {
        return Err("no job could be run: no host has the programs".into());
    }
    let is_good = report.is_good() && report.jobs.len() == plan.jobs.len();
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn list(plan: &Plan, as_json: bool) -> ExitCode {
    let mut out = std::io::stdout().lock();
    for job in &plan.jobs {
        // A reader that has seen enough (head) is no error.
        let _ = if as_json {
            writeln!(out, "{}", serde_json::to_value(job).unwrap_or_default())
        } else {
            writeln!(
                out,
                "{:5} {:16} {:>9} {} to {}",
                job.number, job.program, job.size, job.client, job.server
            )
        };
    }
    ExitCode::SUCCESS
}

fn bar(len: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta} {msg}");
    ProgressBar::new(len as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn here(arguments: &Arguments, plan: &Plan, numbers: &[usize]) {
    let bar = bar(numbers.len());
    run::here(plan, &arguments.out, numbers, arguments.jobs.unwrap_or(1), |outcome| {
        bar.inc(1);
        match outcome {
            Ok(outcome) => bar.set_message(outcome.job.program.clone()),
            Err(error) => bar.suspend(|| eprintln!("{}: {error}", arguments.out.display())),
        }
    });
    bar.finish_and_clear();
}

/// What of this command's words a task needs to make the same plan.
fn words_of_a_task(arguments: &Arguments) -> Result<Vec<String>, Box<dyn Error>> {
    let absolute = |path: &Path| {
        let path = fs::canonicalize(path).map_err(|error| format!("{}: {error}", path.display()))?;
        path.into_os_string().into_string().map_err(|path| format!("{} is no text", path.display()))
    };
    let mut words = vec![absolute(&std::env::current_exe()?)?];
    words.extend(["--hosts".into(), absolute(&arguments.hosts)?, "--out".into(), absolute(&arguments.out)?]);
    for program in &arguments.program {
        words.extend(["--program".into(), program.clone()]);
    }
    for size in &arguments.size {
        words.extend(["--size".into(), size.to_string()]);
    }
    let numbers =
        [("--count", arguments.count), ("--limit", arguments.limit), ("--port", arguments.port.into())];
    words.extend(numbers.iter().flat_map(|(word, number)| [(*word).to_owned(), number.to_string()]));
    Ok(words)
}

fn on_slurm(arguments: &Arguments, plan: &Plan, numbers: &[usize]) -> Result<Vec<Outcome>, Box<dyn Error>> {
    let words = words_of_a_task(arguments)?;
    let quoted: Vec<_> = words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
    let slurm = run::OnSlurm {
        command: format!("exec {} --job $TASK", quoted.join(" ")),
        folder: fs::canonicalize(&arguments.out)?,
        at_once: arguments.jobs,
        // A job's two ends are ended by their own limit; this is for what plays them.
        limit: Duration::from_secs(arguments.limit + 60),
    };
    let bar = bar(numbers.len());
    let lost = slurm.play(plan, numbers, |ended| bar.set_position(ended as u64))?;
    bar.finish_and_clear();
    Ok(lost)
}
