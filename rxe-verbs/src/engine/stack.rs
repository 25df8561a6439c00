//! A stack: the shards of one set of bound addresses, and the names and keys they share.

use super::{
    background,
    mailbox::Mailbox,
    network::Network,
    polling::Polling,
    shard::Shard,
    state::{State, Who},
    transmit::core_ident,
    writes::Writes,
};
use crate::{
    error::Forked,
    net::Link,
    regions::Regions,
    sys::{
        fork::{generation, is_own},
        poll::Fds,
    },
    xrcd::{Domain, FileId},
};
use core::sync::atomic::{AtomicU32, Ordering};
use rxe_core::{
    endpoint::{Endpoint, EndpointConfig},
    num::Pkey,
};
use slab::Slab;
use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    io,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    thread::JoinHandle,
};

/// Most bytes of READ responses we ask for at once, and the least.
const WINDOW: (usize, usize) = (16 * 1024, 512 * 1024);
/// A receive buffer of so many bytes is charged for one byte of payload, when packets come one by one and small.
const BUFFER_PER_BYTE: usize = 4;

/// Bytes in flight to one destination at most, where our own buffer is large: then the peer's probably is, too. With less a
/// sender that never waits is held up by its acknowledgements; more brings nothing.
const SEND_WINDOW_MOST: u32 = 384 * 1024;

/// Turns without effect before the processor is offered. That is more than pass in a round trip between two idle
/// processors (about 25), which therefore never pays for it; about as long (20 us) as a thread that may sleep goes on
/// looking; and much less than the time slice of whoever waits for this processor.
const IDLE_TURNS: u32 = 64;

/// How a stack is set up.
#[derive(Clone, Debug)]
pub(crate) struct StackConfig {
    /// Top byte of its queue pair numbers.
    pub(crate) slot: u8,
    /// Partition table; without one, the host's.
    pub(crate) pkeys: Option<Vec<Pkey>>,
    /// Largest payload of a packet, in bytes.
    pub(crate) port_mtu: u32,
    /// How threads wait; without one, as the environment says.
    pub(crate) polling: Option<Polling>,
    /// In what form WRITEs leave; without one, as the environment says.
    pub(crate) writes: Option<Writes>,
}

/// One process's share of a host's RoCE port.
#[derive(Debug)]
pub(crate) struct Stack {
    shards: Vec<Arc<Shard>>,
    pub(crate) table: Arc<Regions>,
    pub(crate) network: Arc<Network>,
    pub(crate) polling: Polling,
    /// Of the process that made it.
    pub(super) generation: u32,
    /// The partition table.
    pub(crate) pkeys: Vec<Pkey>,
    /// Top byte of its queue pair numbers.
    pub(crate) slot: u8,
    names: Mutex<Names>,
    /// XRC domains by the file that they were opened with.
    xrcd_files: Mutex<HashMap<FileId, Weak<Domain>>>,
    /// Turns in a row, of calls that found nothing, that moved nothing.
    idle_turns: AtomicU32,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// What else lives as long: the connection to the host service. Goes last, when the sockets are closed.
    companion: OnceLock<Box<dyn core::any::Any + Send + Sync>>,
}

#[derive(Debug, Default)]
struct Names {
    pds: Slab<()>,
    cqs: Slab<()>,
    xrcds: Slab<()>,
}

/// Bytes in flight to one destination, at first and at most, where our own receive buffer has `recv_buffer` bytes.
fn send_window(recv_buffer: usize) -> (u32, u32) {
    let (start, usual) = EndpointConfig::default().send_window;
    let most = u32::try_from(recv_buffer / BUFFER_PER_BYTE).unwrap_or(u32::MAX);
    (start, most.clamp(usual, SEND_WINDOW_MOST))
}

impl Stack {
    pub(super) fn new(
        link: Box<dyn Link>,
        config: StackConfig,
        mailbox: Option<Arc<Mailbox>>,
    ) -> io::Result<Arc<Self>> {
        let random = RandomState::new();
        let seed = random.hash_one(std::process::id());
        let table = Arc::new(Regions::new(seed as u8));
        let capabilities = link.capabilities();
        let window = (capabilities.recv_buffer / BUFFER_PER_BYTE).clamp(WINDOW.0, WINDOW.1);
        let pkeys = config.pkeys.unwrap_or_else(|| vec![Pkey::DEFAULT]);
        let endpoint = Endpoint::new(EndpointConfig {
            slot: config.slot,
            max_segments: capabilities.max_segments,
            max_batch: capabilities.max_batch_bytes,
            ident: core_ident(capabilities.ident),
            source_ports: capabilities.source_ports.clone(),
            receive_window: window as u32,
            send_window: send_window(capabilities.recv_buffer),
            write_parts: config.writes.unwrap_or_default() == Writes::Parts,
            pkeys: pkeys.clone(),
            port_mtu: config.port_mtu,
            seed: random.hash_one(seed),
            keep_strays: mailbox.is_some(),
        });
        let network = Arc::new(Network::new()?);
        let shard = Shard::new(State::new(endpoint, link, mailbox), &table)?;
        Ok(Arc::new(Self {
            shards: vec![shard],
            table,
            network,
            polling: config.polling.unwrap_or_default(),
            generation: generation(),
            pkeys,
            slot: config.slot,
            names: Mutex::default(),
            xrcd_files: Mutex::default(),
            idle_turns: AtomicU32::new(0),
            threads: Mutex::default(),
            companion: OnceLock::new(),
        }))
    }

    /// Ties something to the stack's life. Once.
    pub(super) fn keep(&self, companion: Box<dyn core::any::Any + Send + Sync>) {
        let _ = self.companion.set(companion);
    }

    /// What [`Self::keep`] was given.
    pub(crate) fn companion<T: 'static>(&self) -> Option<&T> {
        self.companion.get()?.downcast_ref()
    }

    /// Whether it is this process's.
    ///
    /// # Errors
    /// [`Forked`] in a child of its process.
    pub(crate) fn check(&self) -> Result<(), Forked> {
        if is_own(self.generation) { Ok(()) } else { Err(Forked) }
    }

    /// The shard that a new queue pair belongs to.
    pub(crate) fn shard(&self) -> &Arc<Shard> {
        &self.shards[0]
    }

    /// A turn of every shard that nobody else is in, for a call that found nothing.
    pub(crate) fn progress(&self) {
        let busy = self.shards.iter().fold(false, |busy, shard| shard.progress(Who::Inline) | busy);
        // Lost updates do not matter.
        let idle = if busy { 0 } else { self.idle_turns.load(Ordering::Relaxed).saturating_add(1) };
        self.idle_turns.store(idle, Ordering::Relaxed);
    }

    /// A turn of every shard for a thread that was woken because packets have come.
    pub(crate) fn progress_after_sleep(&self) {
        for shard in &self.shards {
            shard.progress(Who::Woken);
        }
    }

    /// For a call that found what it wanted without a turn: messages that waited for it leave.
    pub(crate) fn release(&self) {
        for shard in &self.shards {
            shard.release();
        }
    }

    /// For a call that found nothing even after its turn: once many turns in a row moved nothing, the processor is
    /// offered to others, of which one may be whom we wait for. Where nobody wants it we have it back at once. Says
    /// whether it did.
    pub(crate) fn give_way(&self) -> bool {
        let due = self.idle_turns.load(Ordering::Relaxed) >= IDLE_TURNS;
        if due {
            std::thread::yield_now();
        }
        due
    }

    /// A turn of every shard for a thread that is about to sleep: acknowledgements leave.
    pub(crate) fn progress_before_sleep(&self) {
        for shard in &self.shards {
            shard.progress(Who::Idle);
        }
    }

    /// A turn of every shard for a thread that waits for packets whatever the application does.
    pub(crate) fn attend(&self) {
        for shard in &self.shards {
            shard.attend();
        }
    }

    /// The application is about to sleep on a descriptor.
    pub(crate) fn expect_sleep(&self) {
        for shard in &self.shards {
            shard.expect_sleep();
        }
    }

    /// Counts the application's turns.
    pub(crate) fn polls(&self) -> u64 {
        self.shards.iter().fold(0, |sum, shard| sum.wrapping_add(shard.polls.load(Ordering::Relaxed)))
    }

    /// Whether the background threads have seen the application poll: it sees to the packets then.
    pub(crate) fn is_polled(&self) -> bool {
        self.shards.iter().any(|shard| shard.is_polled())
    }

    /// From now until the result is dropped the calling thread watches the arrivals.
    pub(crate) fn wait_for_packets(&self) -> Waiter<'_> {
        for shard in &self.shards {
            shard.begin_waiting();
        }
        Waiter(&self.shards)
    }

    /// Starts the background threads if they do not run.
    pub(crate) fn start_threads(&self) -> io::Result<()> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.is_empty() {
            for shard in &self.shards {
                threads.push(background::start(shard, &self.network, self.polling)?);
            }
        }
        Ok(())
    }

    /// Acknowledgements owed leave now, unless another thread is in a turn, which sends them too.
    pub(super) fn flush(&self) {
        for shard in &self.shards {
            shard.try_turn(Who::Idle);
        }
    }

    /// A number for a protection domain; `None` if there are too many.
    pub(crate) fn name_pd(&self) -> Option<u32> {
        let mut names = self.names();
        (names.pds.len() < crate::limits::MAX_PD as usize).then(|| names.pds.insert(()) as u32)
    }

    pub(crate) fn unname_pd(&self, pd: u32) {
        self.names().pds.try_remove(pd as usize);
    }

    /// A number for a completion queue; `None` if there are too many.
    pub(crate) fn name_cq(&self) -> Option<u32> {
        let mut names = self.names();
        (names.cqs.len() < crate::limits::MAX_CQ as usize).then(|| names.cqs.insert(()) as u32)
    }

    pub(crate) fn unname_cq(&self, cq: u32) {
        self.names().cqs.try_remove(cq as usize);
    }

    /// A number for an XRC domain; `None` if there are too many.
    pub(crate) fn name_xrcd(&self) -> Option<u32> {
        let mut names = self.names();
        (names.xrcds.len() < crate::limits::MAX_PD as usize).then(|| names.xrcds.insert(()) as u32)
    }

    pub(crate) fn unname_xrcd(&self, xrcd: u32) {
        self.names().xrcds.try_remove(xrcd as usize);
    }

    pub(crate) fn xrcd_files(&self) -> MutexGuard<'_, HashMap<FileId, Weak<Domain>>> {
        self.xrcd_files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if self.generation != generation() {
            // A forked child has neither the threads nor the sockets.
            core::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner))
                .into_iter()
                .for_each(core::mem::forget);
            return;
        }
        for shard in &self.shards {
            shard.stop.store(true, Ordering::Release);
            shard.wake.raise();
        }
        let threads = core::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
        self.flush();
    }
}

/// A thread that watches the arrivals itself, so that the background threads need not.
#[derive(Debug)]
pub(crate) struct Waiter<'a>(&'a [Arc<Shard>]);

impl Waiter<'_> {
    /// What it waits for, beside its own.
    pub(crate) fn fds(&self) -> Fds<'_> {
        self.0.iter().map(|shard| shard.arrivals()).collect()
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        for shard in self.0 {
            shard.end_waiting();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Context,
        net::{InprocNet, Transmit},
    };

    #[test]
    fn the_send_window_follows_the_own_buffer() {
        let usual = EndpointConfig::default().send_window;
        for (recv_buffer, most) in
            [(0, usual.1), (2 * 212_992, usual.1), (1 << 20, 256 << 10), (8 << 20, SEND_WINDOW_MOST)]
        {
            assert_eq!(send_window(recv_buffer), (usual.0, most), "{recv_buffer}");
        }
    }

    #[test]
    fn a_processor_is_offered_only_after_many_empty_turns() {
        let net = InprocNet::new();
        let own = [10, 0, 0, 1].into();
        let context = Context::open_inproc(&net, &[own]).unwrap();
        let src = [10, 0, 0, 2].into();
        let mut stranger = net.attach(&[src], 1).unwrap();
        let stack = &context.0.stack;
        for _ in 0..2 {
            for _ in 1..IDLE_TURNS {
                stack.progress();
                assert!(!stack.give_way());
            }
            stack.progress();
            assert!(stack.give_way());
            let source_port = stranger.capabilities().source_ports[0];
            let to =
                Transmit { src, dst: own, ifindex: 0, source_port, tos: 0, hop_limit: 64, segment_size: 20 };
            stranger.send(&to, &[0; 20]).unwrap();
            stack.progress();
            assert!(!stack.give_way(), "something arrived");
        }
    }
}
