//! One connected pair: orders to both sides, and what is expected of them.

use rxe_verbs::{
    Completion, Context, Cq, Key, Mr, Pd, Qp, QpStats, Qpn, RecvWr, Remote, SendOp, SendWr, Sge, Srq,
    WcOpcode, WcStatus,
};
use serde_json::{Value, json};
use std::{net::IpAddr, thread::sleep, time::Duration};
use testbed::agent::{Agent, Failure};

/// How long anything of the other end may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Waits for a receive that is posted late, at least: more than the retries for a silent peer, of which none may be spent by it.
pub(crate) const ROUNDS: u64 = 20;
/// How long one look for a completion takes, and the sleep behind it.
const LOOK: Duration = Duration::from_micros(200);
const SLEEP: Duration = Duration::from_micros(500);
/// Looks for a completion until it counts as missing.
const LOOKS: u128 = PATIENCE.as_micros() / (LOOK.as_micros() + SLEEP.as_micros());

/// Two queue pairs with a region on each side, ours and the kernel's.
pub(crate) struct Pair<'a> {
    pub(crate) agent: &'a mut Agent,
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) qp: Qp,
    pub(crate) cq: Cq,
    pub(crate) srq: Option<Srq>,
    pub(crate) mr: Mr,
    pub(crate) our_ip: IpAddr,
    pub(crate) their_ip: IpAddr,
    /// Whether the kernel is 6.1.
    pub(crate) old: bool,
    pub(crate) their_ctx: u64,
    pub(crate) their_pd: u64,
    /// The kernel's address handle of us.
    pub(crate) their_ah: u64,
    pub(crate) their_qp: u64,
    pub(crate) their_qpn: Qpn,
    pub(crate) their_cq: u64,
    pub(crate) their_srq: Option<u64>,
    pub(crate) their_mr: u64,
    pub(crate) their_addr: u64,
    pub(crate) their_rkey: u32,
    /// What a reader of the result should know.
    pub(crate) notes: Vec<String>,
    /// How to call a good end: `ok`, or see [`Self::deviates`], [`Self::lacks`], [`Self::fell_silent`] and [`Self::skip`].
    pub(crate) verdict: &'static str,
}

/// The verdict of a case that is to be played once more.
pub(crate) const SILENT: &str = "silent";

impl Pair<'_> {
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// The kernel does it in its own way, which the case expects.
    pub(crate) fn deviates(&mut self, how: &str) {
        self.verdict = "deviates";
        self.note(how);
    }

    /// The kernel does not have what was tried, and said so as it should.
    pub(crate) fn lacks(&mut self, how: &str) -> Result<(), Failure> {
        self.verdict = "absent";
        self.note(how);
        Ok(())
    }

    /// The kernel answered no more, after so many requests: to be tried once more.
    pub(crate) fn fell_silent(&mut self, done: usize) -> Result<(), Failure> {
        self.verdict = SILENT;
        self.note(format!("kernel 6.12 fell silent after {done}, and did not when tried again"));
        Ok(())
    }

    /// This was not tried.
    pub(crate) fn skip(&mut self, why: &str) -> Result<(), Failure> {
        self.verdict = "skipped";
        self.note(why);
        Ok(())
    }

    /// Our next completion. Patience is looks, not time: who was stopped, with the guest or without it, or found no processor
    /// for as long, has not looked and has sent nothing again meanwhile.
    pub(crate) fn ours(&self) -> Result<Completion, Failure> {
        for _ in 0..LOOKS {
            if let Some(wc) = self.cq.poll_within(LOOK)? {
                return Ok(wc);
            }
            // Waits asleep: the guests need the processors.
            sleep(SLEEP);
        }
        Err(format!("no completion on our side; it {}", self.known()).into())
    }

    /// Waits until our queue pair has counted so many, as patiently: of what has to have happened before the case goes on.
    pub(crate) fn we_count(&self, least: u64, what: &str, count: fn(&QpStats) -> u64) -> Result<(), Failure> {
        let mut found = 0;
        for _ in 0..LOOKS {
            found = count(&self.qp.stats());
            if found >= least {
                return Ok(());
            }
            sleep(LOOK + SLEEP);
        }
        Err(format!("{found} {what}, not {least}; ours {}", self.known()).into())
    }

    /// Our next completion, which is a success of `opcode`.
    pub(crate) fn we_did(&self, opcode: WcOpcode) -> Result<Completion, Failure> {
        self.we_ended(WcStatus::Success, opcode)
    }

    /// Our next completion, which has this status (and, if it is success, this opcode).
    pub(crate) fn we_ended(&self, status: WcStatus, opcode: WcOpcode) -> Result<Completion, Failure> {
        let wc = self.ours()?;
        if wc.status == status && (status != WcStatus::Success || wc.opcode == opcode) {
            Ok(wc)
        } else {
            Err(format!("our completion is {wc:?}, expected {status:?} of {opcode:?}").into())
        }
    }

    /// The kernel's next `count` completions.
    pub(crate) fn theirs_many(&mut self, count: usize) -> Result<Vec<Value>, Failure> {
        let wcs = self.theirs_up_to(count)?;
        if wcs.len() == count { Ok(wcs) } else { Err(self.too_few(wcs.len(), count)) }
    }

    /// The kernel's next completions: `count`, or those that came while we had patience.
    pub(crate) fn theirs_up_to(&mut self, count: usize) -> Result<Vec<Value>, Failure> {
        let patience = u64::try_from(PATIENCE.as_millis())?;
        let order = json!({ "cq": self.their_cq, "count": count, "timeout_ms": patience });
        let wcs = self.agent.call("poll_cq", &order)?;
        Ok(wcs.as_array().cloned().unwrap_or_default())
    }

    /// The kernel stopped completing: what our side knows of it.
    pub(crate) fn too_few(&self, done: usize, count: usize) -> Failure {
        format!("{done} of {count} completions on the kernel's side; ours {}", self.known()).into()
    }

    /// What our queue pair knows of itself.
    fn known(&self) -> String {
        let stats = self.qp.stats();
        let counted: Vec<_> = stats.each().filter(|(_, value)| *value > 0).collect();
        format!("is in {:?}, {counted:?}", self.qp.state())
    }

    /// The kernel's next completion.
    pub(crate) fn theirs(&mut self) -> Result<Value, Failure> {
        Ok(self.theirs_many(1)?.remove(0))
    }

    /// The kernel's next completion, which is a success of `opcode`.
    pub(crate) fn they_did(&mut self, opcode: &str) -> Result<Value, Failure> {
        self.they_ended("SUCCESS", opcode)
    }

    /// The kernel's next completion, which has this status (and, if it is success, this opcode).
    pub(crate) fn they_ended(&mut self, status: &str, opcode: &str) -> Result<Value, Failure> {
        let wc = self.theirs()?;
        if wc["status"] == status && (status != "SUCCESS" || wc["opcode"] == opcode) {
            Ok(wc)
        } else {
            Err(format!("their completion is {wc}, expected {status} of {opcode}").into())
        }
    }

    /// Neither side has a completion left.
    pub(crate) fn nothing_more(&mut self) -> Result<(), Failure> {
        if let Some(wc) = self.cq.poll_within(Duration::ZERO)? {
            return Err(format!("one completion too many on our side: {wc:?}").into());
        }
        let left = self.agent.call("poll_cq", &json!({ "cq": self.their_cq }))?;
        if left.as_array().is_some_and(Vec::is_empty) {
            Ok(())
        } else {
            Err(format!("one completion too many on the kernel's side: {left}").into())
        }
    }

    /// `len` bytes of our region as the elements of a request: none for nothing.
    pub(crate) fn sges(&self, offset: usize, len: usize) -> Result<Vec<Sge>, Failure> {
        let len = u32::try_from(len)?;
        Ok(if len == 0 { Vec::new() } else { vec![self.mr.sge(offset, len)] })
    }

    /// We post a send request with `len` bytes at `offset` of our region.
    pub(crate) fn post(&self, op: SendOp, offset: usize, len: usize) -> Result<(), Failure> {
        Ok(self.qp.post_send(&SendWr::new(1, op, &self.sges(offset, len)?))?)
    }

    /// We post a receive of `len` bytes at `offset` of our region.
    pub(crate) fn we_receive(&self, wr_id: u64, offset: usize, len: usize) -> Result<(), Failure> {
        let sges = self.sges(offset, len)?;
        let wr = RecvWr { wr_id, sges: &sges };
        match &self.srq {
            Some(srq) => srq.post_recv(&wr)?,
            None => self.qp.post_recv(&wr)?,
        }
        Ok(())
    }

    /// A place in the kernel's region.
    pub(crate) fn there(&self, offset: usize) -> Remote {
        Remote { addr: self.their_addr + offset as u64, rkey: Key(self.their_rkey) }
    }

    /// `len` bytes of the kernel's region as the elements of its request.
    pub(crate) fn their_sges(&self, offset: usize, len: usize) -> Value {
        if len == 0 { json!([]) } else { json!([{ "mr": self.their_mr, "offset": offset, "length": len }]) }
    }

    /// Lets the kernel post send requests.
    pub(crate) fn they_post(&mut self, wrs: &[Value]) -> Result<(), Failure> {
        self.agent.call("post_send", &json!({ "qp": self.their_qp, "wrs": wrs }))?;
        Ok(())
    }

    /// A request of the kernel on `len` bytes at `offset` of its region and on a place of ours.
    pub(crate) fn their_wr(&self, opcode: &str, offset: usize, len: usize, here: Remote) -> Value {
        let sge = self.their_sges(offset, len);
        json!({ "opcode": opcode, "sge": sge, "remote_addr": here.addr, "rkey": here.rkey.0 })
    }

    /// Lets the kernel post a receive of `len` bytes at `offset` of its region.
    pub(crate) fn they_receive(&mut self, offset: usize, len: usize) -> Result<(), Failure> {
        let wr = json!({ "wr_id": 7, "sge": self.their_sges(offset, len) });
        self.they_receive_list(&[wr])
    }

    /// Lets the kernel post receives.
    pub(crate) fn they_receive_list(&mut self, wrs: &[Value]) -> Result<(), Failure> {
        match self.their_srq {
            Some(srq) => self.agent.call("post_srq_recv", &json!({ "srq": srq, "wrs": wrs }))?,
            None => self.agent.call("post_recv", &json!({ "qp": self.their_qp, "wrs": wrs }))?,
        };
        Ok(())
    }

    /// A place in our region.
    pub(crate) fn here(&self, offset: usize) -> Remote {
        Remote { addr: self.mr.addr() + offset as u64, rkey: self.mr.rkey() }
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

    /// Bytes of the kernel's region.
    pub(crate) fn their_bytes(&mut self, offset: usize, len: usize) -> Result<Vec<u8>, Failure> {
        let args = json!({ "mr": self.their_mr, "offset": offset, "length": len, "encoding": "hex" });
        let answer = self.agent.call("mem_read", &args)?;
        let text = answer["data"].as_str().ok_or("no data")?;
        (0..text.len() / 2).map(|at| Ok(u8::from_str_radix(&text[2 * at..2 * at + 2], 16)?)).collect()
    }

    /// Eight bytes of the kernel's region, little-endian.
    pub(crate) fn their_u64(&mut self, offset: usize) -> Result<u64, Failure> {
        Ok(self.their_u64s(offset, 1)?.remove(0))
    }

    /// Numbers of eight bytes in the kernel's region, little-endian.
    pub(crate) fn their_u64s(&mut self, offset: usize, count: usize) -> Result<Vec<u64>, Failure> {
        let bytes = self.their_bytes(offset, 8 * count)?;
        Ok(bytes.as_chunks().0.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect())
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
        if let Err(error) = self.agent.call("close_all", &json!({})) {
            eprintln!("note: {error}");
        }
    }
}

/// Compares bytes.
pub(crate) fn same(what: &str, found: &[u8], expected: &[u8]) -> Result<(), Failure> {
    match found.iter().zip(expected).position(|(a, b)| a != b) {
        None if found.len() == expected.len() => Ok(()),
        at => Err(format!("{what}: differs at byte {at:?} of {}", expected.len()).into()),
    }
}

/// Compares anything.
pub(crate) fn equal<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: T,
    expected: T,
) -> Result<(), Failure> {
    if found == expected { Ok(()) } else { Err(format!("{what} is {found:?}, expected {expected:?}").into()) }
}
