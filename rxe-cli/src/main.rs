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

/// The result of a command: nothing, or an error of one sentence for the user.
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
    // This process may have to become the host service.
    rxe_cm::attend_services();
    if let Some(program) = external::External::find(env::args_os()) {
        return end(program.run());
    }
    let Cli { command } = Cli::try_parse().unwrap_or_else(|error| match error.kind() {
        // Repeated with the list of other commands.
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            external::command().get_matches();
            error.exit()
        }
        _ => error.exit(),
    });
    // Programs that use a device get this from the device, but others would not.
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

/// The exit code of the process.
fn end(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rxe: {error}");
            error.downcast_ref().map_or(ExitCode::FAILURE, run::NotRun::code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, CommandFactory};

    /// Commands that find out nothing, and `link`, whose options are those of iproute2's `rdma link` (`-j` among them).
    const WITHOUT_JSON: [&str; 6] = ["run", "env", "service start", "service run", "service stop", "link"];

    /// All commands of a user's that have none below them, by their words.
    fn leaves(command: &clap::Command, words: &str) -> Vec<(String, clap::Command)> {
        let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        let below: Vec<_> =
            shown.flat_map(|sub| leaves(sub, &format!("{words} {}", sub.get_name()))).collect();
        if below.is_empty() { vec![(words.trim().to_owned(), command.clone())] } else { below }
    }

    fn long(argument: &Arg) -> &str {
        argument.get_long().unwrap_or_default()
    }

    /// A letter is short for one thing in all commands, times are in seconds, and whatever is found can be had as JSON.
    #[test]
    fn options_mean_the_same_in_all_commands() {
        let all = leaves(&Cli::command(), "");
        assert!(all.len() > 15, "{}", all.len());
        let letters = [
            ('s', &["size"][..]),
            ('t', &["timeout"]),
            ('u', &["ack-timeout"]),
            ('n', &["count", "iters"]),
            ('p', &["port"]),
            ('b', &["bind"]),
            ('v', &["verbose"]),
        ];
        let mut without_json = Vec::new();
        for (words, command) in &all {
            for (letter, means) in letters {
                let of = command.get_arguments().find(|argument| argument.get_short() == Some(letter));
                assert!(of.is_none_or(|of| means.contains(&long(of))), "{words} -{letter}");
            }
            for argument in command.get_arguments() {
                let is_time = ["timeout", "duration", "hold", "delay"]
                    .iter()
                    .any(|word| long(argument).ends_with(word));
                let unit =
                    argument.get_value_names().and_then(|names| names.first()).map(|name| name.as_str());
                assert!(!is_time || unit == Some("SECONDS"), "{words} --{}: {unit:?}", long(argument));
            }
            if !command.get_arguments().any(|argument| long(argument) == "json") {
                without_json.push(words.as_str());
            }
        }
        assert_eq!(without_json, WITHOUT_JSON);
    }
}
