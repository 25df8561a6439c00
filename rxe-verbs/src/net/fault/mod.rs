//! Simulates a bad network: loss, duplication, reordering, flipped bits, delay and a limited rate ([`FaultPlan`]). The same
//! seed and the same packets give the same faults. A [`Script`] adds faults for single packets. A [`Trace`] logs each fault and
//! its packet.
//!
//! Read next: `plan` and `script` (what the user writes), `lane` (what happens to the packets of one direction), `rule` (which
//! rule of a script a packet meets), `outage` (a port that goes down).

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

/// Longest extra delay of a waiting packet while the application does not call the link: the alarm becomes readable so long
/// after it was set.
const ALARM: Duration = Duration::from_micros(100);

/// A link that disturbs the packets of another link.
#[derive(Debug)]
pub struct FaultLink {
    inner: Box<dyn Link>,
    plan: FaultPlan,
    capabilities: Capabilities,
    sending: Lane<Transmit>,
    receiving: Lane<Run<'static>>,
    director: Director,
    arrivals: RecvBatch,
    /// Readable while packets are held back for others, or received packets are ready.
    pending: Event,
    raised: bool,
    /// Becomes readable [`ALARM`] after it was set, while delayed packets wait.
    alarm: Alarm,
    /// When the alarm was set.
    alarmed: Option<Instant>,
}

/// Decides by the script, and by the port's outage, what happens to a packet.
#[derive(Debug)]
struct Director {
    player: Option<Player>,
    log: Option<Trace>,
    /// While the outage lasts, no packet passes. `None` if the script takes no port down.
    outage: Option<Arc<Outage>>,
}

impl Director {
    /// What to do with a packet, and the text for the log. `None` means that the script has no rule for the packet and the port
    /// is up, so chance decides.
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
    /// Wraps `inner` and disturbs its packets as `plan` says.
    ///
    /// # Errors
    /// The system's error if no eventfd or timer can be made.
    pub fn new(inner: Box<dyn Link>, mut plan: FaultPlan) -> io::Result<Self> {
        // A script may disturb a direction that the plan's chances leave alone.
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

    /// Logs what is done to packets.
    #[must_use]
    pub fn with_log(mut self, log: Option<Trace>) -> Self {
        self.director.log = log;
        self
    }

    /// Shares an outage with other links, so that the port goes down for all of them.
    #[must_use]
    pub(crate) fn with_outage(mut self, outage: Option<Arc<Outage>>) -> Self {
        self.director.outage = outage;
        self
    }

    /// What was done to the packets sent and to the packets received so far.
    #[must_use]
    pub const fn counts(&self) -> (FaultCounts, FaultCounts) {
        (self.sending.counts, self.receiving.counts)
    }

    /// Sends the packets that may leave now. A packet that the inner link cannot send is lost.
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
        // An error of a delayed packet has no caller that it could be returned to.
        let _ = self.flush();
        if !self.plan.receiving {
            let result = self.inner.recv(into);
            self.signal();
            return result;
        }
        into.clear();
        let mut taken = 0;
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
            taken = received?;
        }
        self.receiving.release();
        while !into.is_full() {
            let Some((run, bytes)) = self.receiving.ready.pop_front() else { break };
            into.push(&Run { segment_size: bytes.len().max(1), bytes: &bytes, ..run });
        }
        self.signal();
        // What is lost or delayed counts, too.
        Ok(into.len().max(taken))
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
