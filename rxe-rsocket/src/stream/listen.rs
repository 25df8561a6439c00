//! Listening and accepting. The library's thread answers requests, and accept takes established connections.

use super::{Stage, StreamSocket};
use crate::{
    error::SocketError,
    flags::Flags,
    link::{Link, Parts},
    lock,
    proto::Hello,
    stack::{Shared, Watched},
};
use nix::sys::resource::{Resource, getrlimit};
use rxe_cm::{CmEvent, CmId, ConnParams, EventChannel, EventKind};
use std::{collections::VecDeque, os::fd::AsFd, sync::Arc};

/// Most connections that wait for the program, whatever backlog it asks for.
const MOST: usize = 4096;
/// Most connections beyond the backlog that were answered, but are not established yet.
const COMING: usize = 16;
/// Most descriptors of a connection.
const DESCRIPTORS: u64 = 3;

/// The state of a listener.
#[derive(Debug)]
pub(super) struct Listening {
    channel: EventChannel,
    token: u64,
    backlog: usize,
    /// How many connections beyond that may be answered and not yet established.
    beyond: usize,
    /// Connections that were answered, but are not established yet.
    coming: Vec<Arc<StreamSocket>>,
    standing: VecDeque<Arc<StreamSocket>>,
    /// Connections that were established so far, for edge-triggered waiting.
    arrived: u64,
    /// Whether requests wait until there is room.
    paused: bool,
}

impl Listening {
    fn is_full(&self) -> bool {
        // Peers that do not finish must not take the place of others.
        let standing = self.standing.len();
        standing >= self.backlog || standing + self.coming.len() >= self.backlog + self.beyond
    }

    fn take_coming(&mut self, number: usize) -> Option<Arc<StreamSocket>> {
        let place = self.coming.iter().position(|socket| socket.number == number)?;
        Some(self.coming.swap_remove(place))
    }

    /// The listener is closed. Connections that were not accepted are ended.
    pub(super) fn end(self, shared: &Shared) {
        shared.unwatch(self.channel.as_fd(), self.token);
        for socket in self.coming.into_iter().chain(self.standing) {
            socket.abort();
        }
    }
}

/// Most connections that wait for the program. Unlike the system's they have descriptors of the process. They may take a quarter of
/// these, and those that are not established as many: peers whom nobody accepts, or who do not finish, must not use up all.
fn most_waiting() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    usize::try_from(limit / 4 / DESCRIPTORS).unwrap_or(MOST).clamp(1, MOST)
}

impl StreamSocket {
    /// Begins to listen (rlisten). When `backlog` connections wait to be accepted, or some more are being established, further
    /// requests wait unanswered. The backlog is limited by the number of descriptors that the process may have.
    ///
    /// # Errors
    /// [`SocketError::State`], [`SocketError::Cm`].
    pub fn listen(self: &Arc<Self>, backlog: usize) -> Result<(), SocketError> {
        let mut state = self.state();
        let most = most_waiting();
        let (backlog, beyond) = (backlog.clamp(1, most), COMING.min(most));
        match &mut state.phase {
            Stage::New => {}
            Stage::Listening(listening) => {
                (listening.backlog, listening.beyond) = (backlog, beyond);
                return Ok(());
            }
            other => return Err(SocketError::State { action: "listen", state: other.doing() }),
        }
        let id = state.id()?.clone();
        let channel = EventChannel::new()?;
        id.migrate(&channel)?;
        id.listen(backlog)?;
        let shared = self.stack.shared();
        let token = shared.watch(channel.as_fd(), Watched::Listener(Arc::downgrade(self)))?;
        state.phase = Stage::Listening(Listening {
            channel,
            token,
            backlog,
            beyond,
            coming: Vec::new(),
            standing: VecDeque::new(),
            arrived: 0,
            paused: false,
        });
        Ok(())
    }

    /// Takes the next established connection (raccept).
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if there is none and the socket does not wait (any longer: SO_RCVTIMEO);
    /// [`SocketError::State`] if it does not listen; [`SocketError::Interrupted`].
    pub fn accept(&self) -> Result<Arc<Self>, SocketError> {
        let until = self.until(Flags::NONE, lock(&self.options).receive_timeout);
        loop {
            let mut state = self.state();
            let Stage::Listening(listening) = &mut state.phase else {
                return Err(SocketError::State { action: "accept", state: state.phase.doing() });
            };
            let next = listening.standing.pop_front();
            if listening.standing.is_empty() {
                self.ready.clear();
            }
            if listening.paused && !listening.is_full() {
                listening.paused = false;
                self.stack.shared().resume(listening.channel.as_fd(), listening.token);
            }
            drop(state);
            match next {
                Some(socket) => return Ok(socket),
                None => self.ready.wait(until)?,
            }
        }
    }

    /// Whether a connection waits to be accepted; `None` if the socket does not listen.
    pub(crate) fn has_standing(&self) -> Option<bool> {
        match &self.state().phase {
            Stage::Listening(listening) => Some(!listening.standing.is_empty()),
            _ => None,
        }
    }

    /// Connections that the listener has had so far.
    pub(super) fn arrived(&self) -> u64 {
        if let Stage::Listening(listening) = &self.state().phase { listening.arrived } else { 0 }
    }

    /// Handles requests that have arrived.
    pub(crate) fn take_requests(self: &Arc<Self>) {
        loop {
            let mut state = self.state();
            let settings = state.settings;
            let Stage::Listening(listening) = &mut state.phase else { return };
            if listening.is_full() {
                listening.paused = true;
                self.stack.shared().pause(listening.channel.as_fd());
                return;
            }
            let Some(event) = listening.channel.try_get_event() else { return };
            if !matches!(event.kind, EventKind::ConnectRequest(_)) {
                continue;
            }
            drop(state);
            match self.answer(&event, &settings) {
                Ok(()) => {}
                Err(error) => {
                    rxe_verbs::tell(&format!("a connection is refused: {error}"));
                    // If this fails, dropping the id refuses the request as well.
                    let _ = event.id.reject(&[]);
                }
            }
        }
    }

    fn answer(self: &Arc<Self>, event: &CmEvent, settings: &crate::Settings) -> Result<(), SocketError> {
        let hello = Hello::decode(&event.private_data)?;
        let id: CmId = event.id.clone();
        let parts = Parts::new(&id, settings)?;
        let own = parts.hello().encode();
        let number = id.number();
        id.migrate(&self.stack.shared().channel)?;
        let phase = Stage::Accepting(Arc::downgrade(self));
        let socket = Self::of(&self.stack, self.domain, id.clone(), phase, *settings)?;
        *lock(&socket.options) = lock(&self.options).inherited();
        // Data may arrive before the peer's RTU.
        let link = Link::new(parts, hello);
        // This is the only place where it is set.
        let _ = socket.link.set(link);
        let mut state = self.state();
        let Stage::Listening(listening) = &mut state.phase else {
            self.stack.shared().leave(number);
            return Err(SocketError::NotConnected);
        };
        listening.coming.push(Arc::clone(&socket));
        drop(state);
        let accepted = id.accept(&ConnParams { private_data: &own, ..ConnParams::default() });
        if let Err(error) = accepted {
            self.forget(number);
            return Err(error.into());
        }
        Ok(())
    }

    /// A connection that was answered is established.
    pub(super) fn on_accepted(&self, number: usize) {
        if let Stage::Listening(listening) = &mut self.state().phase
            && let Some(socket) = listening.take_coming(number)
        {
            listening.standing.push_back(socket);
            listening.arrived += 1;
            self.changed();
        }
    }

    /// A connection that was answered has failed.
    pub(super) fn forget(&self, number: usize) {
        let mut state = self.state();
        let Stage::Listening(listening) = &mut state.phase else { return };
        let gone = listening.take_coming(number);
        if listening.paused {
            listening.paused = false;
            self.stack.shared().resume(listening.channel.as_fd(), listening.token);
        }
        drop(state);
        if let Some(gone) = gone {
            gone.abort();
        }
    }
}
