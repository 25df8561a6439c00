use super::*;

fn read(text: &str) -> QosPolicy {
    QosPolicy::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}")).0
}

/// Service level of a path from GUID 1 to GUID `to`.
fn sl(policy: &QosPolicy, to: u64, service_id: Option<u64>, pkey: Option<u16>, qos_class: Option<u16>) -> u8 {
    let partitions = Partitions::default();
    let (from, to) = (Port::new(1), Port::new(to));
    let request = Request { from: &from, to: &to, service_id, qos_class, pkey, partitions: &partitions };
    policy.level(&request).0.sl
}

/// As seen with OpenSM 3.3.23.
#[test]
fn protocols_by_name() {
    let policy = read(
        "qos-ulps # all of them\n\
         default : 0\nsdp, port-num 10000-20000 : 1\nsdp : 2\nRDS:3\niser , port-num 900 : 4\niser: 5\n\
         any, service-id 0x6234-0x6240, 7 : 6\nany,pkey 0x8ABC : 1\nsrp,target-port-guid 0x77:7\n\
         ipoib:8\nany, source-target-port-guid 1,0x99:9\nend-qos-ulps",
    );
    for (service, level) in [
        (0x12710, 1),
        (0x11388, 2),
        (0x106_48ca, 3),
        (0x106_0384, 4),
        (0x106_0cbc, 5),
        (0x6236, 6),
        (7, 6),
        (0x6241, 0),
    ] {
        assert_eq!(sl(&policy, 2, Some(service), None, None), level, "{service:#x}");
    }
    assert_eq!(sl(&policy, 2, None, Some(0x0abc), None), 1);
    assert_eq!(sl(&policy, 2, None, Some(0xffff), None), 8);
    assert_eq!(sl(&policy, 0x77, None, None, None), 7);
    assert_eq!(sl(&policy, 0x99, None, None, None), 9);
    assert_eq!(sl(&policy, 2, None, None, None), 0);
}

const ADVANCED: &str = r#"
port-groups
    port-group
        name: Storage
        use: our targets, of "all" kinds  # and a comment
        port-guid: 0x10-0x1f, 0x30
        port-name: vs1 HCA-1/P1
        node-type: ROUTER, switch
    end-port-group
    port-group name: Everybody
        partition: Default
    end-port-group
end-port-groups
qos-levels
    qos-level
        name: DEFAULT
        sl: 1
    end-qos-level
    qos-level
        name: fast
        use: with limits
        sl: 4
        mtu-limit: 3
        rate-limit: 7
        packet-life: 12
        pkey: 0x8001-0x8003
    end-qos-level
end-qos-levels
qos-match-rules
    qos-match-rule
        use: by class
        qos-class: 7-9,11
        qos-level-name: Fast
        destination: storage
    end-qos-match-rule
    qos-match-rule
        service-id: 22,
                    4719-5000
        source: Everybody
        qos-level-name: fast
    end-qos-match-rule
end-qos-match-rules
qos-ulps any, service-id 22-23 : 6 end-qos-ulps
"#;

#[test]
fn rules_by_groups_and_classes() {
    let policy = read(ADVANCED);
    assert_eq!(sl(&policy, 0x18, None, None, Some(8)), 4);
    assert_eq!(sl(&policy, 0x18, None, None, Some(10)), 1);
    assert_eq!(sl(&policy, 0x18, None, None, None), 1, "a rule about classes needs one");
    assert_eq!(sl(&policy, 0x20, None, None, Some(8)), 1);
    assert_eq!(sl(&policy, 2, Some(22), None, None), 4, "before the short rules");
    assert_eq!(sl(&policy, 2, Some(23), None, None), 6);
    let partitions = Partitions::default();
    let (from, mut to) = (Port::new(1), Port::new(2));
    to.name = "vs1 HCA-1/P1".to_owned();
    let request = Request {
        from: &from,
        to: &to,
        service_id: None,
        qos_class: Some(11),
        pkey: None,
        partitions: &partitions,
    };
    let (level, line) = policy.level(&request);
    assert_eq!((level.mtu_limit, level.rate_limit, level.packet_life), (Some(3), Some(7), Some(12)));
    assert!(level.pkeys.contains(2) && !level.pkeys.contains(4));
    assert_eq!(line, Some(30));
}

#[test]
fn what_is_read_and_not_used_is_told() {
    let text = "qos-ulps default:0 end-qos-ulps\nqos-setup\nvlarb-tables vlarb-scope group: A\nacross: B\n\
                vlarb-high: 0:255,1:127\nvlarb-low: 8:255\nvl-high-limit: 10 end-vlarb-scope end-vlarb-tables\n\
                sl2vl-tables sl2vl-scope group: A\nfrom: *\nto: 1-4\nsl2vl-table: 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,7\n\
                end-sl2vl-scope end-sl2vl-tables end-qos-setup";
    let (_, warnings) = QosPolicy::parse(text).unwrap();
    assert!(warnings[0].to_string().starts_with("line 2: qos-setup"), "{warnings:?}");
}

#[test]
fn the_short_form() {
    let text = "# copied\nservice_id 0x1000-0x1fff sl 4\nservice_id 0x2000 sl 1 # one\nsl2vl 4 2\n\
                vlarb_high 0:64 1:64\nvlarb_low  2:32, 3:16";
    let (policy, warnings) = QosPolicy::parse(text).unwrap();
    assert!(warnings[0].text.contains("OpenSM"));
    assert_eq!(sl(&policy, 2, Some(0x1800), None, None), 4);
    assert_eq!(sl(&policy, 2, Some(0x2000), None, None), 1);
    assert_eq!(sl(&policy, 2, Some(0x2001), None, None), 0);
    assert_eq!(policy.lanes.sl2vl, [(4, 2)]);
    assert_eq!(policy.lanes.low.as_ref().map(Vec::len), Some(2));
}

#[test]
fn mistakes_have_a_line_and_a_word() {
    for (text, says) in [
        ("", "neither a qos-level called \"default\""),
        ("qos-ulp", "line 1, at \"qos-ulp\": a section"),
        ("qos-ulps\ndefault : 16\nend-qos-ulps", "line 2, at \"16\": the largest number here is 15"),
        ("qos-ulps\ndefault 1\nend-qos-ulps", "line 2, at \"1\": a colon"),
        ("qos-ulps\nnfs : 1", "line 2, at \"nfs\": a protocol"),
        ("qos-ulps\nsdp, pkey 1 : 1", "line 2, at \"pkey\": sdp has no such key"),
        ("qos-ulps\nsdp, port-num 70000 : 1", "at \"70000\""),
        ("qos-ulps\nany : 1", "a comma"),
        ("qos-ulps\nany, service-id 1-x : 1", "at \"x\": a number"),
        ("qos-ulps\ndefault : 1", "line 2: end-qos-ulps is missing; the file ends here"),
        ("qos-ulps end-qos-ulps", "there is no rule"),
        ("qos-levels\nqos-level\nname: a\nend-qos-level", "line 4: the qos-level above has no sl"),
        ("qos-levels\nqos-level\nname: a\nname: b", "\"name\" was said before"),
        ("qos-levels\nqos-level\nmtu-limit: 0", "at \"0\": 1 to 5"),
        ("qos-levels\nqos-level\nname:\n", "a text is expected"),
        ("qos-levels\nqos-level\ncolor: red", "line 3, at \"color\": one of name"),
        (
            "qos-match-rules\nqos-match-rule\nqos-level-name: x\nend-qos-match-rule\nend-qos-match-rules",
            "line 2, at \"x\": there is no qos-level",
        ),
        ("port-groups\nport-group\nport-name: vs1\n", "line 4, at \"vs1\": a port name"),
        ("port-groups\nport-group\nname: \"a", "the quotation has no end"),
        ("service_id 1-2 4", "line 1, at \"4\": \"sl\" is expected"),
        ("sl2vl 1 16", "a lane is 0 to 15"),
        ("sl2vl 1 2 3", "at \"3\": the line should end"),
        ("sl2vl 1 2\nqos-ulps", "line 2, at \"qos-ulps\": one of service_id"),
    ] {
        let error = QosPolicy::parse(text).unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}

/// How long it takes to find the level of a service among 10,000 rules, in both forms of the file. Run by hand, for the figures.
#[test]
#[ignore = "a measurement: cargo test --release -p rxe-fabric --lib -- --ignored --nocapture"]
fn time_of_a_question_to_10_000_rules() {
    const RULES: u64 = 10_000;
    const FIRST: u64 = 0x1_0000_0000;
    let simple = (0..RULES).fold("qos-ulps\ndefault : 0\n".to_owned(), |text, rule| {
        text + &format!("any, service-id {:#x} : {}\n", FIRST + rule, rule % 16)
    });
    let levels = (0..16).fold("qos-levels\n".to_owned(), |text, level| {
        let name = if level == 0 { "DEFAULT".to_owned() } else { format!("L{level}") };
        text + &format!("qos-level\nname: {name}\nsl: {level}\nend-qos-level\n")
    });
    let advanced = (0..RULES).fold(levels + "end-qos-levels\nqos-match-rules\n", |text, rule| {
        let name = if rule % 16 == 0 { "DEFAULT".to_owned() } else { format!("L{}", rule % 16) };
        text + &format!(
            "qos-match-rule\nservice-id: {:#x}\nqos-level-name: {name}\nend-qos-match-rule\n",
            FIRST + rule
        )
    });
    for (name, text) in
        [("qos-ulps", simple + "end-qos-ulps\n"), ("qos-match-rules", advanced + "end-qos-match-rules\n")]
    {
        let policy = read(&text);
        let mut times: Vec<_> = (0..RULES)
            .map(|rule| {
                let start = std::time::Instant::now();
                let level = sl(&policy, 2, Some(FIRST + rule), None, Some(0));
                let took = start.elapsed();
                assert_eq!(u64::from(level), rule % 16);
                took
            })
            .collect();
        times.sort_unstable();
        let at = |part: usize| times[(times.len() - 1) * part / 100];
        println!("{name}: median {:?}, 99 % {:?}, longest {:?}", at(50), at(99), at(100));
    }
}
