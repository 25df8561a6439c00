//! What happens on a route that refuses segmentation. Linux refuses it with EIO on old kernels, and everywhere for
//! sockets that leave the UDP checksum out, which is how these tests get refused.

use core::ffi::c_int;
use std::net::UdpSocket;

use super::*;
use crate::{
    net::BufferSize,
    sys::socket::{drop_arrivals, set_option},
};
use rxe_core::wire::Encapsulation;

/// A link that sends from, and only from, a socket without checksums. It receives nothing: it is not on port 4791.
fn refused(own: IpAddr, level: c_int, option: c_int) -> UdpLink {
    let socket = UdpSocket::bind((own, 0)).unwrap();
    set_option(socket.as_fd(), level, option, 1).unwrap();
    sending_from(own, socket)
}

fn sending_from(own: IpAddr, socket: UdpSocket) -> UdpLink {
    socket.set_nonblocking(true).unwrap();
    let socket = Some(OwnedFd::from(socket));
    let config = UdpConfig { pool: 0, slots: None, ..UdpConfig::only(own, 0) };
    let sockets = match own {
        IpAddr::V4(_) => GroupSockets { v4: socket, v6: None },
        IpAddr::V6(_) => GroupSockets { v4: None, v6: socket },
    };
    UdpLink::from_sockets(sockets, &config).unwrap()
}

fn batch(src: IpAddr, dst: IpAddr) -> Transmit {
    Transmit {
        src,
        dst,
        ifindex: 0,
        source_port: ROCE_PORT,
        tos: 0,
        hop_limit: 0,
        encapsulation: Encapsulation::V2,
        segment_size: 100,
    }
}

#[test]
fn an_ipv4_batch_is_given_back_and_the_route_remembered() {
    let own = IpAddr::from([127, 44, 0, 1]);
    let mut link = refused(own, libc::SOL_SOCKET, libc::SO_NO_CHECK);
    assert!(link.capabilities().gso);
    let first = IpAddr::from([127, 44, 1, 0]);
    assert_eq!(link.path(first, 0).ident, Ident::Sequential);
    let error = link.send(&batch(own, first), &[0; 500]).unwrap_err();
    assert!(matches!(error, SendError::SegmentationRefused { sent: 1 }), "{error:?}");
    assert_eq!(link.path(first, 0), Path { max_segments: 32, ident: Ident::Zero });
    link.send(&batch(own, first), &[0; 500]).unwrap();
    // Others are not concerned, until there are too many.
    for last in 1..=255u8 {
        let other = IpAddr::from([127, 44, 1, last]);
        if !link.capabilities().gso {
            assert_eq!(last, 64 + 1);
            assert_eq!(link.path(other, 0).ident, Ident::Zero);
            return;
        }
        assert_eq!(link.path(other, 0).ident, Ident::Sequential);
        let error = link.send(&batch(own, other), &[0; 200]).unwrap_err();
        assert!(matches!(error, SendError::SegmentationRefused { sent: 1 }), "{error:?}");
    }
    panic!("the memory of refusing routes grows without end");
}

#[test]
fn an_ipv6_batch_goes_packet_by_packet() {
    let own = IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]);
    let mut link = refused(own, libc::SOL_UDP, libc::UDP_NO_CHECK6_TX);
    link.send(&batch(own, own), &[0; 450]).unwrap();
    assert_eq!(link.path(own, 0), Path { max_segments: 32, ident: Ident::Zero });
    link.send(&batch(own, own), &[0; 450]).unwrap();
}

/// Older systems segment no more than 64 packets at a time. This one segments 128, and the link is made to believe in more.
#[test]
fn a_system_that_segments_fewer_packets_gets_fewer() {
    let [own, dst] = [[127, 44, 0, 1], [127, 44, 2, 1]].map(IpAddr::from);
    let mut link = sending_from(own, UdpSocket::bind((own, 0)).unwrap());
    link.segments = 500;
    let (batch, bytes) = (Transmit { segment_size: 20, ..batch(own, dst) }, [7; 200 * 20]);
    let error = link.send(&batch, &bytes).unwrap_err();
    assert!(matches!(error, SendError::SegmentationRefused { sent: 64 }), "{error:?}");
    let path = Path { max_segments: 64, ident: Ident::Sequential };
    assert_eq!((link.path(dst, 0), link.capabilities().path()), (path, path));
    link.send(&batch, &bytes[64 * 20..128 * 20]).unwrap();
    assert!(link.path(dst, 0) == path && link.capabilities().gso);
}

/// The host service gives the sockets of a process that has ended to another one.
#[test]
fn what_an_earlier_owner_of_the_socket_lost_does_not_count() {
    let own = IpAddr::from([127, 44, 3, 1]);
    let (socket, sender) = (UdpSocket::bind((own, 0)).unwrap(), UdpSocket::bind((own, 0)).unwrap());
    let to = socket.local_addr().unwrap();
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 0).unwrap();
    let flood = || (0..500).for_each(|_| _ = sender.send_to(&[0; 1000], to).unwrap());
    flood();
    let before = receive_drops(socket.as_fd()).unwrap();
    assert!(before > 0);
    let config =
        UdpConfig { pool: 0, slots: None, recv_buffer: BufferSize::Default, ..UdpConfig::only(own, 0) };
    let sockets = GroupSockets { v4: Some(socket.into()), v6: None };
    let link = UdpLink::from_sockets(sockets, &config).unwrap();
    assert_eq!(link.drops(), 0);
    flood();
    let after = receive_drops(link.sockets().next().unwrap()).unwrap();
    assert_eq!(link.drops(), u64::from(after - before));
    assert!(link.drops() > 0);
}

/// The earlier owner may have been a raw link, which hears frames and has the socket drop them.
#[test]
fn a_filter_of_an_earlier_owner_of_the_socket_does_not_stay() {
    let own = IpAddr::from([127, 44, 4, 1]);
    let (socket, sender) = (UdpSocket::bind((own, 0)).unwrap(), UdpSocket::bind((own, 0)).unwrap());
    socket.set_nonblocking(true).unwrap();
    let to = socket.local_addr().unwrap();
    drop_arrivals(socket.as_fd()).unwrap();
    let config = UdpConfig { pool: 0, slots: None, ..UdpConfig::only(own, 0) };
    let sockets = GroupSockets { v4: Some(socket.into()), v6: None };
    let mut link = UdpLink::from_sockets(sockets, &config).unwrap();
    sender.send_to(b"x", to).unwrap();
    assert_eq!(link.recv(&mut RecvBatch::default()).unwrap(), 1);
}
