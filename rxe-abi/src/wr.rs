//! Work requests: lists from C, and requests that ibv_wr_* build.

use crate::{
    border::{Bytes, INVALID, List, Result, UNSUPPORTED, code, given, quietly},
    c::{
        object::WrFunctions,
        value as v,
        work::{self, DataBuf, MwBindInfo, RecvWr},
    },
    convert::{access, count, send_flags},
    object::{Ah, Mw, Qp},
    turns::Turns,
};
use core::{ffi::c_int, ops::Range, sync::atomic::Ordering};
use rxe_verbs::{
    BindWindow, Key, Payload, PostError, PostListError, Qkey, QpType, Qpn, RawPackets, Remote, SendFlags,
    SendOp, SendWr, Sge, UdDest, limits,
};
use smallvec::SmallVec;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Which part of a list's elements or inline data belongs to a request.
#[derive(Clone, Debug)]
enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

#[derive(Clone, Debug)]
struct Request {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    data: Data,
    dest: Option<UdDest>,
    xrc_srq: u32,
}

/// Send requests in our form. The elements of all requests are in one list, and so are their inline data.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    list: SmallVec<[Request; 4]>,
    sges: SmallVec<[Sge; 8]>,
    inline: SmallVec<[u8; 512]>,
}

impl Requests {
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether any of them binds a window.
    pub(crate) fn binds(&self) -> bool {
        self.list.iter().any(|request| matches!(request.op, SendOp::BindWindow(_)))
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.sges.clear();
        self.inline.clear();
    }

    /// Adds a copy of a request from C.
    pub(crate) fn add(&mut self, qp: &Qp, wr: &work::SendWr<'_>) -> Result<()> {
        let elements = wr.sg_list.copies(elements(wr.num_sge)?);
        let op = operation(wr)?;
        let data = if wr.send_flags & v::SEND_INLINE == 0 {
            Data::Sges(self.gather(elements))
        } else {
            Data::Inline(self.copy(elements.map(|sge| (Bytes::at(sge.addr), sge.length as usize)))?)
        };
        let dest = if qp.raw.is_none() && qp.qp.qp_type() == QpType::Ud {
            // SAFETY: for a datagram queue pair the union holds the destination.
            let to = unsafe { wr.wr.ud };
            Some(given(to.ah)?.ah.dest(Qpn::new(to.remote_qpn), Qkey(to.remote_qkey)))
        } else {
            None
        };
        let flags = send_flags(wr.send_flags);
        self.list.push(Request { wr_id: wr.wr_id, op, flags, data, dest, xrc_srq: wr.remote_srqn });
        Ok(())
    }

    fn gather(&mut self, elements: impl Iterator<Item = work::Sge>) -> Range<usize> {
        let start = self.sges.len();
        self.sges.extend(elements.map(sge));
        start..self.sges.len()
    }

    fn copy(&mut self, pieces: impl Iterator<Item = (Bytes, usize)>) -> Result<Range<usize>> {
        let start = self.inline.len();
        for (bytes, len) in pieces {
            if self.inline.len() - start + len > limits::MAX_INLINE as usize {
                return Err(INVALID);
            }
            bytes.append_to(&mut self.inline, len);
        }
        Ok(start..self.inline.len())
    }

    fn wr<'a>(&'a self, request: &'a Request) -> SendWr<'a> {
        let payload = match &request.data {
            Data::Sges(range) => Payload::Sges(&self.sges[range.clone()]),
            Data::Inline(range) => Payload::Inline(&self.inline[range.clone()]),
        };
        SendWr {
            wr_id: request.wr_id,
            op: request.op,
            flags: request.flags,
            payload,
            dest: request.dest,
            xrc_srq: request.xrc_srq,
        }
    }

    /// Posts frames one by one, up to the first that is refused.
    fn post_raw(&self, raw: &RawPackets) -> core::result::Result<(), PostListError> {
        let mut list = self.list.iter().enumerate();
        list.try_for_each(|(index, request)| {
            raw.post_send(&self.wr(request)).map_err(|reason| PostListError { index, reason })
        })
    }

    /// Posts all requests or none. Of frames it posts those before the first that is refused.
    fn post_all(&self, qp: &Qp) -> core::result::Result<(), PostListError> {
        if let Some(raw) = &qp.raw {
            return self.post_raw(raw);
        }
        let qp = &qp.qp;
        let list: SmallVec<[SendWr<'_>; 8]> = self.list.iter().map(|request| self.wr(request)).collect();
        qp.post_send_all(&list)
    }

    /// Posts the requests before the first that is refused.
    pub(crate) fn post(&self, qp: &Qp) -> core::result::Result<(), PostListError> {
        if let Some(raw) = &qp.raw {
            return self.post_raw(raw);
        }
        let qp = &qp.qp;
        if let [one] = &self.list[..] {
            return qp.post_send(&self.wr(one)).map_err(|reason| PostListError { index: 0, reason });
        }
        let list: SmallVec<[SendWr<'_>; 8]> = self.list.iter().map(|request| self.wr(request)).collect();
        qp.post_send_list(&list)
    }
}

const fn sge(element: work::Sge) -> Sge {
    Sge { addr: element.addr, len: element.length, lkey: Key(element.lkey) }
}

fn operation(wr: &work::SendWr<'_>) -> Result<SendOp> {
    // SAFETY: all members of the union are plain numbers. The opcode tells which member is set.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let remote = Remote { addr: rdma.remote_addr, rkey: Key(rdma.rkey) };
    let word = Remote { addr: atomic.remote_addr, rkey: Key(atomic.rkey) };
    Ok(match wr.opcode {
        v::WR_RDMA_WRITE => SendOp::Write(remote),
        v::WR_RDMA_WRITE_WITH_IMM => SendOp::WriteImm(remote, wr.imm_data.to_ne_bytes()),
        v::WR_SEND => SendOp::Send,
        v::WR_SEND_WITH_IMM => SendOp::SendImm(wr.imm_data.to_ne_bytes()),
        v::WR_RDMA_READ => SendOp::Read(remote),
        v::WR_ATOMIC_CMP_AND_SWP => {
            SendOp::CompareSwap { remote: word, compare: atomic.compare_add, swap: atomic.swap }
        }
        v::WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd { remote: word, add: atomic.compare_add },
        v::WR_LOCAL_INV => SendOp::LocalInvalidate(Key(wr.imm_data)),
        v::WR_SEND_WITH_INV => SendOp::SendInvalidate(Key(wr.imm_data)),
        v::WR_BIND_MW => {
            let bind = binding(wr).ok_or(INVALID)?;
            bind_window(given(bind.mw)?, bind.rkey, &bind.bind_info)?
        }
        _ => return Err(PostError::Operation.into()),
    })
}

/// The binding in a request that binds a window.
fn binding<'a>(wr: &work::SendWr<'a>) -> Option<work::BindMw<'a>> {
    // SAFETY: a request with this opcode has filled it in.
    (wr.opcode == v::WR_BIND_MW).then(|| unsafe { wr.bind_mw.assume_init() })
}

/// The window of type 2 that a request binds, and its new key.
pub(crate) fn bound_window<'a>(wr: &work::SendWr<'a>) -> Option<(&'a Mw, u32)> {
    let bind = binding(wr)?;
    Some((bind.mw.filter(|mw| mw.c.kind == v::MW_TYPE_2)?, bind.rkey))
}

fn bind_window(mw: &Mw, rkey: u32, info: &MwBindInfo<'_>) -> Result<SendOp> {
    let region = given(info.mr)?.lock();
    Ok(SendOp::BindWindow(BindWindow {
        window: mw.mw.rkey(),
        new_rkey: Key(rkey),
        region: region.as_ref().ok_or(INVALID)?.lkey(),
        addr: info.addr,
        len: info.length,
        access: access(info.mw_access_flags)?,
    }))
}

/// A count of elements. EINVAL for more than any queue takes, because the list is copied before the queue judges it.
pub(crate) fn elements(number: c_int) -> Result<usize> {
    let most = limits::MAX_SGE as usize;
    count(number).and_then(|count| if count <= most { Ok(count) } else { Err(INVALID) })
}

/// A receive request's elements.
pub(crate) fn recv_sges(wr: &RecvWr<'_>) -> Result<SmallVec<[Sge; 8]>> {
    Ok(sges(&wr.sg_list, elements(wr.num_sge)?))
}

/// A list of elements in C.
pub(crate) fn sges(list: &List<work::Sge>, count: usize) -> SmallVec<[Sge; 8]> {
    list.copies(count).map(sge).collect()
}

/// The requests that are built between ibv_wr_start and ibv_wr_complete. Only one thread at a time is between the two.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    turns: Turns,
    building: Mutex<Building>,
}

#[derive(Debug, Default)]
struct Building {
    requests: Requests,
    /// The first error.
    error: Option<crate::border::Errno>,
}

pub(crate) const FUNCTIONS: WrFunctions = WrFunctions {
    wr_atomic_cmp_swp,
    wr_atomic_fetch_add,
    wr_bind_mw,
    wr_local_inv,
    wr_rdma_read,
    wr_rdma_write,
    wr_rdma_write_imm,
    wr_send,
    wr_send_imm,
    wr_send_inv,
    wr_send_tso,
    wr_set_ud_addr,
    wr_set_xrc_srqn,
    wr_set_inline_data,
    wr_set_inline_data_list,
    wr_set_sge,
    wr_set_sge_list,
    wr_start,
    wr_complete,
    wr_abort,
    wr_atomic_write,
    wr_flush,
};

impl Batch {
    fn lock(&self) -> MutexGuard<'_, Building> {
        self.building.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Changes the batch of a queue pair, if it has one. ibv_wr_complete reports errors.
fn build(qp: &Qp, work: impl FnOnce(&mut Building) -> Result<()>) {
    quietly(|| {
        let Some(batch) = &qp.batch else { return };
        let mut building = batch.lock();
        if let Err(errno) = work(&mut building) {
            building.error.get_or_insert(errno);
        }
    });
}

/// Begins a request, with the `wr_id` and the flags that the program has just stored.
fn begin(qp: &Qp, op: Result<SendOp>) {
    let flags = send_flags(qp.c.wr_flags.load(Ordering::Relaxed));
    let wr_id = qp.c.wr_id.load(Ordering::Relaxed);
    build(qp, |building| {
        let data = Data::Sges(0..0);
        building.requests.list.push(Request { wr_id, op: op?, flags, data, dest: None, xrc_srq: 0 });
        Ok(())
    });
}

/// Changes the latest request.
fn amend(qp: &Qp, work: impl FnOnce(&mut Requests) -> Result<Amendment>) {
    build(qp, |building| {
        let amendment = work(&mut building.requests)?;
        let latest = building.requests.list.last_mut().ok_or(INVALID)?;
        match amendment {
            Amendment::Data(data) => latest.data = data,
            Amendment::Dest(dest) => latest.dest = Some(dest),
            Amendment::XrcSrq(number) => latest.xrc_srq = number,
        }
        Ok(())
    });
}

enum Amendment {
    Data(Data),
    Dest(UdDest),
    XrcSrq(u32),
}

const fn remote(rkey: u32, addr: u64) -> Remote {
    Remote { addr, rkey: Key(rkey) }
}

extern "C" fn wr_atomic_cmp_swp(qp: &Qp, rkey: u32, addr: u64, compare: u64, swap: u64) {
    begin(qp, Ok(SendOp::CompareSwap { remote: remote(rkey, addr), compare, swap }));
}

extern "C" fn wr_atomic_fetch_add(qp: &Qp, rkey: u32, addr: u64, add: u64) {
    begin(qp, Ok(SendOp::FetchAdd { remote: remote(rkey, addr), add }));
}

extern "C" fn wr_bind_mw(qp: &Qp, mw: Option<&Mw>, rkey: u32, info: Option<&MwBindInfo<'_>>) {
    begin(qp, given(mw).and_then(|mw| bind_window(mw, rkey, given(info)?)));
}

extern "C" fn wr_local_inv(qp: &Qp, rkey: u32) {
    begin(qp, Ok(SendOp::LocalInvalidate(Key(rkey))));
}

extern "C" fn wr_rdma_read(qp: &Qp, rkey: u32, addr: u64) {
    begin(qp, Ok(SendOp::Read(remote(rkey, addr))));
}

extern "C" fn wr_rdma_write(qp: &Qp, rkey: u32, addr: u64) {
    begin(qp, Ok(SendOp::Write(remote(rkey, addr))));
}

extern "C" fn wr_rdma_write_imm(qp: &Qp, rkey: u32, addr: u64, imm: u32) {
    begin(qp, Ok(SendOp::WriteImm(remote(rkey, addr), imm.to_ne_bytes())));
}

extern "C" fn wr_send(qp: &Qp) {
    begin(qp, Ok(SendOp::Send));
}

extern "C" fn wr_send_imm(qp: &Qp, imm: u32) {
    begin(qp, Ok(SendOp::SendImm(imm.to_ne_bytes())));
}

extern "C" fn wr_send_inv(qp: &Qp, rkey: u32) {
    begin(qp, Ok(SendOp::SendInvalidate(Key(rkey))));
}

/// Segmentation offload exists for raw packets only. Queue pairs that ask for it are refused.
extern "C" fn wr_send_tso(qp: &Qp, _header: Bytes, _header_len: u16, _mss: u16) {
    begin(qp, Err(UNSUPPORTED));
}

/// `value` points to the eight bytes, in the order of memory.
extern "C" fn wr_atomic_write(qp: &Qp, rkey: u32, addr: u64, value: Bytes) {
    begin(qp, value.eight().map(|value| SendOp::AtomicWrite { remote: remote(rkey, addr), value }));
}

extern "C" fn wr_flush(qp: &Qp, rkey: u32, addr: u64, len: usize, placement: u8, selectivity: u8) {
    let len = u32::try_from(len).map_err(|_| INVALID);
    begin(qp, len.map(|len| SendOp::Flush { remote: remote(rkey, addr), len, placement, selectivity }));
}

extern "C" fn wr_set_ud_addr(qp: &Qp, ah: Option<&Ah>, qpn: u32, qkey: u32) {
    amend(qp, |_| Ok(Amendment::Dest(given(ah)?.ah.dest(Qpn::new(qpn), Qkey(qkey)))));
}

extern "C" fn wr_set_xrc_srqn(qp: &Qp, number: u32) {
    amend(qp, |_| Ok(Amendment::XrcSrq(number)));
}

extern "C" fn wr_set_inline_data(qp: &Qp, bytes: Bytes, len: usize) {
    amend(qp, |requests| Ok(Amendment::Data(Data::Inline(requests.copy(core::iter::once((bytes, len)))?))));
}

extern "C" fn wr_set_inline_data_list(qp: &Qp, buffers: usize, list: List<DataBuf>) {
    amend(qp, |requests| {
        let pieces = list.copies(buffers).map(|buffer| (buffer.addr, buffer.length));
        Ok(Amendment::Data(Data::Inline(requests.copy(pieces)?)))
    });
}

extern "C" fn wr_set_sge(qp: &Qp, lkey: u32, addr: u64, length: u32) {
    amend(qp, |requests| {
        Ok(Amendment::Data(Data::Sges(requests.gather(core::iter::once(work::Sge { addr, length, lkey })))))
    });
}

extern "C" fn wr_set_sge_list(qp: &Qp, number: usize, list: List<work::Sge>) {
    amend(qp, |requests| {
        let count = elements(c_int::try_from(number).map_err(|_| INVALID)?)?;
        Ok(Amendment::Data(Data::Sges(requests.gather(list.copies(count)))))
    });
}

/// ibv_wr_start: waits for a thread that is between start and complete. Not in a forked child, where that thread does not exist.
extern "C" fn wr_start(qp: &Qp) {
    quietly(|| {
        if let Some(batch) = &qp.batch
            && qp.qp.context().check_owner().is_ok()
        {
            batch.turns.begin();
        }
    });
}

/// Ends a batch.
fn end(batch: &Batch, mut building: MutexGuard<'_, Building>) {
    building.error = None;
    building.requests.clear();
    drop(building);
    batch.turns.end();
}

/// ibv_wr_complete: posts all requests, or none if one had an error.
extern "C" fn wr_complete(qp: &Qp) -> c_int {
    code(|| {
        let batch = qp.batch.as_ref().ok_or(INVALID)?;
        let building = batch.lock();
        let result = match building.error {
            Some(errno) => Err(errno),
            None => building.requests.post_all(qp).map_err(Into::into),
        };
        end(batch, building);
        result
    })
}

/// ibv_wr_abort.
extern "C" fn wr_abort(qp: &Qp) {
    quietly(|| {
        if let Some(batch) = &qp.batch {
            end(batch, batch.lock());
        }
    });
}
