//! Tables as Linux prints them (6.12), on a little-endian machine.

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
#[cfg(target_endian = "little")]
fn tables_of_the_kernel() {
    let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
        ib0\t0000090A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
        ib0\t0000140A\t0500090A\t0003\t0\t0\t0\t0000FFFF\t0\t0\t0\n";
    let routes: Vec<_> = routes.lines().filter_map(|line| route_v4(line, "ib0")).collect();
    let mut local = Local { addresses: vec![(ip("10.9.0.1"), 24), (ip("fe80::1"), 64)], ..Local::default() };
    local.routes = routes;
    assert_eq!(local.routes.len(), 2);
    assert_eq!(local.next_hop(ip("10.9.0.2")), ip("10.9.0.2"));
    assert_eq!(local.next_hop(ip("10.20.3.4")), ip("10.9.0.5"), "by the gateway");
    assert_eq!(local.next_hop(ip("10.99.3.4")), ip("10.99.3.4"), "no route: it must be here");

    let line = "fd000000000000000000000000000000 40 00000000000000000000000000000000 00 \
        fe800000000000000000000000000005 00000400 00000001 00000000 00000003      ib0";
    assert_eq!(
        route_v6(line, "ib0"),
        Some(Route { network: ip("fd00::"), prefix: 64, gateway: ip("fe80::5") })
    );
    assert_eq!((route_v6(line, "ib1"), route_v6("", "ib0")), (None, None));

    let igmp = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
        1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n\
        7\tib0       :     2      V3\n\t\t\t\tFB0000E0     1 0:00000000\t\t0\n\t\t\t\t010000E0     1 0:00000000\t\t0\n";
    assert_eq!(groups_v4(igmp, "ib0"), [ip("224.0.0.251"), ip("224.0.0.1")]);
    assert!(groups_v4(igmp, "ib").is_empty());
    let line = "7    ib0             ff0200000000000000000001ff000001     1 00000004 0";
    assert_eq!(group_v6(line, "ib0"), Some(ip("ff02::1:ff00:1")));
}

#[test]
fn addresses() {
    let local = Local {
        addresses: vec![(ip("10.9.0.1"), 24), (ip("fd00::1"), 64), (ip("fe80::1"), 64)],
        ..Local::default()
    };
    assert!(local.has(ip("10.9.0.1")) && !local.has(ip("10.9.0.2")));
    assert!(local.is_broadcast([10, 9, 0, 255].into()) && !local.is_broadcast([10, 9, 1, 255].into()));
    assert_eq!(local.source_for(ip("fe80::7")), Some(ip("fe80::1")));
    assert_eq!(local.source_for(ip("10.10.0.1")), Some(ip("10.9.0.1")));
    assert_eq!(Local::default().source_for(ip("10.10.0.1")), None);
    for (prefix, inside) in [(0, true), (8, true), (9, false), (32, false), (200, false)] {
        assert_eq!(is_in(ip("10.128.0.1"), ip("10.0.0.0"), prefix), inside, "{prefix}");
    }
}
