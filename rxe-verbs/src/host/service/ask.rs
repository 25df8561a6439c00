//! Questions of observers.

use super::{
    Place, Service,
    clients::{End, Kind},
};
use crate::{
    device::devices_anew,
    host::{
        files::{is_counter, port_files},
        message::{LAST_WORD, MAX_ANSWER, Part, ToClient, decode},
        report::{ClientReport, ClientStats, Exchanged, HostStats, Listening, ServiceReport},
        slots::Slot,
    },
    names::numbered,
};
use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

/// How long the service waits for the answers of clients. Stopped processes do not answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// A question to all clients on behalf of an observer.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) ask: u32,
    /// The observer that asked. `None` if the service itself asks.
    pub(super) observer: Option<usize>,
    pub(super) question: Question,
    pub(super) until: Instant,
    /// Slots that have not answered completely, with the part of the answer that has arrived.
    pub(super) open: HashMap<u8, Vec<u8>>,
    pub(super) stats: HostStats,
}

/// What an observer wants to know of all clients.
#[derive(Debug)]
pub(super) enum Question {
    /// Everything.
    Stats,
    /// A file of sysfs that shows a counter.
    File(String),
    /// The counters for performance management.
    Counters,
    /// The hosts that they have met. A program that sends management datagrams has to wait for that.
    Hosts,
}

/// Questions of observers that wait for answers.
#[derive(Debug, Default)]
pub(super) struct Asks {
    pub(super) open: Vec<Asked>,
    last: u32,
}

/// A process for which so many messages wait does not read them.
const BACKLOG: usize = 64;

impl Asks {
    fn next_number(&mut self) -> u32 {
        self.last = self.last.wrapping_add(1).max(LAST_WORD + 1);
        self.last
    }
}

impl Service {
    pub(super) fn tell_status(&mut self, observer: usize) {
        let listening = |slot: u8| {
            let own = self.listeners.iter().filter(|(owner, ..)| *owner == usize::from(slot));
            own.map(|(_, token, listen)| Listening::new(token, listen)).collect()
        };
        let clients = self.slots.known().filter_map(|(slot, state)| match state {
            Slot::Held(holder) => Some(ClientReport {
                slot,
                pid: holder.pid,
                name: holder.name.clone(),
                connected: self.presences.is_connected(slot),
                listening: listening(slot),
            }),
            _ => None,
        });
        let mut exchanged: Vec<_> = self.exchanged.values().copied().collect();
        exchanged.sort_unstable_by_key(|exchanged| exchanged.slot);
        let resting = self.slots.known().filter(|(_, state)| matches!(state, Slot::Resting(_)));
        let report = ServiceReport {
            pid: std::process::id(),
            uid: self.uid,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            embedded: self.place == Place::Embedded,
            seconds: self.journal.started().elapsed().as_secs(),
            members: self.port.as_ref().map_or(0, |port| port.group.len()),
            families: self.port.as_ref().map_or((false, false), |port| port.group.families()),
            pkeys: self.config.pkeys.clone(),
            clients: clients.collect(),
            resting: resting.map(|(slot, _)| slot).collect(),
            counters: self.counters,
            log: self.journal.lines(),
            exchanged,
        };
        self.answer_in_parts(observer, &report);
    }

    /// The packets that were exchanged with a slot's process so far.
    pub(super) fn exchanged_with(&mut self, slot: u8) -> &mut Exchanged {
        self.exchanged.entry(slot).or_insert_with(|| Exchanged { slot, ..Exchanged::default() })
    }

    /// Asks all clients on behalf of an observer. The observer may not ask again before it has the answer, because a question costs each
    /// client a message.
    pub(super) fn ask_everyone(&mut self, observer: usize, question: Question) -> Result<(), End> {
        if self.asks.open.iter().any(|asked| asked.observer == Some(observer)) {
            return Err(End::Misbehaved("it asked again before it was answered"));
        }
        self.ask_all(Some(observer), question);
        Ok(())
    }

    /// Asks all clients.
    pub(super) fn ask_all(&mut self, observer: Option<usize>, question: Question) {
        let ask = self.asks.next_number();
        // A process that is stopped does not read its messages. Questions to it would pile up until it is cut off.
        let reads = |(_, key): &(u8, usize)| {
            self.clients.get(*key).is_some_and(|client| client.queue.len() < BACKLOG)
        };
        let (asked, silent): (Vec<_>, Vec<_>) = self.presences.connected().partition(reads);
        let open = asked.iter().map(|(slot, _)| (*slot, Vec::new())).collect();
        let keys: Vec<usize> = asked.into_iter().map(|(_, key)| key).collect();
        let silent = silent.into_iter().map(|(slot, _)| slot).collect();
        let until = Instant::now() + PATIENCE;
        let stats = HostStats { silent, ..HostStats::default() };
        self.asks.open.push(Asked { ask, observer, question, until, open, stats });
        for key in keys {
            self.answer(key, &ToClient::Ask { ask });
        }
        self.end_asks(Instant::now());
    }

    /// Handles a part of a client's answer.
    pub(super) fn handle_told(&mut self, slot: u8, ask: u32, part: Part) {
        if ask == LAST_WORD {
            // This is one part. For addresses that did not fit, the earlier report counts.
            if let Some(stats) = decode::<ClientStats>(&part.bytes) {
                self.ledger.note(slot, &stats.places);
                self.peers.learn(&stats.peers);
            }
            return;
        }
        let Some(asked) = self.asks.open.iter_mut().find(|asked| asked.ask == ask) else { return };
        let Some(bytes) = asked.open.get_mut(&slot) else { return };
        bytes.extend(part.bytes);
        if part.last || bytes.len() > MAX_ANSWER {
            let told = decode::<ClientStats>(bytes);
            asked.open.remove(&slot);
            match told {
                Some(stats) => {
                    self.ledger.note(slot, &stats.places);
                    self.peers.learn(&stats.peers);
                    asked.stats.clients.push(ClientStats { slot, ..stats });
                }
                None => asked.stats.silent.push(slot),
            }
        }
        self.end_asks(Instant::now());
    }

    /// Answers the questions for which no client's answer is missing, or whose time is over.
    pub(super) fn end_asks(&mut self, now: Instant) {
        let presences = &self.presences;
        for asked in &mut self.asks.open {
            let (until, stats) = (asked.until, &mut asked.stats);
            asked.open.retain(|slot, _| {
                let waits = now < until && presences.is_connected(*slot);
                if !waits {
                    stats.silent.push(*slot);
                }
                waits
            });
        }
        let (done, open) =
            core::mem::take(&mut self.asks.open).into_iter().partition(|asked: &Asked| asked.open.is_empty());
        self.asks.open = open;
        for Asked { observer, question, mut stats, .. } in done {
            let Some(observer) = observer else {
                self.end_counting();
                continue;
            };
            let sums = self.ledger.sums();
            match question {
                Question::File(path) => {
                    self.tell_file(observer, &path, &sums);
                    continue;
                }
                Question::Hosts => {
                    self.answer(observer, &ToClient::Registered { agent: None });
                    continue;
                }
                Question::Stats | Question::Counters => {}
            }
            stats.devices = by_name(sums);
            stats.peers = self.peers.reports(now);
            stats.habits = self.habits.all();
            stats.clients.sort_by_key(|client| client.slot);
            stats.silent.sort_unstable();
            if self.observes(observer) {
                self.answer_in_parts(observer, &stats);
            }
        }
    }

    /// Whether this key is still that of an observer. It may have been given to another connection.
    fn observes(&self, key: usize) -> bool {
        self.clients.get(key).is_some_and(|client| matches!(client.kind, Kind::Observer))
    }

    /// Answers a program that reads a file of sysfs. It need not have sent a `Hello`.
    pub(super) fn read_file(&mut self, key: usize, path: String) -> Result<(), End> {
        if !self.observes(key) {
            self.become_observer(key)?;
        }
        if is_counter(&path) {
            return self.ask_everyone(key, Question::File(path));
        }
        self.tell_file(key, &path, &BTreeMap::new());
        Ok(())
    }

    fn tell_file(&mut self, observer: usize, path: &str, sums: &BTreeMap<usize, BTreeMap<String, u64>>) {
        if !self.observes(observer) {
            return;
        }
        let name = path.split('/').next().unwrap_or_default();
        let device = devices_anew().unwrap_or_default().into_iter().find(|device| device.name() == name);
        let none = BTreeMap::new();
        let files = device
            .map(|device| {
                port_files(
                    &device,
                    self.config.pkeys_of(device.netdev()),
                    false,
                    sums.get(&device.number()).unwrap_or(&none),
                )
            })
            .unwrap_or_default();
        let bytes = files.get(path).map_or_else(Vec::new, |text| format!("{text}\n").into_bytes());
        self.answer(observer, &ToClient::Part(Part { last: true, bytes }));
    }

    /// Drops the questions of a connection that has ended.
    pub(super) fn forget_asks_of(&mut self, key: usize) {
        self.asks.open.retain(|asked| asked.observer != Some(key));
    }
}

/// The counters by the present names of the devices. A device that does not exist any more has the name of its number.
fn by_name(sums: BTreeMap<usize, BTreeMap<String, u64>>) -> BTreeMap<String, BTreeMap<String, u64>> {
    let list = devices_anew().unwrap_or_default();
    let name = |number| {
        let device = list.iter().find(|device| device.number() == number);
        device.map_or_else(|| numbered(number), |device| device.name().to_owned())
    };
    sums.into_iter().map(|(number, counters)| (name(number), counters)).collect()
}
