//! The bench: a device, the link to it, and a record of the packets that crossed the link during a case.

use crate::{
    case::{Fail, Outcome},
    conn::{Conn, Options},
    dut::{Dut, Feature, Handle, Wc},
    laws::{Laws, Sight},
    left::{LOOK, Left},
    link::{Arrival, Link},
    wire::{Ends, Packet, ends_of, op, take_apart},
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    time::Duration,
};

/// The number of packets of one case that are kept as evidence. If a case has more, the first ones are kept.
const MOST_KEPT: usize = 4000;
/// How many times [`World::calm`] a case waits for the packets of the previous case to stop arriving.
const MOST_CALMS: u32 = 100;
/// Where a time limit is set, its part for which no packet may arrive for the link to count as quiet: a device that may take long
/// to answer may also take long to answer wrongly.
const CALM_PART: u32 = 100;
/// The longest such time. Some cases wait for silence twice while a timer of 655 ms runs.
const MOST_CALM: Duration = Duration::from_millis(250);
/// How long the bench polls the link before it polls the device again.
const GLANCE: Duration = Duration::from_millis(1);

/// What happened, for reports.
#[derive(Clone, Debug)]
pub enum What {
    /// The suite sent this packet.
    Sent(Packet, Vec<u8>),
    /// The device sent this packet.
    Got(Packet, Vec<u8>),
    /// The device's program did something, or received an event.
    Note(String),
    /// Where a case failed: the packet that was expected at this point, and the packet that arrived instead, if any.
    Instead(Box<Packet>, Option<Box<Packet>>),
}

/// What happened, and at what time.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The time since the link was opened.
    pub at: Duration,
    /// What happened.
    pub what: What,
}

/// A packet that arrived.
#[derive(Clone, Debug)]
pub struct Got {
    /// Its arrival time, measured from when the link was opened.
    pub at: Duration,
    /// The packet.
    pub packet: Packet,
}

impl Got {
    /// Its PSN, which every packet has.
    #[must_use]
    pub fn at_psn(&self) -> u32 {
        self.packet.psn.unwrap_or(0)
    }
}

impl std::ops::Deref for Got {
    type Target = Packet;

    fn deref(&self) -> &Packet {
        &self.packet
    }
}

/// What all connections of a case share.
pub struct World {
    /// The device.
    pub dut: Box<dyn Dut>,
    link: Box<dyn Link>,
    inbox: VecDeque<Got>,
    completions: BTreeMap<Handle, VecDeque<Wc>>,
    /// Congestion notification packets (CNPs) that arrived. They may arrive at any time.
    pub notified: Vec<Got>,
    /// What happened in this case.
    pub log: Vec<Entry>,
    /// The laws of form, checked over all cases.
    pub laws: Laws,
    /// The id of the case that is played.
    pub case: String,
    next_qpn: u32,
    next_wr: u64,
    next_port: u16,
    patience: Option<Duration>,
    hurried: bool,
    /// The number from which the suite's connection managers take their identifiers. It differs from run to run, because a
    /// device may remember the identifiers of the previous run.
    pub identity: u64,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("device", self.dut.about()).finish_non_exhaustive()
    }
}

impl World {
    /// The current time.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.link.now()
    }

    /// The time limit that was set, unless the case keeps to the usual one.
    fn set_limit(&self) -> Option<Duration> {
        self.patience.filter(|_| !self.hurried)
    }

    /// How long the device may take to answer.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.set_limit().unwrap_or_else(|| self.link.patience())
    }

    /// Selects the usual time limit even if a longer one is set. The suite does so when an answer may well never come.
    pub const fn hurry(&mut self, hurried: bool) {
        self.hurried = hurried;
    }

    /// Sets how long the device may take to answer, instead of the usual time for the link.
    pub const fn set_patience(&mut self, patience: Duration) {
        self.patience = Some(patience);
    }

    /// How long no packet may arrive for the link to count as quiet. It is longer for a device that is given more time to answer.
    #[must_use]
    pub fn calm(&self) -> Duration {
        let limit = self.set_limit().unwrap_or_default();
        self.link.calm().max((limit / CALM_PART).min(MOST_CALM))
    }

    /// The two addresses between which the suite's packets travel.
    #[must_use]
    pub fn ends(&self) -> Ends {
        Ends {
            src: self.link.own(),
            dst: self.dut.about().address,
            sport: self.link.source_port(),
            roce: self.link.roce(),
        }
    }

    fn keep(&mut self, what: What) {
        if self.log.len() < MOST_KEPT {
            self.log.push(Entry { at: self.link.now(), what });
        }
    }

    /// Records something that the device's program did, or an event that it received.
    pub fn note(&mut self, text: String) {
        self.keep(What::Note(text));
    }

    /// Records that another packet arrived than the expected one, or none.
    pub fn instead(&mut self, expected: Packet, came: Option<Packet>) {
        self.keep(What::Instead(Box::new(expected), came.map(Box::new)));
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// If the link is down.
    pub fn send(&mut self, packet: &Packet) -> Outcome {
        self.send_between(packet, &self.ends())
    }

    /// Sends a packet between other addresses than the usual ones.
    ///
    /// # Errors
    /// If the link is down.
    pub fn send_between(&mut self, packet: &Packet, ends: &Ends) -> Outcome {
        let ip = packet.encode(ends);
        let shown = take_apart(&ip, true)
            .map_or_else(|_| packet.clone(), |seen| Packet { vlan: packet.vlan, ..seen.packet });
        self.keep(What::Sent(shown, ip.clone()));
        match packet.vlan {
            None => self.link.send(&ip)?,
            Some(tag) => self.link.send_tagged(&ip, tag)?,
        }
        Ok(())
    }

    /// Waits until a packet arrives, for at most `within`. Returns whether one arrived.
    ///
    /// # Errors
    /// If the link is down, or the received bytes are not a valid packet.
    pub fn listen(&mut self, within: Duration) -> Outcome<bool> {
        match self.link.recv(within)? {
            Some(arrival) => self.take_in(arrival),
            None => Ok(false),
        }
    }

    /// Keeps the packet that arrived if it was sent by the device to the suite.
    fn take_in(&mut self, arrival: Arrival) -> Outcome<bool> {
        let expected = self.ends();
        let is_to_us =
            |ends: Ends| ends.src == expected.dst && (ends.dst == expected.src || ends.dst.is_multicast());
        if !ends_of(&arrival.ip).is_some_and(is_to_us) {
            return Ok(false);
        }
        let seen = take_apart(&arrival.ip, arrival.header_seen).map_err(|why| {
            Fail::Broken(format!("the device sent no RoCE packet ({why}): {:02x?}", arrival.ip))
        })?;
        let sight = Sight { bytes: &arrival.ip, at: self.link.now(), case: &self.case };
        self.laws.look_at(&seen, &sight);
        self.keep(What::Got(seen.packet.clone(), arrival.ip));
        let got = Got { at: self.link.now(), packet: seen.packet };
        if got.opcode == Some(op::CNP) {
            self.notified.push(got);
        } else {
            self.inbox.push_back(got);
        }
        Ok(true)
    }

    /// Waits for this time, and keeps the packets that arrive meanwhile.
    ///
    /// # Errors
    /// If the link is down.
    pub fn wait(&mut self, time: Duration) -> Outcome {
        let end = self.now() + time;
        while self.now() < end {
            self.listen(end - self.now())?;
        }
        Ok(())
    }

    /// Takes the oldest packet for that queue pair of ours. Waits for at most `within`.
    ///
    /// # Errors
    /// If the link is down.
    pub fn take(&mut self, qpn: u32, within: Duration) -> Outcome<Option<Got>> {
        let (mut left, mut more) = (Left::new(within, self.now()), !within.is_zero());
        loop {
            if let Some(at) = self.inbox.iter().position(|got| got.dest_qp == Some(qpn)) {
                return Ok(self.inbox.remove(at));
            }
            if !more {
                return Ok(None);
            }
            let start = self.now();
            self.listen(left.time.min(LOOK))?;
            more = left.has_more(start, self.now());
        }
    }

    /// Calls `look` repeatedly, and receives packets in between, until `look` returns a value or the time is up.
    ///
    /// # Errors
    /// The error of `look` or of the link.
    pub fn until<T>(
        &mut self,
        within: Duration,
        mut look: impl FnMut(&mut Self) -> Outcome<Option<T>>,
    ) -> Outcome<Option<T>> {
        let (mut left, mut more) = (Left::new(within, self.now()), !within.is_zero());
        loop {
            let start = self.now();
            if let Some(found) = look(self)? {
                return Ok(Some(found));
            }
            if !more {
                return Ok(None);
            }
            self.listen(GLANCE.min(left.time))?;
            more = left.has_more(start, self.now());
        }
    }

    /// The next completion of a completion queue, if one arrives within `within`.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn completion(&mut self, cq: Handle, within: Duration) -> Outcome<Option<Wc>> {
        self.until(within, |world| {
            let fresh = world.dut.poll(cq)?;
            for wc in fresh {
                world.note(format!("completion of {}: {} {}", wc.wr_id, wc.status, wc.opcode));
                world.completions.entry(cq).or_default().push_back(wc);
            }
            Ok(world.completions.get_mut(&cq).and_then(VecDeque::pop_front))
        })
    }

    /// A number for a queue pair of ours that has not been used before.
    pub const fn new_qpn(&mut self) -> u32 {
        self.next_qpn = if self.next_qpn >= 0x00ff_0000 { 0x0100 } else { self.next_qpn + 1 };
        self.next_qpn
    }

    /// A port for a service that none of the last cases has used.
    pub const fn new_port(&mut self) -> u16 {
        self.next_port = if self.next_port >= 30_000 { 20_000 } else { self.next_port + 1 };
        self.next_port
    }

    /// A communication ID that no connection of this run has used.
    pub const fn new_id(&mut self) -> u32 {
        self.identity = self.identity.wrapping_add(1);
        self.identity as u32 | 1 << 31
    }

    /// A number for a work request.
    pub const fn new_wr(&mut self) -> u64 {
        self.next_wr += 1;
        self.next_wr
    }
}

/// The bench, as the cases see it.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The state that its connections share.
    pub world: Rc<RefCell<World>>,
}

impl Bench {
    /// A bench for this device on this link.
    #[must_use]
    pub fn new(dut: Box<dyn Dut>, link: Box<dyn Link>) -> Self {
        let world = World {
            dut,
            link,
            inbox: VecDeque::new(),
            completions: BTreeMap::new(),
            notified: Vec::new(),
            log: Vec::new(),
            laws: Laws::default(),
            case: String::new(),
            next_qpn: 0x0100,
            next_wr: 0,
            next_port: 20_000,
            patience: None,
            hurried: false,
            identity: std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), "rxe-conform"),
        };
        Self { world: Rc::new(RefCell::new(world)) }
    }

    /// Clears the bench for the next case.
    ///
    /// # Errors
    /// If the device's objects cannot be destroyed.
    pub fn clear(&mut self) -> Outcome {
        let mut world = self.world.borrow_mut();
        world.dut.reset()?;
        // Receives and drops the packets of the last case that are still on their way, for a limited time in case they never
        // end.
        let (calm, start) = (world.link.calm(), world.now());
        while world.now() < start + MOST_CALMS * calm
            && let Ok(Some(arrival)) = world.link.recv(calm / 8)
        {
            let _ = world.take_in(arrival);
        }
        world.inbox.clear();
        world.completions.clear();
        world.notified.clear();
        world.log.clear();
        Ok(())
    }

    /// Whether the device has this feature.
    #[must_use]
    pub fn has(&self, feature: Feature) -> bool {
        self.world.borrow().dut.about().features.contains(&feature)
    }

    /// Waits for this time.
    ///
    /// # Errors
    /// If the link is down.
    pub fn wait(&mut self, time: Duration) -> Outcome {
        self.world.borrow_mut().wait(time)
    }

    /// A reliable connection with the options that most cases use.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn rc(&mut self) -> Outcome<Conn> {
        self.rc_with(|_| ())
    }

    /// A reliable connection with changed options.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn rc_with(&mut self, change: impl FnOnce(&mut Options)) -> Outcome<Conn> {
        let mut options = Options::default();
        change(&mut options);
        Conn::open(&self.world, &options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dut::core,
        link::{LinkError, Unsent},
        wire::{Packet, Roce},
    };
    use std::net::IpAddr;

    /// A link on which the device sends packets without end.
    struct Flood(Duration);

    impl Link for Flood {
        fn own(&self) -> IpAddr {
            [10, 0, 0, 1].into()
        }

        fn source_port(&self) -> u16 {
            0xc000
        }

        fn send(&mut self, _: &[u8]) -> Result<(), Unsent> {
            Ok(())
        }

        fn recv(&mut self, _: Duration) -> Result<Option<Arrival>, LinkError> {
            self.0 += Duration::from_micros(10);
            let ends = Ends { src: [10, 0, 0, 2].into(), dst: self.own(), sport: 1, roce: Roce::V2 };
            Ok(Some(Arrival { ip: Packet::of(op::ACK).encode(&ends), header_seen: true }))
        }

        fn now(&self) -> Duration {
            self.0
        }

        fn patience(&self) -> Duration {
            Duration::from_secs(1)
        }

        fn calm(&self) -> Duration {
            Duration::from_millis(1)
        }
    }

    #[test]
    fn a_device_that_sends_without_end_holds_up_no_case() {
        let mut bench = Bench::new(Box::new(core::open(false).0), Box::new(Flood(Duration::ZERO)));
        bench.clear().unwrap();
        assert!(bench.world.borrow_mut().take(7, Duration::from_millis(1)).unwrap().is_none());
    }
}
