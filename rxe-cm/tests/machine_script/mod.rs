//! Two hosts and their connections under random scripts of messages, commands and time. A small oracle judges which events a user may
//! get, in which order, and that nothing is left in the end. The fuzz target `connection` plays the same scripts.

use rxe_cm::proto::{
    CommId, Datagram, Guid, Message, Path, PrivateData, RejectReason, Rep, Req, ServiceId, SidrRep, SidrReq,
    machine::{
        Connection, Directory, Event, Local, Rejection, Role, Route, SidrEvent, SidrRequester, SidrResponder,
        SidrTiming, State,
    },
};
use rxe_core::{
    num::{Psn, Qpn},
    time::Instant,
};
use std::{collections::BTreeMap, time::Duration};

/// Connections of a host at a time, TIMEWAIT included.
const MOST: usize = 6;
/// Messages on their way.
const LINK: usize = 48;
const TIMING: SidrTiming = SidrTiming { response_timeout: 18, packet_lifetime: 14, max_retries: 3 };

/// The events that a user got about one connection, and his commands.
#[derive(Debug, Default)]
struct Told {
    requested: bool,
    /// The user's command that established it: accept or confirm.
    agreed: bool,
    accepted: bool,
    established: bool,
    refused: bool,
    unreachable: bool,
    asked_to_end: bool,
    disconnected: bool,
    closed: bool,
}

impl Told {
    /// Takes an event; panics if it may not come now.
    fn take(&mut self, role: Role, event: &Event) {
        let show = format!("{event:?} after {self:?}");
        assert!(!self.closed, "{show}");
        let once = |flag: &mut bool| assert!(!std::mem::replace(flag, true), "{show}");
        match event {
            Event::Requested(_) => {
                assert!(role == Role::Passive && !self.agreed, "{show}");
                once(&mut self.requested);
            }
            Event::Accepted(_) => {
                assert!(role == Role::Active && !self.refused && !self.unreachable, "{show}");
                once(&mut self.accepted);
            }
            Event::Established { .. } => {
                assert!(role == Role::Passive && self.agreed && !self.refused && !self.unreachable, "{show}");
                once(&mut self.established);
            }
            Event::Rejected(_) => {
                assert!(!self.disconnected && !self.unreachable, "{show}");
                once(&mut self.refused);
            }
            Event::Unreachable => {
                assert!(!self.refused && !self.disconnected && !self.accepted && !self.established, "{show}");
                once(&mut self.unreachable);
            }
            Event::DisconnectRequested(_) => {
                assert!(self.agreed && !self.disconnected && !self.refused, "{show}");
                once(&mut self.asked_to_end);
            }
            Event::Disconnected(_) => {
                assert!(self.agreed && !self.refused && !self.unreachable, "{show}");
                once(&mut self.disconnected);
            }
            Event::Closed => once(&mut self.closed),
            Event::Delayed { .. } => {}
        }
        assert!(role == Role::Active || self.requested, "{show}");
    }
}

#[derive(Debug)]
struct End {
    machine: Connection,
    told: Told,
    bound: bool,
}

/// One side of a resolution, and how many answers and ends were told.
#[derive(Debug)]
enum Sidr {
    Asks(Box<SidrRequester>, u32, u32),
    Answers(Box<SidrResponder>, u32, u32),
}

#[derive(Debug, Default)]
struct Host {
    directory: Directory,
    ends: BTreeMap<CommId, End>,
    sidr: BTreeMap<u32, Sidr>,
    numbers: u32,
}

/// Two hosts and the messages between them.
#[derive(Debug, Default)]
pub(crate) struct World {
    now: Instant,
    hosts: [Host; 2],
    /// To which host.
    link: Vec<(usize, Datagram)>,
    /// Nobody has forged a message yet.
    forged: bool,
    /// Connections that were established at both ends.
    pub(crate) agreed: usize,
}

/// The bytes of a script; zeroes behind its end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// One of so many; 0 of none.
    fn of(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count.max(1)
    }
}

/// Plays a script to its end, and then waits until all connections have ended.
pub(crate) fn play(script: &[u8]) -> World {
    let mut world = World::default();
    let mut script = Script(script);
    let honest = script.byte() % 2 == 0;
    while !script.0.is_empty() {
        let host = script.of(2);
        match script.byte() % 16 {
            0 => world.connect(host, &mut script),
            1 => world.resolve(host),
            2..=6 => world.deliver(&mut script, true),
            7 => world.deliver(&mut script, false),
            8 => world.lose(&mut script),
            9 if !honest => world.forge(&mut script),
            10..=14 => world.command(host, &mut script),
            _ => world.wait(Duration::from_millis(u64::from(script.byte()).pow(2) / 8)),
        }
        world.settle();
    }
    world.finish();
    world
}

impl World {
    fn connect(&mut self, at: usize, script: &mut Script<'_>) {
        let host = &mut self.hosts[at];
        if host.ends.len() >= MOST {
            return;
        }
        host.numbers += 1;
        let local = local(at, host.numbers);
        let req = Req {
            service_id: ServiceId(0x0106_1234),
            // Few of them, so that some are stale.
            local_qpn: Qpn::new(0x10 + script.of(4) as u32),
            remote_cm_response_timeout: 18,
            local_cm_response_timeout: 17,
            starting_psn: Psn::new(host.numbers),
            max_cm_retries: 1 + script.of(4) as u8,
            primary: Path { ack_timeout: 14, ..Path::default() },
            ..Req::default()
        };
        host.directory.claim(local.comm_id).unwrap();
        let machine = Connection::connect(self.now, local, &req, 0);
        host.ends.insert(local.comm_id, End { machine, told: Told::default(), bound: false });
    }

    fn resolve(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        if host.sidr.len() < MOST {
            host.numbers += 1;
            let req = SidrReq { request_id: CommId(host.numbers), ..SidrReq::default() };
            let asks = SidrRequester::new(self.now, req, host.numbers.into(), 0, TIMING);
            host.sidr.insert(host.numbers, Sidr::Asks(Box::new(asks), 0, 0));
        }
    }

    fn send(&mut self, to: usize, datagram: Datagram) {
        assert_eq!(Datagram::parse(&datagram.emit()), Ok(datagram));
        if self.link.len() == LINK {
            self.link.remove(0);
        }
        self.link.push((to, datagram));
    }

    /// One of the messages arrives, in whatever order; it may arrive again.
    fn deliver(&mut self, script: &mut Script<'_>, once: bool) {
        if self.link.is_empty() {
            return;
        }
        let index = script.of(self.link.len());
        let (at, datagram) = if once { self.link.remove(index) } else { self.link[index] };
        self.arrive(at, &datagram);
    }

    fn lose(&mut self, script: &mut Script<'_>) {
        if !self.link.is_empty() {
            let index = script.of(self.link.len());
            self.link.remove(index);
        }
    }

    /// A message with one other byte, or one that somebody else has sent.
    fn forge(&mut self, script: &mut Script<'_>) {
        let Some(&(at, datagram)) = self.link.get(script.of(self.link.len())) else { return };
        let mut bytes = datagram.emit();
        // In the header, only the kind of message.
        let place = [17, 24 + script.of(100)][script.of(4).min(1)];
        bytes[place] = if place == 17 { 0x10 + script.byte() % 11 } else { script.byte() };
        if let Ok(forged) = Datagram::parse(&bytes) {
            self.forged = true;
            self.arrive(if script.of(8) == 0 { 1 - at } else { at }, &forged);
        }
    }

    fn arrive(&mut self, at: usize, datagram: &Datagram) {
        let host = &mut self.hosts[at];
        match host.directory.route(datagram) {
            Route::To(id) => {
                let end = host.ends.get_mut(&id).expect("a route to a connection that is over");
                let before = (end.machine.state(), end.machine.poll_timeout());
                if end.machine.handle(self.now, datagram).is_err() {
                    assert_eq!(
                        (end.machine.state(), end.machine.poll_timeout()),
                        before,
                        "ignored, yet changed"
                    );
                }
            }
            Route::New if host.ends.len() < MOST => {
                host.numbers += 1;
                let local = local(at, host.numbers);
                let machine = Connection::requested(local, datagram).unwrap();
                host.directory.claim(local.comm_id).unwrap();
                host.ends.insert(local.comm_id, End { machine, told: Told::default(), bound: false });
            }
            Route::New => {
                let why = Rejection::because(RejectReason::NO_RESOURCES);
                let answer = Directory::refuse(datagram, why).unwrap();
                self.send(1 - at, answer);
            }
            Route::Stale { old, answer } => {
                host.ends.get_mut(&old).expect("stale, but over").machine.abandon(self.now);
                self.send(1 - at, answer);
            }
            Route::Answer(answer) => self.send(1 - at, answer),
            Route::Sidr => self.arrive_sidr(at, datagram),
            Route::Unknown => {}
        }
    }

    fn arrive_sidr(&mut self, at: usize, datagram: &Datagram) {
        let host = &mut self.hosts[at];
        // Ignored if it fits nobody.
        match datagram.message {
            Message::SidrRep(rep) => {
                if let Some(Sidr::Asks(machine, ..)) = host.sidr.get_mut(&rep.request_id.0) {
                    let _ = machine.handle(datagram);
                }
            }
            Message::SidrReq(req) => {
                let key = req.request_id.0 | 1 << 31;
                if let Some(Sidr::Answers(machine, ..)) = host.sidr.get_mut(&key) {
                    let _ = machine.handle(datagram);
                } else if host.sidr.len() < 2 * MOST {
                    let machine = SidrResponder::requested(datagram, TIMING).unwrap();
                    host.sidr.insert(key, Sidr::Answers(Box::new(machine), 0, 0));
                }
            }
            _ => unreachable!("a route for {datagram}"),
        }
    }

    /// The user of one end gives a command, whether or not it is allowed now.
    fn command(&mut self, at: usize, script: &mut Script<'_>) {
        let (now, which, what) = (self.now, script.byte(), script.byte());
        let host = &mut self.hosts[at];
        if what % 10 == 9 {
            let count = host.sidr.len().max(1);
            if let Some(Sidr::Answers(machine, ..)) = host.sidr.values_mut().nth(usize::from(which) % count) {
                machine.reply(now, &SidrRep::default(), 0);
            }
            return;
        }
        let count = host.ends.len().max(1);
        let Some(end) = host.ends.values_mut().nth(usize::from(which) % count) else { return };
        let before = end.machine.state();
        let none = PrivateData::default();
        let rep =
            Rep { local_qpn: Qpn::new(0x80 + u32::from(which % 4)), target_ack_delay: 12, ..Rep::default() };
        let machine = &mut end.machine;
        let result = match (what % 10, before) {
            (0, _) | (1..=3, State::ReqReceived) => {
                machine.accept(now, &rep, 0).map(|()| end.told.agreed = true)
            }
            (1..=3, State::RepReceived) => {
                machine.confirm(PrivateData::default()).map(|()| end.told.agreed = true)
            }
            (1..=3, _) => machine.confirm_disconnect(now, PrivateData::default()),
            (4, _) => machine.reject(now, Rejection::by_consumer(PrivateData::default())),
            (5, _) => machine.disconnect(now, none),
            (6, _) => machine.confirm(PrivateData::default()).map(|()| end.told.agreed = true),
            (7, _) => machine.send_mra(what / 10, PrivateData::default()),
            _ if what < 240 => {
                machine.handle_data();
                Ok(())
            }
            _ => {
                machine.abandon(now);
                Ok(())
            }
        };
        assert!(result.is_ok() || end.machine.state() == before, "refused, yet changed");
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        for host in &mut self.hosts {
            host.ends.values_mut().for_each(|end| end.machine.handle_timeout(self.now));
            for sidr in host.sidr.values_mut() {
                match sidr {
                    Sidr::Asks(machine, ..) => machine.handle_timeout(self.now),
                    Sidr::Answers(machine, ..) => machine.handle_timeout(self.now),
                }
            }
        }
    }

    /// Takes everything out of the machines.
    fn settle(&mut self) {
        for at in 0..2 {
            let mut out = Vec::new();
            let host = &mut self.hosts[at];
            let Host { directory, ends, sidr, .. } = host;
            ends.retain(|id, end| {
                let before = out.len();
                out.extend(std::iter::from_fn(|| end.machine.poll_transmit()));
                // At most one of each kind.
                assert!(out.len() - before <= 9);
                if let (false, Some(&peer)) = (end.bound, end.machine.peer()) {
                    directory.bind(*id, peer);
                    end.bound = true;
                }
                while let Some(event) = end.machine.poll_event() {
                    end.told.take(end.machine.role(), &event);
                }
                if matches!(end.machine.state(), State::TimeWait | State::Refused) {
                    directory.enter_time_wait(*id);
                }
                let closed = end.machine.state() == State::Closed;
                assert_eq!(closed, end.told.closed);
                assert!(
                    closed || end.machine.poll_timeout().is_some() || waits_for_user(end.machine.state())
                );
                if closed {
                    directory.release(*id);
                }
                !closed
            });
            sidr.retain(|_, one| settle_sidr(one, &mut out));
            out.into_iter().for_each(|datagram| self.send(1 - at, datagram));
        }
        self.compare();
    }

    /// If both ends are established, they agree about the connection, unless messages are forged.
    fn compare(&mut self) {
        let [one, other] = &self.hosts;
        let mut agreed = 0;
        for (id, end) in &one.ends {
            let Some(peer) = end.machine.peer() else { continue };
            let Some(far) = other.ends.get(&peer.comm_id) else { continue };
            let stands = |end: &End| end.machine.state() == State::Established;
            if self.forged || !stands(end) || !stands(far) {
                continue;
            }
            let back = far.machine.peer().expect("it stands");
            assert_eq!((back.comm_id, Some(back.qpn)), (*id, end.machine.local_qpn()));
            assert_eq!(Some(peer.qpn), far.machine.local_qpn());
            agreed += 1;
        }
        self.agreed = self.agreed.max(agreed);
    }

    /// Nothing arrives any more and every user gives up: everything ends by timeouts alone.
    fn finish(&mut self) {
        self.link.clear();
        for host in &mut self.hosts {
            host.ends.values_mut().for_each(|end| end.machine.abandon(self.now));
            for sidr in host.sidr.values_mut() {
                if let Sidr::Answers(machine, ..) = sidr {
                    machine.reply(self.now, &SidrRep::default(), 0);
                }
            }
        }
        self.settle();
        for _ in 0..2000 {
            let timers = self.hosts.iter().flat_map(|host| {
                let ends = host.ends.values().filter_map(|end| end.machine.poll_timeout());
                ends.chain(host.sidr.values().filter_map(|sidr| match sidr {
                    Sidr::Asks(machine, ..) => machine.poll_timeout(),
                    Sidr::Answers(machine, ..) => machine.poll_timeout(),
                }))
            });
            let Some(next) = timers.min() else { break };
            self.now = self.now.max(next);
            self.wait(Duration::ZERO);
            self.settle();
        }
        for host in &self.hosts {
            assert!(host.ends.is_empty() && host.sidr.is_empty() && host.directory.is_empty(), "{host:#?}");
        }
    }
}

fn local(host: usize, number: u32) -> Local {
    Local {
        comm_id: CommId((host as u32 + 1) << 24 | number),
        ca_guid: Guid(0x0200 + host as u64),
        transaction: u64::from(number),
        packet_lifetime: 14,
    }
}

/// Whether the user, and not time, has to do something.
fn waits_for_user(state: State) -> bool {
    matches!(state, State::ReqReceived | State::RepReceived | State::Established | State::DreqReceived)
}

/// Whether it has not ended. What it sends goes to `out`.
fn settle_sidr(one: &mut Sidr, out: &mut Vec<Datagram>) -> bool {
    let (answers, closed) = match one {
        Sidr::Asks(machine, answers, closed) => {
            out.extend(machine.poll_transmit());
            while let Some(event) = machine.poll_event() {
                assert_eq!(*closed, 0, "{event:?} after the end");
                match event {
                    SidrEvent::Resolved(_) | SidrEvent::Unreachable => *answers += 1,
                    SidrEvent::Closed => *closed += 1,
                    SidrEvent::Requested { .. } => panic!("{event:?} at who asks"),
                }
            }
            (*answers, *closed)
        }
        Sidr::Answers(machine, answers, closed) => {
            out.extend(machine.poll_transmit());
            while let Some(event) = machine.poll_event() {
                assert_eq!(*closed, 0, "{event:?} after the end");
                match event {
                    SidrEvent::Requested { .. } => *answers += 1,
                    SidrEvent::Closed => *closed += 1,
                    other => panic!("{other:?} at who answers"),
                }
            }
            (*answers, *closed)
        }
    };
    assert!(answers <= 1 && (closed == 0 || answers == 1));
    closed == 0
}
