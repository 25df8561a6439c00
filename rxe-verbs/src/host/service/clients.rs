//! The service's clients: who they are, what they say, and their end.

use super::{Port, Service, Token, watch};
use crate::{
    engine::now,
    host::{
        group::Group,
        message::{
            FURTHER, Hello, MAGIC, MAX_MESSAGE, Packet, Role, ToClient, ToService, Welcome, clean, decode,
            encode,
        },
        records::{Records, Register},
        slots::{Holder, Slot},
        vault::Vault,
    },
    net::OpenError,
    sys::{
        kept::Kept,
        unix::{Channel, Peer, Received, out_of_the_way, pid_of, same_process},
    },
};
use nix::sys::epoll::{EpollEvent, EpollFlags};
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

/// Connections at most: 255 slots, observers, and newcomers.
const MAX_CONNECTIONS: usize = 512;
/// Observers at most; they must not keep clients away.
const MAX_OBSERVERS: usize = 64;
/// An observer that has asked nothing for so long is closed.
const OBSERVING: Duration = Duration::from_secs(60);
/// A connection that has not said who it is after so long is closed.
const MANNERS: Duration = Duration::from_secs(5);
/// How long a newcomer waits for a slot.
const QUEUEING: Duration = Duration::from_secs(5);
/// Answers that wait for a client to read at most.
const MAX_QUEUE: usize = 1024;
/// Packets among them at most; more are lost, as in a socket buffer.
const MAX_QUEUED_PACKETS: usize = 512;
/// Messages of one client that are heard before the others get their turn.
const BURST: usize = 16;
/// A process without a pidfd that is not connected is taken for dead after so long.
const UNWATCHED: Duration = Duration::from_secs(30);

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) channel: Channel,
    pub(super) peer: Peer,
    since: Instant,
    /// When it said something last.
    heard: Instant,
    pub(super) kind: Kind,
    /// Its slot is not the first of its stack.
    pub(super) further: bool,
    /// Answers that did not go out at once.
    queue: VecDeque<Vec<u8>>,
}

/// What a connection is for.
#[derive(Debug)]
pub(super) enum Kind {
    /// It has not said.
    New,
    /// It wants a slot, and waits until the port is ours.
    Waiting { name: String, pidfd: Option<OwnedFd>, version: u16 },
    /// The process that has this slot.
    Member(u8),
    /// It looks.
    Observer,
}

/// Why a connection is closed.
enum End {
    /// The other side did it.
    Gone,
    /// It was told so, in words.
    Refused(String),
    /// It was told so, and that it will be welcome later.
    Busy(&'static str),
    /// It broke a rule.
    Misbehaved(&'static str),
}

impl Service {
    /// Takes new connections.
    pub(super) fn accept(&mut self) {
        for _ in 0..BURST {
            let Some(listener) = &self.listener else { return };
            let channel = match listener.accept() {
                Ok(Some(channel)) => channel,
                Ok(None) => return,
                // It stays in the queue, and would wake us again at once.
                Err(error) => {
                    let _ = self.epoll.delete(listener.as_fd());
                    self.deaf = true;
                    self.note(&format!("a connection could not be taken: {error}; trying again in a second"));
                    return;
                }
            };
            self.welcome(channel);
        }
    }

    /// Takes new connections again, if that was not possible for a while.
    pub(super) fn hear_again(&mut self) {
        if let (true, Some(listener)) = (self.deaf, &self.listener) {
            self.deaf = watch(&self.epoll, listener.as_fd(), Token::Listener).is_err();
        }
    }

    fn welcome(&mut self, channel: Channel) {
        let Ok(peer) = channel.peer() else { return };
        if peer.uid != self.uid || is_nobody_in_particular(peer.uid) {
            if !self.is_needed() {
                self.note(&format!(
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
            self.note_seldom(&format!("user {} (process {}) was refused", peer.uid, peer.pid));
            let _ = channel.send(&encode(&ToClient::Refused(text)), &[]);
            return;
        }
        if self.clients.len() >= MAX_CONNECTIONS {
            let why = "too many connections";
            self.counters.refused += 1;
            self.note_seldom(&format!("process {} was told to come later: {why}", peer.pid));
            let _ = channel.send(&encode(&ToClient::Busy(why.to_owned())), &[]);
            return;
        }
        let (since, queue, further) = (Instant::now(), VecDeque::new(), false);
        let client = Client { channel, peer, since, heard: since, kind: Kind::New, further, queue };
        let key = self.clients.insert(client);
        if watch(&self.epoll, self.clients[key].channel.as_fd(), Token::Client(key)).is_err() {
            self.clients.remove(key);
        }
    }

    /// A client has said something, or can be told something.
    pub(super) fn hear(&mut self, key: usize, flags: EpollFlags) {
        if flags.contains(EpollFlags::EPOLLOUT) {
            self.flush(key);
        }
        let mut buffer = [0; MAX_MESSAGE];
        for _ in 0..BURST {
            let Some(client) = self.clients.get(key) else { return };
            // The next look at everybody's descriptors ends the service.
            if !client.channel.is_intact() {
                return;
            }
            let end = match client.channel.receive(&mut buffer, 1 + Vault::DESCRIPTORS) {
                Ok(Received::Message(len, fds)) => self.handle_message(key, &buffer[..len], fds).err(),
                Ok(Received::Nothing) => return,
                Ok(Received::Closed) => Some(End::Gone),
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
                self.connected.remove(&slot);
                self.clients[key].kind = Kind::New;
                self.note(&format!("slot {slot}: its process left"));
                self.retire(slot);
                self.store();
                return Err(End::Gone);
            }
            (ToService::Status, Kind::Observer) => self.tell_status(key),
            (ToService::Stats, Kind::Observer) => self.ask_everyone(key),
            (ToService::Stop, Kind::Observer) => self.stop(),
            _ => return Err(End::Misbehaved("it said that at the wrong time")),
        }
        Ok(())
    }

    /// The first words of a connection.
    fn greet(&mut self, key: usize, hello: Hello, mut fds: Vec<OwnedFd>) -> Result<(), End> {
        if hello.magic != MAGIC {
            return Err(End::Misbehaved("it is no rxe"));
        }
        let version = hello.agree().map_err(End::Refused)?;
        self.clients[key].further = hello.features & FURTHER != 0;
        let wrong = || End::Misbehaved("its first message lacks descriptors, or has others");
        match hello.role {
            Role::Observe if fds.is_empty() => {
                let observers = |(_, client): &(usize, &Client)| matches!(client.kind, Kind::Observer);
                if self.clients.iter().filter(observers).count() >= MAX_OBSERVERS {
                    return Err(End::Busy("too many programs look at the host service"));
                }
                self.clients[key].kind = Kind::Observer;
                Ok(())
            }
            Role::Join { name } if fds.len() <= 1 => {
                let pidfd = self.checked_pidfd(key, fds.pop())?;
                self.clients[key].kind = Kind::Waiting { name: clean(&name), pidfd, version };
                if self.port.is_some() { self.admit(key) } else { Ok(()) }
            }
            Role::Rejoin { slot, .. } => {
                let count = fds.len().checked_sub(Vault::DESCRIPTORS).filter(|count| *count <= 1);
                let vault = fds.split_off(count.ok_or_else(wrong)?);
                let vault: [OwnedFd; Vault::DESCRIPTORS] = vault.try_into().map_err(|_| wrong())?;
                let pidfd = self.checked_pidfd(key, fds.pop())?;
                if self.port.is_none() {
                    self.inherit(vault)?;
                }
                self.readmit(key, version, slot, pidfd)
            }
            _ => Err(wrong()),
        }
    }

    /// A pidfd is worth something only if it is the sender's.
    fn checked_pidfd(&self, key: usize, pidfd: Option<OwnedFd>) -> Result<Option<OwnedFd>, End> {
        let Some(fd) = pidfd else { return Ok(None) };
        let sender = self.clients[key].peer.pid;
        match pid_of(fd.as_fd()) {
            // 0: in another process namespace, so that neither number means anything to us.
            Some(pid) if pid == sender || pid == 0 || sender == 0 => Ok(Some(fd)),
            _ => Err(End::Misbehaved("its first message brings a descriptor that is not its own pidfd")),
        }
    }

    /// Gives a waiting client a slot.
    fn admit(&mut self, key: usize) -> Result<(), End> {
        let Client { kind, peer, further, .. } = &mut self.clients[key];
        let (pid, further) = (peer.pid, *further);
        let Kind::Waiting { name, pidfd, version } = core::mem::replace(kind, Kind::New) else {
            return Ok(());
        };
        self.release_orphans(pid);
        self.check_share(pid, pidfd.as_ref(), further).map_err(End::Refused)?;
        let Some(port) = &mut self.port else { return Ok(()) };
        let holder = Holder { pid, name };
        let Some(slot) = self.slots.take(Instant::now(), holder) else {
            let text = "all 255 slots of the port are in use or rest after their last user; try again in some seconds";
            return Err(End::Refused(text.to_owned()));
        };
        let made = port.group.sockets(slot).map(drop);
        let made = made.and_then(|()| port.group.steer().map_err(no_steering)).and_then(|()| make_records());
        let records = match made {
            Ok((records, for_us)) => {
                port.group.put_records(slot, Some(for_us));
                records
            }
            Err(error) => {
                self.slots.give_back(Instant::now(), slot);
                return Err(End::Refused(error.to_string()));
            }
        };
        port.group.drain(slot);
        self.adopt_pidfd(slot, pidfd);
        self.connected.insert(slot, key);
        self.exchanged.remove(&slot);
        self.clients[key].kind = Kind::Member(slot);
        self.counters.joined += 1;
        let text = match self.slots.get(slot) {
            Slot::Held(holder) => format!("slot {slot}: process {pid} ({}) joined", holder.name),
            _ => String::new(),
        };
        self.note(&text);
        self.store();
        self.send_welcome(key, version, slot, Some(&records))
    }

    fn adopt_pidfd(&mut self, slot: u8, pidfd: Option<OwnedFd>) {
        match pidfd.map(out_of_the_way) {
            Some(fd) if watch(&self.epoll, fd.as_fd(), Token::Death(slot)).is_ok() => {
                self.pidfds.insert(slot, Kept::new(fd));
                self.unwatched.remove(&slot);
            }
            _ => _ = self.unwatched.insert(slot, Instant::now()),
        }
    }

    /// With `records`, for whoever is new, go the sockets and the vault.
    fn send_welcome(
        &mut self,
        key: usize,
        version: u16,
        slot: u8,
        records: Option<&Records>,
    ) -> Result<(), End> {
        let Some(port) = &mut self.port else { return Ok(()) };
        let families = port.group.families();
        let welcome = ToClient::Welcome(Welcome {
            version,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            slot,
            families,
            pkeys: self.config.pkeys.clone(),
        });
        let Port { group, vault, .. } = port;
        let sockets = group.sockets(slot).map_err(|error| End::Refused(error.to_string()))?;
        let mut fds = Vec::new();
        if let Some(records) = records {
            fds.extend(sockets.fds());
            fds.extend(vault.descriptors());
            fds.push(records.as_fd());
        }
        self.clients[key].channel.send(&encode(&welcome), &fds).map_err(|_| End::Gone)
    }

    /// Goes on where an earlier service stopped.
    fn inherit(&mut self, fds: [OwnedFd; Vault::DESCRIPTORS]) -> Result<(), End> {
        let refused = |error: &dyn core::fmt::Display| {
            End::Refused(format!(
                "the earlier host service left nothing to go on from ({error}); end this program"
            ))
        };
        let mut vault = Vault::adopt(fds);
        let mut contents = vault.load().map_err(|error| refused(&error))?;
        let earlier = Register::adopt(contents.register).map_err(|error| refused(&error))?;
        let group = Group::adopt(contents.families, &mut contents.members);
        if let Err(error) = self.settle(group, vault).map_err(|error| refused(&error))? {
            self.note(&format!("packets cannot be steered anew here ({error}): nobody can join"));
        }
        let now = Instant::now();
        for member in contents.members.into_iter().filter(|member| member.slot != 0) {
            let held = matches!(member.state, Slot::Held(_));
            self.slots.set(member.slot, member.state);
            if held {
                // Of those that died meanwhile we hear at once.
                self.adopt_pidfd(member.slot, member.pidfd);
                self.unwatched.entry(member.slot).and_modify(|since| *since = now);
            }
        }
        self.restore_listeners(&earlier);
        self.note(&format!("took over from an earlier service: {} members", self.members()));
        self.store();
        self.admit_waiting();
        Ok(())
    }

    /// Those who listened to the earlier service do so now, before anybody else can.
    fn restore_listeners(&mut self, earlier: &Register) {
        for (slot, token, listen) in earlier.load() {
            if matches!(self.slots.get(slot), Slot::Held(_)) {
                self.listeners.add(usize::from(slot), token, listen);
            }
        }
        self.listeners_changed();
    }

    /// Puts those who listen where the next service finds them, and steers requests by them.
    fn listeners_changed(&mut self) {
        let changes = self.listeners.take_changes();
        if let Some(port) = &self.port {
            for (place, change) in changes {
                let of_slot = change
                    .and_then(|(owner, token, listen)| Some((u8::try_from(owner).ok()?, token, listen)));
                port.register.set(place, of_slot);
            }
        }
        self.review_direct();
    }

    fn members(&self) -> usize {
        self.port.as_ref().map_or(0, |port| port.group.len())
    }

    /// A process with a slot is back.
    fn readmit(&mut self, key: usize, version: u16, slot: u8, pidfd: Option<OwnedFd>) -> Result<(), End> {
        let pid = self.clients[key].peer.pid;
        let known = match (self.slots.get(slot), self.pidfds.get(&slot), &pidfd) {
            // Numbers may mean nothing: the process may be of another namespace than the earlier service.
            (Slot::Held(_), Some(ours), Some(theirs)) => same_process(ours.as_fd(), theirs.as_fd()),
            (Slot::Held(holder), ..) => holder.pid == pid,
            _ => false,
        };
        if slot == 0 || !known || self.connected.contains_key(&slot) {
            return Err(End::Refused(format!("slot {slot} is not this process's any more")));
        }
        if !self.pidfds.contains_key(&slot) {
            self.adopt_pidfd(slot, pidfd);
        }
        self.connected.insert(slot, key);
        self.orphans.remove(&slot);
        self.clients[key].kind = Kind::Member(slot);
        self.counters.rejoined += 1;
        self.note(&format!("slot {slot}: process {pid} is back"));
        self.send_welcome(key, version, slot, None)?;
        self.serve_unheard();
        Ok(())
    }

    /// Connections that want a slot and have none, the oldest first.
    fn waiting(&self) -> Vec<usize> {
        let waits = |(_, client): &(usize, &Client)| matches!(client.kind, Kind::Waiting { .. });
        let mut waiting: Vec<_> =
            self.clients.iter().filter(waits).map(|(key, client)| (client.since, key)).collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, key)| key).collect()
    }

    fn admit_waiting(&mut self) {
        for key in self.waiting() {
            if let Err(end) = self.admit(key) {
                self.close(key, end);
            }
        }
    }

    /// Slots have rested, or will not in time.
    fn serve_waiting(&mut self, now: Instant) {
        self.admit_waiting();
        for key in self.waiting() {
            if now.duration_since(self.clients[key].since) > QUEUEING {
                let text =
                    "all 255 slots of the port are in use (`rxe service status` lists their processes)";
                self.close(key, End::Refused(text.to_owned()));
            }
        }
    }

    /// Nobody who uses the port came back in time: those who wait are told.
    pub(super) fn look_after_waiting(&mut self, now: Instant) {
        if self.port.is_some() {
            self.serve_waiting(now);
            return;
        }
        if self.reunion.is_some_and(|until| now < until) {
            return;
        }
        let waiting = self.waiting();
        if waiting.is_empty() && self.reunion.is_none() {
            return;
        }
        self.reunion = None;
        match self.found() {
            Ok(()) => self.admit_waiting(),
            Err(error) => {
                for key in waiting {
                    self.close(key, End::Refused(error.to_string()));
                }
            }
        }
    }

    /// Closes connections that do not say who they are.
    pub(super) fn close_silent(&mut self, now: Instant) {
        let late = |client: &Client| {
            let most = match client.kind {
                Kind::New => MANNERS,
                Kind::Observer => OBSERVING,
                Kind::Waiting { .. } | Kind::Member(_) => return false,
            };
            now.duration_since(client.heard) > most
        };
        let keys: Vec<usize> =
            self.clients.iter().filter(|(_, client)| late(client)).map(|(key, _)| key).collect();
        for key in keys {
            self.close(key, End::Misbehaved("it said nothing for long"));
        }
    }

    /// Processes that cannot be watched and have been away for long are taken for dead.
    pub(super) fn release_unwatched(&mut self, now: Instant) {
        let gone: Vec<u8> = self
            .unwatched
            .iter()
            .filter(|(slot, since)| {
                !self.connected.contains_key(slot) && now.duration_since(**since) > UNWATCHED
            })
            .map(|(slot, _)| *slot)
            .collect();
        for slot in gone {
            self.bury(slot);
        }
    }

    /// Closes a connection. A member's slot stays its until the process is dead: it may still use the sockets.
    fn close(&mut self, key: usize, end: End) {
        let Some(mut client) = self.clients.try_remove(key) else { return };
        match end {
            End::Gone => {}
            End::Refused(text) => {
                self.counters.refused += 1;
                self.note_seldom(&format!("process {} was refused: {text}", client.peer.pid));
                client.queue.clear();
                let _ = client.channel.send(&encode(&ToClient::Refused(text)), &[]);
            }
            End::Busy(why) => {
                self.counters.refused += 1;
                self.note_seldom(&format!("process {} was told to come later: {why}", client.peer.pid));
                let _ = client.channel.send(&encode(&ToClient::Busy(why.to_owned())), &[]);
            }
            End::Misbehaved(why) => {
                self.counters.misbehaved += 1;
                self.note_seldom(&format!("process {} was cut off: {why}", client.peer.pid));
            }
        }
        if let Kind::Member(slot) = client.kind {
            self.connected.remove(&slot);
            self.orphans.insert(slot);
            self.listeners.remove_owner(usize::from(slot));
            self.listeners_changed();
            if let Some(since) = self.unwatched.get_mut(&slot) {
                *since = Instant::now();
            }
        }
        self.forget_asks_of(key);
    }

    /// The process of a slot has died.
    pub(super) fn bury(&mut self, slot: u8) {
        if let Some(key) = self.connected.remove(&slot) {
            self.clients.try_remove(key);
            self.forget_asks_of(key);
        }
        self.counters.died += 1;
        self.note(&format!("slot {slot}: its process died"));
        self.retire(slot);
        self.store();
    }

    /// Takes a slot back: its connections are mourned, its sockets emptied, and it rests.
    pub(super) fn retire(&mut self, slot: u8) {
        if let Some(fd) = self.pidfds.remove(&slot) {
            let _ = self.epoll.delete(fd);
        }
        self.unwatched.remove(&slot);
        self.orphans.remove(&slot);
        self.listeners.remove_owner(usize::from(slot));
        self.listeners_changed();
        let Some(port) = &mut self.port else { return };
        self.counters.drained += port.group.drain(slot);
        let records = port.group.put_records(slot, None).and_then(|records| records.read().ok());
        if let Some(attendant) = &mut self.attendant {
            records.iter().flatten().for_each(|connection| attendant.died(now(), connection));
        }
        self.slots.give_back(Instant::now(), slot);
    }

    /// Sends an answer, now or when the client reads again.
    pub(super) fn answer(&mut self, key: usize, message: &ToClient) {
        let Some(client) = self.clients.get_mut(key) else { return };
        client.queue.push_back(encode(message));
        if client.queue.len() > MAX_QUEUE {
            self.close(key, End::Misbehaved("it does not read its answers"));
            return;
        }
        self.flush(key);
    }

    fn flush(&mut self, key: usize) {
        let Some(client) = self.clients.get_mut(key) else { return };
        while let Some(bytes) = client.queue.front() {
            match client.channel.send(bytes, &[]) {
                Ok(()) => _ = client.queue.pop_front(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Its end is told by a receive.
                Err(_) => client.queue.clear(),
            }
        }
        let mut flags = EpollFlags::EPOLLIN;
        flags.set(EpollFlags::EPOLLOUT, !client.queue.is_empty());
        let mut event = EpollEvent::new(flags, Token::Client(key).number());
        let _ = self.epoll.modify(client.channel.as_fd(), &mut event);
    }

    /// Gives a packet to the process of a slot, now or when it reads again; false if there is none, or it does not take it.
    pub(super) fn deliver(&mut self, slot: u8, packet: Packet) -> bool {
        let Some(key) = self.connected.get(&slot).copied() else { return false };
        let Some(client) = self.clients.get_mut(key) else { return false };
        let bytes = encode(&ToClient::Packet(packet));
        let sent = if client.queue.is_empty() {
            client.channel.send(&bytes, &[])
        } else {
            Err(io::ErrorKind::WouldBlock.into())
        };
        let given = match sent {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let room = client.queue.len() < MAX_QUEUED_PACKETS;
                if room {
                    client.queue.push_back(bytes);
                    self.flush(key);
                }
                room
            }
            Err(_) => false,
        };
        self.exchanged_with(slot).given += u64::from(given);
        given
    }

    /// Newcomers find nobody from now on; the service ends with its last client.
    fn stop(&mut self) {
        if let Some(listener) = self.listener.take() {
            let _ = self.epoll.delete(listener.as_fd());
            self.note("ends with its last client");
        }
    }
}

/// The records of a process that comes now, and the same for us to read.
fn make_records() -> Result<(Records, Records), OpenError> {
    let made = Records::new().and_then(|records| records.for_reading().map(|for_us| (records, for_us)));
    made.map_err(|source| OpenError::System { action: "share memory", source })
}

pub(super) fn no_steering(source: io::Error) -> OpenError {
    OpenError::System {
        action: "steer packets to several processes (SO_ATTACH_REUSEPORT_CBPF); use RXE_SERVICE=off and one process",
        source,
    }
}

/// Whether this user number stands for everyone whom our user namespace has no number for. Nobody can be trusted by it.
pub(crate) fn is_nobody_in_particular(uid: u32) -> bool {
    let number = |path: &str| std::fs::read_to_string(path).ok();
    let overflow = number("/proc/sys/kernel/overflowuid").and_then(|text| text.trim().parse().ok());
    if uid != overflow.unwrap_or(65_534) {
        return false;
    }
    // Mapped from end to end, as outside of every user namespace, the number means a real user.
    let map = number("/proc/self/uid_map").unwrap_or_default();
    let mapped = map.lines().any(|line| {
        let mut fields = line.split_whitespace().filter_map(|field| field.parse::<u64>().ok());
        match (fields.next(), fields.next(), fields.next()) {
            (Some(inside), Some(_), Some(count)) => {
                (inside..inside.saturating_add(count)).contains(&u64::from(uid))
            }
            _ => false,
        }
    });
    !mapped
}
