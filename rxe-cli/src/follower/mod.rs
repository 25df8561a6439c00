//! Two processes that work together. One leads, and the other, the follower, carries out its requests. They use a pair of
//! streams with a line of JSON for each request and response.

mod serve;
mod side;

use crate::{Result, local};
use rxe_verbs::Mtu;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::IpAddr,
};

pub(crate) use serve::{serve, wait_for_byte};
pub(crate) use side::{Side, pattern};

/// Longest line that is read.
const LINE: u64 = 1 << 20;
/// Bytes around a checked range that must not change.
pub(crate) const GUARD: usize = 64;
/// What a cleared range and its guards hold.
pub(crate) const CLEAR: u8 = 0xee;
/// Outstanding sends and posted receives of a line in measurements.
pub(crate) const DEPTH: u32 = 64;

/// Kind of a line: two connected queue pairs, one on each side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Kind {
    Rc,
    Uc,
    Ud,
    /// RC with a shared receive queue.
    Shared,
}

/// The objects to create.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) lines: Vec<Kind>,
    /// Bytes of registered memory.
    pub(crate) memory: usize,
    /// Path MTU in bytes.
    pub(crate) mtu: u32,
}

impl Setup {
    /// The path MTU.
    pub(crate) fn path_mtu(&self) -> Result<Mtu> {
        let mtu = self.mtu;
        Mtu::from_bytes(mtu).ok_or_else(|| format!("{mtu} is no path MTU").into())
    }
}

/// The parameters of one end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Card {
    pub(crate) ip: IpAddr,
    /// QPN and first PSN of each line.
    pub(crate) lines: Vec<(u32, u32)>,
    /// The registered memory.
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

/// A request of the leader.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Make this, and say who you are: [`Answer::Card`].
    Setup(Setup),
    /// Connect to this.
    Connect(Card),
    /// Write pattern `seed`.
    Fill { at: usize, len: usize, seed: u64 },
    /// Clear a range and its guards.
    Clear { at: usize, len: usize },
    /// Compare a range with pattern `seed`, and its guards; unreliable services may take `millis` until it is right. The
    /// guard in front ends `skip` bytes before the range.
    Check { at: usize, len: usize, skip: usize, seed: u64, millis: u64 },
    /// Store eight bytes of the host's byte order.
    Store { at: usize, value: u64 },
    /// Are the eight bytes these?
    Loaded { at: usize, value: u64 },
    /// Post a receive.
    Receive { line: usize, at: usize, len: u32 },
    /// Wait for a receive to complete: [`Answer::Received`].
    Received { line: usize, millis: u64 },
    /// Bind a window of type 1 or 2 to a part of the memory: [`Answer::Key`].
    Bind { line: usize, two: bool, at: usize, len: u64 },
    /// Invalidate this key of yours with a local work request.
    Invalidate { line: usize, key: u32 },
    /// Be ready for traffic until the last byte of the memory is 1: [`Answer::Done`] now, and again after it. With
    /// `receive`, post receives of so many bytes and post them again.
    Absorb { receive: Option<u32> },
    /// Answer each of `count` messages with one of the same size; [`Answer::Done`] now, and again at the end. With
    /// `write`, they are WRITEs whose last byte changes; else SENDs.
    Pong { write: bool, size: u32, count: u32 },
    /// Read a TCP connection to the end: [`Answer::Port`] now, [`Answer::Done`] after it. With `echo` bytes, send every
    /// so many back.
    Tcp { echo: Option<usize> },
}

/// A response of the follower.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    Card(Card),
    Key(u32),
    Port(u16),
    /// Largest path MTU of this end, in bytes: said at first, where it is asked for by nobody.
    Mtu(u32),
    Received(Received),
    /// It failed, or the result was wrong.
    Failed(String),
}

/// A receive completion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Received {
    pub(crate) len: u32,
    /// The receive was consumed by a WRITE.
    pub(crate) by_write: bool,
    pub(crate) immediate: Option<[u8; 4]>,
    pub(crate) invalidated: Option<u32>,
    /// The sender, of a datagram.
    pub(crate) src_qp: u32,
    /// The 40 bytes before a datagram.
    pub(crate) grh: Option<Vec<u8>>,
}

/// Lines of JSON both ways.
pub(crate) struct Wire {
    from: BufReader<Box<dyn Read>>,
    to: Box<dyn Write>,
    gone: &'static str,
}

impl Wire {
    /// `gone` is the error if the other end closes the connection.
    pub(crate) fn new(from: Box<dyn Read>, to: Box<dyn Write>, gone: &'static str) -> Self {
        Self { from: BufReader::new(from), to, gone }
    }

    pub(crate) fn write(&mut self, what: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.to.write_all(&line).and_then(|()| self.to.flush()).map_err(|_| self.gone)?;
        Ok(())
    }

    /// The next line; `None` at the end of the stream.
    pub(crate) fn read<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let mut line = String::new();
        let read = (&mut self.from).take(LINE).read_line(&mut line);
        if read.map_err(|error| format!("{} ({error})", self.gone))? == 0 {
            return Ok(None);
        }
        let wrong = |error| format!("the other side says something that this version does not know: {error}");
        Ok(Some(serde_json::from_str(&line).map_err(wrong)?))
    }

    pub(crate) fn answer(&mut self) -> Result<Answer> {
        match self.read()?.ok_or(self.gone)? {
            Answer::Failed(why) => Err(format!("the other side says: {why}").into()),
            answer => Ok(answer),
        }
    }

    /// Sends a request that has a response with content.
    pub(crate) fn ask(&mut self, ask: &Ask) -> Result<Answer> {
        self.write(ask)?;
        self.answer()
    }

    /// Sends a request without a result.
    pub(crate) fn wants(&mut self, ask: &Ask) -> Result<()> {
        match self.ask(ask)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Creates both sides and connects them. Returns the follower's card.
    pub(crate) fn set_up(
        &mut self,
        context: &rxe_verbs::Context,
        gid: u8,
        setup: &Setup,
    ) -> Result<(Side, Card)> {
        let Answer::Card(card) = self.ask(&Ask::Setup(setup.clone()))? else {
            return Err("the other side did not say who it is".into());
        };
        let mut side = Side::new(context, gid, setup)?;
        self.wants(&Ask::Connect(side.card()?))?;
        side.connect(&card)?;
        Ok((side, card))
    }
}

/// The error for a response of the wrong kind.
pub(crate) fn unexpected(answer: &Answer) -> Box<dyn std::error::Error + Send + Sync> {
    format!("the other side gave an answer that was not asked for: {answer:?}").into()
}

/// How long the follower may be silent.
pub(crate) const fn patience_millis() -> u64 {
    local::PATIENCE.as_secs() * 1000
}
