//! Connections made and ended while both ways lose packets: all of them stand in the end, and all of them end. Our way loses by
//! `RXE_FAULT`, the kernel's by netem, which is set from outside.

use super::{Bench, Case, Theirs, unhex};
use crate::{peer::tell, ucmatose::nothing_left};
use rxe_cm::{CmEvent, CmId, EventKind, proto::PortSpace};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use testbed::agent::Failure;

/// Made at a time: so few that each side answers before the other repeats itself, which would draw an MRA and waits of a minute.
const CONNECTIONS: usize = 20;
/// How often.
const ROUNDS: u32 = 5;
/// And at most, if nothing was lost meanwhile.
const MOST_ROUNDS: u32 = 25;
/// Longer than an MRA of kernels makes one wait: 69 s.
const QUIET: Duration = Duration::from_secs(100);

pub(super) const ALL: &[Case] = &[Case {
    name: "100 connections are made and ended, all of them",
    ours: Some(|bench| lossy(bench, true)),
    kernel: Some(|bench| lossy(bench, false)),
}];

fn lossy(bench: &Bench, by_us: bool) -> Result<(), Failure> {
    if std::env::var_os("RXE_FAULT").is_none() {
        return Err("our own way loses nothing: RXE_FAULT is not set".into());
    }
    let dropped = || bench.agent.borrow_mut().number("netem_stats", &json!({ "dev": "eth0" }), "dropped");
    let before = dropped()?;
    for count in 1..=MOST_ROUNDS {
        round(bench, by_us)?;
        if count >= ROUNDS && dropped()? > before {
            return Ok(());
        }
    }
    Err("nothing was lost".into())
}

/// Both ends of all connections, by their number, which is their private data.
struct Ends<'a> {
    bench: &'a Bench,
    ours: Vec<Option<CmId>>,
    theirs: Vec<Option<Theirs<'a>>>,
    /// How many stand at our end, and at the kernel's.
    stand: [usize; 2],
    /// How many have ended.
    ended: [usize; 2],
}

fn round(bench: &Bench, by_us: bool) -> Result<(), Failure> {
    let ours = (0..CONNECTIONS).map(|_| None).collect();
    let theirs = (0..CONNECTIONS).map(|_| None).collect();
    let mut ends = Ends { bench, ours, theirs, stand: [0; 2], ended: [0; 2] };
    let _listeners = ends.connect(by_us)?;
    ends.play(|ends| ends.stand == [CONNECTIONS; 2])?;
    // Each side asks for the end of every other one.
    for number in 0..CONNECTIONS {
        match (number % 2, &ends.ours[number], &ends.theirs[number]) {
            (0, Some(id), _) => id.disconnect()?,
            (1, _, Some(id)) => id.call("cm_disconnect", &[])?,
            _ => return Err(format!("connection {number} has one end").into()),
        }
    }
    ends.play(|ends| ends.ended == [CONNECTIONS; 2])?;
    drop(ends);
    nothing_left(&bench.peer)
}

fn number(data: &[u8]) -> Result<usize, Failure> {
    let number = data.first_chunk().map(|bytes| usize::from(u16::from_be_bytes(*bytes)));
    number.filter(|number| *number < CONNECTIONS).ok_or_else(|| "a request without a number".into())
}

fn as_data(number: usize) -> [u8; 2] {
    (number as u16).to_be_bytes()
}

impl<'a> Ends<'a> {
    fn connect(&mut self, by_us: bool) -> Result<(Option<CmId>, Option<Theirs<'a>>), Failure> {
        if by_us {
            let (listener, address) = self.bench.their_listener(PortSpace::Tcp)?;
            for id in &mut self.ours {
                *id = Some(self.bench.peer.resolved(PortSpace::Tcp, address)?);
            }
            for (number, id) in self.ours.iter().flatten().enumerate() {
                id.connect(&self.bench.params(&as_data(number)))?;
            }
            return Ok((None, Some(listener)));
        }
        let (listener, address) = self.bench.our_listener(PortSpace::Tcp)?;
        for id in &mut self.theirs {
            *id = Some(self.bench.their_resolved(PortSpace::Tcp, address)?);
        }
        for (number, id) in self.theirs.iter().flatten().enumerate() {
            id.call("cm_connect", &as_data(number))?;
        }
        Ok((Some(listener), None))
    }

    /// Takes what happens at both ends until `done`.
    fn play(&mut self, done: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        let mut last = Instant::now();
        while !done(self) {
            let mut quiet = true;
            while let Some(event) = self.bench.peer.channel.try_get_event() {
                self.take_ours(event)?;
                quiet = false;
            }
            let order = json!({ "channel": self.bench.channel, "timeout_ms": 20 });
            let event = self.bench.call("cm_event", &order)?;
            if !event.is_null() {
                self.take_theirs(&event)?;
                quiet = false;
            }
            if !quiet {
                last = Instant::now();
            } else if last.elapsed() > QUIET {
                let ([ours, theirs], [over, out]) = (self.stand, self.ended);
                let text = format!("{ours} stand here, {theirs} there; {over} have ended here, {out} there");
                return Err(text.into());
            }
        }
        Ok(())
    }

    fn take_ours(&mut self, event: CmEvent) -> Result<(), Failure> {
        match event.kind {
            EventKind::ConnectRequest(_) => {
                let number = number(&event.private_data)?;
                event.id.accept(&self.bench.params(&[]))?;
                self.ours[number] = Some(event.id);
            }
            EventKind::ConnectResponse(_) => {
                event.id.establish()?;
                self.stand[0] += 1;
            }
            EventKind::Established(_) => self.stand[0] += 1,
            EventKind::Disconnected { .. } => {
                event.id.disconnect()?;
                self.ended[0] += 1;
            }
            EventKind::TimewaitExit => {}
            _ => return Err(tell(&event)),
        }
        Ok(())
    }

    fn take_theirs(&mut self, event: &Value) -> Result<(), Failure> {
        let handle = event["id"].as_u64().ok_or("an event without an id")?;
        let order = json!({ "id": handle });
        match event["event"].as_str() {
            Some("CONNECT_REQUEST") => {
                let number = number(&unhex(event["data"].as_str().unwrap_or_default())?)?;
                self.theirs[number] = Some(Theirs { bench: self.bench, handle });
                self.bench.call("cm_accept", &order)?;
            }
            Some("CONNECT_RESPONSE") => {
                self.bench.call("cm_establish", &order)?;
                self.stand[1] += 1;
            }
            Some("ESTABLISHED") => self.stand[1] += 1,
            Some("DISCONNECTED") => {
                // The answer, or nothing if it has asked itself.
                let _ = self.bench.call("cm_disconnect", &order);
                // An id that is kept does not answer a DREQ again once its TIMEWAIT of half a second is over.
                let theirs = self.theirs.iter_mut();
                let of_event =
                    |id: &&mut Option<Theirs<'_>>| id.as_ref().is_some_and(|id| id.handle == handle);
                theirs.filter(of_event).for_each(|id| *id = None);
                self.ended[1] += 1;
            }
            Some("TIMEWAIT_EXIT") => {}
            _ => return Err(format!("the kernel got {event}").into()),
        }
        Ok(())
    }
}
