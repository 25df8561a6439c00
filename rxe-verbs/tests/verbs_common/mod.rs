//! Two contexts and connected queue pairs, over every kind of link.

#![allow(dead_code, reason = "each test program uses a part")]

#[path = "../netns/mod.rs"]
pub(crate) mod netns;

use rxe_verbs::{
    Access, Completion, Context, ContextOptions, Cq, Device, Gid, GidType, Mr, Mtu, Pd, PortState, Psn, Qkey,
    Qp, QpChange, QpInit, QpState, QpType, WcStatus,
    net::{FaultPlan, InprocNet, LinkKind},
};
use std::{
    cell::Cell,
    net::IpAddr,
    time::{Duration, Instant},
};

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Loopback addresses that no other test process uses at the same time.
pub(crate) fn loopback(number: u8) -> IpAddr {
    let pid = std::process::id();
    IpAddr::from([127, 64 + (pid >> 8) as u8 % 64, pid as u8, number])
}

/// Two contexts on one kind of link.
pub(crate) struct Two {
    pub(crate) name: &'static str,
    pub(crate) a: Context,
    pub(crate) b: Context,
    /// Which of their GIDs are connected.
    pub(crate) kind: GidType,
    /// Kept as long as the sockets in them.
    _namespaces: Vec<netns::Namespace>,
}

impl Two {
    pub(crate) fn of(name: &'static str, a: Context, b: Context) -> Self {
        Self { name, a, b, kind: GidType::RoceV2, _namespaces: Vec::new() }
    }
}

/// Inside the process.
pub(crate) fn inproc() -> Two {
    inproc_at("10.0.0.1", "10.0.0.2")
}

/// The same with addresses of one's choosing.
pub(crate) fn inproc_at(a: &str, b: &str) -> Two {
    let net = InprocNet::new();
    let open = |address: &str| Context::open_inproc(&net, &[address.parse().unwrap()]).unwrap();
    Two::of("inproc", open(a), open(b))
}

/// Inside the process, with a bad network in both directions.
pub(crate) fn bad_inproc(plan: &FaultPlan) -> Two {
    let net = InprocNet::new();
    let open = |address: &str, seed| {
        let faults = FaultPlan { seed, ..plan.clone() };
        ContextOptions::new().faults(faults).open_inproc(&net, &[address.parse().unwrap()]).unwrap()
    };
    Two::of("bad inproc", open("10.0.0.1", plan.seed), open("10.0.0.2", plan.seed + 1))
}

/// Real sockets, IPv4.
pub(crate) fn udp4() -> Two {
    let open = |number| ContextOptions::new().alone().open_address(loopback(number)).unwrap();
    Two::of("udp4", open(1), open(2))
}

/// Real sockets, IPv6: both contexts are on ::1, in a network namespace of their own. `None`, and why on stderr, where
/// we may not make one.
pub(crate) fn udp6() -> Option<Two> {
    let namespace = netns::Namespace::new()?;
    let open = || ContextOptions::new().alone().open_address("::1".parse().unwrap()).unwrap();
    let (a, b) = namespace.run(move || (open(), open()));
    Some(Two { _namespaces: vec![namespace], ..Two::of("udp6", a, b) })
}

/// Two namespaces joined by veth, when their interfaces have come up: what is sent before is lost without a word. `None`,
/// and why on stderr, where we may not make them.
pub(crate) fn namespaces(mtu: u32) -> Option<(netns::Namespace, netns::Namespace)> {
    let (left, right) = netns::pair(mtu)?;
    for (namespace, name) in [(&left, "v0"), (&right, "v1")] {
        let start = Instant::now();
        while namespace.run(|| Device::find(name).unwrap().state()) != PortState::Active {
            assert!(start.elapsed() < PATIENCE, "{name} does not come up");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Some((left, right))
}

fn open_raw(namespace: &netns::Namespace, address: &'static str) -> Context {
    let options = || ContextOptions::new().alone().link(LinkKind::Raw);
    namespace.run(move || options().open_address(address.parse().unwrap()).unwrap())
}

/// Raw frames over a veth pair, connected by GIDs of this type.
fn raw(name: &'static str, kind: GidType) -> Option<Two> {
    let (left, right) = namespaces(9000)?;
    let (a, b) = (open_raw(&left, "10.9.0.1"), open_raw(&right, "10.9.0.2"));
    Some(Two { kind, _namespaces: vec![left, right], ..Two::of(name, a, b) })
}

/// Raw frames on one interface, which has both addresses.
fn raw_on_one_interface() -> Option<Two> {
    let (left, right) = namespaces(9000)?;
    left.ip("addr add 10.9.0.11/24 dev v0");
    let (a, b) = (open_raw(&left, "10.9.0.1"), open_raw(&left, "10.9.0.11"));
    Some(Two { _namespaces: vec![left, right], ..Two::of("raw, one interface", a, b) })
}

/// Runs `test` on every kind of link.
pub(crate) fn everywhere(test: impl Fn(&Two)) {
    let over = |two: Option<Two>| {
        let Some(two) = two else { return };
        eprintln!("over {}", two.name);
        GID_TYPE.set(two.kind);
        test(&two);
        GID_TYPE.set(GidType::RoceV2);
    };
    over(Some(inproc()));
    over(Some(udp4()));
    over(udp6());
    over(raw("raw, RoCE v2", GidType::RoceV2));
    over(raw("raw, RoCE v1", GidType::RoceV1));
    over(raw_on_one_interface());
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) qp: Qp,
    pub(crate) mr: Mr,
    pub(crate) cq: Cq,
    pub(crate) pd: Pd,
}

pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

impl End {
    pub(crate) fn new(context: &Context, qp_type: QpType, bytes: usize) -> Self {
        Self::with(context, qp_type, bytes, &context.create_cq(1024, None).unwrap())
    }

    /// The same with a completion queue that others may have, too.
    pub(crate) fn with(context: &Context, qp_type: QpType, bytes: usize, cq: &Cq) -> Self {
        let pd = context.alloc_pd().unwrap();
        let qp = pd.create_qp(&QpInit::new(qp_type, cq)).unwrap();
        let mr = pd.alloc_mr(bytes, ALL).unwrap();
        Self { qp, mr, cq: cq.clone(), pd }
    }

    pub(crate) fn gid(&self) -> Gid {
        self.qp.context().gids().get(0)
    }

    /// The next completion.
    pub(crate) fn wait(&self) -> Completion {
        let poll = |time| self.cq.poll_within(time).expect("no overrun");
        // If this process was stopped meanwhile, nothing has had that time.
        let wc = poll(PATIENCE).or_else(|| poll(PATIENCE / 4));
        wc.unwrap_or_else(|| {
            panic!(
                "no completion; {:?}\n{:?}\n{:?}",
                self.qp.stats(),
                self.qp.context().port_stats(),
                self.qp.context().link_report()
            )
        })
    }

    /// The next completion, a good one.
    pub(crate) fn good(&self) -> Completion {
        let wc = self.wait();
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        wc
    }
}

/// Connects two queue pairs of a connected service.
pub(crate) fn connect(a: &Qp, b: &Qp, mtu: Mtu) {
    let gids = a.context().gids();
    let index = gids.find(gids.get(0), GID_TYPE.get());
    connect_by(a, b, mtu, index.expect("a GID of the type that the link is tried with"));
}

/// The same between the GIDs at `index`.
pub(crate) fn connect_by(a: &Qp, b: &Qp, mtu: Mtu, index: u8) {
    for (own, peer) in [(a, b), (b, a)] {
        to_init(own);
        let av = own.context().address_vector(index, peer.context().gids().get(index)).unwrap();
        let reliable = own.qp_type() == QpType::Rc;
        own.modify(&QpChange {
            state: Some(QpState::Rtr),
            av: Some(av),
            path_mtu: Some(mtu),
            dest_qpn: Some(peer.qpn()),
            rq_psn: Some(Psn::new(peer.qpn().value() ^ 0xff_fff0)),
            max_dest_rd_atomic: reliable.then_some(16),
            min_rnr_timer: reliable.then_some(1),
            ..QpChange::default()
        })
        .unwrap();
        own.modify(&QpChange {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(own.qpn().value() ^ 0xff_fff0)),
            // Long, for machines with more threads than processors; a test of lost packets takes less.
            timeout: reliable.then_some(timeout()),
            retry_count: reliable.then_some(7),
            rnr_retry: reliable.then_some(7),
            max_rd_atomic: reliable.then_some(16),
            ..QpChange::default()
        })
        .unwrap();
    }
}

thread_local! {
    /// Type of the GIDs that queue pairs of this thread are connected by.
    static GID_TYPE: Cell<GidType> = const { Cell::new(GidType::RoceV2) };
    static TIMEOUT: Cell<u8> = const { Cell::new(17) };
}

fn timeout() -> u8 {
    TIMEOUT.get()
}

/// What queue pairs that this thread connects get as their timeout code.
pub(crate) fn set_timeout(code: u8) {
    TIMEOUT.set(code);
}

pub(crate) fn to_init(qp: &Qp) {
    qp.modify(&QpChange {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: Some(ALL - Access::MW_BIND),
        ..QpChange::default()
    })
    .unwrap();
}

/// Two connected ends.
pub(crate) fn connected(two: &Two, qp_type: QpType, bytes: usize, mtu: Mtu) -> (End, End) {
    let (a, b) = (End::new(&two.a, qp_type, bytes), End::new(&two.b, qp_type, bytes));
    connect(&a.qp, &b.qp, mtu);
    (a, b)
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// The key of [`datagram_end`]s.
pub(crate) const QKEY: Qkey = Qkey(0x1111_1111);

/// A datagram queue pair in RTS.
pub(crate) fn datagram_end(context: &Context) -> End {
    datagram_end_with(context, &context.create_cq(1024, None).unwrap())
}

/// The same with a completion queue of one's choosing.
pub(crate) fn datagram_end_with(context: &Context, cq: &Cq) -> End {
    let end = End::with(context, QpType::Ud, 1 << 16, cq);
    let change = QpChange::default();
    let init = QpChange {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        qkey: Some(QKEY),
        ..change
    };
    end.qp.modify(&init).unwrap();
    end.qp.modify(&QpChange { state: Some(QpState::Rtr), ..change }).unwrap();
    end.qp.modify(&QpChange { state: Some(QpState::Rts), sq_psn: Some(Psn::new(1)), ..change }).unwrap();
    end
}
