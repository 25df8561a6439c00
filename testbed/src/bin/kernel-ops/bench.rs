//! The two sides: our objects here, the kernel's through the agent; a fresh pair of queue pairs for each case.

use rxe_verbs::{
    Access, Completion, Context, Cq, Gid, Mr, Mtu, Pd, Psn, Qp, QpChange, QpInit, QpState, QpType, Qpn,
};
use serde_json::{Value, json};
use std::{net::IpAddr, time::Duration};
use testbed::agent::{Agent, Failure};

/// Bytes of each side's region.
pub(crate) const SIZE: usize = 2 << 20;
const OUR_PSN: u32 = 0xff_fff0;
const THEIR_PSN: u32 = 0x00_1234;

/// What outlives the cases.
pub(crate) struct Bench {
    agent: Agent,
    device: String,
    context: Context,
    pd: Pd,
    ours: IpAddr,
    theirs: String,
    /// Whether the kernel has ATOMIC WRITE and FLUSH.
    new: bool,
}

/// A connected pair with a region on each side.
pub(crate) struct Pair<'a> {
    pub(crate) agent: &'a mut Agent,
    pub(crate) qp: Qp,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
    pub(crate) their_qp: u64,
    pub(crate) their_cq: u64,
    pub(crate) their_mr: u64,
    pub(crate) their_addr: u64,
    pub(crate) their_rkey: u32,
    handles: Vec<u64>,
}

impl Bench {
    pub(crate) fn open(
        agent: &str,
        device: &str,
        ours: IpAddr,
        theirs: &str,
        new: bool,
    ) -> Result<Self, Failure> {
        let context = Context::open_address(ours)?;
        let pd = context.alloc_pd()?;
        let (device, theirs) = (device.to_owned(), theirs.to_owned());
        Ok(Self { agent: Agent::connect(agent)?, device, context, pd, ours, theirs, new })
    }

    pub(crate) fn pair(&mut self) -> Result<Pair<'_>, Failure> {
        let rights = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL
            | Access::FLUSH_PERSISTENT;
        let mr = self.pd.alloc_mr(SIZE, rights)?;
        let cq = self.context.create_cq(256, None)?;
        let qp = self.pd.create_qp(&QpInit::new(QpType::Rc, &cq))?;
        let agent = &mut self.agent;
        let ctx = agent.number("open", &json!({ "dev": self.device }), "handle")?;
        let pd = agent.number("pd", &json!({ "ctx": ctx }), "handle")?;
        let mut access = vec!["LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC"];
        if self.new {
            // FLUSH_PERSISTENT is for persistent memory only: the kernel refuses it for any other.
            access.push("FLUSH_GLOBAL");
        }
        let region = agent.call("mr", &json!({ "pd": pd, "length": SIZE, "access": access }))?;
        let their_cq = agent.number("cq", &json!({ "ctx": ctx }), "handle")?;
        let their = agent.call("qp", &json!({ "pd": pd, "send_cq": their_cq }))?;
        let number = |value: &Value| value.as_u64().ok_or("not a number");
        let (their_qp, their_qpn) = (number(&their["handle"])?, number(&their["qpn"])?);
        agent.call(
            "connect",
            &json!({
                "qp": their_qp, "dest_qpn": qp.qpn().value(), "rq_psn": OUR_PSN, "sq_psn": THEIR_PSN,
                "access": access, "max_rd_atomic": 4, "max_dest_rd_atomic": 4,
                "av": { "dgid": self.ours.to_string(), "sgid": self.theirs, "dev": self.device },
            }),
        )?;
        let remote: IpAddr = self.theirs.parse()?;
        connect(&self.context, &qp, Gid::from(remote), Qpn::new(u32::try_from(their_qpn)?))?;
        let their_mr = number(&region["handle"])?;
        Ok(Pair {
            agent,
            qp,
            cq,
            mr,
            their_qp,
            their_cq,
            their_mr,
            their_addr: number(&region["addr"])?,
            their_rkey: u32::try_from(number(&region["rkey"])?)?,
            handles: vec![their_qp, their_cq, their_mr, pd, ctx],
        })
    }
}

fn connect(context: &Context, qp: &Qp, gid: Gid, remote: Qpn) -> Result<(), Failure> {
    let access = Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::FLUSH_GLOBAL
        | Access::FLUSH_PERSISTENT;
    qp.modify(&QpChange {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: Some(access),
        ..QpChange::default()
    })?;
    qp.modify(&QpChange {
        state: Some(QpState::Rtr),
        av: Some(context.address_vector(0, gid)?),
        path_mtu: Some(Mtu::M1024),
        dest_qpn: Some(remote),
        rq_psn: Some(Psn::new(THEIR_PSN)),
        max_dest_rd_atomic: Some(4),
        min_rnr_timer: Some(12),
        ..QpChange::default()
    })?;
    qp.modify(&QpChange {
        state: Some(QpState::Rts),
        sq_psn: Some(Psn::new(OUR_PSN)),
        timeout: Some(16),
        retry_count: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(4),
        ..QpChange::default()
    })?;
    Ok(())
}

impl Pair<'_> {
    /// Our next completion.
    pub(crate) fn ours(&self) -> Result<Completion, Failure> {
        self.cq.poll_within(Duration::from_secs(20))?.ok_or_else(|| "no completion on our side".into())
    }

    /// The kernel's next completion.
    pub(crate) fn theirs(&mut self) -> Result<Value, Failure> {
        let mut wcs = self.agent.call("poll_cq", &json!({ "cq": self.their_cq, "timeout_ms": 20_000 }))?;
        match wcs.as_array_mut().and_then(Vec::pop) {
            Some(wc) => Ok(wc),
            None => Err("no completion on the kernel's side".into()),
        }
    }

    /// Lets the kernel post one send request.
    pub(crate) fn they_send(&mut self, wr: &Value) -> Result<(), Failure> {
        self.agent.call("post_send", &json!({ "qp": self.their_qp, "wrs": [wr] }))?;
        Ok(())
    }

    /// Lets the kernel post one receive of `len` bytes at `offset` of its region.
    pub(crate) fn they_receive(&mut self, offset: usize, len: usize) -> Result<(), Failure> {
        let sge = json!([{ "mr": self.their_mr, "offset": offset, "length": len }]);
        self.agent.call("post_recv", &json!({ "qp": self.their_qp, "wrs": [{ "wr_id": 7, "sge": sge }] }))?;
        Ok(())
    }

    /// Fills part of the kernel's region with the pattern of `seed`.
    pub(crate) fn they_fill(&mut self, offset: usize, len: usize, seed: u64) -> Result<(), Failure> {
        let args = json!({ "mr": self.their_mr, "offset": offset, "length": len, "seed": seed });
        self.agent.call("mem_fill", &args)?;
        Ok(())
    }

    /// Lets the kernel's side compare part of its region with the pattern of `seed`.
    pub(crate) fn they_check(&mut self, offset: usize, len: usize, seed: u64) -> Result<(), Failure> {
        let args = json!({ "mr": self.their_mr, "offset": offset, "length": len, "seed": seed });
        let verdict = self.agent.call("mem_check", &args)?;
        if verdict["equal"] == true { Ok(()) } else { Err(format!("their memory: {verdict}").into()) }
    }

    /// Eight bytes of the kernel's region, little-endian.
    pub(crate) fn their_u64(&mut self, offset: usize) -> Result<u64, Failure> {
        let args = json!({ "mr": self.their_mr, "offset": offset, "length": 8, "encoding": "hex" });
        let answer = self.agent.call("mem_read", &args)?;
        let text = answer["data"].as_str().ok_or("no data")?;
        Ok(u64::from_str_radix(text, 16)?.swap_bytes())
    }

    /// Sets eight bytes of the kernel's region, little-endian.
    pub(crate) fn set_their_u64(&mut self, offset: usize, value: u64) -> Result<(), Failure> {
        let hex = format!("{:016x}", value.swap_bytes());
        self.agent.call("mem_write", &json!({ "mr": self.their_mr, "offset": offset, "hex": hex }))?;
        Ok(())
    }
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        for handle in self.handles.drain(..) {
            if let Err(error) = self.agent.call("close", &json!({ "handle": handle })) {
                eprintln!("note: {error}");
            }
        }
    }
}
