//! Whatever a peer sends: parsers neither panic nor take what they would not send back the same.

use rxe_ipoib::proto::{
    address::LinkAddress,
    arp::{Arp, Operation},
    connected::PrivateData,
    encap::Protocol,
    ip::{self, Head},
    nd::{self, Message, Packet},
};
use std::net::{Ipv4Addr, Ipv6Addr};

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// Sound packets, to change a little.
fn seeds() -> Vec<Vec<u8>> {
    let address = LinkAddress { connected: true, qpn: 17, gid: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1) };
    let (here, there) = (Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2));
    let arp = Arp { operation: Operation::Request, sender: (address, here), target: (None, there) };
    let v6 = |message| {
        let (source, destination) = (address.gid, Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 2));
        Packet { source, destination, message }.emit()
    };
    let target = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
    let mut v4 = vec![0; 60];
    v4[..10].copy_from_slice(&[0x45, 0, 0, 60, 0, 0, 0, 0, 64, 1]);
    v4[12..20].copy_from_slice(&[10, 9, 0, 1, 10, 9, 0, 2]);
    vec![
        arp.emit().to_vec(),
        v6(Message::Solicitation { target, source: Some(address) }),
        v6(Message::Solicitation { target, source: None }),
        v6(Message::Advertisement { target, address, solicited: false, replaces: true }),
        PrivateData { qpn: 17, receive_mtu: 65_524 }.emit().to_vec(),
        address.emit().to_vec(),
        v4,
    ]
}

/// Gives a packet to all parsers; how many took it.
fn judge(data: &[u8]) -> usize {
    let mut taken = usize::from(Protocol::of(data).is_some());
    if let Some(address) = LinkAddress::parse(data) {
        assert_eq!(LinkAddress::parse(&address.emit()), Some(address));
        taken += 1;
    }
    if let Some(arp) = Arp::parse(data) {
        assert_eq!(Arp::parse(&arp.emit()), Some(arp));
        taken += 1;
    }
    if let Some(packet) = Packet::parse(data) {
        assert!(nd::is_ours(data));
        // What an advertisement to a group says of questions is not believed, and so not said again.
        assert!(Packet::parse(&packet.emit()).is_some());
        taken += 1;
    }
    if let Some(private) = PrivateData::parse(data) {
        assert_eq!(PrivateData::parse(&private.emit()), Some(private));
        taken += 1;
    }
    if let Some(head) = Head::parse(data, data.len()) {
        assert_eq!(head.source.is_ipv4(), data[0] >> 4 == 4);
        taken += 1;
    }
    if let Some(message) = ip::too_big(data, 1280) {
        assert!(message.len() <= 48 + 128 && Head::parse(&message, message.len()).is_some());
    }
    taken
}

#[test]
fn changed_packets() {
    let mut random = Random(18);
    let seeds = seeds();
    let mut taken = 0;
    for _ in 0..50_000 {
        let mut data = seeds[random.below(seeds.len())].clone();
        for _ in 0..random.below(4) {
            let at = random.below(data.len());
            data[at] = random.below(256) as u8;
        }
        data.truncate(if random.below(4) == 0 { random.below(data.len() + 1) } else { data.len() });
        taken += judge(&data);
    }
    assert!(taken > 12_000, "{taken}: hardly anything reached behind the first check");
}

#[test]
fn noise() {
    let mut random = Random(19);
    for _ in 0..30_000 {
        let len = random.below(160);
        let data: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
        judge(&data);
    }
}
