//! The modify-QP table: rows of (queue pair types, from, to) with the attributes that each requires and allows.

use super::super::attrs::{
    QpChange, QpState,
    QpType::{self, Gsi, Rc, Uc, Ud, XrcInitiator, XrcTarget},
};
use alloc::{string::String, vec::Vec};
use bitflags::bitflags;

bitflags! {
    /// Attributes named in a modify-QP call; names and values are those of ibv_qp_attr_mask.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct AttrMask: u32 {
        /// The state to go to.
        const STATE = 1;
        /// The state the caller believes the queue pair to be in.
        const CUR_STATE = 1 << 1;
        /// Whether draining raises an event.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// Rights of the peer.
        const ACCESS_FLAGS = 1 << 3;
        /// Index into the P_Key table.
        const PKEY_INDEX = 1 << 4;
        /// Physical port.
        const PORT = 1 << 5;
        /// Queue key.
        const QKEY = 1 << 6;
        /// The path to the peer.
        const AV = 1 << 7;
        /// Path MTU.
        const PATH_MTU = 1 << 8;
        /// Retransmission timeout.
        const TIMEOUT = 1 << 9;
        /// Retries.
        const RETRY_CNT = 1 << 10;
        /// RNR retries.
        const RNR_RETRY = 1 << 11;
        /// First PSN expected.
        const RQ_PSN = 1 << 12;
        /// READs and atomics we may have outstanding.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path.
        const ALT_PATH = 1 << 14;
        /// Timer code of our RNR NAKs.
        const MIN_RNR_TIMER = 1 << 15;
        /// First PSN sent.
        const SQ_PSN = 1 << 16;
        /// READs and atomics the peer may have outstanding.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration state.
        const PATH_MIG_STATE = 1 << 18;
        /// Queue sizes.
        const CAP = 1 << 19;
        /// The peer's queue pair.
        const DEST_QPN = 1 << 20;
    }
}

impl AttrMask {
    /// The names, comma-separated, in the order of ibv_qp_attr_mask; empty for none.
    #[must_use]
    pub fn names(self) -> String {
        self.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
    }
}

impl QpChange {
    /// Which attributes the change names.
    #[must_use]
    pub fn mask(&self) -> AttrMask {
        let given = [
            (self.state.is_some(), AttrMask::STATE),
            (self.current_state.is_some(), AttrMask::CUR_STATE),
            (self.sqd_notify.is_some(), AttrMask::EN_SQD_ASYNC_NOTIFY),
            (self.access.is_some(), AttrMask::ACCESS_FLAGS),
            (self.pkey_index.is_some(), AttrMask::PKEY_INDEX),
            (self.port.is_some(), AttrMask::PORT),
            (self.qkey.is_some(), AttrMask::QKEY),
            (self.av.is_some(), AttrMask::AV),
            (self.path_mtu.is_some(), AttrMask::PATH_MTU),
            (self.timeout.is_some(), AttrMask::TIMEOUT),
            (self.retry_count.is_some(), AttrMask::RETRY_CNT),
            (self.rnr_retry.is_some(), AttrMask::RNR_RETRY),
            (self.rq_psn.is_some(), AttrMask::RQ_PSN),
            (self.max_rd_atomic.is_some(), AttrMask::MAX_QP_RD_ATOMIC),
            (self.alternate.is_some(), AttrMask::ALT_PATH),
            (self.min_rnr_timer.is_some(), AttrMask::MIN_RNR_TIMER),
            (self.sq_psn.is_some(), AttrMask::SQ_PSN),
            (self.max_dest_rd_atomic.is_some(), AttrMask::MAX_DEST_RD_ATOMIC),
            (self.migration.is_some(), AttrMask::PATH_MIG_STATE),
            (self.caps.is_some(), AttrMask::CAP),
            (self.dest_qpn.is_some(), AttrMask::DEST_QPN),
        ];
        given.into_iter().filter(|&(is_given, _)| is_given).map(|(_, mask)| mask).collect()
    }
}

const CONNECTED: &[QpType] = &[Rc, Uc, XrcInitiator, XrcTarget];
const DATAGRAM: &[QpType] = &[Ud, Gsi];
const EVERY: &[QpType] = &[Rc, Uc, Ud, XrcInitiator, XrcTarget, Gsi];

/// The attributes of a transition, besides [`AttrMask::STATE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Attributes that must be given.
    pub required: AttrMask,
    /// Attributes that may be given.
    pub optional: AttrMask,
}

pub(super) struct Row {
    kinds: &'static [QpType],
    from: QpState,
    to: QpState,
    rule: Rule,
}

const fn row(
    kinds: &'static [QpType],
    from: QpState,
    to: QpState,
    required: AttrMask,
    optional: AttrMask,
) -> Row {
    Row { kinds, from, to, rule: Rule { required, optional } }
}

/// Union of attribute sets, usable in constants.
macro_rules! attrs {
    ($($name:ident)|+) => { AttrMask::from_bits_retain(0 $(| AttrMask::$name.bits())+) };
}

const NONE: AttrMask = AttrMask::empty();
/// What a connection may change when it goes to RTS or stays there.
const LIVE: AttrMask = attrs!(CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE);
/// The same for queue pairs with a responder that can send RNR NAKs.
const LIVE_RESPONDER: AttrMask = attrs!(CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE | MIN_RNR_TIMER);
const LIVE_DATAGRAM: AttrMask = attrs!(CUR_STATE | QKEY);
const PATH: AttrMask = attrs!(AV | PATH_MTU | DEST_QPN | RQ_PSN);
const RESPONDER_PATH: AttrMask =
    attrs!(AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER);
const RTR_OPTIONAL: AttrMask = attrs!(ALT_PATH | ACCESS_FLAGS | PKEY_INDEX);
const REQUESTER: AttrMask = attrs!(TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC);
const DRAINED: AttrMask = attrs!(AV | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | PATH_MIG_STATE);
const SQD_REQUESTER: AttrMask =
    DRAINED.union(attrs!(PORT | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC));
const SQD_RESPONDER: AttrMask = DRAINED.union(attrs!(PORT | TIMEOUT | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER));

/// All transitions but those to RESET and to the error state. Every type goes there from every state, without attributes.
/// Source: IBTA vol. 1, table 96, as Linux's core reads it. SQE exists for UC and datagrams only.
static TABLE: &[Row] = {
    use QpState::{Init, Reset, Rtr, Rts, Sqd, Sqe};
    &[
        row(CONNECTED, Reset, Init, attrs!(PKEY_INDEX | PORT | ACCESS_FLAGS), NONE),
        row(&[Ud], Reset, Init, attrs!(PKEY_INDEX | PORT | QKEY), NONE),
        row(&[Gsi], Reset, Init, attrs!(PKEY_INDEX | QKEY), NONE),
        row(CONNECTED, Init, Init, NONE, attrs!(PKEY_INDEX | PORT | ACCESS_FLAGS)),
        row(&[Ud], Init, Init, NONE, attrs!(PKEY_INDEX | PORT | QKEY)),
        row(&[Gsi], Init, Init, NONE, attrs!(PKEY_INDEX | QKEY)),
        row(&[Rc, XrcTarget], Init, Rtr, RESPONDER_PATH, RTR_OPTIONAL),
        row(&[Uc, XrcInitiator], Init, Rtr, PATH, RTR_OPTIONAL),
        row(DATAGRAM, Init, Rtr, NONE, attrs!(PKEY_INDEX | QKEY)),
        row(&[Rc], Rtr, Rts, REQUESTER, LIVE_RESPONDER),
        row(&[Uc], Rtr, Rts, AttrMask::SQ_PSN, LIVE),
        row(&[XrcInitiator], Rtr, Rts, REQUESTER, LIVE),
        row(&[XrcTarget], Rtr, Rts, attrs!(TIMEOUT | SQ_PSN), LIVE_RESPONDER),
        row(DATAGRAM, Rtr, Rts, AttrMask::SQ_PSN, LIVE_DATAGRAM),
        row(&[Rc, XrcTarget], Rts, Rts, NONE, LIVE_RESPONDER),
        row(&[Uc, XrcInitiator], Rts, Rts, NONE, LIVE),
        row(DATAGRAM, Rts, Rts, NONE, LIVE_DATAGRAM),
        row(EVERY, Rts, Sqd, NONE, AttrMask::EN_SQD_ASYNC_NOTIFY),
        row(&[Rc], Sqd, Sqd, NONE, SQD_REQUESTER.union(SQD_RESPONDER)),
        row(&[Uc], Sqd, Sqd, NONE, DRAINED),
        row(&[XrcInitiator], Sqd, Sqd, NONE, SQD_REQUESTER),
        row(&[XrcTarget], Sqd, Sqd, NONE, SQD_RESPONDER),
        row(DATAGRAM, Sqd, Sqd, NONE, attrs!(PKEY_INDEX | QKEY)),
        row(&[Rc, XrcTarget], Sqd, Rts, NONE, LIVE_RESPONDER),
        row(&[Uc, XrcInitiator], Sqd, Rts, NONE, LIVE),
        row(DATAGRAM, Sqd, Rts, NONE, LIVE_DATAGRAM),
        row(&[Uc], Sqe, Rts, NONE, attrs!(CUR_STATE | ACCESS_FLAGS)),
        row(DATAGRAM, Sqe, Rts, NONE, LIVE_DATAGRAM),
    ]
};

/// The attributes of the transition from `from` to `to`, or `None` if there is no such transition.
#[must_use]
pub fn rule(qp_type: QpType, from: QpState, to: QpState) -> Option<Rule> {
    if matches!(to, QpState::Reset | QpState::Error) {
        return Some(Rule { required: NONE, optional: NONE });
    }
    rows(qp_type, from, to).next().map(|row| row.rule)
}

/// The rows of a transition. A test checks that there is never more than one, because then their order would matter.
pub(super) fn rows(qp_type: QpType, from: QpState, to: QpState) -> impl Iterator<Item = &'static Row> {
    TABLE.iter().filter(move |row| row.kinds.contains(&qp_type) && row.from == from && row.to == to)
}
