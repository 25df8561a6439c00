//! An independent program reads our messages: tshark's fields of a capture are compared with what `rxe connect --json` printed.

use super::{
    common::{rxe, text},
    netns::skip,
    stage::{Host, lines, scratch},
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Output},
};

/// tshark's name of a field (after `infiniband.cm.`), and ours.
const REQ: &[(&str, &str)] = &[
    ("req", "local_comm_id"),
    ("req.serviceid", "service_id"),
    ("req.localcaguid", "local_ca_guid"),
    ("req.localqkey", "local_qkey"),
    ("req.localqpn", "local_qpn"),
    ("req.responderres", "responder_resources"),
    ("req.localeecn", "local_eecn"),
    ("req.initdepth", "initiator_depth"),
    ("req.remoteeecn", "remote_eecn"),
    ("req.remoteresptout", "remote_cm_response_timeout"),
    ("req.e2eflowctrl", "flow_control"),
    ("req.startpsn", "starting_psn"),
    ("req.localresptout", "local_cm_response_timeout"),
    ("req.retrcount", "retry_count"),
    ("req.pkey", "pkey"),
    ("req.pppmtu", "path_mtu"),
    ("req.rdcexist", "rdc_exists"),
    ("req.rnrretrcount", "rnr_retry_count"),
    ("req.maxcmretr", "max_cm_retries"),
    ("req.srq", "srq"),
    ("req.ext_transport", "extended_transport"),
    ("req.prim_locallid", "primary_local_lid"),
    ("req.prim_remotelid", "primary_remote_lid"),
    ("req.prim_tfcclass", "primary_traffic_class"),
    ("req.prim_hoplim", "primary_hop_limit"),
    ("req.prim_sl", "primary_service_level"),
    ("req.prim_subnetlocal", "primary_subnet_local"),
    ("req.prim_localacktout", "primary_ack_timeout"),
    ("req.ip_cm.private", "user_data"),
];
const REP: &[(&str, &str)] = &[
    ("rep", "local_comm_id"),
    ("rep.remotecommid", "remote_comm_id"),
    ("rep.localqkey", "local_qkey"),
    ("rep.localqpn", "local_qpn"),
    ("rep.localeecn", "local_eecn"),
    ("rep.startpsn", "starting_psn"),
    ("rep.respres", "responder_resources"),
    ("rep.initdepth", "initiator_depth"),
    ("rep.tgtackdelay", "target_ack_delay"),
    ("rep.failoveracc", "failover_accepted"),
    ("rep.e2eflowctrl", "flow_control"),
    ("rep.rnrretrcount", "rnr_retry_count"),
    ("rep.srq", "srq"),
    ("rep.localcaguid", "local_ca_guid"),
    ("rep.private", "private_data"),
];
const RTU: &[(&str, &str)] = &[
    ("rtu.localcommid", "local_comm_id"),
    ("rtu.remotecommid", "remote_comm_id"),
    ("rtu.private", "private_data"),
];
const REJ: &[(&str, &str)] = &[
    ("rej.localcommid", "local_comm_id"),
    ("rej.remotecommid", "remote_comm_id"),
    ("rej.msgrej", "message"),
    ("rej.rejinfolen", "info_len"),
    ("rej.reason", "reason"),
    ("rej.ari", "info"),
    ("rej.private", "private_data"),
];
const DREQ: &[(&str, &str)] = &[
    ("dreq.localcommid", "local_comm_id"),
    ("dreq.remotecommid", "remote_comm_id"),
    ("req.remoteqpneecn", "remote_qpn"),
    ("dreq.private", "private_data"),
];
const DREP: &[(&str, &str)] = &[
    ("drsp.localcommid", "local_comm_id"),
    ("drsp.remotecommid", "remote_comm_id"),
    ("drsp.private", "private_data"),
];

/// Messages that tshark 4.0 knows by name only: bits of the body (IBTA vol. 1, 12.6.6, 12.11.1 and 12.11.2), and our name.
const MRA: &[(usize, usize, &str)] =
    &[(0, 32, "local_comm_id"), (32, 32, "remote_comm_id"), (64, 2, "message"), (72, 5, "service_timeout")];
const SIDR_REQ: &[(usize, usize, &str)] = &[(0, 32, "request_id"), (32, 16, "pkey"), (64, 64, "service_id")];
const SIDR_REP: &[(usize, usize, &str)] = &[
    (0, 32, "request_id"),
    (32, 8, "status"),
    (40, 8, "info_len"),
    (64, 24, "qpn"),
    (96, 64, "service_id"),
    (160, 32, "qkey"),
];

/// What was exchanged in one run, as we printed it and as tshark reads it.
struct Run {
    printed: Vec<Value>,
    read: Vec<Value>,
}

/// Runs `rxe connect` and has tshark read what it recorded.
fn run(host: &Host, arguments: &str) -> Run {
    let capture = scratch("capture.pcapng");
    let mut command = rxe(&format!("connect --json {arguments}"));
    command.env("RXE_PCAP", &capture);
    let output = host.output(command);
    let mut printed = lines(text(&output.stdout));
    printed.retain(|line| line.get("message").is_some());
    let read = read(&capture);
    fs::remove_file(&capture).unwrap();
    assert!(!printed.is_empty(), "{output:?}");
    Run { printed, read }
}

fn tshark(arguments: &[&str]) -> std::io::Result<Output> {
    Command::new("tshark").args(arguments).output()
}

/// The InfiniBand layer of each packet.
fn read(capture: &Path) -> Vec<Value> {
    let path = capture.to_str().unwrap();
    let output = tshark(&["-r", path, "-T", "json"]).unwrap();
    assert!(output.status.success(), "{output:?}");
    let packets: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let bad = tshark(&["-r", path, "-Y", "_ws.malformed || _ws.expert"]).unwrap();
    assert!(bad.status.success() && bad.stdout.is_empty(), "malformed: {}", text(&bad.stdout));
    packets.into_iter().map(|packet| packet["_source"]["layers"]["infiniband"].clone()).collect()
}

/// A field anywhere below; tshark nests them.
fn find<'a>(tree: &'a Value, name: &str) -> Option<&'a str> {
    let tree = tree.as_object()?;
    let here = tree.get(name).and_then(Value::as_str);
    here.or_else(|| tree.values().find_map(|below| find(below, name)))
}

/// Numbers as tshark writes them, and as we do: hexadecimal with 0x, or decimal.
fn number(value: &Value) -> u64 {
    match value {
        Value::Bool(flag) => u64::from(*flag),
        Value::String(text) => match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
            None => text.parse().unwrap_or_else(|_| panic!("no number: {text}")),
        },
        other => other.as_u64().unwrap_or_else(|| panic!("no number: {other}")),
    }
}

fn compare(packet: &Value, ours: &Value, names: &[(&str, &str)]) {
    for (theirs, name) in names {
        let full = format!("infiniband.cm.{theirs}");
        let shown = find(packet, &full).unwrap_or_else(|| panic!("no {full} in {packet}"));
        let value = &ours["fields"][*name];
        match value.as_str().filter(|text| !text.starts_with("0x")) {
            Some(bytes) => assert_eq!(shown.replace(':', ""), bytes, "{name}"),
            None => assert_eq!(number(&shown.into()), number(value), "{name}"),
        }
    }
}

/// The 232 bytes behind the management header, as tshark shows them.
fn body(packet: &Value) -> Vec<u8> {
    let shown = find(packet, "infiniband.mad.data").unwrap();
    let bytes: Vec<u8> = shown.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    assert_eq!(bytes.len(), 232);
    bytes
}

fn bits(body: &[u8], at: usize, count: usize) -> u64 {
    (at..at + count).fold(0, |value, bit| value << 1 | u64::from(body[bit / 8] >> (7 - bit % 8) & 1))
}

fn compare_bits(packet: &Value, ours: &Value, places: &[(usize, usize, &str)], private_data: usize) {
    let body = body(packet);
    for (at, count, name) in places {
        assert_eq!(bits(&body, *at, *count), number(&ours["fields"][*name]), "{name}");
    }
    let data: String = body[private_data..].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(ours["fields"]["private_data"], data);
}

/// The parts of a REQ that tshark writes in ways of its own.
fn compare_req(packet: &Value, ours: &Value) {
    compare(packet, ours, REQ);
    let (fields, body) = (&ours["fields"], body(packet));
    let shown = |name: &str| find(packet, &format!("infiniband.cm.req.{name}")).unwrap();
    // As bytes for IPv6 only; addresses there are those of the IP header.
    let (gids, ips) = if fields["primary_local_gid"].as_str().unwrap().contains(':') {
        (["prim_localgid", "prim_remotegid"], ["ip_cm.sip6", "ip_cm.dip6"])
    } else {
        (["prim_localgid_ipv4", "prim_remotegid_ipv4"], ["ip_cm.sip4", "ip_cm.dip4"])
    };
    let header = &fields["ip_cm_header"];
    for (name, value) in [
        (gids[0], &fields["primary_local_gid"]),
        (gids[1], &fields["primary_remote_gid"]),
        (ips[0], &header["src"]),
        (ips[1], &header["dst"]),
    ] {
        let ours: std::net::IpAddr = value.as_str().unwrap().parse().unwrap();
        assert_eq!(address(shown(name)), ours, "{name}");
    }
    assert_eq!(number(&shown("ip_cm.sport").into()), number(&header["src_port"]));
    let transport = ["RC", "UC", "RD", "extended"][number(&shown("transpsvctype").into()) as usize];
    assert_eq!(fields["transport"], transport);
    assert_eq!(number(&shown("serviceid.dport").into()), 7471);
    // tshark 4.0 shows 12 of the flow label's 20 bits, and takes them for the packet rate too.
    let label = number(&fields["primary_flow_label"]);
    assert_eq!(bits(&body, 88 * 8, 20), label);
    let theirs = number(&shown("prim_flowlabel").into());
    assert!(theirs == label || theirs == label >> 8, "{theirs:#x} {label:#x}");
    assert_eq!(bits(&body, 91 * 8 + 2, 6), number(&fields["primary_packet_rate"]));
    assert!(fields["alternate"].is_null() && body[96..139].iter().all(|byte| *byte == 0));
    assert_eq!(number(&shown("alt_hoplim").into()), 0);
}

fn address(text: &str) -> std::net::IpAddr {
    // A GID as bytes has no double colon.
    let parts: Vec<&str> = text.split(':').collect();
    if parts.len() == 16 {
        let bytes: Vec<u8> = parts.iter().map(|part| u8::from_str_radix(part, 16).unwrap()).collect();
        return <[u8; 16]>::try_from(bytes).unwrap().into();
    }
    text.parse().unwrap_or_else(|_| panic!("no address: {text}"))
}

/// Compares every message of a run; gives their names.
fn judge(run: &Run, seen: &mut BTreeSet<String>) {
    assert_eq!(run.read.len(), run.printed.len(), "all that crossed was printed");
    let mut left: Vec<&Value> = run.read.iter().collect();
    for ours in &run.printed {
        let name = ours["message"].as_str().unwrap();
        let attribute = match name {
            "REQ" => 0x10,
            "MRA" => 0x11,
            "REJ" => 0x12,
            "REP" => 0x13,
            "RTU" => 0x14,
            "DREQ" => 0x15,
            "DREP" => 0x16,
            "SIDR_REQ" => 0x17,
            "SIDR_REP" => 0x18,
            other => panic!("{other}"),
        };
        let field = |packet: &Value, name: &str| {
            find(packet, &format!("infiniband.mad.{name}")).map(|text| number(&text.into()))
        };
        let at = left.iter().position(|packet| {
            field(packet, "attributeid") == Some(attribute)
                && field(packet, "transactionid") == Some(number(&ours["transaction"]))
        });
        let packet = left.remove(at.unwrap_or_else(|| panic!("{name} is not in the capture")));
        assert_eq!(field(packet, "attributemodifier"), Some(number(&ours["modifier"])));
        for (name, value) in
            [("baseversion", 1), ("mgmtclass", 7), ("classversion", 2), ("method", 3), ("status", 0)]
        {
            assert_eq!(field(packet, name), Some(value), "{name}");
        }
        match name {
            "REQ" => compare_req(packet, ours),
            "REP" => compare(packet, ours, REP),
            "RTU" => compare(packet, ours, RTU),
            "REJ" => compare(packet, ours, REJ),
            "DREQ" => compare(packet, ours, DREQ),
            "DREP" => compare(packet, ours, DREP),
            "MRA" => compare_bits(packet, ours, MRA, 10),
            "SIDR_REQ" => compare_bits(packet, ours, SIDR_REQ, 16),
            _ => compare_bits(packet, ours, SIDR_REP, 96),
        }
        seen.insert(name.to_owned());
    }
}

#[test]
fn tshark_reads_what_we_meant() {
    let Some(host) = Host::new() else { return };
    if tshark(&["--version"]).is_err() {
        return skip("tshark is not installed (scripts/install-deps)");
    }
    for address in ["127.0.0.1", "[::1]"] {
        let mut seen = BTreeSet::new();
        let quick = "--ack-timeout 0.017 --response-timeout 0.067";
        for (listener, arguments) in [
            (Some("--delay 3 --private-data welcome"), quick),
            (Some(""), "--tos 184 --private-data 0x0102030405060708090a0b0c0d0e0f"),
            (Some("--reject --private-data away"), ""),
            (None, "--private-data hello"),
            (Some("--datagram --private-data here"), "--datagram --private-data where"),
            (Some("--datagram --reject --private-data no"), "--datagram"),
            (None, "--datagram"),
        ] {
            let listener = listener.map(|arguments| host.listen(&format!("7471 -n 1 {arguments}")));
            judge(&run(&host, &format!("{address}:7471 {arguments}")), &mut seen);
            drop(listener.map(|listener| listener.finish()));
        }
        let all = ["DREP", "DREQ", "MRA", "REJ", "REP", "REQ", "RTU", "SIDR_REP", "SIDR_REQ"];
        assert!(seen.iter().eq(all), "{seen:?}");
    }
}
