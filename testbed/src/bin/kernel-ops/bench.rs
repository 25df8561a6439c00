//! The two sides: our objects here, the kernel's through the agent; a fresh pair of queue pairs for each case.

use crate::pair::Pair;
use rxe_verbs::{Access, Context, Gid, Mtu, Pd, Psn, Qkey, Qp, QpChange, QpInit, QpState, QpType, Qpn, Srq};
use serde_json::{Value, json};
use std::net::IpAddr;
use testbed::agent::{Agent, Failure};

/// Bytes of each side's region.
pub(crate) const SIZE: usize = 2 << 20;
/// The Q_Key of both sides' datagram queue pairs.
pub(crate) const QKEY: u32 = 0x1111_1111;
/// READs and atomics outstanding: as many as ours want before they ask in parts.
const READS: u8 = 16;
const OUR_PSN: u32 = 0xff_fff0;
const THEIR_PSN: u32 = 0x00_1234;
const RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// How a pair is made.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) service: QpType,
    /// Our queue pair draws from a shared receive queue.
    pub(crate) our_srq: bool,
    /// The kernel's does.
    pub(crate) their_srq: bool,
    /// Our timeout code. Emulated machines stall, on a busy host for more than 4 s: all retries together are 17 s with code 19.
    pub(crate) our_timeout: u8,
    /// The kernel's timeout code.
    pub(crate) their_timeout: u8,
    /// Both sides' retries.
    pub(crate) retries: u8,
    /// Both sides' RNR retries.
    pub(crate) rnr_retries: u8,
    /// Kernel 6.1 lacks what is tried, and nothing answers: [`HASTY`] there.
    pub(crate) new: bool,
}

/// Reliable, patient.
pub(crate) const RC: Setup = Setup {
    service: QpType::Rc,
    our_srq: false,
    their_srq: false,
    our_timeout: 19,
    their_timeout: 16,
    retries: 7,
    rnr_retries: 7,
    new: false,
};
/// Reliable, soon at the end of its retries: where no answer is to come. (7 retries are without end for the kernel.)
pub(crate) const HASTY: Setup = Setup { our_timeout: 17, their_timeout: 17, retries: 2, ..RC };
/// Where an answer has to come before there are none any more: all retries together are 4.3 s.
pub(crate) const AT_LAST: Setup = Setup { our_timeout: 18, their_timeout: 18, retries: 3, ..RC };
/// Of what kernels have since 6.2.
pub(crate) const NEW: Setup = Setup { new: true, ..RC };
/// Soon at the end of its RNR retries, which are counted: nothing is to be sent again for a silence, of 8.6 s here.
pub(crate) const UNREADY: Setup = Setup { our_timeout: 21, their_timeout: 21, rnr_retries: 1, ..RC };
/// Unreliable connection.
pub(crate) const UC: Setup = Setup { service: QpType::Uc, ..RC };
/// Datagrams.
pub(crate) const UD: Setup = Setup { service: QpType::Ud, ..RC };

/// What outlives the cases.
pub(crate) struct Bench {
    agent: Agent,
    device: String,
    context: Context,
    pd: Pd,
    ours: IpAddr,
    theirs: IpAddr,
    /// Whether the kernel is 6.1: without ATOMIC WRITE and FLUSH, and with some habits of its own.
    old: bool,
}

impl Bench {
    pub(crate) fn open(agent: &str, device: &str, ours: IpAddr, theirs: IpAddr) -> Result<Self, Failure> {
        let context = Context::open_address(ours)?;
        let pd = context.alloc_pd()?;
        let mut agent = Agent::connect(agent)?;
        let hello = agent.call("hello", &json!({}))?;
        let old = hello["kernel"].as_str().is_some_and(|release| release.starts_with("6.1."));
        Ok(Self { agent, device: device.to_owned(), context, pd, ours, theirs, old })
    }

    /// Connected queue pairs with a region on each side.
    pub(crate) fn pair(&mut self, setup: &Setup) -> Result<Pair<'_>, Failure> {
        let setup = if setup.new && self.old { &HASTY } else { setup };
        while self.context.try_get_async_event().is_some() {}
        let mr = self.pd.alloc_mr(SIZE, RIGHTS | Access::MW_BIND)?;
        let cq = self.context.create_cq(512, None)?;
        let srq = if setup.our_srq { Some(self.pd.create_srq(64, 4)?) } else { None };
        let qp = self.our_qp(setup, &cq, srq.as_ref())?;
        let agent = &mut self.agent;
        let ctx = agent.number("open", &json!({ "dev": self.device }), "handle")?;
        let pd = agent.number("pd", &json!({ "ctx": ctx }), "handle")?;
        let mut rights = vec!["LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC"];
        if !self.old {
            // FLUSH_PERSISTENT is for persistent memory only: the kernel refuses it for any other.
            rights.push("FLUSH_GLOBAL");
        }
        let mut region_rights = rights.clone();
        region_rights.push("MW_BIND");
        let region = agent.call("mr", &json!({ "pd": pd, "length": SIZE, "access": region_rights }))?;
        let their_cq = agent.number("cq", &json!({ "ctx": ctx, "cqe": 512 }), "handle")?;
        let their_srq = if setup.their_srq {
            Some(agent.number("srq", &json!({ "pd": pd, "max_wr": 64 }), "handle")?)
        } else {
            None
        };
        let kind = match setup.service {
            QpType::Uc => "UC",
            QpType::Ud => "UD",
            _ => "RC",
        };
        let order = json!({ "pd": pd, "send_cq": their_cq, "type": kind, "srq": their_srq });
        let their = agent.call("qp", &order)?;
        let (their_qp, their_qpn) = (number(&their["handle"])?, u32::try_from(number(&their["qpn"])?)?);
        let av =
            json!({ "dgid": self.ours.to_string(), "sgid": self.theirs.to_string(), "dev": self.device });
        if setup.service == QpType::Ud {
            agent.call("activate", &json!({ "qp": their_qp, "qkey": QKEY, "sq_psn": THEIR_PSN }))?;
            activate(&qp)?;
        } else {
            agent.call(
                "connect",
                &json!({
                    "qp": their_qp, "dest_qpn": qp.qpn().value(), "rq_psn": OUR_PSN, "sq_psn": THEIR_PSN,
                    "access": rights, "max_rd_atomic": READS, "max_dest_rd_atomic": READS, "av": av,
                    "timeout": setup.their_timeout, "retry_cnt": setup.retries, "rnr_retry": setup.rnr_retries,
                }),
            )?;
            connect(&self.context, &qp, setup, Gid::from(self.theirs), Qpn::new(their_qpn))?;
        }
        let their_ah = agent.number("ah", &json!({ "pd": pd, "av": av }), "handle")?;
        Ok(Pair {
            agent,
            context: self.context.clone(),
            pd: self.pd.clone(),
            qp,
            cq,
            srq,
            mr,
            our_ip: self.ours,
            their_ip: self.theirs,
            old: self.old,
            their_ctx: ctx,
            their_pd: pd,
            their_ah,
            their_qp,
            their_qpn: Qpn::new(their_qpn),
            their_cq,
            their_srq,
            their_mr: number(&region["handle"])?,
            their_addr: number(&region["addr"])?,
            their_rkey: u32::try_from(number(&region["rkey"])?)?,
            notes: Vec::new(),
            verdict: "ok",
        })
    }

    fn our_qp(&self, setup: &Setup, cq: &rxe_verbs::Cq, srq: Option<&Srq>) -> Result<Qp, Failure> {
        Ok(self.pd.create_qp(&QpInit { srq, ..QpInit::new(setup.service, cq) })?)
    }
}

fn number(value: &Value) -> Result<u64, Failure> {
    value.as_u64().ok_or_else(|| format!("{value} is not a number").into())
}

fn activate(qp: &Qp) -> Result<(), Failure> {
    let change = QpChange::default();
    qp.modify(&QpChange {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        qkey: Some(Qkey(QKEY)),
        ..change
    })?;
    qp.modify(&QpChange { state: Some(QpState::Rtr), ..change })?;
    qp.modify(&QpChange { state: Some(QpState::Rts), sq_psn: Some(Psn::new(OUR_PSN)), ..change })?;
    Ok(())
}

fn connect(context: &Context, qp: &Qp, setup: &Setup, gid: Gid, remote: Qpn) -> Result<(), Failure> {
    let change = QpChange::default();
    let reliable = setup.service == QpType::Rc;
    let only_reliable = |value: u8| reliable.then_some(value);
    qp.modify(&QpChange {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: Some(RIGHTS),
        ..change
    })?;
    qp.modify(&QpChange {
        state: Some(QpState::Rtr),
        av: Some(context.address_vector(0, gid)?),
        path_mtu: Some(Mtu::M1024),
        dest_qpn: Some(remote),
        rq_psn: Some(Psn::new(THEIR_PSN)),
        max_dest_rd_atomic: only_reliable(READS),
        min_rnr_timer: only_reliable(12),
        ..change
    })?;
    qp.modify(&QpChange {
        state: Some(QpState::Rts),
        sq_psn: Some(Psn::new(OUR_PSN)),
        timeout: only_reliable(setup.our_timeout),
        retry_count: only_reliable(setup.retries),
        rnr_retry: only_reliable(setup.rnr_retries),
        max_rd_atomic: only_reliable(READS),
        ..change
    })?;
    Ok(())
}
