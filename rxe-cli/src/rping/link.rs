//! One connection: its queue pair and memory, and its events, from the queue pair or the connection manager.

use super::message::{Buffer, LEN, MOST};
use crate::{Result, cm};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rxe_cm::{CmId, ConnParams, EventChannel, EventKind, ForeignQp};
use rxe_verbs::{
    Access, CompChannel, Completion, Cq, GidType, Mr, Qp, QpCaps, QpChange, QpInit, QpState, QpType, RecvWr,
    SendOp, SendWr, WcOpcode, WcStatus,
};
use std::{
    net::SocketAddr,
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

/// Queue sizes, those of rping.
const CAPS: QpCaps =
    QpCaps { max_send_wr: 16, max_recv_wr: 2, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
/// The offset of the message to send, behind the two received ones.
const OUT: usize = 2 * LEN;
/// How long to poll for an answer before sleeping.
const SPIN: Duration = Duration::from_micros(50);
/// If the queue pair fails because the peer has ended the connection, the peer's message may arrive a moment later.
const MOMENT: Duration = Duration::from_secs(2);

/// A connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: CmId,
    pub(super) peer: SocketAddr,
    events: EventChannel,
    qp: Arc<Qp>,
    cq: Cq,
    completions: CompChannel,
    messages: Mr,
    /// The server's buffer for READs and WRITEs, or the client's buffer for the answer.
    pub(super) data: Mr,
    /// The client's data, which the server READs.
    pub(super) source: Mr,
    terms: Terms,
}

/// Options of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// How long to wait for a silent peer; `None` for ever.
    pub(super) patience: Option<Duration>,
    /// Whether to print events.
    pub(super) debug: bool,
    /// Make and change the queue pair ourselves, as programs do that do not leave it to the id.
    pub(super) own_qp: bool,
}

impl Terms {
    pub(super) fn note(self, what: impl FnOnce() -> String) {
        if self.debug {
            eprintln!("{}", what());
        }
    }
}

/// An event.
#[derive(Debug)]
pub(super) enum Next {
    /// The peer has sent the address of a buffer, or a go-ahead.
    Message(Buffer),
    /// Our READ or WRITE has completed.
    Done,
    /// The peer has ended the connection.
    HungUp,
}

impl Link {
    /// Makes the queue pair of an id that knows its device, ready to receive.
    pub(super) fn new(id: CmId, events: EventChannel, peer: SocketAddr, terms: Terms) -> Result<Self> {
        let context = id.context().ok_or("the device of the connection is not known")?;
        let pd = context.alloc_pd()?;
        let completions = context.create_comp_channel()?;
        let cq = context.create_cq(CAPS.max_send_wr + CAPS.max_recv_wr, Some(&completions))?;
        let remote = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let messages = pd.alloc_mr(3 * LEN, Access::LOCAL_WRITE)?;
        let (data, source) = (pd.alloc_mr(MOST as usize, remote)?, pd.alloc_mr(MOST as usize, remote)?);
        let init = QpInit { caps: CAPS, ..QpInit::new(QpType::Rc, &cq) };
        let qp = if terms.own_qp { Arc::new(pd.create_qp(&init)?) } else { id.create_qp(&pd, &init)? };
        if terms.own_qp {
            qp.modify(&id.qp_change(QpState::Init)?)?;
        }
        let link = Self { id, peer, events, qp, cq, completions, messages, data, source, terms };
        (0..2).try_for_each(|place| link.expect_message(place))?;
        Ok(link)
    }

    /// The queue pair, where the id does not know it.
    fn params(&self) -> ConnParams<'static> {
        let foreign = ForeignQp { qpn: self.qp.qpn(), srq: false };
        ConnParams { qp: self.terms.own_qp.then_some(foreign), ..ConnParams::default() }
    }

    /// Makes a queue pair of our own ready, as the connection manager says. Init once more: only now it is known whether
    /// the peer may READ.
    fn make_ready(&self) -> Result<()> {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.qp.modify(&self.id.qp_change(state)?)?;
        }
        Ok(())
    }

    /// Asks the peer for the connection.
    pub(super) fn connect(&self) -> Result<()> {
        let one = Some(1);
        self.id.connect(&ConnParams { responder_resources: one, initiator_depth: one, ..self.params() })?;
        let event = cm::next(&self.events, self.terms.patience)?;
        let kind = event.map_or(EventKind::Unreachable(GidType::RoceV2), |event| event.kind);
        self.terms.note(|| format!("event {} of the connection with {}", kind.name(), self.peer));
        match kind {
            EventKind::Established(_) => Ok(()),
            EventKind::ConnectResponse(_) if self.terms.own_qp => {
                self.make_ready()?;
                Ok(self.id.establish()?)
            }
            other => Err(cm::failure(&other, self.peer).into()),
        }
    }

    /// Accepts the peer's request.
    pub(super) fn accept(&self) -> Result<()> {
        if self.terms.own_qp {
            self.make_ready()?;
        }
        Ok(self.id.accept(&self.params())?)
    }

    fn expect_message(&self, place: u64) -> Result<()> {
        let sges = [self.messages.sge(place as usize * LEN, LEN as u32)];
        Ok(self.qp.post_recv(&RecvWr { wr_id: place, sges: &sges })?)
    }

    /// Sends the address of one of our buffers.
    pub(super) fn tell(&self, mr: &Mr, len: u32) -> Result<()> {
        self.send(Buffer { addr: mr.addr(), rkey: mr.rkey().0, len })
    }

    /// Sends a go-ahead.
    pub(super) fn go_ahead(&self) -> Result<()> {
        self.send(Buffer::default())
    }

    fn send(&self, buffer: Buffer) -> Result<()> {
        self.messages.write_at(OUT, &buffer.emit())?;
        Ok(self.qp.post_send(&SendWr::new(0, SendOp::Send, &[self.messages.sge(OUT, LEN as u32)]))?)
    }

    /// READs or WRITEs with the first `len` bytes of our buffer. False if the peer has ended the connection.
    pub(super) fn transfer(&self, op: SendOp, len: u32) -> Result<bool> {
        self.qp.post_send(&SendWr::new(0, op, &[self.data.sge(0, len)]))?;
        match self.next()? {
            Next::Done => Ok(true),
            Next::HungUp => Ok(false),
            Next::Message(_) => Err(self.lost("it sends a message out of turn")),
        }
    }

    /// Waits for the next event.
    pub(super) fn next(&self) -> Result<Next> {
        let start = Instant::now();
        let mut armed = false;
        loop {
            let mut one = [Completion::default()];
            if self.cq.poll(&mut one)? == 1 {
                armed = false;
                if let Some(next) = self.completed(&one[0])? {
                    return Ok(next);
                }
                continue;
            }
            if let Some(next) = self.told()? {
                return Ok(next);
            }
            if start.elapsed() < SPIN {
                continue;
            }
            let left = self.terms.patience.map(|patience| patience.saturating_sub(start.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                let seconds = self.terms.patience.unwrap_or_default().as_secs_f64();
                return Err(self.lost(&format!("it has said nothing for {seconds} s; is it still running?")));
            }
            // Completions from before the queue was armed cause no event, so it is polled once more.
            if armed {
                wait(&[self.completions.as_fd(), self.events.as_fd()], left)?;
            } else {
                while self.completions.try_get_event().is_some() {}
                self.cq.req_notify(false);
            }
            armed = !armed;
        }
    }

    fn completed(&self, wc: &Completion) -> Result<Option<Next>> {
        match (wc.status, wc.opcode) {
            (WcStatus::Success, WcOpcode::Recv) => {
                if wc.byte_len as usize != LEN {
                    let len = wc.byte_len;
                    return Err(self.lost(&format!("it sends {len} bytes; a message of rping has {LEN}")));
                }
                let mut bytes = [0; LEN];
                self.messages.read_at(wc.wr_id as usize * LEN, &mut bytes)?;
                self.expect_message(wc.wr_id)?;
                let buffer = Buffer::parse(bytes);
                self.terms.note(|| format!("message from {}: {buffer:x?}", self.peer));
                Ok(Some(Next::Message(buffer)))
            }
            (WcStatus::Success, WcOpcode::Read | WcOpcode::Write) => Ok(Some(Next::Done)),
            (WcStatus::Success, _) => Ok(None),
            (status, opcode) => {
                // Its last acknowledgement may be lost with the connection that it ends.
                let start = Instant::now();
                while start.elapsed() < MOMENT {
                    if let Some(next) = self.told()? {
                        return Ok(Some(next));
                    }
                    self.wait_for_event(MOMENT)?;
                }
                let advice = match status {
                    WcStatus::RetryExceeded => ": it does not answer; is it still running?",
                    WcStatus::RemoteAccess => ": it does not allow access to the memory that it named",
                    _ => "",
                };
                Err(self.lost(&format!("{opcode:?} failed with {status:?}{advice}")))
            }
        }
    }

    /// The event for a message of the connection manager, if it matters.
    fn told(&self) -> Result<Option<Next>> {
        while let Some(event) = self.events.try_get_event() {
            self.terms.note(|| format!("event {} of the connection with {}", event.kind.name(), self.peer));
            match event.kind {
                EventKind::Established(_) | EventKind::TimewaitExit => {}
                EventKind::Disconnected { .. } => return Ok(Some(Next::HungUp)),
                other => return Err(cm::failure(&other, self.peer).into()),
            }
        }
        Ok(None)
    }

    fn wait_for_event(&self, timeout: Duration) -> Result<()> {
        wait(&[self.events.as_fd()], Some(timeout))
    }

    /// An error of this connection.
    pub(super) fn lost(&self, what: &str) -> crate::Error {
        format!("with {}: {what}", self.peer).into()
    }

    /// Ends the connection, and waits a moment until the peer agrees.
    pub(super) fn hang_up(&self) {
        // Both sides may do this at the same time, and the peer may be gone.
        if self.disconnect() {
            let start = Instant::now();
            while let Ok(None) = self.told() {
                if start.elapsed() > MOMENT || self.wait_for_event(MOMENT).is_err() {
                    break;
                }
            }
        }
    }

    /// Confirms that the peer ends it.
    pub(super) fn agree(&self) {
        self.disconnect();
    }

    /// False if there is no connection.
    fn disconnect(&self) -> bool {
        if self.terms.own_qp {
            // In any state. The id does this for a queue pair that it owns.
            let _ = self.qp.modify(&QpChange { state: Some(QpState::Error), ..QpChange::default() });
        }
        self.id.disconnect().is_ok()
    }
}

fn wait(fds: &[std::os::fd::BorrowedFd<'_>], timeout: Option<Duration>) -> Result<()> {
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    let timeout = timeout.map_or(PollTimeout::NONE, |timeout| {
        PollTimeout::try_from(timeout + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX)
    });
    match poll(&mut fds, timeout) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(format!("cannot wait for the peer: {error}").into()),
    }
}
