//! Every RC operation between this process and a kernel's rxe, in both roles, each payload compared by the side whose
//! memory it is.
//!
//! ```text
//! kernel-ops AGENT DEVICE OUR-IP THEIR-IP [new]
//! ```
//! `new`: the kernel has ATOMIC WRITE and FLUSH (6.12). Prints a line a case; exit 1 if one failed.

mod bench;
mod cases;

use bench::Bench;
use std::process::ExitCode;
use testbed::agent::Failure;

fn run() -> Result<(usize, usize), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [agent, device, ours, theirs, rest @ ..] = arguments.as_slice() else {
        return Err("usage: kernel-ops AGENT DEVICE OUR-IP THEIR-IP [new]".into());
    };
    let new = rest.first().is_some_and(|word| word == "new");
    let mut bench = Bench::open(agent, device, ours.parse()?, theirs, new)?;
    let (mut passed, mut failed) = (0, 0);
    for case in cases::ALL.iter().filter(|case| new || !case.new) {
        match bench.pair().and_then(|mut pair| (case.run)(&mut pair)) {
            Ok(()) => {
                passed += 1;
                println!("ok      {}", case.name);
            }
            Err(error) => {
                failed += 1;
                println!("FAILED  {}: {error}", case.name);
            }
        }
    }
    Ok((passed, failed))
}

fn main() -> ExitCode {
    match run() {
        Ok((passed, failed)) => {
            println!("{passed} passed, {failed} failed");
            ExitCode::from(u8::from(failed > 0))
        }
        Err(error) => {
            eprintln!("kernel-ops: {error}");
            ExitCode::from(2)
        }
    }
}
