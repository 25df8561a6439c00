//! Our side of the comparison: reliable connections between two processes, each of which opens a device of its own.

use crate::{
    across::{self, Wire},
    answer::{Other, Role, Stop, card, hear, say},
    place::{Held, Place},
};
use benches::{
    ends::{ALL, Result, Way, bring_up},
    turns::processor_seconds,
};
use rxe_verbs::{
    CompChannel, Completion, Context, ContextOptions, Cq, EventError, Gid, Key, Mr, Payload, Pd, Qp, QpCaps,
    QpInit, QpType, Qpn, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus, net::FaultPlan,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Number of receives that the answering side keeps posted for each queue pair that is the target of SENDs.
const RECEIVES: u32 = 256;
/// Size of the memory of each side in bytes: the largest message.
const MEMORY: usize = 4 << 20;
/// How long a measurement may go on without a completion.
const PATIENCE: Duration = Duration::from_secs(20);

/// An operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Op {
    Write,
    Send,
    Read,
}

/// Whether both sides wait for completion events, or poll.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Sleep {
    No,
    Yes,
}

/// The load of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Load {
    pub(crate) op: Op,
    pub(crate) size: u32,
    /// Number of queue pairs, which are used in turn.
    pub(crate) qps: usize,
    /// Maximum number of outstanding requests of all queue pairs together.
    pub(crate) depth: usize,
    /// Number of requests posted by one call; the last of them is signaled.
    pub(crate) list: usize,
    /// Whether both sides wait for completion events, or poll.
    pub(crate) sleep: Sleep,
    /// An environment variable that is set for the answering side.
    pub(crate) environment: Option<(&'static str, &'static str)>,
    /// A fault plan (`RXE_FAULT`) for the side where the data arrives.
    pub(crate) faults: Option<&'static str>,
    /// The link between the two sides.
    pub(crate) wire: Wire,
}

impl Load {
    /// Messages of one queue pair over the loopback interface. They are posted singly by a polling program, with up to
    /// `depth` outstanding.
    pub(crate) const fn new(op: Op, size: u32, depth: usize) -> Self {
        let (environment, faults, wire) = (None, None, Wire::Loopback);
        Self { op, size, qps: 1, depth, list: 1, sleep: Sleep::No, environment, faults, wire }
    }

    /// The environment variable for the answering side, and the fault plan for ours.
    fn wrong(&self) -> (Option<(&'static str, &'static str)>, Option<&'static str>) {
        match self.faults {
            Some(plan) if self.op == Op::Read => (self.environment, Some(plan)),
            Some(plan) => (Some(("RXE_FAULT", plan)), None),
            None => (self.environment, None),
        }
    }
}

/// The result of a load.
pub(crate) struct Traffic {
    /// Messages per second.
    pub(crate) messages: f64,
    /// Processor time of both processes per message, in seconds.
    pub(crate) processor: f64,
}

/// What one side has to know about the other.
pub(crate) struct Card {
    pub(crate) qpns: Vec<u32>,
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

struct Side {
    wire: Wire,
    qps: Vec<Qp>,
    mr: Mr,
    cq: Cq,
    channel: Option<CompChannel>,
    context: Context,
    _pd: Pd,
}

impl Side {
    fn new((wire, answers): (Wire, bool), qps: usize, sleep: Sleep, faults: Option<&str>) -> Result<Self> {
        let options = ContextOptions::new().alone();
        let options = match faults {
            Some(plan) => options.faults(FaultPlan::parse(plan)?),
            None => options,
        };
        let context = options.open_address(wire.address(answers))?;
        let channel = if sleep == Sleep::Yes { Some(context.create_comp_channel()?) } else { None };
        let cq = context.create_cq(1 << 14, channel.as_ref())?;
        let pd = context.alloc_pd()?;
        let caps = QpCaps { max_recv_wr: RECEIVES, ..QpInit::new(QpType::Rc, &cq).caps };
        let qps = (0..qps)
            .map(|_| pd.create_qp(&QpInit { caps, ..QpInit::new(QpType::Rc, &cq) }))
            .collect::<std::result::Result<_, _>>()?;
        let mr = pd.alloc_mr(MEMORY, ALL)?;
        Ok(Self { wire, qps, mr, cq, channel, context, _pd: pd })
    }

    fn card(&self) -> Value {
        let qpns: Vec<u32> = self.qps.iter().map(|qp| qp.qpn().value()).collect();
        json!({ "qpns": qpns, "addr": self.mr.addr(), "rkey": self.mr.rkey().0 })
    }

    fn connect(&self, other: &Card, answers: bool) -> Result<()> {
        let gid = Gid::from(self.wire.address(!answers));
        let av = self.context.address_vector(0, gid)?;
        for (qp, &qpn) in self.qps.iter().zip(&other.qpns) {
            bring_up(qp, &Way { timeout: 14, ..Way::to(Qpn::new(qpn), av) })?;
        }
        Ok(())
    }

    fn sge(&self, len: u32) -> Sge {
        Sge { addr: self.mr.addr(), len, lkey: self.mr.lkey() }
    }

    fn receive(&self, len: u32) -> Result<()> {
        Ok(self.qps[0].post_recv(&RecvWr { wr_id: 0, sges: &[self.sge(len)] })?)
    }

    /// The completions that are ready now.
    fn poll<'a>(&self, some: &'a mut [Completion]) -> Result<&'a [Completion]> {
        let count = self.cq.poll(some)?;
        match some[..count].iter().find(|wc| wc.status != WcStatus::Success) {
            Some(wc) => Err(format!("{wc:?}").into()),
            None => Ok(&some[..count]),
        }
    }

    /// Waits for a completion, by polling or for a completion event. Returns none if nothing completed for a while.
    fn wait<'a>(&self, some: &'a mut [Completion]) -> Result<&'a [Completion]> {
        let Some(channel) = &self.channel else { return self.poll(some) };
        let count = self.poll(some)?.len();
        if count > 0 {
            return Ok(&some[..count]);
        }
        self.cq.req_notify(false);
        let count = self.poll(some)?.len();
        if count > 0 {
            return Ok(&some[..count]);
        }
        match channel.get_event_within(Duration::from_millis(100)) {
            Ok(_) => self.cq.ack_events(1),
            Err(EventError::Empty) => {}
            Err(error) => return Err(error.into()),
        }
        self.poll(some)
    }
}

fn answering(wire: Wire, qps: usize, sleep: Sleep, (receives, len): (u32, u32)) -> Result<(Side, Stop)> {
    let side = Side::new((wire, true), qps, sleep, None)?;
    say(&side.card())?;
    side.connect(&card(&hear()?)?, true)?;
    for _ in 0..receives {
        side.receive(len)?;
    }
    say(&json!("ready"))?;
    Ok((side, Stop::watch()?))
}

/// Receives all messages, and keeps receives posted.
pub(crate) fn absorb(wire: Wire, qps: usize, len: u32, sleep: Sleep) -> Result<()> {
    let (side, stop) = answering(wire, qps, sleep, (RECEIVES, len))?;
    let mut some = [Completion::default(); 64];
    while !stop.is_near() {
        for _ in side.wait(&mut some)? {
            side.receive(len)?;
        }
    }
    stop.tell()
}

/// Sends each SEND back.
pub(crate) fn echo(sleep: Sleep) -> Result<()> {
    let (side, stop) = answering(Wire::Loopback, 1, sleep, (16, 64))?;
    let mut some = [Completion::default(); 16];
    while !stop.is_near() {
        for wc in side.wait(&mut some)? {
            if wc.opcode == WcOpcode::Recv {
                send_small(&side)?;
                side.receive(64)?;
            }
        }
    }
    stop.tell()
}

fn send_small(side: &Side) -> Result<()> {
    let wr = SendWr { flags: SendFlags::empty(), ..SendWr::new(0, SendOp::Send, &[]) };
    Ok(side.qps[0].post_send(&SendWr { payload: Payload::Inline(&[1, 2]), ..wr })?)
}

fn measuring(role: Role, load: Load, place: Place) -> Result<(Side, Other, Card, Held)> {
    let Load { qps, size, sleep, wire, .. } = load;
    let (environment, faults) = load.wrong();
    let start = || Other::start(role, qps, size, (wire, environment));
    let (mut other, held) =
        place.start(|| if wire.is_pair() { across::start(wire, start) } else { start() })?;
    let side = Side::new((wire, false), qps, sleep, faults)?;
    let theirs = card(&other.hear()?)?;
    side.connect(&theirs, false)?;
    other.say(&side.card())?;
    other.hear()?;
    Ok((side, other, theirs, held))
}

/// Keeps up a load for some time, after a warm-up of a quarter of that time.
pub(crate) fn messages(load: Load, seconds: f64) -> Result<Traffic> {
    let role = if load.sleep == Sleep::Yes { Role::AbsorbAsleep } else { Role::Absorb };
    let (side, other, theirs, _held) = measuring(role, load, Place::Free)?;
    let remote = Remote { addr: theirs.addr, rkey: Key(theirs.rkey) };
    let op = match load.op {
        Op::Write => SendOp::Write(remote),
        Op::Send => SendOp::Send,
        Op::Read => SendOp::Read(remote),
    };
    let sges = [side.sge(load.size)];
    let one = SendWr { flags: SendFlags::empty(), ..SendWr::new(0, op, &sges) };
    let last = SendWr { flags: SendFlags::SIGNALED, ..one };
    let mut list = vec![one; load.list - 1];
    list.push(last);
    let mut some = [Completion::default(); 64];
    let processor = processor_seconds()?;
    let warm_up = Duration::from_secs_f64(seconds / 4.0);
    let mut time = Duration::from_secs_f64(seconds) + warm_up;
    let (mut start, mut life) = (Instant::now(), Instant::now());
    let (mut posted, mut done, mut before, mut warm, mut at) = (0, 0, 0, false, 0);
    // At least one message is measured, however short the time is.
    while start.elapsed() < time || done == before {
        while posted - done + load.list <= load.depth {
            let qp = &side.qps[at];
            if load.list == 1 {
                qp.post_send(&last)?
            } else {
                qp.post_send_list(&list)?
            }
            at = if at + 1 == load.qps { 0 } else { at + 1 };
            posted += load.list;
        }
        let count = side.wait(&mut some)?.len();
        done += count * load.list;
        if count > 0 {
            life = Instant::now();
        } else if life.elapsed() > PATIENCE {
            return Err("no work request completes any more".into());
        }
        if !warm && start.elapsed() >= warm_up {
            (warm, before, start, time) = (true, done, Instant::now(), time - warm_up);
        }
    }
    let rate = (done - before) as f64 / start.elapsed().as_secs_f64();
    while done < posted && life.elapsed() < PATIENCE {
        done += side.wait(&mut some)?.len() * load.list;
    }
    let processor = processor_seconds()? - processor + other.end()?;
    Ok(Traffic { messages: rate, processor: processor / done.max(1) as f64 })
}

/// One-way latency of SENDs of 2 bytes, in microseconds.
pub(crate) fn latency(sleep: Sleep, place: Place, seconds: f64) -> Result<Vec<f64>> {
    let role = if sleep == Sleep::Yes { Role::EchoAsleep } else { Role::Echo };
    let (side, other, _, _held) = measuring(role, Load { sleep, ..Load::new(Op::Send, 64, 1) }, place)?;
    for _ in 0..16 {
        side.receive(64)?;
    }
    let mut some = [Completion::default(); 16];
    let mut times = Vec::with_capacity(1 << 20);
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < seconds || times.is_empty() {
        let start = Instant::now();
        send_small(&side)?;
        while side.wait(&mut some)?.is_empty() {
            if start.elapsed() > PATIENCE {
                return Err("no answer".into());
            }
        }
        side.receive(64)?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    other.end()?;
    Ok(times)
}
