//! Configuration files of any content: reading them ends with a policy or an error that names a line, and the policy answers queries.

use proptest::prelude::*;
use rxe_fabric::{Fabric, Options, Partitions, PathQuery, Port, QosPolicy};
use rxe_fabric::{
    Lanes, Tables,
    mad::{
        MAD_LEN, Mad, Node, PathAnswer, PortCounts, Subnet, answer_perf, answer_sa, answer_smp, sa_request,
    },
};

const WORDS: &[&str] = &[
    "qos-ulps",
    "end-qos-ulps",
    "default",
    "sdp",
    "any",
    "service-id",
    "target-port-guid",
    "port-num",
    "pkey",
    "port-groups",
    "port-group",
    "name",
    "use",
    "port-guid",
    "port-name",
    "partition",
    "node-type",
    "CA",
    "SELF",
    "end-port-group",
    "end-port-groups",
    "qos-levels",
    "qos-level",
    "sl",
    "mtu-limit",
    "end-qos-level",
    "end-qos-levels",
    "qos-match-rules",
    "qos-match-rule",
    "qos-level-name",
    "source",
    "qos-class",
    "end-qos-match-rule",
    "end-qos-match-rules",
    "qos-setup",
    "sl2vl-table",
    "service_id",
    "sl2vl",
    "vlarb_high",
    "Default=0x7fff",
    "ALL=full",
    "ALL_CAS",
    "SELF=both",
    "mgid=ff12:401b::1",
    "ipoib",
    "indx0",
    "defmember=",
    "qos",
    "TRUE",
    "qos_sl2vl",
    "qos_vlarb_low",
    "qos_max_vls",
    "0:4,1:2",
    "0",
    "1",
    "15",
    "16",
    "0x10-0xffff",
    "18446744073709551615",
    "99999999999999999999",
    ":",
    ":",
    ",",
    ";",
    "-",
    "*",
    "=",
    "#",
    "\"",
    "\n",
    "\n",
    "é",
    "\u{0}",
    "\r\n",
    "\t",
    " ",
];

fn check(text: &str) {
    let lines = text.lines().count() + 1;
    let options = match Options::parse(text) {
        Ok((options, _)) => options,
        Err(error) => {
            assert!((1..=lines).contains(&error.line), "{error}");
            Options { qos: true, ..Options::default() }
        }
    };
    let policy = match QosPolicy::parse(text) {
        Ok((policy, _)) => Some(policy),
        Err(error) => {
            assert!((1..=lines).contains(&error.line) && !error.reason.is_empty(), "{error}");
            None
        }
    };
    let partitions = match Partitions::parse(text, text.len().is_multiple_of(2)) {
        Ok((partitions, _)) => partitions,
        Err(error) => {
            assert!((1..=lines).contains(&error.line), "{error}");
            Partitions::default()
        }
    };
    let fabric = Fabric::new(&options, policy, partitions);
    let (from, to) = (Port::new(1), Port::new(0x10));
    for (service_id, pkey) in
        [(None, None), (Some(1), Some(0xffff)), (Some(u64::MAX), Some(0)), (Some(0), None)]
    {
        let query =
            PathQuery { from: &from, to: &to, service_id, qos_class: None, pkey, sl: None, mtu: 5, rate: 0 };
        if let Ok(path) = fabric.path(&query) {
            assert!(path.sl < 16 && path.vl < 15 && path.traffic_class & 3 == 0);
        }
    }
    let _ = fabric.partitions().table(&from);
}

proptest! {
    #[test]
    fn words_of_the_grammars_in_any_order(words in prop::collection::vec(prop::sample::select(WORDS), 0..60), glue in "[ \n]?") {
        check(&words.join(&glue));
        check(&words.join(" "));
    }

    #[test]
    fn any_text(text in "\\PC{0,200}") {
        check(&text);
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        check(&String::from_utf8_lossy(&bytes));
    }
}

proptest! {
    /// Whatever a datagram holds, it is answered by one of its class, or not at all.
    #[test]
    fn datagrams_are_answered_or_not(
        bytes in proptest::collection::vec(any::<u8>(), MAD_LEN),
        class in prop_oneof![Just(1_u8), Just(0x81), Just(3), Just(4), any::<u8>()],
        method in prop_oneof![Just(1_u8), Just(2), Just(0x12), any::<u8>()],
        attribute in prop_oneof![0_u8..0x40, any::<u8>()],
        lid in prop_oneof![0_u16..12, any::<u16>()],
        others in 0_u16..300,
    ) {
        let mut mad = Mad(bytes.try_into().unwrap());
        (mad.0[1], mad.0[3], mad.0[16], mad.0[17]) = (class, method, 0, attribute);
        let node = |lid: u16| Node { guid: lid.into(), lid, gid: [0; 16], name: "x".repeat(usize::from(lid)) };
        let (lanes, tables) = (Lanes::default(), Tables::default());
        let subnet = Subnet {
            own: node(1),
            netdev: "eth0".to_owned(),
            is_active: true,
            mtu: 3,
            pkeys: &[0xffff],
            lanes: &lanes,
            tables: &tables,
            others: (2..2 + others).map(node).collect(),
            model: (1, 1),
            revision: 0x100,
        };
        let _ = sa_request(&mad);
        let counted = answer_perf(&mad, &PortCounts::default()).map(|(mad, _)| mad);
        for answer in answer_smp(&mad, lid, &subnet).into_iter().chain(counted) {
            prop_assert!(answer.is_response() && answer.tid() == mad.tid());
        }
        if let Some(answer) = answer_sa(&mad, &subnet, &[PathAnswer::default()]) {
            prop_assert!((56..=15 * 1024).contains(&answer.len()));
        }
    }
}
