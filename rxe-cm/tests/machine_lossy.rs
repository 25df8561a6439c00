//! Connect and disconnect over a link that loses, repeats and reorders: both sides end in agreement.

mod machine_common;

use machine_common::{ACTIVE, PASSIVE, rep, req};
use rxe_cm::proto::{
    Datagram, PrivateData,
    machine::{Connection, Directory, Ending, Event, Local, Rejection, Route, State},
};
use rxe_core::{testing::rng::Rng, time::Instant};
use std::{collections::BTreeMap, time::Duration};

/// One host: its directory, and its connection while there is one.
struct Host {
    local: Local,
    directory: Directory,
    connection: Option<Connection>,
    log: Vec<Event>,
    bound: bool,
}

struct World {
    now: Instant,
    rng: Rng,
    loss: u16,
    repeat: u16,
    /// Arrivals: when and in which order sent; at which host.
    link: BTreeMap<(Instant, u64), (usize, Datagram)>,
    count: u64,
    hosts: [Host; 2],
    /// Commands that the users will give: when; at which host.
    wishes: Vec<(Instant, usize, Wish)>,
    refuse: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Wish {
    Decide,
    Confirm,
    Disconnect,
    Grant,
}

impl World {
    fn new(seed: u64, loss: u16, repeat: u16, refuse: bool) -> Self {
        let host = |local| Host {
            local,
            directory: Directory::default(),
            connection: None,
            log: vec![],
            bound: false,
        };
        Self {
            now: Instant::ZERO,
            rng: Rng::new(seed),
            loss,
            repeat,
            link: BTreeMap::new(),
            count: 0,
            hosts: [host(ACTIVE), host(PASSIVE)],
            wishes: vec![],
            refuse,
        }
    }

    /// Up to a packet lifetime (268 ms) on the way, so later ones may overtake.
    fn send(&mut self, to: usize, datagram: Datagram) {
        let copies = 1 + u64::from(self.rng.chance(self.repeat));
        for _ in 0..copies {
            let delay = Duration::from_micros(self.rng.range(10..268_000));
            let lost = self.rng.chance(self.loss);
            self.count += 1;
            if !lost {
                self.link.insert((self.now + delay, self.count), (to, datagram));
            }
        }
    }

    fn arrive(&mut self, at: usize, datagram: Datagram) {
        // Over the wire and back.
        let datagram = Datagram::parse(&datagram.emit()).unwrap();
        let host = &mut self.hosts[at];
        match host.directory.route(&datagram) {
            Route::To(id) => {
                assert_eq!(id, host.local.comm_id);
                let _ = host.connection.as_mut().unwrap().handle(self.now, &datagram);
            }
            Route::New => {
                assert!(at == 1 && host.log.is_empty(), "a late REQ made a second connection");
                host.directory.claim(host.local.comm_id).unwrap();
                host.connection = Some(Connection::requested(host.local, &datagram).unwrap());
            }
            Route::Answer(answer) => self.send(1 - at, answer),
            Route::Unknown => {}
            other => panic!("{other:?}"),
        }
    }

    fn wish(&mut self, at: usize, wish: Wish, up_to_ms: u64) {
        let when = self.now + Duration::from_millis(self.rng.range(0..up_to_ms));
        self.wishes.push((when, at, wish));
    }

    fn obey(&mut self, at: usize, wish: Wish) {
        let (now, refuse) = (self.now, self.refuse);
        // The peer may have changed the state meanwhile; then the command fails, and that is right.
        let Some(connection) = self.hosts[at].connection.as_mut() else { return };
        let before = connection.state();
        let result = match wish {
            Wish::Decide if refuse => connection.reject(now, Rejection::by_consumer(PrivateData::default())),
            Wish::Decide => connection.accept(now, &rep(), 0),
            Wish::Confirm => connection.confirm(PrivateData::default()),
            Wish::Disconnect => connection.disconnect(now, PrivateData::default()),
            Wish::Grant => connection.confirm_disconnect(now, PrivateData::default()),
        };
        if wish == Wish::Confirm && result.is_ok() {
            // It is established here; one or both sides end it some time later.
            self.wish(0, Wish::Disconnect, 20_000);
        }
        assert!(result.is_ok() || !matches!((before, wish), (State::ReqReceived, Wish::Decide)));
    }

    /// Takes everything out of both ends.
    fn drain(&mut self) {
        for at in 0..2 {
            let Some(mut connection) = self.hosts[at].connection.take() else { continue };
            while let Some(datagram) = connection.poll_transmit() {
                self.send(1 - at, datagram);
            }
            let host = &mut self.hosts[at];
            if let (false, Some(&peer)) = (host.bound, connection.peer()) {
                host.directory.bind(host.local.comm_id, peer);
                host.bound = true;
            }
            let mut closed = false;
            while let Some(event) = connection.poll_event() {
                assert!(!closed, "an event after the last one");
                self.hosts[at].log.push(event);
                match event {
                    Event::Requested(_) => self.wish(at, Wish::Decide, 12_000),
                    Event::Accepted(_) => self.wish(at, Wish::Confirm, 12_000),
                    Event::Established { .. } => self.wish(at, Wish::Disconnect, 20_000),
                    Event::DisconnectRequested(_) => self.wish(at, Wish::Grant, 1000),
                    Event::Closed => closed = true,
                    _ => {}
                }
            }
            let host = &mut self.hosts[at];
            if connection.state() == State::TimeWait {
                host.directory.enter_time_wait(host.local.comm_id);
            }
            assert_eq!(closed, connection.state() == State::Closed);
            if closed {
                host.directory.release(host.local.comm_id);
            } else {
                host.connection = Some(connection);
            }
        }
    }

    /// Until nothing is left to do.
    fn run(&mut self) {
        for _ in 0..100_000 {
            self.drain();
            let timers = self.hosts.iter().filter_map(|host| host.connection.as_ref()?.poll_timeout());
            let wishes = self.wishes.iter().map(|&(when, ..)| when);
            let arrival = self.link.keys().next().map(|&(when, _)| when);
            let Some(next) = timers.chain(wishes).chain(arrival).min() else { return };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let (_, (at, datagram)) = self.link.pop_first().unwrap();
                self.arrive(at, datagram);
            } else if let Some(index) = self.wishes.iter().position(|&(when, ..)| when == next) {
                let (_, at, wish) = self.wishes.swap_remove(index);
                self.obey(at, wish);
            } else {
                for host in &mut self.hosts {
                    if let Some(connection) = &mut host.connection {
                        connection.handle_timeout(self.now);
                    }
                }
            }
        }
        panic!("does not come to an end");
    }

    fn play(&mut self) {
        let connection = Connection::connect(self.now, ACTIVE, &req(), 0);
        self.hosts[0].directory.claim(ACTIVE.comm_id).unwrap();
        self.hosts[0].connection = Some(connection);
        self.run();
    }

    fn saw(&self, at: usize, what: impl Fn(&Event) -> bool) -> bool {
        self.hosts[at].log.iter().any(what)
    }

    /// Nothing is left, on either side.
    fn assert_over(&self, seed: u64) {
        for host in &self.hosts {
            assert!(host.connection.is_none() && host.directory.is_empty(), "seed {seed}: {:?}", host.log);
            let closed = host.log.iter().filter(|event| **event == Event::Closed).count();
            assert_eq!(closed, usize::from(!host.log.is_empty()), "seed {seed}");
        }
    }
}

fn is_end(event: &Event) -> bool {
    matches!(event, Event::Disconnected(_))
}

fn is_stand(event: &Event) -> bool {
    matches!(event, Event::Established { .. } | Event::DisconnectRequested(_))
}

/// With a third of all messages lost, and fifteen repetitions, every connection is made and ended by both.
#[test]
fn connect_and_disconnect() {
    let (mut crossed, mut granted) = (0, 0);
    for seed in 0..3000 {
        let mut world = World::new(seed, (seed % 34) as u16 * 10, (seed % 7) as u16 * 50, false);
        world.play();
        world.assert_over(seed);
        let show = || format!("seed {seed}\n{:#?}\n{:#?}", world.hosts[0].log, world.hosts[1].log);
        assert!(world.saw(0, |event| matches!(event, Event::Accepted(_))), "{}", show());
        assert!(world.saw(1, is_stand), "{}", show());
        assert!(world.saw(0, is_end) && world.saw(1, is_end), "{}", show());
        for at in 0..2 {
            let bad = |event: &Event| matches!(event, Event::Unreachable | Event::Rejected(_));
            assert!(!world.saw(at, bad), "{}", show());
            let ended = |how: &dyn Fn(&Ending) -> bool| {
                u32::from(world.saw(at, |event| matches!(event, Event::Disconnected(ending) if how(ending))))
            };
            crossed += ended(&|ending| matches!(ending, Ending::Crossed(_)));
            granted += ended(&|ending| *ending == Ending::Granted);
        }
    }
    assert!(crossed > 100 && granted > 1000, "{crossed} crossed, {granted} granted");
}

/// Refused over the same link: the active side always hears the reason.
#[test]
fn refused() {
    for seed in 0..1000 {
        let mut world = World::new(seed, (seed % 34) as u16 * 10, 100, true);
        world.play();
        world.assert_over(seed);
        assert!(world.saw(0, |event| matches!(event, Event::Rejected(_))), "seed {seed}");
        assert!(!world.saw(0, |event| matches!(event, Event::Accepted(_))), "seed {seed}");
    }
}

/// Over a link that loses nearly everything sides may give up. Nevertheless both end, and neither stays established for ever.
#[test]
fn nearly_nothing_arrives() {
    let mut gave_up = 0;
    for seed in 0..2000 {
        let mut world = World::new(seed, 700 + (seed % 31) as u16 * 10, 100, false);
        world.play();
        world.assert_over(seed);
        let unreachable = |event: &Event| matches!(event, Event::Unreachable);
        gave_up += u32::from(world.saw(0, unreachable) || world.saw(1, unreachable));
        // A side that was told of its beginning was told of its end.
        for at in 0..2 {
            let end = |event: &Event| is_end(event) || matches!(event, Event::Rejected(_));
            assert!(!world.saw(at, is_stand) || world.saw(at, end), "seed {seed}");
        }
    }
    assert!(gave_up > 100, "only {gave_up} gave up: the link is too good for this test");
}

/// The link really loses, repeats and reorders.
#[test]
fn the_link_is_bad() {
    let mut world = World::new(1, 300, 200, false);
    let mut end = Connection::connect(Instant::ZERO, ACTIVE, &req(), 0);
    let datagram = end.poll_transmit().unwrap();
    for _ in 0..1000 {
        world.send(1, datagram);
    }
    let arrived = world.link.len();
    assert!((750..930).contains(&arrived), "{arrived}");
    let order: Vec<_> = world.link.keys().map(|&(_, count)| count).collect();
    assert!(!order.is_sorted());
}
