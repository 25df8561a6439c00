//! A stack: the shards of one set of bound addresses, and the names and keys they share.

use super::{
    background, clock,
    congestion::Congestion,
    lookout::Lookout,
    messages::Messages,
    network::Network,
    polling::Polling,
    reach::ShardSet,
    shard::Shard,
    state::{State, Turn, Who},
    streams::Destinations,
    sums::choose_method,
    supply::{Source, Supply},
    threads::Threads,
    wait::WaitPolicy,
};
use crate::{
    error::Forked,
    host::{Host, LiveSettings, Own},
    limits::{MAX_CQ, MAX_PD},
    net::{Encapsulation, LinkKind, fault::Outage},
    regions::Regions,
    sys::{
        ahead,
        fork::{generation, is_own},
        lock,
        poll::{self, Fds},
    },
    xrcd::{Domain, FileId},
};
use core::{
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    time::Duration,
};
use rxe_core::{
    endpoint::{Acks, Endpoint, EndpointConfig},
    num::Qpn,
    qp::{Mtu, QpConfig, QpType},
    work::AddressVector,
};
use slab::Slab;
use smallvec::SmallVec;
use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    io,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    thread::JoinHandle,
};

/// The least and the most bytes of READ responses to ask for at once.
const WINDOW: (usize, usize) = (16 * 1024, 1024 * 1024);
/// Bytes of the receive buffer that one byte of payload takes up at worst, when small packets come one by one.
const BUFFER_PER_BYTE: usize = 4;

/// Most bytes in flight to one destination, where our own receive buffer is large: then the peer's probably is, too. With less, a
/// sender that never pauses has to wait for acknowledgements. With more, all of 64 messages of 16 KiB fit the window, and none are left to
/// fill the next batches.
const SEND_WINDOW_MOST: u32 = 384 * 1024;

/// Turns in a row without effect after which a thread that polls offers the processor, or sleeps if others are known to want it. A
/// round trip between two idle processors takes about 25 turns, so it never comes to that. And 64 turns are much shorter than the time
/// slice of a thread that waits for this processor.
const IDLE_TURNS: u32 = 64;
/// How long such a thread sleeps at most. Packets wake it. If it looked on instead, it would lose the processor for milliseconds.
const LONGEST_NAP: Duration = Duration::from_micros(200);

/// How a stack is set up.
#[derive(Clone, Debug)]
pub(crate) struct StackConfig {
    /// Top byte of its queue pair numbers.
    pub(crate) slot: u8,
    /// Partition table and lanes, where they are not those of the host.
    pub(crate) own: Own,
    /// The host's configuration, where a host service has told it.
    pub(crate) settings: Option<Arc<LiveSettings>>,
    /// Largest payload of a packet, in bytes.
    pub(crate) port_mtu: u32,
    /// How threads wait. `None`: as the environment says.
    pub(crate) polling: Option<Polling>,
    /// Whether the background thread ticks while the program polls.
    pub(crate) ticks: bool,
    /// In what form WRITEs and READs leave. `None`: as the environment says.
    pub(crate) messages: Option<Messages>,
    /// What reliable connections do about congestion. `None`: as the environment says.
    pub(crate) congestion: Option<Congestion>,
    /// The kind of link. `None`: as the environment says.
    pub(crate) link: Option<LinkKind>,
    /// How many shards it may have. `None`: as the environment says.
    pub(crate) threads: Option<Threads>,
    /// The outage of its port, if its faults have one.
    pub(crate) outage: Option<Arc<Outage>>,
}

impl Default for StackConfig {
    fn default() -> Self {
        Self {
            slot: 0,
            own: Own::default(),
            settings: None,
            port_mtu: Mtu::M4096.bytes(),
            polling: None,
            ticks: true,
            messages: None,
            congestion: None,
            link: None,
            threads: None,
            outage: None,
        }
    }
}

/// A shard's place in a stack.
#[derive(Debug)]
struct Place {
    shard: Arc<Shard>,
    /// Its connection to the host service, if it has one. Dropped after the shard, when the sockets are closed.
    host: Option<Host>,
    /// Its background thread, once it runs.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// One process's share of a host's RoCE port.
#[derive(Debug)]
pub(crate) struct Stack {
    /// As many as there may be shards. Filled one after the other, and never emptied.
    places: Box<[OnceLock<Place>]>,
    /// Where further shards come from. `None` once there can be no more.
    source: Mutex<Option<Box<dyn Source>>>,
    /// Number of queue pairs that were given a shard in turn.
    turns: AtomicUsize,
    /// What the endpoints of all shards have in common.
    common: EndpointConfig,
    pub(crate) table: Arc<Regions>,
    pub(crate) network: Arc<Network>,
    pub(crate) wait: Arc<WaitPolicy>,
    pub(crate) lookout: Arc<Lookout>,
    /// Generation of the process that made it. A forked child has another one.
    pub(super) generation: u32,
    /// What reliable connections do about congestion.
    pub(crate) congestion: Congestion,
    /// P_Key tables and lanes.
    pub(crate) settings: Arc<LiveSettings>,
    /// Top byte of its queue pair numbers.
    pub(crate) slot: u8,
    /// Whether its link carries RoCEv1, too.
    pub(crate) carries_v1: bool,
    pub(crate) pds: Numbers,
    pub(crate) cqs: Numbers,
    pub(crate) xrcds: Numbers,
    /// XRC domains by the file that they were opened with.
    xrcd_files: Mutex<HashMap<FileId, Weak<Domain>>>,
    /// Turns in a row without effect, of calls that found nothing.
    idle_turns: AtomicU32,
    /// Whether it was dropped, and has reported its counters to the host service.
    pub(super) ended: Arc<AtomicBool>,
}

/// The numbers of the stack's objects of one kind.
#[derive(Debug)]
pub(crate) struct Numbers {
    used: Mutex<Slab<()>>,
    most: u32,
}

impl Numbers {
    const fn new(most: u32) -> Self {
        Self { used: Mutex::new(Slab::new()), most }
    }

    /// A number that no other object has. `None` if there are too many objects.
    pub(crate) fn take(&self) -> Option<u32> {
        let mut used = lock(&self.used);
        (used.len() < self.most as usize).then(|| used.insert(()) as u32)
    }

    pub(crate) fn give_back(&self, number: u32) {
        lock(&self.used).try_remove(number as usize);
    }
}

/// Bytes that a destination's socket buffer takes, if our own receive buffer has `recv_buffer` bytes.
fn room(recv_buffer: usize) -> u32 {
    let (_, usual) = EndpointConfig::default().send_window;
    u32::try_from(recv_buffer / BUFFER_PER_BYTE).unwrap_or(u32::MAX).max(usual)
}

/// Bytes that one shard may have in flight to one destination: at first, and at most.
fn send_window(recv_buffer: usize) -> (u32, u32) {
    let (start, _) = EndpointConfig::default().send_window;
    (start, room(recv_buffer).min(SEND_WINDOW_MOST))
}

impl Stack {
    pub(super) fn new(
        first: Supply,
        config: StackConfig,
        source: Option<Box<dyn Source>>,
    ) -> io::Result<Arc<Self>> {
        choose_method();
        let table = Arc::new(Regions::new(RandomState::new().hash_one(std::process::id()) as u8));
        let own = config.own;
        let settings = config.settings.unwrap_or_else(|| LiveSettings::alone(own));
        let threads = config.threads.filter(|_| source.is_some()).unwrap_or_else(|| Threads::wished(1));
        let room = room(first.link.capabilities().recv_buffer);
        let common = EndpointConfig {
            parts: config.messages.unwrap_or_default() == Messages::Parts,
            port_mtu: config.port_mtu,
            streams: (threads.count() > 1).then(|| (Arc::new(Destinations::new(room)) as _, 0)),
            ..EndpointConfig::default()
        };
        let network = Arc::new(Network::new(config.outage)?);
        let slot = first.slot;
        let carries_v1 = first.link.capabilities().encapsulations.contains(&Encapsulation::V1);
        let mut stack = Self {
            places: (0..threads.count()).map(|_| OnceLock::new()).collect(),
            source: Mutex::new(source),
            turns: AtomicUsize::new(0),
            common,
            table,
            network,
            wait: Arc::new(WaitPolicy::new(config.polling.unwrap_or_default(), config.ticks)),
            lookout: Arc::default(),
            generation: generation(),
            congestion: config.congestion.unwrap_or_default(),
            settings,
            slot,
            carries_v1,
            pds: Numbers::new(MAX_PD),
            cqs: Numbers::new(MAX_CQ),
            xrcds: Numbers::new(MAX_PD),
            xrcd_files: Mutex::default(),
            idle_turns: AtomicU32::new(0),
            ended: Arc::default(),
        };
        stack.places[0] = OnceLock::from(stack.make(first, 0)?);
        Ok(Arc::new(stack))
    }

    /// Makes the shard of this `index` over the link of `supply`.
    fn make(&self, supply: Supply, index: u8) -> io::Result<Place> {
        let Supply { link, slot, mailbox, connect } = supply;
        let capabilities = link.capabilities();
        let window = (capabilities.recv_buffer / BUFFER_PER_BYTE).clamp(WINDOW.0, WINDOW.1);
        let endpoint = Endpoint::new(EndpointConfig {
            slot,
            max_segments: capabilities.max_segments,
            max_batch: capabilities.max_batch_bytes,
            ident: link.path(Ipv4Addr::UNSPECIFIED.into(), 0).ident,
            source_ports: capabilities.source_ports.clone(),
            receive_window: window as u32,
            send_window: send_window(capabilities.recv_buffer),
            streams: self.common.streams.as_ref().map(|(streams, _)| (Arc::clone(streams), index)),
            seed: RandomState::new().hash_one((std::process::id(), index)),
            keep_strays: mailbox.is_some(),
            fetch: ahead::fetch,
            ..self.common.clone()
        });
        let ticks = self.wait.ticks();
        let shard =
            Shard::new(State::new(endpoint, link, mailbox, index), &self.table, &self.lookout, ticks)?;
        // The shard is this process's, so this cannot fail.
        let _ =
            shard.act(Acks::Wait, |state, view| self.settings.apply(&mut state.endpoint, clock::now(), view));
        let host = connect.map(|connect| connect(&shard)).transpose()?;
        Ok(Place { shard, host, thread: Mutex::default() })
    }

    fn places(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().map_while(OnceLock::get)
    }

    fn first(&self) -> &Place {
        self.places().next().unwrap_or_else(|| unreachable!("a stack has a shard from the start"))
    }

    /// Whether there are several shards, or may be later.
    pub(super) fn may_grow(&self) -> bool {
        self.places.len() > 1
    }

    /// All shards.
    pub(crate) fn shards(&self) -> impl Iterator<Item = &Arc<Shard>> {
        self.places().map(|place| &place.shard)
    }

    /// The shards of a set, or the first one if the set is empty.
    pub(super) fn among(&self, set: ShardSet) -> impl Iterator<Item = &Arc<Shard>> {
        let set = set.or_first();
        self.shards().enumerate().filter(move |(index, _)| set.has(*index)).map(|(_, shard)| shard)
    }

    /// Calls `act` with each of them. A program that polls does this all the time.
    fn each(&self, set: ShardSet, mut act: impl FnMut(&Shard)) {
        if self.may_grow() {
            self.among(set).for_each(|shard| act(shard));
        } else {
            act(self.shard());
        }
    }

    /// The connection to the host service of the first shard, if it has one.
    pub(crate) fn host(&self) -> Option<&Host> {
        self.first().host.as_ref()
    }

    /// A queue pair of `shard` is about to send to `peer` by `av`. If memory can be shared with it, packets go by memory from now on.
    pub(crate) fn open_way(&self, shard: &Arc<Shard>, av: &AddressVector, peer: Qpn) {
        let place = self.places().find(|place| Arc::ptr_eq(&place.shard, shard));
        if let Some(host) = place.and_then(|place| place.host.as_ref()) {
            host.open_way((av.src, av.dst), peer.slot());
        }
    }

    /// Checks that this process made it.
    ///
    /// # Errors
    /// [`Forked`] in a forked child of that process.
    pub(crate) fn check(&self) -> Result<(), Forked> {
        if is_own(self.generation) { Ok(()) } else { Err(Forked) }
    }

    /// The first shard. It has everything that cannot be spread: shared receive queues and their users, datagram queue pairs and
    /// multicast groups, queue pair 1.
    pub(crate) fn shard(&self) -> &Arc<Shard> {
        &self.first().shard
    }

    /// The shard for a new queue pair. Its background thread is started if it does not run.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn shard_for(&self, config: &QpConfig) -> io::Result<&Arc<Shard>> {
        let is_free = matches!(config.qp_type, QpType::Rc | QpType::Uc) && config.srq.is_none();
        // Lanes are weighted within an endpoint only, so with several lanes all queue pairs are in one.
        let spread = is_free && self.may_grow() && !self.settings.has_several_lanes();
        let index = if spread { self.next_in_turn() } else { 0 };
        let place = self.places.get(index).and_then(OnceLock::get).unwrap_or_else(|| self.first());
        self.start_thread(place)?;
        Ok(&place.shard)
    }

    /// The index of the next shard in turn. The shard is made if it is not there yet and can be made.
    fn next_in_turn(&self) -> usize {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let index = turn % self.places.len();
        let count = self.places().count();
        if index < count {
            return index;
        }
        let mut source = lock(&self.source);
        // Another thread may have made it meanwhile.
        let count = self.places().count();
        if index >= count && source.as_ref().is_some_and(|source| source.is_here()) {
            match self.grow(count, &mut source) {
                Some(place) => _ = self.places[count].set(place),
                None => *source = None,
            }
        }
        turn % self.places().count()
    }

    fn grow(&self, index: usize, source: &mut Option<Box<dyn Source>>) -> Option<Place> {
        let index = u8::try_from(index).ok()?;
        let supply = source.as_mut()?.next(index)?;
        self.make(supply, index).ok()
    }

    /// Takes a turn of every shard of `set` in which no other thread takes one, for a call that found nothing. `polls` says that the
    /// program has not announced that it will sleep, so it probably calls again at once.
    pub(crate) fn progress(&self, set: ShardSet, polls: bool) {
        let turn = self.turns(set, Who::Inline, polls || self.lookout.is_there());
        // Threads may overwrite each other's counts, which does no harm.
        let idle = if turn.busy { 0 } else { self.idle_turns.load(Ordering::Relaxed).saturating_add(1) };
        self.idle_turns.store(idle, Ordering::Relaxed);
    }

    /// The same for any kind of caller: a thread that was woken by packets, is about to sleep, or has events of its channels to take.
    /// Returns what the turns did together, without deadlines.
    pub(crate) fn turns(&self, set: ShardSet, who: Who, polls: bool) -> Turn {
        let mut all = Turn::default();
        self.each(set, |shard| {
            let turn = shard.progress(who, polls);
            all.busy |= turn.busy;
            all.received |= turn.received;
            all.amid |= turn.amid;
            all.owes |= turn.owes;
            all.missed |= turn.missed;
        });
        all
    }

    /// For a thread that has armed its queue and found it empty: messages that waited for its next call leave. They stay if the thread has
    /// events of other channels to take, because it will call again after that.
    pub(crate) fn send_before_sleep(&self, set: ShardSet) {
        self.send_unless_back_soon(set, Shard::send_before_sleep);
    }

    /// For a call that found completions without a turn: messages that waited for it leave, with the exception of [`Self::send_before_sleep`].
    pub(crate) fn send_held(&self, set: ShardSet) {
        self.send_unless_back_soon(set, Shard::send_held);
    }

    fn send_unless_back_soon(&self, set: ShardSet, send: fn(&Shard)) {
        self.each(set, if self.lookout.is_on_the_way() { Shard::count_poll } else { send });
    }

    /// For a call that found nothing even after its turn. After many turns in a row without effect it offers the processor to other
    /// threads; one of them may be the peer. If none wants the processor it is back at once. If another thread is known to compute
    /// there, the call sleeps instead, until packets arrive or [`LONGEST_NAP`] is over. Returns whether it did either.
    pub(crate) fn give_way(&self, set: ShardSet) -> bool {
        if self.idle_turns.load(Ordering::Relaxed) < IDLE_TURNS {
            return false;
        }
        if self.wait.polling() != Polling::Busy && self.wait.is_wanted() {
            let fds: Fds<'_> = self.among(set).map(|shard| shard.arrivals()).collect();
            // A signal may end the sleep early, which does no harm.
            let _ = poll::wait(&fds, Some(LONGEST_NAP));
        } else {
            self.wait.offer();
        }
        true
    }

    /// Takes a turn of every shard of `set` for a thread that waits for packets whatever the application does. Returns whether packets had
    /// arrived.
    pub(crate) fn attend(&self, set: ShardSet) -> bool {
        let mut received = false;
        self.each(set, |shard| received |= shard.attend());
        received
    }

    /// The application is about to sleep on a descriptor.
    pub(crate) fn expect_sleep(&self, set: ShardSet) {
        self.each(set, Shard::expect_sleep);
    }

    /// Counts the application's turns.
    pub(crate) fn polls(&self, set: ShardSet) -> u64 {
        self.among(set).fold(0, |sum, shard| sum.wrapping_add(shard.polls.load(Ordering::Relaxed)))
    }

    /// Whether messages of theirs wait for the application's next call.
    pub(crate) fn holds(&self, set: ShardSet) -> bool {
        self.among(set).any(|shard| shard.holds())
    }

    /// Whether the background threads have seen the application poll, and so leave packets to it.
    pub(crate) fn is_polled(&self, set: ShardSet) -> bool {
        self.among(set).any(|shard| shard.is_polled())
    }

    /// The calling thread waits for packets of `set` until the result is dropped. The background threads do not wait for them meanwhile.
    pub(crate) fn wait_for_packets(&self, set: ShardSet) -> Waiter<'_> {
        let shards: SmallVec<[&Shard; 2]> = self.among(set).map(|shard| &**shard).collect();
        for shard in &shards {
            shard.begin_waiting();
        }
        Waiter { shards, at_once: false }
    }

    /// Starts a background thread, which follows the network, if there is none.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn follow_network(&self) -> io::Result<()> {
        self.start_thread(self.first())
    }

    /// Starts a shard's background thread if it does not run.
    fn start_thread(&self, place: &Place) -> io::Result<()> {
        let mut thread = lock(&place.thread);
        if thread.is_none() {
            *thread = Some(background::start(&place.shard, &self.network, &self.wait)?);
        }
        Ok(())
    }

    /// Sends the acknowledgements that are owed. If another thread is in a turn, that sends them.
    pub(super) fn flush(&self) {
        for shard in self.shards() {
            shard.try_turn(Who::Idle);
        }
    }

    /// The process exits: as [`Self::flush`], but no completion is handed out.
    pub(super) fn leave(&self) {
        self.shards().for_each(|shard| shard.leave());
    }

    /// Reports the counters to the host service, for the last time. If another thread is in a turn this `waits` for it, or leaves out what
    /// is locked.
    pub(super) fn tell_last(&self, waits: bool) {
        for host in self.places().filter_map(|place| place.host.as_ref()) {
            host.tell_last(waits);
        }
    }

    pub(crate) fn xrcd_files(&self) -> MutexGuard<'_, HashMap<FileId, Weak<Domain>>> {
        lock(&self.xrcd_files)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let is_own = self.generation == generation();
        for shard in self.shards().filter(|_| is_own) {
            shard.stop.store(true, Ordering::Release);
            shard.wake.raise();
        }
        for place in self.places.iter_mut().filter_map(OnceLock::get_mut) {
            let thread = place.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            match thread {
                // If the thread has panicked, the panic message was printed already.
                Some(thread) if is_own => _ = thread.join(),
                // A forked child has neither the threads nor the sockets.
                thread => core::mem::forget(thread),
            }
        }
        if is_own {
            self.flush();
            self.tell_last(true);
        }
        self.ended.store(true, Ordering::Release);
    }
}

/// A thread that waits for packets of some shards. Their background threads do not wait for these until it is dropped.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    shards: SmallVec<[&'a Shard; 2]>,
    /// Whether the background threads take over at once when this is dropped.
    at_once: bool,
}

impl Waiter<'_> {
    /// The descriptors that become readable when packets arrive.
    pub(crate) fn fds(&self) -> Fds<'_> {
        self.shards.iter().map(|shard| shard.arrivals()).collect()
    }

    /// Leaves packets to the background threads, and wakes these at once. (Dropping wakes them a tick later.)
    pub(crate) fn hand_over(mut self) {
        self.at_once = true;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        for shard in &self.shards {
            shard.end_waiting(self.at_once);
        }
    }
}

#[cfg(test)]
mod tests;
