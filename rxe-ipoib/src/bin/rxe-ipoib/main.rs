//! `rxe ipoib`: IP over InfiniBand interfaces between hosts that run rxe.

mod add;
mod show;

use clap::{Parser, Subcommand};
use rxe_ipoib::control;
use std::{error::Error, process::ExitCode};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// IP over InfiniBand: interfaces whose packets cross by queue pairs (RFC 4391, 4755)
#[derive(Debug, Parser)]
#[command(name = "rxe ipoib", bin_name = "rxe ipoib", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make an interface, down and without an address: `ip addr add` and `ip link set up` do the rest
    Add(add::Args),
    /// Remove an interface
    #[command(visible_alias = "del")]
    Delete {
        /// Its name
        name: String,
    },
    /// Show interfaces: link-layer address, mode, neighbours, connections, counters
    #[command(visible_alias = "list")]
    Show(show::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Add(args) => add::run(&args),
        Command::Delete { name } => control::stop(&name).map_err(Into::into),
        Command::Show(args) => show::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            use std::io::Write;
            // The process that started an interface in the background may have closed its end of the pipe.
            let _ = writeln!(std::io::stderr(), "rxe ipoib: {error}");
            ExitCode::FAILURE
        }
    }
}
