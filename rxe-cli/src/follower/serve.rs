//! The follower: carries out requests until the leader closes the connection.

use super::{Answer, Ask, DEPTH, Side, Wire};
use crate::{
    Result,
    local::{self, PATIENCE},
};
use rxe_verbs::{Access, BindWindow, Completion, Context, Key, Mw, MwBind, SendFlags, SendOp, WindowType};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

/// Works for the leader at the other end of `wire`. Returns why the last request failed, if it did.
pub(crate) fn serve(context: &Context, gid: u8, wire: &mut Wire) -> Result<Option<String>> {
    let mut follower = Follower { context: context.clone(), gid, side: None, windows: Vec::new() };
    let mut failure = None;
    while let Some(ask) = wire.read::<Ask>()? {
        let answer = follower.act(ask, wire).unwrap_or_else(|error| Answer::Failed(error.to_string()));
        wire.write(&answer)?;
        failure = if let Answer::Failed(why) = answer { Some(why) } else { None };
    }
    Ok(failure)
}

#[derive(Debug)]
struct Follower {
    context: Context,
    gid: u8,
    side: Option<Side>,
    windows: Vec<Mw>,
}

impl Follower {
    fn side(&self) -> Result<&Side> {
        self.side.as_ref().ok_or_else(|| "nothing is set up yet".into())
    }

    fn act(&mut self, ask: Ask, wire: &mut Wire) -> Result<Answer> {
        let millis = Duration::from_millis;
        match ask {
            Ask::Setup(setup) => {
                // The old ones are dropped first, because the new ones may need their memory.
                self.windows.clear();
                self.side = None;
                let side = self.side.insert(Side::new(&self.context, self.gid, &setup)?);
                return Ok(Answer::Card(side.card()?));
            }
            Ask::Connect(card) => self.side.as_mut().ok_or("nothing is set up yet")?.connect(&card)?,
            Ask::Fill { at, len, seed } => self.side()?.fill(at, len, seed)?,
            Ask::Clear { at, len } => self.side()?.clear(at, len)?,
            Ask::Check { at, len, skip, seed, millis: time } => {
                self.side()?.check(at, len, skip, seed, millis(time))?;
            }
            Ask::Store { at, value } => {
                self.side()?.mr.swap_u64(at, value)?;
            }
            Ask::Loaded { at, value } => {
                let got = self.side()?.mr.load_u64(at)?;
                if got != value {
                    return Err(format!("the eight bytes are {got:#x} and should be {value:#x}").into());
                }
            }
            Ask::Receive { line, at, len } => self.side()?.receive(line, at, len)?,
            Ask::Received { line, millis: time } => {
                return Ok(Answer::Received(self.side()?.received(line, millis(time))?));
            }
            Ask::Bind { line, two, at, len } => return Ok(Answer::Key(self.bind(line, two, at, len)?.0)),
            Ask::Invalidate { line, key } => {
                let side = self.side()?;
                side.post(line, SendOp::LocalInvalidate(Key(key)), 0, 0)?;
                side.sent(line)?;
            }
            Ask::Absorb { receive } => self.absorb(receive, wire)?,
            Ask::Pong { write, size, count } => self.pong(write, size, count, wire)?,
            Ask::Tcp { echo } => self.tcp(echo, wire)?,
        }
        Ok(Answer::Done)
    }

    fn bind(&mut self, line: usize, two: bool, at: usize, len: u64) -> Result<Key> {
        let side = self.side()?;
        let kind = if two { WindowType::Two } else { WindowType::One };
        let window = side.pd.alloc_mw(kind)?;
        let (addr, access) = (side.mr.addr() + at as u64, Access::REMOTE_WRITE | Access::REMOTE_READ);
        if two {
            let (region, new_rkey) = (side.mr.lkey(), window.rkey().rotated());
            let bind = BindWindow { window: window.rkey(), new_rkey, region, addr, len, access };
            side.post(line, SendOp::BindWindow(bind), 0, 0)?;
        } else {
            let flags = SendFlags::SIGNALED;
            let bind = MwBind { wr_id: 1, flags, region: &side.mr, addr, len, access };
            side.line(line)?.qp.bind_mw(&window, &bind)?;
        }
        side.sent(line)?;
        let key = window.rkey();
        self.windows.push(window);
        Ok(key)
    }

    fn absorb(&self, receive: Option<u32>, wire: &mut Wire) -> Result<()> {
        let side = self.side()?;
        let last = side.mr.len() - 1;
        side.mr.write_at(last, &[0])?;
        if let Some(size) = receive {
            for line in 0..side.lines.len() {
                (0..2 * DEPTH).try_for_each(|_| side.receive(line, 0, size))?;
            }
        }
        wire.write(&Answer::Done)?;
        let mut some = [Completion::default(); 32];
        let mut quiet = Instant::now();
        let mut seen = 0;
        while side.mr.load_u8(last)? != 1 {
            self.context.progress();
            for (index, line) in side.lines.iter().enumerate().filter(|_| receive.is_some()) {
                let count = line.recv_cq.poll(&mut some)?;
                for wc in &some[..count] {
                    local::check(wc, &self.context)?;
                    side.receive(index, 0, receive.unwrap_or(0))?;
                }
            }
            // Packets on the line show that the leader is there.
            let packets = self.context.port_stats().packets_received;
            if packets != seen {
                (seen, quiet) = (packets, Instant::now());
            } else if quiet.elapsed() > PATIENCE {
                return Err("nothing arrived for a long time".into());
            } else {
                // The other process may need this processor.
                thread::yield_now();
            }
        }
        Ok(())
    }

    fn pong(&self, write: bool, size: u32, count: u32, wire: &mut Wire) -> Result<()> {
        let side = self.side()?;
        let line = side.line(0)?;
        let last = (size as usize).max(1) - 1;
        side.mr.write_at(last, &[0])?;
        if !write {
            (0..2).try_for_each(|_| side.receive(0, 0, size))?;
        }
        wire.write(&Answer::Done)?;
        for round in 1..=count {
            if write {
                wait_for_byte(side, last, round as u8)?;
                // The part for sending is behind the part for receiving.
                side.mr.write_at(size as usize + last, &[round as u8])?;
                side.post(0, SendOp::Write(side.remote(0)), size as usize, size)?;
            } else {
                let wc = line.recv_cq.poll_within(PATIENCE)?.ok_or("the other side is silent")?;
                local::check(&wc, &self.context)?;
                side.receive(0, 0, size)?;
                side.post(0, SendOp::Send, size as usize, size)?;
            }
            side.sent(0)?;
        }
        Ok(())
    }

    fn tcp(&self, echo: Option<usize>, wire: &mut Wire) -> Result<()> {
        let ip = self.context.gids().get(self.gid).address().ok_or("our GID is gone")?;
        let listener = TcpListener::bind((ip, 0))?;
        wire.write(&Answer::Port(listener.local_addr()?.port()))?;
        let (mut tcp, _) = listener.accept()?;
        tcp.set_nodelay(true)?;
        match echo {
            Some(len) => echo_all(&mut tcp, len.clamp(1, 1 << 20)),
            None => {
                let mut buffer = vec![0; 128 << 10];
                while tcp.read(&mut buffer)? > 0 {}
                Ok(())
            }
        }
    }
}

fn echo_all(tcp: &mut TcpStream, len: usize) -> Result<()> {
    let mut buffer = vec![0; len];
    while tcp.read_exact(&mut buffer).is_ok() {
        tcp.write_all(&buffer)?;
    }
    Ok(())
}

/// Waits until a WRITE has stored `value` at `at`.
pub(crate) fn wait_for_byte(side: &Side, at: usize, value: u8) -> Result<()> {
    let start = Instant::now();
    while side.mr.load_u8(at)? != value {
        side.context.progress();
        if start.elapsed() > PATIENCE {
            return Err("the other side is silent".into());
        }
        // The other process may need this processor.
        thread::yield_now();
    }
    Ok(())
}
