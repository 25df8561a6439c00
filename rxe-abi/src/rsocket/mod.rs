//! The functions of rsocket(7), over rxe-rsocket: sockets by their descriptors. `data.rs` sends and receives, `options.rs` has
//! options, `wait.rs` waits for several, `inside.rs` is about handlers of signals.

mod data;
mod inside;
mod options;
mod wait;

use crate::{
    border::{Address, AddressOut, INVALID, Result, UNSUPPORTED, given, value, waiting_value},
    rdma::manager,
    signals::restarting_if,
};
use core::{
    ffi::c_int,
    ops::Deref,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};
use inside::Inside;
use rxe_rsocket::{Domain, Flags, Name, PollSet, Socket, SocketError, Stack, Value, proto::How};
use std::{
    collections::HashMap,
    hash::Hash,
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::{Arc, PoisonError, RwLock},
};

/// The sockets of this process, and what they share.
struct Table {
    /// Which process made it ([`rxe_verbs::forks`]).
    process: u32,
    stack: RwLock<Option<Stack>>,
    sockets: Map<RawFd, Socket>,
    sets: Map<RawFd, Arc<PollSet>>,
}

struct Map<K, V>(RwLock<HashMap<K, V>>);

impl<K: Eq + Hash, V: Clone> Map<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    fn insert(&self, key: K, value: V) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(key, value);
    }

    fn remove(&self, key: &K) -> Option<V> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(key)
    }

    fn each(&self, work: impl FnMut(&V)) {
        self.0.read().unwrap_or_else(PoisonError::into_inner).values().for_each(work);
    }

    fn new() -> Self {
        Self(RwLock::new(HashMap::new()))
    }
}

/// The table of this process. A forked child has a new one, without its parent's sockets, because it must not take a lock that
/// another thread of the parent may have held.
fn table() -> &'static Table {
    static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());
    loop {
        let have = TABLE.load(Ordering::Acquire);
        // SAFETY: null, or a table, which is never freed.
        if let Some(table) = unsafe { have.as_ref() }
            && table.process == rxe_verbs::forks()
        {
            return table;
        }
        let process = rxe_verbs::forks();
        let fresh = Table { process, stack: RwLock::new(None), sockets: Map::new(), sets: Map::new() };
        let fresh = Box::into_raw(Box::new(fresh));
        if TABLE.compare_exchange(have, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: made here, and nobody else has seen it.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

impl Table {
    fn stack(&self) -> Result<Stack> {
        if let Some(stack) = &*self.stack.read().unwrap_or_else(PoisonError::into_inner) {
            return Ok(stack.clone());
        }
        let mut place = self.stack.write().unwrap_or_else(PoisonError::into_inner);
        match &*place {
            Some(stack) => Ok(stack.clone()),
            None => Ok(place.insert(Stack::new(manager()?)?).clone()),
        }
    }
}

/// A socket that a call uses.
struct Found {
    // Dropped first: what ends with the last handle takes locks.
    socket: Socket,
    inside: Inside,
}

impl Found {
    /// What the program asks for. A handler must not wait for the call that it has interrupted.
    fn flags(&self, asked: c_int) -> Flags {
        Flags(if self.inside.nested { asked | libc::MSG_DONTWAIT } else { asked })
    }
}

impl Deref for Found {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.socket
    }
}

/// The socket of a descriptor.
fn find(fd: c_int) -> Result<Found> {
    let inside = Inside::enter()?;
    let socket = table().sockets.get(&fd).ok_or(SocketError::NoSocket(fd))?;
    Ok(Found { socket, inside })
}

/// Makes a call, and repeats it after handlers with SA_RESTART. `timeout` is the option that limits the call's time. If it is set, the
/// call is not repeated (`signal(7)`).
fn restarting<T>(socket: &Socket, timeout: Name, mut call: impl FnMut(&Socket) -> Result<T>) -> Result<T> {
    let may = || matches!(socket.option(timeout), Ok(Value::Time(None)));
    restarting_if(may, || call(socket))
}

fn enter(socket: Socket) -> c_int {
    let fd = socket.as_fd().as_raw_fd();
    table().sockets.insert(fd, socket);
    fd
}

/// rsocket(3). SOCK_NONBLOCK and SOCK_CLOEXEC may be in the type; the descriptor is closed by exec(3) in any case.
#[unsafe(no_mangle)]
extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    value(|| {
        let domain = Domain::find(domain).ok_or(UNSUPPORTED)?;
        let stream = match (kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC), protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => true,
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => false,
            _ => return Err(UNSUPPORTED),
        };
        let _inside = Inside::enter()?;
        let stack = table().stack()?;
        let socket = if stream { Socket::stream(&stack, domain)? } else { Socket::datagram(&stack, domain)? };
        socket.set_nonblocking(kind & libc::SOCK_NONBLOCK != 0);
        Ok(enter(socket))
    })
}

/// rbind(3).
#[unsafe(no_mangle)]
extern "C" fn rbind(fd: c_int, address: Address, _len: libc::socklen_t) -> c_int {
    value(|| {
        find(fd)?.bind(given(address.read()?)?)?;
        Ok(0)
    })
}

/// rlisten(3).
#[unsafe(no_mangle)]
extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    value(|| {
        find(fd)?.as_stream("listening")?.listen(usize::try_from(backlog).unwrap_or(0))?;
        Ok(0)
    })
}

/// raccept(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn raccept(fd: c_int, address: AddressOut, len: Option<&mut libc::socklen_t>) -> c_int {
    waiting_value(|| {
        let socket = find(fd)?;
        let made =
            restarting(&socket, Name::ReceiveTimeout, |socket| Ok(socket.as_stream("accept")?.accept()?))?;
        if let Ok(peer) = made.peer_addr() {
            address.write(len, peer);
        }
        Ok(enter(Socket::Stream(made)))
    })
}

/// rconnect(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn rconnect(fd: c_int, address: Address, _len: libc::socklen_t) -> c_int {
    waiting_value(|| {
        let peer = given(address.read()?)?;
        let socket = find(fd)?;
        restarting(&socket, Name::SendTimeout, |socket| Ok(socket.connect(peer)?))?;
        Ok(0)
    })
}

/// rshutdown(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    waiting_value(|| {
        let how = match how {
            libc::SHUT_RD => How::Read,
            libc::SHUT_WR => How::Write,
            libc::SHUT_RDWR => How::Both,
            _ => return Err(INVALID),
        };
        let socket = find(fd)?;
        restarting_if(|| true, || Ok(socket.shut_down(how)?))?;
        Ok(0)
    })
}

/// rclose(3), also for descriptors of repoll_create.
#[unsafe(no_mangle)]
extern "C-unwind" fn rclose(fd: c_int) -> c_int {
    waiting_value(|| {
        let _inside = Inside::enter()?;
        if table().sets.remove(&fd).is_some() {
            return Ok(0);
        }
        let socket = table().sockets.get(&fd).ok_or(SocketError::NoSocket(fd))?;
        // As with epoll(7), a descriptor that is closed leaves all sets.
        table().sets.each(|set| {
            set.remove(fd);
        });
        socket.close();
        // This comes last, because the descriptor's number may be used again as soon as the last handle is gone.
        table().sockets.remove(&fd);
        Ok(0)
    })
}

/// rgetsockname(3).
#[unsafe(no_mangle)]
extern "C" fn rgetsockname(fd: c_int, address: AddressOut, len: Option<&mut libc::socklen_t>) -> c_int {
    value(|| {
        address.write(len, find(fd)?.local_addr());
        Ok(0)
    })
}

/// rgetpeername(3).
#[unsafe(no_mangle)]
extern "C" fn rgetpeername(fd: c_int, address: AddressOut, len: Option<&mut libc::socklen_t>) -> c_int {
    value(|| {
        address.write(len, find(fd)?.peer_addr()?);
        Ok(0)
    })
}
