//! The surroundings of a queue pair in unit tests: memory with a few regions, events, shared receive queues.

use super::{
    attrs::{Mtu, QpAttrs, QpCaps, QpConfig, QpState, QpType},
    common::{Ctx, QpCommon},
    flow::{ReadBudget, Window},
    rq::{RecvQueue, Srq},
};
use crate::{
    memory::{AccessError, Asker, Memory},
    num::{Key, Psn, Qkey, Qpn},
    time::Instant,
    wire::{Bth, Ext, Opcode, Packet},
    work::{Access, AsyncEvent, BindWindow, Completion, CqId, Event, PdId, RecvWr, Sge, SrqId},
};
use alloc::{collections::VecDeque, vec, vec::Vec};
use core::cell::{Cell, RefCell};
use slab::Slab;

pub(crate) const PD: PdId = PdId(7);
pub(crate) const QPN: Qpn = Qpn::new(0x11);
pub(crate) const PEER: Qpn = Qpn::new(0x22);

/// A region. It may be longer than its bytes. What is written beyond them is lost, and reading there gives zeroes.
pub(crate) struct Region {
    pub key: Key,
    pub pd: PdId,
    pub base: u64,
    pub len: u64,
    pub access: Access,
    pub bytes: Vec<u8>,
}

#[derive(Default)]
pub(crate) struct FakeMemory {
    pub regions: RefCell<Vec<Region>>,
    /// Key, address and length of every change.
    pub writes: RefCell<Vec<(Key, u64, u64)>>,
    /// Every flush.
    pub flushes: RefCell<Vec<(u64, u64, bool)>>,
    pub invalidated: RefCell<Vec<Key>>,
    /// A key whose memory the application took away: checks succeed, accesses fail.
    pub gone: Cell<Option<Key>>,
}

impl FakeMemory {
    pub(crate) fn add(&self, key: u32, base: u64, len: usize, access: Access) {
        self.pretend(key, base, len as u64, len, access);
    }

    pub(crate) fn pretend(&self, key: u32, base: u64, len: u64, backed: usize, access: Access) {
        let region = Region { key: Key(key), pd: PD, base, len, access, bytes: vec![0; backed] };
        self.regions.borrow_mut().push(region);
    }

    pub(crate) fn remove(&self, key: u32) {
        self.regions.borrow_mut().retain(|region| region.key != Key(key));
    }

    pub(crate) fn bytes(&self, key: u32) -> Vec<u8> {
        self.with(Key(key), |region| region.bytes.clone())
    }

    pub(crate) fn fill(&self, key: u32, f: impl Fn(usize) -> u8) {
        let mut regions = self.regions.borrow_mut();
        let region = regions.iter_mut().find(|region| region.key == Key(key)).unwrap();
        region.bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = f(at));
    }

    fn with<T>(&self, key: Key, f: impl FnOnce(&Region) -> T) -> T {
        f(self.regions.borrow().iter().find(|region| region.key == key).unwrap())
    }

    fn touch<T>(
        &self,
        asker: Asker,
        key: Key,
        (addr, len): (u64, u64),
        need: Access,
        f: impl FnOnce(&mut Region, usize) -> T,
    ) -> Result<T, AccessError> {
        self.check(asker, key, addr, len, need)?;
        if self.gone.get() == Some(key) {
            return Err(AccessError::Fault(addr));
        }
        let mut regions = self.regions.borrow_mut();
        let region = regions.iter_mut().find(|region| region.key == key).unwrap();
        let at = (addr - region.base) as usize;
        if need.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) {
            self.writes.borrow_mut().push((key, addr, len));
        }
        Ok(f(region, at))
    }

    fn atomic(
        &self,
        asker: Asker,
        key: Key,
        addr: u64,
        f: impl FnOnce(u64) -> u64,
    ) -> Result<u64, AccessError> {
        self.touch(asker, key, (addr, 8), Access::REMOTE_ATOMIC, |region, at| {
            let place = &mut region.bytes[at..at + 8];
            let old = u64::from_ne_bytes(place.try_into().unwrap());
            place.copy_from_slice(&f(old).to_ne_bytes());
            old
        })
    }
}

impl Memory for FakeMemory {
    fn check(&self, asker: Asker, key: Key, addr: u64, len: u64, need: Access) -> Result<(), AccessError> {
        let regions = self.regions.borrow();
        let region = regions.iter().find(|region| region.key == key).ok_or(AccessError::UnknownKey(key))?;
        if region.pd != asker.pd {
            return Err(AccessError::NotYours(key));
        }
        if !region.access.contains(need) {
            return Err(AccessError::Denied(need));
        }
        let inside = addr >= region.base && len <= region.len && addr - region.base <= region.len - len;
        if inside { Ok(()) } else { Err(AccessError::Range { addr, len }) }
    }

    fn read(
        &self,
        asker: Asker,
        key: Key,
        addr: u64,
        need: Access,
        out: &mut [u8],
    ) -> Result<(), AccessError> {
        self.touch(asker, key, (addr, out.len() as u64), need, |region, at| {
            out.fill(0);
            let from = region.bytes.get(at..).unwrap_or_default();
            let len = from.len().min(out.len());
            out[..len].copy_from_slice(&from[..len]);
        })
    }

    fn write(&self, asker: Asker, key: Key, addr: u64, need: Access, data: &[u8]) -> Result<(), AccessError> {
        self.touch(asker, key, (addr, data.len() as u64), need, |region, at| {
            let to = region.bytes.get_mut(at..).unwrap_or_default();
            let len = to.len().min(data.len());
            to[..len].copy_from_slice(&data[..len]);
        })
    }

    fn compare_swap(
        &self,
        asker: Asker,
        key: Key,
        addr: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, AccessError> {
        self.atomic(asker, key, addr, |old| if old == compare { swap } else { old })
    }

    fn fetch_add(&self, asker: Asker, key: Key, addr: u64, add: u64) -> Result<u64, AccessError> {
        self.atomic(asker, key, addr, |old| old.wrapping_add(add))
    }

    fn atomic_write(&self, asker: Asker, key: Key, addr: u64, value: [u8; 8]) -> Result<(), AccessError> {
        self.write(asker, key, addr, Access::REMOTE_WRITE, &value)
    }

    fn flush(
        &self,
        asker: Asker,
        key: Key,
        range: (u64, u64),
        whole: bool,
        need: Access,
    ) -> Result<(), AccessError> {
        let checked = if whole { self.with_range(key)? } else { range };
        self.check(asker, key, checked.0, checked.1, need)?;
        self.flushes.borrow_mut().push((range.0, range.1, whole));
        Ok(())
    }

    fn bind_window(&self, _: Asker, bind: &BindWindow) -> Result<(), AccessError> {
        Err(AccessError::UnknownKey(bind.window))
    }

    /// Only keys with a tag of 0xee can be invalidated, once.
    fn invalidate(&self, _: Asker, key: Key, _: bool) -> Result<(), AccessError> {
        if key.tag() != 0xee || self.invalidated.borrow().contains(&key) {
            return Err(AccessError::UnknownKey(key));
        }
        self.invalidated.borrow_mut().push(key);
        Ok(())
    }
}

impl FakeMemory {
    fn with_range(&self, key: Key) -> Result<(u64, u64), AccessError> {
        let regions = self.regions.borrow();
        let region = regions.iter().find(|region| region.key == key).ok_or(AccessError::UnknownKey(key))?;
        Ok((region.base, region.len))
    }
}

/// A queue pair in RTR and its surroundings.
pub(crate) struct World {
    pub memory: FakeMemory,
    pub events: VecDeque<Event>,
    pub srqs: Slab<Srq>,
    pub qp: QpCommon,
}

impl World {
    pub(crate) fn new(qp_type: QpType) -> Self {
        let caps =
            QpCaps { max_send_wr: 16, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline: 64 };
        let attrs = QpAttrs {
            state: QpState::Rtr,
            access: Access::all(),
            path_mtu: Mtu::M256,
            rq_psn: Psn::new(100),
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            dest_qpn: PEER,
            qkey: Qkey(0x1111),
            ..QpAttrs::default()
        };
        let config = QpConfig {
            qp_type,
            pd: PD,
            send_cq: CqId(1),
            recv_cq: CqId(2),
            srq: None,
            xrcd: None,
            caps,
            signal_all: false,
        };
        let qp = QpCommon { attrs, ..QpCommon::new(QPN, config) };
        Self { memory: FakeMemory::default(), events: VecDeque::new(), srqs: Slab::new(), qp }
    }

    /// Makes the queue pair draw from a shared receive queue of protection domain `pd`.
    pub(crate) fn share(&mut self, pd: PdId, limit: u32) {
        let queue = RecvQueue::new(64, 4);
        let id = SrqId(self.srqs.vacant_key() as u32);
        self.srqs.insert(Srq { pd, queue, limit, xrc: None });
        self.qp.config.srq = Some(id);
    }

    pub(crate) fn with<T>(&mut self, f: impl FnOnce(&mut QpCommon, &mut Ctx<'_>) -> T) -> T {
        let mut ctx = Ctx {
            now: Instant::ZERO,
            memory: &self.memory,
            events: &mut self.events,
            srqs: &mut self.srqs,
            window: &mut Window::new(u32::MAX, u32::MAX),
            reads: &mut ReadBudget::new(u32::MAX),
        };
        f(&mut self.qp, &mut ctx)
    }

    /// Posts a receive of one element.
    pub(crate) fn post(&mut self, wr_id: u64, key: u32, addr: u64, len: u32) {
        self.post_sges(wr_id, &[Sge { addr, len, lkey: Key(key) }]);
    }

    pub(crate) fn post_sges(&mut self, wr_id: u64, sges: &[Sge]) {
        let queue = match self.qp.config.srq {
            Some(id) => &mut self.srqs[id.0 as usize].queue,
            None => &mut self.qp.rq,
        };
        queue.post(&RecvWr { wr_id, sges }).unwrap();
    }

    /// Takes the completions; all must be of the receive queue.
    pub(crate) fn completions(&mut self) -> Vec<Completion> {
        let mut taken = Vec::new();
        self.events.retain(|event| match event {
            Event::Completion { cq, wc, .. } => {
                assert_eq!(*cq, CqId(2));
                taken.push(*wc);
                false
            }
            Event::Async(_) => true,
        });
        taken
    }

    /// Takes the asynchronous events.
    pub(crate) fn async_events(&mut self) -> Vec<AsyncEvent> {
        let mut taken = Vec::new();
        self.events.retain(|event| match event {
            Event::Async(event) => {
                taken.push(*event);
                false
            }
            Event::Completion { .. } => true,
        });
        taken
    }
}

/// A packet to our queue pair as decoding gives it.
pub(crate) fn packet(opcode: u8, psn: u32, ext: Ext, payload: &[u8]) -> Packet<'_> {
    let bth = Bth::new(Opcode(opcode), QPN, Psn::new(psn));
    Packet { bth, info: bth.opcode.info().expect("known opcode"), ext, payload }
}
