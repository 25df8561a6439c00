//! Two worker processes that are connected to each other, as the program that kills them sees them.

use crate::{Home, Name};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdin, Stdio},
    sync::mpsc::Sender,
    thread,
    time::{Duration, Instant},
};
use testbed::agent::Failure;

/// After this long a partner must have noticed that the other is dead.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// A direction in which nothing arrives for so long is broken: less than the shortest run.
const STILL: Duration = Duration::from_secs(8);
/// How long two processes may take to meet: a slot may not be free at once, and the service may just have died.
const MEETING: Duration = Duration::from_secs(60);
/// How long a process may take to end once it has said that its partner is gone.
const ENDING: Duration = Duration::from_secs(60);
/// What `kill -9` ends a process with.
const SIGKILL: i32 = 9;

/// What came from a worker.
pub(crate) struct Event {
    pub(crate) pair: usize,
    /// Which life of the pair it belongs to.
    life: u64,
    side: usize,
    said: Said,
}

enum Said {
    Line(Value),
    /// A line that is none of ours.
    Noise(String),
    /// It has closed its output.
    End,
}

struct Worker {
    child: Child,
    input: ChildStdin,
    card: Option<Value>,
    /// Messages of the partner that it has checked.
    messages: u64,
    /// Those at the last mark.
    marked: u64,
    /// How long we have listened since it told of progress.
    still: Duration,
    /// Messages it has sent, all acknowledged, since when it sends no more.
    sent: Option<u64>,
    ended: bool,
}

/// A pair.
pub(crate) struct Pair {
    number: usize,
    pairs: usize,
    homes: [Home; 2],
    life: u64,
    workers: [Worker; 2],
    started: Instant,
    connected: bool,
    /// The side that was killed, and when.
    killed: Option<(usize, Instant)>,
    /// That it is dead.
    dead: bool,
    /// When the other said that it noticed.
    noticed: Option<Instant>,
    /// Both are gone.
    over: bool,
    /// It is to send nothing more, and then to end.
    stopping: bool,
    ending: bool,
    fresh: Progress,
}

/// What a pair has done since somebody asked last.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Whether one was killed and is dead.
    pub(crate) killed: bool,
    /// How long a partner took to notice a death.
    pub(crate) noticed: Option<Duration>,
}

impl Pair {
    pub(crate) fn start(
        number: usize,
        pairs: usize,
        homes: &[Home; 2],
        tell: &Sender<Event>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            number,
            pairs,
            homes: homes.clone(),
            life: 0,
            workers: start_both(number, pairs, 0, homes, tell)?,
            started: Instant::now(),
            connected: false,
            killed: None,
            dead: false,
            noticed: None,
            over: false,
            stopping: false,
            ending: false,
            fresh: Progress::default(),
        })
    }

    /// Two new processes in the place of those that are gone.
    pub(crate) fn start_again(&mut self, tell: &Sender<Event>) -> Result<(), Failure> {
        self.life += 1;
        self.workers = start_both(self.number, self.pairs, self.life, &self.homes, tell)?;
        self.started = Instant::now();
        (self.connected, self.killed, self.dead, self.noticed, self.over) = (false, None, false, None, false);
        Ok(())
    }

    /// Queue pair number of one side.
    pub(crate) fn qpn(&self, side: usize) -> Option<u32> {
        self.workers[side].card.as_ref()?["qpn"].as_u64().map(|qpn| qpn as u32)
    }

    /// From here on progress counts.
    pub(crate) fn mark(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.marked = worker.messages);
    }

    /// Whether both live, are connected, and something has arrived in each direction since the mark.
    pub(crate) fn has_moved(&self) -> bool {
        self.is_whole() && self.workers.iter().all(|worker| worker.messages > worker.marked)
    }

    /// Whether both live and something has arrived in each direction: who is killed earlier proves nothing.
    pub(crate) fn is_at_work(&self) -> bool {
        self.is_whole() && self.workers.iter().all(|worker| worker.messages > 0)
    }

    const fn is_whole(&self) -> bool {
        self.connected && self.killed.is_none()
    }

    /// Whether both are gone.
    pub(crate) const fn is_over(&self) -> bool {
        self.over
    }

    /// Whether one is dead and the other is not gone yet.
    pub(crate) const fn is_mourning(&self) -> bool {
        self.killed.is_some() && !self.over
    }

    /// Kills one of the two, in turns.
    pub(crate) fn kill(&mut self) -> Result<(), Failure> {
        let side = (self.life as usize + self.number) % 2;
        self.workers[side].child.kill()?;
        self.killed = Some((side, Instant::now()));
        Ok(())
    }

    /// Tells both to send nothing more.
    pub(crate) fn stop(&mut self) -> Result<(), Failure> {
        self.stopping = true;
        for worker in &mut self.workers {
            writeln!(worker.input, "stop")?;
        }
        Ok(())
    }

    /// Whether each has checked exactly what the other has sent, and will send nothing more.
    pub(crate) fn is_quiet(&self) -> bool {
        let [one, two] = &self.workers;
        one.sent == Some(two.messages) && two.sent == Some(one.messages)
    }

    /// What is left of the two when nothing more is wanted.
    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        self.ending = true;
        for worker in &mut self.workers {
            worker.child.kill()?;
        }
        Ok(())
    }

    /// Whether all that both have ever said was heard.
    pub(crate) fn is_heard(&self) -> bool {
        self.workers.iter().all(|worker| worker.ended)
    }

    /// For words: where each side is.
    pub(crate) fn describe(&self) -> String {
        let [one, two] = [0, 1].map(|side| {
            let worker = &self.workers[side];
            format!("{} checked, {:?} sent", worker.messages, worker.sent)
        });
        let (connected, killed) = (self.connected, self.killed.map(|(side, _)| side));
        format!(
            "pair {}, life {}: connected {connected}, killed {killed:?}, {one}; {two}",
            self.number, self.life
        )
    }

    /// What was done since the last time.
    pub(crate) fn take_progress(&mut self) -> Progress {
        core::mem::take(&mut self.fresh)
    }

    fn fault(&self, side: usize, what: &str) -> Failure {
        format!("pair {}, life {}, side {side} {what}", self.number, self.life).into()
    }

    /// What a worker said. An error is one that nobody should have seen.
    pub(crate) fn handle(&mut self, event: Event) -> Result<(), Failure> {
        let Event { life, side, said, .. } = event;
        // Nobody is started before both of the life before have been heard to the end.
        if life != self.life {
            return Err(self.fault(side, &format!("speaks of life {life}")));
        }
        let line = match said {
            Said::Line(line) => line,
            Said::Noise(text) => return Err(self.fault(side, &format!("says {text:?}"))),
            Said::End => return self.on_end(side),
        };
        if line["card"].is_object() {
            self.workers[side].card = Some(line["card"].clone());
            self.introduce()
        } else if let Some(messages) = line["messages"].as_u64() {
            let worker = &mut self.workers[side];
            if messages > worker.messages {
                worker.still = Duration::ZERO;
                self.fresh.messages += messages - worker.messages;
                worker.messages = messages;
            }
            self.fresh.bytes += line["bytes"].as_u64().unwrap_or(0);
            Ok(())
        } else if let Some(sent) = line["sent"].as_u64() {
            self.workers[side].sent = Some(sent);
            Ok(())
        } else if line["status"].is_string() {
            self.on_notice(side, &line)
        } else {
            // Wrong data is wrong whatever happens to its reader.
            Err(self.fault(side, &line.to_string()))
        }
    }

    /// Once both have said who they are, each is told of the other.
    fn introduce(&mut self) -> Result<(), Failure> {
        let [Some(one), Some(two)] = [0, 1].map(|side| self.workers[side].card.clone()) else {
            return Ok(());
        };
        writeln!(self.workers[0].input, "{two}")?;
        writeln!(self.workers[1].input, "{one}")?;
        self.connected = true;
        self.workers.iter_mut().for_each(|worker| worker.still = Duration::ZERO);
        Ok(())
    }

    /// A worker has seen an error completion, and ends.
    fn on_notice(&mut self, side: usize, line: &Value) -> Result<(), Failure> {
        match self.killed {
            Some((dead, when)) if dead != side && self.noticed.is_none() => {
                self.noticed = Some(Instant::now());
                self.fresh.noticed = Some(when.elapsed());
                Ok(())
            }
            _ => Err(self.fault(side, &format!("saw an error of its own: {line}"))),
        }
    }

    fn on_end(&mut self, side: usize) -> Result<(), Failure> {
        let worker = &mut self.workers[side];
        worker.ended = true;
        let was_killed = matches!(self.killed, Some((dead, _)) if dead == side);
        if was_killed || self.noticed.is_some() || self.ending {
            return Ok(());
        }
        let status = worker.child.try_wait()?;
        Err(self.fault(side, &format!("closed its output (exit status: {status:?})")))
    }

    /// Whether everything that should have happened by now did; we have listened for so long since the last time.
    pub(crate) fn check(&mut self, listened: Duration) -> Result<(), Failure> {
        if self.over || self.ending {
            return Ok(());
        }
        if let Some((side, when)) = self.killed {
            self.check_death(side, when)?;
        }
        match (self.killed, self.noticed) {
            (Some((dead, _)), Some(noticed)) => self.check_end(1 - dead, noticed),
            (Some((dead, when)), None) if when.elapsed() > PATIENCE => {
                Err(self.fault(1 - dead, "notices nothing of its partner's death"))
            }
            (Some(_), None) => Ok(()),
            (None, _) if !self.connected && self.started.elapsed() > MEETING => {
                Err(format!("the two never met: {}", self.describe()).into())
            }
            (None, _) if self.connected && !self.stopping => {
                self.workers.iter_mut().for_each(|worker| worker.still += listened);
                let still = |worker: &Worker| worker.still > STILL;
                match self.workers.iter().position(still) {
                    Some(side) => {
                        Err(self.fault(side, &format!("receives nothing any more: {}", self.describe())))
                    }
                    None => Ok(()),
                }
            }
            (None, _) => Ok(()),
        }
    }

    /// Who was killed must die, and of that.
    fn check_death(&mut self, side: usize, when: Instant) -> Result<(), Failure> {
        if self.dead {
            return Ok(());
        }
        match self.workers[side].child.try_wait()? {
            Some(status) if status.signal() == Some(SIGKILL) => {
                self.dead = true;
                self.fresh.killed = true;
                Ok(())
            }
            Some(status) => Err(self.fault(side, &format!("was to be killed, but had ended with {status}"))),
            None if when.elapsed() > PATIENCE => Err(self.fault(side, "survives being killed")),
            None => Ok(()),
        }
    }

    /// The survivor has said that it noticed: it must end, and well.
    fn check_end(&mut self, side: usize, noticed: Instant) -> Result<(), Failure> {
        match self.workers[side].child.try_wait()? {
            Some(status) if !status.success() => Err(self.fault(side, &format!("ended with {status}"))),
            Some(_) if self.is_heard() && self.dead => {
                self.over = true;
                Ok(())
            }
            _ if noticed.elapsed() > ENDING => Err(self.fault(side, "does not end")),
            _ => Ok(()),
        }
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
    pairs: usize,
    life: u64,
    homes: &[Home; 2],
    tell: &Sender<Event>,
) -> Result<[Worker; 2], Failure> {
    let name = |side: usize| Name::new(life, pair, side, pairs);
    let start = |side: usize| start(pair, life, side, name(side), &homes[side], tell.clone());
    Ok([start(0)?, start(1)?])
}

fn start(
    pair: usize,
    life: u64,
    side: usize,
    name: Name,
    home: &Home,
    tell: Sender<Event>,
) -> Result<Worker, Failure> {
    let mut child = home
        .command(&std::env::current_exe()?)
        .args(["worker", &home.address.to_string(), &name.0.to_string()])
        .env("RXE_SERVICE", &home.rxe)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("a worker without pipes".into());
    };
    thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        let said = lines.map(|line| match serde_json::from_str(&line) {
            Ok(value) => Said::Line(value),
            Err(_) => Said::Noise(line),
        });
        for said in said.chain([Said::End]) {
            if tell.send(Event { pair, life, side, said }).is_err() {
                return;
            }
        }
    });
    let still = Duration::ZERO;
    Ok(Worker { child, input, card: None, messages: 0, marked: 0, still, sent: None, ended: false })
}
