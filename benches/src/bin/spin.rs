//! Programs that poll and never wait, as most verbs programs do: two threads, each with a device of its own, call `Cq::poll`
//! in a loop. Prints as JSON: one-way times of a small SEND, and the rate of 64 KiB WRITEs; the arrival time of the second
//! of two WRITEs after which the program computes without making a call; one-way times of WRITEs between programs that watch
//! memory for them; and one-way times of SENDs of a program that computes now and then while an answer is outstanding. With
//! `--hogs`, other threads compete for the processors.

use benches::ends::{self, End, Result, loopback};
use clap::Parser;
use rxe_verbs::{Completion, ContextOptions, Mtu, RecvWr, SendOp, SendWr, WcOpcode, WcStatus};
use serde_json::json;
use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Bytes of a ping.
const PING: u32 = 8;
/// Bytes of a WRITE.
const WRITE: u32 = 64 << 10;
/// WRITEs in flight.
const DEPTH: u32 = 32;
/// How long a program computes between its calls, and how many times it does so.
const COMPUTES: (Duration, u64) = (Duration::from_micros(500), 300);
/// How long a program computes while an answer is outstanding, and the period after which it does so again.
const OVERLAPS: (Duration, Duration) = (Duration::from_micros(2500), Duration::from_millis(20));

/// Two threads that poll and never wait
#[derive(Debug, Parser)]
struct Args {
    /// Threads that keep processors busy with something else
    #[arg(long, default_value_t = 0)]
    hogs: u32,
    /// Seconds of each measurement but that of the computing program
    #[arg(short = 'D', long, default_value_t = 1.0)]
    seconds: f64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let time = Duration::from_secs_f64(args.seconds);
    let open = |number| ContextOptions::new().alone().open_address(loopback(number));
    let contexts = [open(1)?, open(2)?];
    let ends = ends::connected(&contexts, 2 * WRITE as usize, Mtu::M4096)?;
    let stop = AtomicBool::new(false);
    let (mut times, mut others, gbit) = thread::scope(|scope| {
        for _ in 0..args.hogs {
            scope.spawn(|| while !black_box(stop.load(Ordering::Relaxed)) {});
        }
        scope.spawn(|| answer(&ends[1], &stop));
        let never = (Duration::ZERO, Duration::MAX);
        let found = ping(&ends[0], time, never)
            .and_then(|times| Ok((times, ping(&ends[0], time, OVERLAPS)?, write(&ends, time)?)));
        stop.store(true, Ordering::Relaxed);
        found
    })?;
    let mut delays = compute(&ends)?;
    let mut watched = watch(&ends, time)?;
    watched.sort_unstable();
    times.sort_unstable();
    others.sort_unstable();
    delays.sort_unstable();
    let part = |times: &[Duration], share: f64| {
        times.get((times.len() as f64 * share) as usize).map(|t| t.as_secs_f64() * 1e6)
    };
    let one_way = |times: &[Duration], share| part(times, share).map(|there_and_back| there_and_back / 2.0);
    let usec = |share| one_way(&times, share);
    let line = json!({
        "hogs": args.hogs, "pings": times.len(), "p10_usec": usec(0.1), "median_usec": usec(0.5), "p99_usec": usec(0.99), "gbit_per_second": gbit,
        "overlapping_median_usec": one_way(&others, 0.5), "overlapping_p90_usec": one_way(&others, 0.9),
        "computing_median_usec": part(&delays, 0.5), "computing_p90_usec": part(&delays, 0.9),
        "watching_median_usec": one_way(&watched, 0.5), "watching_p90_usec": one_way(&watched, 0.9),
    });
    println!("{line}");
    Ok(())
}

fn receive(end: &End) -> Result<()> {
    Ok(end.qp.post_recv(&RecvWr { wr_id: 0, sges: &[end.sge(0, PING)] })?)
}

fn send(end: &End) -> Result<()> {
    Ok(end.qp.post_send(&SendWr::new(0, SendOp::Send, &[end.sge(0, PING)]))?)
}

/// Polls once. Returns how many completions were receives, and how many were not.
fn poll(end: &End, some: &mut [Completion]) -> Result<(u32, u32)> {
    let count = end.cq.poll(some)?;
    let mut found = (0, 0);
    for wc in &some[..count] {
        if wc.status != WcStatus::Success {
            return Err(format!("{wc:?}").into());
        }
        *(if wc.opcode == WcOpcode::Recv { &mut found.0 } else { &mut found.1 }) += 1;
    }
    Ok(found)
}

/// The other side: sends each message back, and keeps polling while WRITEs to its memory arrive.
fn answer(end: &End, stop: &AtomicBool) {
    let mut some = [Completion::default(); 16];
    let mut run = || -> Result<()> {
        receive(end)?;
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..poll(end, &mut some)?.0 {
                receive(end)?;
                send(end)?;
            }
        }
        Ok(())
    };
    if let Err(error) = run() {
        eprintln!("the answering side: {error}");
    }
}

/// Round trip times. Now and then the program computes for a while right after posting; the times of these round trips are
/// left out.
fn ping(end: &End, time: Duration, (computes, period): (Duration, Duration)) -> Result<Vec<Duration>> {
    let mut some = [Completion::default(); 16];
    let mut times = Vec::with_capacity(1 << 20);
    let begin = Instant::now();
    let mut computed = begin;
    while begin.elapsed() < time {
        let start = Instant::now();
        receive(end)?;
        send(end)?;
        let is_due = computed.elapsed() > period;
        if is_due {
            while start.elapsed() < computes {}
            computed = start;
        }
        let (mut received, mut sent) = (0, 0);
        while received < 1 || sent < 1 {
            let found = poll(end, &mut some)?;
            (received, sent) = (received + found.0, sent + found.1);
            if start.elapsed() > Duration::from_secs(20) {
                return Err("no answer".into());
            }
        }
        if !is_due {
            times.push(start.elapsed());
        }
    }
    Ok(times)
}

/// Throughput of WRITEs in Gbit/s.
fn write(ends: &[End; 2], time: Duration) -> Result<f64> {
    let [near, far] = ends;
    let mut some = [Completion::default(); 16];
    let (mut posted, mut done) = (0u32, 0u32);
    let start = Instant::now();
    while start.elapsed() < time || done < posted {
        while start.elapsed() < time && posted - done < DEPTH {
            near.qp.post_send(&SendWr::new(0, SendOp::Write(far.remote(0)), &[near.sge(0, WRITE)]))?;
            posted += 1;
        }
        done += poll(near, &mut some)?.1;
    }
    Ok(f64::from(done) * f64::from(WRITE) * 8e-9 / start.elapsed().as_secs_f64())
}

/// The time that the second of two small WRITEs takes to its peer's memory if the program computes right after posting both.
fn compute(ends: &[End; 2]) -> Result<Vec<Duration>> {
    let [near, far] = ends;
    let begin = Instant::now();
    let arrived = AtomicU64::new(0);
    let (period, count) = COMPUTES;
    thread::scope(|scope| {
        let watch = scope.spawn(|| -> Result<()> {
            let mut last = 0;
            while last < count {
                far.cq.poll(&mut [Completion::default()])?;
                let now = u64::from_be(far.mr.load_u64(0)?);
                if now != last {
                    arrived.store(begin.elapsed().as_nanos() as u64, Ordering::SeqCst);
                    last = now;
                }
                if begin.elapsed() > 4 * period * count as u32 {
                    return Err("a WRITE has not arrived".into());
                }
            }
            Ok(())
        });
        let mut some = [Completion::default(); 16];
        let mut delays = Vec::new();
        for number in 1..=count {
            near.mr.write_at(0, &number.to_be_bytes())?;
            let posted = begin.elapsed();
            for offset in [8, 0] {
                let write = SendOp::Write(far.remote(offset));
                near.qp.post_send(&SendWr::new(0, write, &[near.sge(0, PING)]))?;
            }
            while begin.elapsed() < posted + period {}
            // If it has not arrived yet, it takes longer than the computation.
            let arrived = Duration::from_nanos(arrived.load(Ordering::SeqCst));
            delays.push(arrived.checked_sub(posted).unwrap_or(period));
            poll(near, &mut some)?;
        }
        watch.join().map_err(|_| "the watching side")??;
        Ok(delays)
    })
}

/// Round trip times of a number that both sides write to each other's memory. Each side watches its memory for the number,
/// as `ib_write_lat` does. The sides poll only for the completions of their own WRITEs.
fn watch(ends: &[End; 2], time: Duration) -> Result<Vec<Duration>> {
    let begin = Instant::now();
    // The side that ends the measurement writes this number last.
    const LAST: u64 = u64::MAX;
    let write = |side: usize, number: u64| -> Result<()> {
        let (near, far) = (&ends[side], &ends[1 - side]);
        near.mr.write_at(8, &number.to_be_bytes())?;
        near.qp.post_send(&SendWr::new(0, SendOp::Write(far.remote(0)), &[near.sge(8, PING)]))?;
        let mut some = [Completion::default()];
        while poll(near, &mut some)?.1 == 0 {}
        Ok(())
    };
    // Waits for the number that follows `known`.
    let next = |side: usize, known: u64| -> Result<u64> {
        loop {
            for _ in 0..1000 {
                let number = u64::from_be(ends[side].mr.load_u64(0)?);
                if number != known {
                    return Ok(number);
                }
            }
            if begin.elapsed() > time + Duration::from_secs(20) {
                return Err("a WRITE has not arrived".into());
            }
        }
    };
    for end in ends {
        end.mr.write_at(0, &0_u64.to_be_bytes())?;
    }
    thread::scope(|scope| {
        let other = scope.spawn(|| -> Result<()> {
            let mut known = 0;
            while known != LAST {
                known = next(1, known)?;
                write(1, known)?;
            }
            Ok(())
        });
        let mut times = Vec::new();
        for number in 1.. {
            let start = Instant::now();
            let number = if begin.elapsed() < time { number } else { LAST };
            let known = u64::from_be(ends[0].mr.load_u64(0)?);
            write(0, number)?;
            next(0, known)?;
            if number == LAST {
                break;
            }
            times.push(start.elapsed());
        }
        other.join().map_err(|_| "the other side")??;
        Ok(times)
    })
}
