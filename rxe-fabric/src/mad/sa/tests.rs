use super::*;
use crate::{arbiter::Tables, lanes::Lanes, mad::Node};

fn subnet<'a>(lanes: &'a Lanes, tables: &'a Tables, others: u16) -> Subnet<'a> {
    let node = |lid: u16| Node { guid: u64::from(lid), lid, gid: [0; 16], name: format!("host {lid}") };
    Subnet {
        own: node(1),
        netdev: "eth0".to_owned(),
        is_active: true,
        mtu: 3,
        pkeys: &[0xffff],
        lanes,
        tables,
        others: (2..2 + others).map(node).collect(),
        model: (1, 1),
        revision: 0x01_0203,
    }
}

fn ask(method: u8, attribute: u16, mask: u64) -> Mad {
    let mut mad = Mad([0; MAD_LEN]);
    mad.0[..4].copy_from_slice(&[1, class::SA, VERSION, method]);
    put(&mut mad.0, 128, 16, attribute.into());
    put(&mut mad.0, 384, 64, mask);
    mad
}

fn count(answer: &[u8]) -> usize {
    (answer.len() - RECORDS) / (get(answer, 352, 16) as usize * 8)
}

#[test]
fn records_are_chosen_by_the_mask() {
    let (lanes, tables) = (Lanes::default(), Tables::default());
    let subnet = subnet(&lanes, &tables, 3);
    let all = answer(&ask(method::GET_TABLE, NODE_RECORD, 0), &subnet, &[]).unwrap();
    assert_eq!((count(&all), all[3]), (5, 0x92));
    let mut one = ask(method::GET_TABLE, NODE_RECORD, 1);
    put(&mut one.0[RECORDS..], 0, 16, 3);
    let found = answer(&one, &subnet, &[]).unwrap();
    assert_eq!((count(&found), &found[RECORDS + 44..RECORDS + 50]), (1, &b"host 3"[..]));
    one.0[3] = method::GET;
    assert_eq!(answer(&one, &subnet, &[]).unwrap().len(), MAD_LEN);
    put(&mut one.0[RECORDS..], 0, 16, 77);
    let nobody = Mad::of(&answer(&one, &subnet, &[]).unwrap()).unwrap();
    assert_eq!(nobody.status(), status::NO_RECORDS);
    // By the type: four hosts.
    let mut hosts = ask(method::GET, NODE_RECORD, 1 << 4);
    put(&mut hosts.0[RECORDS..], 48, 8, 1);
    let several = Mad::of(&answer(&hosts, &subnet, &[]).unwrap()).unwrap();
    assert_eq!(several.status(), status::TOO_MANY_RECORDS);

    // Ports of the four hosts, and those of the switch with its own.
    let ports = answer(&ask(method::GET_TABLE, PORT_INFO_RECORD, 0), &subnet, &[]).unwrap();
    assert_eq!(count(&ports), 4 + 1 + 4);
    let mut managers = ask(method::GET_TABLE, PORT_INFO_RECORD, 1 << CAPABILITY_COMPONENT);
    put(&mut managers.0, 160, 32, AT_LEAST.into());
    put(&mut managers.0[RECORDS..], PORT_CAPABILITIES, 32, 2);
    assert_eq!(count(&answer(&managers, &subnet, &[]).unwrap()), 1);
    assert_eq!(count(&answer(&ask(method::GET_TABLE, SM_INFO_RECORD, 0), &subnet, &[]).unwrap()), 1);
}

#[test]
fn a_component_chooses_records_or_is_refused() {
    let (lanes, tables) = (Lanes::default(), Tables::default());
    let subnet = subnet(&lanes, &tables, 3);
    let mut named = ask(method::GET_TABLE, NODE_RECORD, 1 << DESCRIPTION_COMPONENT);
    put_bytes(&mut named.0, RECORDS + DESCRIPTION.start, b"host 3");
    let found = answer(&named, &subnet, &[]).unwrap();
    assert_eq!((count(&found), &found[RECORDS + 44..RECORDS + 50]), (1, &b"host 3"[..]));

    let mut manager = ask(method::GET, SM_INFO_RECORD, 1);
    put(&mut manager.0[RECORDS..], 0, 16, 2);
    let told = |mad: &Mad| Mad::of(&answer(mad, &subnet, &[]).unwrap()).unwrap().status();
    assert_eq!(told(&manager), status::NO_RECORDS);
    put(&mut manager.0[RECORDS..], 0, 16, 1);
    assert_eq!(told(&manager), 0);

    for (attribute, mask) in [(NODE_RECORD, 1 << 15), (PORT_INFO_RECORD, 1 << 8), (SM_INFO_RECORD, 1 << 7)] {
        assert_eq!(told(&ask(method::GET, attribute, mask)), status::INVALID_REQUEST);
    }
}

#[test]
fn what_there_is_not_is_said() {
    let (lanes, tables) = (Lanes::default(), Tables::default());
    let subnet = subnet(&lanes, &tables, 0);
    let status_of = |mad: &Mad| Mad::of(&answer(mad, &subnet, &[]).unwrap()).unwrap().status();
    // Multicast groups, old versions, and anything to be set.
    assert_eq!(status_of(&ask(method::GET_TABLE, 0x38, 0)), status::UNSUPPORTED);
    assert_eq!(status_of(&ask(method::SET, 0x31, 0)), status::UNSUPPORTED);
    let mut old = ask(method::GET, NODE_RECORD, 0);
    old.0[2] = 1;
    assert_eq!(status_of(&old), status::BAD_VERSION);
    assert_eq!(status_of(&ask(method::GET, CLASS_PORT_INFO, 0)), 0);
    // Any request is answered, because its sender waits; reports and traps are not.
    for (asked, told_by) in
        [(method::GET_TRACE_TABLE, 0x92), (method::GET_MULTI, 0x94), (method::DELETE, 0x95)]
    {
        let mut mad = ask(asked, 0x31, 0);
        mad.0[SEGMENT].fill(1);
        let told = Mad::of(&answer(&mad, &subnet, &[]).unwrap()).unwrap();
        assert_eq!((told.status(), told.method()), (status::UNSUPPORTED_METHOD, told_by));
        assert_eq!(told.0[SEGMENT], [0; 12]);
    }
    assert_eq!(answer(&ask(0x06, NODE_RECORD, 0), &subnet, &[]), None);
}

#[test]
fn a_path_is_asked_for_and_told() {
    let mut mad = ask(method::GET_TABLE, PATH_RECORD, 1 | 1 << 2 | 1 << 5 | 1 << 13 | 1 << 14 | 1 << 15);
    let record = &mut mad.0[RECORDS..];
    put(record, 0, 64, 0x0106_1c06);
    record[8..24].copy_from_slice(&[9; 16]);
    put(record, 336, 16, 5);
    put(record, 400, 16, 0x8012);
    put(record, 416, 12, 0xabc);
    put(record, 428, 4, 3);
    let SaRequest::Paths(asked) = request(&mad) else { panic!("no paths") };
    let wanted = PathRequest {
        service_id: Some(0x0106_1c06),
        from: Some(Destination::Lid(5)),
        to: Some(Destination::Gid([9; 16])),
        pkey: Some(0x8012),
        qos_class: Some(0xabc),
        sl: Some(3),
    };
    assert_eq!(asked, wanted);
    assert_eq!(request(&ask(method::SET, PATH_RECORD, 0)), SaRequest::Other);

    let (lanes, tables) = (Lanes::default(), Tables::default());
    let path = PathAnswer {
        service_id: 7,
        lids: (1, 2),
        sl: 3,
        mtu: 4,
        packet_life: 16,
        pkey: 0x8012,
        ..PathAnswer::default()
    };
    let told = answer(&mad, &subnet(&lanes, &tables, 1), &[path]).unwrap();
    let record = &told[RECORDS..];
    assert_eq!(
        (told.len(), get(record, 0, 64), get(record, 428, 4), get(record, 432, 8)),
        (RECORDS + 64, 7, 3, 0x84)
    );
    assert_eq!((get(record, 440, 8), get(record, 448, 8), get(&told, 256, 32)), (0, 0x90, 84));
    assert_eq!(first_segment(&mad, &told).status(), 0);
}

/// What OpenSM answers for the same selectors (osm_sa_path_record.c).
#[test]
fn paths_are_within_the_bounds_of_the_query() {
    let (lanes, tables) = (Lanes::default(), Tables::default());
    let subnet = subnet(&lanes, &tables, 1);
    // MTU 1024, 10 Gbit/s, 4.096 us << 16.
    let path = PathAnswer { mtu: 3, rate: 3, packet_life: 16, ..PathAnswer::default() };
    let told = |bound: &Bound, path: PathAnswer, selector: u64, value: u64| {
        let mut mad = ask(method::GET, PATH_RECORD, 3 << bound.component);
        put(&mut mad.0[RECORDS..], bound.at, 2, selector);
        put(&mut mad.0[RECORDS..], bound.at + 2, 6, value);
        let told = Mad::of(&answer(&mad, &subnet, &[path]).unwrap()).unwrap();
        (told.status(), get(&told.0[RECORDS..], bound.at + 2, 6))
    };
    for (bound, selector, value, wanted) in [
        (&MTU, 0, 2, Some(3)),
        (&MTU, 0, 3, None),
        (&MTU, 1, 3, Some(2)),
        (&MTU, 1, 5, Some(3)),
        (&MTU, 1, 1, None),
        (&MTU, 2, 4, None),
        (&MTU, 2, 1, Some(1)),
        (&MTU, 3, 5, Some(3)),
        // Rates by what their codes stand for: 5 is 5 Gbit/s, 11 is 14.
        (&RATE, 0, 5, Some(3)),
        (&RATE, 0, 11, None),
        (&RATE, 1, 3, Some(5)),
        (&RATE, 2, 3, Some(3)),
        (&RATE, 2, 5, None),
        (&PACKET_LIFE, 1, 10, Some(9)),
        (&PACKET_LIFE, 2, 20, None),
    ] {
        let (refusal, code) = told(bound, path, selector, value);
        let found = (refusal == 0).then_some(code);
        assert_eq!(found, wanted, "component {}: {selector}, {value}", bound.component);
        assert!(refusal == 0 || refusal == status::NO_RECORDS);
    }
    assert_eq!(told(&RATE, PathAnswer { rate: 0, ..path }, 0, 9), (0, 0), "Ethernet tells no rate");
    // A selector alone is no bound.
    let mut mad = ask(method::GET, PATH_RECORD, 1 << MTU.component);
    put(&mut mad.0[RECORDS..], MTU.at, 8, 5);
    assert_eq!(Mad::of(&answer(&mad, &subnet, &[path]).unwrap()).unwrap().status(), 0);
}

#[test]
fn tables_are_whole_or_refused() {
    let (lanes, tables) = (Lanes::default(), Tables::default());
    // As many hosts as the service shows.
    let wide = subnet(&lanes, &tables, 128);
    let mad = ask(method::GET_TABLE, NODE_RECORD, 0);
    let all = answer(&mad, &wide, &[]).unwrap();
    assert!(all.len() <= MOST);
    assert_eq!(count(&all), 2 + 128);
    assert_eq!(first_segment(&mad, &all).status(), status::NO_RESOURCES, "for another host");
    // A record for each port of 128 hosts and of the switch has no room.
    let refused = |subnet: &Subnet<'_>, attribute| {
        let told = answer(&ask(method::GET_TABLE, attribute, 0), subnet, &[]).unwrap();
        Mad::of(&told).is_some_and(|mad| mad.status() == status::NO_RESOURCES)
    };
    assert!(refused(&wide, PORT_INFO_RECORD));
    let endless = subnet(&lanes, &tables, 1000);
    assert!(refused(&endless, NODE_RECORD) && refused(&endless, PORT_INFO_RECORD));
}
