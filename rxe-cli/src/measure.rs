//! Bandwidth and latency between a leader and its follower.

use crate::{
    Result,
    follower::{Answer, Ask, Card, DEPTH, Side, Wire, unexpected, wait_for_byte},
    local::{self, PATIENCE},
};
use clap::ValueEnum;
use rxe_verbs::{Completion, SendOp};
use serde::Serialize;
use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    thread,
    time::{Duration, Instant},
};

/// Bytes of each write to the TCP connection that is measured for comparison.
const TCP_WRITE: usize = 128 << 10;
/// Bytes of memory for the sign that a measurement has ended.
const SIGN: usize = 64;

/// Times for which memory is taken before a measurement, so that it takes none in between.
const FORESEEN: u32 = 1 << 20;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Work {
    /// RDMA WRITE
    Write,
    /// SEND
    Send,
    /// RDMA READ
    Read,
    /// Fetch and add, 8 bytes
    Atomic,
}

impl Work {
    fn op(self, side: &Side) -> SendOp {
        let remote = side.remote(0);
        match self {
            Self::Write => SendOp::Write(remote),
            Self::Send => SendOp::Send,
            Self::Read => SendOp::Read(remote),
            Self::Atomic => SendOp::FetchAdd { remote, add: 1 },
        }
    }
}

/// When a measurement ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    Time(Duration),
    Count(u64),
}

/// Size of the memory of each side.
pub(crate) const fn memory(size: u32) -> usize {
    // Separate parts for sending and receiving, each at a multiple of 8.
    2 * (size as usize).next_multiple_of(8) + SIGN
}

/// The transferred messages.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Rate {
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
    pub(crate) seconds: f64,
}

impl Rate {
    /// 10^9 bits a second of payload.
    pub(crate) fn gbit(&self) -> f64 {
        self.bytes as f64 * 8e-9 / self.seconds
    }
}

/// Posts on all lines as fast as completions allow. Calls `tick` with the number of completed messages.
pub(crate) fn bandwidth(
    side: &Side,
    wire: &mut Wire,
    work: Work,
    size: u32,
    until: Until,
    tick: &mut dyn FnMut(u64, Duration),
) -> Result<Rate> {
    wire.wants(&Ask::Absorb { receive: (work == Work::Send).then_some(size) })?;
    let start = Instant::now();
    let mut life = start;
    let mut outstanding = vec![0; side.lines.len()];
    let (mut posted, mut done) = (0u64, 0u64);
    let mut some = [Completion::default(); 32];
    loop {
        let elapsed = start.elapsed();
        let enough = match until {
            Until::Time(time) => elapsed >= time,
            Until::Count(count) => posted >= count,
        };
        if enough && done == posted {
            break;
        }
        let before = done;
        for (index, (line, outstanding)) in side.lines.iter().zip(&mut outstanding).enumerate() {
            while !enough && *outstanding < DEPTH && !matches!(until, Until::Count(count) if posted >= count)
            {
                side.post(index, work.op(side), 0, size)?;
                *outstanding += 1;
                posted += 1;
            }
            let count = line.send_cq.poll(&mut some)?;
            for wc in &some[..count] {
                local::check(wc, &side.context)?;
            }
            *outstanding -= count as u32;
            done += count as u64;
            if count > 0 {
                life = Instant::now();
            }
        }
        tick(done, elapsed);
        if done == before {
            // The other process may need this processor.
            thread::yield_now();
        }
        if life.elapsed() > PATIENCE {
            return Err("no work request completes any more".into());
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    finish(side, wire)?;
    Ok(Rate { bytes: done * u64::from(size), messages: done, seconds })
}

/// Tells the follower that the measurement has ended, by writing the last byte of its memory.
fn finish(side: &Side, wire: &mut Wire) -> Result<()> {
    let last = side.mr.len() - 1;
    side.mr.write_at(last, &[1])?;
    side.post(0, SendOp::Write(side.remote(last)), last, 1)?;
    side.sent(0)?;
    match wire.answer()? {
        Answer::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// Times of single messages: one way, or for READs and atomics both ways. Also used for other times.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Times {
    pub(crate) messages: usize,
    pub(crate) min_usec: f64,
    pub(crate) median_usec: f64,
    pub(crate) mean_usec: f64,
    pub(crate) p99_usec: f64,
    pub(crate) max_usec: f64,
}

impl Times {
    /// `legs` is the number of ways in each measured time.
    pub(crate) fn new(mut times: Vec<Duration>, legs: f64) -> Self {
        times.sort_unstable();
        let usec = |index: usize| times.get(index).map_or(0.0, |time| time.as_secs_f64() * 1e6 / legs);
        let count = times.len();
        Self {
            messages: count,
            min_usec: usec(0),
            median_usec: usec(count / 2),
            mean_usec: times.iter().sum::<Duration>().as_secs_f64() * 1e6 / legs / count.max(1) as f64,
            p99_usec: usec((count * 99).div_ceil(100).saturating_sub(1)),
            max_usec: usec(count.saturating_sub(1)),
        }
    }
}

/// One message at a time.
pub(crate) fn latency(
    side: &Side,
    wire: &mut Wire,
    work: Work,
    size: u32,
    count: u32,
    tick: &mut dyn FnMut(u64, Duration),
) -> Result<Times> {
    let mut times = Vec::with_capacity(count.min(FORESEEN) as usize);
    let there_and_back = matches!(work, Work::Read | Work::Atomic);
    let (at, last) = (size as usize, size as usize - 1);
    side.mr.write_at(last, &[0])?;
    let ask = if there_and_back {
        Ask::Absorb { receive: None }
    } else {
        Ask::Pong { write: work == Work::Write, size, count }
    };
    wire.wants(&ask)?;
    let begin = Instant::now();
    for round in 1..=count {
        if work == Work::Send {
            side.receive(0, 0, size)?;
        }
        if work == Work::Write {
            side.mr.write_at(at + last, &[round as u8])?;
        }
        let start = Instant::now();
        side.post(0, work.op(side), if there_and_back { 0 } else { at }, size)?;
        match work {
            Work::Write => wait_for_byte(side, last, round as u8)?,
            Work::Send => {
                side.received(0, PATIENCE)?;
            }
            Work::Read | Work::Atomic => {}
        }
        if there_and_back {
            side.sent(0)?;
        }
        times.push(start.elapsed());
        if !there_and_back {
            side.sent(0)?;
        }
        tick(round.into(), begin.elapsed());
    }
    if there_and_back {
        finish(side, wire)?;
    } else {
        match wire.answer()? {
            Answer::Done => {}
            other => return Err(unexpected(&other)),
        }
    }
    Ok(Times::new(times, if there_and_back { 1.0 } else { 2.0 }))
}

fn tcp_connect(wire: &mut Wire, card: &Card, echo: Option<usize>) -> Result<TcpStream> {
    let port = match wire.ask(&Ask::Tcp { echo })? {
        Answer::Port(port) => port,
        other => return Err(unexpected(&other)),
    };
    let tcp = TcpStream::connect((card.ip, port))?;
    tcp.set_nodelay(true)?;
    Ok(tcp)
}

/// Measures a TCP connection between the same two processes.
pub(crate) fn tcp_bandwidth(wire: &mut Wire, card: &Card, time: Duration) -> Result<Rate> {
    let mut tcp = tcp_connect(wire, card, None)?;
    let buffer = vec![0x5a; TCP_WRITE];
    let start = Instant::now();
    let mut messages = 0;
    while start.elapsed() < time {
        tcp.write_all(&buffer)?;
        messages += 1;
    }
    tcp.shutdown(Shutdown::Write)?;
    match wire.answer()? {
        Answer::Done => {}
        other => return Err(unexpected(&other)),
    }
    Ok(Rate { bytes: messages * TCP_WRITE as u64, messages, seconds: start.elapsed().as_secs_f64() })
}

/// Messages of `size` bytes there and back over TCP.
pub(crate) fn tcp_latency(wire: &mut Wire, card: &Card, size: usize, count: u32) -> Result<Times> {
    let mut tcp = tcp_connect(wire, card, Some(size))?;
    let mut buffer = vec![0; size];
    let mut times = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let start = Instant::now();
        tcp.write_all(&buffer)?;
        tcp.read_exact(&mut buffer)?;
        times.push(start.elapsed());
    }
    drop(tcp);
    match wire.answer()? {
        Answer::Done => Ok(Times::new(times, 2.0)),
        other => Err(unexpected(&other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 99 of 100 messages took no longer.
    #[test]
    fn ninety_nine_percent_are_not_all() {
        let p99 = |count: u64| Times::new((1..=count).map(Duration::from_micros).collect(), 1.0).p99_usec;
        assert_eq!([0, 1, 2, 99, 100, 101, 200].map(p99), [0.0, 1.0, 2.0, 99.0, 99.0, 100.0, 198.0]);
    }
}
