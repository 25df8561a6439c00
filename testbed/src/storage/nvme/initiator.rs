//! An initiator. It connects to a controller, identifies the controller and its namespaces, and reads and writes blocks.

mod queue;

use super::capsule::{
    ADMIN_ENTRIES, ANY_CONTROLLER, Command, ConnectData, DISCOVERY_ENTRY, DISCOVERY_LOG, DISCOVERY_NQN,
    DiscoveryEntry, IDENTIFY, QueueOffer, admin, cns, io, property, text, u16_at, u32_at, u64_at,
};
use crate::storage::link::LinkError;
use core::time::Duration;
use queue::{Queue, accepted};
use rxe_cm::Manager;
use std::{
    net::{IpAddr, SocketAddr},
    thread::sleep,
    time::Instant,
};

/// Maximum size of a command with the data in it, in bytes.
const CAPSULE: usize = 64 + 8192;
/// Maximum number of bytes of one read or write.
const MOST_DATA: usize = 128 << 10;
/// The pause between two checks whether a controller has become ready.
const PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of discovery log entries that are read.
const MOST_ENTRIES: u64 = 256;

/// The initiator's side of a connection.
#[derive(Clone, Debug)]
pub struct Host {
    /// The connection manager that sets up the connections.
    pub manager: Manager,
    /// Our address, if a particular one is required.
    pub from: Option<IpAddr>,
    /// Our name.
    pub nqn: String,
    /// How long the target may take for any operation.
    pub patience: Duration,
}

/// The identification of a controller (Base, 5.17.2.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControllerInfo {
    /// Serial number.
    pub serial: String,
    /// Model.
    pub model: String,
    /// The controller ID.
    pub id: u16,
    /// Maximum number of data bytes of a command; `None` if there is no limit.
    pub most_data: Option<u64>,
    /// Maximum number of data bytes in a command of an I/O queue, behind its first 64 bytes.
    pub in_capsule: usize,
}

/// The identification of a namespace (NVM, 4.1.5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamespaceInfo {
    /// The namespace ID.
    pub id: u32,
    /// The number of blocks.
    pub blocks: u64,
    /// Size of a block in bytes.
    pub block: u32,
}

/// An enabled controller, with its admin queue. Dropping it closes the admin queue, and so ends the controller.
#[derive(Debug)]
pub struct Controller {
    host: Host,
    to: SocketAddr,
    subsystem: String,
    admin: Queue,
    number: u16,
    info: Option<ControllerInfo>,
    most_entries: u16,
}

impl Controller {
    /// Connects to the controller of a subsystem and enables it (Base, 3.5.1).
    ///
    /// # Errors
    /// [`LinkError`]; [`LinkError::Refused`] if the target does not know the subsystem.
    pub fn connect(host: &Host, to: SocketAddr, subsystem: &str) -> Result<Self, LinkError> {
        let offer = QueueOffer { queue: 0, responses: ADMIN_ENTRIES, commands: ADMIN_ENTRIES };
        let mut admin = Queue::open(host, to, offer)?;
        let data = ConnectData {
            host_id: host_id(&host.nqn),
            controller: ANY_CONTROLLER,
            subsystem: subsystem.to_owned(),
            host: host.nqn.clone(),
        };
        let number = admin.introduce(offer, &data)?;
        let mut controller = Self {
            host: host.clone(),
            to,
            subsystem: subsystem.to_owned(),
            admin,
            number,
            info: None,
            most_entries: 0,
        };
        controller.enable()?;
        Ok(controller)
    }

    fn enable(&mut self) -> Result<(), LinkError> {
        let cap = self.admin.property(property::CAP, true)?;
        self.most_entries = (cap as u16).saturating_add(1);
        // The time limit for becoming ready, in half seconds.
        let patience = Duration::from_millis(500) * (cap >> 24 & 0xff) as u32 + PAUSE;
        // Entries of 64 and 16 bytes, pages of 4 KiB, the NVM command set; enabled.
        self.admin.set_property(property::CC, 4 << 20 | 6 << 16 | 1)?;
        let end = Instant::now() + patience;
        while self.admin.property(property::CSTS, false)? & 1 == 0 {
            if Instant::now() > end {
                return Err(LinkError::Silent(patience));
            }
            sleep(PAUSE);
        }
        Ok(())
    }

    /// The subsystems of a target, as listed by its discovery controller (Base, 3.1.2.3).
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn discover(host: &Host, to: SocketAddr) -> Result<Vec<DiscoveryEntry>, LinkError> {
        let mut controller = Self::connect(host, to, DISCOVERY_NQN)?;
        let records = u64_at(&controller.log(0, DISCOVERY_ENTRY)?, 8);
        if records > MOST_ENTRIES {
            return Err(LinkError::protocol(format!("{records} entries of discovery")));
        }
        let mut found = Vec::new();
        for record in 1..=records {
            let bytes = controller.log(record * DISCOVERY_ENTRY as u64, DISCOVERY_ENTRY)?;
            let entry = DiscoveryEntry::decode(&bytes);
            found.push(entry.ok_or_else(|| LinkError::protocol("a subsystem's name has no end"))?);
        }
        Ok(found)
    }

    /// A part of the discovery log (Base, 5.16).
    fn log(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, LinkError> {
        let dwords = (len / 4 - 1) as u32;
        let words = [
            u32::from(DISCOVERY_LOG) | dwords << 16,
            dwords >> 16,
            offset as u32,
            (offset >> 32) as u32,
            0,
            0,
        ];
        self.admin.fetch("Get Log Page", Command::new(admin::GET_LOG_PAGE, 0, words), len)
    }

    /// Identifies the controller.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn identify(&mut self) -> Result<ControllerInfo, LinkError> {
        let command = Command::new(admin::IDENTIFY, 0, [cns::CONTROLLER.into(), 0, 0, 0, 0, 0]);
        let bytes = self.admin.fetch("Identify controller", command, IDENTIFY)?;
        let id = u16_at(&bytes, 78);
        if id != self.number {
            return Err(LinkError::protocol(format!("controller {} says that it is {id}", self.number)));
        }
        if bytes[536] & 1 << 2 == 0 {
            return Err(LinkError::protocol("no keyed SGLs, which RDMA needs"));
        }
        let shift = bytes[77];
        // Bit 20: offsets are allowed. The data begin right behind the command.
        let capsules = u32_at(&bytes, 536) >> 20 & 1 == 1 && u16_at(&bytes, 1800) == 0;
        let capsule = (u32_at(&bytes, 1792) as usize).saturating_mul(16).min(CAPSULE);
        let info = ControllerInfo {
            serial: text(&bytes[4..24]),
            model: text(&bytes[24..64]),
            id,
            // In pages of 4 KiB, as a power of two.
            most_data: (1..48).contains(&shift).then(|| 4096 << shift),
            in_capsule: if capsules { capsule.saturating_sub(64) } else { 0 },
        };
        self.info = Some(info.clone());
        Ok(info)
    }

    /// The IDs of its namespaces, the first 1024 of them.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn namespaces(&mut self) -> Result<Vec<u32>, LinkError> {
        let command = Command::new(admin::IDENTIFY, 0, [cns::NAMESPACES.into(), 0, 0, 0, 0, 0]);
        let bytes = self.admin.fetch("Identify namespaces", command, IDENTIFY)?;
        Ok(bytes.chunks_exact(4).map(|id| u32_at(id, 0)).take_while(|id| *id != 0).collect())
    }

    /// Identifies a namespace.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn namespace(&mut self, id: u32) -> Result<NamespaceInfo, LinkError> {
        let command = Command::new(admin::IDENTIFY, id, [cns::NAMESPACE.into(), 0, 0, 0, 0, 0]);
        let bytes = self.admin.fetch("Identify namespace", command, IDENTIFY)?;
        // The current format: its number (bits 3:0), and its table entry, which has the block size as a power of two.
        let format = u32_at(&bytes, 128 + 4 * usize::from(bytes[26] & 0x0f));
        let shift = format >> 16 & 0xff;
        if !(9..=16).contains(&shift) {
            return Err(LinkError::protocol(format!("namespace {id} has blocks of 2^{shift} bytes")));
        }
        Ok(NamespaceInfo { id, blocks: u64_at(&bytes, 0), block: 1 << shift })
    }

    /// Sends a Keep Alive command (Base, 5.18).
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn keep_alive(&mut self) -> Result<(), LinkError> {
        self.admin.order("Keep Alive", Command::new(admin::KEEP_ALIVE, 0, [0; 6]), &[]).map(drop)
    }

    /// Creates I/O queue `number`, counted from 1, with up to `depth` outstanding commands.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn open_queue(
        &mut self,
        number: u16,
        depth: u16,
        namespace: NamespaceInfo,
    ) -> Result<IoQueue, LinkError> {
        let info = match &self.info {
            Some(info) => info.clone(),
            None => self.identify()?,
        };
        // Feature 7 is the number of queues: submission and completion queues, both counted from 0 (Base, 5.27.1.5).
        let wanted = u32::from(number - 1);
        let words = [7, wanted << 16 | wanted, 0, 0, 0, 0];
        self.admin.order("Set Features", Command::new(admin::SET_FEATURES, 0, words), &[])?;
        // One entry of the ring always stays free.
        let commands = depth.saturating_add(1).clamp(2, self.most_entries.max(2));
        let offer = QueueOffer { queue: number, responses: commands, commands };
        let mut queue = Queue::open(&self.host, self.to, offer)?;
        queue.in_capsule = info.in_capsule;
        let data = ConnectData {
            host_id: host_id(&self.host.nqn),
            controller: self.number,
            subsystem: self.subsystem.clone(),
            host: self.host.nqn.clone(),
        };
        queue.introduce(offer, &data)?;
        let most = info.most_data.map_or(MOST_DATA, |most| most.min(MOST_DATA as u64) as usize);
        Ok(IoQueue { queue, namespace, most })
    }
}

/// An I/O queue, for one namespace.
#[derive(Debug)]
pub struct IoQueue {
    queue: Queue,
    namespace: NamespaceInfo,
    most: usize,
}

impl IoQueue {
    /// Maximum number of data bytes of one command.
    #[must_use]
    pub const fn most_data(&self) -> usize {
        self.most
    }

    fn command(&self, opcode: u8, block: u64, len: usize) -> Result<Command, LinkError> {
        let size = self.namespace.block as usize;
        if len == 0 || !len.is_multiple_of(size) || len > self.most {
            return Err(LinkError::protocol(format!("{len} bytes are no request for blocks of {size}")));
        }
        // NVM, 3.2.4: the first block, and the number of blocks, counted from 0.
        let words = [block as u32, (block >> 32) as u32, (len / size - 1) as u32, 0, 0, 0];
        Ok(Command::new(opcode, self.namespace.id, words))
    }

    /// Writes whole blocks, starting at `block`.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn write(&mut self, block: u64, data: &[u8]) -> Result<(), LinkError> {
        let command = self.command(io::WRITE, block, data.len())?;
        self.queue.order("Write", command, data).map(drop)
    }

    /// Reads whole blocks, starting at `block`.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn read(&mut self, block: u64, len: usize) -> Result<Vec<u8>, LinkError> {
        let command = self.command(io::READ, block, len)?;
        self.queue.fetch("Read", command, len)
    }

    /// Flushes all written data to stable storage.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn flush(&mut self) -> Result<(), LinkError> {
        self.queue.order("Flush", Command::new(io::FLUSH, self.namespace.id, [0; 6]), &[]).map(drop)
    }

    /// Reads `count` pieces of `len` bytes one after the other. It starts at the beginning of the namespace, and starts
    /// there again when it reaches the end. The queue is kept full of commands. The data are dropped, because this is for
    /// measurements.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn read_many(&mut self, len: usize, count: u64) -> Result<(), LinkError> {
        let step = (len / self.namespace.block as usize) as u64;
        let pieces = (self.namespace.blocks / step.max(1)).max(1);
        let (mut asked, mut done) = (0, 0);
        while done < count {
            while asked < count
                && let Some(slot) = self.queue.free.pop()
            {
                let command = self.command(io::READ, asked % pieces * step, len)?;
                self.queue.submit(slot, command, len, &[])?;
                asked += 1;
            }
            let (slot, response) = self.queue.answer()?;
            self.queue.free.push(slot);
            accepted("Read", response)?;
            done += 1;
        }
        Ok(())
    }
}

/// A host identifier, which is always the same for the same name.
fn host_id(nqn: &str) -> [u8; 16] {
    let sum = |seed: u32| crc32fast::hash(format!("{seed} {nqn}").as_bytes()).to_le_bytes();
    let mut id = [0; 16];
    for (place, seed) in id.chunks_exact_mut(4).zip(0..) {
        place.copy_from_slice(&sum(seed));
    }
    id
}
