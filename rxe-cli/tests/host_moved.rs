//! A member of the port's socket group is gone, and the last has taken its place: the service finds out which, and packets
//! are steered to their processes again.

#[path = "common/mod.rs"]
mod common;
#[path = "../../rxe-verbs/tests/netns/mod.rs"]
mod netns;
#[path = "host/stage.rs"]
#[allow(dead_code, reason = "each test program uses a part")]
mod stage;

use netns::Namespace;
use nix::sys::socket::{SockaddrIn, SockaddrIn6, SockaddrStorage, connect, getsockname};
use stage::{End, Service, observe, until};
use std::{
    fs,
    net::{SocketAddrV4, SocketAddrV6, UdpSocket},
};

/// This process's sockets of port 4791; true for IPv6.
fn members() -> Vec<(i32, bool)> {
    let numbers = fs::read_dir("/proc/self/fd").unwrap();
    let numbers = numbers.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let of_port = |fd: i32| {
        let name = getsockname::<SockaddrStorage>(fd).ok()?;
        let v4 = name.as_sockaddr_in().map(|v4| (v4.port(), false));
        let (port, v6) = v4.or_else(|| name.as_sockaddr_in6().map(|v6| (v6.port(), true)))?;
        (port == 4791).then_some((fd, v6))
    };
    numbers.filter_map(of_port).collect()
}

#[test]
fn members_that_have_moved_are_found() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let _first = End::new(&namespace);
    let leaving = members();
    let (_second, last) = (End::new(&namespace), End::new(&namespace));
    // Linux takes a socket out of its group when it is connected.
    for (fd, v6) in leaving {
        let done = if v6 {
            connect(fd, &SockaddrIn6::from("[::1]:9".parse::<SocketAddrV6>().unwrap()))
        } else {
            connect(fd, &SockaddrIn::from("127.0.0.9:9".parse::<SocketAddrV4>().unwrap()))
        };
        done.unwrap();
    }
    let sockets: Vec<UdpSocket> =
        namespace.run(|| (0..16).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect());
    let mut packet = [0; 24];
    packet[..12].copy_from_slice(&[0x64, 0x40, 0xff, 0xff, 0, last.slot(), 0x77, 0x77, 0, 0, 0, 1]);
    let received = || last.context.port_stats().dropped_no_qp;
    // All packets of a round arrive, whichever way; whether they had to be handed on.
    let goes_astray = || {
        let (before, handed_on) = (received(), observe(&namespace).unwrap().counters.handed_on);
        for socket in &sockets {
            socket.send_to(&packet, "127.0.0.1:4791").unwrap();
        }
        until(|| received() == before + sockets.len() as u64);
        observe(&namespace).unwrap().counters.handed_on > handed_on
    };
    // The hash of the addresses chooses the socket where the program names a member that is not there.
    assert!(goes_astray());
    until(|| !goes_astray());
    assert!((0..10).all(|_| !goes_astray()));
    let log = observe(&namespace).unwrap().log;
    let notes: Vec<&String> = log.iter().filter(|line| line.contains("of the group now")).collect();
    assert!(matches!(&notes[..], [note] if note.contains(&format!("slot {} is", last.slot()))), "{log:?}");
}
