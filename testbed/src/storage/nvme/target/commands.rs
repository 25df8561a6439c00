//! The execution of each command.

use super::{BLOCK_SHIFT, IN_CAPSULE, MOST_ENTRIES, MOST_PAGES, Queue};
use crate::storage::{
    link::LinkError,
    nvme::capsule::{
        ANY_CONTROLLER, COMMAND, CONNECT_DATA, Command, ConnectData, DISCOVERY_ENTRY, DISCOVERY_LOG,
        DISCOVERY_NQN, IDENTIFY, Sgl, Status, admin, cns, fabrics, io, property, put_padded,
    },
};
use core::sync::atomic::Ordering;
use rxe_verbs::{Key, Remote};
use std::sync::Arc;

/// Version 1.2.1, the first that supports fabrics.
const VERSION: u32 = 0x0001_0201;
/// Maximum number of I/O queues of a controller.
const MOST_IO_QUEUES: u32 = 4;
/// Maximum number of outstanding event requests of a controller.
const EVENT_REQUESTS: u16 = 4;
/// The ID of the only namespace.
const NAMESPACE: u32 = 1;
const BLOCK: u64 = 1 << BLOCK_SHIFT;

/// The fate of a command.
pub(super) enum Reply {
    /// It is answered now.
    Answer(Done),
    /// It is an event request, which is not answered until an event occurs.
    Later,
}

/// An answer.
#[derive(Clone, Copy)]
pub(super) struct Done {
    pub(super) status: Status,
    pub(super) result: u64,
}

impl Default for Done {
    fn default() -> Self {
        Self { status: Status::SUCCESS, result: 0 }
    }
}

impl Done {
    pub(super) const fn status(status: Status) -> Self {
        Self { status, result: 0 }
    }

    const fn result(result: u64) -> Self {
        Self { status: Status::SUCCESS, result }
    }
}

impl Queue<'_> {
    /// Executes a command; `inside` are the bytes that follow it in its message.
    pub(super) fn execute(&mut self, command: &Command, inside: &[u8]) -> Result<Reply, LinkError> {
        let connected = self.controller.as_ref();
        let done = match (command.opcode, connected.map(|controller| controller.is_enabled())) {
            (fabrics::OPCODE, _) => self.fabrics(command, inside)?,
            // Base, 3.5.1: only fabrics commands are allowed until the controller is enabled.
            (_, None | Some(false)) => Done::status(Status::SEQUENCE_ERROR),
            (admin::ASYNC_EVENT_REQUEST, _) if self.offer.queue == 0 => {
                if self.event_requests < EVENT_REQUESTS {
                    self.event_requests += 1;
                    return Ok(Reply::Later);
                }
                Done::status(Status::TOO_MANY_EVENT_REQUESTS)
            }
            _ if self.offer.queue == 0 => self.administer(command)?,
            _ => self.transfer(command, inside)?,
        };
        Ok(Reply::Answer(done))
    }

    /// The fabrics commands (Base, 6). Their type is in the first byte of the namespace field.
    fn fabrics(&mut self, command: &Command, inside: &[u8]) -> Result<Done, LinkError> {
        let [attributes, offset, value, ..] = command.dwords;
        match (command.nsid as u8, self.controller.clone()) {
            (fabrics::CONNECT, None) => self.connect(command, inside),
            (fabrics::PROPERTY_GET, Some(controller)) if self.offer.queue == 0 => {
                let configuration = controller.configuration.load(Ordering::Acquire);
                Ok(match (offset, attributes & 7) {
                    // 128 entries, physically contiguous; ready within 5 s; the NVM command set.
                    (property::CAP, 1) => {
                        Done::result(u64::from(MOST_ENTRIES - 1) | 1 << 16 | 10 << 24 | 1 << 37)
                    }
                    (property::VS, 0) => Done::result(VERSION.into()),
                    (property::CC, 0) => Done::result(configuration.into()),
                    (property::CSTS, 0) => {
                        let is_shut_down = configuration >> 14 & 3 != 0;
                        Done::result(u64::from(configuration & 1) | if is_shut_down { 2 << 2 } else { 0 })
                    }
                    _ => Done::status(Status::INVALID_FIELD),
                })
            }
            (fabrics::PROPERTY_SET, Some(controller)) if self.offer.queue == 0 => {
                if offset != property::CC {
                    return Ok(Done::status(Status::INVALID_FIELD));
                }
                controller.configuration.store(value, Ordering::Release);
                Ok(Done::default())
            }
            (fabrics::CONNECT | fabrics::PROPERTY_GET | fabrics::PROPERTY_SET, _) => {
                Ok(Done::status(Status::SEQUENCE_ERROR))
            }
            _ => Ok(Done::status(Status::INVALID_OPCODE)),
        }
    }

    /// Connect (Base, 6.3): creates a controller, or adds a queue to one.
    fn connect(&mut self, command: &Command, inside: &[u8]) -> Result<Done, LinkError> {
        let mut data = [0; CONNECT_DATA];
        match command.sgl {
            Sgl::Keyed { addr, len, key, .. } if len as usize == CONNECT_DATA => {
                let memory = self.link.pd().alloc_mr(CONNECT_DATA, rxe_verbs::Access::LOCAL_WRITE)?;
                self.pull(&memory, 0, len, Remote { addr, rkey: Key(key) })?;
                memory.read_at(0, &mut data)?;
            }
            Sgl::InCapsule { offset: 0, len }
                if len as usize == CONNECT_DATA && inside.len() == CONNECT_DATA =>
            {
                data.copy_from_slice(inside);
            }
            _ => return Ok(Done::status(Status::DATA_LENGTH_INVALID)),
        }
        let [queue, size, keep_alive, ..] = command.dwords;
        let (format, queue, entries) = (queue as u16, (queue >> 16) as u16, (size as u16).saturating_add(1));
        if format != 0 {
            return Ok(Done::status(Status::CONNECT_INVALID_FORMAT));
        }
        let invalid = Ok(Done::status(Status::CONNECT_INVALID_PARAMETERS));
        if queue != self.offer.queue || entries > self.offer.commands {
            return invalid;
        }
        let Some(data) = ConnectData::decode(&data) else { return invalid };
        let is_discovery = data.subsystem == DISCOVERY_NQN;
        if !is_discovery && data.subsystem != self.shared.options.subsystem {
            return invalid;
        }
        let controllers = &self.shared.controllers;
        let controller = if queue == 0 {
            if data.controller != ANY_CONTROLLER {
                return invalid;
            }
            controllers.make(&data.host, is_discovery, keep_alive)
        } else {
            controllers.get(data.controller).filter(|controller| {
                controller.host == data.host
                    && !controller.is_discovery
                    && controller.is_enabled()
                    && u32::from(queue) <= controller.granted.load(Ordering::Acquire)
            })
        };
        let Some(controller) = controller else { return invalid };
        let id = controller.id;
        self.controller = Some(controller);
        Ok(Done::result(id.into()))
    }

    /// The admin queue's commands (Base, 5).
    fn administer(&mut self, command: &Command) -> Result<Done, LinkError> {
        let Some(controller) = self.controller.as_ref().map(Arc::clone) else {
            return Ok(Done::status(Status::SEQUENCE_ERROR));
        };
        let [first, second, third, fourth, ..] = command.dwords;
        match command.opcode {
            admin::IDENTIFY => match (first as u8, command.nsid) {
                (cns::CONTROLLER, _) => self.give(&self.about_controller(), command.sgl),
                (cns::NAMESPACE, NAMESPACE) if !controller.is_discovery => {
                    self.give(&self.about_namespace(), command.sgl)
                }
                (cns::NAMESPACE, _) => Ok(Done::status(Status::INVALID_NAMESPACE)),
                (cns::NAMESPACES, after) => {
                    let mut list = [0; IDENTIFY];
                    if after < NAMESPACE && !controller.is_discovery {
                        list[0] = NAMESPACE as u8;
                    }
                    self.give(&list, command.sgl)
                }
                _ => Ok(Done::status(Status::INVALID_FIELD)),
            },
            admin::SET_FEATURES => Ok(match first as u8 {
                // Number of queues (Base, 5.27.1.5): submission and completion queues, both counted from 0.
                7 => {
                    let granted = ((second & 0xffff) + 1).min(MOST_IO_QUEUES);
                    controller.granted.store(granted, Ordering::Release);
                    Done::result(u64::from((granted - 1) | ((granted - 1) << 16)))
                }
                // The configuration of events: there are none.
                0x0b => Done::default(),
                // The keep alive timer (Base, 5.27.1.12).
                0x0f => {
                    controller.keep_alive.store(second, Ordering::Release);
                    Done::default()
                }
                _ => Done::status(Status::INVALID_FIELD),
            }),
            admin::GET_LOG_PAGE if first as u8 == DISCOVERY_LOG && controller.is_discovery => {
                let offset = u64::from(third) | u64::from(fourth) << 32;
                let log = self.discovery_log();
                let rest = usize::try_from(offset).ok().and_then(|offset| log.get(offset..));
                match rest {
                    Some(rest) => self.give(rest, command.sgl),
                    None => Ok(Done::status(Status::INVALID_FIELD)),
                }
            }
            admin::GET_LOG_PAGE => Ok(Done::status(Status::INVALID_FIELD)),
            admin::KEEP_ALIVE => Ok(Done::default()),
            _ => Ok(Done::status(Status::INVALID_OPCODE)),
        }
    }

    /// The I/O queues' commands (NVM, 3.2).
    fn transfer(&mut self, command: &Command, inside: &[u8]) -> Result<Done, LinkError> {
        if !matches!(command.opcode, io::READ | io::WRITE | io::FLUSH) {
            return Ok(Done::status(Status::INVALID_OPCODE));
        }
        if command.nsid != NAMESPACE {
            return Ok(Done::status(Status::INVALID_NAMESPACE));
        }
        if command.opcode == io::FLUSH {
            return Ok(Done::default());
        }
        let [low, high, count, ..] = command.dwords;
        let first = u64::from(low) | u64::from(high) << 32;
        let count = u64::from(count & 0xffff) + 1;
        let blocks = self.shared.blocks.len() as u64 / BLOCK;
        if first.checked_add(count).is_none_or(|end| end > blocks) {
            return Ok(Done::status(Status::OUT_OF_RANGE));
        }
        let (offset, len) = ((first * BLOCK) as usize, (count * BLOCK) as u32);
        if len > 4096 << MOST_PAGES {
            return Ok(Done::status(Status::INVALID_FIELD));
        }
        let shared = self.shared;
        match (command.opcode, command.sgl) {
            // A length other than that of the blocks would read or write the wrong memory.
            (_, Sgl::Keyed { len: said, .. } | Sgl::InCapsule { len: said, .. }) if said != len => {
                return Ok(Done::status(Status::DATA_LENGTH_INVALID));
            }
            (io::READ, Sgl::Keyed { addr, key, .. }) => {
                self.push(&shared.blocks, offset, len, Remote { addr, rkey: Key(key) })?;
            }
            (io::WRITE, Sgl::Keyed { addr, key, .. }) => {
                self.pull(&shared.blocks, offset, len, Remote { addr, rkey: Key(key) })?;
            }
            (io::WRITE, Sgl::InCapsule { offset: start, len }) => {
                let end = start.checked_add(len.into()).and_then(|end| usize::try_from(end).ok());
                let data = end.and_then(|end| inside.get(start as usize..end));
                let Some(data) = data else { return Ok(Done::status(Status::DATA_LENGTH_INVALID)) };
                shared.blocks.write_at(offset, data)?;
            }
            _ => return Ok(Done::status(Status::SGL_TYPE_INVALID)),
        }
        Ok(Done::default())
    }

    /// Identify controller (Base, 5.17.2.1).
    fn about_controller(&self) -> [u8; IDENTIFY] {
        let mut out = [0; IDENTIFY];
        let (id, is_discovery) = self
            .controller
            .as_ref()
            .map_or((0, false), |controller| (controller.id, controller.is_discovery));
        put_padded(&mut out[4..24], "1");
        put_padded(&mut out[24..64], "rxe testbed");
        put_padded(&mut out[64..72], env!("CARGO_PKG_VERSION"));
        out[77] = MOST_PAGES;
        out[78..80].copy_from_slice(&id.to_le_bytes());
        out[80..84].copy_from_slice(&VERSION.to_le_bytes());
        // The controller type: I/O or discovery.
        out[111] = if is_discovery { 2 } else { 1 };
        // The number of event requests, counted from 0; the granularity of keep alive, in units of 100 ms.
        out[259] = (EVENT_REQUESTS - 1) as u8;
        out[320..322].copy_from_slice(&10_u16.to_le_bytes());
        // Minimum and maximum sizes of queue entries, as powers of two: 64 and 16 bytes.
        (out[512], out[513]) = (0x66, 0x44);
        out[514..516].copy_from_slice(&MOST_ENTRIES.to_le_bytes());
        out[516..520].copy_from_slice(&NAMESPACE.to_le_bytes());
        // SGLs are supported, keyed ones too, and an offset can name data in commands.
        out[536..540].copy_from_slice(&(1_u32 | 1 << 2 | 1 << 20).to_le_bytes());
        let name = if is_discovery { DISCOVERY_NQN } else { &self.shared.options.subsystem };
        let len = name.len().min(255);
        out[768..768 + len].copy_from_slice(&name.as_bytes()[..len]);
        // Sizes of commands with their data, and of responses, in units of 16 bytes; one descriptor per command.
        out[1792..1796].copy_from_slice(&(((COMMAND + IN_CAPSULE) / 16) as u32).to_le_bytes());
        out[1796..1800].copy_from_slice(&1_u32.to_le_bytes());
        out[1803] = 1;
        out
    }

    /// Identify namespace (NVM, 4.1.5.1): one format, blocks of 512 bytes without metadata.
    fn about_namespace(&self) -> [u8; IDENTIFY] {
        let mut out = [0; IDENTIFY];
        let blocks = (self.shared.blocks.len() as u64 / BLOCK).to_le_bytes();
        for place in [0, 8, 16] {
            out[place..place + 8].copy_from_slice(&blocks);
        }
        out[130] = BLOCK_SHIFT;
        out
    }

    /// The discovery log: a header (generation, entries, format), and one entry.
    fn discovery_log(&self) -> Vec<u8> {
        let mut log = vec![0; DISCOVERY_ENTRY];
        (log[0], log[8]) = (1, 1);
        log.extend_from_slice(&self.shared.entry().encode());
        // Linux requests whole pages.
        log.resize(IDENTIFY, 0);
        log
    }
}
