//! Sets up and ends connections with the connection manager between two processes:
//!
//! ```text
//! cm-load [--count N] [--window N] [--open] [ADDRESS]
//! ```
//!
//! Starts itself as the server, and sets up N connections, each with a queue pair of its own. At most a window of them is in
//! progress at a time. Each connection is ended as soon as it is established, or with `--open` once all are established.
//! Prints a JSON line: how many connections were made and ended per second, and the resources that both processes still hold
//! at the end (memory, descriptors, connections).

use clap::Parser;
use rxe_cm::{CmId, ConnParams, EventChannel, EventKind, Manager, proto::PortSpace};
use rxe_verbs::{Cq, Pd, QpCaps, QpInit, QpType};
use std::{
    collections::{HashMap, HashSet},
    error::Error,
    fs,
    io::{BufRead, BufReader},
    net::{IpAddr, SocketAddr},
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

const PORT: u16 = 18_515;
const PATIENCE: Duration = Duration::from_secs(60);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Connections between two processes, made and ended.
#[derive(Debug, Parser)]
struct Args {
    /// Connections.
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    /// Connections under way at a time.
    #[arg(long, default_value_t = 64)]
    window: usize,
    /// End them only when all stand.
    #[arg(long)]
    open: bool,
    /// Be the server.
    #[arg(long, hide = true)]
    server: bool,
    /// Where the server is.
    #[arg(default_value = "127.0.0.1")]
    address: IpAddr,
}

/// The attributes with which queue pairs are created.
struct Parts {
    pd: Pd,
    cq: Cq,
}

impl Parts {
    fn of(id: &CmId, parts: &mut Option<Self>) -> Result<()> {
        if parts.is_none() {
            let context = id.context().ok_or("the id has no device")?;
            *parts = Some(Self { pd: context.alloc_pd()?, cq: context.create_cq(1024, None)? });
        }
        let Some(Self { pd, cq }) = parts else { return Ok(()) };
        let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        id.create_qp(pd, &QpInit { caps, ..QpInit::new(QpType::Rc, cq) })?;
        Ok(())
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    match if args.server { serve(&args) } else { load(&args) } {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cm-load: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Accepts connections until all of them have ended.
fn serve(args: &Args) -> Result<()> {
    let manager = Manager::open()?;
    let channel = EventChannel::new()?;
    let listener = manager.create_id(&channel, PortSpace::Tcp)?;
    listener.bind(SocketAddr::new(args.address, PORT))?;
    listener.listen(1024)?;
    println!("ready");
    let mut parts = None;
    let mut ended = 0;
    // Keeps the ids alive: dropping an id would destroy it.
    let mut ids = HashSet::new();
    while ended < args.count {
        let event = channel.get_event(Some(PATIENCE))?;
        match event.kind {
            EventKind::ConnectRequest(_) => {
                Parts::of(&event.id, &mut parts)?;
                event.id.accept(&ConnParams::default())?;
                ids.insert(event.id);
            }
            EventKind::Disconnected { .. } => {
                event.id.disconnect()?;
                event.id.release_qp()?;
                ended += 1;
            }
            EventKind::Established(_) => {}
            EventKind::TimewaitExit => _ = ids.remove(&event.id),
            other => return Err(other.words().into()),
        }
    }
    while !ids.is_empty() {
        ids.remove(&channel.get_event(Some(PATIENCE))?.id);
    }
    report("server", &manager, None);
    Ok(())
}

fn load(args: &Args) -> Result<()> {
    let count = args.count.to_string();
    let mut server = Command::new(std::env::current_exe()?)
        .args(["--server", "--count", &count, &args.address.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut output = BufReader::new(server.stdout.take().ok_or("no output")?).lines();
    if output.next().transpose()?.as_deref() != Some("ready") {
        return Err("the server did not start".into());
    }
    let manager = Manager::open()?;
    let channel = EventChannel::new()?;
    let figures = Load { args, manager: &manager, channel: &channel, parts: None }.run()?;
    report("client", &manager, Some(figures));
    if let Some(line) = output.next().transpose()? {
        println!("{line}");
    }
    if server.wait()?.success() { Ok(()) } else { Err("the server failed".into()) }
}

/// Rates in connections per second.
struct Figures {
    /// Connections that were made, and also ended unless `--open` was given.
    made: f64,
    ended: Option<f64>,
}

struct Load<'a> {
    args: &'a Args,
    manager: &'a Manager,
    channel: &'a EventChannel,
    parts: Option<Parts>,
}

impl Load<'_> {
    fn run(&mut self) -> Result<Figures> {
        let Args { count, window, open, .. } = *self.args;
        let start = Instant::now();
        let (mut begun, mut stand, mut ended) = (0, 0, 0);
        let mut ids = HashSet::new();
        let mut stood_at = None;
        while ended < count {
            while begun < count && begun - if open { stand } else { ended } < window {
                self.begin()?;
                begun += 1;
            }
            let event = self.channel.get_event(Some(PATIENCE))?;
            match event.kind {
                EventKind::AddrResolved => event.id.resolve_route()?,
                EventKind::RouteResolved => {
                    Parts::of(&event.id, &mut self.parts)?;
                    event.id.connect(&ConnParams::default())?;
                    ids.insert(event.id);
                }
                EventKind::Established(_) => {
                    stand += 1;
                    if !open {
                        event.id.disconnect()?;
                    } else if stand == count {
                        stood_at = Some(Instant::now());
                        ids.iter().try_for_each(CmId::disconnect)?;
                    }
                }
                EventKind::Disconnected { .. } => {
                    event.id.release_qp()?;
                    ended += 1;
                }
                EventKind::TimewaitExit => _ = ids.remove(&event.id),
                other => return Err(other.words().into()),
            }
        }
        let end = Instant::now();
        while !ids.is_empty() {
            ids.remove(&self.channel.get_event(Some(PATIENCE))?.id);
        }
        let stood_at = stood_at.unwrap_or(end);
        let rate = |time: Duration| count as f64 / time.as_secs_f64();
        Ok(Figures { made: rate(stood_at - start), ended: stood_at.lt(&end).then(|| rate(end - stood_at)) })
    }

    /// Starts a connection. The id's first event keeps the id alive after this function returns.
    fn begin(&self) -> Result<()> {
        let id = self.manager.create_id(self.channel, PortSpace::Tcp)?;
        id.resolve_addr(None, SocketAddr::new(self.args.address, PORT))?;
        Ok(())
    }
}

fn report(who: &str, manager: &Manager, figures: Option<Figures>) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).map_or("", str::trim);
    let descriptors = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let counters: HashMap<_, _> = manager.counters().each().collect();
    let mut line = serde_json::json!({
        "who": who, "rss": rss, "descriptors": descriptors, "left": manager.connections(), "counters": counters,
    });
    if let Some(Figures { made, ended }) = figures {
        line["made_per_second"] = (made as u64).into();
        line["ended_per_second"] = ended.map(|ended| ended as u64).into();
    }
    println!("{line}");
}
