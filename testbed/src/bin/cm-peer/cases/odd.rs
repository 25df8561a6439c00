//! Requests that are wrong in one thing each, by a process of their own (`cm-peer odd`): the reason for which a kernel refuses.

use super::{Bench, Case};
use rxe_cm::proto::PortSpace;
use std::{net::SocketAddr, process::Command};
use testbed::agent::Failure;

pub(super) const ALL: &[Case] = &[
    Case {
        name: "REQ by hand, nothing wrong with it: refused by the program (28)",
        ours: Some(plain),
        kernel: None,
    },
    Case {
        name: "REQ of a partition that is not there (12)",
        ours: Some(|bench| refused(bench, "partition", 12)),
        kernel: None,
    },
    Case {
        name: "REQ with an alternate path to nowhere (18)",
        ours: Some(|bench| refused(bench, "alternate path", 18)),
        kernel: None,
    },
    Case {
        name: "REQ for another transport than the listener's (28)",
        ours: Some(|bench| refused(bench, "transport", 28)),
        kernel: None,
    },
    Case {
        name: "REQ without an IP CM header (28)",
        ours: Some(|bench| refused(bench, "IP header", 28)),
        kernel: None,
    },
    Case {
        name: "REQ to an address that nobody has (28)",
        ours: Some(|bench| refused(bench, "address", 28)),
        kernel: None,
    },
    Case {
        name: "REQ for a service ID of no port space (8)",
        ours: Some(|bench| refused(bench, "service", 8)),
        kernel: None,
    },
];

fn odd(bench: &Bench, kind: &str, to: SocketAddr) -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    let (ours, theirs) = (bench.peer.options.ours.to_string(), to.ip().to_string());
    command.args(["odd", "client", &ours, &theirs, &format!("port={}", to.port()), &format!("kind={kind}")]);
    Ok(command)
}

fn plain(bench: &Bench) -> Result<(), Failure> {
    let (_listener, address) = bench.their_listener(PortSpace::Tcp)?;
    let child = odd(bench, "plain", address)?.stdout(std::process::Stdio::piped()).spawn()?;
    let (theirs, _) = bench.they_are_asked()?;
    theirs.call("cm_reject", &[])?;
    says(&child.wait_with_output()?, 28)
}

fn refused(bench: &Bench, kind: &str, reason: u16) -> Result<(), Failure> {
    let (_listener, address) = bench.their_listener(PortSpace::Tcp)?;
    says(&odd(bench, kind, address)?.output()?, reason)
}

fn says(output: &std::process::Output, reason: u16) -> Result<(), Failure> {
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && text.lines().any(|line| line == format!("rejected {reason}")) {
        return Ok(());
    }
    Err(format!("expected \"rejected {reason}\", not {text:?} {}", String::from_utf8_lossy(&output.stderr))
        .into())
}
