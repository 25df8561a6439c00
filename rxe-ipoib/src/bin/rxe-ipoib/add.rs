//! Creating an interface. The interface lives as long as a process. By default this is a new process in the background, which
//! writes a line when the interface exists, or why it does not.

use super::Result;
use rxe_ipoib::{Interface, Mode, Options};
use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    process::{Command, Stdio},
};

/// The line that says that the interface exists.
const READY: &str = "ready";
/// Most bytes of a reason.
const MOST_WORDS: u64 = 4096;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The interface's name, as ib0; a child for another partition is usually called ib0.8002
    name: String,
    /// RDMA device or network interface [default: the first device]
    #[arg(long, short = 'd')]
    device: Option<String>,
    /// Partition, a key of the port's table [default: the first]
    #[arg(long, value_parser = pkey)]
    pkey: Option<u16>,
    /// How packets cross
    #[arg(long, value_enum, default_value_t)]
    mode: Mode,
    /// Index of the GID to be found by [default: that of the link-local address, else 0]
    #[arg(long)]
    gid_index: Option<u8>,
    /// MTU below what is possible: 65520 in connected mode, else the port's less 4
    #[arg(long)]
    mtu: Option<u16>,
    /// Be the interface until a signal comes, in the place of a process in the background
    #[arg(long, short = 'f')]
    foreground: bool,
    /// Leave the terminal and the session
    #[arg(long, hide = true)]
    detached: bool,
}

fn pkey(text: &str) -> std::result::Result<u16, String> {
    let digits = text.strip_prefix("0x");
    let key = digits.map_or_else(|| text.parse(), |digits| u16::from_str_radix(digits, 16));
    match key {
        Ok(key) if key & 0x7fff != 0 => Ok(key),
        _ => Err("not a P_Key: 0x8001 to 0xffff, or without the highest bit".to_owned()),
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if !args.foreground && !args.detached {
        return start();
    }
    if args.detached {
        // It is not the leader of a process group, because it was just started.
        let _ = nix::unistd::setsid();
    }
    let interface = Interface::open(&Options {
        name: args.name.clone(),
        device: args.device.clone(),
        gid_index: args.gid_index,
        pkey: args.pkey,
        mode: args.mode,
        mtu: args.mtu,
    })?;
    let stopper = interface.stopper();
    ctrlc::set_handler(move || stopper.stop())?;
    let report = interface.report();
    let line = if args.detached { READY.to_owned() } else { describe(&report) };
    // The process that started it may have ended already.
    let _ = writeln!(std::io::stdout(), "{line}");
    interface.run()?;
    Ok(())
}

fn describe(report: &rxe_ipoib::Report) -> String {
    format!("{}: {} mtu {} link/infiniband {}", report.name, report.device, report.mtu, report.address)
}

/// Starts the process, and waits until the interface exists.
fn start() -> Result<()> {
    let mut child = Command::new(env::current_exe()?)
        // Before the other arguments, because the last one may be behind "--".
        .args(["add", "--detached"])
        .args(env::args_os().skip(2))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .current_dir("/")
        .spawn()?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output.take(MOST_WORDS)).read_line(&mut line)?;
    }
    if line.trim_end() == READY {
        return Ok(());
    }
    let mut words = String::new();
    if let Some(errors) = child.stderr.take() {
        errors.take(MOST_WORDS).read_to_string(&mut words)?;
    }
    child.wait()?;
    let words = words.trim_end();
    Err(words
        .strip_prefix("rxe ipoib: ")
        .unwrap_or(if words.is_empty() { "the process ended without a word" } else { words })
        .into())
}
