//! Every operation of every service, each compared byte for byte by the process whose memory it changed.

use crate::{
    Result,
    follower::{Answer, Ask, Card, Received, Side, Wire, patience_millis, unexpected},
};
use rxe_verbs::{Key, Payload, Remote, SendOp, SendWr, WcStatus};
use std::time::Duration;

/// Offset of messages, on both sides.
const AT: usize = 4096;
/// Offset of the eight bytes for atomics.
const WORD: usize = 1024;
/// Bytes in front of a datagram.
const GRH: usize = 40;
/// Tries of an unreliable message.
const TRIES: u32 = 5;
/// Sizes around one packet and many (MTU 1024).
const SIZES: [u32; 9] = [0, 1, 7, 1023, 1024, 1025, 4096, 65_537, 1 << 20];
/// For unreliable services.
const UNRELIABLE: [u32; 7] = [0, 1, 7, 1023, 1024, 1025, 16_385];
const DATAGRAMS: [u32; 5] = [0, 1, 7, 1023, 1024];

const RC: usize = 0;
const UC: usize = 1;
const UD: usize = 2;
const SHARED: [usize; 2] = [3, 4];
/// The line that is broken at the end.
const LAST: usize = 5;

/// One line of the report.
pub(super) struct Check {
    pub(super) service: &'static str,
    pub(super) operation: &'static str,
    pub(super) run: fn(&mut Stage<'_>) -> Result<String>,
}

const fn check(
    service: &'static str,
    operation: &'static str,
    run: fn(&mut Stage<'_>) -> Result<String>,
) -> Check {
    Check { service, operation, run }
}

/// All checks, in order.
pub(super) const ALL: &[Check] = &[
    check("RC", "SEND", |stage| stage.sends(RC, &SIZES, Message::Plain)),
    check("RC", "SEND with immediate", |stage| stage.sends(RC, &SIZES, Message::Immediate)),
    check("RC", "SEND, inline", |stage| stage.inline()),
    check("RC", "RDMA WRITE", |stage| stage.writes(RC, &SIZES)),
    check("RC", "RDMA WRITE with immediate", |stage| stage.sends(RC, &SIZES, Message::WriteImmediate)),
    check("RC", "RDMA READ", |stage| stage.reads()),
    check("RC", "compare and swap", |stage| stage.compare_swap()),
    check("RC", "fetch and add", |stage| stage.fetch_add()),
    check("RC", "ATOMIC WRITE", |stage| stage.atomic_write()),
    check("RC", "FLUSH", |stage| stage.flush()),
    check("RC", "memory window, type 1", |stage| stage.window(false)),
    check("RC", "memory window, type 2", |stage| stage.window(true)),
    check("RC", "SEND with invalidate", |stage| stage.invalidate()),
    check("UC", "SEND", |stage| stage.sends(UC, &UNRELIABLE, Message::Plain)),
    check("UC", "SEND with immediate", |stage| stage.sends(UC, &UNRELIABLE, Message::Immediate)),
    check("UC", "RDMA WRITE", |stage| stage.writes(UC, &UNRELIABLE)),
    check("UC", "RDMA WRITE with immediate", |stage| stage.sends(UC, &UNRELIABLE, Message::WriteImmediate)),
    check("UD", "SEND", |stage| stage.sends(UD, &DATAGRAMS, Message::Plain)),
    check("UD", "SEND with immediate", |stage| stage.sends(UD, &DATAGRAMS, Message::Immediate)),
    check("SRQ", "two RC queue pairs", |stage| stage.shared()),
    check("RC", "a revoked key is refused", |stage| stage.refused()),
];

/// The kind of a message that consumes a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    Plain,
    Immediate,
    WriteImmediate,
}

/// Both sides, connected.
pub(super) struct Stage<'a> {
    wire: &'a mut Wire,
    side: &'a Side,
    card: &'a Card,
    /// The seed of the last pattern.
    seed: u64,
}

impl<'a> Stage<'a> {
    pub(super) const fn new(wire: &'a mut Wire, side: &'a Side, card: &'a Card) -> Self {
        Self { wire, side, card, seed: 0 }
    }

    fn next_seed(&mut self) -> u64 {
        self.seed += 1;
        self.seed
    }

    fn received(&mut self, line: usize, millis: u64) -> Result<Received> {
        match self.wire.ask(&Ask::Received { line, millis })? {
            Answer::Received(received) => Ok(received),
            other => Err(unexpected(&other)),
        }
    }

    fn check(&mut self, len: u32, skip: usize, seed: u64) -> Result<()> {
        self.wire.wants(&Ask::Check { at: AT, len: len as usize, skip, seed, millis: 0 })
    }

    /// Messages of several sizes that consume a receive.
    fn sends(&mut self, line: usize, sizes: &[u32], message: Message) -> Result<String> {
        let mut again = 0;
        for &size in sizes {
            again += self.send(line, size, message).map_err(|error| format!("{size} bytes: {error}"))?;
        }
        Ok(summary(sizes, again))
    }

    /// One such message. Returns how often an unreliable one had to be repeated.
    fn send(&mut self, line: usize, size: u32, message: Message) -> Result<u32> {
        let seed = self.next_seed();
        let skip = if line == UD { GRH } else { 0 };
        let immediate = (seed as u32).wrapping_mul(0x9e37_79b1).to_be_bytes();
        let op = match message {
            Message::Plain => SendOp::Send,
            Message::Immediate => SendOp::SendImm(immediate),
            Message::WriteImmediate => SendOp::WriteImm(self.side.remote(AT), immediate),
        };
        self.wire.wants(&Ask::Clear { at: AT - skip, len: size as usize + skip })?;
        let len = if message == Message::WriteImmediate { 0 } else { size + skip as u32 };
        self.wire.wants(&Ask::Receive { line, at: AT - skip, len })?;
        self.side.fill(AT, size as usize, seed)?;
        let unreliable = line == UC || line == UD;
        let millis = if unreliable { 500 } else { patience_millis() };
        let mut again = 0;
        let got = loop {
            self.side.post(line, op, AT, size)?;
            self.side.sent(line)?;
            match self.received(line, millis) {
                Ok(got) => break got,
                Err(_) if unreliable && again + 1 < TRIES => again += 1,
                Err(error) => return Err(error),
            }
        };
        let want = Received {
            len: size + skip as u32,
            by_write: message == Message::WriteImmediate,
            immediate: (message != Message::Plain).then_some(immediate),
            invalidated: None,
            src_qp: if line == UD { self.side.line(line)?.qp.qpn().value() } else { 0 },
            grh: None,
        };
        if line == UD {
            self.grh(got.grh.as_deref())?;
        }
        let src_qp = if line == UD { got.src_qp } else { 0 };
        let got = Received { grh: None, src_qp, ..got };
        if got != want {
            return Err(format!("the completion is {got:?} and should be {want:?}").into());
        }
        self.check(size, skip, seed)?;
        Ok(again)
    }

    /// The 40 bytes before a datagram: over IPv4 the last 20 are its IP header, with both addresses.
    fn grh(&self, grh: Option<&[u8]>) -> Result<()> {
        let grh = grh.ok_or("the completion has no GRH")?;
        let own = self.side.card()?.ip;
        let (std::net::IpAddr::V4(src), std::net::IpAddr::V4(dst)) = (own, self.card.ip) else {
            return Err("the addresses are not IPv4".into());
        };
        if grh[20] != 0x45 || grh[32..36] != src.octets() || grh[36..40] != dst.octets() {
            return Err(format!("the GRH does not say {src} to {dst}: {grh:02x?}").into());
        }
        Ok(())
    }

    fn inline(&mut self) -> Result<String> {
        let sizes = [0, 1, 100, 256];
        for size in sizes {
            let seed = self.next_seed();
            self.wire.wants(&Ask::Clear { at: AT, len: size as usize })?;
            self.wire.wants(&Ask::Receive { line: RC, at: AT, len: size })?;
            let mut bytes = crate::follower::pattern(size as usize, seed);
            let wr = SendWr { payload: Payload::Inline(&bytes), ..SendWr::new(1, SendOp::Send, &[]) };
            self.side.line(RC)?.qp.post_send(&wr)?;
            // The data was copied.
            bytes.fill(0);
            self.side.sent(RC)?;
            self.received(RC, patience_millis())?;
            self.check(size, 0, seed)?;
        }
        Ok(summary(&sizes, 0))
    }

    fn writes(&mut self, line: usize, sizes: &[u32]) -> Result<String> {
        let mut again = 0;
        for &size in sizes {
            again += self
                .write(line, self.side.remote(AT), size)
                .map_err(|error| format!("{size} bytes: {error}"))?;
        }
        Ok(summary(sizes, again))
    }

    fn write(&mut self, line: usize, remote: Remote, size: u32) -> Result<u32> {
        let (seed, len) = (self.next_seed(), size as usize);
        self.wire.wants(&Ask::Clear { at: AT, len })?;
        self.side.fill(AT, len, seed)?;
        let mut again = 0;
        loop {
            self.side.post(line, SendOp::Write(remote), AT, size)?;
            self.side.sent(line)?;
            // An unreliable message completes when it has left, not when it has arrived.
            let millis = if line == UC { 500 } else { 0 };
            match self.wire.wants(&Ask::Check { at: AT, len, skip: 0, seed, millis }) {
                Ok(()) => return Ok(again),
                Err(_) if line == UC && again + 1 < TRIES => again += 1,
                Err(error) => return Err(error),
            }
        }
    }

    fn reads(&mut self) -> Result<String> {
        for size in SIZES {
            let (seed, len) = (self.next_seed(), size as usize);
            self.wire.wants(&Ask::Fill { at: AT, len, seed })?;
            self.side.clear(AT, len)?;
            self.side.post(RC, SendOp::Read(self.side.remote(AT)), AT, size)?;
            self.side.sent(RC)?;
            // In this case this process reads the memory.
            self.side
                .check(AT, len, 0, seed, Duration::ZERO)
                .map_err(|error| format!("{size} bytes: {error}"))?;
        }
        Ok(summary(&SIZES, 0))
    }

    /// Executes an atomic, and returns the old value.
    fn atomic(&self, op: SendOp) -> Result<u64> {
        self.side.mr.swap_u64(WORD, u64::MAX)?;
        self.side.post(RC, op, WORD, 8)?;
        self.side.sent(RC)?;
        Ok(self.side.mr.load_u64(WORD)?)
    }

    fn compare_swap(&mut self) -> Result<String> {
        let remote = self.side.remote(WORD);
        let (first, second) = (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
        self.wire.wants(&Ask::Store { at: WORD, value: first })?;
        for (compare, old, after) in [(second, first, first), (first, first, second), (first, second, second)]
        {
            let got = self.atomic(SendOp::CompareSwap { remote, compare, swap: second })?;
            same(got, old)?;
            self.wire.wants(&Ask::Loaded { at: WORD, value: after })?;
        }
        Ok("a match and two misses".into())
    }

    fn fetch_add(&mut self) -> Result<String> {
        let remote = self.side.remote(WORD);
        let mut value = u64::MAX - 500;
        self.wire.wants(&Ask::Store { at: WORD, value })?;
        for add in 1..=100 {
            same(self.atomic(SendOp::FetchAdd { remote, add })?, value)?;
            value = value.wrapping_add(add);
        }
        self.wire.wants(&Ask::Loaded { at: WORD, value })?;
        Ok("100 in a row, across 2^64".into())
    }

    fn atomic_write(&mut self) -> Result<String> {
        let value = 0x0102_0304_a5b6_c7d8u64;
        self.wire.wants(&Ask::Store { at: WORD, value: 0 })?;
        let op = SendOp::AtomicWrite { remote: self.side.remote(WORD), value: value.to_ne_bytes() };
        self.side.post(RC, op, 0, 8)?;
        self.side.sent(RC)?;
        self.wire.wants(&Ask::Loaded { at: WORD, value })?;
        Ok("8 bytes".into())
    }

    fn flush(&mut self) -> Result<String> {
        let (seed, len) = (self.next_seed(), 4096);
        self.wire.wants(&Ask::Clear { at: AT, len })?;
        self.side.fill(AT, len, seed)?;
        let remote = self.side.remote(AT);
        self.side.post(RC, SendOp::Write(remote), AT, len as u32)?;
        self.side.sent(RC)?;
        for (placement, selectivity) in [(1, 0), (2, 0), (3, 1)] {
            self.side.post(RC, SendOp::Flush { remote, len: len as u32, placement, selectivity }, 0, 0)?;
            self.side.sent(RC)?;
        }
        self.check(len as u32, 0, seed)?;
        Ok("visible, persistent, range and region".into())
    }

    fn bind(&mut self, line: usize, two: bool, len: u64) -> Result<Key> {
        match self.wire.ask(&Ask::Bind { line, two, at: AT, len })? {
            Answer::Key(key) => Ok(Key(key)),
            other => Err(unexpected(&other)),
        }
    }

    fn window(&mut self, two: bool) -> Result<String> {
        let rkey = self.bind(RC, two, 4096)?;
        self.write(RC, Remote { rkey, ..self.side.remote(AT) }, 4096)?;
        Ok("bound there, written through from here".into())
    }

    fn invalidate(&mut self) -> Result<String> {
        let rkey = self.bind(RC, true, 4096)?;
        let (seed, size) = (self.next_seed(), 3000);
        self.wire.wants(&Ask::Clear { at: AT, len: size })?;
        self.wire.wants(&Ask::Receive { line: RC, at: AT, len: size as u32 })?;
        self.side.fill(AT, size, seed)?;
        self.side.post(RC, SendOp::SendInvalidate(rkey), AT, size as u32)?;
        self.side.sent(RC)?;
        let got = self.received(RC, patience_millis())?;
        if got.invalidated != Some(rkey.0) {
            return Err(
                format!("the completion says {:?} was invalidated, not {rkey:?}", got.invalidated).into()
            );
        }
        self.check(size as u32, 0, seed)?;
        Ok("the message, and the key it takes back".into())
    }

    fn shared(&mut self) -> Result<String> {
        let sizes = [1, 1024, 5000];
        for size in sizes {
            for line in SHARED {
                self.send(line, size, Message::Immediate)
                    .map_err(|error| format!("{size} bytes, queue pair {line}: {error}"))?;
            }
        }
        Ok(summary(&sizes, 0))
    }

    /// A WRITE through a window that no longer exists must fail on this side and change nothing on the other.
    fn refused(&mut self) -> Result<String> {
        let rkey = self.bind(LAST, true, 64)?;
        let (seed, len) = (self.next_seed(), 64);
        self.wire.wants(&Ask::Invalidate { line: LAST, key: rkey.0 })?;
        self.wire.wants(&Ask::Clear { at: AT, len })?;
        self.wire.wants(&Ask::Fill { at: AT, len, seed })?;
        self.side.fill(AT, len, seed + 1000)?;
        let op = SendOp::Write(Remote { rkey, ..self.side.remote(AT) });
        self.side.post(LAST, op, AT, len as u32)?;
        let status = self.side.finished(LAST)?.status;
        if status != WcStatus::RemoteAccess {
            return Err(format!("the WRITE ended with {status:?} and should with RemoteAccess").into());
        }
        self.check(len as u32, 0, seed)?;
        Ok("RemoteAccess here, nothing changed there".into())
    }
}

fn same(got: u64, want: u64) -> Result<()> {
    if got == want {
        return Ok(());
    }
    Err(format!("the old value came back as {got:#x} and should be {want:#x}").into())
}

fn summary(sizes: &[u32], again: u32) -> String {
    let last = sizes.iter().max().copied().unwrap_or(0);
    let least = sizes.iter().min().copied().unwrap_or(0);
    let again = if again > 0 { format!(", {again} lost and sent again by us") } else { String::new() };
    format!("{} sizes, {least} to {last} bytes{again}", sizes.len())
}
