//! The same over reliable queue pairs, with SENDs and completion events.

use crate::{
    Plan, Server, Wire,
    dead::Dead,
    hear,
    measure::{Answers, Spent, Stretch},
    say, until_told,
    wait::{How, Waiter},
};
use benches::ends::{ALL, Result, Way, bring_up, loopback};
use rxe_verbs::{
    CompChannel, Completion, Context, ContextOptions, Cq, EventError, Gid, Mr, Pd, Qp, QpCaps, QpInit,
    QpType, Qpn, RecvWr, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus, net::LinkKind,
};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

/// Receives posted for each queue pair.
const RECEIVES: usize = 2;
/// One SEND in this many is signaled, so that the send queue never fills up.
const SIGNALED: u64 = 16;
/// The longest time without an event after which the loop checks whether it should end.
const PAUSE: Duration = Duration::from_millis(100);

struct Side {
    qps: Vec<Qp>,
    /// The index of a queue pair by its number.
    by_number: HashMap<Qpn, usize>,
    mr: Mr,
    /// Completion queues, each with a channel: one for all queue pairs, or one for each.
    cqs: Vec<(Cq, CompChannel)>,
    dead: Option<Dead>,
    /// The timeout code of the queue pairs with dead peers.
    timeout: u8,
    context: Context,
    _pd: Pd,
    size: usize,
    wait: How,
    sent: u64,
}

impl Side {
    /// Opens the device, and creates the queue pairs, completion queues and memory of one side.
    fn new(plan: Plan) -> Result<Self> {
        let options = ContextOptions::new().ticks(plan.ticks);
        // Shared memory works only between processes of one host service.
        let by_memory = LinkKind::from_environment()? == LinkKind::Memory;
        let options = if by_memory { options } else { options.alone() };
        let context = options.open_address(loopback(1))?;
        let pd = context.alloc_pd()?;
        let queues = if plan.wire == Wire::Each { plan.connections } else { 1 };
        let entries = (plan.connections / queues * (RECEIVES + 16)) as u32;
        let mut cqs = Vec::new();
        for _ in 0..queues {
            let channel = context.create_comp_channel()?;
            cqs.push((context.create_cq(entries, Some(&channel))?, channel));
        }
        let mut qps = Vec::new();
        for index in 0..plan.connections {
            let init = QpInit::new(QpType::Rc, &cqs[index % queues].0);
            let caps = QpCaps { max_recv_wr: RECEIVES as u32, max_send_wr: 2 * SIGNALED as u32, ..init.caps };
            qps.push(pd.create_qp(&QpInit { caps, ..init })?);
        }
        // Memory for the receives of all queue pairs, and for the message that is sent.
        let mr = pd.alloc_mr((plan.connections * RECEIVES + 1) * plan.size, ALL)?;
        let by_number = qps.iter().enumerate().map(|(index, qp)| (qp.qpn(), index)).collect();
        let (dead, timeout) = (Dead::new(plan, &context, &pd)?, plan.dead.unwrap_or_default());
        let Plan { size, wait, .. } = plan;
        Ok(Self { qps, by_number, mr, cqs, dead, timeout, context, _pd: pd, size, wait, sent: 0 })
    }

    fn card(&self) -> Value {
        let qpns: Vec<u32> = self.qps.iter().map(|qp| qp.qpn().value()).collect();
        let dead = self.dead.as_ref().map(Dead::card);
        json!({ "gid": self.context.gids().get(0).to_string(), "qpns": qpns, "dead": dead })
    }

    fn connect(&self, card: &Value) -> Result<()> {
        let gid: Gid = card["gid"].as_str().ok_or("no GID")?.parse()?;
        let av = self.context.address_vector(0, gid)?;
        // The active MTU of the interface: over an interface with MTU 1500, the messages travel in smaller packets.
        let mtu = self.context.port().active_mtu;
        let numbers = card["qpns"].as_array().ok_or("no queue pairs")?;
        for (index, (qp, number)) in self.qps.iter().zip(numbers).enumerate() {
            let peer = Qpn::new(number.as_u64().unwrap_or_default() as u32);
            bring_up(qp, &Way { mtu, reads: 1, ..Way::to(peer, av) })?;
            for slot in 0..RECEIVES {
                self.receive(index, (index * RECEIVES + slot) as u64)?;
            }
        }
        self.dead.as_ref().map_or(Ok(()), |dead| dead.connect(&card["dead"], av, self.timeout))
    }

    fn sge(&self, slot: u64) -> Sge {
        Sge { addr: self.mr.addr() + slot * self.size as u64, len: self.size as u32, lkey: self.mr.lkey() }
    }

    fn receive(&self, index: usize, slot: u64) -> Result<()> {
        Ok(self.qps[index].post_recv(&RecvWr { wr_id: slot, sges: &[self.sge(slot)] })?)
    }

    fn send(&mut self, index: usize) -> Result<()> {
        self.sent += 1;
        let flags = if self.sent.is_multiple_of(SIGNALED) { SendFlags::SIGNALED } else { SendFlags::empty() };
        let sges = [self.sge((self.qps.len() * RECEIVES) as u64)];
        Ok(self.qps[index].post_send(&SendWr { flags, ..SendWr::new(0, SendOp::Send, &sges) })?)
    }

    fn descriptors<'a>(channels: &'a [CompChannel], how: How) -> Result<Vec<BorrowedFd<'a>>> {
        let fds: Vec<BorrowedFd<'a>> = channels.iter().map(AsFd::as_fd).collect();
        for fd in &fds {
            let flags = nix::fcntl::OFlag::from_bits_retain(nix::fcntl::fcntl(fd, nix::fcntl::F_GETFL)?);
            let wanted = if how.non_blocking() {
                flags | nix::fcntl::OFlag::O_NONBLOCK
            } else {
                flags - nix::fcntl::OFlag::O_NONBLOCK
            };
            nix::fcntl::fcntl(fd, nix::fcntl::F_SETFL(wanted))?;
        }
        Ok(fds)
    }

    /// Takes the events of a readable channel, and calls `each` for each message that has arrived.
    fn take_events(
        &mut self,
        channel: usize,
        each: &mut impl FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<()> {
        loop {
            let taken = match self.wait {
                How::Epoll | How::Edge => self.cqs[channel].1.try_get_event(),
                How::Poll | How::Select => Some(self.cqs[channel].1.get_event()?),
                How::Event => match self.cqs[channel].1.get_event_within(PAUSE) {
                    Ok(cq) => Some(cq),
                    Err(EventError::Empty) => None,
                    Err(error) => return Err(error.into()),
                },
            };
            let Some(cq) = taken else { return Ok(()) };
            cq.ack_events(1);
            cq.req_notify(false);
            drop(cq);
            self.take_completions(channel, each)?;
            if !self.wait.non_blocking() {
                return Ok(());
            }
        }
    }

    fn take_completions(
        &mut self,
        channel: usize,
        each: &mut impl FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<()> {
        let mut some = [Completion::default(); 16];
        loop {
            let count = self.cqs[channel].0.poll(&mut some)?;
            if count == 0 {
                return Ok(());
            }
            for wc in &some[..count] {
                if wc.status != WcStatus::Success {
                    return Err(format!("{wc:?}").into());
                }
                if wc.opcode == WcOpcode::Recv {
                    let index = self.by_number[&wc.qpn];
                    self.receive(index, wc.wr_id)?;
                    each(self, index)?;
                }
            }
        }
    }

    /// Calls `each` for every message, until `goes_on` returns false. `goes_on` is called after each wait.
    fn run(
        &mut self,
        mut goes_on: impl FnMut() -> Result<bool>,
        mut each: impl FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<()> {
        let channels: Vec<CompChannel> = self.cqs.iter().map(|(_, channel)| channel.clone()).collect();
        let mut waiter = Waiter::new(self.wait, &Self::descriptors(&channels, self.wait)?)?;
        for channel in 0..channels.len() {
            self.cqs[channel].0.req_notify(false);
            self.take_completions(channel, &mut each)?;
        }
        while goes_on()? {
            if self.wait == How::Event {
                self.take_events(0, &mut each)?;
            } else {
                waiter.wait(|channel| self.take_events(channel, &mut each))?;
            }
        }
        Ok(())
    }
}

pub(crate) fn serve(plan: Plan) -> Result<()> {
    let mut side = Side::new(plan)?;
    say(&side.card())?;
    side.connect(&hear()?)?;
    if let Some(dead) = &side.dead {
        dead.die()?;
    }
    say(&json!("ready"))?;
    until_told(|goes_on| side.run(|| Ok(goes_on()), Side::send))
}

pub(crate) fn ask(plan: Plan, server: &mut Server) -> Result<(Spent, Answers)> {
    let mut side = Side::new(plan)?;
    side.connect(&server.hear()?)?;
    server.say(&side.card())?;
    server.hear()?;
    if let Some(dead) = &side.dead {
        dead.post()?;
    }
    let stretch = core::cell::RefCell::new(Stretch::begin(plan.seconds)?);
    let mut asked = vec![Instant::now(); plan.connections];
    for (index, asked) in asked.iter_mut().enumerate() {
        *asked = Instant::now();
        side.send(index)?;
    }
    side.run(
        || stretch.borrow_mut().goes_on(),
        |side, index| {
            let now = Instant::now();
            stretch.borrow_mut().add(core::mem::replace(&mut asked[index], now), now);
            side.send(index)
        },
    )?;
    stretch.into_inner().end()
}
