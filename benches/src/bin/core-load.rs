//! Sends messages between two endpoints in one thread, for counting instructions:
//!
//! ```text
//! valgrind --tool=callgrind core-load write 65536 4096 200
//! ```
//!
//! The arguments are the operation, the bytes of a message, the path MTU, and the number of messages. A fifth argument
//! `lanes` adds virtual lanes with arbitration, of which one is used. Run it with two numbers of messages, and divide the
//! difference in instructions by the difference in packets; `scripts/instructions` does that.

use benches::direct::{Direct, Op};
use rxe_core::qp::Mtu;
use std::process::ExitCode;

fn parse(args: &[String]) -> Option<(Op, u32, Mtu, u32, bool)> {
    let [op, size, mtu, count, lanes @ ..] = args else { return None };
    let op = Op::ALL.into_iter().find(|known| known.name() == op)?;
    let lanes = match lanes {
        [] => false,
        [word] if word == "lanes" => true,
        _ => return None,
    };
    Some((op, size.parse().ok()?, Mtu::from_bytes(mtu.parse().ok()?)?, count.parse().ok()?, lanes))
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((op, size, mtu, count, lanes)) = parse(&args) else {
        eprintln!("usage: core-load write|send|read BYTES MTU MESSAGES [lanes]");
        return ExitCode::FAILURE;
    };
    let mut direct = Direct::new(mtu, size);
    if lanes {
        direct.use_lanes();
    }
    for _ in 0..count {
        direct.message(op);
    }
    direct.check();
    println!("{} packets out, {} back", direct.packets[0], direct.packets[1]);
    ExitCode::SUCCESS
}
