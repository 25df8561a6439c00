//! The answering process. It prints one line about itself, reads one line about the other side, and ends when its input
//! ends.

use crate::{
    across::Wire,
    ours::{self, Card, Sleep},
    raw,
};
use benches::{ends::Result, turns::processor_seconds};
use clap::ValueEnum;
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read, Write, stdin, stdout},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// What the answering side does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Role {
    /// Takes WRITEs, SENDs and READs, polling.
    Absorb,
    /// The same, waiting for events.
    AbsorbAsleep,
    /// Sends each SEND back, polling.
    Echo,
    /// The same, waiting for events.
    EchoAsleep,
    /// Sends each datagram back, polling.
    Udp,
    /// The same, waiting.
    UdpAsleep,
    /// Takes datagrams, polling.
    UdpCount,
    /// Checks, places and acknowledges batches of packets.
    Limit,
}

/// Detects the end of the input, and measures the processor time used until then.
pub(crate) struct Stop {
    ended: Arc<AtomicBool>,
    before: f64,
}

impl Stop {
    /// Watches the input from now on.
    pub(crate) fn watch() -> Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        thread::spawn(move || {
            let _ = stdin().read_to_end(&mut Vec::new());
            seen.store(true, Ordering::Relaxed);
        });
        Ok(Self { ended, before: processor_seconds()? })
    }

    pub(crate) fn is_near(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Prints the last line: the processor time used since the watch began, in seconds.
    pub(crate) fn tell(&self) -> Result<()> {
        say(&(processor_seconds()? - self.before).into())
    }
}

/// Prints a line for the other side.
pub(crate) fn say(value: &Value) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{value}")?;
    Ok(out.flush()?)
}

/// Reads a line from the other side.
pub(crate) fn hear() -> Result<Value> {
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

pub(crate) fn run(role: Role, qps: usize, len: u32, wire: Wire) -> Result<()> {
    match role {
        Role::Absorb => ours::absorb(wire, qps, len, Sleep::No),
        Role::AbsorbAsleep => ours::absorb(wire, qps, len, Sleep::Yes),
        Role::Echo => ours::echo(Sleep::No),
        Role::EchoAsleep => ours::echo(Sleep::Yes),
        Role::Udp => raw::echo(Sleep::No),
        Role::UdpAsleep => raw::echo(Sleep::Yes),
        Role::UdpCount => raw::count(),
        Role::Limit => raw::take(len as usize),
    }
}

/// The answering process, as the measuring process sees it.
pub(crate) struct Other {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Other {
    /// Starts it with `qps` queue pairs, for messages of `len` bytes (packets of this payload for `Limit`).
    pub(crate) fn start(
        role: Role,
        qps: usize,
        len: u32,
        (wire, environment): (Wire, Option<(&str, &str)>),
    ) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let name = role.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        command.args(["answer", &name, &qps.to_string(), &len.to_string(), &wire.name()]).envs(environment);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Self { child, input, output })
    }

    pub(crate) fn hear(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(serde_json::from_str(&line).map_err(|error| format!("the other side said {line:?}: {error}"))?)
    }

    pub(crate) fn say(&mut self, value: &Value) -> Result<()> {
        let input = self.input.as_mut().ok_or("no input")?;
        writeln!(input, "{value}")?;
        Ok(input.flush()?)
    }

    /// Ends it. Returns the processor time that it used for answering, in seconds.
    pub(crate) fn end(mut self) -> Result<f64> {
        self.input = None;
        let said = self.hear();
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("the other side ended with {status}").into());
        }
        Ok(said?.as_f64().ok_or("no processor time")?)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // The process has already ended, unless an error occurred.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Parses the line in which a side describes itself.
pub(crate) fn card(value: &Value) -> Result<Card> {
    let number = |name: &str| value[name].as_u64().ok_or_else(|| format!("no {name} in {value}"));
    let qpns = value["qpns"].as_array().ok_or("no qpns")?;
    Ok(Card {
        qpns: qpns.iter().filter_map(Value::as_u64).map(|qpn| qpn as u32).collect(),
        addr: number("addr")?,
        rkey: number("rkey")? as u32,
    })
}
