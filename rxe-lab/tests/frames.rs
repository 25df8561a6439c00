//! The same packet in all the ways in which captures show it.

mod common;

use common::{ETHERNET, NULL, RAW, SLL, SLL2, dissect, hex, pcap, pcapng, recorded};
use rxe_core::wire::icrc::{Route, seal};
use rxe_lab::flow::Marks;

/// The recorded acknowledgement of a card, from its IP header on, and its Ethernet header.
fn acknowledgement() -> (Vec<u8>, Vec<u8>) {
    let frames = recorded();
    // Behind an Ethernet header with a VLAN tag.
    let frame = frames.iter().find(|frame| frame.len() == 66 && frame[12..14] == [0x81, 0]).unwrap();
    (frame[18..].to_vec(), frame[..12].to_vec())
}

fn ethernet(packet: &[u8]) -> Vec<u8> {
    [&acknowledgement().1[..], &[0x08, 0], packet].concat()
}

/// An IPv4 header around something.
fn ipv4(protocol: u8, inside: &[u8]) -> Vec<u8> {
    let len = (inside.len() + 20) as u16;
    let mut out = vec![0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, protocol, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2];
    out[2..4].copy_from_slice(&len.to_be_bytes());
    out.extend(inside);
    out
}

#[test]
fn one_packet_behind_many_headers() {
    let (packet, macs) = acknowledgement();
    let tags = |tags: &[[u8; 4]]| [&macs[..], &tags.concat(), &[0x08, 0], &packet].concat();
    let udp = |port: u16, inside: &[u8]| {
        let mut out = vec![0x12, 0x34];
        out.extend(port.to_be_bytes());
        out.extend((inside.len() as u16 + 8).to_be_bytes());
        out.extend([0, 0]);
        out.extend(inside);
        out
    };
    let inner = ethernet(&packet);
    let gre = |head: &[u8], inside: &[u8]| ethernet(&ipv4(47, &[head, inside].concat()));
    let cases = [
        ("Ethernet", ETHERNET, ethernet(&packet)),
        ("padded", ETHERNET, [&ethernet(&packet)[..], &[0; 10]].concat()),
        ("one tag", ETHERNET, tags(&[[0x81, 0, 0x60, 5]])),
        ("two tags", ETHERNET, tags(&[[0x88, 0xa8, 0, 9], [0x81, 0, 0x60, 5]])),
        ("raw IP", RAW, packet.clone()),
        ("BSD loopback", NULL, [&[2, 0, 0, 0], &packet[..]].concat()),
        ("cooked", SLL, [&[0, 4, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 0, 0, 8, 0], &packet[..]].concat()),
        (
            "cooked v2",
            SLL2,
            [&[8, 0, 0, 0, 0, 0, 0, 3, 0, 1, 4, 6, 1, 2, 3, 4, 5, 6, 0, 0], &packet[..]].concat(),
        ),
        (
            "VXLAN",
            ETHERNET,
            ethernet(&ipv4(17, &udp(4789, &[&[8, 0, 0, 0, 0, 0, 42, 0], &inner[..]].concat()))),
        ),
        ("ERSPAN I", ETHERNET, gre(&[0, 0, 0x88, 0xbe], &inner)),
        ("ERSPAN II", ETHERNET, gre(&[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10, 5, 0, 17, 0, 0, 0, 0], &inner)),
        (
            "ERSPAN III",
            ETHERNET,
            gre(&[&[0x10, 0, 0x22, 0xeb, 0, 0, 0, 1, 0x20, 5, 0, 17][..], &[0; 8]].concat(), &inner),
        ),
        ("GRE with IP", ETHERNET, gre(&[0, 0, 8, 0], &packet)),
        ("GRE with Ethernet", ETHERNET, gre(&[0, 0, 0x65, 0x58], &inner)),
    ];
    for (name, link, frame) in cases {
        let told = dissect(&pcap(link, &[frame]));
        assert_eq!(told.summary.totals.icrc_right, 1, "{name}: {:?}", told.summary.totals);
        assert!(told.seen[0].label.starts_with("RC ACK qp 0xdeaded"), "{name}: {}", told.seen[0].label);
    }
}

#[test]
fn what_is_no_packet_is_told_apart() {
    let (packet, _) = acknowledgement();
    let arp = [&acknowledgement().1[..], &[8, 6], &[0; 28]].concat();
    let mut fragment = ethernet(&packet);
    fragment[14 + 6] = 0x20;
    let mut long = ethernet(&packet);
    long[14 + 20 + 4..14 + 20 + 6].copy_from_slice(&900_u16.to_be_bytes());
    let told = dissect(&pcap(ETHERNET, &[arp, fragment, long, vec![1; 13], ethernet(&packet)]));
    let totals = &told.summary.totals;
    let counts = [totals.frames, totals.packets, totals.not_roce, totals.fragments, totals.cut_short];
    assert_eq!(counts, [5, 1, 1, 1, 1]);
    assert_eq!(totals.malformed.values().sum::<u64>(), 1);
    let told = dissect(&pcap(147, &[packet]));
    assert_eq!(told.summary.totals.unknown_link, 1);
}

/// The ICRCs of cards that speak RoCEv1, right and with one bit wrong.
#[test]
fn roce_v1_is_judged() {
    let frames: Vec<_> = common::V1_ACKS.map(hex).to_vec();
    let mut bad = frames.clone();
    bad[0][60] ^= 4;
    // Routers may change the hop limit.
    bad[1][14 + 7] = 9;
    let told = dissect(&pcap(ETHERNET, &frames));
    assert_eq!((told.summary.totals.icrc_right, told.summary.totals.roce_v1), (2, 2));
    let told = dissect(&pcap(ETHERNET, &bad));
    assert_eq!((told.summary.totals.icrc_right, told.summary.totals.icrc_wrong), (1, 1));
}

fn write(psn: u8, len: usize, ident: u16) -> Vec<u8> {
    let mut bytes = vec![0x0a, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0, 0, psn];
    bytes.extend([&[0; 8][..], &[0, 0, 0, 1], &(len as u32).to_be_bytes()].concat());
    bytes.extend((0..len).map(|at| at as u8 ^ psn));
    bytes.extend([0; 4]);
    let route = Route::v2([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0x1234);
    seal(&route, ident, &mut bytes);
    bytes
}

fn datagram(packet: &[u8], src: u8, ident: u16) -> Vec<u8> {
    let mut udp = vec![0x12, 0x34, 0x12, 0xb7];
    udp.extend((packet.len() as u16 + 8).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(packet);
    let mut out = ipv4(17, &udp);
    out[12..20].copy_from_slice(&[10, 0, 0, src, 10, 0, 0, 2]);
    out[4..6].copy_from_slice(&ident.to_be_bytes());
    out
}

/// A router that changes addresses makes all ICRCs wrong in the same way; corruption does not.
#[test]
fn rewritten_addresses_are_told_from_corruption() {
    let frames =
        (0..10_u8).map(|psn| datagram(&write(psn, 40 * usize::from(psn) + 4, psn.into()), 200, psn.into()));
    let told = dissect(&pcap(RAW, &frames.collect::<Vec<_>>()));
    // The first alone shows nothing.
    assert_eq!((told.count(Marks::REWRITTEN), told.count(Marks::BAD_ICRC)), (9, 1));
    assert_eq!(told.summary.connections[0].directions[0].rewritten, 9);
    let corrupted = (0..10_u8).map(|psn| {
        let mut packet = write(psn, 100, psn.into());
        packet[30 + 3 * usize::from(psn)] ^= 1 << (psn % 8);
        datagram(&packet, 1, psn.into())
    });
    let told = dissect(&pcap(RAW, &corrupted.collect::<Vec<_>>()));
    assert_eq!((told.count(Marks::REWRITTEN), told.count(Marks::BAD_ICRC)), (0, 10));
}

/// A mirror shows what comes in and what goes out; a packet that was sent again has another number.
#[test]
fn copies_are_told_from_retransmissions() {
    let both = |ident: u16, ttl: u8| {
        let mut packet = datagram(&write(1, 64, ident), 1, ident);
        packet[8] = ttl;
        packet
    };
    let first = datagram(&write(0, 64, 899), 1, 899);
    let told = dissect(&pcap(RAW, &[first.clone(), both(900, 64), both(900, 63), both(900, 63)]));
    assert_eq!((told.count(Marks::COPY), told.count(Marks::RETRANSMITTED)), (2, 0));
    let told = dissect(&pcap(RAW, &[first, both(900, 64), both(901, 64)]));
    assert_eq!((told.count(Marks::COPY), told.count(Marks::RETRANSMITTED)), (0, 1));
}

/// A process that talks to itself records each packet twice, out and in, with the same bytes.
#[test]
fn a_packet_out_and_in_is_a_copy() {
    let frames: Vec<_> = (0..3_u8)
        .flat_map(|psn| [datagram(&write(psn, 64, 0), 1, 0), datagram(&write(psn, 64, 0), 1, 0)])
        .collect();
    let (out, back) = (2, 1);
    let told = dissect(&pcapng(RAW, &frames, &[out, back, out, back, out, back]));
    assert_eq!((told.count(Marks::COPY), told.count(Marks::RETRANSMITTED)), (3, 0));
    // Twice out is sent again.
    let told = dissect(&pcapng(RAW, &frames, &[out, back, out, out, out, back]));
    assert_eq!((told.count(Marks::COPY), told.count(Marks::RETRANSMITTED)), (2, 1));
}

/// Messages of the connection manager and other datagrams are copies as well, and are counted once.
#[test]
fn a_datagram_out_and_in_is_a_copy() {
    let frames = recorded();
    let is_request =
        |frame: &&Vec<u8>| dissect(&pcap(ETHERNET, &[frame.to_vec()])).seen[0].label.starts_with("CM REQ");
    let request = frames.iter().find(is_request).unwrap().clone();
    let told = dissect(&pcapng(ETHERNET, &[request.clone(), request], &[2, 1]));
    assert_eq!((told.seen[1].remark.marks, told.summary.totals.cm), (Marks::CM | Marks::COPY, 1));
    let conversation = &told.summary.conversations[0];
    assert_eq!((conversation.messages.len(), conversation.repeated), (1, 0));

    // An empty UD SEND.
    let mut packet = vec![0x64, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0x12];
    packet.extend([0; 4]);
    seal(&Route::v2([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0x1234), 0, &mut packet);
    let frames = vec![datagram(&packet, 1, 0); 4];
    let told = dissect(&pcapng(RAW, &frames, &[2, 1, 2, 1]));
    assert_eq!((told.count(Marks::COPY), told.summary.datagrams[0].count), (2, 2));
}

/// A notification may come before anything else to a queue pair, of whose service it says nothing.
#[test]
fn a_notification_comes_first() {
    let mut packet = vec![0x81, 0, 0xff, 0xff, 0x40, 0, 0, 0x11, 0, 0, 0, 0];
    packet.extend([0; 16 + 4]);
    seal(&Route::v2([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0x1234), 0, &mut packet);
    let notification = datagram(&packet, 1, 0);
    let frames = [notification.clone(), notification, datagram(&write(0, 64, 0), 1, 0)];
    let told = dissect(&pcapng(RAW, &frames, &[2, 1, 2]));
    let connection = &told.summary.connections[0];
    assert_eq!((told.summary.connections.len(), connection.service.as_str()), (1, "RC"));
    assert_eq!((connection.directions[0].cnps, told.count(Marks::COPY)), (1, 1));
}

/// What a sender's own capture shows where the system cuts packets apart later: one frame with all of them.
#[test]
fn batches_are_taken_apart() {
    let packets: Vec<_> =
        (0..20).map(|psn| write(psn, if psn == 19 { 700 } else { 1024 }, psn.into())).collect();
    let told = dissect(&pcap(RAW, &[datagram(&packets.concat(), 1, 0)]));
    assert_eq!((told.seen.len(), told.summary.totals.icrc_right, told.summary.totals.frames), (20, 20, 1));
    assert_eq!(told.seen[19].place, (1, 20));
    assert_eq!(told.summary.totals.from_batches, 20);
    assert_eq!(told.summary.connections[0].directions[0].asked["WRITE"].count, 20);
}
