//! `rxe service`: the process of the host that hands out shares of port 4791.

use crate::{Result, output};
use rxe_verbs::host::{HostConfig, Observer, Place, Service, ServiceError, report::ServiceReport};
use std::{
    collections::BTreeSet,
    env,
    fs::File,
    io::{self, Read},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The host service: lets several processes use port 4791. Started by whoever needs it first
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show the processes that share the port, and how the service is
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Show the service's log too
        #[arg(long)]
        log: bool,
    },
    /// Start the service in the background, if there is none; it ends when nobody has needed it for a while
    Start,
    /// Be the service, in the foreground, and print its log
    Run {
        /// Leave the terminal and the session
        #[arg(long, hide = true)]
        detached: bool,
    },
    /// Have it read its configuration again: partitions, lanes and limits hold for running programs from now on
    Reload {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Have the service end with its last client
    Stop,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match args.action {
        Action::Status { json, log } => status(json, log),
        Action::Start => start(),
        Action::Run { detached } => serve(detached),
        Action::Reload { json } => reload(json),
        Action::Stop => stop(),
    }
}

/// The service of this network namespace.
pub(crate) fn observer() -> Result<Observer> {
    Observer::connect()?.ok_or_else(|| {
        "there is no host service here (in this network namespace); the first program that uses rxe starts it".into()
    })
}

fn status(json: bool, log: bool) -> Result<()> {
    let report = observer()?.status()?;
    if json {
        output::json(&report)?;
        return Ok(());
    }
    out!("{}", describe(&report));
    if log {
        outln!("log (seconds since the start)");
        for line in &report.log {
            outln!("  {line}");
        }
    }
    Ok(())
}

fn describe(report: &ServiceReport) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    let kind = if report.embedded { "inside process" } else { "process" };
    let families = match report.families {
        (true, true) => "IPv4 and IPv6",
        (true, false) => "IPv4",
        (false, true) => "IPv6",
        (false, false) => "no address family yet",
    };
    let keys: Vec<String> = report.pkeys.iter().map(|key| format!("{key:#06x}")).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "rxe {} host service, {kind} {}, user {}, up {} s\nport 4791, {families}, {} for each, P_Keys {}",
        report.release,
        report.pid,
        report.uid,
        report.seconds,
        counted(report.members, "socket", "sockets"),
        keys.join(" ")
    );
    // A process may have several slots. If that is unknown, each counts as one of another process.
    let pids: BTreeSet<i32> =
        report.clients.iter().map(|client| client.pid).filter(|pid| *pid != 0).collect();
    let unknown = report.clients.iter().filter(|client| client.pid == 0).count();
    let processes = counted(pids.len() + unknown, "process", "processes");
    let _ = writeln!(
        text,
        "{processes}, {} at rest (free for another in some seconds)",
        counted(report.resting.len(), "slot", "slots")
    );
    if !report.clients.is_empty() {
        let _ = writeln!(text, "  {:8}  {:>8}  program", "slot", "process");
    }
    for client in &report.clients {
        let away = if client.connected { "" } else { "  not connected" };
        let _ = writeln!(text, "  slot {:3}  {:8}  {}{away}", client.slot, client.pid, client.name);
        for listen in &client.listening {
            let address = listen.address.map_or_else(|| "all addresses".to_owned(), |a| a.to_string());
            let _ = writeln!(
                text,
                "             listens to {} on {address}",
                service_in_words(listen.service_id)
            );
        }
    }
    for exchanged in report.exchanged.iter().filter(|exchanged| exchanged.strayed + exchanged.given > 0) {
        let _ = writeln!(
            text,
            "  slot {:3}  {} packets for others came to it, {} were given to it by the service",
            exchanged.slot, exchanged.strayed, exchanged.given
        );
    }
    for (name, value, words) in report.counters.explained().filter(|(_, value, _)| *value > 0) {
        let _ = writeln!(text, "  {name:<12} {value:>8}  {words}");
    }
    text
}

/// A number with its noun.
pub(crate) fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// A service ID as users know it: the port of rdma_cm that stands for it (IBTA vol. 1, annex A11.2.2).
fn service_in_words(service_id: u64) -> String {
    let port = service_id & 0xffff;
    match service_id >> 16 {
        0x106 => format!("TCP port {port} of rdma_cm"),
        0x111 => format!("UDP port {port} of rdma_cm"),
        _ => format!("service ID {service_id:#018x}"),
    }
}

/// Starts the service, and ends as soon as it runs or has failed. So the service is no child of the caller, and the caller
/// learns why there is none.
fn start() -> Result<()> {
    rxe_verbs::host::start_afresh();
    let mut command = Command::new(env::current_exe()?);
    command.args(["service", "run", "--detached"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // The child creates a new session later. Until then it must not get signals of our terminal.
    command.process_group(0).current_dir("/");
    let failed = |error: io::Error| format!("cannot start the host service: {error}");
    let mut service = command.spawn().map_err(failed)?;
    let mut said = String::new();
    if let Some(mut errors) = service.stderr.take() {
        // It writes an error to this pipe, or closes it.
        errors.read_to_string(&mut said).map_err(failed)?;
    }
    let said = said.trim();
    if said.is_empty() { Ok(()) } else { Err(said.strip_prefix("rxe: ").unwrap_or(said).into()) }
}

fn serve(detached: bool) -> Result<()> {
    if detached {
        rxe_verbs::host::start_afresh();
    }
    let place = if detached { Place::Background } else { Place::Foreground };
    match Service::start(HostConfig::load()?, place) {
        Ok(service) => {
            if detached {
                let null = File::options().write(true).open("/dev/null")?;
                nix::unistd::dup2_stderr(null)?;
            }
            service.run();
            Ok(())
        }
        Err(ServiceError::Running) if detached => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn reload(json: bool) -> Result<()> {
    let report = observer()?.reload()?;
    if let Some(error) = &report.error {
        return Err(format!("nothing was changed: {error}").into());
    }
    for warning in &report.warnings {
        eprintln!("rxe: {warning}");
    }
    if json {
        return output::json(&report);
    }
    let changed = |is| if is { "changed" } else { "as before" };
    outln!(
        "P_Keys {}, lanes {}, {} told",
        changed(report.pkeys),
        changed(report.lanes),
        counted(report.told, "process", "processes")
    );
    Ok(())
}

fn stop() -> Result<()> {
    let Some(observer) = Observer::connect()? else { return Ok(()) };
    observer.stop()?;
    drop(observer);
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        if Observer::connect()?.is_none() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Err("the host service goes on until its last client ends; `rxe service status` lists them".into())
}
