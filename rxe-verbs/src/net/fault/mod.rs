//! A bad network on demand: loss, duplication, reordering, flipped bits, delay and a limited rate, the same ones for the same
//! seed and the same packets ([`FaultPlan`]); and what a script says of single packets ([`Script`]). A [`Trace`] tells what was
//! done to which.

mod lane;
mod outage;
mod plan;
mod rule;
mod script;

pub use lane::FaultCounts;
pub(crate) use outage::Outage;
pub(crate) use plan::parse_rate;
pub use plan::{FaultPlan, WHOLE};
pub use script::{HELP as SCRIPT_HELP, Script, ScriptError};

use super::error::SendError;
use super::{Capabilities, Ident, Link, Path, RawDrops, RecvBatch, Run, Trace, Transmit, check_batch};
use crate::sys::{alarm::Alarm, process, socket::Event};
use core::net::IpAddr;
use lane::{Head, Lane};
use rule::Player;
use script::Action;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// How late a packet that waits may leave at most, if nobody looks: the alarm rings so long after it was set.
const ALARM: Duration = Duration::from_micros(100);

/// A link that disturbs the packets of another.
#[derive(Debug)]
pub struct FaultLink {
    inner: Box<dyn Link>,
    plan: FaultPlan,
    capabilities: Capabilities,
    sending: Lane<Transmit>,
    receiving: Lane<Run<'static>>,
    director: Director,
    arrivals: RecvBatch,
    /// Readable while packets wait to be fetched.
    pending: Event,
    raised: bool,
    /// Rings while packets wait for their time.
    alarm: Alarm,
    /// When it was set.
    alarmed: Option<Instant>,
}

/// Who decides what is to happen to a packet besides chance.
#[derive(Debug)]
struct Director {
    player: Option<Player>,
    log: Option<Trace>,
    /// While it lasts nothing passes; there if the script has one.
    outage: Option<Arc<Outage>>,
}

impl Director {
    /// What the script, or a port that is down, has for a packet, with the words for the log. None: chance decides.
    fn order<H: Head>(
        &mut self,
        lane: &mut Lane<H>,
        head: &H,
        bytes: &[u8],
        now: Instant,
    ) -> Option<(Action, String)> {
        let chance = || lane::random(&mut lane.script_random);
        let found = self.player.as_mut().and_then(|player| player.judge(H::SENDING, bytes, now, chance));
        if self.outage.as_ref().is_some_and(|outage| outage.is_on(now)) {
            return Some((Action::Drop, "down: lost".into()));
        }
        let (action, line) = found?;
        let what = match action {
            Action::Drop => "lost",
            Action::Corrupt => "corrupted",
            Action::Duplicate => "doubled",
            Action::Mark => "marked",
            Action::Delay(_) => "delayed",
            Action::Reorder(_) => "overtaken",
            Action::Turn(syndrome) => &format!("turned into {syndrome}"),
            Action::Down(time) => {
                if let Some(outage) = &self.outage {
                    outage.begin(now, time);
                }
                "the port goes down: lost"
            }
            Action::Kill => {
                if let Some(log) = &self.log {
                    let done = format!("line {line}: this process is killed at ");
                    log.line(&done, H::SENDING, head.peer(), bytes);
                }
                process::kill_self()
            }
        };
        Some((action, format!("line {line}: {what}")))
    }
}

impl FaultLink {
    /// Puts `plan` between us and `inner`.
    ///
    /// # Errors
    /// What the system says if it has no event counters left.
    pub fn new(inner: Box<dyn Link>, mut plan: FaultPlan) -> io::Result<Self> {
        // A script may be about a direction that chance leaves alone.
        let chances = (plan.sending, plan.receiving);
        if let Some(script) = &plan.script {
            plan.sending |= script.is_for(true);
            plan.receiving |= script.is_for(false);
        }
        let mut capabilities = inner.capabilities().clone();
        if plan.sending {
            capabilities.gso = false;
            capabilities.ident = Ident::Zero;
        }
        Ok(Self {
            sending: Lane::new(plan.seed, chances.0),
            receiving: Lane::new(plan.seed ^ 0x5555_5555_5555_5555, chances.1),
            director: Director {
                player: plan.script.clone().map(Player::new),
                log: None,
                outage: plan.outage()?,
            },
            inner,
            plan,
            capabilities,
            arrivals: RecvBatch::default(),
            pending: Event::new()?,
            raised: false,
            alarm: Alarm::new(ALARM)?,
            alarmed: None,
        })
    }

    /// Has what is done written down.
    #[must_use]
    pub fn with_log(mut self, log: Option<Trace>) -> Self {
        self.director.log = log;
        self
    }

    /// Has the port go down together with that of other links.
    #[must_use]
    pub(crate) fn with_outage(mut self, outage: Option<Arc<Outage>>) -> Self {
        self.director.outage = outage;
        self
    }

    /// What happened to the packets sent and received so far.
    #[must_use]
    pub const fn counts(&self) -> (FaultCounts, FaultCounts) {
        (self.sending.counts, self.receiving.counts)
    }

    /// Sends what may leave now. A packet the inner link cannot send is lost.
    fn flush(&mut self) -> Result<(), SendError> {
        let mut result = Ok(());
        self.sending.release();
        while let Some((head, bytes)) = self.sending.ready.pop_front() {
            let sent = self.inner.send(&head, &bytes);
            if matches!(sent, Err(SendError::MessageTooLong { .. } | SendError::Unreachable { .. })) {
                result = sent;
            }
        }
        result
    }

    fn signal(&mut self) {
        let waiting = self.sending.is_held() || self.receiving.is_held() || !self.receiving.ready.is_empty();
        if waiting != self.raised {
            self.raised = waiting;
            if waiting { self.pending.raise() } else { self.pending.clear() }
        }
        let (late, now) = (self.sending.is_late() || self.receiving.is_late(), Instant::now());
        if self.alarmed.is_some_and(|since| !late || now >= since + ALARM) {
            self.alarm.clear();
            self.alarmed = None;
        }
        if late && self.alarmed.is_none() {
            self.alarm.set();
            self.alarmed = Some(now);
        }
    }
}

impl Link for FaultLink {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn path(&self, dst: IpAddr, ifindex: u32) -> Path {
        let path = self.inner.path(dst, ifindex);
        if self.plan.sending { Path { ident: Ident::Zero, ..path } } else { path }
    }

    fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        if !self.plan.sending {
            return self.inner.send(batch, bytes);
        }
        let path = self.path(batch.dst, batch.ifindex);
        check_batch(batch, bytes, path, self.capabilities.limits())?;
        let now = Instant::now();
        for packet in bytes.chunks(batch.segment_size) {
            let order = self.director.order(&mut self.sending, batch, packet, now);
            self.sending.take(&self.plan, *batch, packet, order, now, self.director.log.as_ref());
        }
        let result = self.flush();
        self.signal();
        result
    }

    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        // Nobody waits for held packets, so their errors are nobody's.
        let _ = self.flush();
        if !self.plan.receiving {
            let result = self.inner.recv(into);
            self.signal();
            return result;
        }
        into.clear();
        if self.receiving.ready.is_empty() {
            let received = self.inner.recv(&mut self.arrivals);
            let now = Instant::now();
            for run in self.arrivals.iter() {
                let head = Run { bytes: &[], ..run };
                for packet in run.packets() {
                    let order = self.director.order(&mut self.receiving, &head, packet, now);
                    self.receiving.take(&self.plan, head, packet, order, now, self.director.log.as_ref());
                }
            }
            self.arrivals.clear();
            received?;
        }
        self.receiving.release();
        while !into.is_full() {
            let Some((run, bytes)) = self.receiving.ready.pop_front() else { break };
            into.push(&Run { segment_size: bytes.len().max(1), bytes: &bytes, ..run });
        }
        self.signal();
        Ok(into.len())
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = self.inner.poll_fds();
        fds.push(self.pending.as_fd());
        fds.push(self.alarm.as_fd());
        fds
    }

    fn drops(&self) -> u64 {
        self.inner.drops()
    }

    fn late_error(&mut self) -> Option<(IpAddr, SendError)> {
        self.inner.late_error()
    }

    fn frame_drops(&self) -> RawDrops {
        self.inner.frame_drops()
    }

    fn join(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        self.inner.join(group, ifindex)
    }

    fn leave(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        self.inner.leave(group, ifindex)
    }
}
