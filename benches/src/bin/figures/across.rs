//! WRITEs of 64 KiB between two network namespaces that are joined by a veth pair: by the UDP link, by the raw link, and by
//! the raw link without the kernel cutting batches into packets. Each measurement is a process of its own, whose environment
//! selects the link. Network namespaces and packet sockets need root.

use crate::{
    answer::Other,
    ours::{self, Load, Traffic},
    plan::K64,
};
use benches::ends::Result;
use clap::ValueEnum;
use nix::{
    sched::{CloneFlags, unshare},
    unistd::{geteuid, gettid},
};
use serde_json::{Value, json};
use std::{
    net::IpAddr,
    process::{Command, Stdio},
    sync::mpsc::channel,
    thread,
};

/// MTU of the pair: packets carry 4096 bytes of payload.
const MTU: u32 = 9000;

/// What joins the two processes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, ValueEnum)]
pub(crate) enum Wire {
    /// The loopback interface and UDP sockets.
    #[default]
    Loopback,
    /// The pair, by UDP sockets.
    VethUdp,
    /// The pair, by raw frames; the kernel cuts batches (PACKET_VNET_HDR).
    VethRaw,
    /// The pair, by raw frames, each of them written here.
    VethFrames,
}

impl Wire {
    pub(crate) fn address(self, answers: bool) -> IpAddr {
        let last = if answers { 1 } else { 2 };
        IpAddr::from(if self == Self::Loopback { [127, 77, 91, last] } else { [10, 77, 91, last] })
    }

    pub(crate) fn is_pair(self) -> bool {
        self != Self::Loopback
    }

    /// Its name among the arguments.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    const fn environment(self) -> (&'static str, &'static str) {
        match self {
            Self::Loopback | Self::VethUdp => ("udp", ""),
            Self::VethRaw => ("raw", ""),
            Self::VethFrames => ("raw", "gso"),
        }
    }
}

/// Whether this user may create network namespaces and packet sockets.
pub(crate) fn is_possible() -> bool {
    geteuid().is_root()
}

/// Runs a measurement in another process of this program; see [`run`].
pub(crate) fn measure(wire: Wire, seconds: f64) -> Result<Traffic> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["across", &wire.name(), &seconds.to_string()]).stdin(Stdio::null());
    let (link, without) = wire.environment();
    let output =
        command.env("RXE_LINK", link).env("RXE_NET_DISABLE", without).stderr(Stdio::inherit()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let number = |told: &Value, name| told[name].as_f64();
    let traffic = serde_json::from_str::<Value>(&said).ok().and_then(|told| {
        Some(Traffic { messages: number(&told, "messages")?, processor: number(&told, "processor")? })
    });
    traffic.filter(|_| output.status.success()).ok_or_else(|| format!("{}: {said}", output.status).into())
}

/// Measures, and prints the result.
pub(crate) fn run(wire: Wire, seconds: f64) -> Result<()> {
    let Traffic { messages, processor } = ours::messages(Load { wire, ..K64 }, seconds)?;
    println!("{}", json!({ "messages": messages, "processor": processor }));
    Ok(())
}

/// Moves this thread to a network namespace of its own. Calls `start` in another namespace, at the other end of a veth pair.
pub(crate) fn start(wire: Wire, start: impl FnOnce() -> Result<Other> + Send) -> Result<Other> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    ip("link set lo up")?;
    let (ready, there) = channel();
    let (go, joined) = channel();
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            ready.send(gettid())?;
            joined.recv()?;
            ip("link set lo up")?;
            end("v1", wire.address(true))?;
            start()
        });
        let peer = there.recv().map_err(|_| "no network namespace can be made")?;
        ip(&format!("link add v0 mtu {MTU} type veth peer name v1 mtu {MTU} netns {peer}"))?;
        go.send(())?;
        let other = other.join().map_err(|_| "the thread that starts the other side is gone")??;
        end("v0", wire.address(false))?;
        Ok(other)
    })
}

/// Sets up one end of the pair.
fn end(name: &str, address: IpAddr) -> Result<()> {
    ip(&format!("link set {name} up"))?;
    ip(&format!("addr add {address}/24 dev {name}"))
}

fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip {arguments}: {said}").into()) }
}
