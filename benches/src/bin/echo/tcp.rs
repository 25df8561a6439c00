//! The same over stream sockets.

use crate::{
    Plan, Server, hear,
    measure::{Answers, Spent, Stretch},
    say, until_told,
    wait::{How, Waiter},
};
use benches::ends::Result;
use serde_json::json;
use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    time::Instant,
};

/// A connection, and the part of a message that has arrived so far.
struct Connection {
    stream: TcpStream,
    bytes: Vec<u8>,
    have: usize,
    asked: Instant,
}

impl Connection {
    fn new(stream: TcpStream, size: usize) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, bytes: vec![0; size], have: 0, asked: Instant::now() })
    }

    /// Reads the bytes that are available. Returns whether a message is complete.
    fn read(&mut self) -> Result<bool> {
        match self.stream.read(&mut self.bytes[self.have..]) {
            Ok(0) => Err("the other end has closed".into()),
            Ok(count) => {
                self.have += count;
                Ok(self.have == self.bytes.len())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a message of the same size. At most one message is outstanding, so the buffer has room for it.
    fn write(&mut self) -> Result<()> {
        self.have = 0;
        Ok(self.stream.write_all(&self.bytes)?)
    }
}

pub(crate) fn serve(plan: Plan) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    say(&json!(listener.local_addr()?.port()))?;
    let mut connections: Vec<Connection> = (0..plan.connections)
        .map(|_| Connection::new(listener.accept()?.0, plan.size))
        .collect::<Result<_>>()?;
    hear()?;
    let streams: Vec<TcpStream> =
        connections.iter().map(|one| one.stream.try_clone()).collect::<std::io::Result<_>>()?;
    let fds: Vec<_> = streams.iter().map(AsFd::as_fd).collect();
    let mut waiter = Waiter::new(How::Epoll, &fds)?;
    until_told(|goes_on| {
        while goes_on() {
            let answered = waiter.wait(|index| {
                let one = &mut connections[index];
                if one.read()? { one.write() } else { Ok(()) }
            });
            if answered.is_err() {
                break;
            }
        }
        Ok(())
    })
}

pub(crate) fn ask(plan: Plan, server: &mut Server) -> Result<(Spent, Answers)> {
    let port = server.hear()?.as_u64().ok_or("no port")? as u16;
    let mut connections: Vec<Connection> = (0..plan.connections)
        .map(|_| Connection::new(TcpStream::connect(("127.0.0.1", port))?, plan.size))
        .collect::<Result<_>>()?;
    server.say(&json!("go"))?;
    let streams: Vec<TcpStream> =
        connections.iter().map(|one| one.stream.try_clone()).collect::<std::io::Result<_>>()?;
    let fds: Vec<_> = streams.iter().map(AsFd::as_fd).collect();
    let mut waiter = Waiter::new(How::Epoll, &fds)?;
    let mut stretch = Stretch::begin(plan.seconds)?;
    for one in &mut connections {
        one.asked = Instant::now();
        one.write()?;
    }
    while stretch.goes_on()? {
        waiter.wait(|index| {
            let one = &mut connections[index];
            if one.read()? {
                let now = Instant::now();
                stretch.add(one.asked, now);
                one.asked = now;
                one.write()?;
            }
            Ok(())
        })?;
    }
    stretch.end()
}
