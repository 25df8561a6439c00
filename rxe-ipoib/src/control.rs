//! Requests to a running interface: to show its state, or to end it. They use a Unix socket with an abstract name. It can only
//! be found in the network namespace of the interface, and vanishes with the process.
//!
//! A thread accepts the connections, and passes commands to the thread of the interface, which is woken by a descriptor. Only
//! root and the user of the interface may send commands.

use crate::{Error, Report};
use nix::{
    sys::{
        eventfd::{EfdFlags, EventFd},
        socket::{getsockopt, sockopt::PeerCredentials},
    },
    unistd::Uid,
};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    sync::{
        Arc,
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    thread,
    time::Duration,
};

/// The prefix of the names.
const PREFIX: &str = "rxe-ipoib/";
/// Most bytes of a request.
const MOST_BYTES: u64 = 64;
/// Most bytes of a response.
const MOST_ANSWER: u64 = 16 << 20;
/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long no connection is accepted after `accept` has failed.
const RECOVERY: Duration = Duration::from_millis(100);

/// A command.
#[derive(Debug)]
pub(crate) enum Command {
    /// Report the state of the interface.
    Show(SyncSender<Box<Report>>),
    /// End the interface.
    Stop,
}

/// A response: a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Report(Box<Report>),
    Stopping,
    Refused(String),
}

/// The interface's side.
#[derive(Debug)]
pub(crate) struct Door {
    bell: Arc<EventFd>,
    sender: Sender<Command>,
    commands: Receiver<Command>,
}

/// A handle that ends an interface.
#[derive(Clone, Debug)]
pub struct Stopper {
    bell: Arc<EventFd>,
    sender: Sender<Command>,
}

impl Stopper {
    /// Makes [`crate::Interface::run`] return.
    pub fn stop(&self) {
        // If this fails the interface has ended already.
        let _ = self.sender.send(Command::Stop);
        let _ = self.bell.write(1);
    }
}

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{PREFIX}{name}"))
}

impl Door {
    pub(crate) fn open(name: &str) -> Result<Self, Error> {
        let listener = address(name).and_then(|address| UnixListener::bind_addr(&address));
        let listener = listener.map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => Error::Exists(name.to_owned()),
            _ => Error::System { action: "open the control socket", source },
        })?;
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let bell = EventFd::from_value_and_flags(0, flags).map_err(io::Error::from);
        let bell = Arc::new(bell.map_err(Error::system("make an event counter"))?);
        let (sender, commands) = channel();
        let porter = Stopper { bell: Arc::clone(&bell), sender: sender.clone() };
        thread::Builder::new()
            .name("ipoib-control".to_owned())
            .spawn(move || {
                for stream in listener.incoming() {
                    match stream {
                        // The client may have closed the connection.
                        Ok(stream) => {
                            _ = getsockopt(&stream, PeerCredentials)
                                .map_err(io::Error::from)
                                .and_then(|peer| serve(&stream, &porter, peer.uid()));
                        }
                        // The process has no free descriptor now. It may have one later.
                        Err(_) => thread::sleep(RECOVERY),
                    }
                }
            })
            .map_err(Error::system("start a thread"))?;
        Ok(Self { bell, sender, commands })
    }

    pub(crate) fn stopper(&self) -> Stopper {
        Stopper { bell: Arc::clone(&self.bell), sender: self.sender.clone() }
    }

    /// The next command, if there is one.
    pub(crate) fn next(&self) -> Option<Command> {
        let _ = self.bell.read();
        self.commands.try_recv().ok()
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Answers one request of the user `peer`. Other users are refused at once, without waiting for their request.
fn serve(stream: &UnixStream, porter: &Stopper, peer: u32) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let answer = if peer != 0 && peer != Uid::effective().as_raw() {
        // Does not wait for a request. A user without rights could otherwise block others by sending nothing.
        Answer::Refused(format!("this interface is user {}'s", Uid::effective()))
    } else {
        let mut line = String::new();
        BufReader::new(stream.take(MOST_BYTES)).read_line(&mut line)?;
        match line.trim_end() {
            "show" => {
                let (reply, report) = sync_channel(1);
                let _ = porter.sender.send(Command::Show(reply));
                let _ = porter.bell.write(1);
                let busy = |_| Answer::Refused("the interface does not answer".to_owned());
                report.recv_timeout(PATIENCE).map_or_else(busy, Answer::Report)
            }
            "stop" => {
                porter.stop();
                Answer::Stopping
            }
            _ => Answer::Refused("unknown command".to_owned()),
        }
    };
    let mut stream = stream;
    stream.write_all(serde_json::to_string(&answer)?.as_bytes())?;
    stream.write_all(b"\n")
}

fn ask(name: &str, question: &str) -> Result<Answer, Error> {
    let talk = || -> io::Result<Answer> {
        let mut stream = UnixStream::connect_addr(&address(name)?)?;
        stream.set_read_timeout(Some(2 * PATIENCE))?;
        let said = stream.write_all(format!("{question}\n").as_bytes());
        let mut text = String::new();
        BufReader::new(stream.take(MOST_ANSWER)).read_line(&mut text)?;
        // The refusal may arrive before the request is sent.
        if text.is_empty() {
            said?;
        }
        Ok(serde_json::from_str(&text)?)
    };
    talk().map_err(|source| match source.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::InvalidInput => Error::NoInterface(name.to_owned()),
        _ => Error::System { action: "ask the interface's process", source },
    })
}

/// Asks for the state of an interface.
///
/// # Errors
/// [`Error::NoInterface`], [`Error::Refused`], [`Error::System`].
pub fn show(name: &str) -> Result<Report, Error> {
    match ask(name, "show")? {
        Answer::Report(report) => Ok(*report),
        Answer::Refused(text) => Err(Error::Refused(text)),
        Answer::Stopping => Err(Error::Refused("not an answer to that".to_owned())),
    }
}

/// Ends an interface, and waits until it has ended.
///
/// # Errors
/// As [`show`].
pub fn stop(name: &str) -> Result<(), Error> {
    match ask(name, "stop")? {
        Answer::Refused(text) => return Err(Error::Refused(text)),
        Answer::Stopping | Answer::Report(_) => {}
    }
    let there = || address(name).and_then(|address| UnixStream::connect_addr(&address)).is_ok();
    for _ in 0..PATIENCE.as_millis() / 10 {
        if !there() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(Error::Refused(format!("{name} has been told to end and has not")))
}

/// The names of the interfaces in this network namespace.
///
/// # Errors
/// [`Error::System`] if the system's list of sockets cannot be read.
pub fn names() -> Result<Vec<String>, Error> {
    let table = fs::read_to_string("/proc/thread-self/net/unix");
    let table = table.map_err(Error::system("read /proc/thread-self/net/unix"))?;
    // The name is in the last column. Only listening sockets have the flag 00010000.
    let listening = table.lines().filter(|line| line.split_whitespace().nth(3) == Some("00010000"));
    let name = |line: &str| {
        line.split_whitespace().nth(7)?.strip_prefix('@')?.strip_prefix(PREFIX).map(str::to_owned)
    };
    let mut names: Vec<_> = listening.filter_map(name).collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that sends nothing must not block the others.
    #[test]
    fn strangers_are_refused_before_they_have_said_anything() {
        let (sender, _commands) = channel();
        let porter = Stopper { bell: Arc::new(EventFd::new().unwrap()), sender };
        let (theirs, ours) = UnixStream::pair().unwrap();
        let stranger = Uid::effective().as_raw() + 1;
        serve(&ours, &porter, stranger).unwrap();
        drop(ours);
        let mut told = String::new();
        BufReader::new(&theirs).read_line(&mut told).unwrap();
        assert!(told.contains("refused") && told.contains("user"), "{told}");
    }
}
