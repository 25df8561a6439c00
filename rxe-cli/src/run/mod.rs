//! `rxe run` and `rxe env`: unmodified programs on our devices.

mod mount;
mod view;

use crate::{Result, doctor, output};
use clap::ValueEnum;
use rxe_verbs::{
    Device, devices,
    host::{HostConfig, Observer},
    net::{
        FaultPlan, LinkKind,
        fault::{SCRIPT_HELP, Script},
    },
    variable,
};
use std::{
    env,
    ffi::{OsStr, OsString},
    fmt, fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    thread,
    time::{Duration, Instant},
};

/// The names by which programs load the drop-in.
const NAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];
/// The library that shows programs our devices below /sys/class.
const SYSFS: &str = "librxe_sysfs.so";
/// The library that makes programs use rsockets instead of TCP.
const RSOCKETS: &str = "librspreload.so";
/// The loader's variable for libraries that are loaded with any program.
const PRELOAD: &str = "LD_PRELOAD";
/// The variable for their folder.
const VARIABLE: &str = "RXE_LIB";

/// Run a program on rxe's devices instead of the system's: libibverbs is replaced, nothing is installed
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    wishes: Wishes,
    /// List the words of fault files
    #[arg(long)]
    fault_help: bool,
    /// The program and its arguments
    #[arg(
        required_unless_present = "fault_help",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

/// Print what `rxe run` sets, for a shell: eval "$(rxe env)"
#[derive(Debug, clap::Args)]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    wishes: Wishes,
}

#[derive(Debug, clap::Args)]
struct Wishes {
    /// Show only this device: its name (rxe0), its interface (eth0) or one of its addresses
    #[arg(long, value_name = "NAME")]
    device: Option<OsString>,
    /// Print every packet on standard error: when, whither or whence, and what it says
    #[arg(long)]
    trace: bool,
    /// Record all packets as pcapng; %p becomes the process's number
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// What packets leave by: UDP sockets, or raw Ethernet frames (both RoCEs; needs CAP_NET_RAW). Else as RXE_LINK says
    #[arg(long, value_enum)]
    link: Option<LinkWish>,
    /// A bad network: loss=1%,dup=1%,reorder=1%,corrupt=0.1%,delay=200us,rate=1gbit,dir=tx|rx (any of these)
    #[arg(long, value_name = "FAULTS")]
    fault: Option<String>,
    /// Faults word for word, such as "drop rx read-response 3rd" (`rxe run --fault-help` lists the words)
    #[arg(long, value_name = "FILE")]
    fault_file: Option<PathBuf>,
    /// Where chance begins: the same faults for the same packets
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write down what was done to which packet; %p becomes the process's number
    #[arg(long, value_name = "FILE")]
    fault_log: Option<PathBuf>,
    /// How programs that look below /sys/class/infiniband find our devices
    #[arg(long, value_enum, default_value_t = Sysfs::Hooks)]
    sysfs: Sysfs,
    /// Have the program's TCP and UDP sockets be rsockets (rsocket(7)); the peer's must be, too
    #[arg(long)]
    rsockets: bool,
    /// Say in words, on standard error, why a call is refused
    #[arg(short, long)]
    verbose: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum LinkWish {
    /// Ordinary UDP sockets: RoCE v2
    Udp,
    /// Raw Ethernet frames: RoCE v1 and v2
    Raw,
    /// UDP sockets, and shared memory between processes of this host, whose packets no capture of an interface shows
    Memory,
}

impl LinkWish {
    /// Its value in `RXE_LINK`.
    const fn value(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Raw => "raw",
            Self::Memory => "memory",
        }
    }
}

impl Wishes {
    /// Whether the programs' link carries RoCE v1.
    fn carries_v1(&self) -> Result<bool> {
        Ok(match self.link {
            Some(wish) => wish == LinkWish::Raw,
            None => LinkKind::from_environment()? == LinkKind::Raw,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Sysfs {
    /// By a second preloaded library
    Hooks,
    /// By mounts in a namespace of the program's own: also for static programs; no nodes below /dev/infiniband
    Mount,
    /// Not at all
    Off,
}

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    if args.fault_help {
        outln!("{SCRIPT_HELP}");
        return Ok(());
    }
    // A mistake in it is reported here, and not by each process.
    let config = HostConfig::load()?;
    let mut variables = variables(&args.wishes, &config)?;
    let (program, arguments) = args.command.split_first().ok_or("no program was given")?;
    if let Some((_, list)) = variables.iter_mut().find(|(name, _)| *name == PRELOAD) {
        *list = with_first(&doctor::first_libraries(program), list);
    }
    // Mounts also work for programs that the loader cannot help.
    if args.wishes.sysfs != Sysfs::Mount {
        for obstacle in doctor::obstacles(program) {
            eprintln!("rxe: {obstacle}");
        }
    }
    let mut connection = None;
    if args.wishes.sysfs == Sysfs::Mount {
        let view = sysfs(&args.wishes, &config)?;
        connection = service_outside()?;
        mount::enter(&view)?;
    }
    let mut command = Command::new(program);
    command.args(arguments).envs(variables);
    if args.wishes.sysfs == Sysfs::Mount {
        // The hooks of a run around this one would show its devices.
        command.env_remove("RXE_SYSFS");
    }
    let source = command.exec();
    drop(connection);
    Err(NotRun::new(program.clone(), source).into())
}

/// Exit codes if the program could not be started.
#[derive(Debug)]
pub(crate) struct NotRun {
    program: OsString,
    source: io::Error,
}

impl NotRun {
    pub(crate) const fn new(program: OsString, source: io::Error) -> Self {
        Self { program, source }
    }

    /// As with shells: it was not found, or it cannot be run.
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(if self.source.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
    }
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot run {}: {}", self.program.display(), self.source)
    }
}

impl std::error::Error for NotRun {}

/// Starts a host service outside of the program's namespaces: a service in another mount or user namespace could not watch
/// processes outside of it. Its idle time begins when this connection is closed, as the program starts.
fn service_outside() -> Result<Option<Observer>> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let program = match variable("RXE_SERVICE") {
        Some(wish) if wish == "off" || wish == "embedded" => return Ok(None),
        Some(wish) if !wish.is_empty() => wish.into(),
        _ => env::current_exe()?,
    };
    match Observer::connect() {
        Ok(None) => {}
        Ok(there) => return Ok(there),
        // If there is a service that we may not use, a later call reports it.
        Err(_) => return Ok(None),
    }
    // It is started by a program that we wait for, so that it is not a child of the user's program.
    let ended = Command::new(&program).args(["service", "start"]).status();
    let ended = ended.map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    if !ended.success() {
        return Err(format!("{} service start: {ended}", program.display()).into());
    }
    let until = Instant::now() + PATIENCE;
    loop {
        match Observer::connect() {
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(2)),
            Ok(None) => {
                return Err("the host service does not answer; RXE_SERVICE=off does without".into());
            }
            there => return Ok(there.ok().flatten()),
        }
    }
}

pub(crate) fn print(args: &EnvArgs) -> Result<()> {
    if args.wishes.sysfs == Sysfs::Mount {
        return Err("--sysfs=mount is for `rxe run`: a shell cannot be taken to another namespace".into());
    }
    for (name, value) in variables(&args.wishes, &HostConfig::load()?)? {
        output::bytes(&[&b"export "[..], name.as_bytes(), b"=", &quoted(&value), b"\n"].concat());
    }
    Ok(())
}

/// A word for the shell.
fn quoted(value: &OsStr) -> Vec<u8> {
    let parts: Vec<&[u8]> = value.as_bytes().split(|byte| *byte == b'\'').collect();
    [&b"'"[..], &parts.join(&b"'\\''"[..]), b"'"].concat()
}

/// The variables for the program's environment.
fn variables(wishes: &Wishes, config: &HostConfig) -> Result<Vec<(&'static str, OsString)>> {
    let library = library()?;
    let mut preload = vec![library.join(NAMES[0])];
    let mut list = Vec::new();
    let shim = library.join(SYSFS);
    if wishes.sysfs == Sysfs::Hooks && shim.exists() {
        preload.push(shim);
        list.push(("RXE_SYSFS", sysfs(wishes, config)?.into()));
    }
    if wishes.rsockets {
        let shim = library.join(RSOCKETS);
        if !shim.exists() {
            return Err(format!("{} is not there: scripts/build-dropin makes it", shim.display()).into());
        }
        preload.push(shim);
    }
    let first: Vec<_> = preload.iter().map(|path| path.as_os_str()).collect();
    list.extend([
        // Behind the user's own libraries: some must be first, and the user's are meant to precede ours.
        (PRELOAD, list_of(&had(PRELOAD, &first), &first)),
        ("LD_LIBRARY_PATH", before(&[library.as_os_str()], "LD_LIBRARY_PATH")),
    ]);
    if wishes.sysfs != Sysfs::Off {
        list.push(("PATH", before(&[view::tools()?.as_os_str()], "PATH")));
    }
    if env::var_os("RXE_SERVICE").is_none() {
        list.push(("RXE_SERVICE", env::current_exe()?.into()));
    }
    if let Some(device) = &wishes.device {
        list.push(("RXE_DEVICE", device.clone()));
    }
    if wishes.trace {
        list.push(("RXE_TRACE", "1".into()));
    }
    if let Some(file) = &wishes.pcap {
        list.push(("RXE_PCAP", std::path::absolute(file)?.into()));
    }
    if let Some(link) = wishes.link {
        list.push(("RXE_LINK", link.value().into()));
    }
    list.extend(faults(wishes)?);
    if wishes.verbose {
        list.push(("RXE_LOG", "1".into()));
    }
    Ok(list)
}

/// The variables for the requested faults. A mistake in them is reported here, and not by each process.
fn faults(wishes: &Wishes) -> Result<Vec<(&'static str, OsString)>> {
    let mut list: Vec<(&'static str, OsString)> = Vec::new();
    let seed = wishes.seed.map(|seed| format!("seed={seed}"));
    if wishes.fault.is_some() || seed.is_some() {
        // The environment's values stay if no option is given.
        let had = variable("RXE_FAULT").unwrap_or_default().to_string_lossy().into_owned();
        let parts = [Some(wishes.fault.clone().unwrap_or(had)), seed];
        let text = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",");
        FaultPlan::parse(&text)?;
        list.push(("RXE_FAULT", text.into()));
    }
    if let Some(file) = &wishes.fault_file {
        Script::load(file).map_err(|error| format!("{}: {error}", file.display()))?;
        list.push(("RXE_FAULT_SCRIPT", std::path::absolute(file)?.into()));
    }
    if let Some(file) = &wishes.fault_log {
        list.push(("RXE_FAULT_LOG", std::path::absolute(file)?.into()));
    }
    Ok(list)
}

/// Writes the view of the requested devices. Returns its folder.
fn sysfs(wishes: &Wishes, config: &HostConfig) -> Result<PathBuf> {
    let about = (config, wishes.carries_v1()?);
    let Some(wish) = &wishes.device else { return view::write(&devices()?, None, about) };
    let wish = wish.to_str().ok_or("the device's name is not valid UTF-8")?;
    let device = match wish.parse() {
        Ok(address) => Device::of_address(address)?,
        Err(_) => Device::find(wish)?,
    };
    view::write(&[device], Some(wish), about)
}

/// These libraries, and then those that the variable had, each once, because runs may be nested.
fn before(first: &[&OsStr], variable: &str) -> OsString {
    list_of(first, &had(variable, first))
}

/// The libraries of the variable without these.
fn had(variable: &str, others: &[&OsStr]) -> Vec<OsString> {
    let value = env::var_os(variable).unwrap_or_default();
    let parts = value.as_bytes().split(|byte| *byte == b':').map(OsStr::from_bytes);
    parts.filter(|part| !part.is_empty() && !others.contains(part)).map(OsStr::to_owned).collect()
}

fn list_of(first: &[impl AsRef<OsStr>], then: &[impl AsRef<OsStr>]) -> OsString {
    let parts: Vec<&OsStr> = first.iter().map(AsRef::as_ref).chain(then.iter().map(AsRef::as_ref)).collect();
    parts.join(OsStr::new(":"))
}

/// A list of libraries with these in front, unless one of them is in it already by any path.
fn with_first(libraries: &[String], list: &OsStr) -> OsString {
    let parts: Vec<&OsStr> = list.as_bytes().split(|byte| *byte == b':').map(OsStr::from_bytes).collect();
    let stem = |name: &str| name.split(".so").next().unwrap_or_default().to_owned();
    let is_there = |library: &&String| {
        let names = parts.iter().filter_map(|part| Path::new(part).file_name()?.to_str());
        names.map(stem).any(|name| name == stem(library))
    };
    let missing: Vec<&String> = libraries.iter().filter(|library| !is_there(library)).collect();
    list_of(&missing, &parts)
}

/// The folder with the drop-in: where the variable says, or near this program (where it was built, or installed).
pub(crate) fn library() -> Result<PathBuf> {
    let places: Vec<PathBuf> = match variable(VARIABLE).filter(|place| !place.is_empty()) {
        Some(place) => vec![place.into()],
        None => {
            let own = env::current_exe()?;
            let beside = own.parent().unwrap_or_else(|| Path::new("/"));
            vec![beside.join("dropin"), beside.join("../lib/rxe")]
        }
    };
    let found = places.iter().find(|place| place.join(NAMES[0]).exists());
    let Some(found) = found else {
        let list: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        return Err(format!(
            "{} is not in {}: `scripts/build-dropin{}` makes it, {VARIABLE} says where it is",
            NAMES[0],
            list.join(" or "),
            if cfg!(debug_assertions) { "" } else { " --release" }
        )
        .into());
    };
    // The loader separates paths by these characters, and they cannot be escaped.
    let found = fs::canonicalize(found)?;
    if found.as_os_str().as_bytes().iter().any(|byte| b": ;".contains(byte)) {
        return Err(format!("{} has a colon, semicolon or space in its name", found.display()).into());
    }
    one_file(&found)?;
    Ok(found)
}

/// Both names must be the same file. Two files would be two engines in a process that loads both.
fn one_file(place: &Path) -> Result<()> {
    let identity = |name: &str| -> io::Result<(u64, u64)> {
        let about = fs::metadata(place.join(name))?;
        Ok((about.dev(), about.ino()))
    };
    match (identity(NAMES[0]), identity(NAMES[1])) {
        (Ok(first), Ok(second)) if first == second => Ok(()),
        (Ok(_), Ok(_)) => {
            Err(format!("{} in {} must be a link to {}, not a copy", NAMES[1], place.display(), NAMES[0])
                .into())
        }
        _ => Err(format!("{} is not in {}: link it to {}", NAMES[1], place.display(), NAMES[0]).into()),
    }
}
