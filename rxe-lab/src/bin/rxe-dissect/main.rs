//! `rxe dissect`: what is in a capture of RoCE traffic.

mod output;
mod pass;

use clap::Parser;
use output::Output;
use pass::{Pass, Stop};
use rxe_core::num::Qpn;
use rxe_lab::{
    capture::{Capture, CaptureError, Follow},
    filter::{self, Filter},
    flow::{Analyzer, Summary},
    report::{ladder, line::Look, text},
};
use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    io::{self, IsTerminal, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Exit status if the capture is damaged or truncated. The readable part was shown.
const DAMAGED: u8 = 3;

/// Explain a capture of RoCE traffic: packets, connections, what was lost and why it was sent again
///
/// Without a filter: a summary of each connection. With one: the packets that it chooses.
/// Exit status: 0, 1 after an error, 3 if the capture is damaged or ends in the middle of a packet.
#[derive(Debug, Parser)]
#[command(name = "rxe-dissect", bin_name = "rxe dissect", version, max_term_width = 100, after_help = after_help())]
struct Args {
    /// A pcap or pcapng file; - for standard input
    file: PathBuf,
    /// Only packets that these words choose (see below)
    filter: Vec<String>,
    /// List packets, all of them where no filter is given
    #[arg(short, long)]
    packets: bool,
    /// List packets with all their fields
    #[arg(short, long)]
    verbose: bool,
    /// Only what belongs to this queue pair, at either end: 18 or 0x12
    #[arg(long, value_name = "QP", value_parser = queue_pair)]
    flow: Option<Qpn>,
    /// Draw the packets as a ladder: .html for a page to zoom, search and unfold, .svg for an image
    #[arg(long, value_name = "FILE")]
    ladder: Option<PathBuf>,
    /// JSON: the summary as one object, or one object for each packet
    #[arg(long)]
    json: bool,
    /// List packets as the file grows, until Ctrl+C; then the summary
    #[arg(short, long)]
    follow: bool,
}

fn after_help() -> String {
    format!(
        "Words of filters:\n{}",
        filter::HELP.lines().map(|line| format!("  {line}\n")).collect::<String>()
    )
}

fn queue_pair(text: &str) -> std::result::Result<Qpn, String> {
    filter::queue_pair(text).ok_or_else(|| "a queue pair number is wanted, 0 to 0xffffff".to_owned())
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(damage)) => {
            eprintln!("rxe dissect: {} {damage}; what is before that was read", args.file.display());
            ExitCode::from(DAMAGED)
        }
        Err(error) => {
            eprintln!("rxe dissect: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the capture can be read twice: it is a file, and not a stream.
fn is_file(args: &Args) -> bool {
    args.file.as_os_str() != "-" && !args.follow && args.file.metadata().is_ok_and(|about| about.is_file())
}

fn open(args: &Args, stop: &Arc<AtomicBool>, out: &Output) -> Result<(Capture, u64)> {
    let name = args.file.display();
    let source: (Box<dyn Read + Send>, u64) = if args.file.as_os_str() == "-" {
        (Box::new(io::stdin()), 0)
    } else {
        let file = File::open(&args.file).map_err(|error| format!("{name}: {error}"))?;
        let len = file.metadata().map_or(0, |about| if about.is_file() { about.len() } else { 0 });
        if args.follow {
            let (stop, out) = (Arc::clone(stop), out.clone());
            let waits = move || {
                // If there is an error, the next write reports it.
                let _ = out.flush();
                !stop.load(Ordering::Relaxed)
            };
            (Box::new(Follow::new(file, waits)), 0)
        } else {
            (Box::new(file), len)
        }
    };
    let capture = Capture::new(source.0).map_err(|error| format!("{name} {error}"))?;
    Ok((capture, source.1))
}

/// Dissects a capture. Returns what was wrong at the end of the capture, if anything was.
fn run(args: &Args) -> Result<Option<CaptureError>> {
    let filter = Filter::parse(&args.filter)?;
    let out = Output::new();
    let stop = Arc::new(AtomicBool::new(false));
    if args.follow {
        let stop = Arc::clone(&stop);
        ctrlc::set_handler(move || stop.store(true, Ordering::Relaxed))?;
    }
    if let Some(file) = &args.ladder {
        is_drawing(file)?;
    }
    let lists = args.packets || args.verbose || args.follow || !args.filter.is_empty();
    let shows = lists || args.ladder.is_some();
    if !is_file(args)
        && args.file.exists()
        && shows
        && (filter.needs_hindsight() || args.flow.is_some() || args.ladder.is_some())
        && !args.follow
    {
        eprintln!(
            "rxe dissect: {} can be read only once: what shows later is not known of earlier packets",
            args.file.display()
        );
    }
    // A first pass finds out what is only known later.
    let first = if shows && is_file(args) { Some(pass(args, None, &stop, &out, |_| Ok(()))?) } else { None };
    let look = Look {
        colours: io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        fields: args.verbose,
    };
    let mut drawn = None;
    let mut chosen = 0_u64;
    let done = pass(args, first.as_ref(), &stop, &out, |shown| {
        if !shows || !shown.is_chosen(&filter, args.flow) {
            return Ok(());
        }
        chosen += 1;
        if args.ladder.is_some() {
            let builder = drawn.get_or_insert_with(|| ladder::Builder::new(&title(&args.file), shown.start));
            builder.add(shown.packet, shown.remark, shown.source_qp());
        }
        if lists {
            if args.json { out.json(&shown.json())? } else { out.line(&shown.line(look))? }
        }
        Ok(())
    })?;
    let summary = of_flow(done.summary, args.flow);
    if let Some(file) = &args.ladder {
        let builder = drawn.unwrap_or_else(|| ladder::Builder::new(&title(&args.file), 0));
        let note = first_lines(&text::summary(&summary));
        write_drawing(file, &builder.finish(&note))?;
        eprintln!("rxe dissect: {}: {chosen} packets", file.display());
    }
    if !lists || args.follow {
        if args.json { out.json(&summary)? } else { out.line(text::summary(&summary).trim_end())? }
    }
    out.flush()?;
    if lists && !args.follow && io::stderr().is_terminal() {
        eprintln!("{chosen} of {} packets", summary.totals.packets);
    }
    Ok(done.damage)
}

/// One pass over the capture; `each` gets every packet.
fn pass(
    args: &Args,
    first: Option<&Stop>,
    stop: &Arc<AtomicBool>,
    out: &Output,
    each: impl FnMut(&pass::Shown<'_, '_>) -> Result<()>,
) -> Result<Stop> {
    let (capture, len) = open(args, stop, out)?;
    let analyzer = first.map_or_else(Analyzer::new, |first| Analyzer::again(&first.analyzer));
    Pass { capture, analyzer, known: first, len, stop }.run(each)
}

/// The summary of one queue pair's connections.
fn of_flow(mut summary: Summary, flow: Option<Qpn>) -> Summary {
    if let Some(qp) = flow {
        let has = |number: Option<u32>| number == Some(qp.value());
        summary.connections.retain(|connection| connection.ends.iter().any(|(_, number)| has(*number)));
        summary.datagrams.retain(|flow| has(Some(flow.from_qp)) || has(Some(flow.to_qp)));
        // The connections contain their places.
        let kept: BTreeSet<_> =
            summary.connections.iter().filter_map(|connection| connection.conversation).collect();
        let places: HashMap<_, _> = kept.iter().enumerate().map(|(to, at)| (*at, to)).collect();
        let list = std::mem::take(&mut summary.conversations);
        summary.conversations =
            list.into_iter().enumerate().filter(|(at, _)| kept.contains(at)).map(|(_, one)| one).collect();
        for connection in &mut summary.connections {
            connection.conversation = connection.conversation.and_then(|at| places.get(&at).copied());
        }
    }
    summary
}

fn title(file: &Path) -> String {
    file.file_name().unwrap_or(file.as_os_str()).display().to_string()
}

fn first_lines(text: &str) -> String {
    text.lines().take_while(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

/// What to draw, by the ending of the name: a page (`true`) or an image.
fn is_drawing(file: &Path) -> Result<bool> {
    match file.extension().and_then(|end| end.to_str()) {
        Some("html" | "htm") => Ok(true),
        Some("svg") => Ok(false),
        _ => Err(format!("--ladder {}: a name that ends in .html or .svg is wanted", file.display()).into()),
    }
}

fn write_drawing(file: &Path, ladder: &rxe_ladder::Ladder) -> Result<()> {
    let drawing = if is_drawing(file)? { ladder.html().to_string() } else { ladder.svg().to_string() };
    let written = File::create(file).and_then(|mut into| into.write_all(drawing.as_bytes()));
    written.map_err(|error| format!("--ladder {}: {error}", file.display()).into())
}
