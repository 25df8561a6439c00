//! The same over one pair of UDP sockets, with an event descriptor for each connection, and without RDMA. This is the
//! minimum that any provider in user space has to do for programs with one completion channel for each connection. Messages
//! are cut into datagrams. The datagrams are sent with segmentation offload, received with receive offload, and copied to
//! their destination. A descriptor is raised for each message, and the program clears it. There are no checksums,
//! acknowledgements, retransmissions or checks of keys.

use crate::{
    Plan, Server, hear,
    measure::{Answers, Spent, Stretch},
    say, until_told,
    wait::{How, Waiter},
};
use benches::ends::Result;
use nix::{
    cmsg_space,
    errno::Errno,
    sys::{
        eventfd::{EfdFlags, EventFd},
        socket::{
            ControlMessage, ControlMessageOwned, MsgFlags, getsockopt, recvmsg, sendmsg, setsockopt,
            sockopt::{RcvBuf, SndBuf, UdpGroSegment},
        },
    },
};
use serde_json::json;
use std::{
    io::{IoSlice, IoSliceMut},
    net::UdpSocket,
    os::fd::{AsFd, AsRawFd},
    time::Instant,
};

/// Bytes of a message that one datagram carries, as with a path MTU of 4096.
const PIECE: usize = 4096;
/// Bytes in front of them: the connection's number.
const HEADER: usize = 4;
/// Number of datagrams sent with one call. As many large datagrams fit into one call. Small ones are limited to this number
/// so that the peer may begin early.
const TOGETHER: usize = 15;
/// Bytes of requests that the client may have outstanding; half a socket buffer if that is less. So no buffer overflows.
/// This matters because a lost datagram is not retransmitted: there are no acknowledgements that would recover it.
const WINDOW: usize = 320 << 10;
/// The error if the other program has ended, and this one has not been told yet.
const GONE: Errno = Errno::ECONNREFUSED;
/// The longest chain of datagrams that one call receives, in bytes.
const MOST: usize = 1 << 16;

/// A connection: the message that is being received, or has been received.
struct Connection {
    raised: EventFd,
    bytes: Vec<u8>,
    have: usize,
    asked: Instant,
}

/// One of the two programs.
struct Side {
    socket: UdpSocket,
    connections: Vec<Connection>,
    /// Datagrams that have not been sent yet. All have the length of the first one, except that the last may be shorter.
    batch: Vec<u8>,
    datagram: usize,
    waiting: usize,
    arrived: Vec<u8>,
}

impl Side {
    fn new(plan: Plan) -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_nonblocking(true)?;
        // The system limits the size for programs without privileges.
        setsockopt(&socket, RcvBuf, &(1 << 20))?;
        setsockopt(&socket, SndBuf, &(1 << 20))?;
        setsockopt(&socket, UdpGroSegment, &true)?;
        let new = |_| -> Result<Connection> {
            let raised = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
            Ok(Connection { raised, bytes: vec![0; plan.size], have: 0, asked: Instant::now() })
        };
        let connections = (0..plan.connections).map(new).collect::<Result<_>>()?;
        let (batch, arrived) = (Vec::with_capacity(MOST), vec![0; MOST]);
        Ok(Self { socket, connections, batch, datagram: 0, waiting: 0, arrived })
    }

    /// Adds a message of this connection to the next batch.
    fn send(&mut self, index: usize) -> Result<()> {
        let size = self.connections[index].bytes.len();
        self.connections[index].have = 0;
        for begin in (0..size).step_by(PIECE) {
            let end = (begin + PIECE).min(size);
            let length = HEADER + end - begin;
            if self.waiting > 0 && length > self.datagram {
                self.leave()?;
            }
            if self.waiting == 0 {
                self.datagram = length;
            }
            self.batch.extend_from_slice(&(index as u32).to_ne_bytes());
            self.batch.extend_from_slice(&self.connections[index].bytes[begin..end]);
            self.waiting += 1;
            if length < self.datagram || self.waiting == TOGETHER {
                self.leave()?;
            }
        }
        Ok(())
    }

    /// Sends the batch with one call.
    fn leave(&mut self) -> Result<()> {
        if self.waiting == 0 {
            return Ok(());
        }
        let length = self.datagram as u16;
        let segments = [ControlMessage::UdpGsoSegments(&length)];
        let told = if self.waiting > 1 { &segments[..] } else { &[] };
        let slices = [IoSlice::new(&self.batch)];
        // Retries while the buffer of this socket is full: the peer is receiving what is in it.
        while let Err(error) = sendmsg::<()>(self.socket.as_raw_fd(), &slices, told, MsgFlags::empty(), None)
        {
            match error {
                Errno::EAGAIN => {}
                GONE => break,
                error => return Err(error.into()),
            }
        }
        self.batch.clear();
        self.waiting = 0;
        Ok(())
    }

    /// Receives the datagrams that have arrived, and raises the descriptors of connections whose message is complete.
    fn arrive(&mut self) -> Result<()> {
        loop {
            let mut space = cmsg_space!(i32);
            let (length, datagram) = {
                let mut slices = [IoSliceMut::new(&mut self.arrived)];
                match recvmsg::<()>(self.socket.as_raw_fd(), &mut slices, Some(&mut space), MsgFlags::empty())
                {
                    Err(Errno::EAGAIN | GONE) => return Ok(()),
                    Err(error) => return Err(error.into()),
                    Ok(taken) => {
                        let one = taken.cmsgs()?.find_map(|message| match message {
                            ControlMessageOwned::UdpGroSegments(length) => Some(length as usize),
                            _ => None,
                        });
                        (taken.bytes, one.unwrap_or(taken.bytes))
                    }
                }
            };
            for piece in self.arrived[..length].chunks(datagram.max(1)) {
                let (number, bytes) = piece.split_first_chunk::<HEADER>().ok_or("a short datagram")?;
                let number = u32::from_ne_bytes(*number) as usize;
                let one = self.connections.get_mut(number).ok_or("a datagram of nobody")?;
                let end = one.have + bytes.len();
                one.bytes.get_mut(one.have..end).ok_or("too long a message")?.copy_from_slice(bytes);
                one.have = end;
                if end == one.bytes.len() {
                    one.raised.write(1)?;
                }
            }
        }
    }

    /// Calls `each` for every message, until `goes_on` returns false. `goes_on` is called after each wait.
    fn run(
        &mut self,
        mut goes_on: impl FnMut() -> Result<bool>,
        mut each: impl FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<()> {
        let socket = self.socket.try_clone()?;
        let raised: Vec<_> = self
            .connections
            .iter()
            .map(|one| one.raised.as_fd().try_clone_to_owned())
            .collect::<std::io::Result<_>>()?;
        let fds: Vec<_> = core::iter::once(socket.as_fd()).chain(raised.iter().map(AsFd::as_fd)).collect();
        let mut waiter = Waiter::new(How::Epoll, &fds)?;
        while goes_on()? {
            waiter.wait(|index| match index.checked_sub(1) {
                None => self.arrive(),
                Some(index) => {
                    self.connections[index].raised.read()?;
                    each(self, index)
                }
            })?;
            self.leave()?;
        }
        Ok(())
    }
}

pub(crate) fn serve(plan: Plan) -> Result<()> {
    let mut side = Side::new(plan)?;
    say(&json!(side.socket.local_addr()?.port()))?;
    side.socket.connect(("127.0.0.1", hear()?.as_u64().ok_or("no port")? as u16))?;
    say(&json!("ready"))?;
    until_told(|goes_on| side.run(|| Ok(goes_on()), Side::send))
}

pub(crate) fn ask(plan: Plan, server: &mut Server) -> Result<(Spent, Answers)> {
    let mut side = Side::new(plan)?;
    side.socket.connect(("127.0.0.1", server.hear()?.as_u64().ok_or("no port")? as u16))?;
    server.say(&json!(side.socket.local_addr()?.port()))?;
    server.hear()?;
    let stretch = core::cell::RefCell::new(Stretch::begin(plan.seconds)?);
    let mut turn: std::collections::VecDeque<usize> = (0..plan.connections).collect();
    // The connections send in turn. Those for which the window has no room wait, and this wait counts as part of the round
    // trip.
    turn.iter().for_each(|index| side.connections[*index].asked = Instant::now());
    let window = WINDOW.min(getsockopt(&side.socket, RcvBuf)? / 2);
    for _ in 0..(window / plan.size.max(1)).clamp(1, plan.connections) {
        let index = turn.pop_front().ok_or("no connection")?;
        side.send(index)?;
    }
    side.leave()?;
    side.run(
        || stretch.borrow_mut().goes_on(),
        |side, index| {
            let now = Instant::now();
            stretch.borrow_mut().add(core::mem::replace(&mut side.connections[index].asked, now), now);
            turn.push_back(index);
            let next = turn.pop_front().ok_or("no connection")?;
            side.send(next)
        },
    )?;
    stretch.into_inner().end()
}
