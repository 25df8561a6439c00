use super::*;

const A: u64 = 0x11;
const B: u64 = 0x12;
const C: u64 = 0x13;

fn read(text: &str) -> Partitions {
    Partitions::parse(text, false).unwrap().0
}

fn manager() -> Port {
    Port { is_manager: true, ..Port::new(1) }
}

#[test]
fn without_a_file_all_are_full_members() {
    let partitions = read("# nothing\n\n");
    assert_eq!(partitions, Partitions::default());
    assert_eq!(partitions.table(&Port::new(A)), [0xffff]);
    assert_eq!(partitions.common(&Port::new(A), &Port::new(B)), Some(0xffff));
}

#[test]
fn with_a_file_all_are_limited_members_of_the_default_partition() {
    let partitions = read("Blue=0x8123, sl=3, ipoib : 0x11=full,\n 0x12 , SELF=both;\nRed:ALL_SWITCHES;");
    let (a, b, c) = (Port::new(A), Port::new(B), Port::new(C));
    assert_eq!(partitions.table(&a), [0x7fff, 0x8123]);
    assert_eq!(partitions.table(&b), [0x7fff, 0x0123]);
    assert_eq!(partitions.table(&c), [0x7fff]);
    assert_eq!(partitions.table(&manager()), [0xffff, 0x8123]);
    assert_eq!(partitions.common(&a, &b), Some(0x8123));
    assert_eq!(partitions.common(&b, &a), Some(0x0123));
    assert_eq!(partitions.common(&a, &c), None, "limited with limited");
    // 0xff7f against 0x2301 as OpenSM compares them.
    assert_eq!(partitions.common(&manager(), &a), Some(0x8123));
    let blue = partitions.of_key(0x8123).unwrap();
    assert_eq!((blue.name.as_str(), blue.sl, blue.ipoib), ("Blue", 3, true));
    let switch = Port { node_type: NodeType::Switch, ..Port::new(9) };
    assert_eq!(partitions.table(&switch), [0x7fff, 0x0001]);
}

#[test]
fn later_lines_are_right_and_words_may_be_short() {
    let partitions = read("P=5,d=f:ALL,0x11=l;P=5:0x12=limited;Q=6,indx0:A=fu");
    let (a, b, c) = (Port::new(A), Port::new(B), Port::new(C));
    assert_eq!(partitions.table(&a), [0x8006, 0x7fff, 0x0005]);
    assert_eq!(partitions.table(&b)[2], 0x0005);
    assert_eq!(partitions.table(&c)[2], 0x8005);
    assert!(partitions.share(&a, &c, 5) && !partitions.share(&a, &b, 0x8005));
}

#[test]
fn both_keys_only_where_that_is_allowed() {
    let text = "P=5:0x11=both,0x12;";
    let (a, b) = (Port::new(A), Port::new(B));
    assert_eq!(read(text).table(&a), [0x7fff, 0x8005]);
    let both = Partitions::parse(text, true).unwrap().0;
    assert_eq!(both.table(&a), [0x7fff, 0x8005, 0x0005]);
    assert!(both.share(&a, &b, 5));
    assert_eq!((both.common(&a, &b), both.common(&b, &a)), (Some(0x8005), Some(5)));
}

#[test]
fn mistakes_have_a_line_and_a_word() {
    for (text, says) in [
        ("\nDefault=0x7fff", "line 2, at \"Default=0x7fff\": a definition"),
        ("P=x:ALL;", "line 1, at \"x\": P_Key: a number"),
        ("P=0x12345:ALL;", "16 bits"),
        ("P=1:ALL,\n 0x0;", "line 2, at \"0x0\": a port GUID"),
        ("P=1:EVERYBODY;", "at \"EVERYBODY\""),
    ] {
        let error = Partitions::parse(text, false).unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
    let (_, warnings) =
        Partitions::parse("P=1,sl=16,color=red:0x1=admin,\nmgid=10::1,rate=x;Q=1:ALL", false).unwrap();
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    for says in [
        "sl=16",
        "color=red",
        "line 1: \"admin\"",
        "line 2: mgid \"10::1\"",
        "rate=x",
        "\"P\" already",
        "no semicolon",
    ] {
        assert!(warnings.iter().any(|warning| warning.contains(says)), "{says}: {warnings:#?}");
    }
    // However many there are, those kept are few.
    let (_, warnings) = Partitions::parse(&"P=1,color=red:ALL;\n".repeat(10_000), false).unwrap();
    assert!(warnings.len() < 100, "{}", warnings.len());
    let last = warnings.last().unwrap().to_string();
    assert!(last.starts_with("and ") && last.ends_with(" more like these"), "{last}");
}
