//! Converts C's numbers to ours and back. Numbers without a meaning are refused; nothing else is decided here.

use crate::{
    border::{Errno, INVALID, Result, UNSUPPORTED},
    c::{
        Gid as CGid,
        attr::{AhAttr, GlobalRoute, QpAttr, QpCap},
        value as v,
        work::Wc,
    },
};
use core::ffi::{c_char, c_int};
use rxe_verbs::{
    Access, AddressVector, Completion, Context, Cq, Gid, Mtu, Pkey, Psn, Qkey, QpAttrs, QpCaps, QpChange,
    QpState, QpType, Qpn, SendFlags, TagInfo, WcExtra, WindowType,
};

/// Copies text, cut to what fits, and ends it with a zero byte.
pub(crate) fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (place, byte) in out.iter_mut().take(N - 1).zip(text.bytes()) {
        *place = byte.cast_signed();
    }
    out
}

pub(crate) fn qp_type(number: c_int) -> Result<QpType> {
    match number {
        v::QPT_RC => Ok(QpType::Rc),
        v::QPT_UC => Ok(QpType::Uc),
        v::QPT_UD => Ok(QpType::Ud),
        v::QPT_XRC_SEND => Ok(QpType::XrcInitiator),
        v::QPT_XRC_RECV => Ok(QpType::XrcTarget),
        // Types of raw packets and of drivers: the error of a device that does not have them.
        v::QPT_RAW_PACKET | v::QPT_DRIVER => Err(UNSUPPORTED),
        _ => Err(INVALID),
    }
}

pub(crate) const fn qp_type_number(kind: QpType) -> c_int {
    match kind {
        QpType::Rc | QpType::Gsi => v::QPT_RC,
        QpType::Uc => v::QPT_UC,
        QpType::Ud => v::QPT_UD,
        QpType::XrcInitiator => v::QPT_XRC_SEND,
        QpType::XrcTarget => v::QPT_XRC_RECV,
    }
}

const STATES: [QpState; 7] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Error];

fn qp_state(number: c_int) -> Result<QpState> {
    usize::try_from(number).ok().and_then(|index| STATES.get(index)).copied().ok_or(INVALID)
}

pub(crate) const fn qp_state_number(state: QpState) -> c_int {
    state as c_int
}

pub(crate) fn window_type(number: c_int) -> Result<WindowType> {
    match number {
        v::MW_TYPE_1 => Ok(WindowType::One),
        v::MW_TYPE_2 => Ok(WindowType::Two),
        _ => Err(INVALID),
    }
}

/// Access rights of a region or window. Optional rights (from bit 20 on), which a device need not know, are left out.
pub(crate) fn access(bits: u32) -> Result<Access> {
    const OPTIONAL: u32 = 0x3ff0_0000;
    Access::from_bits(bits & !OPTIONAL | bits & Access::RELAXED_ORDERING.bits()).ok_or(INVALID)
}

/// Flags of a send request, without IBV_SEND_INLINE.
pub(crate) const fn send_flags(bits: u32) -> SendFlags {
    SendFlags::from_bits_truncate(bits)
}

pub(crate) const fn caps(cap: &QpCap) -> QpCaps {
    QpCaps {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
    }
}

pub(crate) const fn caps_to_c(caps: &QpCaps) -> QpCap {
    QpCap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline,
    }
}

/// The address that the attributes of an address handle or a queue pair describe.
pub(crate) fn address_vector(context: &Context, attr: &AhAttr) -> Result<AddressVector> {
    if attr.is_global == 0 {
        // The attributes have no GID then, and RoCE needs one.
        return Err(rxe_verbs::AddressError::NoDestination.into());
    }
    let way = context.address_vector(attr.grh.sgid_index, Gid(attr.grh.dgid.0))?;
    Ok(AddressVector {
        traffic_class: attr.grh.traffic_class,
        hop_limit: attr.grh.hop_limit,
        flow_label: attr.grh.flow_label & 0xf_ffff,
        service_level: attr.sl,
        ..way
    })
}

pub(crate) fn ah_attr(way: &AddressVector) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            dgid: CGid(Gid::from(way.dst).0),
            flow_label: way.flow_label,
            sgid_index: way.sgid_index,
            hop_limit: way.hop_limit,
            traffic_class: way.traffic_class,
        },
        sl: way.service_level,
        is_global: 1,
        port_num: 1,
        ..AhAttr::default()
    }
}

/// The change that ibv_modify_qp asks for.
pub(crate) fn qp_change(context: &Context, attr: &QpAttr, mask: c_int) -> Result<QpChange> {
    if mask & !v::QP_ATTR_MASK != 0 {
        return Err(UNSUPPORTED);
    }
    let has = |bit: c_int| mask & bit != 0;
    let state = has(v::QP_STATE).then(|| qp_state(attr.qp_state)).transpose()?;
    let current_state = has(v::QP_CUR_STATE).then(|| qp_state(attr.cur_qp_state)).transpose()?;
    let path_mtu = if has(v::QP_PATH_MTU) { Some(mtu(attr.path_mtu)?) } else { None };
    let av = has(v::QP_AV).then(|| address_vector(context, &attr.ah_attr)).transpose()?;
    let alternate = has(v::QP_ALT_PATH).then(|| address_vector(context, &attr.alt_ah_attr)).transpose()?;
    let access = has(v::QP_ACCESS_FLAGS).then(|| access(attr.qp_access_flags)).transpose()?;
    Ok(QpChange {
        state,
        current_state,
        sqd_notify: has(v::QP_EN_SQD_ASYNC_NOTIFY).then_some(attr.en_sqd_async_notify != 0),
        access,
        pkey_index: has(v::QP_PKEY_INDEX).then_some(attr.pkey_index),
        port: has(v::QP_PORT).then_some(attr.port_num),
        qkey: has(v::QP_QKEY).then_some(Qkey(attr.qkey)),
        av,
        path_mtu,
        timeout: has(v::QP_TIMEOUT).then_some(attr.timeout),
        retry_count: has(v::QP_RETRY_CNT).then_some(attr.retry_cnt),
        rnr_retry: has(v::QP_RNR_RETRY).then_some(attr.rnr_retry),
        rq_psn: has(v::QP_RQ_PSN).then_some(Psn::new(attr.rq_psn)),
        max_rd_atomic: has(v::QP_MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic),
        alternate,
        min_rnr_timer: has(v::QP_MIN_RNR_TIMER).then_some(attr.min_rnr_timer),
        sq_psn: has(v::QP_SQ_PSN).then_some(Psn::new(attr.sq_psn)),
        max_dest_rd_atomic: has(v::QP_MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic),
        migration: has(v::QP_PATH_MIG_STATE).then(|| u8::try_from(attr.path_mig_state).unwrap_or(u8::MAX)),
        caps: has(v::QP_CAP).then(|| caps(&attr.cap)),
        dest_qpn: has(v::QP_DEST_QPN).then_some(Qpn::new(attr.dest_qp_num)),
    })
}

/// Attributes and mask with which a program asks ibv_modify_qp for a change.
pub(crate) fn qp_attr_of(change: &QpChange) -> (QpAttr, c_int) {
    let mut attr = QpAttr::default();
    let mut mask = 0;
    macro_rules! put {
        ($field:ident, $bit:ident, $value:expr) => {
            if let Some(value) = $value {
                attr.$field = value;
                mask |= v::$bit;
            }
        };
    }
    put!(qp_state, QP_STATE, change.state.map(qp_state_number));
    put!(qp_access_flags, QP_ACCESS_FLAGS, change.access.map(|access| access.bits()));
    put!(pkey_index, QP_PKEY_INDEX, change.pkey_index);
    put!(port_num, QP_PORT, change.port);
    put!(qkey, QP_QKEY, change.qkey.map(|qkey| qkey.0));
    put!(ah_attr, QP_AV, change.av.as_ref().map(ah_attr));
    put!(path_mtu, QP_PATH_MTU, change.path_mtu.map(|mtu| mtu.code().into()));
    put!(timeout, QP_TIMEOUT, change.timeout);
    put!(retry_cnt, QP_RETRY_CNT, change.retry_count);
    put!(rnr_retry, QP_RNR_RETRY, change.rnr_retry);
    put!(rq_psn, QP_RQ_PSN, change.rq_psn.map(Psn::value));
    put!(sq_psn, QP_SQ_PSN, change.sq_psn.map(Psn::value));
    put!(max_rd_atomic, QP_MAX_QP_RD_ATOMIC, change.max_rd_atomic);
    put!(max_dest_rd_atomic, QP_MAX_DEST_RD_ATOMIC, change.max_dest_rd_atomic);
    put!(min_rnr_timer, QP_MIN_RNR_TIMER, change.min_rnr_timer);
    put!(dest_qp_num, QP_DEST_QPN, change.dest_qpn.map(Qpn::value));
    (attr, mask)
}

/// A state by its number.
pub(crate) fn state_of(number: c_int) -> Result<QpState> {
    qp_state(number)
}

fn mtu(number: c_int) -> Result<Mtu> {
    u8::try_from(number).ok().and_then(Mtu::from_code).ok_or(INVALID)
}

/// The attributes that ibv_query_qp returns.
pub(crate) fn qp_attr(now: &QpAttrs, caps: &QpCaps, is_draining: bool) -> QpAttr {
    QpAttr {
        qp_state: qp_state_number(now.state),
        cur_qp_state: qp_state_number(now.state),
        path_mtu: now.path_mtu.code().into(),
        path_mig_state: now.migration.into(),
        qkey: now.qkey.0,
        rq_psn: now.rq_psn.value(),
        sq_psn: now.sq_psn.value(),
        dest_qp_num: now.dest_qpn.value(),
        qp_access_flags: now.access.bits(),
        cap: caps_to_c(caps),
        ah_attr: now.av.as_ref().map(ah_attr).unwrap_or_default(),
        alt_ah_attr: now.alternate.as_ref().map(ah_attr).unwrap_or_default(),
        pkey_index: now.pkey_index,
        en_sqd_async_notify: now.sqd_notify.into(),
        sq_draining: is_draining.into(),
        max_rd_atomic: now.max_rd_atomic,
        max_dest_rd_atomic: now.max_dest_rd_atomic,
        min_rnr_timer: now.min_rnr_timer,
        port_num: 1,
        timeout: now.timeout,
        retry_cnt: now.retry_count,
        rnr_retry: now.rnr_retry,
        ..QpAttr::default()
    }
}

/// Flags of a completion that was polled from `cq`, and its immediate data or invalidated key.
pub(crate) fn wc_extra(cq: &Cq, done: &Completion) -> (u32, u32) {
    let grh = if done.grh { v::WC_GRH } else { 0 };
    match done.extra {
        WcExtra::None => (grh, 0),
        WcExtra::Tag(_) => tagged_extra(&cq.tag_info(done).unwrap_or_default()),
        // The bytes are in network order in memory, too.
        WcExtra::Immediate(bytes) => (grh | v::WC_WITH_IMM, u32::from_ne_bytes(bytes)),
        WcExtra::Invalidated(key) => (grh | v::WC_WITH_INV, key.0),
    }
}

/// The same for a completion of a tag matching queue.
fn tagged_extra(info: &TagInfo) -> (u32, u32) {
    let flags = info.flags.bits();
    match info.extra {
        WcExtra::None | WcExtra::Tag(_) => (flags, 0),
        WcExtra::Immediate(bytes) => (flags | v::WC_WITH_IMM, u32::from_ne_bytes(bytes)),
        WcExtra::Invalidated(key) => (flags | v::WC_WITH_INV, key.0),
    }
}

/// A completion for ibv_poll_cq on `cq`.
pub(crate) fn wc(cq: &Cq, done: &Completion) -> Wc {
    let (wc_flags, imm_data) = wc_extra(cq, done);
    Wc {
        wr_id: done.wr_id,
        status: done.status as c_int,
        opcode: done.opcode as c_int,
        vendor_err: done.vendor_error,
        byte_len: done.byte_len,
        imm_data,
        qp_num: done.qpn.value(),
        src_qp: done.src_qp.value(),
        wc_flags,
        pkey_index: 0,
        slid: 0,
        sl: done.sl,
        dlid_path_bits: 0,
    }
}

/// A partition key in network byte order.
pub(crate) const fn pkey(pkey: Pkey) -> [u8; 2] {
    pkey.0.to_be_bytes()
}

/// A count from C, which must not be negative.
pub(crate) fn count(number: c_int) -> Result<usize> {
    usize::try_from(number).map_err(|_| Errno(libc::EINVAL))
}
