//! The base transport header: version, partition, destination, service, reserved bits (IBTA vol. 1, 9.2 and 9.6.1.1).

use crate::{
    bench::Bench,
    case::{Case, Outcome, check, must, named, numbered, same, should, template},
    conn::{Conn, pattern},
    dut::{Feature, Kind, State, WrOp},
    wire::{Packet, op},
};

/// Adds the cases of this theme.
pub(super) fn add(all: &mut Vec<Case>) {
    all.extend_from_slice(CASES);
    all.extend_from_slice(STATES);
    all.extend_from_slice(TAGS);
    all.extend(TVER.family(numbered([1, 2, 7, 15]), |b, tver| dropped(b, |packet| packet.tver(tver as u8))));
    let members =
        [0x0001, 0x8001, 0x7ffe, 0x0000].map(|key| (key, format!("{key:04X}"), format!("{key:#06x}")));
    all.extend(PKEY.family(members, |b, key| dropped(b, |packet| packet.pkey(key as u16))));
    let members = |codes: &[u32]| -> Vec<_> {
        codes.iter().map(|&code| (code, format!("{code:02X}"), format!("{code:#04x}"))).collect()
    };
    all.extend(RESERVED.family(members(&[0x15, 0x18, 0x1b, 0x1e, 0x1f]), reserved_opcode));
    all.extend(OPCODE.family(members(&[0x44, 0x80, 0xc4, 0xff]), unknown_opcode));
    let other = [
        (0x24, "UC", "UC SEND"),
        (0x2a, "UCW", "UC WRITE"),
        (0x64, "UD", "UD SEND"),
        (0xa4, "XRC", "XRC SEND"),
    ];
    all.extend(SERVICE.family(named(other), unknown_opcode));
}

const TVER: Case =
    must("BTH.TVER", "A packet of transport version {} is dropped", "IBTA 9.6.1.1.1", template);
const PKEY: Case = must(
    "BTH.PKEY",
    "A packet of partition {} is dropped where only the default one is known",
    "IBTA 9.6.1.1.3",
    template,
);
const OPCODE: Case = must(
    "BTH.OPCODE",
    "A reliable queue pair neither answers nor obeys the undefined opcode {}",
    "IBTA 9.6.1.1.4, table 38",
    template,
);
const RESERVED: Case = must(
    "BTH.OPCODE",
    "A reliable queue pair does not obey the reserved opcode {}: it drops it, or refuses it as an invalid request",
    "IBTA 9.6.1.1.4, 9.7.4.1.2, table 38",
    template,
);
const SERVICE: Case = must("BTH.SERVICE", "A reliable queue pair drops a {}", "IBTA 9.6.1.1.4", template);

fn dropped(b: &mut Bench, change: impl Fn(Packet) -> Packet) -> Outcome {
    let mut c = b.rc()?;
    c.ignores(change(c.write(0, &pattern(7, 8))))?;
    c.holds(0, &[0; 8])
}

fn taken(b: &mut Bench, change: impl Fn(Packet) -> Packet) -> Outcome {
    let mut c = b.rc()?;
    let psn = c.tx(change(c.write(0, &pattern(7, 8))))?;
    c.acked(psn)?;
    c.holds(0, &pattern(7, 8))
}

/// A packet of this opcode as it is, without the bits of the queue pair's service.
fn strange(c: &Conn, code: u32) -> Packet {
    let (va, rkey) = c.at(0);
    Packet::of(code as u8).reth(va, rkey, 8).qkey(0x1111_1111).data(vec![7; 8]).ask()
}

/// The opcode belongs to the queue pair's service, but means nothing there. So a responder may take it for a request that it
/// does not support, or for no packet at all.
fn reserved_opcode(b: &mut Bench, code: u32) -> Outcome {
    let mut c = b.rc()?;
    let posted = c.post_recv(64)?;
    let psn = c.psn;
    c.raw(strange(&c, code))?;
    // A packet that was dropped does not move the PSN: so the first answer is one to this PSN, whichever of the two it is.
    c.tx(c.write(16, &[5; 8]))?;
    let got = c.rx(Packet::of(op::ACK).psn(psn))?;
    if got.syndrome == Some(0x61) {
        c.quiet()?;
        c.in_state(State::Err)?;
        c.holds(0, &[0; 24])?;
        let wc = c.wc(Kind::Recv)?;
        return check(wc.status != "SUCCESS", || "it took the receive".into());
    }
    check(got.syndrome.is_some_and(|syndrome| syndrome < 0x20), || {
        format!("expected nothing or the NAK of an invalid request, got {}", got.summary())
    })?;
    c.holds(0, &[[0; 8], [0; 8], [5; 8]].concat())?;
    takes_a_send(&mut c, posted.wr_id)
}

fn unknown_opcode(b: &mut Bench, code: u32) -> Outcome {
    let mut c = b.rc()?;
    let posted = c.post_recv(64)?;
    c.ignores(strange(&c, code))?;
    c.holds(0, &[0; 8])?;
    takes_a_send(&mut c, posted.wr_id)
}

/// The receive is still there.
fn takes_a_send(c: &mut Conn, posted: u64) -> Outcome {
    let psn = c.tx(Packet::of(op::SEND_ONLY).data(vec![1; 4]).ask())?;
    c.acked(psn)?;
    c.done(Kind::Recv, posted).map(|_| ())
}

const TAGS: &[Case] = &[
    must(
        "VLAN.PRIORITY.1",
        "A request with a priority tag (VLAN 0) is taken as one without",
        "IEEE 802.1Q 6.9, 9.6",
        |b| {
            let mut c = b.rc()?;
            let psn = c.tx(c.write(0, &[3; 8]).vlan(0xa000))?;
            c.acked(psn)?;
            c.holds(0, &[3; 8])
        },
    )
    .needs(&[Feature::Ethernet]),
    must(
        "VLAN.OTHER.1",
        "A request of a VLAN that the interface is not in is dropped",
        "IEEE 802.1Q 8.6.2",
        |b| dropped(b, |packet| packet.vlan(42)),
    )
    .needs(&[Feature::Ethernet]),
];

const CASES: &[Case] = &[
    must("BTH.PKEY.MEMBER", "A limited member of the partition is heard by a full one", "IBTA 10.9.3", |b| {
        taken(b, |packet| packet.pkey(0x7fff))
    }),
    must(
        "BTH.MIGREQ.0",
        "A packet with MigReq 0 is taken where paths do not migrate",
        "kernel rxe sends 0",
        |b| taken(b, |packet| packet.migreq(false)),
    ),
    must("BTH.MIGREQ.1", "A packet with MigReq 1 is taken", "IBTA 17.2.8", |b| {
        taken(b, |packet| packet.migreq(true))
    }),
    must("BTH.RESERVED.6", "Reserved bits beside FECN and BECN are not looked at", "IBTA 9.2", |b| {
        taken(b, |packet| packet.resv6(0x15))
    }),
    must("BTH.RESERVED.7", "Reserved bits beside AckReq are not looked at", "IBTA 9.2", |b| {
        taken(b, |packet| packet.resv7(0x55))
    }),
    must("BTH.FECN.1", "A packet with FECN is taken", "IBTA A17.9", |b| taken(b, |packet| packet.fecn(true))),
    must("BTH.SE.1", "A solicited WRITE without immediate is a WRITE as any", "IBTA 9.2.3", |b| {
        taken(b, |packet| packet.solicited(true))
    }),
    must(
        "BTH.QPN.UNKNOWN",
        "A packet for a queue pair that does not exist is dropped",
        "IBTA 9.6.1.1.2",
        |b| {
            let mut c = b.rc()?;
            c.ignores(c.write(0, &[1; 8]).dest_qp(c.qp.qpn ^ 0x8))?;
            c.holds(0, &[0; 8])
        },
    ),
    must("BTH.QPN.ZERO", "A packet for queue pair 0 is dropped", "IBTA A17.4", |b| {
        dropped(b, |packet| packet.dest_qp(0))
    }),
    must("BTH.QPN.ALL", "A connected request for queue pair 0xffffff is dropped", "IBTA 9.6.1.1.2", |b| {
        dropped(b, |packet| packet.dest_qp(0xff_ffff))
    }),
    must("BTH.SOURCE.1", "A packet from another address than the peer's is dropped", "IBTA 9.6.1.2.2", |b| {
        let mut c = b.rc()?;
        let mut ends = c.world.borrow().ends();
        ends.src = match ends.src {
            std::net::IpAddr::V4(v4) => std::net::Ipv4Addr::from(u32::from(v4) ^ 0x40).into(),
            std::net::IpAddr::V6(v6) => std::net::Ipv6Addr::from(u128::from(v6) ^ 0x40).into(),
        };
        let packet = c.write(0, &[1; 8]).dest_qp(c.qp.qpn).psn(c.psn);
        c.world.borrow_mut().send_between(&packet, &ends)?;
        c.alive()?;
        c.holds(0, &[0; 8])
    })
    .needs(&[Feature::IpHeader]),
    must("BTH.RESPONSE.QPN", "Answers go to the queue pair that modify QP has named", "IBTA 9.6.1.2", |b| {
        let mut c = b.rc()?;
        let got = c.alive()?;
        same("the destination", got.dest_qp, Some(c.qpn))
    }),
    must("BTH.SE.2", "Requests posted without the solicited flag do not have the bit", "IBTA 9.2.3", |b| {
        let mut c = b.rc()?;
        c.post(WrOp::Send, 4)?;
        c.request(Packet::of(op::SEND_ONLY).solicited(false)).map(|_| ())
    }),
    must(
        "BTH.SE.3",
        "A SEND posted with the solicited flag has the bit in its last packet only",
        "IBTA 9.2.3, 11.4.1.1",
        |b| {
            let mut c = b.rc()?;
            c.post_with(WrOp::Send, 2000, &[crate::dut::Flag::Signaled, crate::dut::Flag::Solicited])?;
            c.request(Packet::of(op::SEND_FIRST).solicited(false))?;
            c.request(Packet::of(op::SEND_LAST).solicited(true)).map(|_| ())
        },
    ),
    should("BTH.TOS.1", "Packets have the traffic class of the address vector", "IBTA A17.4.5.2", |b| {
        let mut c = b.rc_with(|o| o.traffic_class = 0x6a)?;
        let got = c.alive()?;
        same("the TOS", got.tos, Some(0x6a))?;
        c.post(WrOp::Send, 4)?;
        let got = c.request(Packet::of(op::SEND_ONLY))?;
        same("the TOS", got.tos, Some(0x6a))
    }),
];

/// A queue pair in state `upto` answers nothing to a WRITE and places nothing in memory.
fn deaf(b: &mut Bench, upto: State) -> Outcome {
    let c = b.rc_with(|o| o.upto = upto)?;
    c.raw(c.write(0, &[1; 8]))?;
    c.quiet()?;
    c.holds(0, &[0; 8])
}

const STATES: &[Case] = &[
    must("QP.STATE.RESET.1", "A queue pair in RESET drops requests", "IBTA 10.3.1.1", |b| {
        deaf(b, State::Reset)
    }),
    must("QP.STATE.INIT.1", "A queue pair in INIT drops requests", "IBTA 10.3.1.2", |b| deaf(b, State::Init)),
    must("QP.STATE.RTR.1", "A queue pair in RTR answers requests", "IBTA 10.3.1.3", |b| {
        let mut c = b.rc_with(|o| o.upto = State::Rtr)?;
        let psn = c.tx(c.write(0, &[1; 8]))?;
        c.acked(psn)?;
        c.holds(0, &[1; 8])
    }),
    must("QP.STATE.ERR.1", "A queue pair in ERR drops requests", "IBTA 10.3.1.7", |b| {
        let mut c = b.rc()?;
        c.modify(&crate::dut::Change::to(State::Err))?;
        c.raw(c.write(0, &[1; 8]))?;
        c.quiet()?;
        c.holds(0, &[0; 8])
    }),
    must(
        "QP.STATE.RESET.2",
        "A queue pair that was reset starts with the PSNs of its new connection",
        "IBTA 10.3.1.1",
        |b| {
            let mut c = b.rc()?;
            c.alive()?;
            c.modify(&crate::dut::Change::to(State::Reset))?;
            c.options.psn = 0x77_0000;
            for state in [State::Init, State::Rtr, State::Rts] {
                c.step(state)?;
            }
            c.psn = 0x77_0000;
            let got = c.alive()?;
            same("the MSN", got.msn, Some(1))
        },
    ),
];
