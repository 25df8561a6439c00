//! Sending and receiving management datagrams by the host service.

use super::{
    Mode,
    attach::{HostError, Until, connect},
};
use crate::{
    host::{
        mads::{MadFilter, ManagedMad},
        message::{Hello, MAX_MESSAGE, Role, ToClient, ToService, decode, encode},
    },
    sys::{
        lock, poll,
        unix::{Channel, Received},
    },
};
use std::{
    collections::{BTreeSet, VecDeque},
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

/// How long the service may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time between two attempts to send while the service has too much to read.
const PAUSE: Duration = Duration::from_millis(1);
/// Most datagrams that wait for the program.
const MOST_UNREAD: usize = 256;
/// How long one wait for the service's answer lasts. Another thread may have read the answer meanwhile.
const GLANCE: Duration = Duration::from_millis(20);

/// A connection to a device's port, which `umad_open_port` makes. Its descriptor is readable when something has arrived, except for
/// datagrams that arrived during a registration: only [`Self::wait`] and [`Self::receive`] return those. A forked child
/// does not have the connection.
#[derive(Debug)]
pub struct MadPort {
    channel: Channel,
    read: Mutex<Read>,
    /// Held by the thread that waits for an answer of the service: one at a time.
    asking: Mutex<()>,
    /// The numbers of its registrations.
    agents: Mutex<BTreeSet<u32>>,
}

/// Messages that one thread has read and that another thread may want.
#[derive(Debug, Default)]
struct Read {
    mads: VecDeque<ManagedMad>,
    /// The answer to the question that is under way.
    answer: Option<Option<u32>>,
}

impl MadPort {
    /// Connects to the port of a device; the service is started if there is none.
    ///
    /// # Errors
    /// [`HostError`], in words for the user.
    pub fn open(device: &str) -> Result<Self, HostError> {
        let Mode::Program(program) = Mode::from_environment() else {
            let text = "management datagrams need the host service, and RXE_SERVICE=off says that there is to be none";
            return Err(HostError::Refused(text.to_owned()));
        };
        let channel = connect(program.as_deref(), Until::deadline(Instant::now() + PATIENCE))?;
        let port = Self { channel, read: Mutex::default(), asking: Mutex::new(()), agents: Mutex::default() };
        port.say(&ToService::Hello(Hello::new(Role::Observe)))?;
        port.ask(&ToService::OpenMads { device: device.to_owned() }).map(|_| port)
    }

    /// Registers for a class. Returns the number of the registration, which outgoing and incoming datagrams have. `None` if
    /// another program has registered for the same requests, or this one has 32 registrations.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn register(&self, filter: MadFilter) -> Result<Option<u32>, HostError> {
        let agent = self.ask(&ToService::RegisterMads(filter))?;
        lock(&self.agents).extend(agent);
        Ok(agent)
    }

    /// Gives a registration back. False if there is none with this number.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn unregister(&self, agent: u32) -> Result<bool, HostError> {
        if !lock(&self.agents).remove(&agent) {
            return Ok(false);
        }
        self.say(&ToService::UnregisterMads { agent }).map(|()| true)
    }

    /// Sends a datagram. A request without an answer in time is returned by [`Self::receive`], with a status. As long as the service has
    /// too much to read, the call waits.
    ///
    /// # Errors
    /// EIO if there is no such registration, as from a kernel (`ib_umad_write`). `WouldBlock` if the service has not read for ten
    /// seconds. Other errors mean that the service has ended.
    pub fn send(&self, mad: ManagedMad) -> io::Result<()> {
        if !lock(&self.agents).contains(&mad.agent) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let message = encode(&ToService::SendMad(mad));
        let mut until = None;
        loop {
            match self.channel.send(&message, &[]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let now = Instant::now();
                    if now >= *until.get_or_insert(now + PATIENCE) {
                        return Err(error);
                    }
                    thread::sleep(PAUSE);
                }
                sent => return sent,
            }
        }
    }

    /// The next datagram, if one has arrived.
    ///
    /// # Errors
    /// The service has ended.
    pub fn receive(&self) -> io::Result<Option<ManagedMad>> {
        let mut read = lock(&self.read);
        while read.mads.is_empty() && self.take(&mut read).map_err(io::Error::other)? {}
        Ok(read.mads.pop_front())
    }

    /// Makes [`Self::receive`] return a datagram again.
    pub fn give_back(&self, mad: ManagedMad) {
        lock(&self.read).mads.push_front(mad);
    }

    /// Waits until something has arrived, for ever if the time is `None`. False if the time is over.
    ///
    /// # Errors
    /// `Interrupted` by a signal.
    pub fn wait(&self, limit: Option<Duration>) -> io::Result<bool> {
        if !lock(&self.read).mads.is_empty() {
            return Ok(true);
        }
        let found = poll::wait(&[self.channel.as_fd()], limit).map_err(|_| io::ErrorKind::Interrupted)?;
        Ok(found != 0)
    }

    fn say(&self, message: &ToService) -> Result<(), HostError> {
        let said = self.channel.send(&encode(message), &[]);
        said.map_err(|source| HostError::System { action: "speak to the rxe host service", source })
    }

    /// Reads a message that has arrived, for any thread that wants it. False if there is none.
    fn take(&self, read: &mut Read) -> Result<bool, HostError> {
        let system = |source| HostError::System { action: "hear the rxe host service", source };
        let mut buffer = [0; MAX_MESSAGE];
        let length = match self.channel.receive(&mut buffer, 0).map_err(system)? {
            Received::Message(length, _) => length,
            Received::Nothing => return Ok(false),
            Received::Closed => return Err(system(io::ErrorKind::ConnectionReset.into())),
        };
        match decode(&buffer[..length]) {
            // If a program leaves more than these unread, the rest is lost, as in the service.
            Some(ToClient::Mad(mad)) if read.mads.len() < MOST_UNREAD => read.mads.push_back(mad),
            Some(ToClient::Registered { agent }) => read.answer = Some(agent),
            Some(ToClient::Refused(reason)) => return Err(HostError::Refused(reason)),
            Some(ToClient::Busy(reason)) => return Err(HostError::Busy(reason)),
            _ => {}
        }
        Ok(true)
    }

    /// Asks the service a question that it answers by a number.
    fn ask(&self, question: &ToService) -> Result<Option<u32>, HostError> {
        let _alone = lock(&self.asking);
        lock(&self.read).answer = None;
        self.say(question)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut read = lock(&self.read);
            if let Some(answer) = read.answer.take() {
                return Ok(answer);
            }
            if self.take(&mut read)? {
                continue;
            }
            drop(read);
            if Instant::now() >= deadline {
                return Err(HostError::Silent);
            }
            // Another thread may have read the answer meanwhile. After a signal we check again.
            let _ = poll::wait(&[self.channel.as_fd()], Some(GLANCE));
        }
    }
}

impl AsFd for MadPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
