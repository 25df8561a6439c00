//! `rdma` as documents have people type it: under `rxe run` a program of this name comes here. Devices are there without
//! being made, so that `link add` only says which one it is; what we do not have is the system's own `rdma`'s.

use crate::{Result, link};
use rxe_verbs::{Device, devices};
use std::{
    env,
    ffi::OsString,
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

/// rdma(8), as far as documents about software devices use it
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    words: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let known: Option<Vec<&str>> = args.words.iter().map(|word| word.to_str()).collect();
    let known = known.unwrap_or_default();
    let options: Vec<&str> = known.iter().copied().take_while(|word| word.starts_with('-')).collect();
    let json = options.iter().any(|option| matches!(*option, "-j" | "-jp" | "-json" | "--json"));
    let words = &known[options.len()..];
    // Words may be shortened, as iproute2 has it.
    let is = |word: Option<&&str>, whole: &str| {
        word.is_some_and(|word| !word.is_empty() && whole.starts_with(*word))
    };
    match words {
        [object, rest @ ..] if is(Some(object), "link") => match rest {
            [action, name, rest @ ..] if is(Some(action), "add") => add(name, rest),
            [action, name] if is(Some(action), "delete") || *action == "del" => delete(name),
            [action, rest @ ..] if is(Some(action), "show") || is(Some(action), "list") => {
                link::show(rest.first().copied(), json)
            }
            [] => link::show(None, json),
            _ => system(&args.words),
        },
        [object, rest @ ..] if is(Some(object), "dev") => match rest {
            [] => show_devices(None),
            [action] if is(Some(action), "show") => show_devices(None),
            [action, name] if is(Some(action), "show") => show_devices(Some(name)),
            _ => system(&args.words),
        },
        _ => system(&args.words),
    }
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
    let device = Device::find(name.strip_suffix("/1").unwrap_or(name))?;
    eprintln!("rxe: {} stays: it is there as long as {} is", device.name(), device.netdev());
    Ok(())
}

fn show_devices(only: Option<&str>) -> Result<()> {
    let list = match only {
        Some(name) => vec![Device::find(name)?],
        None => devices()?,
    };
    for (index, device) in list.iter().enumerate() {
        let guid: Vec<_> =
            device.guid().chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
        let guid = guid.join(":");
        println!("{index}: {}: node_type ca node_guid {guid} sys_image_guid {guid} ", device.name());
    }
    Ok(())
}

/// The system's program of this name, behind ours on the PATH.
fn system(words: &[OsString]) -> Result<()> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found: Option<PathBuf> = env::split_paths(&path)
        .map(|folder| folder.join("rdma"))
        .find(|file| file.is_file() && !is_ours(file));
    let Some(program) = found else {
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        return Err(format!(
            "rdma {}: only link show, add and del, and dev show are to be had here",
            words.join(" ")
        )
        .into());
    };
    let error = Command::new(&program).args(words).exec();
    Err(format!("cannot run {}: {error}", program.display()).into())
}

/// Whether it is the script that leads here.
fn is_ours(file: &Path) -> bool {
    fs::read(file).is_ok_and(|content| {
        content.starts_with(b"#!/bin/sh\nexec '") && content.ends_with(b" rdma \"$@\"\n")
    })
}
