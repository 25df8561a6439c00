//! `rxe-conform`: runs the conformance suite against a device and reports.
//!
//! Exit codes: 0 if all rules are kept (or broken only as the list of known differences says), 1 if a rule is broken, 2 for
//! wrong arguments or a file that cannot be read or written, 3 if the device could not be reached, or was gone before the end.

mod middle;
mod namespace;
mod open;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use middle::Middle;
use open::Which;
use rxe_conform::{
    bench::Bench,
    case::{Case, Fail, Level},
    cases,
    replay::{Different, Session, play},
    report::{Report, capture, html, json, junit, line, markdown},
    run::{Differences, Finding, Verdict, run, weigh},
};
use std::{
    error::Error,
    fs,
    io::{IsTerminal, Write},
    net::IpAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant, SystemTime},
};

/// Conformance suite for RoCE devices: which rules does a NIC, a driver or a stack break?
#[derive(Debug, Parser)]
#[command(name = "rxe-conform", version, after_help = AFTER_HELP)]
struct Arguments {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    middle: Middle,
    /// Lists the cases and ends
    #[arg(long)]
    list: bool,
    /// Only cases whose id begins so (again for more)
    #[arg(long, value_name = "ID")]
    filter: Vec<String>,
    /// Leaves out what takes long on real time
    #[arg(long)]
    quick: bool,
    /// How long the device may take to answer before it counts as silent [default: 3 by UDP, 4 with whole frames].
    /// Where nothing may come, a hundredth of it is waited, 250 ms at most [default: 15 ms by UDP, 30 ms with whole
    /// frames]. Cases that are listed as differences, or left to the device, keep to the default
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    patience: Option<Duration>,
    /// A broken rule that is only asked for ("should") fails the run, too
    #[arg(long)]
    strict: bool,
    /// The list of known differences (TOML); the one that comes with the suite is used otherwise, if there is one
    #[arg(long, value_name = "FILE")]
    expected: Option<PathBuf>,
    /// Writes the report as JSON ("-" to standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes the report as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Writes the report as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Writes the report as a Markdown table
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Writes the packets of failed cases into this folder, as pcapng
    #[arg(long, value_name = "FOLDER")]
    captures: Option<PathBuf>,
    /// Plays one end (--as) of the connection in this pcap or pcapng file instead of the cases
    #[arg(long, value_name = "FILE", requires = "as_end")]
    replay: Option<PathBuf>,
    /// The address in the recording whose part the suite takes
    #[arg(long = "as", id = "as_end", value_name = "IP")]
    as_end: Option<IpAddr>,
    /// Says nothing but the summary
    #[arg(long, short)]
    quiet: bool,
}

const AFTER_HELP: &str = "Exit codes: 0 all rules kept, 1 a rule broken, 2 wrong arguments or a file that cannot be used, 3 no device or gone.\n\
    Examples:\n  rxe-conform --dut core\n  rxe-conform --dut udp --quick --html report.html\n  \
    rxe-conform --dut remote --agent 192.0.2.7:7000 --device mlx5_0 --address 192.0.2.7 --raw eth1 --own 192.0.2.200";

/// The arguments ask for something that cannot be done: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match start(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("rxe-conform: {error}");
            ExitCode::from(if error.is::<Usage>() { 2 } else { 3 })
        }
    }
}

/// Prints a line for people. It is no error if the reader closes the pipe early (as head does).
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

impl Arguments {
    /// Whether results of single cases are not printed, because standard output may carry a report.
    fn is_quiet(&self) -> bool {
        let reports = [&self.json, &self.junit, &self.html, &self.markdown];
        self.quiet || reports.into_iter().flatten().any(|path| path == Path::new("-"))
    }
}

/// A time on the command line, of at most a day.
fn seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if !(0.0..=86_400.0).contains(&value) {
        return Err("it has to be between 0 and 86400 seconds".into());
    }
    Duration::try_from_secs_f64(value).map_err(|error| error.to_string())
}

fn chosen(arguments: &Arguments) -> Vec<Case> {
    let wanted = |case: &Case| {
        let named =
            arguments.filter.is_empty() || arguments.filter.iter().any(|start| case.id.starts_with(start));
        named && !(arguments.quick && case.slow)
    };
    cases::all().into_iter().filter(wanted).collect()
}

fn list(cases: &[Case], as_json: bool) {
    let mut out = std::io::stdout().lock();
    for case in cases {
        let level = match case.level {
            Level::Must => "must",
            Level::Should => "should",
            Level::May => "may",
        };
        let (id, rule, source) = (&case.id, &case.rule, case.source);
        // It is no error if the reader closes the pipe early (as head does).
        let _ = if as_json {
            writeln!(
                out,
                "{}",
                serde_json::json!({"id": id, "level": level, "rule": rule, "source": source, "slow": case.slow})
            )
        } else {
            writeln!(out, "{id:28} {level:6} {rule} [{source}]")
        };
    }
}

fn differences(arguments: &Arguments, name: &str) -> Result<Differences, Box<dyn Error>> {
    let text = match &arguments.expected {
        Some(path) => {
            fs::read_to_string(path).map_err(|error| Usage(format!("{}: {error}", path.display())))?
        }
        None => open::shipped_differences(name).to_owned(),
    };
    Differences::parse(&text).map_err(|error| Usage(format!("list of differences of {name}: {error}")).into())
}

fn start(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    if let Some(served) = arguments.which.serve()? {
        return Ok(served);
    }
    let cases = chosen(arguments);
    if arguments.list {
        list(&cases, arguments.json.is_some());
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.middle.is_wanted() {
        return between(arguments);
    }
    if cases.is_empty() {
        let wanted = arguments.filter.join(" or ");
        return Err(Usage(format!("no case begins with {wanted}; --list shows them")).into());
    }
    if let Some(code) = arguments.which.enclosed()? {
        return Ok(code);
    }
    // The pair of interfaces, if there is one, is removed at the end.
    let open::Opened { dut, link, pair: _pair } = arguments.which.open()?;
    let about = dut.about().clone();
    let mut bench = Bench::new(dut, link);
    if let Some(patience) = arguments.patience {
        bench.world.borrow_mut().set_patience(patience);
    }
    if let (Some(file), Some(own)) = (&arguments.replay, arguments.as_end) {
        return replay(file, own, &mut bench);
    }
    let differences = differences(arguments, &about.name)?;
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let (clock, quiet) = (Instant::now(), arguments.is_quiet());
    let bar = progress(cases.len(), quiet);
    // A panic of a device in this process is reported in the finding, instead of as a trace between the lines of progress.
    std::panic::set_hook(Box::new(|_| ()));
    let findings =
        run(&mut bench, &cases, &differences, |case, finding| show(&bar, quiet, &case.id, finding));
    let _ = std::panic::take_hook();
    bar.finish_and_clear();
    let report = Report { about, started, seconds: clock.elapsed().as_secs_f64(), findings };
    if !quiet {
        // The laws of form are decided last.
        report.findings[cases.len()..].iter().filter_map(told).for_each(|text| say(&text));
    }
    Ok(finish(arguments, &report))
}

/// Runs the suite as a bridge between two hosts.
fn between(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let (clock, quiet) = (Instant::now(), arguments.is_quiet());
    let count = middle::chosen(&arguments.filter).len();
    let bar = progress(count, quiet);
    let watch = |id: &str, finding: Option<&Finding>| show(&bar, quiet, id, finding);
    let name = arguments.which.name.as_deref();
    let differences = differences(arguments, name.unwrap_or("between"))?;
    let (about, findings) = arguments.middle.run(&arguments.filter, name, watch)?;
    let findings = findings.into_iter().map(|finding| weigh(finding, &differences)).collect();
    bar.finish_and_clear();
    let report = Report { about, started, seconds: clock.elapsed().as_secs_f64(), findings };
    if !quiet {
        report.findings.iter().skip(count).filter_map(told).for_each(|text| say(&text));
    }
    Ok(finish(arguments, &report))
}

/// Shows that a case begins, or its result.
fn show(bar: &ProgressBar, quiet: bool, id: &str, finding: Option<&Finding>) {
    let Some(finding) = finding else { return bar.set_message(id.to_owned()) };
    bar.inc(1);
    if !quiet && let Some(text) = told(finding) {
        bar.suspend(|| say(&text));
    }
}

/// Plays a recording and prints the differences, those that matter first.
fn replay(file: &Path, own: IpAddr, bench: &mut Bench) -> Result<ExitCode, Box<dyn Error>> {
    let session = Session::read(file, own).map_err(Usage)?;
    let differences = match play(bench, &session) {
        Ok(differences) => differences,
        Err(Fail::Gone(why)) => return Err(why.into()),
        Err(Fail::Broken(why)) => vec![Different { at: 0, what: why, because: None }],
        Err(Fail::Skip(why)) => {
            return Err(Usage(format!("{} cannot be played: {why}", file.display())).into());
        }
    };
    let (explained, matter): (Vec<_>, Vec<_>) = differences.iter().partition(|one| one.because.is_some());
    for one in &matter {
        say(&format!("DIFFERS {}", one.what));
    }
    for one in &explained {
        say(&format!("  {} [{}]", one.what, one.because.unwrap_or_default()));
    }
    eprintln!("{}: {} differences, {} explained ones", file.display(), matter.len(), explained.len());
    Ok(if matter.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The line that is printed about a case while the suite runs: none if it passed.
fn told(finding: &Finding) -> Option<String> {
    let word = match finding.verdict {
        Verdict::Fail => "FAIL",
        Verdict::Mended => "MENDED",
        Verdict::Known => "known",
        Verdict::Told => "told",
        Verdict::Pass | Verdict::Skip | Verdict::Gone => return None,
    };
    let word = if std::io::stdout().is_terminal() && finding.verdict == Verdict::Fail {
        format!("\x1b[31m{word}\x1b[0m")
    } else {
        word.to_owned()
    };
    Some(format!("{word} {}: {} [{}]\n     {}", finding.id, finding.rule, finding.source, finding.why))
}

fn progress(count: usize, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta} {msg}");
    ProgressBar::new(count as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn save(path: &Path, text: &str) -> Result<(), Box<dyn Error>> {
    if path == Path::new("-") {
        say(text);
        return Ok(());
    }
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// Writes the reports that were asked for. One that cannot be written does not keep the others from being written. Returns
/// whether all were.
fn write_reports(arguments: &Arguments, report: &Report) -> bool {
    type Text = fn(&Report, &Arguments) -> Result<String, Box<dyn Error>>;
    let texts: [(&Option<PathBuf>, Text); 4] = [
        (&arguments.json, |report, _| Ok(serde_json::to_string_pretty(&json::json(report))?)),
        (&arguments.junit, |report, arguments| Ok(junit::junit(report, arguments.strict)?)),
        (&arguments.markdown, |report, _| Ok(markdown::markdown(report))),
        (&arguments.html, |report, _| Ok(html::html(report))),
    ];
    let mut errors = Vec::new();
    for (path, text) in texts {
        if let Some(path) = path {
            errors.extend(text(report, arguments).and_then(|text| save(path, &text)).err());
        }
    }
    if let Some(folder) = &arguments.captures {
        match capture::captures(&report.findings, folder) {
            Ok(count) => eprintln!("{count} captures in {}", folder.display()),
            Err(error) => errors.push(format!("{}: {error}", folder.display()).into()),
        }
    }
    for error in &errors {
        eprintln!("rxe-conform: {error}");
    }
    errors.is_empty()
}

/// Writes the reports and the summary, and says how the run has ended.
fn finish(arguments: &Arguments, report: &Report) -> ExitCode {
    let written = write_reports(arguments, report);
    let code = conclude(arguments, report);
    if written { code } else { ExitCode::from(2) }
}

fn conclude(arguments: &Arguments, report: &Report) -> ExitCode {
    let tally = report.tally();
    eprintln!("{}: {} in {:.1} s", report.about.name, line(&tally), report.seconds);
    if tally.gone > 0 {
        if let Some(finding) = report.findings.iter().find(|finding| finding.verdict == Verdict::Gone) {
            eprintln!("the device was gone at {}: {}", finding.id, finding.why);
        }
        return ExitCode::from(3);
    }
    let broken = tally.fail_must > 0 || tally.mended > 0 || arguments.strict && tally.fail_should > 0;
    if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
