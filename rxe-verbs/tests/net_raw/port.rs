//! Raw links whose RoCEv2 comes by port 4791: everything comes once, in order, from whoever sends it.

use crate::{
    ends::stay_on_one_processor,
    netns::{self, Namespace, Waiting, packets, receive},
};
use rxe_verbs::net::{
    Encapsulation, Features, Link, OpenError, RawLink, SendError, Transmit, UdpConfig, UdpLink,
    interfaces::interfaces,
};
use std::{
    net::IpAddr,
    thread::sleep,
    time::{Duration, Instant},
};

const SLOT: u8 = 7;
const SIZE: usize = 200;
/// The number of a packet that comes behind all others.
const LAST: u8 = 250;

/// How the links of a test are opened.
fn config(address: Option<&'static str>, features: Features) -> UdpConfig {
    let all = UdpConfig { slots: None, features, ..UdpConfig::default() };
    let Some(address) = address else { return all };
    UdpConfig { slots: None, features, ..UdpConfig::only(address.parse().unwrap(), 0) }
}

fn raw(at: &Namespace, address: Option<&'static str>, features: Features) -> RawLink {
    let config = config(address, features);
    at.run(move || RawLink::open(open(&config), SLOT, false, &config).unwrap())
}

fn udp(at: &Namespace, address: Option<&'static str>) -> UdpLink {
    let config = config(address, Features::default());
    at.run(move || open(&config))
}

/// Opens a link, as soon as nobody has the port: a process that another test has just begun to start has copies of our sockets,
/// also of those that we have closed.
fn open(config: &UdpConfig) -> UdpLink {
    let mut waiting = Waiting::new();
    loop {
        match UdpLink::open(config) {
            Err(OpenError::PortHeld { .. }) if !waiting.is_over() => sleep(Duration::from_millis(50)),
            link => return link.unwrap(),
        }
    }
}

/// A batch of packets for a queue pair, each with its number.
fn batch(
    from: &dyn Link,
    (src, dst): (&str, &str),
    qpn: u32,
    numbers: core::ops::Range<u8>,
) -> (Transmit, Vec<u8>) {
    let mut bytes = packets(numbers.len(), SIZE, 0);
    for (packet, number) in bytes.chunks_mut(SIZE).zip(numbers) {
        packet[..8].copy_from_slice(&[0x0a, 0, 0xff, 0xff, 0, 0, 0, 0]);
        packet[4..8].copy_from_slice(&qpn.to_be_bytes());
        packet[8] = number;
    }
    let dst: IpAddr = dst.parse().unwrap();
    let transmit = Transmit {
        src: src.parse().unwrap(),
        dst,
        ifindex: 0,
        source_port: from.capabilities().source_ports[0],
        tos: 0,
        hop_limit: 1,
        encapsulation: Encapsulation::V2,
        segment_size: SIZE,
    };
    (transmit, bytes)
}

/// Sends all of a batch, as an engine does.
fn send(from: &mut dyn Link, transmit: &Transmit, bytes: &[u8]) {
    let mut sent = 0;
    while sent * SIZE < bytes.len() {
        let path = from.path(transmit.dst, transmit.ifindex);
        let end = bytes.len().min((sent + usize::from(path.max_segments)) * SIZE);
        match from.send(transmit, &bytes[sent * SIZE..end]) {
            Ok(()) => sent = end / SIZE,
            Err(SendError::WouldBlock { sent: some } | SendError::SegmentationRefused { sent: some }) => {
                sent += some;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// What a link gets, packet by packet: the number of each, and of those that came with it.
fn numbers(link: &mut dyn Link, count: usize) -> Vec<(u8, usize)> {
    receive(link, count).iter().map(|got| (got.bytes[8], got.run)).collect()
}

/// Sends packets for queue pairs of the slot.
fn send_to_slot(from: &mut dyn Link, ends: (&str, &str), range: core::ops::Range<u8>) {
    let (transmit, bytes) = batch(from, ends, u32::from(SLOT) << 16, range);
    send(from, &transmit, &bytes);
}

/// All of `range` comes, once and in order, with so many packets in a run; then what is sent last.
fn assert_comes(
    to: &mut dyn Link,
    from: &mut dyn Link,
    ends: (&str, &str),
    range: core::ops::Range<u8>,
    run: usize,
) {
    send_to_slot(from, ends, LAST..LAST + 1);
    let wanted: Vec<_> = range.map(|number| (number, run)).chain([(LAST, 1)]).collect();
    assert_eq!(numbers(to, wanted.len()), wanted, "{ends:?}");
}

/// IP packets that have come to a host by now.
fn ip_packets(at: &Namespace) -> u64 {
    let text = at.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    let mut rows = text.lines().filter(|line| line.starts_with("Ip:")).map(|line| line.split(' '));
    let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
    names.zip(values).find(|(name, _)| *name == "InReceives").unwrap().1.parse().unwrap()
}

/// What lies in a packet socket when the port takes over is read before anything that the port brings.
#[test]
fn what_came_as_frames_comes_first() {
    stay_on_one_processor();
    let Some((left, right)) = netns::pair(1500) else { return };
    left.cut_batches("v0");
    let (here, there) = ("10.9.0.1", "10.9.0.2");
    let mut from = udp(&left, Some(here));
    let mut to = raw(&right, Some(there), Features::default());
    // It would wait for the neighbour, and that is no part of this.
    send_to_slot(&mut from, (here, there), 0..1);
    assert_eq!(numbers(&mut to, 1), [(0, 1)]);
    let (before, start) = (ip_packets(&right), Instant::now());
    send_to_slot(&mut from, (here, there), 0..60);
    while ip_packets(&right) < before + 60 {
        assert!(start.elapsed() < netns::PATIENCE, "packets do not arrive");
    }
    to.take_by_port().unwrap();
    send_to_slot(&mut from, (here, there), 60..120);
    assert_comes(&mut to, &mut from, (here, there), 0..120, 1);
}

/// Batches that nobody has cut, to an address and to a group, also where the port's socket does not merge.
#[test]
fn batches_come_by_port() {
    stay_on_one_processor();
    let Some((left, right)) = netns::pair(1500) else { return };
    let [v0, v1] = [(&left, "v0"), (&right, "v1")].map(|(at, name)| {
        at.run(move || interfaces().unwrap().iter().find(|interface| interface.name == name).unwrap().index)
    });
    for (gro, run) in [(true, 20), (false, 1)] {
        let features = Features { gro, ..Features::default() };
        let mut from = udp(&left, None);
        let mut to = raw(&right, None, features);
        to.take_by_port().unwrap();
        for (here, there) in [("10.9.0.1", "10.9.0.2"), ("fd09::1", "fd09::2")] {
            send_to_slot(&mut from, (here, there), 0..20);
            assert_comes(&mut to, &mut from, (here, there), 0..20, run);
        }
        for (here, group) in [("10.9.0.1", "239.1.2.3"), ("fd09::1", "ff0e::1234")] {
            to.join(group.parse().unwrap(), v1).unwrap();
            let (mut transmit, bytes) = batch(&from, (here, group), 0xff_ffff, 0..20);
            transmit.ifindex = v0;
            send(&mut from, &transmit, &bytes);
            let wanted: Vec<_> = (0..20).map(|number| (number, run)).collect();
            assert_eq!(numbers(&mut to, 20), wanted, "{group}");
        }
    }
}

/// A socket that is bound to one address hears no groups: they come as frames.
#[test]
fn groups_come_as_frames_where_the_port_has_one_address() {
    stay_on_one_processor();
    let Some((left, right)) = netns::pair(1500) else { return };
    left.cut_batches("v0");
    let [v0, v1] = [(&left, "v0"), (&right, "v1")].map(|(at, name)| {
        at.run(move || interfaces().unwrap().iter().find(|interface| interface.name == name).unwrap().index)
    });
    let mut from = udp(&left, Some("10.9.0.1"));
    let mut to = raw(&right, Some("10.9.0.2"), Features { vnet: false, ..Features::default() });
    to.join("239.1.2.3".parse().unwrap(), v1).unwrap();
    let (mut transmit, bytes) = batch(&from, ("10.9.0.1", "239.1.2.3"), 0xff_ffff, 0..20);
    transmit.ifindex = v0;
    send(&mut from, &transmit, &bytes);
    assert_eq!(numbers(&mut to, 20), (0..20).map(|number| (number, 1)).collect::<Vec<_>>());
    send_to_slot(&mut from, ("10.9.0.1", "10.9.0.2"), 0..20);
    assert_comes(&mut to, &mut from, ("10.9.0.1", "10.9.0.2"), 0..20, 1);
}

/// On one host: frames and sockets hear each other, and nobody hears anything twice.
#[test]
fn one_host_has_both_links() {
    stay_on_one_processor();
    let Some((host, _other)) = netns::pair(1500) else { return };
    host.ip("addr add 10.9.0.11/24 dev v0");
    host.ip("addr add fd09::11/64 dev v0 nodad");
    for ends in [("10.9.0.1", "10.9.0.11"), ("fd09::1", "fd09::11")] {
        for (gso, run) in [(true, 50), (false, 1)] {
            let features = Features { gso, ..Features::default() };
            for by_port in [false, true] {
                let mut to = raw(&host, Some(ends.1), Features::default());
                if by_port {
                    to.take_by_port().unwrap();
                }
                let mut from = raw(&host, Some(ends.0), features);
                // A kernel before 6.2 throws the first frame of several packets away.
                send_to_slot(&mut from, ends, 0..50);
                send_to_slot(&mut from, ends, LAST..LAST + 1);
                while numbers(&mut to, 1).last().expect("what is sent last") != &(LAST, 1) {}
                send_to_slot(&mut from, ends, 0..50);
                assert_comes(&mut to, &mut from, ends, 0..50, run);
            }
            let (mut from, mut to) = (raw(&host, Some(ends.0), features), udp(&host, Some(ends.1)));
            send_to_slot(&mut from, ends, 0..50);
            assert_comes(&mut to, &mut from, ends, 0..50, run);
        }
        let (mut from, mut to) = (
            udp(&host, Some(ends.0)),
            raw(&host, Some(ends.1), Features { vnet: false, ..Features::default() }),
        );
        send_to_slot(&mut from, ends, 0..50);
        assert_comes(&mut to, &mut from, ends, 0..50, 50);
    }
}
