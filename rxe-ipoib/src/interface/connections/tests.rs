use super::*;
use crate::{Options, port::Mode};
use rxe_verbs::{
    Access, ContextOptions, Cq, Mr, WcStatus,
    net::{FaultPlan, InprocNet, fault::Script},
};

#[test]
fn peers_that_take_nothing_do_not_get_all_buffers() {
    let mut free = super::super::CONNECTED_SENDS as usize;
    let mut held = [0_usize; 20];
    for peer in &mut held {
        // A parcel already has a buffer when this is checked.
        while free > 0 && may_hold(*peer, free - 1) {
            *peer += 1;
            free -= 1;
        }
    }
    assert_eq!(held[..3], [SENDS as usize, SENDS as usize / 2, SENDS as usize / 4]);
    assert!(free > 0, "{held:?}");
}

const PATIENCE: Duration = Duration::from_secs(30);
/// The datagram queue pair that the peer names.
const PEER: u32 = 0x77;

/// A peer whose messages of several packets never end.
struct Peer {
    manager: Manager,
    channel: EventChannel,
    cq: Cq,
    pd: rxe_verbs::Pd,
    memory: Mr,
}

impl Peer {
    fn on(net: &InprocNet) -> Self {
        let script = Script::parse("drop tx opcode 2").unwrap();
        let faults = FaultPlan { script: Some(Arc::new(script)), ..FaultPlan::default() };
        let context =
            ContextOptions::new().faults(faults).open_inproc(net, &["10.0.0.2".parse().unwrap()]).unwrap();
        let pd = context.alloc_pd().unwrap();
        let memory = pd.alloc_mr(8192, Access::LOCAL_WRITE).unwrap();
        let cq = context.create_cq(8, None).unwrap();
        Self {
            manager: Manager::on(&context).unwrap(),
            channel: EventChannel::new().unwrap(),
            cq,
            pd,
            memory,
        }
    }

    /// Connects, and sends the beginning of a message.
    fn begin(&self, port: &Port, connections: &mut Connections) -> CmId {
        let id = self.manager.create_id(&self.channel, PortSpace::Ib).unwrap();
        id.name_service(ServiceId(connected::service_id(port.address.qpn))).unwrap();
        id.resolve_addr(None, socket_address(port, port.address.gid)).unwrap();
        let qp = loop {
            connections.follow(Duration::ZERO, port);
            let Ok(event) = self.channel.get_event(Some(Duration::from_millis(1))) else { continue };
            match event.kind {
                EventKind::AddrResolved => id.resolve_route().unwrap(),
                EventKind::RouteResolved => {
                    id.create_qp(&self.pd, &QpInit::new(QpType::Rc, &self.cq)).unwrap();
                    let about = PrivateData { qpn: PEER, receive_mtu: RECEIVE_MTU as u32 };
                    id.connect(&params(&about.emit())).unwrap();
                }
                EventKind::Established(_) => break id.qp().unwrap(),
                // Of the connection before.
                EventKind::Disconnected { .. } | EventKind::TimewaitExit => {}
                other => panic!("{other:?}"),
            }
        };
        qp.post_send(&SendWr::new(0, SendOp::Send, &[self.memory.sge(0, 8192)])).unwrap();
        id
    }
}

/// Our side.
fn ours(net: &InprocNet) -> (Port, Connections) {
    let context = ContextOptions::new().open_inproc(net, &["10.0.0.1".parse().unwrap()]).unwrap();
    let options = Options { mode: Mode::Connected, ..Options::default() };
    let port = Port::on(context, &options, COMPLETIONS).unwrap();
    let connections = Connections::open(&port).unwrap();
    (port, connections)
}

/// The buffer of a message that has begun comes back, whether the peer begins anew or ends.
#[test]
fn half_a_message_gives_its_buffer_back() {
    let net = InprocNet::new();
    let (port, mut connections) = ours(&net);
    let peer = Peer::on(&net);
    let flushed = || {
        let done = port.cq.poll_within(PATIENCE).unwrap().expect("the buffer comes back");
        assert_eq!((Work::of(done.wr_id).0, done.status), (Work::Message, WcStatus::WorkRequestFlushed));
    };
    let _first = peer.begin(&port, &mut connections);
    let second = peer.begin(&port, &mut connections);
    flushed();
    second.disconnect().unwrap();
    while !connections.passive.is_empty() {
        connections.follow(Duration::ZERO, &port);
    }
    flushed();
}

/// A peer that was started anew refuses what is meant for its old queue pair. Its packets are not called too long for that, but those of a
/// peer that refuses again are.
#[test]
fn long_packets_wait_out_the_first_refusal() {
    let net = InprocNet::new();
    let (port, mut connections) = ours(&net);
    let _peer = Peer::on(&net);
    let gid = std::net::Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped();
    let to = LinkAddress { connected: true, qpn: PEER, gid };
    let buffers = Pool::new(&port.pd, 4, RECEIVE_MTU).unwrap();
    let long = Parcel { slot: 0, len: 30_000 };
    let mut now = Duration::from_secs(1);
    for expected in ["dropped", "as a datagram, which is too long"] {
        assert!(
            matches!(connections.send(now, &port, &buffers, long, to), Sent::Kept),
            "a connection is asked for"
        );
        while connections.follow(now, &port).failed.is_empty() {}
        let sent = match connections.send(now, &port, &buffers, long, to) {
            Sent::Busy => "dropped",
            Sent::ByDatagram => "as a datagram, which is too long",
            _ => "otherwise",
        };
        assert_eq!(sent, expected);
        now += PAUSE;
    }
}
