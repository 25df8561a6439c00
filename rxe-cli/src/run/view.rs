//! What programs find below `/sys/class/infiniband`, written to a folder of the user's: the files that kernel rxe has there,
//! and `device/net`, which it lacks and programs look for. `rxe-sysfs` takes programs to it.
//!
//! The folder belongs to a user and a network namespace, and stays; each run brings it up to date. Only what has changed
//! is written, each file in one step, so programs that run already are not disturbed. Several runs may begin together, as
//! those of an MPI job do: a folder that one has found empty and removed is made again by who wants to write there.

use crate::{
    Result,
    listing::{FIRMWARE, Listed},
};
use rxe_verbs::{
    Device,
    host::{CONFIGURED_MODE, HostConfig, files::port_files, service_file},
    is_protected, network_namespace,
};
use std::{
    collections::BTreeMap,
    env, fs,
    hash::{BuildHasher, RandomState},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
};

/// How names begin of what is being made: the maker's number ends them.
const FRESH: &str = ".fresh-";

/// Files by their path below `/sys/class`.
type Files = BTreeMap<String, String>;

/// Writes the view of these devices, with the configuration's partition tables, and with GIDs of RoCE v1 as well (`v1`) or without; gives where
/// it is.
pub(super) fn write(
    devices: &[Device],
    only: Option<&str>,
    (config, v1): (&HostConfig, bool),
) -> Result<PathBuf> {
    let top = own_folder()?;
    let namespace = fs::metadata("/proc/self/ns/net").map_or(0, |about| about.ino());
    // The service does not know by which link a program sends, so GIDs are not asked for where the name ends so
    // (rxe-sysfs/src/ask.rs). A device may be called `v1`, too.
    let end = match (only, v1) {
        (_, true) => "-v1",
        (Some(_), false) => "-v2",
        (None, false) => "",
    };
    let only = only.map(|name| format!("-{}", distinct(name))).unwrap_or_default();
    let folder = top.join(format!("sys-{namespace}{only}{end}"));
    let mut files = Files::new();
    let mut links = BTreeMap::new();
    files.insert("infiniband_verbs/abi_version".into(), "6".into());
    for device in devices {
        let listed = Listed::new(device);
        describe(&listed, &mut files);
        let live = port_files(device, config.pkeys_of(device.netdev()), v1, &BTreeMap::new());
        files.extend(live.into_iter().map(|(path, content)| (format!("infiniband/{path}"), content)));
        let net = format!("infiniband/{}/device/net/{}", listed.name, listed.netdev);
        links.insert(net, format!("/sys/class/net/{}", listed.netdev));
        // There is nothing to be had from a node: programs ask whether it is a character device that they may use.
        links.insert(format!("dev/infiniband/uverbs{}", listed.number), "/dev/null".into());
    }
    let settings = settings(&top, namespace, devices, config)?;
    links.insert("config".to_owned(), settings);
    // Where files are asked for that change while programs run (rxe-sysfs/src/ask.rs).
    if let Some(place) = service_file().and_then(|place| place.into_os_string().into_string().ok()) {
        links.insert("service".to_owned(), place);
    }
    let failed = |error: io::Error| {
        format!("cannot write below {}: {error}; --sysfs off does without", folder.display())
    };
    fs::create_dir_all(folder.join("infiniband")).map_err(failed)?;
    for (path, target) in &links {
        let place = folder.join(path);
        if fs::read_link(&place).is_ok_and(|have| have == Path::new(target)) {
            continue;
        }
        replace(&place, |fresh| symlink(target, fresh))?;
    }
    for (path, content) in &files {
        let (place, content) = (folder.join(path), format!("{content}\n"));
        if fs::read(&place).is_ok_and(|have| have == content.as_bytes()) {
            continue;
        }
        replace(&place, |fresh| fs::write(fresh, &content))?;
    }
    let wanted = |path: &str| files.contains_key(path) || links.contains_key(path);
    remove_others(&folder, "", &wanted)?;
    Ok(folder)
}

/// A part of a file name that belongs to this name alone: what is no letter or digit stands there by its number.
fn distinct(name: &str) -> String {
    let part = |byte: u8| match byte {
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        other => format!("_{other:02x}"),
    };
    name.bytes().map(part).collect()
}

/// rdma_cm's defaults of each device, which people set below /sys/kernel/config/rdma_cm: the same for all programs of a network
/// namespace, whatever devices they see. What was set stays.
fn settings(top: &Path, namespace: u64, devices: &[Device], config: &HostConfig) -> Result<String> {
    let start = format!("cma-{namespace}");
    let own = format!("{start}-{}", network_namespace());
    // A number may have been that of a namespace which is gone: what was set there is nobody's any more.
    for entry in fs::read_dir(top).map_err(|error| unwritten(top, &error))?.flatten() {
        let name = entry.file_name();
        let of_number = name.to_str().and_then(|name| name.strip_prefix(&start));
        if of_number.is_some_and(|rest| rest.is_empty() || rest.starts_with('-')) && name != *own {
            // Another run may be at it, too.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let folder = top.join(own);
    fs::create_dir_all(folder.join("rdma_cm")).map_err(|error| unwritten(&folder, &error))?;
    for device in devices {
        let port = folder.join("devices").join(device.name()).join("ports/1");
        let mode = format!("{}\n", config.configured_gid_type(device.netdev()));
        // As long as nobody has set it, it is what the configuration says.
        if !is_set(&port) {
            for name in [CONFIGURED_MODE, "default_roce_mode"] {
                replace(&port.join(name), |fresh| fs::write(fresh, &mode))?;
            }
        }
    }
    folder.into_os_string().into_string().map_err(|_| "a folder's name is not valid UTF-8".into())
}

/// Whether somebody has set what a port's file says.
fn is_set(port: &Path) -> bool {
    let content = |name: &str| fs::read(port.join(name)).ok();
    content("default_roce_mode")
        .is_some_and(|mode| content(CONFIGURED_MODE).is_none_or(|configured| configured != mode))
}

/// Programs that documents have people type and that are commands of this one.
const TOOLS: [&str; 3] = ["rdma", "show_gids", "ibdev2netdev"];

/// A folder with them.
pub(super) fn tools() -> Result<PathBuf> {
    let folder = own_folder()?.join("bin");
    let own = env::current_exe()?;
    let own = own.to_str().ok_or("the path of rxe is not valid UTF-8")?.replace('\'', "'\\''");
    for tool in TOOLS {
        let (place, content) = (folder.join(tool), format!("#!/bin/sh\nexec '{own}' {tool} \"$@\"\n"));
        if fs::read(&place).is_ok_and(|have| have == content.as_bytes()) {
            continue;
        }
        replace(&place, |fresh| {
            fs::write(fresh, &content)?;
            fs::set_permissions(fresh, fs::Permissions::from_mode(0o700))
        })?;
    }
    Ok(folder)
}

/// A folder of ours that nobody else can have put there.
fn own_folder() -> Result<PathBuf> {
    let uid = fs::metadata("/proc/self")?.uid();
    let name = format!("rxe-{uid}");
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let mut why = String::new();
    for base in runtime.into_iter().chain([env::temp_dir()]) {
        let usual = base.join(&name);
        match take(&usual) {
            Ok(()) => return Ok(usual),
            Err(error) => why = format!("{}: {error}", usual.display()),
        }
    }
    // Somebody else has that name. One with a random end is found again by the next run.
    let base = env::temp_dir();
    let start = format!("{name}-");
    let ours = |entry: &fs::DirEntry| entry.file_name().as_bytes().starts_with(start.as_bytes());
    let had = fs::read_dir(&base).into_iter().flatten().flatten().filter(ours).map(|entry| entry.path());
    let fresh = base.join(format!("{start}{:016x}", RandomState::new().hash_one(uid)));
    let found = had.chain([fresh]).find(|folder| take(folder).is_ok());
    found
        .ok_or_else(|| format!("no folder can be made for the view ({why}); --sysfs off does without").into())
}

/// Makes a folder, or takes one that is there if nobody else can have put it there or can change it.
fn take(folder: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if !fs::symlink_metadata(folder)?.is_dir() || !is_protected(folder)? {
        return Err(io::Error::other("others can change it, or have made it"));
    }
    // Under fakeroot everything seems to be ours.
    let probe = folder.join(format!("{FRESH}{}", std::process::id()));
    fs::write(&probe, "")?;
    match fs::remove_file(&probe) {
        // A process of the same number in another container may have had the same probe.
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes something new and puts it in its place in one step.
fn replace(place: &Path, make: impl Fn(&Path) -> io::Result<()>) -> Result<()> {
    /// Another run may remove the folder as empty before it has something in it.
    const TRIES: usize = 8;
    let parent = place.parent().ok_or("no folder")?;
    let fresh = parent.join(format!("{FRESH}{}", std::process::id()));
    let put = || {
        let _ = fs::remove_file(&fresh);
        fs::create_dir_all(parent).and_then(|()| make(&fresh)).and_then(|()| fs::rename(&fresh, place))
    };
    // Said of a folder that was there, and is not any more, or of a file of a process with the same number in another container.
    let lost = |made: &io::Result<()>| {
        use io::ErrorKind::{AlreadyExists, NotFound};
        matches!(made, Err(error) if matches!(error.kind(), NotFound | AlreadyExists))
    };
    let mut made = put();
    for _ in 1..TRIES {
        if !lost(&made) {
            break;
        }
        made = put();
    }
    made.map_err(|error| unwritten(place, &error).into())
}

fn unwritten(place: &Path, error: &io::Error) -> String {
    format!("cannot write {}: {error}; --sysfs off does without", place.display())
}

/// Removes what is not wanted any more, and folders that are empty then.
fn remove_others(folder: &Path, below: &str, wanted: &dyn Fn(&str) -> bool) -> Result<()> {
    let entries = match fs::read_dir(folder) {
        // Another run has removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| unwritten(folder, &error))?,
    };
    for entry in entries.flatten() {
        let name = entry.file_name().into_string().map_err(|_| "a strange name")?;
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_others(&entry.path(), &path, wanted)?;
            // Fails, as it should, where something is left.
            let _ = fs::remove_dir(entry.path());
        } else if !wanted(&path) && !path.contains(FRESH) {
            let _ = fs::remove_file(entry.path());
        }
    }
    // Where no device is, programs expect an empty folder rather than none.
    if below.is_empty() {
        fs::create_dir_all(folder.join("infiniband")).map_err(|error| unwritten(folder, &error))?;
    }
    Ok(())
}

fn describe(device: &Listed, files: &mut Files) {
    let Listed { name, number, guid, .. } = device;
    let mut put = |path: &str, content: &str| {
        files.insert(format!("infiniband/{name}/{path}"), content.to_owned());
    };
    put("node_type", "1: CA");
    put("node_guid", guid);
    put("sys_image_guid", guid);
    put("node_desc", name);
    put("fw_ver", FIRMWARE);
    put("uevent", &format!("NAME={name}"));
    put("device/numa_node", "-1");
    put("ports/1/link_layer", "Ethernet");
    put("ports/1/rate", "40 Gb/sec (4X QDR)");
    put("ports/1/lid", "0x0");
    put("ports/1/sm_lid", "0x0");
    put("ports/1/sm_sl", "0");
    put("ports/1/lid_mask_count", "0");
    put("ports/1/cap_mask", "0x04010000");
    let verbs = format!("infiniband_verbs/uverbs{number}");
    files.insert(format!("{verbs}/ibdev"), name.clone());
    files.insert(format!("{verbs}/abi_version"), "1".to_owned());
    // No character device: the numbers are those of none.
    files.insert(format!("{verbs}/dev"), "0:0".to_owned());
}
