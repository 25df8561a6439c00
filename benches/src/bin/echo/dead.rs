//! Queue pairs of the client that have requests outstanding to peers in the error state.

use crate::Plan;
use benches::ends::{ALL, Result, Way, bring_up};
use rxe_verbs::{
    AddressVector, Context, Cq, Mr, Pd, Qp, QpChange, QpInit, QpState, QpType, Qpn, Remote, SendOp, SendWr,
    Sge,
};
use serde_json::{Value, json};

/// Number of requests posted to each.
const REQUESTS: u64 = 4;
/// Size of a request in bytes.
const LARGE: u32 = 1 << 20;

/// Two queue pairs: one for READs, one for WRITEs. Their completions are not polled.
pub(crate) struct Dead {
    qps: Vec<Qp>,
    mr: Mr,
    _cq: Cq,
}

impl Dead {
    /// Creates the queue pairs, in RESET, if the plan has any.
    pub(crate) fn new(plan: Plan, context: &Context, pd: &Pd) -> Result<Option<Self>> {
        if plan.dead.is_none() {
            return Ok(None);
        }
        let cq = context.create_cq(16, None)?;
        let qp = || pd.create_qp(&QpInit::new(QpType::Rc, &cq));
        Ok(Some(Self { qps: vec![qp()?, qp()?], mr: pd.alloc_mr(LARGE as usize, ALL)?, _cq: cq }))
    }

    /// The data that the other process needs to connect them.
    pub(crate) fn card(&self) -> Value {
        self.qps.iter().map(|qp| json!(qp.qpn().value())).collect()
    }

    /// Connects them to the queue pairs of the other process.
    pub(crate) fn connect(&self, card: &Value, av: AddressVector, timeout: u8) -> Result<()> {
        let numbers = card.as_array().ok_or("no dead queue pairs")?;
        for (qp, number) in self.qps.iter().zip(numbers) {
            let peer = Qpn::new(number.as_u64().unwrap_or_default() as u32);
            bring_up(qp, &Way { timeout, reads: 16, ..Way::to(peer, av) })?;
        }
        Ok(())
    }

    /// For the server: moves its queue pairs to the error state, so that they no longer answer.
    pub(crate) fn die(&self) -> Result<()> {
        for qp in &self.qps {
            qp.modify(&QpChange { state: Some(QpState::Error), ..QpChange::default() })?;
        }
        Ok(())
    }

    /// For the client: posts requests that are never answered.
    pub(crate) fn post(&self) -> Result<()> {
        // The peer checks neither address nor key.
        let remote = Remote { addr: self.mr.addr(), rkey: self.mr.rkey() };
        let sges = [Sge { addr: self.mr.addr(), len: LARGE, lkey: self.mr.lkey() }];
        for (qp, op) in self.qps.iter().zip([SendOp::Read(remote), SendOp::Write(remote)]) {
            for wr_id in 0..REQUESTS {
                qp.post_send(&SendWr::new(wr_id, op, &sges))?;
            }
        }
        Ok(())
    }
}
