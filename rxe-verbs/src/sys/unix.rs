//! Messages between processes of this host: sequenced-packet Unix sockets that carry descriptors (`unix(7)`), and
//! process descriptors (`pidfd_open(2)`).

use super::{
    fork::{generation, is_own},
    kept::Kept,
};
use core::sync::atomic::{AtomicI32, Ordering};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    sys::{
        socket::{
            AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind,
            connect, getsockopt, listen, recvmsg, sendmsg, socket, socketpair, sockopt,
        },
        statfs::fstatfs,
    },
};
use std::{
    fs::{self, File},
    io,
    io::{IoSlice, IoSliceMut},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    path::{Path, PathBuf},
};

/// Most descriptors of one message; more are an error (the kernel's SCM_MAX_FD is 253).
pub(crate) const MAX_DESCRIPTORS: usize = 253;
/// `PID_FS_MAGIC` of linux/magic.h.
const PIDFS: i64 = 0x5049_4446;
/// Most connections that wait for `accept`.
const BACKLOG: i32 = 128;

/// The process at the other end of a connection: the server sees the one that connected, the client the one that called `listen`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    /// Process, as our process namespace numbers it; 0 if it is in another one.
    pub(crate) pid: i32,
    /// Effective user.
    pub(crate) uid: u32,
}

/// One end of a sequenced-packet connection. Messages arrive whole and in order, or not at all.
///
/// A forked child does not keep it. Otherwise the peer would not see that this process has died, as long as the child lives.
#[derive(Debug)]
pub(crate) struct Channel(Kept<OwnedFd>);

/// What a receive brought.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message of so many bytes, and the descriptors that came with it.
    Message(usize, Vec<OwnedFd>),
    /// No message is there now.
    Nothing,
    /// The other end is closed.
    Closed,
}

impl Channel {
    /// Connects to a listener with an abstract name.
    ///
    /// # Errors
    /// `ConnectionRefused` if nobody listens there, `WouldBlock` if too many wait already.
    pub(crate) fn connect(name: &str) -> io::Result<Self> {
        Self::connect_to(&UnixAddr::new_abstract(name.as_bytes())?)
    }

    /// Connects to a listener that is a file.
    ///
    /// # Errors
    /// As [`Self::connect`]; `NotFound` if there is no such file.
    pub(crate) fn connect_at(path: &Path) -> io::Result<Self> {
        Self::connect_to(&UnixAddr::new(path)?)
    }

    fn connect_to(name: &UnixAddr) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        connect(fd.as_raw_fd(), name)?;
        Ok(Self::from_fd(out_of_the_way(fd)))
    }

    /// Two ends that are connected to each other.
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (a, b) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((Self::from_fd(out_of_the_way(a)), Self::from_fd(out_of_the_way(b))))
    }

    /// Takes an end that was made elsewhere.
    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self(Kept::new(fd))
    }

    /// Whether the number still belongs to this connection. The program may have closed it, and opened another file that got it.
    pub(crate) fn is_intact(&self) -> bool {
        self.0.is_intact()
    }

    /// The process at the other end.
    pub(crate) fn peer(&self) -> io::Result<Peer> {
        let who = getsockopt(&self.0, sockopt::PeerCredentials)?;
        Ok(Peer { pid: who.pid(), uid: who.uid() })
    }

    /// Sends one message, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if the other end has too many unread messages. Any other error: it is closed, or descriptors cannot be passed.
    pub(crate) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &rights[..0] } else { &rights[..] };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        sendmsg::<()>(self.0.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None)?;
        Ok(())
    }

    /// Takes the next message, without waiting.
    ///
    /// # Errors
    /// `InvalidData` for a message that is longer than `buffer`, or has more descriptors than `most`; `EMFILE` if this process may
    /// not have as many. The message and its descriptors are lost then.
    pub(crate) fn receive(&self, buffer: &mut [u8], most: usize) -> io::Result<Received> {
        self.receive_with(buffer, most, MsgFlags::empty())
    }

    /// Makes the next [`Self::peek`] see the oldest message again.
    pub(crate) fn peek_from_start(&self) -> io::Result<()> {
        super::socket::set_option(self.0.as_fd(), libc::SOL_SOCKET, libc::SO_PEEK_OFF, 0)
    }

    /// Reads a message without taking it. After [`Self::peek_from_start`] each call reads the next message, from the oldest on.
    /// Descriptors are duplicates.
    pub(crate) fn peek(&self, buffer: &mut [u8], most: usize) -> io::Result<Received> {
        self.receive_with(buffer, most, MsgFlags::MSG_PEEK)
    }

    fn receive_with(&self, buffer: &mut [u8], most: usize, more: MsgFlags) -> io::Result<Received> {
        let mut control = nix::cmsg_space!([i32; MAX_DESCRIPTORS]);
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC | more;
        let mut parts = [IoSliceMut::new(buffer)];
        let fd = self.0.as_raw_fd();
        let mut received = recvmsg::<()>(fd, &mut parts, Some(&mut control), flags);
        if matches!(received, Err(Errno::ECONNRESET)) {
            // The other side has closed the connection without reading everything. The kernel reports this once, before the
            // messages that the other side had sent.
            received = recvmsg::<()>(fd, &mut parts, Some(&mut control), flags);
        }
        let message = match received {
            Ok(message) => message,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Received::Nothing),
            Err(Errno::ECONNRESET) => return Ok(Received::Closed),
            Err(error) => return Err(error.into()),
        };
        let (bytes, flags) = (message.bytes, message.flags);
        // nix returns no descriptors if some did not fit: those that did would stay open. So they are taken from the buffer here.
        let fds = take_rights(&control);
        // The buffer has room for all descriptors that a message can have.
        if flags.contains(MsgFlags::MSG_CTRUNC) {
            return Err(Errno::EMFILE.into());
        }
        if flags.contains(MsgFlags::MSG_TRUNC) || fds.len() > most {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a message or its descriptors are too many",
            ));
        }
        // Nobody sends empty messages, so this is the end of the connection.
        if bytes == 0 && fds.is_empty() {
            return Ok(Received::Closed);
        }
        Ok(Received::Message(bytes, fds))
    }
}

/// Takes the descriptors out of a control buffer that was all zeroes before the receive. It has at most one control message,
/// because nothing asks for others.
fn take_rights(control: &[u8]) -> Vec<OwnedFd> {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    const NUMBER: usize = size_of::<i32>();
    let number = |at: usize| {
        control.get(at..at + NUMBER).and_then(|bytes| Some(i32::from_ne_bytes(bytes.try_into().ok()?)))
    };
    let length = control.first_chunk().map_or(0, |bytes| usize::from_ne_bytes(*bytes));
    let kind = (number(size_of::<usize>()), number(size_of::<usize>() + NUMBER));
    if kind != (Some(libc::SOL_SOCKET), Some(libc::SCM_RIGHTS)) {
        return Vec::new();
    }
    let places = (HEADER..length.min(control.len())).step_by(NUMBER);
    // SAFETY: the kernel has just made these descriptors for us; nobody else knows their numbers.
    places.filter_map(number).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect()
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A listener with an abstract name, which is unique in a network namespace, or with a file. A forked child does not keep it.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Kept<OwnedFd>,
    _file: Option<SocketFile>,
}

/// The file of a listener. Dropping it, after the socket, removes the file.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    generation: u32,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if is_own(self.generation) {
            // If it cannot be removed, the next listener does it.
            let _ = Self::clear(&self.path);
        }
    }
}

impl SocketFile {
    /// Removes a file at which nobody listens any more. As long as the result lives, no other process makes one there.
    ///
    /// # Errors
    /// `AddrInUse` if somebody listens there.
    fn clear(path: &Path) -> io::Result<Flock<File>> {
        let folder = File::open(path.parent().unwrap_or_else(|| Path::new("/")))?;
        // Without the lock, another process could put its new file there just before the old one is removed.
        let alone = Flock::lock(folder, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
        match Channel::connect_at(path) {
            Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => Err(io::ErrorKind::AddrInUse.into()),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                    let _ = fs::remove_file(path);
                    Ok(alone)
                }
                // For instance, this process has no descriptor left. That says nothing about the file.
                _ => Err(error),
            },
        }
    }
}

impl Listener {
    /// Listens at an abstract name.
    ///
    /// # Errors
    /// `AddrInUse` if another socket has the name.
    pub(crate) fn bind(name: &str) -> io::Result<Self> {
        Self::bind_to(&UnixAddr::new_abstract(name.as_bytes())?)
    }

    /// Listens at a file, which replaces one at which nobody listens any more. Only this user may have access to its folder.
    ///
    /// # Errors
    /// `AddrInUse` if somebody listens there.
    pub(crate) fn bind_at(path: &Path) -> io::Result<Self> {
        let _alone = SocketFile::clear(path)?;
        let listener = Self::bind_to(&UnixAddr::new(path)?)?;
        let file = Some(SocketFile { path: path.to_owned(), generation: generation() });
        Ok(Self { _file: file, ..listener })
    }

    fn bind_to(name: &UnixAddr) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        bind(fd.as_raw_fd(), name)?;
        listen(&fd, Backlog::new(BACKLOG)?)?;
        Ok(Self { socket: Kept::new(out_of_the_way(fd)), _file: None })
    }

    /// As [`Channel::is_intact`].
    pub(crate) fn is_intact(&self) -> bool {
        self.socket.is_intact()
    }

    /// The next connection, if one waits.
    pub(crate) fn accept(&self) -> io::Result<Option<Channel>> {
        match accept4(self.socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK) {
            // SAFETY: a descriptor that the kernel has just made for us.
            Ok(fd) => Ok(Some(Channel::from_fd(out_of_the_way(unsafe { OwnedFd::from_raw_fd(fd) })))),
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A pidfd of this process, which becomes readable when the process dies.
///
/// # Errors
/// The system's error. Some sandboxes and kernels before 5.3 have no pidfds.
pub(crate) fn own_pidfd() -> io::Result<OwnedFd> {
    pidfd_of(std::process::id())
}

/// A pidfd of the process with that number.
///
/// # Errors
/// As [`own_pidfd`], or there is no such process.
pub(crate) fn pidfd_of(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; a non-negative result is a descriptor that nobody else owns. pidfds are close-on-exec.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: see above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The number of a pidfd's process in our PID namespace: 0 if it is not in ours, -1 if it is dead. `None` if the descriptor is not a
/// pidfd.
pub(crate) fn pid_of(pidfd: BorrowedFd<'_>) -> Option<i32> {
    let about = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    about.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok())
}

/// Whether two pidfds are of the same process. Since Linux 6.9 each process has an inode of its own in pidfs, so any two can be
/// compared. Before that only process numbers can be compared. Dead processes and those of other PID namespaces have no number
/// then, and count as different.
pub(crate) fn same_process(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
    let inode = |fd: BorrowedFd<'_>| nix::sys::stat::fstat(fd).ok().map(|about| (about.st_dev, about.st_ino));
    let in_pidfs = fstatfs(a).is_ok_and(|about| about.filesystem_type().0 == PIDFS);
    inode(a).is_some() && inode(a) == inode(b) && is_one(pid_of(a), pid_of(b), in_pidfs)
}

/// Whether two pidfds with the same inode are of one process. `a` and `b` are their process numbers. Outside of pidfs all pidfds
/// have the same inode.
fn is_one(a: Option<i32>, b: Option<i32>, in_pidfs: bool) -> bool {
    a == b && (in_pidfs || a.is_some_and(|pid| pid > 0))
}

/// Moves a descriptor to a high number, which a program that closes and opens files hardly ever reaches. Each call takes another
/// number. So an owner whose descriptor the program has closed does not find a newer descriptor of ours under its number. After
/// thousands of calls the numbers begin anew: the kernel's table of descriptors is as long as the highest number ever, and each fork
/// copies it.
#[must_use]
pub fn out_of_the_way(fd: OwnedFd) -> OwnedFd {
    const HIGH: i32 = 600;
    const HIGHEST: i32 = 8191;
    static NEXT: AtomicI32 = AtomicI32::new(HIGH);
    for least in [NEXT.load(Ordering::Relaxed), HIGH] {
        // SAFETY: duplicates a descriptor that is open; a non-negative result is a new one that nobody else owns.
        let high = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) };
        if high >= 0 {
            NEXT.store(if high < HIGHEST { high + 1 } else { HIGH }, Ordering::Relaxed);
            // SAFETY: see above.
            return unsafe { OwnedFd::from_raw_fd(high) };
        }
        // The number is beyond the limit of open files: start again at `HIGH`.
    }
    // The limit of open files is not above `HIGH`.
    fd
}

/// Moves a descriptor that programs see to a high number that `select(2)` still accepts (256 to 1023), if one is free.
pub(crate) fn in_sight(fd: OwnedFd) -> OwnedFd {
    const HIGH: i32 = 256;
    // SAFETY: duplicates a descriptor that is open; a non-negative result is a new one that nobody else owns.
    let high = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, HIGH) };
    if high < 0 {
        return fd;
    }
    // SAFETY: see above.
    let copy = unsafe { OwnedFd::from_raw_fd(high) };
    if high < libc::FD_SETSIZE as i32 { copy } else { fd }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::child::in_child;
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    use std::process::Command;

    fn open_descriptors() -> usize {
        fs::read_dir("/proc/self/fd").unwrap().count()
    }

    /// The kernel's table of descriptors grows with the highest number, and never shrinks.
    #[test]
    fn numbers_stay_within_thousands() {
        in_child(|| {
            let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
            let number = |_| out_of_the_way(File::open("/dev/null").unwrap().into()).as_raw_fd();
            (0..16_384).map(number).all(|number| number < 9000)
        });
    }

    #[test]
    fn what_was_said_before_a_reset_is_heard() {
        let (ours, theirs) = Channel::pair().unwrap();
        let mut buffer = [0; 16];
        ours.send(b"unread", &[]).unwrap();
        theirs.send(b"first", &[]).unwrap();
        theirs.send(b"last", &[]).unwrap();
        drop(theirs);
        for said in [&b"first"[..], b"last"] {
            let Received::Message(length, _) = ours.receive(&mut buffer, 0).unwrap() else {
                panic!("closed before {said:?}")
            };
            assert_eq!(&buffer[..length], said);
        }
        assert!(matches!(ours.receive(&mut buffer, 0).unwrap(), Received::Closed));
    }

    #[test]
    fn descriptors_that_only_half_fit_are_closed() {
        in_child(|| {
            let (a, b) = Channel::pair().unwrap();
            let file = File::open("/dev/null").unwrap();
            let many = [file.as_fd(); 10];
            a.send(b"x", &many).unwrap();
            let before = open_descriptors();
            let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            // Two more than are open fit; numbers in use above the limit do not matter.
            let lowest = (0..).find(|fd| !fs::exists(format!("/proc/self/fd/{fd}")).unwrap()).unwrap();
            setrlimit(Resource::RLIMIT_NOFILE, lowest + 2, hard).unwrap();
            let error = b.receive(&mut [0; 8], 10).unwrap_err();
            setrlimit(Resource::RLIMIT_NOFILE, hard.min(1024), hard).unwrap();
            error.raw_os_error() == Some(libc::EMFILE) && open_descriptors() == before
        });
    }

    #[test]
    fn too_many_descriptors_are_closed() {
        in_child(|| {
            let (a, b) = Channel::pair().unwrap();
            let file = File::open("/dev/null").unwrap();
            let before = open_descriptors();
            a.send(b"x", &[file.as_fd(); MAX_DESCRIPTORS]).unwrap();
            let refused = b.receive(&mut [0; 8], 5).is_err();
            a.send(b"y", &[file.as_fd(); 5]).unwrap();
            let Ok(Received::Message(1, five)) = b.receive(&mut [0; 8], 5) else { return false };
            let held = open_descriptors() == before + 5;
            drop(five);
            refused && held && open_descriptors() == before
        });
    }

    /// A service that ends, and the next one, which was quicker. The system may give the new file the inode of the old one.
    #[test]
    fn a_successor_s_file_stays() {
        let folder = std::env::temp_dir().join(format!("rxe-listener-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("socket");
        let Listener { socket, _file: file } = Listener::bind_at(&path).unwrap();
        assert_eq!(Listener::bind_at(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(socket);
        let next = Listener::bind_at(&path).unwrap();
        drop(file);
        assert!(Channel::connect_at(&path).is_ok(), "it is found");
        drop(next);
        // Nothing is left there.
        fs::remove_dir(folder).unwrap();
    }

    /// Before Linux 6.9 all pidfds have one inode.
    #[test]
    fn numbers_that_mean_nothing_tell_nothing() {
        assert!(is_one(Some(7), Some(7), false) && !is_one(Some(7), Some(8), false));
        assert!(!is_one(Some(0), Some(0), false) && !is_one(Some(-1), Some(-1), false));
        assert!(is_one(Some(0), Some(0), true));
    }

    #[test]
    fn pidfds_tell_processes_apart() {
        let (own, again) = (own_pidfd().unwrap(), own_pidfd().unwrap());
        assert!(same_process(own.as_fd(), again.as_fd()));
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        let fd = pidfd_of(other.id()).unwrap();
        assert!(!same_process(own.as_fd(), fd.as_fd()));
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
