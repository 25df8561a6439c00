//! `rdma` as in documents: under `rxe run` a program of this name leads here, and `rxe link` is its `link`. Words and options
//! are parsed as by rdma(8) of iproute2. Devices exist without being created, so `link add` only prints which one it is. Other
//! commands of `rdma` are passed to the system's.

mod options;
mod rows;

use crate::Result;
use options::Options;
use rxe_verbs::Device;
use std::{
    env,
    ffi::OsString,
    fs, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

/// rdma(8), as far as documents about software devices use it
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    words: Vec<OsString>,
}

/// The devices as rdma(8) shows them: `show [DEV/PORT]`, with -d (details), -j (JSON) and -p (pretty); `set DEV name NAME`
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct LinkArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    words: Vec<OsString>,
}

const HELP: &str = "\
Usage: rdma [ -V[ersion] | -h[elp] | -d[etails] | -j[son] | -p[retty] ] OBJECT { COMMAND | help }
       rdma dev [ show [DEV] ]
       rdma dev set DEV name NAME
       rdma link [ show [DEV/PORT] ]
       rdma link add NAME type rxe netdev NETDEV
       rdma link delete NAME
       rdma system [ show ]
       rdma statistic [ show [ link [DEV/PORT] ] ]
       rdma resource [ show [DEV] ]
       rdma resource show qp [ link [DEV/PORT] ] [ lqpn|type|state|pid|comm VALUE ]...";

const LINK_HELP: &str = "\
Usage: rxe link [ -h[elp] | -d[etails] | -j[son] | -p[retty] ] [ show [DEV/PORT] ]
       rxe link add NAME type rxe netdev NETDEV
       rxe link delete NAME
       rxe link set DEV name NAME";

pub(crate) fn run(args: &Args) -> Result<()> {
    obey(&args.words, false)
}

pub(crate) fn run_link(args: &LinkArgs) -> Result<()> {
    let mut words = args.words.clone();
    words.insert(0, "link".into());
    obey(&words, true)
}

/// The requested action.
enum Wish<'a> {
    Help,
    Devices(Option<&'a str>),
    Links(Option<&'a str>),
    System,
    Statistic(Option<&'a str>),
    Resources(Option<&'a str>),
    /// For links: only those with these values.
    QueuePairs(Option<&'a str>, &'a [&'a str]),
    Add(&'a str, &'a [&'a str]),
    Rename(&'a str, &'a str),
    Delete(&'a str),
}

fn obey(given: &[OsString], own: bool) -> Result<()> {
    let words: Option<Vec<&str>> = given.iter().map(|word| word.to_str()).collect();
    let Some(words) = words else { return other(given, own) };
    let (mut options, words) = Options::take(&words)?;
    options.own = own;
    if options.version {
        outln!("rdma utility, rxe {}", env!("CARGO_PKG_VERSION"));
        return Ok(());
    }
    let wish = if options.help { Some(Wish::Help) } else { understand(&words) };
    match wish {
        Some(Wish::Help) => outln!("{}", if own { LINK_HELP } else { HELP }),
        Some(Wish::Devices(only)) => rows::device_rows(only, &options)?.print(&options)?,
        Some(Wish::Links(only)) => rows::links(only, &options)?.print(&options)?,
        Some(Wish::System) => rows::system().print_one(&options)?,
        Some(Wish::Statistic(only)) => rows::statistic(only)?.print(&options)?,
        Some(Wish::Resources(only)) => rows::resources(only)?.print(&options)?,
        Some(Wish::QueuePairs(only, filter)) => rows::queue_pairs(only, filter)?.print(&options)?,
        Some(Wish::Add(name, words)) => add(name, words)?,
        Some(Wish::Delete(name)) => delete(name)?,
        Some(Wish::Rename(name, new)) => rename(name, new)?,
        None => return other(given, own),
    }
    Ok(())
}

/// A command that is not one of ours. The system's `rdma` knows nothing of our devices, so `rxe link` does not ask it.
fn other(words: &[OsString], own: bool) -> Result<()> {
    if !own {
        return system(words);
    }
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    Err(format!("rxe {}: not understood; `rxe link help` lists what is", words.join(" ")).into())
}

/// Words may be abbreviated. They mean the first entry of the list that begins with them.
fn understand<'a>(words: &'a [&'a str]) -> Option<Wish<'a>> {
    let Some((object, rest)) = words.split_first() else { return Some(Wish::Help) };
    let object = *["help", "dev", "link", "resource", "system", "statistic"]
        .iter()
        .find(|whole| whole.starts_with(object))?;
    // `show` is the default.
    let (action, rest) = match rest.split_first() {
        None => ("show", rest),
        Some((action, rest)) => {
            let all = ["show", "list", "add", "delete", "set", "help"];
            (*all.iter().find(|whole| whole.starts_with(action))?, rest)
        }
    };
    let action = if action == "list" { "show" } else { action };
    // The word `link` may precede the link's name.
    let behind_link = match rest {
        [word, rest @ ..] if "link".starts_with(word) => rest,
        rest => rest,
    };
    match (object, action, rest) {
        ("help", ..) | (_, "help", _) => Some(Wish::Help),
        ("dev", "show", []) => Some(Wish::Devices(None)),
        ("dev", "show", [name]) => Some(Wish::Devices(Some(name))),
        ("link", "show", []) => Some(Wish::Links(None)),
        ("link", "show", [name]) => Some(Wish::Links(Some(name))),
        ("link", "add", [name, rest @ ..]) => Some(Wish::Add(name, rest)),
        // rdma(8) cannot set properties of links, but users try it.
        ("dev" | "link", "set", [device, "name", name]) => Some(Wish::Rename(device, name)),
        ("link", "delete", [name]) => Some(Wish::Delete(name)),
        ("system", "show", [] | ["netns"]) => Some(Wish::System),
        ("statistic", "show", _) => match behind_link {
            [] => Some(Wish::Statistic(None)),
            [name] => Some(Wish::Statistic(Some(name))),
            _ => None,
        },
        ("resource", "show", []) => Some(Wish::Resources(None)),
        ("resource", "show", ["qp", rest @ ..]) => match rest {
            [word, name, filter @ ..] if *word == "link" => Some(Wish::QueuePairs(Some(name), filter)),
            ["link"] => Some(Wish::QueuePairs(None, &[])),
            filter => Some(Wish::QueuePairs(None, filter)),
        },
        ("resource", "show", ["cm_id" | "cq" | "pd" | "mr" | "ctx" | "srq", ..]) => None,
        ("resource", "show", [name]) => Some(Wish::Resources(Some(name))),
        _ => None,
    }
}

/// The device of a link's name: `rxe0/1`, `rxe0/-` or `rxe0`. A device has one port.
fn device_of(link: &str) -> &str {
    link.strip_suffix("/1").or_else(|| link.strip_suffix("/-")).unwrap_or(link)
}

/// `rdma link add NAME type rxe netdev IF`.
fn add(name: &str, words: &[&str]) -> Result<()> {
    let value = |key: &str| words.chunks(2).find(|pair| pair[0] == key).and_then(|pair| pair.get(1)).copied();
    let kind = value("type").ok_or("type is missing: rdma link add NAME type rxe netdev IF")?;
    if kind != "rxe" {
        return Err(format!("links of type {kind} are not to be had here; rxe is").into());
    }
    let netdev = value("netdev").ok_or("netdev is missing: rdma link add NAME type rxe netdev IF")?;
    let device = Device::find(netdev)?;
    if device.name() == name {
        return Ok(());
    }
    eprintln!("rxe: {netdev} has its device without being asked: it is called {}, not {name}", device.name());
    Ok(())
}

fn delete(name: &str) -> Result<()> {
    let device = Device::find(device_of(name))?;
    eprintln!("rxe: {} stays: it is there as long as {} is", device.name(), device.netdev());
    Ok(())
}

/// `rdma dev set DEV name NAME`.
fn rename(device: &str, name: &str) -> Result<()> {
    let device = Device::find(device_of(device))?;
    device.rename(name).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::InvalidInput => {
                "a name is letters, digits, _, - and ., 63 at most, the first a letter, and not rxe with another's number"
                    .to_owned()
            }
            io::ErrorKind::AlreadyExists => "another device has this name".to_owned(),
            _ => format!("it cannot be written down for other processes: {error}"),
        };
        format!("{} cannot be called {name}: {why}", device.name()).into()
    })
}

/// The system's program of this name, behind ours on the PATH.
fn system(words: &[OsString]) -> Result<()> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found: Option<PathBuf> = env::split_paths(&path)
        .map(|folder| folder.join("rdma"))
        .find(|file| file.is_file() && !is_ours(file));
    let Some(program) = found else {
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        return Err(format!("rdma {}: not to be had here; `rdma help` lists what is", words.join(" ")).into());
    };
    let error = Command::new(&program).args(words).exec();
    Err(format!("cannot run {}: {error}", program.display()).into())
}

/// Whether this is the script that leads here.
fn is_ours(file: &Path) -> bool {
    fs::read(file).is_ok_and(|content| {
        content.starts_with(b"#!/bin/sh\nexec '") && content.ends_with(b" rdma \"$@\"\n")
    })
}
