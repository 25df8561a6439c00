//! The `rxe` program: unmodified programs on our devices, lists of devices, ping-pong, measurements and a demonstration that checks itself.

#[macro_use]
mod output;

mod cm;
mod cmtime;
mod demo;
mod devices;
mod doctor;
mod external;
mod fabric;
mod follower;
mod listing;
mod local;
mod measure;
mod path;
mod perf;
mod pingpong;
mod rdma;
mod rping;
mod run;
mod service;
mod stat;
mod vendor;

use clap::{Parser, Subcommand, error::ErrorKind};
use std::{env, process::ExitCode};

/// What a command ends with: nothing, or one sentence for the user.
type Result<T> = std::result::Result<T, Error>;
type Error = Box<dyn std::error::Error + Send + Sync>;

/// RDMA over Converged Ethernet, version 2, from an ordinary process: no kernel module, no privilege.
#[derive(Debug, Parser)]
#[command(name = "rxe", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    Env(run::EnvArgs),
    Devices(devices::Args),
    Pingpong(pingpong::Args),
    Perf(perf::Args),
    Rping(rping::Args),
    Cmtime(cmtime::Args),
    Listen(cm::listen::Args),
    Connect(cm::connect::Args),
    Demo(demo::Args),
    Service(service::Args),
    Stat(stat::Args),
    Path(path::Args),
    Fabric(fabric::Args),
    Link(rdma::LinkArgs),
    Doctor(doctor::Args),
    /// What documents have people type for kernel devices; `rxe run` puts programs of these names on the PATH.
    #[command(hide = true)]
    Rdma(rdma::Args),
    #[command(name = "show_gids", hide = true)]
    ShowGids(vendor::GidsArgs),
    #[command(name = "ibdev2netdev", hide = true)]
    Ibdev2netdev(vendor::NetdevsArgs),
    /// The second process of `rxe demo`.
    #[command(hide = true)]
    DemoPeer(demo::PeerArgs),
}

fn main() -> ExitCode {
    // This process may become the host service.
    rxe_cm::attend_services();
    if let Some(program) = external::External::find(env::args_os()) {
        return end(program.run());
    }
    let Cli { command } = Cli::try_parse().unwrap_or_else(|error| match error.kind() {
        // Said again, with what else there is.
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            external::command().get_matches();
            error.exit()
        }
        _ => error.exit(),
    });
    // Programs that use a device are told by it; others would not be.
    let heeds = matches!(command, Command::Run(_) | Command::Env(_) | Command::Devices(_));
    let checked = if heeds { rxe_verbs::check_environment() } else { Ok(()) };
    if let Err(error) = checked {
        eprintln!("rxe: {error}");
        return ExitCode::FAILURE;
    }
    end(match command {
        Command::Run(args) => run::run(&args),
        Command::Env(args) => run::print(&args),
        Command::Devices(args) => devices::run(&args),
        Command::Pingpong(args) => pingpong::run(&args),
        Command::Perf(args) => perf::run(&args),
        Command::Rping(args) => rping::run(&args),
        Command::Cmtime(args) => cmtime::run(&args),
        Command::Listen(args) => cm::listen::run(&args),
        Command::Connect(args) => cm::connect::run(&args),
        Command::Service(args) => service::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Path(args) => path::run(&args),
        Command::Fabric(args) => fabric::run(&args),
        Command::Link(args) => rdma::run_link(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Rdma(args) => rdma::run(&args),
        Command::ShowGids(args) => vendor::gids(&args),
        Command::Ibdev2netdev(args) => vendor::netdevs(&args),
        Command::Demo(args) => demo::run(&args),
        Command::DemoPeer(args) => demo::run_peer(&args),
    })
}

/// What the process ends with.
fn end(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rxe: {error}");
            error.downcast_ref().map_or(ExitCode::FAILURE, run::NotRun::code)
        }
    }
}
