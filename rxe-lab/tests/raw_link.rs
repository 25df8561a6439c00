//! What a raw link records are whole Ethernet frames, of both RoCEs and both directions: `rxe dissect`, tshark and
//! scripts/icrc-check read them. Needs root.

#[path = "../../rxe-verbs/tests/verbs_common/mod.rs"]
mod verbs_common;

use rxe_verbs::{
    ContextOptions, GidType, Mtu, QpType, Remote, SendOp, SendWr,
    net::{Capture, LinkKind},
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use verbs_common::{End, Two, connect_by, namespaces, netns::Namespace, set_timeout};

/// A message of many packets, which leaves in batches that the kernel cuts, and comes in one piece where the sender is on this host.
const LEN: u32 = 50_000;

fn said(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn open(namespace: &Namespace, address: &'static str, file: &Path) -> (rxe_verbs::Context, Capture) {
    let capture = Capture::create(file, "raw").unwrap();
    let (address, kept): (IpAddr, _) = (address.parse().unwrap(), capture.clone());
    let options = move || ContextOptions::new().alone().link(LinkKind::Raw).capture(capture);
    (namespace.run(move || options().open_address(address).unwrap()), kept)
}

/// WRITEs and READs between two hosts by RoCE of this type; the captures of both.
fn record(addresses: [&'static str; 2], kind: GidType) -> Option<[PathBuf; 2]> {
    let (left, right) = namespaces(9000)?;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let name = |side| {
        folder.join(format!("raw-{side}-{kind}-{}.pcapng", addresses[0]).replace([' ', '/', ':'], "-"))
    };
    let files = [name("left"), name("right")];
    let (a, first) = open(&left, addresses[0], &files[0]);
    let (b, second) = open(&right, addresses[1], &files[1]);
    let two = Two::of("raw", a, b);
    // 17 s: what a busy machine delays is not to be sent again, and so be in one of the captures only.
    set_timeout(22);
    let index = two.a.gids().find(two.a.gids().get(0), kind).expect("a GID of this type");
    let [a, b] = [&two.a, &two.b].map(|context| End::new(context, QpType::Rc, LEN as usize));
    connect_by(&a.qp, &b.qp, Mtu::M4096, index);
    let remote = Remote { addr: b.mr.addr(), rkey: b.mr.rkey() };
    for op in [SendOp::Write(remote), SendOp::Read(remote)] {
        a.qp.post_send(&SendWr::new(1, op, &[a.mr.sge(0, LEN)])).unwrap();
        a.good();
    }
    drop((a, b, two));
    first.flush().unwrap();
    second.flush().unwrap();
    Some(files)
}

#[test]
fn captures_hold_whole_frames() {
    for (addresses, kind) in [
        (["10.9.0.1", "10.9.0.2"], GidType::RoceV2),
        (["fd09::1", "fd09::2"], GidType::RoceV2),
        (["10.9.0.1", "10.9.0.2"], GidType::RoceV1),
    ] {
        let Some(files) = record(addresses, kind) else { return };
        let frames = files.map(|file| judge(&file, kind));
        // Both ends tell of the same frames, cut in the same way, and of nothing else.
        assert_eq!(frames[0], frames[1], "{addresses:?} {kind}");
    }
}

/// Has all of them judge a file; the frames in it, in order of their PSNs and lengths.
fn judge(file: &Path, kind: GidType) -> BTreeSet<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/icrc-check");
    // Both directions: 13 packets of WRITE and of READ, and their answers.
    said(Command::new(script).args(["--min", "28"]).arg(file));
    let fields =
        ["frame.encap_type", "eth.type", "eth.src", "eth.dst", "ip.id", "frame.len", "infiniband.bth.psn"];
    let mut tshark = Command::new("tshark");
    tshark.args(["-T", "fields", "-o", "udp.check_checksum:TRUE", "-e", "udp.checksum.status"]);
    tshark.args(fields.iter().flat_map(|field| ["-e", field])).arg("-r").arg(file);
    let text = said(&mut tshark);
    let mut frames = BTreeSet::new();
    let mut stations = BTreeSet::new();
    let ethertype = |line: &str| line.split('\t').nth(2).map(str::to_owned);
    for line in text.lines() {
        let (status, frame) = line.split_once('\t').expect("a field");
        // Right, or none: the kernel has completed those that it was to.
        assert!(kind == GidType::RoceV1 || ["1", "3"].contains(&status), "{line}: a UDP checksum");
        let columns: Vec<&str> = frame.split('\t').collect();
        assert_eq!(columns[0], "1", "{line}: not Ethernet");
        assert_eq!(kind == GidType::RoceV1, ethertype(line).as_deref() == Some("0x8915"), "{line}");
        assert!(columns[2..4].iter().all(|station| station.len() == 17 && !station.starts_with("00:00:00")));
        stations.insert(columns[2].to_owned());
        frames.insert(frame.to_owned());
    }
    assert_eq!(stations.len(), 2, "{text}: both directions");
    let told = said(Command::new(env!("CARGO_BIN_EXE_rxe-dissect")).arg("--json").arg(file));
    let summary: Value = told
        .lines()
        .find_map(|line| serde_json::from_str(line).ok())
        .unwrap_or_else(|| serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {told}")));
    assert!(told.contains("WRITE") || told.contains("write"), "{summary}");
    frames
}
