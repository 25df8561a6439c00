//! Conversions between the suite's verbs types and those of our stack, for both of our adapters.

use super::{Access, Change, Sge, State, Wc, WrOp};
use crate::wire::Roce;
use rxe_core::{
    num::{Key, Psn, Qkey, Qpn},
    qp::{Mtu, QpCaps, QpChange, QpState, QpType},
    work::{self, Completion, Remote, SendOp, WcExtra},
};

/// Access rights as flags of the verbs.
pub(super) fn rights(access: &[Access]) -> work::Access {
    access
        .iter()
        .map(|right| match right {
            Access::LocalWrite => work::Access::LOCAL_WRITE,
            Access::RemoteWrite => work::Access::REMOTE_WRITE,
            Access::RemoteRead => work::Access::REMOTE_READ,
            Access::RemoteAtomic => work::Access::REMOTE_ATOMIC,
            Access::MwBind => work::Access::MW_BIND,
            Access::FlushGlobal => work::Access::FLUSH_GLOBAL,
            Access::FlushPersistent => work::Access::FLUSH_PERSISTENT,
        })
        .collect()
}

/// Scatter/gather entries.
pub(super) fn sges(list: &[Sge]) -> Vec<work::Sge> {
    list.iter().map(|sge| work::Sge { addr: sge.addr, len: sge.length, lkey: Key(sge.lkey) }).collect()
}

/// Queue pair states of both type systems.
pub(super) const STATES: [(State, QpState); 7] = [
    (State::Reset, QpState::Reset),
    (State::Init, QpState::Init),
    (State::Rtr, QpState::Rtr),
    (State::Rts, QpState::Rts),
    (State::Sqd, QpState::Sqd),
    (State::Sqe, QpState::Sqe),
    (State::Err, QpState::Error),
];

/// A modify call.
pub(super) fn change_of(change: &Change) -> QpChange {
    let attrs = &change.attrs;
    QpChange {
        state: change.state.and_then(|state| STATES.iter().find(|pair| pair.0 == state)).map(|pair| pair.1),
        port: attrs.port,
        pkey_index: attrs.pkey_index,
        access: attrs.access.as_deref().map(rights),
        qkey: attrs.qkey.map(Qkey),
        path_mtu: attrs.path_mtu.and_then(Mtu::from_bytes),
        dest_qpn: attrs.dest_qpn.map(Qpn::new),
        rq_psn: attrs.rq_psn.map(Psn::new),
        sq_psn: attrs.sq_psn.map(Psn::new),
        max_dest_rd_atomic: attrs.max_dest_rd_atomic,
        max_rd_atomic: attrs.max_rd_atomic,
        min_rnr_timer: attrs.min_rnr_timer,
        timeout: attrs.timeout,
        retry_count: attrs.retry_cnt,
        rnr_retry: attrs.rnr_retry,
        sqd_notify: attrs.en_sqd_async_notify.map(|on| on != 0),
        av: attrs.av.as_ref().map(vector),
        ..QpChange::default()
    }
}

/// The path to a peer.
pub(super) fn vector(av: &super::Av) -> work::AddressVector {
    work::AddressVector {
        src: av.sgid,
        dst: av.dgid,
        ifindex: 0,
        traffic_class: av.traffic_class,
        hop_limit: av.hop_limit,
        flow_label: 0,
        service_level: 0,
        sgid_index: 0,
        gid_type: match av.roce {
            Roce::V1 => work::GidType::RoceV1,
            Roce::V2 => work::GidType::RoceV2,
        },
    }
}

/// The operation of a send request.
pub(super) fn operation(op: &WrOp) -> SendOp {
    let remote = |addr: &u64, rkey: &u32| Remote { addr: *addr, rkey: Key(*rkey) };
    match op {
        WrOp::Send => SendOp::Send,
        WrOp::SendWithImm { imm } => SendOp::SendImm(imm.to_be_bytes()),
        WrOp::SendWithInv { invalidate_rkey } => SendOp::SendInvalidate(Key(*invalidate_rkey)),
        WrOp::RdmaWrite { remote_addr, rkey } => SendOp::Write(remote(remote_addr, rkey)),
        WrOp::RdmaWriteWithImm { remote_addr, rkey, imm } => {
            SendOp::WriteImm(remote(remote_addr, rkey), imm.to_be_bytes())
        }
        WrOp::RdmaRead { remote_addr, rkey } => SendOp::Read(remote(remote_addr, rkey)),
        WrOp::AtomicCmpAndSwp { remote_addr, rkey, compare, swap } => {
            SendOp::CompareSwap { remote: remote(remote_addr, rkey), compare: *compare, swap: *swap }
        }
        WrOp::AtomicFetchAndAdd { remote_addr, rkey, add } => {
            SendOp::FetchAdd { remote: remote(remote_addr, rkey), add: *add }
        }
        WrOp::AtomicWrite { remote_addr, rkey, value } => {
            SendOp::AtomicWrite { remote: remote(remote_addr, rkey), value: value.to_le_bytes() }
        }
        WrOp::Flush { remote_addr, rkey, length, r#type, level } => SendOp::Flush {
            remote: remote(remote_addr, rkey),
            len: *length,
            placement: *r#type,
            selectivity: *level,
        },
        WrOp::LocalInv { invalidate_rkey } => SendOp::LocalInvalidate(Key(*invalidate_rkey)),
    }
}

/// The verbs name of a status.
const fn status_name(status: work::WcStatus) -> &'static str {
    use work::WcStatus as S;
    match status {
        S::Success => "SUCCESS",
        S::LocalLength => "LOC_LEN_ERR",
        S::LocalQpOperation => "LOC_QP_OP_ERR",
        S::LocalProtection => "LOC_PROT_ERR",
        S::WorkRequestFlushed => "WR_FLUSH_ERR",
        S::MemoryWindowBind => "MW_BIND_ERR",
        S::BadResponse => "BAD_RESP_ERR",
        S::LocalAccess => "LOC_ACCESS_ERR",
        S::RemoteInvalidRequest => "REM_INV_REQ_ERR",
        S::RemoteAccess => "REM_ACCESS_ERR",
        S::RemoteOperation => "REM_OP_ERR",
        S::RetryExceeded => "RETRY_EXC_ERR",
        S::RnrRetryExceeded => "RNR_RETRY_EXC_ERR",
        S::RemoteAborted => "REM_ABORT_ERR",
        S::Fatal => "FATAL_ERR",
        S::General => "GENERAL_ERR",
        S::TagMatching => "TM_ERR",
        S::RendezvousIncomplete => "TM_RNDV_INCOMPLETE",
    }
}

/// The verbs name of the completed operation.
const fn opcode_name(opcode: work::WcOpcode) -> &'static str {
    use work::WcOpcode as O;
    match opcode {
        O::Send => "SEND",
        O::Write => "RDMA_WRITE",
        O::Read => "RDMA_READ",
        O::CompareSwap => "COMP_SWAP",
        O::FetchAdd => "FETCH_ADD",
        O::BindWindow => "BIND_MW",
        O::LocalInvalidate => "LOCAL_INV",
        O::Flush => "FLUSH",
        O::AtomicWrite => "ATOMIC_WRITE",
        O::Recv => "RECV",
        O::RecvRdmaWithImm => "RECV_RDMA_WITH_IMM",
        O::TagAdd => "TM_ADD",
        O::TagRemove => "TM_DEL",
        O::TagSync => "TM_SYNC",
        O::TagRecv => "TM_RECV",
        O::NoTag => "TM_NO_TAG",
    }
}

/// A completion as the verbs report it.
pub(super) fn in_words(wc: &Completion) -> Wc {
    let (imm, invalidated_rkey) = match wc.extra {
        WcExtra::None | WcExtra::Tag(_) => (None, None),
        WcExtra::Immediate(bytes) => (Some(u32::from_be_bytes(bytes)), None),
        WcExtra::Invalidated(key) => (None, Some(key.0)),
    };
    Wc {
        wr_id: wc.wr_id,
        status: status_name(wc.status).into(),
        opcode: opcode_name(wc.opcode).into(),
        byte_len: wc.byte_len,
        qp_num: wc.qpn.value(),
        src_qp: wc.src_qp.value(),
        imm,
        invalidated_rkey,
        wc_flags: None,
    }
}

/// Flags of a send request.
pub(super) fn flags(list: &[super::Flag]) -> work::SendFlags {
    list.iter()
        .map(|flag| match flag {
            super::Flag::Signaled => work::SendFlags::SIGNALED,
            super::Flag::Fence => work::SendFlags::FENCE,
            super::Flag::Solicited => work::SendFlags::SOLICITED,
        })
        .collect()
}

/// The destination of a datagram.
pub(super) fn dest((av, qpn, qkey): &(super::Av, u32, u32)) -> work::UdDest {
    work::UdDest { av: vector(av), remote_qpn: Qpn::new(*qpn), remote_qkey: Qkey(*qkey), pkey: None }
}

/// The verbs name of an event.
pub(super) fn event_name(event: work::AsyncEvent) -> &'static str {
    use work::AsyncEvent as E;
    match event {
        E::QpFatal(_) => "QP_FATAL",
        E::QpRequestError(_) => "QP_REQ_ERR",
        E::QpAccessError(_) => "QP_ACCESS_ERR",
        E::CommunicationEstablished(_) => "COMM_EST",
        E::SqDrained(_) => "SQ_DRAINED",
        E::LastWqeReached(_) => "QP_LAST_WQE_REACHED",
        E::SrqLimitReached(_) => "SRQ_LIMIT_REACHED",
    }
}

/// The kind of a queue pair.
pub(super) const fn service(service: super::Service) -> QpType {
    match service {
        super::Service::Rc => QpType::Rc,
        super::Service::Uc => QpType::Uc,
        super::Service::Ud => QpType::Ud,
        super::Service::XrcTarget => QpType::XrcTarget,
    }
}

/// The queue sizes of every queue pair.
pub(super) const CAPS: QpCaps =
    QpCaps { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 4, max_recv_sge: 4, max_inline: 0 };
