//! The stacks of this process: one for each set of bound addresses, shared by the contexts that use it.

use super::{
    congestion::Congestion,
    messages::Messages,
    polling::Polling,
    stack::{Stack, StackConfig},
    supply::{HostSlots, InprocEnds, Source, Supply, Wraps, of_kind, of_slot},
    threads::Threads,
};
use crate::{
    error::OpenError,
    host::{self, LiveSettings, Mode},
    net::{
        Capture, ConfigError, FaultPlan, InprocNet, Link, LinkKind, Sharing, Trace, UdpConfig, UdpLink, file,
    },
    sys::{
        per_process::PerProcess,
        process::{at_exit, network_namespace},
    },
    trust::variable,
};
use core::{
    net::IpAddr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    thread,
};

/// The addresses for which a stack receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Binding {
    /// All addresses of this host.
    Any,
    /// One address, and its interface (0 unless the address is link-local).
    Only(IpAddr, u32),
}

#[derive(Debug)]
struct Entry {
    /// The addresses for which it receives, and their network namespace. `None` for a stack over a link of the caller.
    bound: Option<(Binding, Option<PathBuf>)>,
    stack: Weak<Stack>,
    /// The same flag as [`Stack::ended`].
    ended: Arc<AtomicBool>,
}

impl Entry {
    /// Whether another thread is just dropping it.
    fn is_ending(&self) -> bool {
        self.stack.strong_count() == 0 && !self.ended.load(Ordering::Acquire)
    }
}

#[derive(Debug, Default)]
struct Open {
    stacks: Vec<Entry>,
    /// The capture of `RXE_PCAP`, which all links share.
    capture: Option<Capture>,
    /// The trace of `RXE_TRACE`.
    trace: Option<Trace>,
    /// The log of `RXE_FAULT_LOG`.
    fault_log: Option<Trace>,
}

/// What this process has open. A forked child begins with nothing, and opens captures of its own.
static OPEN: PerProcess<Open> = PerProcess::new(Open::default);

/// The faults and the capture that the caller wants for a link.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wrapping {
    pub(crate) faults: Option<FaultPlan>,
    pub(crate) capture: Option<Capture>,
}

/// The stack for `binding`: the one that this process has, or a new one over UDP sockets. With `share` false it is a new one in any
/// case (with options of its own). `alone` makes one that has port 4791 of its addresses to itself.
pub(crate) fn find_or_open(
    binding: Binding,
    udp: impl FnOnce() -> UdpConfig,
    wrapping: Wrapping,
    config: StackConfig,
    share: bool,
    alone: bool,
) -> Result<Arc<Stack>, OpenError> {
    let mode = if alone { Mode::Off } else { Mode::from_environment() };
    // The sockets of the host service's group are bound to all addresses.
    let binding = if mode == Mode::Off { binding } else { Binding::Any };
    let mut open = OPEN.lock();
    let namespace = network_namespace();
    if share {
        let fits = |entry: &Entry| match &entry.bound {
            // A stack for all addresses receives for each of them, too.
            Some((have, place)) if (*have == binding || *have == Binding::Any) && *place == namespace => {
                entry.stack.upgrade()
            }
            _ => None,
        };
        if let Some(stack) = open.stacks.iter().find_map(fits) {
            return Ok(stack);
        }
    }
    let bound = Some((binding, namespace));
    match mode {
        Mode::Off => {
            let udp = UdpConfig { sharing: Sharing::Sole, slots: None, ..udp() };
            let udp = udp.with_environment()?;
            let link = of_kind(UdpLink::open(&udp)?, link_kind(&config)?, (config.slot, false), &udp)?;
            open.add_link(bound, link, wrapping, config)
        }
        Mode::Program(program) => open.join_host(bound, program.as_deref(), wrapping, config),
    }
}

/// A stack over a link of the caller.
pub(crate) fn open_link(
    link: impl Link + 'static,
    wrapping: Wrapping,
    config: StackConfig,
) -> Result<Arc<Stack>, OpenError> {
    OPEN.lock().add_link(None, Box::new(link), wrapping, config)
}

/// A stack at these addresses of a network inside this process.
pub(crate) fn open_inproc(
    net: &InprocNet,
    addresses: &[IpAddr],
    wrapping: Wrapping,
    config: StackConfig,
) -> Result<Arc<Stack>, OpenError> {
    let system = |action| move |source| OpenError::System { action, source };
    let link = net.attach(addresses, 1).map_err(system("join the in-process network"))?;
    let mut open = OPEN.lock();
    let wraps = open.wraps(wrapping)?;
    let link = wraps.wrap(Box::new(link)).map_err(system("set up the faults"))?;
    let (slot, addresses) = (config.slot, addresses.to_vec());
    let config = StackConfig { outage: wraps.outage.clone(), ..config };
    let more = InprocEnds { net: net.clone(), addresses, slot, wraps };
    open.add(None, Supply { link, slot, mailbox: None, connect: None }, config, Some(Box::new(more)))
}

impl Open {
    /// A stack with a slot of the host service. It may get more slots later.
    fn join_host(
        &mut self,
        bound: Option<(Binding, Option<PathBuf>)>,
        program: Option<&Path>,
        wrapping: Wrapping,
        mut config: StackConfig,
    ) -> Result<Arc<Stack>, OpenError> {
        host::member_config()?;
        let wraps = self.wraps(wrapping)?;
        let kind = link_kind(&config)?;
        let attachment = host::attach(program, kind)?;
        let settings = LiveSettings::new(attachment.settings.clone(), config.own.clone());
        config.settings = Some(Arc::clone(&settings));
        let first = of_slot(attachment, &settings, kind, &wraps)?;
        let (program, namespace) = (program.map(Path::to_owned), network_namespace());
        config.outage = wraps.outage.clone();
        let more = HostSlots { program, namespace, wraps, kind, settings };
        self.add(bound, first, config, Some(Box::new(more)))
    }

    /// A stack over one link.
    fn add_link(
        &mut self,
        bound: Option<(Binding, Option<PathBuf>)>,
        link: Box<dyn Link>,
        wrapping: Wrapping,
        config: StackConfig,
    ) -> Result<Arc<Stack>, OpenError> {
        let wraps = self.wraps(wrapping)?;
        let link =
            wraps.wrap(link).map_err(|source| OpenError::System { action: "set up the faults", source })?;
        let slot = config.slot;
        let config = StackConfig { outage: wraps.outage, ..config };
        self.add(bound, Supply { link, slot, mailbox: None, connect: None }, config, None)
    }

    fn add(
        &mut self,
        bound: Option<(Binding, Option<PathBuf>)>,
        first: Supply,
        config: StackConfig,
        source: Option<Box<dyn Source>>,
    ) -> Result<Arc<Stack>, OpenError> {
        let stack = Stack::new(first, config.with_environment()?, source)
            .map_err(|source| OpenError::System { action: "set up the engine", source })?;
        self.stacks.retain(|entry| entry.stack.strong_count() > 0 || entry.is_ending());
        self.stacks.push(Entry { bound, stack: Arc::downgrade(&stack), ended: stack.ended.clone() });
        at_exit(finish);
        Ok(stack)
    }

    /// What is put around each link, as the caller or the environment asks for.
    fn wraps(&mut self, wrapping: Wrapping) -> Result<Wraps, OpenError> {
        let capture = match wrapping.capture {
            Some(capture) => Some(capture),
            None => once(&mut self.capture, ("RXE_PCAP", &[""]), |path| {
                Capture::new(Box::new(file::create(path)?), "rxe")
            })?,
        };
        let trace = once(&mut self.trace, ("RXE_TRACE", &["", "0"]), trace_to)?;
        let fault_log =
            once(&mut self.fault_log, ("RXE_FAULT_LOG", &[""]), |path| file::create(path).map(Trace::to))?;
        let faults = match wrapping.faults {
            Some(faults) => Some(faults),
            None => FaultPlan::from_environment()?,
        };
        let outage = faults.as_ref().map(FaultPlan::outage).transpose();
        let outage =
            outage.map_err(|source| OpenError::System { action: "set up the faults", source })?.flatten();
        Ok(Wraps { capture, trace, faults, fault_log, outage })
    }
}

/// Opens what the environment variable names, unless it is open already. `%p` in the name becomes the process ID. The values `off`
/// ask for nothing.
fn once<T: Clone>(
    made: &mut Option<T>,
    (name, off): (&str, &[&str]),
    make: impl FnOnce(&Path) -> io::Result<T>,
) -> Result<Option<T>, OpenError> {
    if made.is_none()
        && let Some(file) = text(name).filter(|file| !off.contains(&&**file))
    {
        let path = file.replace("%p", &std::process::id().to_string());
        *made = Some(make(Path::new(&path)).map_err(|source| OpenError::Capture { path, source })?);
    }
    Ok(made.clone())
}

/// With `RXE_TRACE=1` the trace goes to standard error.
fn trace_to(path: &Path) -> io::Result<Trace> {
    if path == Path::new("1") { Trace::to_stderr() } else { file::create(path).map(Trace::to) }
}

impl StackConfig {
    /// What the caller has not decided is as the environment says.
    fn with_environment(self) -> Result<Self, ConfigError> {
        Ok(Self {
            polling: decided(self.polling, "RXE_POLL", Polling::parse)?,
            messages: decided(self.messages, "RXE_MESSAGES", Messages::parse)?,
            congestion: decided(self.congestion, "RXE_CONGESTION", Congestion::parse)?,
            threads: decided(self.threads, "RXE_THREADS", Threads::parse)?,
            ..self
        })
    }
}

/// What the caller has decided, else the variable's value. A variable that is not set counts as empty.
fn decided<T>(
    own: Option<T>,
    name: &str,
    parse: fn(&str) -> Result<T, ConfigError>,
) -> Result<Option<T>, ConfigError> {
    let value = || parse(&variable(name).unwrap_or_default().to_string_lossy());
    own.map_or_else(value, Ok).map(Some)
}

fn link_kind(config: &StackConfig) -> Result<LinkKind, ConfigError> {
    config.link.map_or_else(LinkKind::from_environment, Ok)
}

fn text(name: &str) -> Option<String> {
    variable(name)?.into_string().ok()
}

/// Checks the environment's variables without opening anything.
///
/// # Errors
/// [`ConfigError`] names the first variable whose value is not understood, the value and what is allowed.
pub fn check_environment() -> Result<(), ConfigError> {
    StackConfig::default().with_environment()?;
    FaultPlan::from_environment()?;
    LinkKind::from_environment()?;
    UdpConfig::default().with_environment()?;
    match text("RXE_USERCOPY").as_deref() {
        None | Some("" | "kernel") => Ok(()),
        Some(other) => Err(ConfigError::new("RXE_USERCOPY", other, "kernel")),
    }
}

/// At its exit the process waits until another thread has ended a stack, in pauses of this length, so many at most. That thread may be
/// the one that exits, interrupted by a signal; then nothing can end the stack.
const PAUSE: Duration = Duration::from_millis(1);
const MOST_PAUSES: usize = 1000;

/// Runs at the process's exit: sends acknowledgements that are owed, reports the counters to the host service, writes captures to disk.
fn finish() {
    let Some(open) = OPEN.try_lock() else { return };
    for stack in open.stacks.iter().filter_map(|entry| entry.stack.upgrade()) {
        // The thread that exits may have been interrupted in the middle of a call, so it must not wait for a lock.
        stack.leave();
        stack.tell_last(false);
        // Its threads end with the process; joining them here could wait for one that exits.
        core::mem::forget(stack);
    }
    // A background thread may have held a stack when the program dropped it. Then that thread ends it.
    for _ in 0..MOST_PAUSES {
        if !open.stacks.iter().any(Entry::is_ending) {
            break;
        }
        thread::sleep(PAUSE);
    }
    if let Some(capture) = &open.capture {
        capture.flush_last();
    }
}
