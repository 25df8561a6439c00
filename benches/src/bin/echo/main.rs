//! Requests and answers by programs with an event loop: a server that sends back what it gets, and a client with one request
//! under way on each connection, both asleep while there is nothing to do. Over TCP, and over reliable queue pairs whose
//! completion channels are waited for in the ways that programs have. Prints answers a second, percentiles of the round
//! trip, and what an answer costs in processor time and wake-ups, as a table or JSON.

mod bare;
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
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.serve {
        return serve(plan(&args, args.wire[0], args.connections[0], args.size[0]));
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

const fn plan(args: &Args, wire: Wire, connections: usize, size: usize) -> Plan {
    Plan { wire, wait: args.wait, connections, size, ticks: !args.no_ticks, seconds: args.seconds }
}

/// Measures each wire in turns, and prints the medians.
fn rows(args: &Args, connections: usize, size: usize) -> Result<()> {
    let mut found: Vec<Vec<Figures>> = vec![Vec::new(); args.wire.len()];
    for _ in 0..args.rounds {
        for (figures, &wire) in found.iter_mut().zip(&args.wire) {
            figures.push(run(plan(args, wire, connections, size))?);
        }
    }
    let medians: Vec<Figures> = found.iter().map(|rounds| Figures::median(rounds)).collect();
    let tcp = args.wire.iter().position(|wire| *wire == Wire::Tcp).map(|at| medians[at]);
    for (wire, mine) in args.wire.iter().zip(&medians) {
        let name = wire.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
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

/// The line of the other process.
fn hear() -> Result<Value> {
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Answers until the other process says that it is enough, and tells it what that took. `answer` asks whether to go on.
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

/// The answering process. It says a line about itself, hears one about us, and ends when its input does, with a line that
/// says what it has spent.
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
        // It is gone already unless something went wrong.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
