//! `rxe demo`: two processes of this host execute every operation, and the process that owns the memory checks it.

mod checks;
mod report;

use crate::{
    Result,
    follower::{self, Kind, Setup, Wire},
    measure::{self, Until, Work},
};
use checks::Stage;
use report::{Report, Row};
use rxe_verbs::{Context, ContextOptions, Device, net::Capture};
use std::{
    env,
    fs::File,
    hash::{BuildHasher, RandomState},
    io,
    net::IpAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The interface's name in the capture.
const NAME: &str = "rxe-demo";
/// Both processes have this address, and share its port.
const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
/// It ends before this, whatever happens. A debug build with a trace takes more than 28 s beside a load of twelve.
const DEADLINE: Duration = Duration::from_secs(120);
/// Memory of each side for the checks.
const MEMORY: usize = 2 << 20;
/// Seconds of every bandwidth measurement.
const TIME: Duration = Duration::from_millis(700);
/// Round trips of every latency measurement.
const ROUNDS: u32 = 2000;

/// Show that all of it works here: two processes on this host do every operation and check every byte
///
/// It needs no privilege, no network and no arguments, takes a few seconds, and leaves a capture for Wireshark. The exit
/// code is 0 only if everything was right.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the packets are recorded [default: a new file, rxe-demo-*.pcapng, in the directory for temporary files]
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PeerArgs {
    /// Its address
    address: IpAddr,
}

/// The second process.
pub(crate) fn run_peer(args: &PeerArgs) -> Result<()> {
    let mut wire = Wire::new(Box::new(io::stdin()), Box::new(io::stdout()), "the first process has gone");
    let context = match Context::open_address(args.address) {
        Ok(context) => context,
        Err(error) => return wire.write(&follower::Answer::Failed(error.to_string())),
    };
    wire.write(&follower::Answer::Done)?;
    // The first process tells of failures.
    follower::serve(&context, 0, &mut wire).map(drop)
}

/// The second process, which does not outlive the first.
struct Second(Child);

impl Second {
    fn start() -> Result<(Self, Wire)> {
        let program = env::current_exe()?;
        let mut command = Command::new(program);
        command.arg("demo-peer").arg(ADDRESS.to_string());
        // The first process captures, and sees both directions.
        command.env_remove("RXE_PCAP").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot start a second process: {error}"))?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the second process has no pipes".into());
        };
        let mut wire = Wire::new(Box::new(from), Box::new(to), "the second process has ended");
        let second = Self(child);
        match wire.read()?.ok_or("the second process has ended")? {
            follower::Answer::Done => Ok((second, wire)),
            // It is on this host, too, so the error is not about "the other side".
            follower::Answer::Failed(why) => Err(why.into()),
            other => Err(follower::unexpected(&other)),
        }
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        // It ends by itself when its pipe is closed. Otherwise it is killed; it may have ended already.
        for _ in 0..100 {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let start = Instant::now();
    if Device::of_address(ADDRESS).is_err() {
        return Err(format!(
            "the demonstration runs on {ADDRESS}, which is not up here: `ip link set lo up`"
        )
        .into());
    }
    let (second, mut wire) = Second::start()?;
    // Not earlier, because without a second process there would be an empty file.
    let (pcap, capture) = start_capture(args.pcap.as_deref())?;
    let pid = second.0.id();
    thread::spawn(move || {
        thread::sleep(DEADLINE);
        eprintln!(
            "rxe: the demonstration did not end in {} s (its second process is {pid})",
            DEADLINE.as_secs()
        );
        process::exit(1);
    });
    let mut report = Report::new(args.json);
    report.title(&format!(
        "two processes ({} and {pid}, both on {ADDRESS}), ordinary UDP sockets, no privilege",
        process::id()
    ));
    check_all(&mut wire, &capture, &mut report)?;
    capture.flush().map_err(|error| format!("the capture {} is not complete: {error}", pcap.display()))?;
    if report.passed() {
        measure_all(&mut wire, &mut report)?;
    }
    drop(wire);
    drop(second);
    report.finish(&pcap, capture.packets(), start.elapsed())
}

/// The file, and the capture that is written to it. In the folder that all users share it must not be a file that another user
/// has put there.
fn start_capture(wished: Option<&Path>) -> Result<(PathBuf, Capture)> {
    let (path, capture) = match wished {
        Some(path) => (path.to_owned(), Capture::create(path, NAME)),
        None => {
            let path =
                env::temp_dir().join(format!("rxe-demo-{:016x}.pcapng", RandomState::new().hash_one(0)));
            let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
            (path, file.and_then(|file| Capture::new(Box::new(file), NAME)))
        }
    };
    match capture {
        Ok(capture) => Ok((path, capture)),
        Err(error) => Err(format!(
            "cannot write the capture {}: {error}; name another file with --pcap",
            path.display()
        )
        .into()),
    }
}

fn check_all(wire: &mut Wire, capture: &Capture, report: &mut Report) -> Result<()> {
    let context = ContextOptions::new().capture(capture.clone()).open_address(ADDRESS)?;
    let lines = vec![Kind::Rc, Kind::Uc, Kind::Ud, Kind::Shared, Kind::Shared, Kind::Rc];
    let setup = Setup { lines, memory: MEMORY, mtu: 1024 };
    let (side, card) = wire.set_up(&context, 0, &setup)?;
    let mut stage = Stage::new(wire, &side, &card);
    for check in checks::ALL {
        let result = (check.run)(&mut stage);
        let lost = result.is_err();
        report.check(check.service, check.operation, result);
        if lost {
            // A queue pair may be in the error state now, and further checks would only report this.
            break;
        }
    }
    Ok(())
}

fn measure_all(wire: &mut Wire, report: &mut Report) -> Result<()> {
    let context = Context::open_address(ADDRESS)?;
    let size = 64 << 10;
    let setup = Setup { lines: vec![Kind::Rc], memory: measure::memory(size), mtu: 4096 };
    let (side, card) = wire.set_up(&context, 0, &setup)?;
    let quiet = &mut |_, _| ();
    let until = Until::Time(TIME);
    let mut rate = |name: &str, rate: measure::Rate| report.row(Row::Rate { name: name.to_owned(), rate });
    rate("RC WRITE, 64 KiB", measure::bandwidth(&side, wire, Work::Write, size, until, quiet)?);
    rate("RC READ, 64 KiB", measure::bandwidth(&side, wire, Work::Read, size, until, quiet)?);
    rate("RC SEND, 64 KiB", measure::bandwidth(&side, wire, Work::Send, size, until, quiet)?);
    rate("TCP, 128 KiB writes", measure::tcp_bandwidth(wire, &card, TIME)?);
    let mut time =
        |name: &str, times: measure::Times| report.row(Row::Times { name: name.to_owned(), times });
    // A new pair, so that no receives of earlier measurements are left.
    let setup = Setup { memory: measure::memory(8), ..setup };
    let (side, card) = wire.set_up(&context, 0, &setup)?;
    time("RC WRITE, 8 B", measure::latency(&side, wire, Work::Write, 8, ROUNDS, quiet)?);
    time("RC SEND, 8 B", measure::latency(&side, wire, Work::Send, 8, ROUNDS, quiet)?);
    time("RC READ, 8 B (round trip)", measure::latency(&side, wire, Work::Read, 8, ROUNDS, quiet)?);
    time("TCP, 8 B", measure::tcp_latency(wire, &card, 8, ROUNDS)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    /// All users share the folder, so the name must be unpredictable, and the file readable only by its owner.
    #[test]
    fn a_capture_without_a_name_is_a_new_file_of_our_own() {
        let paths = [(); 2].map(|()| start_capture(None).unwrap().0);
        let modes = paths.each_ref().map(|path| path.symlink_metadata().unwrap().mode() & 0o777);
        paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
        assert_ne!(paths[0], paths[1]);
        assert_eq!(modes, [0o600; 2]);
    }
}
