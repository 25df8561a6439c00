//! The other end of the programs of rdmacm-utils, perftest and qperf that connect by rdma_cm: what they say on the wire,
//! over our connection manager. The programs themselves run on a kernel's rxe (`testbed/interop/cm.py`).
//!
//! ```text
//! cm-peer PROGRAM client|server OUR-IP THEIR-IP [NAME=VALUE ...]
//! cm-peer cases AGENT OUR-IP THEIR-IP [port=FIRST] [set=brief|lossy] [only=PART-OF-A-NAME]
//! ```
//! PROGRAM may also be `hold`, which makes a connection and waits, or `odd`, which asks in a wrong way. `sent=FILE` notes what was
//! meant by each message sent. A server prints `listening` when it does. Exit 0 if all went as the program's protocol says and the data was right.

mod cases;
mod hold;
mod mckey;
mod node;
mod odd;
mod options;
mod peer;
mod rdma_pair;
mod record;
mod ucmatose;
mod udaddy;

use options::Options;
use peer::Peer;
use std::process::ExitCode;
use testbed::agent::Failure;

fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [program, role, ours, theirs, rest @ ..] = words.as_slice() else {
        return Err("usage: cm-peer PROGRAM client|server OUR-IP THEIR-IP [NAME=VALUE ...]".into());
    };
    if *program == "cases" {
        return cases::play(role, Options::parse("client", ours, theirs, rest)?);
    }
    if *program == "odd" {
        return odd::play(&Options::parse(role, ours, theirs, rest)?);
    }
    let peer = Peer::open(Options::parse(role, ours, theirs, rest)?)?;
    match *program {
        "hold" => hold::play(&peer),
        "mckey" => mckey::play(&peer),
        "udaddy" => udaddy::play(&peer),
        "ucmatose" => ucmatose::play(&peer),
        "rdma_client" | "rdma_server" => rdma_pair::play(&peer),
        "rdma_xclient" | "rdma_xserver" => rdma_pair::play_one_way(&peer),
        other => Err(format!("no program {other}").into()),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => {
            println!("done");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cm-peer: {error}");
            ExitCode::FAILURE
        }
    }
}
