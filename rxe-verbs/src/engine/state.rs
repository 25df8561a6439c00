//! What a shard's lock protects, and the turn that is taken under it.

use super::{
    clock,
    hold::{Hold, Next},
    mailbox::Mailbox,
    transmit::{LinkReport, Pending, Refusing},
};
use crate::{
    cq::CqRing,
    events::{AsyncEvent, AsyncQueue, qp_of},
    log,
    net::{self, Link, RecvBatch},
    regions::View,
    tags::TagQueues,
};
use core::net::IpAddr;
use rxe_core::{
    endpoint::{Acks, Endpoint, Run},
    num::Qpn,
    qp::Reasons,
    time::Instant,
    work::{self, CqId, Event, SrqId, WcStatus},
};
use std::{collections::HashMap, sync::Arc};

/// Most receive calls of one turn, so that a turn ends even if packets never cease.
const RECEIVES: usize = 4;

/// If at most one queue pair has owed an acknowledgement in so many turns in a row, no others are expected to owe one soon.
const SINGLE: u32 = 8;

/// One link, one endpoint, and the queues that they serve.
pub(crate) struct State {
    pub(crate) endpoint: Endpoint,
    pub(crate) link: Box<dyn Link>,
    /// The way to the other processes of the host, where there are any.
    pub(super) mailbox: Option<Arc<Mailbox>>,
    /// Which of its stack's shards it is.
    index: u8,
    arrivals: RecvBatch,
    /// Where batches are built.
    pub(super) arena: Vec<u8>,
    /// A batch in the arena that the link could not take yet.
    pub(super) pending: Option<Pending>,
    pub(super) refusing: Refusing,
    /// The last turn had more to send than a turn may.
    pub(super) unfinished: bool,
    pub(super) report: LinkReport,
    /// Completion queues by number, with the queue pairs that use each.
    queues: Vec<Option<(Arc<CqRing>, u32)>>,
    /// Completion queues whose events go to their channels at the end of [`Self::hand_out`].
    untold: Vec<Arc<CqRing>>,
    /// Tag matching queues, once there is one. They take completions whose number belongs to no completion queue.
    pub(crate) tags: Option<Box<TagQueues>>,
    /// Where asynchronous events go.
    pub(crate) qp_owners: HashMap<Qpn, Arc<AsyncQueue>>,
    pub(crate) srq_owners: HashMap<SrqId, Arc<AsyncQueue>>,
    /// Multicast groups joined, by address and interface, with the queue pairs attached.
    pub(crate) groups: HashMap<(IpAddr, u32), u32>,
    /// The time at which a turn last read the clock.
    now: Instant,
    /// Messages that wait for the next call.
    pub(super) hold: Hold,
    /// Turns in a row, while the application had events to take, in which at most one queue pair owed an acknowledgement.
    single: u32,
}

impl core::fmt::Debug for State {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("State").field("queue_pairs", &self.qp_owners.len()).finish_non_exhaustive()
    }
}

/// Which kind of caller takes a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    /// A call of the application, which will probably post an answer to what it receives.
    Inline,
    /// A call of an application that has events of its channels to take. It answers those before its next turn.
    Answering,
    /// A thread that will post no answer: the background thread, or a thread that is about to sleep.
    Idle,
    /// The background thread while a thread of the application waits for the packets.
    Resting,
}

impl Who {
    /// Which acknowledgements leave at the end of the turn. If the application may answer, acknowledgement and answer leave together.
    /// `owes` says that acknowledgements are owed for several queue pairs.
    const fn acks(self, owes: bool) -> Acks {
        match self {
            Self::Inline => Acks::Wait,
            Self::Answering if owes => Acks::Hold,
            Self::Answering | Self::Idle | Self::Resting => Acks::Flush,
        }
    }
}

/// What a turn did and what is next.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Turn {
    /// Something was received or sent.
    pub(crate) busy: bool,
    /// The next deadline.
    pub(crate) deadline: Option<Instant>,
    /// A batch waits for room in the link, or for the next turn.
    pub(crate) blocked: bool,
    /// A channel got an event, so the program will call.
    pub(crate) told: bool,
    /// Something had arrived. If not, every socket was seen empty.
    pub(crate) received: bool,
    /// The last packet that arrived left a message in the middle ([`Endpoint::is_amid`]).
    pub(crate) amid: bool,
    /// Acknowledgements wait for the answers of a program that has events to take.
    pub(crate) owes: bool,
    /// There was no turn, because another thread had the lock (or this is a forked child). Nothing is known of the sockets.
    pub(crate) missed: bool,
}

impl State {
    pub(crate) fn new(
        endpoint: Endpoint,
        link: Box<dyn Link>,
        mailbox: Option<Arc<Mailbox>>,
        index: u8,
    ) -> Self {
        let arena = vec![0; endpoint.config().max_batch];
        Self {
            endpoint,
            link,
            mailbox,
            index,
            arrivals: RecvBatch::default(),
            arena,
            pending: None,
            refusing: Refusing::default(),
            unfinished: false,
            report: LinkReport::default(),
            queues: Vec::new(),
            untold: Vec::new(),
            tags: None,
            qp_owners: HashMap::new(),
            srq_owners: HashMap::new(),
            groups: HashMap::new(),
            now: clock::now(),
            hold: Hold::default(),
            single: 0,
        }
    }

    /// Takes a turn: does everything that there is to do now, within limits.
    pub(crate) fn turn(&mut self, view: View<'_>, who: Who) -> Turn {
        let mut late = 0;
        self.now = clock::now();
        if self.pending.is_some() || self.endpoint.may_transmit() {
            late = self.send_late(view, who);
        }
        // A thread of the application that waits for packets receives them itself. But if a deadline has passed, the missing answer may
        // be among the packets, so they are received first.
        let is_others =
            who == Who::Resting && self.endpoint.poll_timeout().is_none_or(|deadline| deadline > self.now);
        let received = !is_others && self.receive(view);
        let now = self.now;
        let due = self.endpoint.poll_timeout().is_some_and(|deadline| deadline <= now);
        if due {
            self.endpoint.handle_timeout(now, &view);
        }
        let mut told = self.hand_out(view);
        let mut sent = 0;
        let owes = who == Who::Answering && self.endpoint.owes_several();
        if who == Who::Answering {
            self.single = if owes { 0 } else { self.single.saturating_add(1) };
        }
        if received || due || who == Who::Answering {
            sent = self.transmit(now, view, who.acks(owes));
            told |= self.hand_out(view);
        }
        let amid = self.endpoint.is_amid();
        Turn { busy: received || sent + late > 0, received, told, amid, owes, ..self.rest() }
    }

    /// The turn of a process that exits. What is owed leaves, also for what has arrived. Nothing is handed out: the thread that exits may
    /// have been interrupted, by a handler that calls exit(3), while it had the lock of a queue.
    pub(super) fn last_turn(&mut self, view: View<'_>) {
        self.now = clock::now();
        self.hold.clear();
        self.transmit(self.now, view, Acks::Flush);
        if self.receive(view) {
            self.transmit(self.now, view, Acks::Flush);
        }
    }

    /// Sends what earlier calls left: messages that waited for this one, and acknowledgements.
    fn send_late(&mut self, view: View<'_>, who: Who) -> usize {
        self.hold.leave(self.now, who == Who::Answering);
        // Acknowledgements that waited for data leave now, unless the application has events to take and will answer soon. If only one is
        // owed, and others are not to be expected, it leaves now in any case: it wakes the peer, which has nothing else to do, a little before
        // the answer comes. (valkey, SET of 3 B by one client: 0.67 of TCP's rate if it leaves at the end of the turn, 0.72 if it leaves
        // here; ten rounds in turns.)
        let several = self.endpoint.owes_several() || self.single < SINGLE && self.endpoint.may_owe_several();
        let waits = who == Who::Answering && several;
        let acks = if waits { Acks::Hold } else { Acks::Flush };
        self.transmit(self.now, view, acks)
    }

    /// Whether messages posted at `now` to `qpn` may wait for the application's next call, to leave together with others. `more` is their
    /// number and their bytes.
    /// * If the next call is guessed: they may wait while the application has just looked for packets, or has been posting in a row
    ///   since then, and earlier messages are unanswered. For a service without answers: while the application is posting in a row.
    /// * If the engine calls the application: they may wait while as many bytes are under way to their destination.
    pub(super) fn may_hold(&mut self, now: Instant, qpn: Qpn, more: (u32, u64), next: Next) -> bool {
        if self.hold.is_off() || self.pending.is_some() {
            return false;
        }
        match next {
            Next::Guessed if self.endpoint.has_unanswered(qpn) => {
                self.hold.may_wait(now, Some(self.now), more)
            }
            Next::Guessed => self.endpoint.is_never_answered(qpn) && self.hold.may_wait(now, None, more),
            Next::Called => self.hold.may_wait_for_call(now, more, self.endpoint.under_way(qpn)),
        }
    }

    /// Sends what a call has just posted, and hands out the completions that result.
    pub(crate) fn send_now(&mut self, view: View<'_>, acks: Acks) -> Turn {
        self.send_at(clock::now, view, acks)
    }

    /// The same as [`Self::send_now`], for a caller that may know the time.
    pub(crate) fn send_at(&mut self, now: impl FnOnce() -> Instant, view: View<'_>, acks: Acks) -> Turn {
        self.hold.clear();
        let sent = if self.pending.is_some() || self.endpoint.may_transmit() {
            self.transmit(now(), view, acks)
        } else {
            0
        };
        self.hand_out(view);
        Turn { busy: sent > 0, ..self.rest() }
    }

    /// A turn that did nothing, with what is left to do.
    fn rest(&self) -> Turn {
        Turn {
            deadline: self.endpoint.poll_timeout(),
            blocked: self.pending.is_some() || self.unfinished && self.endpoint.may_transmit(),
            ..Turn::default()
        }
    }

    fn receive(&mut self, view: View<'_>) -> bool {
        let mut any = false;
        for _ in 0..RECEIVES {
            let received = self.link.recv(&mut self.arrivals);
            let failed = received.is_err();
            // One of several sockets may have failed. What the others had is there all the same.
            let count = received.unwrap_or_else(|error| {
                self.report.receive_failed(&error);
                self.arrivals.len()
            });
            if count == 0 {
                break;
            }
            self.now = clock::now();
            self.hold.hear();
            any = true;
            for run in self.arrivals.iter() {
                self.report.merged += u64::from(run.bytes.len() > run.segment_size);
                self.endpoint.handle_run(self.now, &core_run(&run), &view);
            }
            if failed || !self.arrivals.is_full() {
                break;
            }
        }
        while let Some((dst, error)) = self.link.late_error() {
            self.lose(dst, &error);
        }
        self.exchange(view) | any
    }

    /// Takes packets that other processes received for this shard, and hands on packets of other processes. Returns whether there were any
    /// for this shard.
    fn exchange(&mut self, view: View<'_>) -> bool {
        let Some(mailbox) = &self.mailbox else { return false };
        let incoming = mailbox.take();
        let any = !incoming.is_empty();
        for (meta, bytes) in incoming {
            self.now = clock::now();
            self.endpoint.handle_run(self.now, &Run { meta, bytes: &bytes, segment: 0 }, &view);
        }
        while let Some(stray) = self.endpoint.poll_stray() {
            mailbox.hand_on(stray);
        }
        any
    }

    /// Puts the endpoint's events into their queues. Channels get theirs before the shard's lock is released.
    pub(crate) fn sort_events(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Completion { cq, solicited, wc } => {
                    if !matches!(wc.status, WcStatus::Success | WcStatus::WorkRequestFlushed) {
                        self.tell_why(wc.qpn);
                    }
                    if let Some(Some((ring, _))) = self.queues.get(cq.0 as usize) {
                        if ring.put(wc, solicited) {
                            self.untold.push(Arc::clone(ring));
                        }
                    } else if let Some(tags) = &mut self.tags {
                        tags.catch(cq, wc, solicited);
                    }
                }
                Event::Async(event) => {
                    if let work::AsyncEvent::QpRequestError(qpn) | work::AsyncEvent::QpAccessError(qpn) =
                        event
                    {
                        self.tell_why(qpn);
                    }
                    if let Some(owner) = self.owner(event) {
                        owner.push(AsyncEvent::Queue(event));
                    }
                }
            }
        }
    }

    /// The same as [`Self::sort_events`], and tag matching queues handle their completions. They may post sends then. Returns whether a
    /// channel got an event.
    ///
    /// Channels get their events only when all completions are in their queues. The first event may wake the program, even on this
    /// processor in place of this thread. The program may then poll another queue, for example for the completion of the message
    /// whose answer woke it.
    pub(super) fn hand_out(&mut self, view: View<'_>) -> bool {
        self.sort_events();
        while let Some(tags) = &mut self.tags
            && let Some(event) = tags.handle_next(&mut self.endpoint, view, self.now)
        {
            self.untold.extend(event.cloned());
            self.sort_events();
            self.unfinished |= self.endpoint.may_transmit();
        }
        let told = !self.untold.is_empty();
        for ring in self.untold.drain(..) {
            ring.announce();
        }
        told
    }

    /// Logs why a queue pair has failed, if the log is wanted.
    fn tell_why(&self, qpn: Qpn) {
        if log::is_wanted()
            && let Some(Reasons { refused, failed }) = self.endpoint.reasons(qpn)
        {
            let (refused, failed) = (
                refused.map(|reason| format!("refused: {reason}")),
                failed.map(|reason| format!("failed: {reason}")),
            );
            for words in refused.into_iter().chain(failed) {
                log::tell(&format!("queue pair {:#08x} {words}", qpn.value()));
            }
        }
    }

    fn owner(&self, event: work::AsyncEvent) -> Option<&Arc<AsyncQueue>> {
        match event {
            work::AsyncEvent::SrqLimitReached(srq) => self.srq_owners.get(&srq),
            _ => self.qp_owners.get(&qp_of(event)?),
        }
    }

    /// A queue pair begins to use `ring`.
    pub(crate) fn use_queue(&mut self, ring: &Arc<CqRing>) {
        let index = ring.id().0 as usize;
        if self.queues.len() <= index {
            self.queues.resize_with(index + 1, || None);
        }
        match &mut self.queues[index] {
            Some((_, users)) => *users += 1,
            empty => {
                ring.add_shard(self.index);
                *empty = Some((Arc::clone(ring), 1));
            }
        }
    }

    /// Undoes one [`Self::use_queue`].
    pub(crate) fn leave_queue(&mut self, cq: CqId) {
        if let Some(entry) = self.queues.get_mut(cq.0 as usize)
            && let Some((ring, users)) = entry
        {
            *users -= 1;
            if *users == 0 {
                ring.remove_shard(self.index);
                *entry = None;
            }
        }
    }

    /// Puts `event` into the queue of every context that has queue pairs here, once each.
    pub(super) fn tell_everyone(&self, event: AsyncEvent) {
        let mut told: Vec<*const AsyncQueue> = Vec::new();
        for owner in self.qp_owners.values() {
            let address = Arc::as_ptr(owner);
            if !told.contains(&address) {
                told.push(address);
                owner.push(event);
            }
        }
    }

    pub(crate) fn report(&self) -> LinkReport {
        let mut report = self.report.clone();
        report.receive_drops = self.link.drops();
        report.malformed = self.arrivals.malformed();
        report.frames = self.link.frame_drops();
        report
    }
}

/// The link's run as the core takes it.
fn core_run<'a>(run: &net::Run<'a>) -> Run<'a> {
    Run { meta: run.meta(), bytes: run.bytes, segment: run.segment_size }
}
