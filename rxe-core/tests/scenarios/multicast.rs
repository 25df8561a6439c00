//! Multicast: every attached queue pair gets its copy, nobody else does.

use crate::bench::Bench;
use rxe_core::{
    num::{Qkey, Qpn},
    qp::{QpState, QpType},
    testing::{ConnectOptions, PairConfig},
    work::{AddressVector, RecvWr, SendOp, SendWr, UdDest, WcStatus},
};
use std::net::IpAddr;

fn group(ipv6: bool) -> IpAddr {
    if ipv6 { "ff0e::1234".parse() } else { "239.1.2.3".parse() }.expect("a group")
}

#[test]
fn a_copy_for_each_member() {
    for ipv6 in [false, true] {
        let options = ConnectOptions { qp_type: QpType::Ud, ..ConnectOptions::default() };
        let mut bench = Bench::with(PairConfig { name: "multicast", ipv6, ..PairConfig::default() }, options);
        let mut members = vec![bench.qpn(1)];
        for _ in 0..3 {
            let qpn = bench.pair.create_qp(1, &options);
            bench.pair.bring_up(1, qpn, Qpn::new(2), &options, QpState::Rts);
            members.push(qpn);
        }
        for &qpn in &members[..3] {
            bench.pair.sides[1].endpoint.attach_multicast(qpn, group(ipv6)).expect("attached");
        }
        for (index, &qpn) in members.iter().enumerate() {
            let sges = [bench.sge(1, 100 * index as u64, 100)];
            bench.pair.post_recv(1, qpn, &RecvWr { wr_id: index as u64, sges: &sges }).expect("posted");
        }
        let data = bench.fill(0, 0, 50, 1);
        let av = AddressVector { dst: group(ipv6), ..bench.pair.path(0) };
        let dest = UdDest { av, remote_qpn: Qpn::MULTICAST, remote_qkey: Qkey(0x1111_1111), pkey: None };
        let sges = [bench.sge(0, 0, 50)];
        let wr = SendWr { dest: Some(dest), ..SendWr::new(1, SendOp::Send, &sges) };
        let qpn = bench.qpn(0);
        bench.pair.post_send(0, qpn, &wr).expect("posted");
        bench.pair.run_until_idle();
        let mut received = bench.received_statuses(1);
        received.sort_by_key(|&(wr_id, _)| wr_id);
        assert_eq!(received, (0..3).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>());
        for index in 0..3 {
            assert_eq!(bench.bytes(1, 100 * index + 40, 50), data);
        }
        for &qpn in &members[..3] {
            bench.pair.sides[1].endpoint.detach_multicast(qpn, group(ipv6)).expect("detached");
        }
        bench.pair.post_send(0, qpn, &wr).expect("posted");
        bench.pair.run_until_idle();
        assert!(bench.received(1).is_empty());
        assert_eq!(bench.pair.sides[1].endpoint.port_stats().dropped_no_group, 1);
    }
}
