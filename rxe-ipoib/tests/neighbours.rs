//! The neighbour table: asking, waiting, doubting, and its bounds.

use rxe_ipoib::proto::{
    address::LinkAddress,
    neighbours::{
        Action, MOST_NEIGHBOURS, MOST_WAITING, MOST_WAITING_IN_ALL, Neighbours, REACHABLE, RETRANSMIT, TRIES,
    },
};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

const IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2));
const NOW: Duration = Duration::from_secs(100);

fn link(number: u16) -> LinkAddress {
    LinkAddress { connected: false, qpn: 17, gid: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, number) }
}

fn ip(number: u32) -> IpAddr {
    Ipv4Addr::from(0x0a00_0000 + number).into()
}

type Table = Neighbours<u32>;

fn actions(table: &mut Table) -> Vec<Action<u32>> {
    std::iter::from_fn(|| table.poll_action()).collect()
}

fn state(table: &Table, now: Duration) -> &'static str {
    table.iter(now).find(|one| one.ip == IP).map_or("none", |one| one.state)
}

#[test]
fn packets_wait_for_the_answer() {
    let mut table = Table::default();
    assert_eq!(table.find(NOW, IP), None);
    table.wait(NOW, IP, 1).unwrap();
    table.wait(NOW, IP, 2).unwrap();
    assert_eq!(actions(&mut table), [Action::Ask { ip: IP, last: None }]);
    assert_eq!(table.poll_timeout(), Some(NOW + RETRANSMIT));
    table.heard_reply(NOW, IP, link(1), true, true);
    let to = link(1);
    assert_eq!(actions(&mut table), [Action::Release { packet: 1, to }, Action::Release { packet: 2, to }]);
    assert_eq!((table.find(NOW, IP), table.poll_timeout()), (Some(to), None));
    assert_eq!(state(&table, NOW), "REACHABLE");
}

#[test]
fn nobody_answers() {
    let mut table = Table::default();
    table.wait(NOW, IP, 1).unwrap();
    let mut asked = actions(&mut table).len();
    let now = loop {
        let now = table.poll_timeout().unwrap();
        table.handle_timeout(now);
        match actions(&mut table)[..] {
            [Action::Ask { ip: IP, last: None }] => asked += 1,
            [Action::Discard { packet: 1 }] => break now,
            ref other => panic!("{other:?}"),
        }
    };
    assert_eq!((asked, now), (usize::from(TRIES), NOW + RETRANSMIT * u32::from(TRIES)));
    assert_eq!((state(&table, now), table.poll_timeout()), ("none", None));
}

#[test]
fn what_was_not_confirmed_is_asked_for_when_it_is_used() {
    let mut table = Table::default();
    table.heard_request(NOW, IP, link(1));
    assert_eq!((state(&table, NOW), table.poll_timeout()), ("STALE", None));
    let ask = || Action::Ask { ip: IP, last: Some(link(1)) };
    assert_eq!(table.find(NOW, IP), Some(link(1)), "packets go on meanwhile");
    assert_eq!(actions(&mut table), [ask()]);
    table.heard_reply(NOW, IP, link(1), true, true);
    let later = NOW + REACHABLE;
    assert_eq!(table.find(later - Duration::from_millis(1), IP), Some(link(1)));
    assert_eq!(actions(&mut table), [], "it was confirmed lately");
    assert_eq!(table.find(later, IP), Some(link(1)));
    assert_eq!(actions(&mut table), [ask()]);
    // It is silent: first it is asked itself, then the whole group.
    let mut asked = Vec::new();
    for _ in 0..TRIES {
        table.handle_timeout(table.poll_timeout().unwrap());
        asked.extend(actions(&mut table));
    }
    assert_eq!(asked, [ask(), ask(), Action::Ask { ip: IP, last: None }]);
    assert_eq!((table.find(later, IP), state(&table, later)), (None, "INCOMPLETE"));
    table.wait(later, IP, 7).unwrap();
    // It has moved.
    table.heard_request(later, IP, link(2));
    assert_eq!(actions(&mut table), [Action::Release { packet: 7, to: link(2) }]);
}

#[test]
fn doubt_from_elsewhere() {
    let mut table = Table::default();
    table.wait(NOW, IP, 1).unwrap();
    table.heard_reply(NOW, IP, link(1), true, true);
    table.doubt(link(2));
    assert_eq!(state(&table, NOW), "REACHABLE");
    table.doubt(link(1));
    assert_eq!((table.find(NOW, IP), state(&table, NOW)), (Some(link(1)), "PROBE"));
}

#[test]
fn what_nobody_asked_for() {
    let mut table = Table::default();
    table.heard_reply(NOW, IP, link(1), true, true);
    assert_eq!(state(&table, NOW), "none", "answers to nobody are not kept");
    table.wait(NOW, IP, 1).unwrap();
    table.heard_reply(NOW, IP, link(1), true, true);
    // Somebody else claims the address without wanting to replace it: doubt, no change.
    table.heard_reply(NOW, IP, link(2), false, false);
    assert_eq!((table.find(NOW, IP), state(&table, NOW)), (Some(link(1)), "PROBE"));
    table.heard_reply(NOW, IP, link(1), true, true);
    table.heard_reply(NOW, IP, link(2), false, true);
    assert_eq!((state(&table, NOW), table.find(NOW, IP)), ("STALE", Some(link(2))), "told to all");
}

#[test]
fn waiting_is_bounded() {
    let mut table = Table::default();
    let taken = (0..100).filter(|&packet| table.wait(NOW, IP, packet).is_ok()).count();
    assert_eq!(taken, MOST_WAITING);
    let more = (1..100).filter(|&number| table.wait(NOW, ip(number), number).is_ok()).count();
    assert_eq!(more, MOST_WAITING_IN_ALL - MOST_WAITING);
    actions(&mut table);
    assert_eq!(table.wait(NOW, ip(5000), 5), Err(5), "the packet comes back");
    assert_eq!(
        actions(&mut table),
        [Action::Ask { ip: ip(5000), last: None }],
        "and its address is asked for"
    );
    table.heard_reply(NOW, ip(5000), link(9), true, true);
    assert_eq!(table.find(NOW, ip(5000)), Some(link(9)));
    // All come out again.
    let mut left = 0;
    while let Some(due) = table.poll_timeout() {
        table.handle_timeout(due);
        left += actions(&mut table).iter().filter(|action| matches!(action, Action::Discard { .. })).count();
    }
    assert_eq!(left, MOST_WAITING_IN_ALL);
    assert!(table.wait(NOW, IP, 1).is_ok());
}

#[test]
fn neighbours_are_bounded() {
    let mut table = Table::default();
    table.wait(NOW, IP, 1).unwrap();
    for number in 0..3 * MOST_NEIGHBOURS as u32 {
        table.heard_request(NOW + Duration::from_millis(number.into()), ip(number), link(1));
    }
    assert_eq!(table.iter(NOW).count(), MOST_NEIGHBOURS);
    assert_eq!(state(&table, NOW), "INCOMPLETE", "whoever is waited for stays");
    assert_eq!(table.find(NOW, ip(0)), None, "the oldest is gone");
    assert!(table.find(NOW, ip(3 * MOST_NEIGHBOURS as u32 - 1)).is_some());
}

/// Whatever comes in whatever order: packets are neither lost nor doubled, and the table stays within its bounds.
#[test]
fn nothing_is_lost() {
    let mut seed = 7_u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    let (mut table, mut now) = (Table::default(), NOW);
    let mut inside = std::collections::HashSet::new();
    for packet in 0..100_000 {
        let about = ip(random(40) as u32);
        let from = link(random(3) as u16 + 1);
        match random(6) {
            0 | 1 => {
                if table.find(now, about).is_none() && table.wait(now, about, packet).is_ok() {
                    assert!(inside.insert(packet));
                }
            }
            2 => table.heard_request(now, about, from),
            3 => table.heard_reply(now, about, from, random(2) == 0, random(2) == 0),
            _ => {
                now += Duration::from_millis(random(900));
                table.handle_timeout(now);
            }
        }
        for action in actions(&mut table) {
            match action {
                Action::Release { packet, .. } | Action::Discard { packet } => {
                    assert!(inside.remove(&packet))
                }
                Action::Ask { .. } => {}
            }
        }
        assert!(
            inside.len() <= MOST_WAITING_IN_ALL
                && table.poll_timeout().is_none_or(|due| due > now - REACHABLE)
        );
    }
    while let Some(due) = table.poll_timeout() {
        table.handle_timeout(due);
        for action in actions(&mut table) {
            if let Action::Discard { packet } = action {
                assert!(inside.remove(&packet));
            }
        }
    }
    assert!(inside.is_empty(), "{inside:?}");
}
