//! How processes get slots: the first message of a connection, the wait until the service has the port, the welcome, and the return
//! of processes that got their slot from an earlier service.

use super::{
    Port, Service, Token,
    clients::{Client, End, Kind},
    presence::Contact,
    watch,
};
use crate::{
    host::{
        message::{FURTHER, Hello, MAGIC, MEMORY, Role, ToClient, Welcome, clean, encode},
        records::Records,
        settings::Settings,
        slots::{Holder, Slot},
        vault::Vault,
    },
    net::{InboxFiles, OpenError},
    sys::{
        kept::Kept,
        unix::{out_of_the_way, pid_of, pidfd_of, same_process},
    },
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Instant,
};

/// Most observers. They must not take all connections from clients.
const MAX_OBSERVERS: usize = 64;

impl Service {
    /// Acts on the first message of a connection.
    pub(super) fn greet(&mut self, key: usize, hello: Hello, mut fds: Vec<OwnedFd>) -> Result<(), End> {
        if hello.magic != MAGIC {
            return Err(End::Misbehaved("it is no rxe"));
        }
        let version = hello.agree().map_err(End::Refused)?;
        self.clients[key].features = hello.features;
        let wrong = || End::Misbehaved("its first message lacks descriptors, or has others");
        match hello.role {
            Role::Observe if fds.is_empty() => self.become_observer(key),
            Role::Join { name } if fds.len() <= 1 => {
                let pidfd = self.checked_pidfd(key, fds.pop())?;
                self.clients[key].kind = Kind::Waiting { name: clean(&name), pidfd, version };
                if self.port.is_some() { self.admit(key) } else { Ok(()) }
            }
            Role::Rejoin { slot, .. } => {
                let count = fds.len().checked_sub(Vault::DESCRIPTORS).filter(|count| *count <= 1);
                let vault = fds.split_off(count.ok_or_else(wrong)?);
                let vault: [OwnedFd; Vault::DESCRIPTORS] = vault.try_into().map_err(|_| wrong())?;
                if self.port.is_none() {
                    self.inherit(vault)?;
                }
                let pidfd = self.checked_pidfd(key, fds.pop())?;
                self.readmit(key, version, slot, pidfd)
            }
            _ => Err(wrong()),
        }
    }

    /// Makes the connection one of an observer, who may only read. Refused if there are [`MAX_OBSERVERS`].
    pub(super) fn become_observer(&mut self, key: usize) -> Result<(), End> {
        let observers =
            |(_, client): &(usize, &Client)| matches!(client.kind, Kind::Observer | Kind::Manager);
        if self.clients.iter().filter(observers).count() >= MAX_OBSERVERS {
            return Err(End::Busy("too many programs look at the host service".to_owned()));
        }
        self.clients[key].kind = Kind::Observer;
        Ok(())
    }

    /// The pidfd that came with the first message. It has to be of the sender's own process.
    fn checked_pidfd(&self, key: usize, pidfd: Option<OwnedFd>) -> Result<Option<OwnedFd>, End> {
        let Some(fd) = pidfd else { return Ok(None) };
        let sender = self.clients[key].peer.pid;
        // The second way is for a /proc of another PID namespace than ours, whose numbers differ from the socket's.
        let is_sender = || {
            let own = u32::try_from(sender).ok().and_then(|sender| pidfd_of(sender).ok());
            own.is_some_and(|own| same_process(own.as_fd(), fd.as_fd()))
        };
        match pid_of(fd.as_fd()) {
            // 0: the process is in another PID namespace, so the numbers cannot be compared.
            Some(pid) if pid == sender || pid == 0 || sender == 0 => Ok(Some(fd)),
            _ if is_sender() => Ok(Some(fd)),
            None => Err(End::Misbehaved("its first message brings a descriptor that is no pidfd")),
            _ => {
                let text = "the first message's pidfd is not known to be of the process that sent it; does the host service see the /proc \
                            of its own PID namespace?";
                Err(End::Refused(text.to_owned()))
            }
        }
    }

    /// Gives a waiting client a slot.
    fn admit(&mut self, key: usize) -> Result<(), End> {
        let Client { kind, peer, features, .. } = &mut self.clients[key];
        let (pid, features) = (peer.pid, *features);
        let further = features & FURTHER != 0;
        let Kind::Waiting { name, pidfd, version } = core::mem::replace(kind, Kind::New) else {
            return Ok(());
        };
        self.release_orphans(pid);
        self.check_share(pid, pidfd.as_ref(), further).map_err(End::Refused)?;
        let Some(port) = &mut self.port else { return Ok(()) };
        let holder = Holder { pid, name };
        let Some(slot) = self.slots.take(Instant::now(), holder) else {
            let text =
                "all 255 slots of the port are in use by other programs; `rxe service status` shows by which";
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
        // A process without an inbox gets all packets by its sockets.
        let inbox = (features & MEMORY != 0).then(InboxFiles::new).and_then(Result::ok);
        port.group.put_inbox(slot, inbox);
        port.group.drain(slot);
        self.presences.begin(slot, Contact::Connected(key));
        self.watch_death(slot, pidfd);
        self.exchanged.remove(&slot);
        self.clients[key].kind = Kind::Member(slot);
        self.counters.joined += 1;
        let text = match self.slots.get(slot) {
            Slot::Held(holder) => format!("slot {slot}: process {pid} ({}) joined", holder.name),
            _ => String::new(),
        };
        self.journal.note(&text);
        self.store();
        self.send_welcome(key, version, slot, Some(&records))
    }

    pub(super) fn watch_death(&mut self, slot: u8, pidfd: Option<OwnedFd>) {
        if let Some(fd) = pidfd.map(out_of_the_way)
            && watch(&self.epoll, fd.as_fd(), Token::Death(slot)).is_ok()
        {
            self.presences.watch(slot, Kept::new(fd));
        }
    }

    /// Sends the welcome. A new process also gets `records`, its sockets and the vault.
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
            settings: Settings::of(&self.config),
        });
        let Port { group, vault, .. } = port;
        let sockets = group.sockets(slot).map_err(|error| End::Refused(error.to_string()))?;
        let mut fds = Vec::new();
        if let Some(records) = records {
            fds.extend(sockets.fds());
            fds.extend(vault.descriptors());
            fds.push(records.as_fd());
            fds.extend(sockets.inbox.iter().flat_map(InboxFiles::descriptors));
        }
        self.clients[key].channel.send(&encode(&welcome), &fds).map_err(|_| End::Gone)
    }

    /// Tells a process where the inbox of another slot's process is.
    pub(super) fn tell_inbox(&mut self, key: usize, slot: u8) {
        let inbox = self.port.as_ref().and_then(|port| port.group.inbox(slot));
        let fds = inbox.zip(self.presences.pidfd(slot)).map(|(inbox, owner)| {
            let [memory, event] = inbox.descriptors();
            [memory, event, owner]
        });
        let answer = encode(&ToClient::Inbox { slot });
        // The queue cannot hold descriptors. If the socket is full, the process goes without and sends by sockets.
        if let Some(client) = self.clients.get(key).filter(|client| client.queue.is_empty()) {
            let _ = client.channel.send(&answer, fds.as_ref().map_or(&[], |fds| fds));
        }
    }

    /// A process that has a slot of an earlier service is back.
    fn readmit(&mut self, key: usize, version: u16, slot: u8, pidfd: Option<OwnedFd>) -> Result<(), End> {
        let pid = self.clients[key].peer.pid;
        let known = match (self.slots.get(slot), self.presences.pidfd(slot), &pidfd) {
            // Process IDs may not be comparable: the process may be in another PID namespace than the earlier service.
            (Slot::Held(_), Some(ours), Some(theirs)) => same_process(ours, theirs.as_fd()),
            // 0 is every process of other PID namespaces.
            (Slot::Held(holder), ..) => holder.pid == pid && (pid != 0 || !self.presences.is_connected(slot)),
            _ => false,
        };
        if slot == 0 || !known {
            return Err(End::Refused(format!("slot {slot} is not this process's any more")));
        }
        // The process has given up its earlier connection: it could not receive a message, for instance, because it had no descriptors left.
        if let Some(earlier) = self.presences.connection(slot) {
            self.close(earlier, End::Gone);
        }
        if self.presences.pidfd(slot).is_none() {
            self.watch_death(slot, pidfd);
        }
        self.presences.connect(slot, key);
        self.clients[key].kind = Kind::Member(slot);
        self.counters.rejoined += 1;
        self.journal.note(&format!("slot {slot}: process {pid} is back"));
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

    pub(super) fn admit_waiting(&mut self) {
        for key in self.waiting() {
            if let Err(end) = self.admit(key) {
                self.close(key, end);
            }
        }
    }

    /// Admits the connections that wait, if the service has the port. If it has not, and no program that uses the port has come back in
    /// time, it tries to take the port, and refuses those who wait if it cannot.
    pub(super) fn look_after_waiting(&mut self, now: Instant) {
        if self.port.is_some() {
            self.admit_waiting();
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
}

/// The records of a new process, and the same memory for the service to read.
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
