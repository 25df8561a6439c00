//! Scripted faults, delay and rate: each fault happens to the packets that the script names, and to no others. An error in a script is
//! reported with its place.

use rxe_core::{
    num::{Psn, Qpn},
    wire::{
        Aeth, Bth, Ext, ICRC_LEN, MadHeader, Opcode, Packet, Syndrome, emit,
        icrc::{Route, RouteCrc},
        wire_len,
    },
};
use rxe_verbs::net::{
    Encapsulation, FaultLink, FaultPlan, InprocLink, InprocNet, Link, RecvBatch, Trace, Transmit,
    fault::{FaultCounts, Script},
};
use std::{
    fs,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ends() -> (InprocLink, InprocLink) {
    let net = InprocNet::new();
    let end = |text: &str| net.attach(&[address(text)], 3).unwrap();
    (end(A), end(B))
}

fn route() -> RouteCrc {
    RouteCrc::new(&Route::v2(address(A), address(B), 0xc000))
}

fn packet(opcode: Opcode, psn: u32, ext: &Ext, payload: &[u8]) -> Vec<u8> {
    let bth = Bth::new(opcode, Qpn::new(if opcode == Opcode::UD_SEND_ONLY { 1 } else { 17 }), Psn::new(psn));
    let mut bytes = vec![0; wire_len(opcode, payload.len())];
    emit(&bth, ext, payload.len(), &mut bytes).unwrap().copy_from_slice(payload);
    route().seal(0, &mut bytes);
    bytes
}

fn write(psn: u32) -> Vec<u8> {
    packet(Opcode(0x07), psn, &Ext::default(), &[psn as u8; 64])
}

fn ack(psn: u32) -> Vec<u8> {
    let aeth = Aeth { syndrome: Syndrome::ACK_NO_CREDITS, ..Aeth::default() };
    packet(Opcode::RC_ACKNOWLEDGE, psn, &Ext { aeth, ..Ext::default() }, &[])
}

fn cm(attribute: u16, psn: u32) -> Vec<u8> {
    let mut mad = [0; 256];
    mad[..24].copy_from_slice(&MadHeader::cm(attribute, 5).emit());
    packet(Opcode::UD_SEND_ONLY, psn, &Ext::default(), &mad)
}

fn plan(script: &str) -> FaultPlan {
    let script = Arc::new(Script::parse(script).unwrap());
    FaultPlan { sending: false, receiving: false, script: Some(script), ..FaultPlan::default() }
}

/// Sends packets through a plan on the way out. Returns what arrived, with its TOS, and the counts.
fn through(plan: FaultPlan, packets: &[Vec<u8>]) -> (Vec<(Vec<u8>, u8)>, FaultCounts) {
    let (got, counts, _) = timed(plan, packets);
    (got, counts)
}

/// The same, and how long sending took.
fn timed(plan: FaultPlan, packets: &[Vec<u8>]) -> (Vec<(Vec<u8>, u8)>, FaultCounts, Duration) {
    let (left, mut right) = ends();
    let mut left = FaultLink::new(Box::new(left), plan).unwrap();
    let start = Instant::now();
    for bytes in packets {
        let head = Transmit {
            src: address(A),
            dst: address(B),
            ifindex: 0,
            source_port: 0xc000,
            tos: 2,
            hop_limit: 0,
            encapsulation: Encapsulation::V2,
            segment_size: bytes.len(),
        };
        left.send(&head, bytes).unwrap();
    }
    let took = start.elapsed();
    let counts = left.counts().0;
    let mut got = Vec::new();
    let expected = packets.len() as u64 + counts.duplicated - counts.lost;
    while (got.len() as u64) < expected && start.elapsed() < PATIENCE {
        let mut batch = RecvBatch::default();
        left.recv(&mut batch).unwrap();
        right.recv(&mut batch).unwrap();
        for run in batch.iter() {
            got.extend(run.packets().map(|packet| (packet.to_vec(), run.tos)));
        }
        std::thread::yield_now();
    }
    (got, counts, took)
}

/// The order in which packets arrive if a rule holds one back, for so long at most. On a busy machine the sender may be without a
/// processor for longer than that, so this repeats until all packets were sent before that time was over.
fn in_time(script: &str, packets: &[Vec<u8>], longest: Duration) -> Vec<u32> {
    let start = Instant::now();
    loop {
        let (got, _, took) = timed(plan(script), packets);
        if took < longest {
            return psns(&got);
        }
        assert!(start.elapsed() < PATIENCE, "{script}: sending never took less than {longest:?}");
    }
}

fn psns(got: &[(Vec<u8>, u8)]) -> Vec<u32> {
    got.iter().map(|(bytes, _)| Packet::decode(bytes).unwrap().bth.psn.value()).collect()
}

fn writes(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(write).collect()
}

#[test]
fn rules_choose_packets() {
    let numbers = |script: &str| psns(&through(plan(script), &writes(12)).0);
    assert_eq!(numbers("drop tx 3rd"), [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    assert_eq!(numbers("drop first 10"), [10, 11]);
    assert_eq!(numbers("drop every 3"), [0, 1, 3, 4, 6, 7, 9, 10]);
    assert_eq!(numbers("drop every 3 times 2"), [0, 1, 3, 4, 6, 7, 8, 9, 10, 11]);
    assert_eq!(numbers("drop psn 2..0x9"), [0, 1, 10, 11]);
    assert_eq!(numbers("drop write after 9 packets"), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(numbers("drop read\ndrop ack\ndrop cm\ndrop qp 18\ndrop opcode 4").len(), 12);
    assert_eq!(numbers("drop qp 17 opcode 0x07 write tx # all of them").len(), 0);
    assert_eq!(numbers("drop rx").len(), 12, "nothing came in");
    assert_eq!(numbers("drop until 60s").len(), 0);
    assert_eq!(numbers("drop after 60s").len(), 12);
    assert_eq!(numbers("down 60s after 4 packets"), [0, 1, 2, 3]);
    assert_eq!(numbers("duplicate 2nd"), [0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    let some_time = Duration::from_millis(20);
    let reordered = in_time("reorder 2 4th", &writes(12), some_time);
    assert_eq!(reordered, [0, 1, 2, 4, 5, 3, 6, 7, 8, 9, 10, 11]);
    assert_eq!(in_time("delay 20ms 1st", &writes(12), some_time).last(), Some(&0));
    // The first rule that a packet meets acts; the others count it all the same.
    assert_eq!(numbers("drop 2nd\nduplicate every 2 times 2").iter().filter(|psn| **psn == 3).count(), 2);
    let some = numbers("drop chance 50%");
    assert!((1..12).contains(&some.len()));
    assert_eq!(some, numbers("drop chance 50%"), "the same for a seed");
}

/// What chance does to a packet that a script leaves alone does not depend on what the script does to the others.
#[test]
fn a_script_can_be_added_to_a_seed() {
    let chances = FaultPlan::parse("loss=20%,corrupt=20%,dup=20%,seed=3,dir=tx").unwrap();
    let play = |script: &str| {
        let script = (!script.is_empty()).then(|| Arc::new(Script::parse(script).unwrap()));
        let mut got = through(FaultPlan { script, ..chances.clone() }, &writes(200)).0;
        // By what is written all over the payload, since chance may damage the PSN.
        let number = |bytes: &[u8]| if bytes[40] == bytes[41] { bytes[40] } else { bytes[42] };
        got.retain(|(bytes, _)| number(bytes) % 10 != 4);
        got
    };
    let alone = play("");
    assert!(alone.len() > 100 && alone.len() < 280);
    // Every tenth, so PSNs 4, 14, ...
    for action in ["drop", "corrupt", "duplicate", "mark", "delay 1ms"] {
        let rules: String = (0..20).map(|ten| format!("{action} psn {}\n", ten * 10 + 4)).collect();
        let mut with = play(&rules);
        let mut without = alone.clone();
        with.sort();
        without.sort();
        assert!(with == without, "{action}");
    }
}

#[test]
fn messages_of_the_connection_manager_are_known_by_name() {
    let messages: Vec<_> =
        [0x10, 0x13, 0x14, 0x15].iter().zip(0..).map(|(kind, psn)| cm(*kind, psn)).collect();
    let numbers = |script: &str| psns(&through(plan(script), &messages).0);
    assert_eq!(numbers("drop cm RTU"), [0, 1, 3]);
    assert_eq!(numbers("drop cm rep tx"), [0, 2, 3]);
    assert_eq!(numbers("drop cm tx").len(), 0);
    assert_eq!(in_time("delay 20ms cm req", &messages, Duration::from_millis(20)), [1, 2, 3, 0]);
}

/// A script may change an acknowledgement's syndrome. Its ICRC is right afterwards if it was right before. If it covered other headers
/// than ours, it still does.
#[test]
fn acknowledgements_are_turned_with_their_icrc() {
    let syndromes = [
        ("rnr 14", 0x2e),
        ("nak-sequence", 0x60),
        ("nak-request", 0x61),
        ("nak-access", 0x62),
        ("nak-operation", 0x63),
    ];
    for (word, bits) in syndromes {
        let (got, counts) =
            through(plan(&format!("turn {word} ack 2nd")), &[write(1), ack(2), ack(3), ack(4)]);
        assert_eq!(counts.changed, 1);
        let found: Vec<_> =
            got.iter().map(|(bytes, _)| Packet::decode(bytes).unwrap().ext.aeth.syndrome.bits()).collect();
        assert_eq!(found[1..], [0x1f, bits, 0x1f]);
        for (bytes, _) in &got {
            assert!(route().check(0, 0x4000, bytes), "{word}");
        }
    }
    // Other headers than ours: wrong before, wrong in the same way after.
    let mut strange = ack(1);
    let at = strange.len() - ICRC_LEN;
    strange[at] ^= 0x55;
    let (got, _) = through(plan("turn rnr 1 ack"), &[strange]);
    let mut bytes = got[0].0.clone();
    bytes[at] ^= 0x55;
    assert!(route().check(0, 0x4000, &bytes));
}

#[test]
fn marks_are_made_and_bits_are_flipped() {
    let (got, counts) = through(plan("mark every 3"), &writes(9));
    let marked: Vec<_> = got.iter().map(|(_, tos)| tos & 3 == 3).collect();
    assert_eq!(marked, [false, false, true, false, false, true, false, false, true]);
    assert_eq!(counts.changed, 3);
    let (got, counts) = through(plan("corrupt 5th"), &writes(9));
    let wrong: Vec<_> = got.iter().map(|(bytes, _)| !route().check(0, 0x4000, bytes)).collect();
    assert_eq!((wrong.iter().filter(|wrong| **wrong).count(), wrong[4], counts.corrupted), (1, true, 1));
}

/// Packets that wait for a rate or a delay all arrive in order, and not too early. Packets that find the queue full are lost.
#[test]
fn delay_and_rate() {
    let packets = writes(50);
    // 50 packets of 80 + 46 bytes.
    for (text, least) in [("rate=1mbit", 50 * (80 + 46) * 8), ("delay=30ms", 30_000)] {
        let start = Instant::now();
        let plan = FaultPlan::parse(&format!("{text},dir=tx")).unwrap();
        let (got, counts) = through(plan, &packets);
        let took = start.elapsed();
        assert_eq!((got.len(), counts.lost), (50, 0), "{text}");
        assert!(psns(&got).is_sorted(), "{text}");
        assert!(took >= Duration::from_micros(least), "{text}: {took:?}");
    }
    let plan = FaultPlan::parse("rate=1kbit,dir=tx").unwrap();
    let large = vec![packet(Opcode(0x07), 1, &Ext::default(), &[7; 4096]); 300];
    let (left, _right) = ends();
    let mut left = FaultLink::new(Box::new(left), plan).unwrap();
    for bytes in &large {
        let head = Transmit {
            src: address(A),
            dst: address(B),
            ifindex: 0,
            source_port: 0xc000,
            tos: 0,
            hop_limit: 0,
            encapsulation: Encapsulation::V2,
            segment_size: bytes.len(),
        };
        left.send(&head, bytes).unwrap();
    }
    assert!(left.counts().0.lost > 0, "{:?}", left.counts());
}

#[test]
fn the_log_tells_what_was_done_to_which() {
    let path = std::env::temp_dir().join(format!("rxe-fault-log-{}", std::process::id()));
    let (left, _right) = ends();
    let plan = FaultPlan { seed: 3, ..plan("drop 2nd\n\n  turn rnr 3 ack") };
    let mut left = FaultLink::new(Box::new(left), plan)
        .unwrap()
        .with_log(Some(Trace::to_file(fs::File::create(&path).unwrap())));
    for bytes in [write(1), write(2), ack(3)] {
        let head = Transmit {
            src: address(A),
            dst: address(B),
            ifindex: 0,
            source_port: 0xc000,
            tos: 0,
            hop_limit: 0,
            encapsulation: Encapsulation::V2,
            segment_size: bytes.len(),
        };
        left.send(&head, &bytes).unwrap();
    }
    let text = fs::read_to_string(&path).unwrap();
    fs::remove_file(path).unwrap();
    let lines: Vec<_> = text.lines().map(|line| line.trim_start().split_once(' ').unwrap().1).collect();
    assert_eq!(
        lines,
        [
            "line 1: lost > 10.0.0.2 RC WRITE_MIDDLE qp 0x000011 psn 000002 | 64 B",
            "line 3: turned into RNR NAK 30 us > 10.0.0.2 RC ACK qp 0x000011 psn 000003 ack msn 0",
        ]
    );
}

#[test]
fn mistakes_are_told_where_they_are() {
    for (script, place, told) in [
        ("drip tx", "line 1, column 1", "drop, corrupt"),
        ("\n# fine\n  drop tx rx red", "line 3, column 14", "\"red\" is no condition"),
        ("delay", "line 1, column 6", "a time of at most 60 s is wanted"),
        ("delay soon ack", "line 1, column 7", "not \"soon\""),
        ("delay 61s", "line 1, column 7", "at most 60 s"),
        ("drop psn", "line 1, column 9", "a PSN or a range"),
        ("drop psn 5..x", "line 1, column 10", "not \"5..x\""),
        ("drop psn 9..8", "line 1, column 10", "beyond the last"),
        ("drop psn 0x1000000", "line 1, column 10", "0 to 0xffffff"),
        ("drop qp 0x100000001", "line 1, column 9", "0 to 0xffffff"),
        ("drop every 0", "line 1, column 12", "at least 1"),
        ("drop 0th", "line 1, column 6", "from 1st on"),
        ("turn ack", "line 1, column 6", "turn into what"),
        ("turn rnr 32", "line 1, column 10", "0 to 31"),
        ("reorder 65", "line 1, column 9", "1 to 64"),
        ("drop chance 5", "line 1, column 13", "such as 5%"),
        ("drop opcode 256", "line 1, column 13", "0 to 255"),
        ("drop after ten packets", "line 1, column 12", "a number of packets"),
        ("dröp", "line 1, column 1", "not \"dröp\""),
        ("drop ünd", "line 1, column 6", "no condition"),
    ] {
        let error = Script::parse(script).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{place}: ")) && error.contains(told), "{script:?}: {error}");
    }
    let empty = Script::parse("# nothing\n\n").unwrap();
    let quiet =
        FaultPlan { sending: false, receiving: false, script: Some(Arc::new(empty)), ..FaultPlan::default() };
    assert_eq!(through(quiet, &writes(3)).0.len(), 3);
}

/// A file that is cut or damaged at any place is either a script, or gives an error that names a place in it.
#[test]
fn broken_files_are_errors_at_a_place() {
    let script = "drop rx read-response 3rd\nturn rnr 14 rx ack 5th # why\n delay 2s tx cm rtu\nmark every 10\n\
                  down 1s after 300 packets\nkill after 100 packets\nreorder 3 tx qp 0x12 psn 5..9 chance 5%\n";
    let judge = |text: &str| {
        let Err(error) = Script::parse(text) else { return };
        let told = error.to_string();
        let line = told.strip_prefix("line ").and_then(|rest| rest.split_once(','));
        let line: usize = line.and_then(|(line, _)| line.parse().ok()).unwrap_or_else(|| panic!("{told}"));
        assert!((1..=text.lines().count()).contains(&line), "{text:?}: {told}");
    };
    assert!(Script::parse(script).is_ok());
    for at in 0..script.len() {
        judge(&script[..at]);
        for other in ["9", "-", ".", "%", "x", " ", "\n", "#", "\u{df}", "\0"] {
            judge(&format!("{}{other}{}", &script[..at], &script[at + 1..]));
        }
    }
}
