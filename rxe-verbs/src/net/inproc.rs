//! A link inside one process. Ends find each other by IP address, and a batch arrives as one run. A batch is lost only if the
//! receiver's queue is full. Wrap an end in [`FaultLink`](super::FaultLink) for a worse network.

use core::net::IpAddr;
use rxe_core::wire::HeaderSeen;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use super::error::SendError;
use super::{Capabilities, Ident, Link, ROCE_V2, RecvBatch, Run, Transmit, check_batch};
use crate::sys::{lock, socket::Event};

/// Where a packet has the slot of its destination: the first byte of the destination QP number (IBTA vol. 1, 9.2).
const SLOT_BYTE: usize = 5;
/// Most bytes of arrivals that an end holds.
const QUEUE_BYTES: usize = 4 << 20;
/// Most empty buffers that an end keeps for reuse.
const SPARE_BUFFERS: usize = 64;

/// A network inside this process: the registry of its ends.
#[derive(Clone, Debug, Default)]
pub struct InprocNet {
    directory: Arc<Mutex<Directory>>,
}

#[derive(Debug, Default)]
struct Directory {
    hosts: HashMap<IpAddr, Host>,
    groups: HashMap<IpAddr, Vec<Arc<End>>>,
}

/// The ends that receive at an address.
#[derive(Debug)]
struct Host {
    first: Arc<End>,
    /// Further ends, each with the slot whose queue pairs it serves.
    further: Vec<(u8, Arc<End>)>,
}

impl Host {
    fn end(&self, packet: &[u8]) -> &Arc<End> {
        let slot = packet.get(SLOT_BYTE);
        let further = self.further.iter().find(|(own, _)| Some(own) == slot);
        further.map_or(&self.first, |(_, end)| end)
    }
}

#[derive(Debug)]
struct End {
    ifindex: u32,
    queue: Mutex<Queue>,
    readable: Event,
}

#[derive(Debug, Default)]
struct Queue {
    runs: VecDeque<(Run<'static>, Vec<u8>)>,
    bytes: usize,
    drops: u64,
    spare: Vec<Vec<u8>>,
}

impl End {
    fn deliver(&self, run: &Run<'_>) {
        let mut queue = lock(&self.queue);
        if queue.bytes + run.bytes.len() > QUEUE_BYTES {
            queue.drops += 1;
            return;
        }
        let mut buffer = queue.spare.pop().unwrap_or_default();
        buffer.extend_from_slice(run.bytes);
        queue.bytes += buffer.len();
        queue.runs.push_back((Run { bytes: &[], ifindex: self.ifindex, ..*run }, buffer));
        if queue.runs.len() == 1 {
            self.readable.raise();
        }
    }
}

impl InprocNet {
    /// A network without ends.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an end with these addresses. Its runs say that they arrived on interface `ifindex`.
    ///
    /// # Errors
    /// `AddrInUse` if another end has one of the addresses; the system's error if no eventfd can be made.
    pub fn attach(&self, addresses: &[IpAddr], ifindex: u32) -> io::Result<InprocLink> {
        let end = Arc::new(End { ifindex, queue: Mutex::default(), readable: Event::new()? });
        let mut directory = lock(&self.directory);
        if addresses.iter().any(|address| directory.hosts.contains_key(address)) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        for &address in addresses {
            directory.hosts.insert(address, Host { first: Arc::clone(&end), further: Vec::new() });
        }
        drop(directory);
        Ok(self.link(end))
    }

    /// Adds a further end at addresses that already have an end. It receives the packets to queue pairs of `slot`.
    pub(crate) fn attach_slot(&self, addresses: &[IpAddr], slot: u8) -> io::Result<InprocLink> {
        let mut directory = lock(&self.directory);
        let first = addresses.first().and_then(|address| directory.hosts.get(address));
        let ifindex = first.ok_or(io::ErrorKind::AddrNotAvailable)?.first.ifindex;
        let end = Arc::new(End { ifindex, queue: Mutex::default(), readable: Event::new()? });
        for address in addresses {
            let host = directory.hosts.get_mut(address).ok_or(io::ErrorKind::AddrNotAvailable)?;
            host.further.push((slot, Arc::clone(&end)));
        }
        drop(directory);
        Ok(self.link(end))
    }

    fn link(&self, end: Arc<End>) -> InprocLink {
        let capabilities = Capabilities {
            encapsulations: ROCE_V2,
            ipv4: true,
            ipv6: true,
            gso: true,
            gro: true,
            max_segments: 128,
            max_batch_bytes: 65_487,
            ident: Ident::Sequential,
            source_ports: vec![0xc000],
            recv_buffer: QUEUE_BYTES,
            steering: true,
        };
        InprocLink { net: self.clone(), end, capabilities }
    }
}

/// One end of an [`InprocNet`]. Dropping it removes it from the network.
#[derive(Debug)]
pub struct InprocLink {
    net: InprocNet,
    end: Arc<End>,
    capabilities: Capabilities,
}

impl Link for InprocLink {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        check_batch(batch, bytes, self.capabilities.path(), self.capabilities.limits())?;
        let run = Run {
            src: batch.src,
            src_port: batch.source_port,
            dst: batch.dst,
            ifindex: 0,
            tos: batch.tos,
            ttl: batch.hops(),
            seen: HeaderSeen::Hidden,
            segment_size: batch.segment_size.min(bytes.len()),
            bytes,
        };
        let directory = lock(&self.net.directory);
        if batch.dst.is_multicast() {
            for end in directory.groups.get(&batch.dst).into_iter().flatten() {
                end.deliver(&run);
            }
        } else if let Some(host) = directory.hosts.get(&batch.dst) {
            // All packets of a batch are for one slot.
            let end = Arc::clone(host.end(bytes));
            drop(directory);
            end.deliver(&run);
        }
        Ok(())
    }

    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        into.clear();
        let mut queue = lock(&self.end.queue);
        while !into.is_full() {
            let Some((run, mut buffer)) = queue.runs.pop_front() else { break };
            queue.bytes -= buffer.len();
            into.push(&Run { bytes: &buffer, ..run });
            buffer.clear();
            if queue.spare.len() < SPARE_BUFFERS {
                queue.spare.push(buffer);
            }
        }
        if queue.runs.is_empty() && !into.is_empty() {
            self.end.readable.clear();
        }
        Ok(into.len())
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.end.readable.as_fd()]
    }

    fn drops(&self) -> u64 {
        lock(&self.end.queue).drops
    }

    fn join(&mut self, group: IpAddr, _ifindex: u32) -> io::Result<()> {
        let mut directory = lock(&self.net.directory);
        let members = directory.groups.entry(group).or_default();
        if members.iter().any(|end| Arc::ptr_eq(end, &self.end)) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        members.push(Arc::clone(&self.end));
        Ok(())
    }

    fn leave(&mut self, group: IpAddr, _ifindex: u32) -> io::Result<()> {
        let mut directory = lock(&self.net.directory);
        let members = directory.groups.entry(group).or_default();
        let before = members.len();
        members.retain(|end| !Arc::ptr_eq(end, &self.end));
        if members.len() == before { Err(io::ErrorKind::AddrNotAvailable.into()) } else { Ok(()) }
    }
}

impl Drop for InprocLink {
    fn drop(&mut self) {
        let mut directory = lock(&self.net.directory);
        directory.hosts.retain(|_, host| !Arc::ptr_eq(&host.first, &self.end));
        for host in directory.hosts.values_mut() {
            host.further.retain(|(_, end)| !Arc::ptr_eq(end, &self.end));
        }
        for members in directory.groups.values_mut() {
            members.retain(|end| !Arc::ptr_eq(end, &self.end));
        }
    }
}
