//! A client's side of the host service: a thread that receives the service's messages, and joins the next service
//! when one dies. It is not part of the data path.

mod attach;
mod inbox;
mod mads;
mod observe;
mod start;
mod whose;

use super::{
    message::{LAST_WORD, Listen, Packet, ToClient, ToService, encode, parts},
    peers,
    records::SlotRecords,
    report::{ClientStats, LaneReport, PlaceReport, QpReport},
    settings::{LiveSettings, Settings},
    vault::Vault,
};
use crate::{
    engine::{Mailbox, Shard, State, now},
    net::Ways,
    regions::locked,
    sys::{
        fork::{generation, is_own},
        lock, poll,
        signals::block_signals,
        socket::Event,
        unix::Channel,
    },
};
use rxe_core::{
    endpoint::{Acks, Endpoint},
    num::Qpn,
    qp::{Reason, Reasons},
    stats::{QpStats, TrafficStats},
};
use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

pub use attach::HostError;
use attach::Until;
pub(crate) use attach::{Attachment, attach, attach_further};
pub use mads::MadPort;
pub use observe::Observer;
pub(crate) use start::Mode;
pub use start::VARIABLE as SERVICE_VARIABLE;

/// How long a client tries to join the next service.
const REUNION: Duration = Duration::from_secs(30);
/// After this many requests in a row a client reads the answers that have arrived.
const UNHEARD: usize = 64;
/// How often a shard that is in use is tried again, and the pause between two tries, if the caller must not wait for its lock.
const GLANCES: usize = 20;
const PAUSE: Duration = Duration::from_millis(1);
/// How long the service may take to answer a request.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most peer hosts that a process reports when it leaves.
const MOST_PEERS: usize = 32;
/// How often a client checks whether its descriptors are still its own.
const GLANCE: Duration = Duration::from_secs(2);

/// The result of waiting for the service.
enum Heard {
    /// A message, or nothing.
    Something,
    /// The service has ended.
    Death,
    /// The descriptor is no longer that of our connection.
    NotOurs,
}

/// The connection of a shard to the host service.
#[derive(Debug)]
pub(crate) struct Host {
    shared: Arc<Shared>,
    generation: u32,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    slot: u8,
    /// The features that the service is told, as in [`super::message::Hello`].
    features: u64,
    channel: RwLock<Channel>,
    vault: Vault,
    records: SlotRecords,
    program: Option<PathBuf>,
    mailbox: Arc<Mailbox>,
    shard: Weak<Shard>,
    /// The settings from the configuration, for all shards of the stack.
    settings: Arc<LiveSettings>,
    listeners: Mutex<HashMap<u32, Listener>>,
    answered: Condvar,
    verdicts: whose::Verdicts,
    ways: Option<inbox::Asker>,
    stop: Event,
    stopped: AtomicBool,
}

#[derive(Debug)]
struct Listener {
    listen: Listen,
    /// The service's answer. `None` if it has not answered.
    granted: Option<bool>,
}

impl Host {
    /// Starts the thread that receives the service's messages.
    pub(crate) fn start(
        attachment: Attachment,
        shard: &Arc<Shard>,
        mailbox: &Arc<Mailbox>,
        settings: &Arc<LiveSettings>,
        ways: Option<Arc<Ways>>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            slot: attachment.slot,
            features: attachment.features,
            channel: RwLock::new(attachment.channel),
            vault: attachment.vault,
            records: attachment.records,
            program: attachment.program,
            mailbox: Arc::clone(mailbox),
            shard: Arc::downgrade(shard),
            settings: Arc::clone(settings),
            listeners: Mutex::default(),
            answered: Condvar::new(),
            verdicts: whose::Verdicts::default(),
            ways: ways.map(inbox::Asker::new),
            stop: Event::new()?,
            stopped: AtomicBool::new(false),
        });
        let work = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name("rxe-host".to_owned()).stack_size(256 * 1024).spawn(move || {
                block_signals();
                work.run();
            })?;
        Ok(Self { shared, generation: generation(), thread: Some(thread) })
    }

    /// This process's slot.
    pub(crate) fn slot(&self) -> u8 {
        self.shared.slot
    }

    /// The records of live connections.
    pub(crate) fn records(&self) -> &SlotRecords {
        &self.shared.records
    }

    /// Asks for connection requests. Returns the token for [`Self::unlisten`], or `None` if another process listens there.
    pub(crate) fn listen(&self, listen: Listen) -> Option<u32> {
        if !is_own(self.generation) {
            return None;
        }
        let shared = &self.shared;
        let mut listeners = lock(&shared.listeners);
        let random = RandomState::new();
        let token =
            (0..).map(|n: u32| random.hash_one(n) as u32).find(|token| !listeners.contains_key(token))?;
        listeners.insert(token, Listener { listen, granted: None });
        shared.tell(&ToService::Listen { token, listen });
        let open = |all: &mut HashMap<u32, Listener>| {
            all.get(&token).is_some_and(|listener| listener.granted.is_none())
        };
        let (mut listeners, _) = shared
            .answered
            .wait_timeout_while(listeners, PATIENCE, open)
            .unwrap_or_else(PoisonError::into_inner);
        if listeners.get(&token).is_some_and(|listener| listener.granted == Some(true)) {
            return Some(token);
        }
        if listeners.remove(&token).is_some_and(|listener| listener.granted.is_none()) {
            // The service is late, and would keep the place for us.
            shared.tell(&ToService::Unlisten { token });
        }
        None
    }

    /// Reports the counters by address and the peer hosts for the last time. They stay in the sums of the host. The report is one
    /// message. If not all fits, as much as fits is reported.
    pub(crate) fn tell_last(&self, waits: bool) {
        let mut stats = ClientStats { peers: peers::met(waits), ..ClientStats::default() };
        stats.peers.truncate(MOST_PEERS);
        if let Some(shard) = self.shared.shard.upgrade() {
            look(&shard, waits, |state| stats.places = places(&state.endpoint));
        }
        let mut all = parts(&stats);
        while all.len() > 1 && (stats.peers.pop().is_some() || stats.places.pop().is_some()) {
            all = parts(&stats);
        }
        // A process that exits may have interrupted the thread that has the lock.
        let channel =
            if waits { self.shared.channel.read().ok() } else { self.shared.channel.try_read().ok() };
        let Some(channel) = channel.filter(|channel| channel.is_intact()) else { return };
        for part in all {
            send_patiently(&channel, &encode(&ToService::Told { ask: LAST_WORD, part }));
        }
    }

    /// Gives up what [`Self::listen`] asked for.
    pub(crate) fn unlisten(&self, token: u32) {
        if !is_own(self.generation) {
            return;
        }
        lock(&self.shared.listeners).remove(&token);
        self.shared.tell(&ToService::Unlisten { token });
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if !is_own(self.generation) {
            // A forked child has neither the slot nor the thread.
            core::mem::forget(self.thread.take());
            return;
        }
        self.shared.stopped.store(true, Ordering::Release);
        self.shared.stop.raise();
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, it has printed that.
            let _ = thread.join();
        }
        self.shared.tell(&ToService::Leave);
    }
}

impl Shared {
    fn run(&self) {
        while !self.stopped.load(Ordering::Acquire) {
            match self.listen_to_service() {
                Heard::Something => {}
                // The program has closed all of its descriptors, so nothing of ours works any more.
                Heard::NotOurs => return,
                Heard::Death if self.come_back() => {}
                Heard::Death => return,
            }
        }
    }

    /// Receives one message, or sends packets that belong to other processes to the service.
    fn listen_to_service(&self) -> Heard {
        let channel = &*self.channel.read().unwrap_or_else(PoisonError::into_inner);
        let fds = [channel.as_fd(), self.mailbox.departures(), self.stop.as_fd()];
        let ready = poll::wait(&fds, Some(GLANCE)).unwrap_or(0);
        if !channel.is_intact() {
            return Heard::NotOurs;
        }
        if ready & 2 != 0 {
            for stray in self.mailbox.take_outgoing() {
                // The packet is lost if the service is too busy or has ended. Its sender sends it again.
                let _ = channel
                    .send(&encode(&ToService::HandOn(Packet::new(&stray.meta, None, &stray.bytes))), &[]);
            }
        }
        if ready & 1 == 0 {
            return Heard::Something;
        }
        match attach::receive(channel, Until::deadline(Instant::now() + PATIENCE)) {
            Ok(Some((message, fds))) => {
                self.handle(channel, message, fds);
                Heard::Something
            }
            Ok(None) | Err(_) => Heard::Death,
        }
    }

    fn handle(&self, channel: &Channel, message: ToClient, fds: Vec<OwnedFd>) {
        match message {
            ToClient::Packet(packet) if packet.is_sound() => {
                self.mailbox.put(packet.meta(), packet.bytes);
            }
            ToClient::Listening { token } => self.note(token, true),
            ToClient::NotListening { token } => self.note(token, false),
            ToClient::Ask { ask } => {
                for part in parts(&self.count()) {
                    send_patiently(channel, &encode(&ToService::Told { ask, part }));
                }
            }
            ToClient::Settings(settings) => self.adopt(settings),
            ToClient::Inbox { slot } => self.note_inbox(slot, fds),
            ToClient::Whose { request, yours } => self.verdicts.note(request, yours),
            _ => {}
        }
    }

    /// Applies new settings.
    fn adopt(&self, settings: Settings) {
        self.settings.replace(settings);
        if let Some(shard) = self.shard.upgrade() {
            // Threads like this one are not in forked children.
            let _ =
                shard.act(Acks::Wait, |state, view| self.settings.apply(&mut state.endpoint, now(), view));
        }
    }

    fn note(&self, token: u32, granted: bool) {
        if let Some(listener) = lock(&self.listeners).get_mut(&token) {
            listener.granted = Some(granted);
        }
        self.answered.notify_all();
    }

    fn tell(&self, message: &ToService) {
        let channel = self.channel.read().unwrap_or_else(PoisonError::into_inner);
        if !channel.is_intact() {
            return;
        }
        send_patiently(&channel, &encode(message));
    }

    /// Whether the descriptors are still our own.
    fn has_its_own(&self) -> bool {
        let channel = self.channel.read().unwrap_or_else(PoisonError::into_inner);
        channel.is_intact() && self.vault.is_intact()
    }

    /// Called when the service has died: joins the next one, or starts it. False if that is not possible, or if this thread is to stop.
    fn come_back(&self) -> bool {
        let deadline = Instant::now() + REUNION;
        // All clients notice at the same time. A random pause lets one of them be first.
        let mut pause = Duration::from_micros(RandomState::new().hash_one(self.slot) % 10_000);
        loop {
            if poll::wait(&[self.stop.as_fd()], Some(pause)).unwrap_or(0) != 0 {
                return false;
            }
            // A program that closes all descriptors also closes those of an embedded service, whose end may be noticed first.
            if !self.has_its_own() {
                return false;
            }
            let until = Until { deadline, stop: Some(self.stop.as_fd()) };
            match attach::rejoin((self.slot, self.features), &self.vault, self.program.as_deref(), until) {
                Ok(Some((channel, settings))) => {
                    *self.channel.write().unwrap_or_else(PoisonError::into_inner) = channel;
                    self.adopt(settings);
                    self.listen_again();
                    return true;
                }
                Ok(None) => {}
                // No more messages arrive from a service. The sockets still work.
                Err(error) if matches!(error, HostError::Refused(_)) || Instant::now() >= deadline => {
                    eprintln!("rxe: {error}");
                    return false;
                }
                // For instance, too many clients connect at once.
                Err(_) => {}
            }
            pause = (pause * 2).clamp(Duration::from_millis(20), Duration::from_millis(500));
        }
    }

    fn listen_again(&self) {
        let wanted: Vec<(u32, Listen)> =
            lock(&self.listeners).iter().map(|(token, listener)| (*token, listener.listen)).collect();
        for (count, (token, listen)) in wanted.into_iter().enumerate() {
            self.tell(&ToService::Listen { token, listen });
            if !lock(&self.listeners).contains_key(&token) {
                // It was given up meanwhile, perhaps before this was sent.
                self.tell(&ToService::Unlisten { token });
            }
            // The service disconnects clients that do not read its answers.
            if count % UNHEARD == UNHEARD - 1 && !self.hear_all() {
                return;
            }
        }
    }

    /// Handles the messages that have arrived. False if the service has died.
    fn hear_all(&self) -> bool {
        let channel = &*self.channel.read().unwrap_or_else(PoisonError::into_inner);
        while poll::wait(&[channel.as_fd()], Some(Duration::ZERO)).unwrap_or(0) != 0 {
            match attach::receive(channel, Until::deadline(Instant::now() + PATIENCE)) {
                Ok(Some((message, fds))) => self.handle(channel, message, fds),
                Ok(None) | Err(_) => return false,
            }
        }
        true
    }

    /// The counters of this process.
    fn count(&self) -> ClientStats {
        let mut stats = ClientStats {
            slot: self.slot,
            pid: std::process::id(),
            name: attach::own_name(),
            locked: locked::report(self.settings.memlock()),
            peers: peers::met(true),
            ..ClientStats::default()
        };
        let Some(shard) = self.shard.upgrade() else { return stats };
        let (taken, refused) = self.mailbox.counts();
        // Threads like this one are not in forked children.
        let fill = |state: &mut State| {
            stats.port = state.endpoint.port_stats().each().map(named).collect();
            let of_link = state.report().counters();
            let of_mailbox = [("handed_over", taken), ("dropped_mailbox_full", refused)];
            let of_memory = self.ways.iter().flat_map(inbox::Asker::counters);
            stats.port.extend(of_link.chain(of_mailbox).chain(of_memory).map(named));
            let endpoint = &state.endpoint;
            stats.places = places(endpoint);
            let lane = |(lane, counters): (u8, TrafficStats)| LaneReport {
                lane,
                counters: counters.each().map(named).collect(),
            };
            stats.lanes = endpoint.lane_stats().map(lane).collect();
            stats.qps = endpoint
                .queue_pairs()
                .map(|(qpn, qp_type, state, counters)| QpReport {
                    qpn: qpn.value(),
                    service: format!("{qp_type:?}").to_uppercase(),
                    state: format!("{state:?}").to_uppercase(),
                    counters: counters.each().filter(|(_, value)| *value > 0).map(named).collect(),
                    refused: why(endpoint, qpn, |reasons| reasons.refused),
                    failed: why(endpoint, qpn, |reasons| reasons.failed),
                    interface: self.settings.interface(endpoint.pkey_table_of(qpn).unwrap_or(0)),
                })
                .collect();
        };
        look(&shard, true, fill);
        stats
    }
}

fn named((name, value): (&'static str, u64)) -> (String, u64) {
    (name.to_owned(), value)
}

/// The counters by address.
fn places(endpoint: &Endpoint) -> Vec<PlaceReport> {
    let place = |(address, traffic, qps): (_, TrafficStats, QpStats)| {
        // Where both have a counter of the same name, that of the wire is reported. A queue pair counts only payload that it accepts.
        let of_qps = qps.each().filter(|(name, _)| traffic.each().all(|(own, _)| own != *name));
        let counters = traffic.each().chain(of_qps).filter(|(_, value)| *value > 0).map(named).collect();
        PlaceReport { address, counters }
    };
    endpoint.place_stats().into_iter().map(place).collect()
}

/// Calls `fill` with the state of a shard. If not `waits`, only if its lock is free within a short time.
fn look(shard: &Shard, waits: bool, mut fill: impl FnMut(&mut State)) {
    if waits {
        let _ = shard.look(fill);
        return;
    }
    for glance in 0..GLANCES {
        if glance > 0 {
            thread::sleep(PAUSE);
        }
        if shard.try_look(&mut fill).is_some() {
            return;
        }
    }
}

/// One of the reasons that a queue pair keeps, as text.
fn why(endpoint: &Endpoint, qpn: Qpn, pick: fn(&Reasons) -> Option<Reason>) -> Option<String> {
    endpoint.reasons(qpn).and_then(pick).map(|reason| reason.to_string())
}

/// Sends a message. If the service has too much to read, tries again for some seconds.
fn send_patiently(channel: &Channel, bytes: &[u8]) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = channel.send(bytes, &[]) {
        if error.kind() != io::ErrorKind::WouldBlock || Instant::now() >= deadline {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}
