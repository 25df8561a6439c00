//! Measures requests and answers between programs with an event loop. A server sends back what it receives. A client has one
//! request outstanding on each connection. Both sleep while there is nothing to do. The messages travel over TCP, or over
//! reliable queue pairs whose completion channels are waited for in the ways that programs use. Prints answers per second,
//! percentiles of the round trip time, and the processor time and wake-ups per answer, as a table or as JSON.

mod bare;
mod dead;
mod measure;
mod rdma;
mod tcp;
mod wait;

use benches::{
    ends::Result,
    turns::{self, Hog},
};
use clap::{Parser, ValueEnum};
use measure::{Figures, Spent};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write, stdin, stdout},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};
use wait::How;

/// What carries the messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Wire {
    /// Stream sockets.
    Tcp,
    /// Reliable queue pairs with one completion queue for all.
    One,
    /// Reliable queue pairs, each with a completion queue and a channel of its own.
    Each,
    /// Datagrams and event descriptors without RDMA: the least that `each` costs in user space.
    Bare,
}

/// Requests and answers by programs with an event loop
#[derive(Clone, Debug, Parser)]
struct Args {
    /// What carries the messages; several are measured in turns
    #[arg(long, value_delimiter = ',', default_value = "tcp,one,each")]
    wire: Vec<Wire>,
    /// How both programs wait (TCP and `bare`: by level-triggered epoll)
    #[arg(long, default_value = "epoll")]
    wait: How,
    /// Connections; several are measured one after the other
    #[arg(long, value_delimiter = ',', default_value = "1,50,500")]
    connections: Vec<usize>,
    /// Bytes of a message; several are measured one after the other
    #[arg(long, value_delimiter = ',', default_value = "64,16384")]
    size: Vec<usize>,
    /// Times that each is measured; medians are printed
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of a measurement, after a quarter of that to get going
    #[arg(short = 'D', long, default_value_t = 1.0)]
    seconds: f64,
    /// Busy loops beside it
    #[arg(long, default_value_t = 0)]
    hogs: usize,
    /// Measure queue pairs also beside two others of the client, with this timeout code, whose peers are in the error state: one has
    /// four READs of 1 MiB under way, the other four WRITEs (17: until they fail after 4 s, 0: for ever)
    #[arg(long)]
    dead: Option<u8>,
    /// Without the library's look once a millisecond on programs that have been there lately
    #[arg(long)]
    no_ticks: bool,
    /// A line of JSON for each row in the place of the table
    #[arg(long)]
    json: bool,
    /// The other process of a measurement
    #[arg(long, hide = true)]
    serve: bool,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Plan {
    wire: Wire,
    wait: How,
    connections: usize,
    size: usize,
    ticks: bool,
    seconds: f64,
    /// The timeout code of queue pairs with dead peers, if there are any.
    dead: Option<u8>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.serve {
        return serve(plan(&args, (args.wire[0], args.dead), args.connections[0], args.size[0]));
    }
    let _hogs = Hog::start(args.hogs)?;
    if !args.json {
        println!(
            "{}, load {}, {} busy loops beside it, wait by {:?}\n",
            turns::machine(),
            turns::load(),
            args.hogs,
            args.wait
        );
        println!(
            "| connections | bytes | wire | answers/s | / TCP | p50 us | p99 us | / TCP | CPU us | wake-ups |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|");
    }
    for &connections in &args.connections {
        for &size in &args.size {
            rows(&args, connections, size)?;
        }
    }
    Ok(())
}

const fn plan(args: &Args, (wire, dead): Variant, connections: usize, size: usize) -> Plan {
    Plan { wire, wait: args.wait, connections, size, ticks: !args.no_ticks, seconds: args.seconds, dead }
}

/// A wire, and the timeout code of the queue pairs with dead peers that are used beside it, if any.
type Variant = (Wire, Option<u8>);

/// The variants that are measured in turns.
fn variants(args: &Args) -> Vec<Variant> {
    let is_rdma = |wire| matches!(wire, Wire::One | Wire::Each);
    let beside = args.wire.iter().filter(|wire| is_rdma(**wire) && args.dead.is_some());
    let alone = args.wire.iter().map(|wire| (*wire, None));
    alone.chain(beside.map(|wire| (*wire, args.dead))).collect()
}

/// Measures all variants in turns, and prints the medians.
fn rows(args: &Args, connections: usize, size: usize) -> Result<()> {
    let variants = variants(args);
    let mut found: Vec<Vec<Figures>> = vec![Vec::new(); variants.len()];
    for _ in 0..args.rounds {
        for (figures, &variant) in found.iter_mut().zip(&variants) {
            figures.push(run(plan(args, variant, connections, size))?);
        }
    }
    let medians: Vec<Figures> = found.iter().map(|rounds| Figures::median(rounds)).collect();
    let tcp = variants.iter().position(|(wire, _)| *wire == Wire::Tcp).map(|at| medians[at]);
    for ((wire, dead), mine) in variants.iter().zip(&medians) {
        let mut name = wire.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        if let Some(code) = dead {
            name += &format!(", dead peers ({code})");
        }
        if args.json {
            let line = json!({ "connections": connections, "bytes": size, "wire": name, "figures": mine });
            println!("{line}");
            continue;
        }
        let ratio = |pick: fn(&Figures) -> f64| {
            tcp.as_ref().map_or_else(String::new, |tcp| format!("{:.2}", pick(mine) / pick(tcp)))
        };
        println!(
            "| {connections} | {size} | {name} | {:.0} | {} | {:.0} | {:.0} | {} | {:.1} | {:.2} |",
            mine.rate,
            ratio(|figures| figures.rate),
            mine.p50,
            mine.p99,
            ratio(|figures| figures.p99),
            mine.processor,
            mine.wakeups,
        );
    }
    Ok(())
}

fn run(plan: Plan) -> Result<Figures> {
    let mut server = Server::start(plan)?;
    let (spent, answers) = match plan.wire {
        Wire::Tcp => tcp::ask(plan, &mut server)?,
        Wire::Bare => bare::ask(plan, &mut server)?,
        Wire::One | Wire::Each => rdma::ask(plan, &mut server)?,
    };
    let theirs = server.end()?;
    Ok(Figures::new(answers, spent, theirs))
}

fn serve(plan: Plan) -> Result<()> {
    match plan.wire {
        Wire::Tcp => tcp::serve(plan),
        Wire::Bare => bare::serve(plan),
        Wire::One | Wire::Each => rdma::serve(plan),
    }
}

/// Prints a line for the other process.
fn say(value: &Value) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{value}")?;
    Ok(out.flush()?)
}

/// Reads a line from the other process.
fn hear() -> Result<Value> {
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Answers until the other process asks to stop, and then reports the resources used. `answer` calls its argument to learn
/// whether to go on.
fn until_told(answer: impl FnOnce(&dyn Fn() -> bool) -> Result<()>) -> Result<()> {
    let (before, end) = (Spent::now()?, AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = hear();
            end.store(true, Ordering::Relaxed);
        });
        answer(&|| !end.load(Ordering::Relaxed))
    })?;
    say(&serde_json::to_value(Spent::now()?.since(before))?)
}

/// The answering process. It prints one line about itself and reads one line about this process. It ends when its input
/// ends, with a line that reports the resources it has used.
struct Server {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Server {
    fn start(plan: Plan) -> Result<Self> {
        let name = |value: Option<clap::builder::PossibleValue>| {
            value.map(|value| value.get_name().to_owned()).unwrap_or_default()
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--serve", "--wire", &name(plan.wire.to_possible_value())]);
        command.args(["--wait", &name(plan.wait.to_possible_value())]);
        command.args(["--connections", &plan.connections.to_string(), "--size", &plan.size.to_string()]);
        if !plan.ticks {
            command.arg("--no-ticks");
        }
        if let Some(code) = plan.dead {
            command.args(["--dead", &code.to_string()]);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Self { child, input, output })
    }

    fn hear(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(serde_json::from_str(&line).map_err(|error| format!("the server said {line:?}: {error}"))?)
    }

    fn say(&mut self, value: &Value) -> Result<()> {
        let input = self.input.as_mut().ok_or("no input")?;
        writeln!(input, "{value}")?;
        Ok(input.flush()?)
    }

    fn end(mut self) -> Result<Spent> {
        self.input = None;
        let said = self.hear();
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("the server ended with {status}").into());
        }
        Ok(serde_json::from_value(said?)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process has already ended, unless an error occurred.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
