//! Queue pairs.

use super::memory::c_pd;
use crate::{
    border::{Bytes, INVALID, Out, Owned, Result, UNSUPPORTED, code, given, object, pointer},
    c::{
        self, Pointer,
        attr::{QpAttr, QpCap, QpInitAttr, QpInitAttrEx, QpOpenAttr},
        context::ContextPtr,
        object::Lock,
        value as v,
        work::{RecvWr, SendWr},
    },
    convert::{caps, caps_to_c, qp_attr, qp_change, qp_state_number, qp_type},
    object::{Context, Cq, Events, Pd, Qp, RwqTable, Srq, Users, Xrcd},
    wr::{self, Batch, Requests, bound_window, recv_sges},
};
use core::{
    ffi::{c_int, c_void},
    ptr,
    sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering},
};
use rxe_verbs::PerProcess;
use rxe_verbs::{
    Gid, Listener, Psn, Qkey, QpChange, QpInit, QpState, QpType, RawPackets, Spread, hash_fields, limits,
};
use std::sync::{Arc, MutexGuard, Weak};

/// Requests converted before they are posted together; a longer list is posted in pieces.
const CHUNK: usize = 64;
/// The `send_ops_flags` that ibv_create_qp_ex accepts: all but segmentation offload, the eleventh.
const SEND_OPS: u64 = 0x1bff;

/// ibv_create_qp(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_create_qp(pd: Option<&Pd>, init: Option<&mut QpInitAttr<'_>>) -> *mut Qp {
    pointer(|| make(given(pd)?, given(init)?, None))
}

/// ibv_create_qp_ex(3), where the header does not turn it into the plain call.
pub(super) extern "C" fn create_qp_ex(context: ContextPtr, init: Option<&mut QpInitAttrEx<'_>>) -> *mut Qp {
    pointer(|| {
        Context::of(context)?;
        make_ex(given(init)?)
    })
}

/// The batch for a queue pair with these attributes, if they ask for ibv_wr_*. EOPNOTSUPP if they ask for what is not possible.
pub(crate) fn batch_of(init: &QpInitAttrEx<'_>) -> Result<Option<Batch>> {
    const KNOWN: u32 = v::QP_INIT_ATTR_PD
        | v::QP_INIT_ATTR_XRCD
        | v::QP_INIT_ATTR_CREATE_FLAGS
        | v::QP_INIT_ATTR_SEND_OPS_FLAGS;
    let has = |bit| init.comp_mask & bit != 0;
    let extended = has(v::QP_INIT_ATTR_SEND_OPS_FLAGS);
    if init.comp_mask & !KNOWN != 0
        || (has(v::QP_INIT_ATTR_CREATE_FLAGS) && init.create_flags != 0)
        || (extended && init.send_ops_flags & !SEND_OPS != 0)
    {
        return Err(UNSUPPORTED);
    }
    Ok(extended.then(Batch::default))
}

/// Makes a queue pair with these attributes.
fn make_ex(init: &mut QpInitAttrEx<'_>) -> Result<*mut Qp> {
    if init.comp_mask & SPREAD != 0 {
        return make_spread(init);
    }
    let batch = batch_of(init)?;
    let has = |bit| init.comp_mask & bit != 0;
    if init.qp_type == v::QPT_XRC_RECV {
        let xrcd = init.xrcd.filter(|_| has(v::QP_INIT_ATTR_XRCD));
        return make_target(given(xrcd)?, init.qp_context);
    }
    if !has(v::QP_INIT_ATTR_PD) || has(v::QP_INIT_ATTR_XRCD) {
        return Err(INVALID);
    }
    let pd = given(init.pd)?;
    let mut base = init.base();
    let qp = make(pd, &mut base, batch)?;
    init.cap = base.cap;
    Ok(qp)
}

/// The attributes that ask for frames to be spread over several queues.
const SPREAD: u32 = v::QP_INIT_ATTR_IND_TABLE | v::QP_INIT_ATTR_RX_HASH;

/// Makes a queue pair for raw packets that only receives, into the queues of a table.
fn make_spread(init: &QpInitAttrEx<'_>) -> Result<*mut Qp> {
    const KNOWN: u32 = v::QP_INIT_ATTR_PD | v::QP_INIT_ATTR_CREATE_FLAGS | SPREAD;
    /// IBV_RX_HASH_FUNC_TOEPLITZ.
    const TOEPLITZ: u8 = 1;
    let wanted = v::QP_INIT_ATTR_PD | SPREAD;
    if init.comp_mask & wanted != wanted {
        return Err(INVALID);
    }
    if init.comp_mask & !KNOWN != 0
        || init.qp_type != v::QPT_RAW_PACKET
        || init.create_flags != 0
        || init.rx_hash_function != TOEPLITZ
        || init.rx_hash_fields_mask & !hash_fields::ALL != 0
    {
        return Err(UNSUPPORTED);
    }
    let (pd, table) = (given(init.pd)?, given(object::<_, RwqTable>(&Pointer::new(init.rwq_ind_tbl)))?);
    let key = Bytes::new(init.rx_hash_key.cast()).read(init.rx_hash_key_len.into());
    let spread = Spread::new(table.queues.clone(), key, init.rx_hash_fields_mask).ok_or(INVALID)?;
    // It has no completions itself, but every queue pair needs a completion queue.
    let qp = Arc::new(pd.pd.create_qp(&QpInit::new(QpType::Ud, &table.cq))?);
    let raw = RawPackets::spread(&qp, &table.cq, spread)?;
    let mut base = init.base();
    (base.send_cq, base.recv_cq, base.srq) = (None, None, None);
    let c = c_qp(&pd.context, Some(pd), &base, qp.qpn().value());
    let qpn = qp.qpn();
    let parts = (qp, Some(raw), Some(Users::clone(&table.users)));
    let object = handle(c, parts, &pd.context, &pd.users, None, None);
    pd.context.qps.enter(qpn, object);
    Ok(object)
}

/// Makes an XRC target. It has an XRC domain and no queues. The sizes in the attributes stay as they are, as with the kernel.
pub(crate) fn make_target(xrcd: &Xrcd, qp_context: *mut c_void) -> Result<*mut Qp> {
    let qp = xrcd.xrcd.create_target()?;
    let none = target_attr(qp_context);
    let c = c_qp(&xrcd.context, None, &none, qp.qpn().value());
    let qp = Arc::new(qp);
    let mut targets = targets();
    targets.retain(|target| target.strong_count() > 0);
    targets.push(Arc::downgrade(&qp));
    drop(targets);
    target_handle(c, qp, xrcd)
}

/// Gives the program a handle of an XRC target. Each handle gets the target's events.
fn target_handle(c: c::object::QpEx, qp: Arc<rxe_verbs::Qp>, xrcd: &Xrcd) -> Result<*mut Qp> {
    let listener = qp.listen(&xrcd.context.context)?;
    let name = listener.name();
    let object = handle(c, (qp, None, None), &xrcd.context, &xrcd.users, None, Some(listener));
    xrcd.context.targets.enter(name, object);
    Ok(object)
}

/// All XRC targets of this process.
fn targets() -> MutexGuard<'static, Vec<Weak<rxe_verbs::Qp>>> {
    static TARGETS: PerProcess<Vec<Weak<rxe_verbs::Qp>>> = PerProcess::new(Vec::new);
    TARGETS.lock()
}

/// ibv_open_qp(3): another handle of an XRC target of the domain. The target is destroyed with its last handle.
pub(super) extern "C" fn open_qp(context: ContextPtr, attr: Option<&QpOpenAttr<'_>>) -> *mut Qp {
    const NEEDED: u32 = v::QP_OPEN_ATTR_NUM | v::QP_OPEN_ATTR_XRCD | v::QP_OPEN_ATTR_TYPE;
    pointer(|| {
        let (context, attr) = (Context::of(context)?, given(attr)?);
        if attr.comp_mask & !(NEEDED | v::QP_OPEN_ATTR_CONTEXT) != 0 {
            return Err(UNSUPPORTED);
        }
        if attr.comp_mask & NEEDED != NEEDED || attr.qp_type != v::QPT_XRC_RECV {
            return Err(INVALID);
        }
        let xrcd = given(attr.xrcd)?;
        if !ptr::eq(context, &raw const *xrcd.context) {
            return Err(INVALID);
        }
        let is_it = |qp: &rxe_verbs::Qp| {
            qp.qpn().value() == attr.qp_num
                && qp.xrcd().is_some_and(|domain| domain.is_same_domain(&xrcd.xrcd))
        };
        let found = targets().iter().filter_map(Weak::upgrade).find(|qp| is_it(qp));
        let qp = found.ok_or(INVALID)?;
        let has_context = attr.comp_mask & v::QP_OPEN_ATTR_CONTEXT != 0;
        let none = target_attr(if has_context { attr.qp_context } else { ptr::null_mut() });
        let c = c_qp(context, None, &none, attr.qp_num);
        c.qp_base.state.store(qp_state_number(qp.state()), Ordering::Relaxed);
        target_handle(c, qp, xrcd)
    })
}

const fn target_attr(qp_context: *mut c_void) -> QpInitAttr<'static> {
    QpInitAttr {
        qp_context,
        send_cq: None,
        recv_cq: None,
        srq: None,
        cap: QpCap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline_data: 0 },
        qp_type: v::QPT_XRC_RECV,
        sq_sig_all: 0,
    }
}

pub(crate) fn make(pd: &Pd, init: &mut QpInitAttr<'_>, batch: Option<Batch>) -> Result<*mut Qp> {
    let send_cq = given(init.send_cq)?;
    // Initiators receive nothing.
    let initiator = init.qp_type == v::QPT_XRC_SEND;
    let recv_cq = given(init.recv_cq.or_else(|| initiator.then_some(send_cq)))?;
    pd.known()?;
    send_cq.known()?;
    recv_cq.known()?;
    init.srq.map_or(Ok(()), Srq::known)?;
    let mut caps = caps(&init.cap);
    // The room for elements can also be used for inline data, as with kernel rxe. Some programs rely on that.
    caps.max_inline = caps.max_inline.max(caps.max_send_sge.saturating_mul(16).min(limits::MAX_INLINE));
    let is_raw = init.qp_type == v::QPT_RAW_PACKET;
    if is_raw && init.srq.is_some() {
        return Err(UNSUPPORTED);
    }
    let qp = pd.pd.create_qp(&QpInit {
        // A queue pair for raw packets has the state and the numbers of a datagram queue pair.
        qp_type: if is_raw { QpType::Ud } else { qp_type(init.qp_type)? },
        send_cq: &send_cq.cq,
        recv_cq: &recv_cq.cq,
        srq: init.srq.map(|srq| &srq.srq),
        caps,
        signal_all: init.sq_sig_all != 0,
    })?;
    let c = c_qp(&pd.context, Some(pd), init, qp.qpn().value());
    init.cap = caps_to_c(&qp.query().1.caps);
    let (qpn, qp) = (qp.qpn(), Arc::new(qp));
    let raw = is_raw.then(|| RawPackets::new(&qp, (&send_cq.cq, &recv_cq.cq))).transpose()?;
    let object = handle(c, (qp, raw, None), &pd.context, &pd.users, batch, None);
    pd.context.qps.enter(qpn, object);
    Ok(object)
}

fn handle(
    c: c::object::QpEx,
    (qp, raw, table): (Arc<rxe_verbs::Qp>, Option<RawPackets>, Option<Users>),
    context: &Arc<Context>,
    domain: &Users,
    batch: Option<Batch>,
    listener: Option<Listener>,
) -> *mut Qp {
    let users = |cq: &Pointer<c::object::Cq>| object::<_, Cq>(cq).map(|cq| Users::clone(&cq.users));
    let cqs = [users(&c.qp_base.send_cq), users(&c.qp_base.recv_cq)];
    Box::into_raw(Box::new(Qp {
        c,
        qp,
        context: Arc::clone(context),
        _domain: Users::clone(domain),
        _cqs: cqs,
        events: Events::default(),
        listener,
        raw,
        _table: table,
        batch,
    }))
}

fn c_qp(context: &Context, pd: Option<&Pd>, init: &QpInitAttr<'_>, number: u32) -> c::object::QpEx {
    let cq = |cq: Option<&Cq>| cq.map_or(ptr::null_mut(), |cq| (&raw const cq.c.base).cast_mut());
    let srq = |srq: Option<&Srq>| srq.map_or(ptr::null_mut(), |srq| (&raw const srq.c).cast_mut());
    let qp_base = c::object::Qp {
        context: context.pointer(),
        qp_context: Pointer::new(init.qp_context),
        pd: pd.map_or_else(Pointer::default, c_pd),
        send_cq: Pointer::new(cq(init.send_cq)),
        recv_cq: Pointer::new(cq(init.recv_cq)),
        srq: Pointer::new(srq(init.srq)),
        handle: number,
        qp_num: number,
        state: AtomicI32::new(qp_state_number(QpState::Reset)),
        qp_type: init.qp_type,
        lock: Lock::NEW,
        events_completed: AtomicU32::new(0),
    };
    c::object::QpEx {
        qp_base,
        comp_mask: 0,
        wr_id: AtomicU64::new(0),
        wr_flags: AtomicU32::new(0),
        functions: wr::FUNCTIONS,
    }
}

/// ibv_qp_to_qp_ex(3): null unless ibv_wr_* were asked for.
#[unsafe(no_mangle)]
extern "C" fn ibv_qp_to_qp_ex(qp: Option<&Qp>) -> *const Qp {
    qp.filter(|qp| qp.batch.is_some()).map_or(ptr::null(), ptr::from_ref)
}

/// Attributes of the half (requester or responder) that an XRC queue pair does not have. Programs such as perftest set them, and the
/// kernel ignores them.
const fn foreign(qp_type: c_int) -> c_int {
    match qp_type {
        v::QPT_XRC_SEND => v::QP_MAX_DEST_RD_ATOMIC | v::QP_MIN_RNR_TIMER,
        v::QPT_XRC_RECV => v::QP_MAX_QP_RD_ATOMIC | v::QP_RETRY_CNT | v::QP_RNR_RETRY,
        _ => 0,
    }
}

/// Attributes that a datagram queue pair needs, and that a queue pair for raw packets does not have.
fn complete_raw(change: &mut QpChange) {
    match change.state {
        Some(QpState::Init) => {
            change.pkey_index = change.pkey_index.or(Some(0));
            change.qkey = change.qkey.or(Some(Qkey(0)));
        }
        Some(QpState::Rts) => change.sq_psn = change.sq_psn.or(Some(Psn::new(0))),
        _ => {}
    }
}

/// ibv_modify_qp(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_modify_qp(qp: Option<&Qp>, attr: Option<&QpAttr>, mask: c_int) -> c_int {
    code(|| {
        let qp = given(qp)?;
        qp.known()?;
        let mask = mask & !foreign(qp.c.qp_base.qp_type);
        let mut change = qp_change(&qp.context.context, given(attr)?, mask)?;
        if qp.raw.is_some() {
            complete_raw(&mut change);
        }
        qp.qp.modify(&change)?;
        if let Some(raw) = &qp.raw {
            raw.state_changed();
        }
        if let Some(state) = change.state {
            qp.c.qp_base.state.store(qp_state_number(state), Ordering::Relaxed);
        }
        Ok(())
    })
}

/// How a queue pair was made, for ibv_query_qp: its `ibv_qp_init_attr`.
#[derive(Debug)]
#[repr(C)]
struct Made {
    qp_context: *mut c_void,
    send_cq: *mut c::object::Cq,
    recv_cq: *mut c::object::Cq,
    srq: *mut c::object::Srq,
    cap: QpCap,
    qp_type: c_int,
    sq_sig_all: c_int,
}

/// ibv_query_qp(3). Returns all attributes, whatever the mask.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp(
    qp: Option<&Qp>,
    attr: Out<'_, QpAttr>,
    _mask: c_int,
    made: Out<'_, Made>,
) -> c_int {
    code(|| {
        let qp = given(qp)?;
        qp.known()?;
        qp.qp.context().check_owner()?;
        let (now, config) = qp.qp.query();
        let base = &qp.c.qp_base;
        given(attr)?.write(qp_attr(&now, &config.caps, qp.qp.is_draining()));
        base.state.store(qp_state_number(now.state), Ordering::Relaxed);
        given(made)?.write(Made {
            qp_context: base.qp_context.load(Ordering::Relaxed),
            send_cq: base.send_cq.load(Ordering::Relaxed),
            recv_cq: base.recv_cq.load(Ordering::Relaxed),
            srq: base.srq.load(Ordering::Relaxed),
            cap: caps_to_c(&config.caps),
            qp_type: base.qp_type,
            sq_sig_all: config.signal_all.into(),
        });
        Ok(())
    })
}

/// ibv_query_qp_data_in_order(3): bytes that a peer sends or writes are placed in rising order. (READ responses are, too, but
/// a READ that is sent again places some bytes twice.)
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(qp: Option<&Qp>, op: c_int, flags: u32) -> c_int {
    const RETURN_CAPS: u32 = 1;
    /// Whatever the processor. For us there is no difference: processors place the bytes.
    const DEVICE_ONLY: u32 = 1 << 1;
    const WHOLE_MESSAGE_AND_128_BYTES: c_int = 3;
    let placed = matches!(
        op,
        v::WR_RDMA_WRITE | v::WR_RDMA_WRITE_WITH_IMM | v::WR_SEND | v::WR_SEND_WITH_IMM | v::WR_SEND_WITH_INV
    );
    match (qp, flags & !DEVICE_ONLY) {
        (Some(_), 0) => placed.into(),
        (Some(_), RETURN_CAPS) if placed => WHOLE_MESSAGE_AND_128_BYTES,
        _ => 0,
    }
}

/// ibv_destroy_qp(3): waits until its events are acknowledged.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_destroy_qp(qp: Owned<Qp>) -> c_int {
    code(|| {
        let object = qp.get()?;
        object.known()?;
        match &object.listener {
            Some(listener) => object.context.targets.remove(&listener.name()),
            None => object.context.qps.remove(&object.qp.qpn()),
        }
        object.events.wait();
        qp.free();
        Ok(())
    })
}

/// ibv_post_send(3).
pub(super) extern "C" fn post_send<'a>(
    qp: Option<&Qp>,
    wr: Option<&'a SendWr<'a>>,
    bad: Option<&mut *const SendWr<'a>>,
) -> c_int {
    let mut culprit = wr;
    let errno = code(|| {
        let qp = given(qp)?;
        let mut requests = Requests::default();
        while let Some(first) = culprit {
            requests.clear();
            let (mut next, mut wrong) = (Some(first), None);
            while let Some(wr) = next.filter(|_| requests.len() < CHUNK) {
                if let Err(errno) = requests.add(qp, wr) {
                    wrong = Some(errno);
                    break;
                }
                next = wr.next;
            }
            if let Err(error) = requests.post(qp) {
                culprit = nth(first, error.index, |wr| wr.next);
                if requests.binds() {
                    name_windows(first, error.index);
                }
                return Err(error.into());
            }
            if requests.binds() {
                name_windows(first, requests.len());
            }
            culprit = next;
            if let Some(errno) = wrong {
                return Err(errno);
            }
        }
        Ok(())
    });
    tell_culprit(errno, bad, culprit)
}

/// Writes the new keys into the windows that the first `count` requests bind, as irdma does. The program chooses only the low 8 bits, so
/// it would not know the whole key otherwise.
fn name_windows<'a>(first: &'a SendWr<'a>, count: usize) {
    let requests = core::iter::successors(Some(first), |wr| wr.next).take(count);
    for (mw, key) in requests.filter_map(bound_window) {
        let index = mw.c.rkey.load(Ordering::Relaxed) & !0xff;
        mw.c.rkey.store(index | key & 0xff, Ordering::Relaxed);
    }
}

/// The request `index` places behind the first.
fn nth<'a, T>(first: &'a T, index: usize, next: impl Fn(&'a T) -> Option<&'a T>) -> Option<&'a T> {
    (0..index).try_fold(first, |wr, _| next(wr))
}

/// `bad_wr` of the post functions.
pub(super) fn tell_culprit<T>(errno: c_int, bad: Option<&mut *const T>, culprit: Option<&T>) -> c_int {
    if let (true, Some(bad)) = (errno != 0, bad) {
        *bad = culprit.map_or(ptr::null(), ptr::from_ref);
    }
    errno
}

/// ibv_post_recv(3).
pub(super) extern "C" fn post_recv<'a>(
    qp: Option<&Qp>,
    wr: Option<&'a RecvWr<'a>>,
    bad: Option<&mut *const RecvWr<'a>>,
) -> c_int {
    let mut culprit = wr;
    let errno = code(|| {
        let qp = given(qp)?;
        while let Some(wr) = culprit {
            let sges = recv_sges(wr)?;
            let request = rxe_verbs::RecvWr { wr_id: wr.wr_id, sges: &sges };
            match &qp.raw {
                None => qp.qp.post_recv(&request)?,
                Some(raw) => raw.post_recv(&request)?,
            }
            culprit = wr.next;
        }
        Ok(())
    });
    tell_culprit(errno, bad, culprit)
}

/// ibv_attach_mcast(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_attach_mcast(qp: Option<&Qp>, group: Option<&c::Gid>, _lid: u16) -> c_int {
    code(|| Ok(given(qp)?.qp.attach_multicast(Gid(given(group)?.0))?))
}

/// ibv_detach_mcast(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_detach_mcast(qp: Option<&Qp>, group: Option<&c::Gid>, _lid: u16) -> c_int {
    code(|| Ok(given(qp)?.qp.detach_multicast(Gid(given(group)?.0))?))
}
