//! Two ends of a connection in one test, each with its directory, in virtual time.
#![allow(dead_code, reason = "each test file uses its part")]

use rxe_cm::proto::{
    CommId, Datagram, Guid, Message, Path, PortSpace, PrivateData, Rep, Req, ServiceId,
    machine::{Connection, Directory, Event, Local, Route},
};
use rxe_core::{
    num::{Psn, Qpn},
    time::Instant,
};
use std::time::Duration;

pub(crate) const ACTIVE: Local = Local {
    comm_id: CommId(0x0a),
    ca_guid: Guid(0xaaaa_0000_0000_0001),
    transaction: 0x1_0000_000a,
    packet_lifetime: 16,
};

pub(crate) const PASSIVE: Local = Local {
    comm_id: CommId(0x0b),
    ca_guid: Guid(0xbbbb_0000_0000_0001),
    transaction: 0x2_0000_000b,
    packet_lifetime: 16,
};

/// 4.096 us << 20, and twice 4.096 us << 16: what a kernel's REQ asks for.
pub(crate) const INTERVAL: Duration = Duration::from_nanos((4096 << 20) + 2 * (4096 << 16));

/// As kernels fill it.
pub(crate) fn req() -> Req {
    Req {
        service_id: ServiceId::new(PortSpace::Tcp, 7471),
        local_qpn: Qpn::new(0x11),
        responder_resources: 3,
        initiator_depth: 5,
        remote_cm_response_timeout: 20,
        local_cm_response_timeout: 20,
        starting_psn: Psn::new(0x111111),
        retry_count: 6,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        path_mtu: 3,
        flow_control: true,
        primary: Path { ack_timeout: 17, hop_limit: 64, ..Path::default() },
        ..Req::default()
    }
}

pub(crate) fn rep() -> Rep {
    Rep {
        local_qpn: Qpn::new(0x22),
        responder_resources: 4,
        initiator_depth: 2,
        starting_psn: Psn::new(0x222222),
        target_ack_delay: 15,
        rnr_retry_count: 1,
        srq: true,
        ..Rep::default()
    }
}

/// `secs` seconds after the origin.
pub(crate) fn at(secs: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(secs)
}

/// Everything it wants to send.
pub(crate) fn sent(end: &mut Connection) -> Vec<Datagram> {
    std::iter::from_fn(|| end.poll_transmit()).collect()
}

/// The names of everything it wants to send.
pub(crate) fn names(end: &mut Connection) -> Vec<&'static str> {
    sent(end).iter().map(|datagram| datagram.message.name()).collect()
}

/// All its events.
pub(crate) fn events(end: &mut Connection) -> Vec<Event> {
    std::iter::from_fn(|| end.poll_event()).collect()
}

/// The only message it wants to send, encoded and decoded as on the wire.
pub(crate) fn one(end: &mut Connection) -> Datagram {
    let all = sent(end);
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(Datagram::parse(&all[0].emit()), Ok(all[0]));
    all[0]
}

/// An active and a passive side.
pub(crate) struct Both {
    pub(crate) active: Connection,
    pub(crate) passive: Connection,
}

/// The REQ has arrived.
pub(crate) fn requested() -> Both {
    let mut active = Connection::connect(Instant::ZERO, ACTIVE, &req(), 0);
    let passive = Connection::requested(PASSIVE, &one(&mut active)).unwrap();
    Both { active, passive }
}

/// The REP, which is returned, is on its way.
pub(crate) fn accepted() -> (Both, Datagram) {
    let mut both = requested();
    both.passive.accept(Instant::ZERO, &rep(), 0).unwrap();
    let rep = one(&mut both.passive);
    (both, rep)
}

/// The RTU, which is returned, is on its way.
pub(crate) fn confirmed() -> (Both, Datagram) {
    let (mut both, rep) = accepted();
    both.active.handle(Instant::ZERO, &rep).unwrap();
    both.active.confirm(PrivateData::default()).unwrap();
    let rtu = one(&mut both.active);
    (both, rtu)
}

/// Both are established, and all events are taken.
pub(crate) fn established() -> Both {
    let (mut both, rtu) = confirmed();
    both.passive.handle(Instant::ZERO, &rtu).unwrap();
    events(&mut both.active);
    events(&mut both.passive);
    both
}

/// Where `directory` sends `message`.
pub(crate) fn route(directory: &Directory, message: impl Into<Message>) -> Route {
    directory.route(&Datagram { transaction: 7, modifier: 0, message: message.into() })
}
