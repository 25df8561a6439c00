//! The service's clients: their connections, their messages, and their end.

use super::{Service, Token, ask::Question, watch};
use crate::{
    host::{
        message::{MAX_MESSAGE, ToClient, ToService, decode, encode},
        vault::Vault,
    },
    sys::unix::{Channel, Peer, Received},
    trust::is_nobody_in_particular,
};
use nix::{errno::Errno, sys::epoll::EpollFlags};
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

/// Most connections: for 255 slots, observers, and new connections.
const MAX_CONNECTIONS: usize = 512;
/// The connection of an observer that has asked nothing for this long is closed.
const OBSERVING: Duration = Duration::from_secs(60);
/// A connection that has not sent a `Hello` after this long is closed.
const MANNERS: Duration = Duration::from_secs(5);
/// Most messages of one client that are handled before it is the others' turn.
const BURST: usize = 16;

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) channel: Channel,
    pub(super) peer: Peer,
    pub(super) since: Instant,
    /// When its last message arrived.
    heard: Instant,
    pub(super) kind: Kind,
    /// Its features, as in [`Hello`](crate::host::message::Hello).
    pub(super) features: u64,
    /// Answers that could not be sent at once.
    pub(super) queue: VecDeque<Vec<u8>>,
}

impl Client {
    pub(super) fn new(channel: Channel, peer: Peer) -> Self {
        let (since, queue) = (Instant::now(), VecDeque::new());
        Self { channel, peer, since, heard: since, kind: Kind::New, features: 0, queue }
    }
}

/// What a connection is for.
#[derive(Debug)]
pub(super) enum Kind {
    /// It has not sent a `Hello` yet.
    New,
    /// It wants a slot, and waits until the service has the port.
    Waiting { name: String, pidfd: Option<OwnedFd>, version: u16 },
    /// The process that has this slot.
    Member(u8),
    /// An observer.
    Observer,
    /// It sends and receives management datagrams.
    Manager,
}

/// Why a connection is closed.
pub(super) enum End {
    /// The other side closed it.
    Gone,
    /// It was refused, with a text.
    Refused(String),
    /// It was refused for now, and may try again later.
    Busy(String),
    /// It broke a rule of the messages.
    Misbehaved(&'static str),
}

impl Service {
    /// Accepts new connections.
    pub(super) fn accept(&mut self) {
        for _ in 0..BURST {
            let Some(listener) = &self.listener else { return };
            let channel = match listener.accept() {
                Ok(Some(channel)) => channel,
                Ok(None) => return,
                Err(error) if self.port.is_none() => {
                    self.make_way(&error);
                    return;
                }
                // The connection stays in the queue, and would wake us again at once.
                Err(error) => {
                    let _ = self.epoll.delete(listener.as_fd());
                    self.deaf = true;
                    self.journal
                        .note(&format!("a connection could not be taken: {error}; trying again in a second"));
                    return;
                }
            };
            self.welcome(channel);
        }
    }

    /// Accepts new connections again, if that was not possible for a while.
    pub(super) fn hear_again(&mut self) {
        if let (true, Some(listener)) = (self.deaf, &self.listener) {
            self.deaf = watch(&self.epoll, listener.as_fd(), Token::Listener).is_err();
        }
    }

    fn welcome(&mut self, channel: Channel) {
        let Ok(peer) = channel.peer() else { return };
        if peer.uid != self.uid || is_nobody_in_particular(peer.uid) {
            if !self.is_needed() {
                self.journal.note(&format!(
                    "user {} (process {}) needs the port, and nobody here does",
                    peer.uid, peer.pid
                ));
                let text = "the host service of another user makes room".to_owned();
                let _ = channel.send(&encode(&ToClient::Busy(text)), &[]);
                self.stop();
                return;
            }
            let text = format!(
                "the rxe host service here (process {}) belongs to user {} and serves nobody else, and you are user {}: \
                 run as that user, use a network namespace of your own, or have it ended",
                std::process::id(),
                self.uid,
                peer.uid
            );
            self.counters.refused += 1;
            self.journal.note_seldom(&format!("user {} (process {}) was refused", peer.uid, peer.pid));
            let _ = channel.send(&encode(&ToClient::Refused(text)), &[]);
            return;
        }
        if self.clients.len() >= MAX_CONNECTIONS {
            let why = "too many connections";
            self.counters.refused += 1;
            self.journal.note_seldom(&format!("process {} was told to come later: {why}", peer.pid));
            let _ = channel.send(&encode(&ToClient::Busy(why.to_owned())), &[]);
            return;
        }
        let key = self.clients.insert(Client::new(channel, peer));
        if watch(&self.epoll, self.clients[key].channel.as_fd(), Token::Client(key)).is_err() {
            self.clients.remove(key);
        }
    }

    /// A client's connection is readable or writable.
    pub(super) fn hear(&mut self, key: usize, flags: EpollFlags) {
        if flags.contains(EpollFlags::EPOLLOUT) {
            self.flush(key);
        }
        let mut buffer = [0; MAX_MESSAGE];
        for _ in 0..BURST {
            let Some(client) = self.clients.get(key) else { return };
            // The next check of all descriptors ends the service.
            if !client.channel.is_intact() {
                return;
            }
            let end = match client.channel.receive(&mut buffer, 1 + Vault::DESCRIPTORS) {
                Ok(Received::Message(len, fds)) => self.handle_message(key, &buffer[..len], fds).err(),
                Ok(Received::Nothing) => return,
                Ok(Received::Closed) => Some(End::Gone),
                Err(error) if error.raw_os_error() == Some(Errno::EMFILE as i32) => {
                    Some(if self.port.is_none() {
                        self.make_way(&error)
                    } else {
                        End::Busy("the host service has too many open files".to_owned())
                    })
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    Some(End::Misbehaved("its message is too long or brings too many descriptors"))
                }
                Err(_) => Some(End::Gone),
            };
            if let Some(end) = end {
                self.close(key, end);
                return;
            }
        }
    }

    fn handle_message(&mut self, key: usize, bytes: &[u8], fds: Vec<OwnedFd>) -> Result<(), End> {
        let Some(message) = decode::<ToService>(bytes) else {
            return Err(End::Misbehaved("its message makes no sense"));
        };
        if let Some(client) = self.clients.get_mut(key) {
            client.heard = Instant::now();
        }
        let brings = !fds.is_empty();
        match (message, &self.clients[key].kind) {
            (ToService::Hello(hello), Kind::New) => return self.greet(key, hello, fds),
            _ if brings => return Err(End::Misbehaved("it sent descriptors that nobody asked for")),
            (ToService::Listen { token, listen }, Kind::Member(slot)) => {
                let added = self.listeners.add(usize::from(*slot), token, listen);
                self.listeners_changed();
                let answer =
                    if added { ToClient::Listening { token } } else { ToClient::NotListening { token } };
                self.answer(key, &answer);
                self.serve_unheard();
            }
            (ToService::Unlisten { token }, Kind::Member(slot)) => {
                self.listeners.remove(usize::from(*slot), token);
                self.listeners_changed();
            }
            (ToService::Whose { request, service_id, address }, Kind::Member(slot)) => {
                let yours = self.is_to_answer(*slot, request, service_id, address);
                self.answer(key, &ToClient::Whose { request, yours });
            }
            (ToService::Taken { request }, Kind::Member(_)) => self.answered.take(Instant::now(), request),
            (ToService::Inbox { slot }, Kind::Member(_)) => self.tell_inbox(key, slot),
            (ToService::HandOn(packet), Kind::Member(slot)) => {
                let slot = *slot;
                if !packet.is_sound() {
                    return Err(End::Misbehaved("it handed on a packet that cannot be one"));
                }
                self.handle_stray(slot, &packet);
            }
            (ToService::Told { ask, part }, Kind::Member(slot)) => {
                let slot = *slot;
                self.handle_told(slot, ask, part);
            }
            (ToService::Leave, Kind::Member(slot)) => {
                let slot = *slot;
                self.clients[key].kind = Kind::New;
                self.journal.note(&format!("slot {slot}: its process left"));
                self.retire(slot);
                self.store();
                return Err(End::Gone);
            }
            (ToService::Status, Kind::Observer) => self.tell_status(key),
            (ToService::Stats, Kind::Observer) => return self.ask_everyone(key, Question::Stats),
            (ToService::Read { path }, Kind::New | Kind::Observer) => return self.read_file(key, path),
            (ToService::Reload, Kind::Observer) => self.reload(key),
            (ToService::Stop, Kind::Observer) => self.stop(),
            (ToService::OpenMads { device }, Kind::Observer) => return self.open_mads(key, &device),
            (ToService::RegisterMads(filter), Kind::Manager) => self.register_mads(key, filter),
            (ToService::UnregisterMads { agent }, Kind::Manager) => self.unregister_mads(key, agent),
            (ToService::SendMad(mad), Kind::Manager) => self.submit_mad(key, mad),
            _ => return Err(End::Misbehaved("it said that at the wrong time")),
        }
        Ok(())
    }

    /// Closes connections that have sent no `Hello` in time.
    pub(super) fn close_silent(&mut self, now: Instant) {
        let late = |client: &Client| {
            let most = match client.kind {
                Kind::New => MANNERS,
                Kind::Observer => OBSERVING,
                Kind::Waiting { .. } | Kind::Member(_) | Kind::Manager => return false,
            };
            now.duration_since(client.heard) > most
        };
        let keys: Vec<usize> =
            self.clients.iter().filter(|(_, client)| late(client)).map(|(key, _)| key).collect();
        for key in keys {
            self.close(key, End::Misbehaved("it said nothing for long"));
        }
    }

    /// Closes a connection. A process keeps its slot until it is dead, because it may still use the sockets.
    pub(super) fn close(&mut self, key: usize, end: End) {
        let Some(mut client) = self.clients.try_remove(key) else { return };
        match end {
            End::Gone => {}
            End::Refused(text) => {
                self.counters.refused += 1;
                self.journal.note_seldom(&format!("process {} was refused: {text}", client.peer.pid));
                client.queue.clear();
                let _ = client.channel.send(&encode(&ToClient::Refused(text)), &[]);
            }
            End::Busy(why) => {
                self.counters.refused += 1;
                self.journal
                    .note_seldom(&format!("process {} was told to come later: {why}", client.peer.pid));
                let _ = client.channel.send(&encode(&ToClient::Busy(why)), &[]);
            }
            End::Misbehaved(why) => {
                self.counters.misbehaved += 1;
                self.journal.note_seldom(&format!("process {} was cut off: {why}", client.peer.pid));
            }
        }
        if let Kind::Member(slot) = client.kind {
            self.presences.hang_up(slot);
            self.listeners.remove_owner(usize::from(slot));
            self.listeners_changed();
        }
        self.forget_asks_of(key);
        self.forget_mads_of(key);
    }

    /// From now on new clients do not find this service. It ends with its last client.
    pub(super) fn stop(&mut self) {
        if let Some(listener) = self.listener.take() {
            let _ = self.epoll.delete(listener.as_fd());
            self.journal.note("ends with its last client");
        }
    }
}
