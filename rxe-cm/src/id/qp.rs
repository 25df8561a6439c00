//! The queue pair of an id.

use super::{CmId, UDP_QKEY};
use crate::{
    agent::{self, Agreed, Exchange},
    error::CmError,
};
use rxe_core::num::Psn;
use rxe_verbs::{Pd, Qkey, Qp, QpChange, QpInit, QpState, QpType};
use std::sync::Arc;

impl CmId {
    /// Makes a queue pair that the id manages from now on (rdma_create_qp). For a connection it can be given receives at once; for
    /// datagrams it can send and receive. `init.qp_type` must be that of the id.
    ///
    /// # Errors
    /// [`CmError::State`] if the device is not known or it has a queue pair, [`CmError::Device`],
    /// [`CmError::Argument`] for a wrong kind, [`CmError::Create`], [`CmError::Modify`].
    pub fn create_qp(&self, pd: &Pd, init: &QpInit<'_>) -> Result<Arc<Qp>, CmError> {
        let (kind, device, qkey, index) = self.with(|id| match (&id.context, &id.qp) {
            (Some(context), None) => {
                let index = id.path.map_or(0, |path| path.pkey_index);
                Ok((id.qp_type, context.clone(), id.qkey.unwrap_or(UDP_QKEY), index))
            }
            _ => Err(id.refuse("make a queue pair")),
        })?;
        if !pd.context().shares_port_with(&device) || pd.context().device().name() != device.device().name() {
            let (have, want) = (pd.context().device().name().to_owned(), device.device().name().to_owned());
            return Err(CmError::Device { have, want });
        }
        if init.qp_type != kind {
            return Err(CmError::Argument(format!(
                "a {:?} queue pair for an id of kind {kind:?}",
                init.qp_type
            )));
        }
        let qp = pd.create_qp(init)?;
        match kind {
            QpType::Ud => make_ready(&qp, index, qkey)?,
            _ => qp.modify(&agent::init(index))?,
        }
        let qp = Arc::new(qp);
        self.with(|id| {
            id.qkey = (kind == QpType::Ud).then_some(qkey);
            id.qp = Some(Arc::clone(&qp));
            Ok(())
        })?;
        Ok(qp)
    }

    /// Ends the management of a queue pair (rdma_destroy_qp). The queue pair is destroyed when its last handle is dropped.
    ///
    /// # Errors
    /// [`CmError::Forked`].
    pub fn release_qp(&self) -> Result<Option<Arc<Qp>>, CmError> {
        self.with(|id| Ok(id.qp.take()))
    }

    /// The attributes that a queue pair managed by the program needs to reach `state` (rdma_init_qp_attr): Init, Rtr or Rts.
    /// Rtr and Rts of a connection are known from its request or its answer on.
    ///
    /// # Errors
    /// [`CmError::State`] if they are not known yet, [`CmError::Argument`] for other states.
    pub fn qp_change(&self, state: QpState) -> Result<QpChange, CmError> {
        self.with(|id| {
            let kind = id.qp_type;
            if id.exchange == Exchange::Removed {
                return Err(id.refuse("tell a queue pair's attributes"));
            }
            let index = id.path.map_or(0, |path| path.pkey_index);
            if kind == QpType::Ud {
                return datagram_change(state, index, id.qkey.unwrap_or(UDP_QKEY));
            }
            let own_timeout = id.options.ack_timeout;
            match (state, id.agreed.map(|agreed| Agreed { own_timeout, ..agreed }), id.exchange) {
                (QpState::Init, None, _) => Ok(agent::init(index)),
                (QpState::Init, Some(agreed), _) => Ok(agreed.enter_init(kind)),
                (QpState::Rtr, Some(agreed), Exchange::Connection(_)) => Ok(agreed.enter_rtr(kind)),
                (QpState::Rts, Some(agreed), Exchange::Connection(_)) => Ok(agreed.enter_rts(kind)),
                (QpState::Rtr | QpState::Rts, ..) => Err(id.refuse("tell a queue pair's attributes")),
                (other, ..) => Err(CmError::Argument(format!("no attributes for state {other:?}"))),
            }
        })
    }
}

fn datagram_change(state: QpState, index: u16, qkey: Qkey) -> Result<QpChange, CmError> {
    let none = QpChange { state: Some(state), ..QpChange::default() };
    match state {
        QpState::Init => Ok(QpChange { pkey_index: Some(index), port: Some(1), qkey: Some(qkey), ..none }),
        QpState::Rtr => Ok(none),
        QpState::Rts => Ok(QpChange { sq_psn: Some(Psn::new(0)), ..none }),
        other => Err(CmError::Argument(format!("no attributes for state {other:?}"))),
    }
}

fn make_ready(qp: &Qp, index: u16, qkey: Qkey) -> Result<(), CmError> {
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        qp.modify(&datagram_change(state, index, qkey)?)?;
    }
    Ok(())
}
