//! The slot program on real sockets: three members of one group in one process.
//!
//! One test only: a process started by another thread would hold copies of a closed member's sockets for a moment, and
//! so keep its place in the group.

mod netns;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netns::{Namespace, receive};
use rxe_verbs::net::{Link, Sharing, SlotTable, Transmit, UdpConfig, UdpLink};

/// A packet to `qpn`: opcode, the DestQP at bytes 5 to 7, and a filler.
fn to_qp(qpn: u32, len: usize) -> Vec<u8> {
    let mut packet = vec![0x55; len];
    packet[4..8].copy_from_slice(&qpn.to_be_bytes());
    packet
}

/// A MAD to QP1 of a management class, with an attribute, a local and a remote communication ID.
fn mad(class: u8, attribute: u16, local: u32, remote: u32) -> Vec<u8> {
    let mut packet = to_qp(1, 12 + 8 + 256 + 4);
    packet[20..24].copy_from_slice(&[1, class, 2, 3]);
    packet[36..38].copy_from_slice(&attribute.to_be_bytes());
    packet[44..48].copy_from_slice(&local.to_be_bytes());
    packet[48..52].copy_from_slice(&remote.to_be_bytes());
    packet
}

const CM: u8 = 7;

/// Packets and the slot they are for.
fn cases() -> Vec<(&'static str, Vec<u8>, u8)> {
    let mut cases = vec![
        ("shorter than a BTH", vec![7; 5], 0),
        ("as long as the QPN", to_qp(0x01_0011, 8), 0),
        ("as short as a BTH", to_qp(0x01_0011, 12), 1),
        ("slot 0", to_qp(0x00_0011, 60), 0),
        ("slot 1", to_qp(0x01_ffff, 60), 1),
        ("slot 2", to_qp(0x02_0000, 60), 2),
        ("slot 200", to_qp(0xc8_0001, 4120), 1),
        ("a slot without entry", to_qp(0x63_0001, 60), 0),
        ("the multicast QPN", to_qp(0xff_ffff, 60), 0),
        ("QPN 1 with its reserved byte set", to_qp(0x0900_0001, 60), 0),
        ("QP1 without a whole MAD", to_qp(1, 51), 0),
        ("REQ", mad(CM, 0x10, 0x0200_0001, 0x0100_0001), 0),
        ("SIDR_REQ", mad(CM, 0x17, 0x0200_0001, 0x0100_0001), 0),
        ("SIDR_REP names its request first", mad(CM, 0x18, 0x0200_0001, 0x0100_0001), 2),
        ("another class", mad(4, 0x13, 0x0100_0001, 0x0100_0001), 0),
        ("an attribute of no message", mad(CM, 0x1b, 0x0100_0001, 0x0100_0001), 0),
        ("a reply to a slot without entry", mad(CM, 0x13, 0x0100_0001, 0x6300_0001), 0),
        ("a reply to nobody", mad(CM, 0x12, 0x0200_0001, 0), 0),
    ];
    for attribute in [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1a] {
        cases.push(("a reply", mad(CM, attribute, 0x0100_0001, 0x0200_0001), 2));
        cases.push(("a reply", mad(CM, attribute, 0x0200_0001, 0xc800_0001), 1));
    }
    cases
}

fn members(namespace: &Namespace) -> Vec<UdpLink> {
    namespace.run(|| {
        let config = UdpConfig { sharing: Sharing::Group, slots: None, ..UdpConfig::default() };
        (0..3).map(|_| UdpLink::open(&config).unwrap()).collect()
    })
}

#[test]
fn packets_reach_the_member_that_serves_their_slot() {
    let Some(namespace) = Namespace::new() else { return };
    let mut links = members(&namespace);
    let table = SlotTable::new([(0, 0), (1, 1), (2, 2), (200, 1)]);
    links[1].steer(&table).unwrap();
    check(&mut links, &table);

    // The same group with other places for the slots: the new program replaces the old.
    let table = SlotTable::new([(0, 2), (1, 0), (2, 1), (200, 0)]);
    links[0].steer(&table).unwrap();
    check(&mut links, &table);

    // A member leaves: the last one takes its place, and a new table mends what that broke.
    drop(links.remove(0));
    links.swap(0, 1);
    let table = SlotTable::new([(0, 0), (1, 1), (2, 1), (200, 1)]);
    links[0].steer(&table).unwrap();
    check(&mut links, &table);
}

fn check(links: &mut [UdpLink], table: &SlotTable) {
    for own in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        for (name, packet, slot) in cases() {
            let wanted = usize::from(table.member(slot));
            // The program sees a batch as one long packet, so what it does with short ones shows singly.
            let counts: &[usize] = if packet.len() < 60 { &[1] } else { &[1, 7] };
            for &count in counts {
                let source_port = links[0].capabilities().source_ports[0];
                let segment_size = packet.len();
                let batch = Transmit {
                    src: own,
                    dst: own,
                    ifindex: 0,
                    source_port,
                    tos: 0,
                    hop_limit: 0,
                    encapsulation: rxe_verbs::net::Encapsulation::V2,
                    segment_size,
                };
                links[0].send(&batch, &packet.repeat(count)).unwrap();
                let got = receive(&mut links[wanted], count);
                assert_eq!(got.len(), count, "{name}, {own}, {count} packets: not at member {wanted}");
                assert!(got.iter().all(|got| got.bytes == packet && got.run == count), "{name}");
            }
        }
        for link in links.iter_mut() {
            assert_eq!(link.recv(&mut rxe_verbs::net::RecvBatch::new(8)).unwrap(), 0, "something strayed");
        }
    }
}
