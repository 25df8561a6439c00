//! What a shard is made from (a link, a slot), and where a stack gets it when it makes another shard.

use super::{mailbox::Mailbox, shard::Shard};
use crate::{
    error::OpenError,
    host::{self, Attachment, Host, LiveSettings},
    net::{
        Capture, FaultLink, FaultPlan, GroupSockets, Inbox, InprocNet, Link, LinkKind, MemoryLink, RawLink,
        TapLink, Trace, UdpConfig, UdpLink, Ways, fault::Outage,
    },
    sys::process::network_namespace,
};
use core::{net::IpAddr, time::Duration};
use std::{io, path::PathBuf, sync::Arc};

/// How long to wait for a further slot. The thread that creates a queue pair waits meanwhile, and can do without the slot.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a shard is made from.
pub(super) struct Supply {
    pub(super) link: Box<dyn Link>,
    /// Top byte of its queue pair numbers.
    pub(super) slot: u8,
    pub(super) mailbox: Option<Arc<Mailbox>>,
    /// Connects the shard with the host service.
    pub(super) connect: Option<Connect>,
}

/// See [`Supply::connect`].
pub(super) type Connect = Box<dyn FnOnce(&Arc<Shard>) -> io::Result<Host>>;

/// Where further shards come from.
pub(super) trait Source: Send + core::fmt::Debug {
    /// Whether the calling thread can ask for one.
    fn is_here(&self) -> bool {
        true
    }

    /// What the shard of this `index` is made from. `None` if there can be no more shards.
    fn next(&mut self, index: u8) -> Option<Supply>;
}

/// What is put around every link of a stack.
#[derive(Clone, Debug)]
pub(super) struct Wraps {
    pub(super) capture: Option<Capture>,
    pub(super) trace: Option<Trace>,
    pub(super) faults: Option<FaultPlan>,
    pub(super) fault_log: Option<Trace>,
    /// The outage of the port, if the faults have one.
    pub(super) outage: Option<Arc<Outage>>,
}

impl Wraps {
    /// Puts all of it around `link`. The capture is closest to the wire, so it shows packets as the faults have left them.
    pub(super) fn wrap(&self, mut link: Box<dyn Link>) -> io::Result<Box<dyn Link>> {
        if let Some(capture) = self.capture.clone().and_then(|capture| link.record(capture)) {
            link = Box::new(TapLink::new(link, capture));
        }
        if let Some(trace) = self.trace.clone() {
            link = Box::new(TapLink::new(link, trace));
        }
        Ok(match self.faults.clone() {
            Some(faults) => {
                let link = FaultLink::new(link, faults)?;
                Box::new(link.with_log(self.fault_log.clone()).with_outage(self.outage.clone()))
            }
            None => link,
        })
    }
}

/// Makes the link of this kind for the queue pairs of a slot. `port` is its socket of port 4791; with `shared` the slot and the socket
/// are the host service's.
pub(super) fn of_kind(
    port: UdpLink,
    kind: LinkKind,
    (slot, shared): (u8, bool),
    config: &UdpConfig,
) -> Result<Box<dyn Link>, OpenError> {
    Ok(match kind {
        // Only processes of one host service share memory.
        LinkKind::Udp | LinkKind::Memory => Box::new(port),
        LinkKind::Raw => Box::new(RawLink::open(port, slot, shared, config)?),
    })
}

/// What a shard with a slot of the host service is made from.
pub(super) fn of_slot(
    mut attachment: Attachment,
    settings: &Arc<LiveSettings>,
    kind: LinkKind,
    wraps: &Wraps,
) -> Result<Supply, OpenError> {
    let none = GroupSockets { v4: None, v6: None };
    let sockets = core::mem::replace(&mut attachment.sockets, none);
    let system = |action| move |source| OpenError::System { action, source };
    let config = host::member_config()?;
    let link = UdpLink::from_sockets(sockets, &config)?;
    let (link, ways): (Box<dyn Link>, _) = match attachment.inbox.take() {
        Some(inbox) => {
            let inbox = Inbox::open(inbox).map_err(system("map the memory for what other processes send"))?;
            let ways = Ways::new(attachment.slot).map_err(system("open rtnetlink"))?;
            let ways = Arc::new(ways);
            (Box::new(MemoryLink::new(link, inbox, Arc::clone(&ways))), Some(ways))
        }
        None => (of_kind(link, kind, (attachment.slot, true), &config)?, None),
    };
    let link = wraps.wrap(link).map_err(system("set up the faults"))?;
    let mailbox = Arc::new(Mailbox::new().map_err(system("make an event counter"))?);
    let (slot, of_host, settings) = (attachment.slot, Arc::clone(&mailbox), Arc::clone(settings));
    let connect: Connect = Box::new(move |shard| Host::start(attachment, shard, &of_host, &settings, ways));
    Ok(Supply { link, slot, mailbox: Some(mailbox), connect: Some(connect) })
}

/// The host service, of which a process may have several slots.
#[derive(Debug)]
pub(super) struct HostSlots {
    pub(super) program: Option<PathBuf>,
    /// The network namespace of the service. A thread may be in another one, and cannot ask then.
    pub(super) namespace: Option<PathBuf>,
    pub(super) wraps: Wraps,
    pub(super) kind: LinkKind,
    pub(super) settings: Arc<LiveSettings>,
}

impl Source for HostSlots {
    fn is_here(&self) -> bool {
        network_namespace() == self.namespace
    }

    fn next(&mut self, index: u8) -> Option<Supply> {
        let attached = host::attach_further(self.program.as_deref(), self.kind, PATIENCE);
        let supply = attached.map_err(|error| error.to_string()).and_then(|attachment| {
            of_slot(attachment, &self.settings, self.kind, &self.wraps).map_err(|error| error.to_string())
        });
        supply
            .inspect_err(|error| {
                eprintln!("rxe: no more than {index} of the threads that were asked for: {error}");
            })
            .ok()
    }
}

/// A network inside the process. An address may have several ends in it.
#[derive(Debug)]
pub(super) struct InprocEnds {
    pub(super) net: InprocNet,
    pub(super) addresses: Vec<IpAddr>,
    /// The slot of the first shard.
    pub(super) slot: u8,
    pub(super) wraps: Wraps,
}

impl Source for InprocEnds {
    fn next(&mut self, index: u8) -> Option<Supply> {
        let slot = self.slot.checked_add(index)?;
        let link = self.net.attach_slot(&self.addresses, slot).ok()?;
        Some(Supply { link: self.wraps.wrap(Box::new(link)).ok()?, slot, mailbox: None, connect: None })
    }
}
