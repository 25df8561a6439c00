//! Two hosts with a connection manager each, on a network inside the process.
#![allow(dead_code, reason = "each test file uses a part")]

use rxe_cm::{CmEvent, CmId, ConnParams, EventChannel, EventKind, Manager, proto::PortSpace};
use rxe_verbs::{
    Access, Completion, Context, ContextOptions, Cq, Mr, Pd, Qp, QpInit, QpType, RecvWr, SendOp, SendWr,
    WcStatus,
    net::{FaultPlan, InprocNet},
};
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const PORT: u16 = 7174;

/// A host.
pub(crate) struct Host {
    pub(crate) address: IpAddr,
    pub(crate) context: Context,
    pub(crate) manager: Manager,
    pub(crate) channel: EventChannel,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) memory: Mr,
}

impl Host {
    pub(crate) fn new(net: &InprocNet, address: &str) -> Self {
        Self::with(ContextOptions::new(), net, address)
    }

    pub(crate) fn lossy(net: &InprocNet, address: &str, plan: &str) -> Self {
        Self::with(ContextOptions::new().faults(FaultPlan::parse(plan).unwrap()), net, address)
    }

    fn with(options: ContextOptions, net: &InprocNet, address: &str) -> Self {
        let address = address.parse().unwrap();
        Self::of(options.open_inproc(net, &[address]).unwrap(), address)
    }

    pub(crate) fn of(context: Context, address: IpAddr) -> Self {
        let manager = Manager::on(&context).unwrap();
        let channel = EventChannel::new().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64, None).unwrap();
        let memory =
            pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
        Self { address, context, manager, channel, pd, cq, memory }
    }

    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address, port)
    }

    pub(crate) fn id(&self, space: PortSpace) -> CmId {
        self.manager.create_id(&self.channel, space).unwrap()
    }

    pub(crate) fn listen(&self, space: PortSpace, port: u16, backlog: usize) -> CmId {
        let id = self.id(space);
        id.bind(self.at(port)).unwrap();
        id.listen(backlog).unwrap();
        id
    }

    pub(crate) fn next(&self) -> CmEvent {
        self.channel.get_event(Some(PATIENCE)).unwrap()
    }

    pub(crate) fn expect(&self, name: &str) -> CmEvent {
        let event = self.next();
        assert_eq!(event.kind.name(), name, "{event:?}");
        event
    }

    /// No event comes for a while.
    pub(crate) fn is_silent(&self) {
        let event = self.channel.get_event(Some(Duration::from_millis(100)));
        assert!(event.is_err(), "{event:?}");
    }

    /// An id with an address and a route to the peer.
    pub(crate) fn resolved(&self, space: PortSpace, to: SocketAddr) -> CmId {
        let id = self.id(space);
        id.resolve_addr(None, to).unwrap();
        self.expect("ADDR_RESOLVED");
        id.resolve_route().unwrap();
        self.expect("ROUTE_RESOLVED");
        id
    }

    pub(crate) fn qp(&self, id: &CmId) -> Arc<Qp> {
        let kind = if id.port_space() == Some(PortSpace::Udp) { QpType::Ud } else { QpType::Rc };
        id.create_qp(&self.pd, &QpInit::new(kind, &self.cq)).unwrap()
    }

    pub(crate) fn completion(&self) -> Completion {
        self.cq.poll_within(PATIENCE).unwrap().expect("a completion")
    }
}

/// A pair on a network of its own.
pub(crate) fn pair() -> (Host, Host) {
    let net = InprocNet::new();
    (Host::new(&net, "10.0.0.1"), Host::new(&net, "10.0.0.2"))
}

/// A connection from `a` to `b`; gives both ids.
pub(crate) fn connect(a: &Host, b: &Host, listener: &CmId) -> (CmId, CmId) {
    let port = listener.local_addr().unwrap().port();
    let active = a.resolved(PortSpace::Tcp, b.at(port));
    a.qp(&active);
    active.connect(&ConnParams::default()).unwrap();
    let request = b.expect("CONNECT_REQUEST");
    b.qp(&request.id);
    request.id.accept(&ConnParams::default()).unwrap();
    let established = a.expect("ESTABLISHED");
    assert!(established.id.is_same(&active));
    let established = b.expect("ESTABLISHED");
    assert!(established.id.is_same(&request.id));
    (active, request.id)
}

/// Sends some bytes over a connection, one way.
pub(crate) fn send(from: &Host, from_id: &CmId, to: &Host, to_id: &CmId) {
    let (out, into) = (from_id.qp().unwrap(), to_id.qp().unwrap());
    from.memory.write_at(0, b"over the connection").unwrap();
    into.post_recv(&RecvWr { wr_id: 1, sges: &[to.memory.sge(1024, 64)] }).unwrap();
    out.post_send(&SendWr::new(2, SendOp::Send, &[from.memory.sge(0, 19)])).unwrap();
    let sent = from.completion();
    assert_eq!((sent.wr_id, sent.status), (2, WcStatus::Success));
    let received = to.completion();
    assert_eq!((received.wr_id, received.status, received.byte_len), (1, WcStatus::Success, 19));
    assert_eq!(to.memory.read_vec(1024, 19).unwrap(), b"over the connection");
}

/// Takes events until one of that name comes.
pub(crate) fn until(host: &Host, name: &str) -> EventKind {
    loop {
        let event = host.next();
        if event.kind.name() == name {
            return event.kind;
        }
    }
}
