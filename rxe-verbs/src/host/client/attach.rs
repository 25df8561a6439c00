//! Getting a slot from the host service, which is started if there is none.

use super::start::{self, StartError};
use crate::{
    host::{
        message::{
            FRAMES, FURTHER, Hello, MAX_MESSAGE, MEMORY, Role, ToClient, ToService, Welcome, decode, encode,
        },
        name::{NAME, connect_by_file},
        records::{Records, SlotRecords},
        settings::Settings,
        vault::Vault,
    },
    net::{GroupSockets, InboxFiles, LinkKind},
    sys::{
        poll,
        unix::{Channel, Received, out_of_the_way, own_pidfd},
    },
    trust::is_nobody_in_particular,
};
use nix::unistd::geteuid;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// How long a service may take to answer, or to appear.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long another user's service may take to answer that it gives up the port.
const STRANGERS: Duration = Duration::from_secs(1);
/// How long to wait before a busy service is asked again.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// After this long without a service another one is started.
const AGAIN: Duration = Duration::from_secs(1);

/// Why this process got no slot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The service refuses. The text is its own.
    #[error("{0}")]
    Refused(String),
    /// The service has no room at the moment, but may have later. The text is its own.
    #[error("{0}; try again in a moment")]
    Busy(String),
    /// The service's name belongs to a process of another user.
    #[error(
        "the rxe host service of this network namespace belongs to user {theirs} (process {pid}), and you are user {ours}: \
         run as that user, use a network namespace of your own, or have it ended"
    )]
    Stranger {
        /// That user.
        theirs: u32,
        /// The process, 0 if it cannot be told.
        pid: i32,
        /// This process's user.
        ours: u32,
    },
    /// It does not answer.
    #[error(
        "the rxe host service does not answer; `ss -xlp src @rxe/4791` shows its process, which may be stopped"
    )]
    Silent,
    /// It cannot be started.
    #[error("cannot start the rxe host service: {0}")]
    Start(String),
    /// The system refused a resource.
    #[error("cannot {action}: {source}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// A slot and what belongs to it.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) slot: u8,
    pub(crate) sockets: GroupSockets,
    /// The settings of this host.
    pub(crate) settings: Settings,
    /// The features that the service was told: [`FURTHER`], [`FRAMES`].
    pub(super) features: u64,
    pub(super) channel: Channel,
    pub(super) vault: Vault,
    pub(super) records: SlotRecords,
    /// Its inbox, into which other processes write packets, if the service gave it one.
    pub(crate) inbox: Option<InboxFiles>,
    pub(super) program: Option<std::path::PathBuf>,
}

/// How long to wait, and what ends the wait earlier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until<'a> {
    pub(super) deadline: Instant,
    /// Becomes readable when the wait is to end: a program that exits must not wait for a service.
    pub(super) stop: Option<BorrowedFd<'a>>,
}

impl Until<'_> {
    pub(super) const fn deadline(deadline: Instant) -> Self {
        Self { deadline, stop: None }
    }

    /// Waits for a descriptor, for a while.
    ///
    /// # Errors
    /// [`HostError::Silent`] when the deadline has passed or the wait is to end.
    fn wait(&self, fd: Option<BorrowedFd<'_>>, longest: Duration) -> Result<(), HostError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let fds: poll::Fds<'_> = self.stop.into_iter().chain(fd).collect();
        // After a signal the caller checks again.
        let found = poll::wait(&fds, Some(left.min(longest))).unwrap_or(0);
        let stopped = self.stop.is_some() && found & 1 != 0;
        if left.is_zero() || stopped { Err(HostError::Silent) } else { Ok(()) }
    }
}

/// Gets a slot for links of that kind.
///
/// # Errors
/// [`HostError`], in words for the user.
pub(crate) fn attach(program: Option<&Path>, kind: LinkKind) -> Result<Attachment, HostError> {
    join(program, PATIENCE, features_of(kind))
}

/// Gets a further slot for a process that has one, within `patience`.
///
/// # Errors
/// [`HostError`], in words for the user.
pub(crate) fn attach_further(
    program: Option<&Path>,
    kind: LinkKind,
    patience: Duration,
) -> Result<Attachment, HostError> {
    join(program, patience, features_of(kind) | FURTHER)
}

const fn features_of(kind: LinkKind) -> u64 {
    match kind {
        LinkKind::Udp => 0,
        LinkKind::Raw => FRAMES,
        LinkKind::Memory => MEMORY,
    }
}

fn join(program: Option<&Path>, patience: Duration, features: u64) -> Result<Attachment, HostError> {
    let until = Until::deadline(Instant::now() + patience);
    let pidfd = own_pidfd().ok();
    let fds: Vec<BorrowedFd<'_>> = pidfd.iter().map(AsFd::as_fd).collect();
    loop {
        let channel = connect(program, until)?;
        let hello = Hello::new(Role::Join { name: own_name() }).with(features);
        match greet(&channel, hello, &fds, until) {
            Ok(Some((welcome, fds))) => return Attachment::of(channel, welcome, fds, program, features),
            // The service ended during the exchange, or has cut us off.
            Ok(None) if Instant::now() < until.deadline => thread::sleep(BUSY_PAUSE),
            Ok(None) => return Err(HostError::Silent),
            Err(HostError::Busy(_)) if Instant::now() < until.deadline => thread::sleep(BUSY_PAUSE),
            Err(error) => return Err(error),
        }
    }
}

/// Rejoins with the slot that an earlier service gave.
pub(super) fn rejoin(
    (slot, features): (u8, u64),
    vault: &Vault,
    program: Option<&Path>,
    until: Until<'_>,
) -> Result<Option<(Channel, Settings)>, HostError> {
    let channel = connect(program, until)?;
    let pidfd = own_pidfd().ok();
    let mut fds: Vec<BorrowedFd<'_>> = pidfd.iter().map(AsFd::as_fd).collect();
    fds.extend(vault.descriptors());
    let hello = Hello::new(Role::Rejoin { name: own_name(), slot }).with(features);
    Ok(greet(&channel, hello, &fds, until)?.map(|(welcome, _)| (channel, welcome.settings)))
}

/// Connects to the service, and starts one where there is none.
pub(super) fn connect(program: Option<&Path>, until: Until<'_>) -> Result<Channel, HostError> {
    let mut start_at = Instant::now();
    let mut pause = Duration::from_micros(200);
    // The error to report if another user's service has the name and also the port.
    let mut stranger = None;
    loop {
        match find()? {
            Found::Ours(channel) => return Ok(channel),
            // It is asked only once. It may not answer, and each wait takes time.
            Found::Stranger(channel, error) if stranger.is_none() => {
                if !matches!(hear_stranger(&channel, until), Err(HostError::Busy(_))) {
                    stranger = Some(error);
                    continue;
                }
            }
            Found::Later => {}
            Found::Nobody | Found::Stranger(..) if Instant::now() >= start_at => {
                start::start(program).map_err(|error: StartError| {
                    stranger.take().unwrap_or_else(|| HostError::Start(error.to_string()))
                })?;
                start_at = Instant::now() + AGAIN;
            }
            Found::Nobody | Found::Stranger(..) => {}
        }
        until.wait(None, pause)?;
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// What was found by the names of a service.
pub(super) enum Found {
    /// A service of our user.
    Ours(Channel),
    /// Nobody listens.
    Nobody,
    /// Too many connect at once.
    Later,
    /// Another user's process has the usual name, and there is no service of our user.
    Stranger(Channel, HostError),
}

/// Looks for a service.
///
/// # Errors
/// [`HostError::System`].
pub(super) fn find() -> Result<Found, HostError> {
    let system = |source| HostError::System { action: "reach the rxe host service", source };
    let stranger = match Channel::connect(NAME) {
        Ok(channel) => match trust(&channel) {
            Ok(()) => return Ok(Found::Ours(channel)),
            Err(error @ HostError::Stranger { .. }) => Found::Stranger(channel, error),
            Err(error) => return Err(error),
        },
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Found::Nobody,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Found::Later),
        Err(source) => return Err(system(source)),
    };
    match connect_by_file() {
        Ok(Some(channel)) => trust(&channel).map(|()| Found::Ours(channel)),
        Ok(None) => Ok(stranger),
        Err(_) => Ok(Found::Later),
    }
}

/// Waits for the answer of another user's service. If nobody needs that service it gives up the port. Nothing else that it says is
/// trusted.
fn hear_stranger(channel: &Channel, until: Until<'_>) -> Result<(), HostError> {
    let deadline = until.deadline.min(Instant::now() + STRANGERS);
    receive(channel, Until { deadline, ..until }).map(drop)
}

/// Checks that the service belongs to our user, because any process can take the name. Only then it gets our pidfd, and gives us sockets.
fn trust(channel: &Channel) -> Result<(), HostError> {
    let peer = channel
        .peer()
        .map_err(|source| HostError::System { action: "learn whose the rxe host service is", source })?;
    let ours = geteuid().as_raw();
    if peer.uid != ours || is_nobody_in_particular(peer.uid) {
        return Err(HostError::Stranger { theirs: peer.uid, pid: peer.pid, ours });
    }
    Ok(())
}

/// Sends the greeting, and returns the answer. `None` if the service ended meanwhile.
fn greet(
    channel: &Channel,
    hello: Hello,
    fds: &[BorrowedFd<'_>],
    until: Until<'_>,
) -> Result<Option<(Welcome, Vec<OwnedFd>)>, HostError> {
    if channel.send(&encode(&ToService::Hello(hello)), fds).is_err() {
        // It may have sent the reason before it closed the connection.
        return receive(channel, until).map(|_| None);
    }
    match receive(channel, until)? {
        None => Ok(None),
        Some((ToClient::Welcome(welcome), fds)) => Ok(Some((welcome, fds))),
        Some(_) => Err(HostError::Silent),
    }
}

/// The next message. `None` if the other side has closed the connection.
pub(super) fn receive(
    channel: &Channel,
    until: Until<'_>,
) -> Result<Option<(ToClient, Vec<OwnedFd>)>, HostError> {
    let mut buffer = [0; MAX_MESSAGE];
    loop {
        let received = channel.receive(&mut buffer, 3 + Vault::DESCRIPTORS + InboxFiles::DESCRIPTORS);
        match received {
            Ok(Received::Message(len, fds)) => match decode(&buffer[..len]) {
                Some(ToClient::Refused(reason)) => return Err(HostError::Refused(reason)),
                Some(ToClient::Busy(reason)) => return Err(HostError::Busy(reason)),
                Some(message) => return Ok(Some((message, fds))),
                None => return Err(HostError::Silent),
            },
            Ok(Received::Closed) => return Ok(None),
            Ok(Received::Nothing) => {}
            Err(source) => return Err(HostError::System { action: "hear the rxe host service", source }),
        }
        until.wait(Some(channel.as_fd()), Duration::MAX)?;
    }
}

impl Attachment {
    fn of(
        channel: Channel,
        welcome: Welcome,
        fds: Vec<OwnedFd>,
        program: Option<&Path>,
        features: u64,
    ) -> Result<Self, HostError> {
        let mut fds = fds.into_iter().map(out_of_the_way).fuse();
        let mut next = || fds.next().ok_or(HostError::Silent);
        let v4 = if welcome.families.0 { Some(next()?) } else { None };
        let v6 = if welcome.families.1 { Some(next()?) } else { None };
        let vault = Vault::adopt([next()?, next()?, next()?, next()?]);
        let system = |source| HostError::System { action: "share memory with the rxe host service", source };
        let records = Records::adopt(next()?).and_then(|records| records.map()).map_err(system)?;
        let inbox = match (fds.next(), fds.next()) {
            (Some(memory), Some(event)) => Some(InboxFiles::adopt([memory, event]).map_err(system)?),
            _ => None,
        };
        Ok(Self {
            slot: welcome.slot,
            sockets: GroupSockets { v4, v6 },
            settings: welcome.settings,
            features,
            channel,
            vault,
            records,
            inbox,
            program: program.map(Path::to_owned),
        })
    }
}

/// This program's name, for reports.
pub(super) fn own_name() -> String {
    let exe = std::env::current_exe().ok();
    let name = exe.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::socket::Event;

    #[test]
    fn who_ends_does_not_wait_for_a_service() {
        let (channel, _silent) = Channel::pair().unwrap();
        let stop = Event::new().unwrap();
        stop.raise();
        let deadline = Instant::now() + PATIENCE;
        let until = Until { deadline, stop: Some(stop.as_fd()) };
        assert!(matches!(receive(&channel, until), Err(HostError::Silent)));
        assert!(Instant::now() < deadline, "it gave up for another reason");
    }
}
