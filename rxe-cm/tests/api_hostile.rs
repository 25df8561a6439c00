//! Hostile messages to queue pair 1: other connections stay established, nothing panics, every drop is counted, and a flood fills one
//! backlog and nothing else.

mod api_common;

use api_common::{Host, PATIENCE, PORT, connect, pair, send};
use rxe_cm::{
    CmId, ConnParams, Direction, EventKind,
    proto::{
        CmaHeader, CommId, Datagram, Dreq, Guid, Message, Path, PortSpace, PrivateData, RejectReason, Req,
        Rtu, ServiceId, SidrReq,
    },
};
use rxe_core::{
    num::{Pkey, Psn, Qpn},
    testing::rng::Rng,
};
use rxe_verbs::{
    AddressVector, Context, ContextOptions, Cq, Gid, Payload, Qkey, Qp, QpChange, QpInit, QpState, QpType,
    SendOp, SendWr, UdDest, net::InprocNet,
};
use std::{
    net::{IpAddr, SocketAddr},
    sync::mpsc,
    time::{Duration, Instant},
};

const MAD: usize = 256;

/// An attacker that sends from a queue pair 1.
struct Stranger {
    context: Context,
    qp: Qp,
    cq: Cq,
    to: IpAddr,
    own: IpAddr,
}

impl Stranger {
    fn new(net: &InprocNet, own: &str, to: &Host) -> Self {
        let own: IpAddr = own.parse().unwrap();
        let context = ContextOptions::new().open_inproc(net, &[own]).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(1024, None).unwrap();
        let qp = pd.create_qp(&QpInit::new(QpType::Gsi, &cq)).unwrap();
        let none = QpChange::default();
        qp.modify(&QpChange {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            qkey: Some(Qkey::GSI),
            ..none
        })
        .unwrap();
        qp.modify(&QpChange { state: Some(QpState::Rtr), ..none }).unwrap();
        qp.modify(&QpChange { state: Some(QpState::Rts), sq_psn: Some(Psn::new(0)), ..none }).unwrap();
        Self { context, qp, cq, to: to.address, own }
    }

    fn way(&self) -> AddressVector {
        self.context.address_vector(0, Gid::from(self.to)).unwrap()
    }

    fn send(&self, mad: &[u8; MAD]) {
        let dest = Some(UdDest { av: self.way(), remote_qpn: Qpn::GSI, remote_qkey: Qkey::GSI, pkey: None });
        let wr = SendWr { dest, payload: Payload::Inline(mad), ..SendWr::new(0, SendOp::Send, &[]) };
        let start = Instant::now();
        while self.qp.post_send(&wr).is_err() {
            assert!(start.elapsed() < PATIENCE);
            let _ = self.cq.poll(&mut [rxe_verbs::Completion::default(); 64]);
        }
        let _ = self.cq.poll(&mut [rxe_verbs::Completion::default(); 64]);
    }

    /// A request that a listener would take.
    fn req(&self, number: u32) -> Req {
        let header = CmaHeader { src_port: 1000, src: self.own, dst: self.to };
        Req {
            local_comm_id: CommId(number),
            local_ca_guid: Guid(0x0200_0000_0000_0001),
            local_qpn: Qpn::new(number),
            service_id: ServiceId::new(PortSpace::Tcp, PORT),
            remote_cm_response_timeout: 20,
            local_cm_response_timeout: 20,
            max_cm_retries: 15,
            pkey: Pkey::DEFAULT,
            path_mtu: 3,
            primary: Path {
                local_gid: self.own,
                remote_gid: self.to,
                hop_limit: 64,
                ack_timeout: 10,
                ..Path::default()
            },
            private_data: PrivateData::with_header(&header, b"hello").unwrap(),
            ..Req::default()
        }
    }
}

fn mad(message: impl Into<Message>) -> [u8; MAD] {
    Datagram { transaction: 1, modifier: 0, message: message.into() }.emit()
}

/// Waits until the victim has looked at as many as were sent.
fn digested(host: &Host, sent: u64) {
    let start = Instant::now();
    while host.manager.counters().received < sent {
        assert!(start.elapsed() < PATIENCE, "{:?}", host.manager.counters());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn messages_without_sense_disturb_nobody() {
    let net = InprocNet::new();
    let (a, b) = (Host::new(&net, "10.0.0.1"), Host::new(&net, "10.0.0.2"));
    let stranger = Stranger::new(&net, "10.0.0.3", &b);
    let listener = b.listen(PortSpace::Tcp, PORT, 4);
    let (active, passive) = connect(&a, &b, &listener);
    let before = b.manager.counters().received;
    let mut rng = Rng::new(7);
    const COUNT: u64 = 20_000;
    for number in 0..COUNT {
        let mut bytes = match number % 4 {
            0 => [0; MAD],
            1 => mad(stranger.req(number as u32)),
            2 => mad(Dreq { local_comm_id: CommId(number as u32), ..Dreq::default() }),
            _ => mad(SidrReq { request_id: CommId(number as u32), ..SidrReq::default() }),
        };
        // From one flipped bit to noise.
        for _ in 0..1 << rng.below(9) {
            let at = rng.below(MAD);
            bytes[at] ^= rng.below(256) as u8;
        }
        if rng.below(2) == 0 {
            // Any message of the connection manager.
            bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
            bytes[16..18].copy_from_slice(&(0x10 + rng.below(11) as u16).to_be_bytes());
        }
        stranger.send(&bytes);
        if number % 256 == 255 {
            digested(&b, before + number + 1);
        }
    }
    digested(&b, before + COUNT);
    let counters = b.manager.counters();
    let told = counters.malformed + counters.unknown + counters.refused;
    assert!(told > COUNT / 4, "{counters:?}");
    send(&a, &active, &b, &passive);
    // Requests that came through by chance are the program's to refuse.
    while let Some(event) = b.channel.try_get_event() {
        assert_eq!(event.kind.name(), "CONNECT_REQUEST");
    }
    let (again, _) = connect(&a, &b, &listener);
    assert!(!again.is_same(&active));
}

#[test]
fn a_flood_of_requests_fills_the_backlog_and_nothing_else() {
    let net = InprocNet::new();
    let (a, b) = (Host::new(&net, "10.0.0.1"), Host::new(&net, "10.0.0.2"));
    let stranger = Stranger::new(&net, "10.0.0.3", &b);
    const BACKLOG: usize = 16;
    let listener = b.listen(PortSpace::Tcp, PORT, BACKLOG);
    let (active, passive) = connect(&a, &b, &listener);
    let before = b.manager.counters().received;
    const COUNT: u32 = 10_000;
    for number in 0..COUNT {
        stranger.send(&mad(stranger.req(0x10_0000 + number)));
        if number % 256 == 255 {
            digested(&b, before + u64::from(number) + 1);
        }
    }
    digested(&b, before + u64::from(COUNT));
    assert_eq!(b.manager.connections(), BACKLOG + 1, "{:?}", b.manager.counters());
    assert_eq!(b.manager.counters().backlog_full, u64::from(COUNT) - BACKLOG as u64);
    send(&a, &active, &b, &passive);
    // Other services do not share the backlog.
    let other = b.listen(PortSpace::Tcp, PORT + 1, 4);
    let id = a.resolved(PortSpace::Tcp, other.local_addr().unwrap());
    a.qp(&id);
    id.connect(&ConnParams::default()).unwrap();
    let mut refused = 0;
    loop {
        let event = b.next();
        assert_eq!(event.kind.name(), "CONNECT_REQUEST");
        if event.listener.as_ref().is_some_and(|at| at.is_same(&other)) {
            b.qp(&event.id);
            event.id.accept(&ConnParams::default()).unwrap();
            break;
        }
        // Dropped: refused.
        refused += 1;
    }
    assert_eq!(refused, BACKLOG);
    a.expect("ESTABLISHED");
}

#[test]
fn ends_of_unknown_connections_are_answered_but_not_without_limit() {
    let net = InprocNet::new();
    let b = Host::new(&net, "10.0.0.2");
    let stranger = Stranger::new(&net, "10.0.0.3", &b);
    const COUNT: u64 = 5000;
    for number in 0..COUNT {
        let dreq =
            Dreq { local_comm_id: CommId(number as u32), remote_comm_id: CommId(5), ..Dreq::default() };
        stranger.send(&mad(dreq));
        if number % 256 == 255 {
            digested(&b, number + 1);
        }
    }
    digested(&b, COUNT);
    let counters = b.manager.counters();
    assert_eq!(counters.sent + counters.not_sent + counters.rate_limited, COUNT, "{counters:?}");
    assert!(counters.sent >= 1000, "{counters:?}");
    assert_eq!(b.manager.connections(), 0);
}

/// Events of the program's own that it does not fetch.
#[test]
fn a_program_cannot_fill_the_memory_with_its_own_events() {
    let (a, _b) = pair();
    let id = a.id(PortSpace::Tcp);
    let tell = |arg| id.tell(EventKind::User { status: 0, arg });
    let told = (0..2000).take_while(|arg| tell(*arg).is_ok()).count();
    assert_eq!(told, 1000);
    assert_eq!(tell(0).unwrap_err().errno(), libc::ENOBUFS);
    let first = a.expect("USER");
    assert!(matches!(first.kind, EventKind::User { arg: 0, .. }));
    tell(0).unwrap();
}

/// A host that listens, and an attacker.
fn listening() -> (Host, CmId, Stranger) {
    let net = InprocNet::new();
    let b = Host::new(&net, "10.0.0.2");
    let listener = b.listen(PortSpace::Tcp, PORT, 4);
    let stranger = Stranger::new(&net, "10.0.0.3", &b);
    (b, listener, stranger)
}

/// Listeners for connections take no lookups of datagram services, as in Linux (cma_ib_check_req_qp_type).
#[test]
fn a_listener_for_connections_takes_no_lookups() {
    let (b, _listener, stranger) = listening();
    let header = CmaHeader { src_port: 1000, src: stranger.own, dst: stranger.to };
    let lookup = SidrReq {
        request_id: CommId(9),
        service_id: ServiceId::new(PortSpace::Tcp, PORT),
        pkey: Pkey::DEFAULT,
        private_data: PrivateData::with_header(&header, b"hello").unwrap(),
    };
    stranger.send(&mad(lookup));
    digested(&b, 1);
    b.is_silent();
    assert_eq!(b.manager.counters().refused, 1);
}

/// The IP CM header names another address of the host than the one to which the packet came. As in Linux (validate_net_dev).
#[test]
fn a_request_reaches_listeners_on_its_own_destination_only() {
    let net = InprocNet::new();
    let [outer, inner, loopback]: [IpAddr; 3] =
        ["10.0.0.2", "10.1.0.2", "127.0.0.1"].map(|address| address.parse().unwrap());
    let context = ContextOptions::new().open_inproc(&net, &[outer, inner, loopback]).unwrap();
    let b = Host::of(context, outer);
    let spaces = [PortSpace::Tcp, PortSpace::Udp];
    let listen = |(space, address)| {
        let id = b.id(space);
        id.bind(SocketAddr::new(address, PORT)).unwrap();
        id.listen(0).unwrap();
        id
    };
    let _listeners = [inner, loopback].map(|address| spaces.map(|space| listen((space, address))));
    let mut stranger = Stranger::new(&net, "10.0.0.3", &b);
    let mut sent = 0;
    let mut ask = |to: IpAddr, src: IpAddr, dst: IpAddr| {
        stranger.to = to;
        let header = CmaHeader { src_port: 1000, src, dst };
        let private_data = PrivateData::with_header(&header, b"hello").unwrap();
        stranger.send(&mad(Req { private_data, ..stranger.req(100 + sent) }));
        let service_id = ServiceId::new(PortSpace::Udp, PORT);
        let private_data = PrivateData::with_header(&header, b"hello").unwrap();
        stranger.send(&mad(SidrReq {
            request_id: CommId(sent),
            service_id,
            pkey: Pkey::DEFAULT,
            private_data,
        }));
        sent += 2;
        digested(&b, sent.into());
    };
    let own = "10.0.0.3".parse().unwrap();
    ask(outer, own, inner);
    ask(outer, loopback, loopback);
    // A router, or a link that does not check, may let this through.
    ask(loopback, own, loopback);
    ask(loopback, loopback, loopback);
    b.is_silent();
    assert_eq!(b.manager.counters().refused, 8);
    ask(inner, own, inner);
    for _ in spaces {
        assert_eq!(b.expect("CONNECT_REQUEST").id.local_addr(), Some(SocketAddr::new(inner, PORT)));
    }
}

/// The REPs and DREQs that a host sends.
fn watched(host: &Host) -> mpsc::Receiver<Message> {
    let (tell, told) = mpsc::channel();
    host.manager.watch(move |crossing| {
        if let message @ (Message::Rep(_) | Message::Dreq(_)) = crossing.datagram.message
            && crossing.direction == Direction::Sent
        {
            let _ = tell.send(message);
        }
    });
    told
}

/// The peer has been restarted, and asks for another connection by the same queue pair. It will not confirm the first one.
#[test]
fn an_accepted_connection_that_the_peer_has_forgotten_is_told() {
    let (b, _listener, stranger) = listening();
    stranger.send(&mad(stranger.req(100)));
    let request = b.expect("CONNECT_REQUEST");
    let _qp = b.qp(&request.id);
    request.id.accept(&ConnParams::default()).unwrap();
    stranger.send(&mad(Req { local_comm_id: CommId(200), ..stranger.req(100) }));
    let refused = b.next();
    assert!(matches!(refused.kind, EventKind::Rejected(RejectReason::STALE_CONNECTION)), "{refused:?}");
    assert!(refused.id.is_same(&request.id));
}

/// The RTU is lost, and the peer ends the connection.
#[test]
fn a_connection_that_ends_before_its_rtu_ends_as_any_other() {
    let (b, _listener, stranger) = listening();
    let sent = watched(&b);
    stranger.send(&mad(stranger.req(100)));
    let request = b.expect("CONNECT_REQUEST");
    let qp = b.qp(&request.id);
    request.id.accept(&ConnParams::default()).unwrap();
    let Ok(Message::Rep(rep)) = sent.recv_timeout(PATIENCE) else { panic!("no REP") };
    let (local_comm_id, remote_comm_id) = (rep.remote_comm_id, rep.local_comm_id);
    stranger.send(&mad(Dreq { local_comm_id, remote_comm_id, remote_qpn: qp.qpn(), ..Dreq::default() }));
    b.expect("DISCONNECTED");
    request.id.disconnect().unwrap();
    b.expect("TIMEWAIT_EXIT");
}

/// The manager's thread sleeps for seconds when an id is dropped. Its DREQ is repeated in time all the same.
#[test]
fn the_end_of_a_dropped_connection_is_repeated_in_time() {
    let (b, _listener, stranger) = listening();
    let sent = watched(&b);
    stranger.send(&mad(Req { local_cm_response_timeout: 1, ..stranger.req(100) }));
    let request = b.expect("CONNECT_REQUEST");
    b.qp(&request.id);
    request.id.accept(&ConnParams::default()).unwrap();
    let Ok(Message::Rep(rep)) = sent.recv_timeout(PATIENCE) else { panic!("no REP") };
    let (local_comm_id, remote_comm_id) = (rep.remote_comm_id, rep.local_comm_id);
    stranger.send(&mad(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }));
    b.expect("ESTABLISHED");
    std::thread::sleep(Duration::from_millis(300));
    while sent.try_recv().is_ok() {}
    drop(request);
    let times = [(); 2].map(|()| {
        let Ok(Message::Dreq(_)) = sent.recv_timeout(PATIENCE) else { panic!("no DREQ") };
        Instant::now()
    });
    // 0.54 s; the thread sleeps for up to five.
    assert!(times[1] - times[0] < Duration::from_secs(3), "{:?}", times[1] - times[0]);
}

/// Whoever is refused names times of up to hours in which the refusal may have to be repeated.
#[test]
fn refusals_do_not_fill_the_memory() {
    const MOST: usize = 1 << 13;
    let (b, _listener, stranger) = listening();
    for number in 1..=MOST as u32 + 100 {
        stranger.send(&mad(Req { remote_cm_response_timeout: 31, ..stranger.req(number) }));
        b.expect("CONNECT_REQUEST").id.reject(&[]).unwrap();
    }
    assert_eq!(b.manager.connections(), MOST);
}

/// Answers to lookups are kept for repetitions for 77 s. A flood of lookups locks nobody out meanwhile.
#[test]
fn answered_lookups_do_not_fill_the_memory() {
    /// More than there is room for.
    const COUNT: u32 = 16_384 + 100;
    let (b, _listener, stranger) = listening();
    let _service = b.listen(PortSpace::Udp, PORT, 0);
    let header = CmaHeader { src_port: 1000, src: stranger.own, dst: stranger.to };
    let lookup = |number| {
        stranger.send(&mad(SidrReq {
            request_id: CommId(number),
            service_id: ServiceId::new(PortSpace::Udp, PORT),
            pkey: Pkey::DEFAULT,
            private_data: PrivateData::with_header(&header, b"hello").unwrap(),
        }));
    };
    for number in 1..=COUNT {
        lookup(number);
        b.expect("CONNECT_REQUEST").id.reject(&[]).unwrap();
    }
    assert_eq!(b.manager.counters().backlog_full, 0);
    // The last answers are still kept.
    lookup(COUNT);
    digested(&b, u64::from(COUNT) + 1);
    b.is_silent();
    let counters = b.manager.counters();
    assert_eq!(counters.sent + counters.not_sent, u64::from(COUNT) + 1);
}
