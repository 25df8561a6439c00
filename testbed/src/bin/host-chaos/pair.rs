//! Two worker processes that are connected to each other, as the program that kills them sees them.

use crate::Home;
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Stdio},
    sync::mpsc::Sender,
    thread,
    time::{Duration, Instant},
};
use testbed::agent::Failure;

/// A line of a worker.
pub(crate) struct Event {
    pub(crate) pair: usize,
    /// Which life of the pair it belongs to.
    life: u64,
    side: usize,
    line: Value,
}

struct Worker {
    child: Child,
    input: ChildStdin,
    card: Option<Value>,
    messages: u64,
    /// Messages at the last mark.
    marked: u64,
    progressed: Instant,
}

/// A pair.
pub(crate) struct Pair {
    number: usize,
    homes: [Home; 2],
    life: u64,
    workers: [Worker; 2],
    connected: bool,
    /// The side that was killed, and when.
    killed: Option<(usize, Instant)>,
    noticed: Option<Duration>,
    /// Both are gone.
    over: bool,
    fresh: (u64, u64),
    /// Lives in which nothing was exchanged: killed too early.
    empty_lives: u32,
}

impl Pair {
    pub(crate) fn start(number: usize, homes: &[Home; 2], tell: &Sender<Event>) -> Result<Self, Failure> {
        let workers = start_both(number, 0, homes, tell)?;
        Ok(Self {
            number,
            homes: homes.clone(),
            life: 0,
            workers,
            connected: false,
            killed: None,
            noticed: None,
            over: false,
            fresh: (0, 0),
            empty_lives: 0,
        })
    }

    pub(crate) fn start_again(&mut self, tell: &Sender<Event>) -> Result<(), Failure> {
        self.life += 1;
        self.workers = start_both(self.number, self.life, &self.homes, tell)?;
        (self.connected, self.killed, self.over) = (false, None, false);
        Ok(())
    }

    pub(crate) const fn number(&self) -> usize {
        self.number
    }

    /// From here on progress counts.
    pub(crate) fn mark(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.marked = worker.messages);
    }

    /// Whether both have made progress since the mark.
    pub(crate) fn has_moved(&self) -> bool {
        self.workers.iter().all(|worker| worker.messages > worker.marked)
    }

    /// Whether both are at work.
    pub(crate) const fn is_whole(&self) -> bool {
        self.connected && self.killed.is_none()
    }

    /// Whether one is dead and the other does not know yet.
    pub(crate) const fn is_mourning(&self) -> bool {
        self.killed.is_some() && !self.over
    }

    pub(crate) const fn is_over(&self) -> bool {
        self.over
    }

    pub(crate) fn kill(&mut self, side: usize) -> Result<(), Failure> {
        let child = &mut self.workers[side].child;
        child.kill()?;
        child.wait()?;
        self.killed = Some((side, Instant::now()));
        Ok(())
    }

    /// Messages and bytes since the last time.
    pub(crate) fn take_progress(&mut self) -> (u64, u64) {
        core::mem::take(&mut self.fresh)
    }

    /// How long a partner took to notice, once.
    pub(crate) fn take_notice(&mut self) -> Option<Duration> {
        self.noticed.take()
    }

    /// What a worker said. An error is one that nobody should have seen.
    pub(crate) fn handle(&mut self, event: Event) -> Result<(), Failure> {
        let Event { life, side, line, .. } = event;
        if life != self.life {
            return Ok(());
        }
        if line["card"].is_object() {
            self.workers[side].card = Some(line["card"].clone());
            if let [Some(one), Some(two)] = [0, 1].map(|side| self.workers[side].card.clone()) {
                writeln!(self.workers[0].input, "{two}")?;
                writeln!(self.workers[1].input, "{one}")?;
                self.connected = true;
                self.workers.iter_mut().for_each(|worker| worker.progressed = Instant::now());
            }
        } else if let Some(messages) = line["messages"].as_u64() {
            let worker = &mut self.workers[side];
            if messages > worker.messages {
                worker.progressed = Instant::now();
                self.fresh.0 += messages - worker.messages;
                worker.messages = messages;
            }
            self.fresh.1 += line["bytes"].as_u64().unwrap_or(0);
        } else if line["status"].is_string() {
            return self.notice(side, &line);
        } else if !matches!(self.killed, Some((dead, _)) if dead == side) {
            return Err(format!("pair {}, side {side}: {line}", self.number).into());
        }
        Ok(())
    }

    /// A worker has seen an error completion and ended.
    fn notice(&mut self, side: usize, line: &Value) -> Result<(), Failure> {
        match self.killed {
            Some((dead, when)) if dead != side => {
                self.noticed = Some(when.elapsed());
                let status = self.workers[side].child.wait()?;
                if !status.success() {
                    return Err(format!("pair {}, side {side} ended with {status}", self.number).into());
                }
                // A life in which nothing was exchanged would prove nothing.
                if self.workers.iter().all(|worker| worker.messages == 0) {
                    self.empty_lives += 1;
                }
                self.over = true;
                Ok(())
            }
            _ => Err(format!("pair {}, side {side} saw an error of its own: {line}", self.number).into()),
        }
    }

    /// Nobody stands still for so long.
    pub(crate) fn check(&mut self, patience: Duration, still: Duration) -> Result<(), Failure> {
        if self.empty_lives > 1 {
            return Err(format!("pair {}: {} lives without a message", self.number, self.empty_lives).into());
        }
        if let Some((_, when)) = self.killed
            && !self.over
            && when.elapsed() > patience
        {
            return Err(format!("pair {}: the partner of the dead notices nothing", self.number).into());
        }
        for (side, worker) in self.workers.iter_mut().enumerate() {
            if self.killed.is_none() && worker.progressed.elapsed() > still {
                return Err(format!("pair {}, side {side} stands still", self.number).into());
            }
        }
        Ok(())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            let _ = worker.child.kill();
            let _ = worker.child.wait();
        }
    }
}

fn start_both(
    pair: usize,
    life: u64,
    homes: &[Home; 2],
    tell: &Sender<Event>,
) -> Result<[Worker; 2], Failure> {
    Ok([start(pair, life, 0, &homes[0], tell.clone())?, start(pair, life, 1, &homes[1], tell.clone())?])
}

fn start(pair: usize, life: u64, side: usize, home: &Home, tell: Sender<Event>) -> Result<Worker, Failure> {
    let mut child = home
        .command(&std::env::current_exe()?)
        .args(["worker", &home.address.to_string(), &(pair * 2 + side).to_string()])
        .env("RXE_SERVICE", &home.rxe)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("a worker without pipes".into());
    };
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // The last line of one that is killed may be cut off.
            let Ok(line) = serde_json::from_str(&line) else { continue };
            if tell.send(Event { pair, life, side, line }).is_err() {
                return;
            }
        }
    });
    Ok(Worker { child, input, card: None, messages: 0, marked: 0, progressed: Instant::now() })
}
