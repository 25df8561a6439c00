//! Connections and datagram services: to ask for them, to answer, and to end them.

use super::{
    Id,
    event::{acknowledge_own, wait_if_sync},
    qp,
};
use crate::{
    border::{Bytes, INVALID, Result, given, value, waiting_value},
    c::{
        rdma::{ConnParam, MAX_DEPTH},
        value as v,
    },
};
use core::ffi::c_int;
use rxe_cm::{ConnParams, Ece, ForeignQp, proto::RejectReason};
use rxe_verbs::{QpChange, QpState, QpType, Qpn, limits::MAX_RD_ATOMIC};

/// The program's parameters for its end.
struct Said {
    private_data: Vec<u8>,
    responder_resources: Option<u8>,
    initiator_depth: Option<u8>,
    flow_control: bool,
    retry_count: u8,
    rnr_retry_count: u8,
    qp: Option<ForeignQp>,
    ece: Ece,
}

impl Said {
    /// If it is null all parameters have defaults, as with librdmacm.
    fn new(id: &Id, param: Option<&ConnParam>) -> Self {
        let ece = id.more().ece.local;
        let own = qp::of(id).map(|qp| ForeignQp { qpn: qp.qp.qpn(), srq: qp.qp.srq().is_some() });
        let Some(param) = param else {
            return Self {
                private_data: Vec::new(),
                responder_resources: None,
                initiator_depth: None,
                flow_control: true,
                retry_count: 7,
                rnr_retry_count: 7,
                qp: own,
                ece,
            };
        };
        let depth = |count: u8| (count != MAX_DEPTH).then_some(count.min(MAX_RD_ATOMIC));
        let named = ForeignQp { qpn: Qpn::new(param.qp_num), srq: param.srq != 0 };
        Self {
            private_data: Bytes::new(param.private_data).read(param.private_data_len.into()),
            responder_resources: depth(param.responder_resources),
            initiator_depth: depth(param.initiator_depth),
            flow_control: param.flow_control != 0,
            retry_count: param.retry_count.min(7),
            rnr_retry_count: param.rnr_retry_count.min(7),
            // Whatever the number, 0 too: programs may tell each other of their queue pairs in another way.
            qp: own.or(Some(named)),
            ece,
        }
    }

    fn params(&self) -> ConnParams<'_> {
        ConnParams {
            private_data: &self.private_data,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: self.flow_control,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            qp: self.qp,
            qkey: None,
            ece: self.ece,
        }
    }
}

/// rdma_connect(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_connect(id: Option<&Id>, param: Option<&ConnParam>) -> c_int {
    waiting_value(|| {
        let id = given(id)?;
        let mut said = Said::new(id, param);
        if said.private_data.is_empty() {
            said.private_data.clone_from(&id.more().connect);
        }
        id.cm.connect(&said.params())?;
        wait_if_sync(id)
    })
}

/// rdma_accept(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_accept(id: Option<&Id>, param: Option<&ConnParam>) -> c_int {
    waiting_value(|| {
        let id = given(id)?;
        let mut said = Said::new(id, param);
        // The answer has the vendor that the peer has named, as with librdmacm.
        said.ece.vendor_id = id.more().ece.remote.vendor_id;
        let datagrams = qp::kind_of(id) == QpType::Ud;
        if qp::of(id).is_some() && !datagrams {
            qp::change(id, QpState::Rtr, said.responder_resources, Some(said.rnr_retry_count))?;
            qp::change(id, QpState::Rts, said.initiator_depth, None)?;
        }
        id.cm.accept(&said.params()).inspect_err(|_| qp::fail(id))?;
        if !datagrams {
            return wait_if_sync(id);
        }
        // An answered datagram request is done. Its event belongs to the listener, whose destruction waits until it is acknowledged.
        if id.more().sync {
            acknowledge_own(id);
        }
        Ok(0)
    })
}

/// rdma_establish(3).
#[unsafe(no_mangle)]
extern "C" fn rdma_establish(id: Option<&Id>) -> c_int {
    value(|| {
        let id = given(id)?;
        // If the id has the queue pair, it does this itself.
        if qp::of(id).is_some() {
            return Err(INVALID);
        }
        id.cm.establish()?;
        Ok(0)
    })
}

fn reject(id: Option<&Id>, data: Bytes, len: u8, reason: RejectReason) -> Result<c_int> {
    given(id)?.cm.reject_because(reason, &data.read(len.into()))?;
    Ok(0)
}

/// rdma_reject(3).
#[unsafe(no_mangle)]
extern "C" fn rdma_reject(id: Option<&Id>, data: Bytes, len: u8) -> c_int {
    value(|| reject(id, data, len, RejectReason::CONSUMER_DEFINED))
}

/// rdma_reject_ece(3): refuses because of the connection options offered.
#[unsafe(no_mangle)]
extern "C" fn rdma_reject_ece(id: Option<&Id>, data: Bytes, len: u8) -> c_int {
    value(|| reject(id, data, len, RejectReason::VENDOR_OPTION_NOT_SUPPORTED))
}

/// rdma_notify(3): tells that a packet arrived on the queue pair before the connection was established.
#[unsafe(no_mangle)]
extern "C" fn rdma_notify(id: Option<&Id>, event: c_int) -> c_int {
    value(|| {
        let id = given(id)?;
        if event != v::EVENT_COMM_EST {
            return Err(INVALID);
        }
        id.cm.notify_data()?;
        Ok(0)
    })
}

/// rdma_disconnect(3). The queue pair's work requests are flushed at once. A datagram service has no connection, so that no event follows
/// for a synchronous id to wait for.
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_disconnect(id: Option<&Id>) -> c_int {
    waiting_value(|| {
        let id = given(id)?;
        if let Some(qp) = qp::of(id) {
            qp::apply(qp, &QpChange { state: Some(QpState::Error), ..QpChange::default() })?;
        }
        id.cm.disconnect()?;
        if qp::kind_of(id) == QpType::Ud { Ok(0) } else { wait_if_sync(id) }
    })
}
