//! Field by field, `rxe dissect` and Debian's tshark say the same about recorded frames of cards and kernels, about captures of
//! whole sessions where they are at hand, and about sessions of our own.

mod common;

use common::{
    ETHERNET, captures_of_cards, dissect, pcap, recorded, scratch,
    session::{BUFFER, Session},
};
use rxe_core::{testing::PairConfig, work::SendOp};
use serde_json::Value;
use std::{collections::HashMap, path::Path, process::Command};

/// tshark's name, and the path to the same field in ours. Where tshark has one field for several messages, all of them.
const FIELDS: &[(&str, &[&str])] = &[
    ("infiniband.bth.opcode", &["bth/opcode"]),
    ("infiniband.bth.se", &["bth/solicited"]),
    ("infiniband.bth.m", &["bth/migreq"]),
    ("infiniband.bth.padcnt", &["bth/pad"]),
    ("infiniband.bth.tver", &["bth/version"]),
    ("infiniband.bth.p_key", &["bth/pkey"]),
    ("infiniband.bth.destqp", &["bth/dest_qp"]),
    ("infiniband.bth.a", &["bth/ack_req"]),
    ("infiniband.bth.psn", &["bth/psn"]),
    ("infiniband.deth.q_key", &["deth/qkey"]),
    ("infiniband.deth.srcqp", &["deth/src_qp"]),
    ("infiniband.reth.va", &["reth/va", "atomic_eth/va"]),
    ("infiniband.reth.r_key", &["reth/rkey", "atomic_eth/rkey"]),
    ("infiniband.reth.dmalen", &["reth/length"]),
    ("infiniband.atomiceth.swapdt", &["atomic_eth/swap_or_add"]),
    ("infiniband.atomiceth.cmpdt", &["atomic_eth/compare"]),
    ("infiniband.aeth.syndrome", &["aeth/syndrome"]),
    ("infiniband.aeth.msn", &["aeth/msn"]),
    ("infiniband.atomicacketh.origremdt", &["atomic_ack_eth/original"]),
    ("infiniband.mad.transactionid", &["cm/transaction"]),
    ("infiniband.mad.attributeid", &["cm/attribute"]),
    ("infiniband.mad.attributemodifier", &["cm/modifier"]),
    ("infiniband.cm.req", &["cm/local_comm_id"]),
    ("infiniband.cm.req.serviceid", &["cm/service_id"]),
    ("infiniband.cm.req.serviceid.dport", &["cm/service_id"]),
    ("infiniband.cm.req.localcaguid", &["cm/local_ca_guid"]),
    ("infiniband.cm.req.localqpn", &["cm/local_qpn"]),
    ("infiniband.cm.req.responderres", &["cm/responder_resources"]),
    ("infiniband.cm.req.initdepth", &["cm/initiator_depth"]),
    ("infiniband.cm.req.remoteresptout", &["cm/remote_cm_response_timeout"]),
    ("infiniband.cm.req.transpsvctype", &["cm/transport"]),
    ("infiniband.cm.req.e2eflowctrl", &["cm/flow_control"]),
    ("infiniband.cm.req.startpsn", &["cm/starting_psn"]),
    ("infiniband.cm.req.localresptout", &["cm/local_cm_response_timeout"]),
    ("infiniband.cm.req.retrcount", &["cm/retry_count"]),
    ("infiniband.cm.req.pkey", &["cm/pkey"]),
    ("infiniband.cm.req.pppmtu", &["cm/path_mtu"]),
    ("infiniband.cm.req.rnrretrcount", &["cm/rnr_retry_count"]),
    ("infiniband.cm.req.maxcmretr", &["cm/max_cm_retries"]),
    ("infiniband.cm.req.srq", &["cm/srq"]),
    ("infiniband.cm.req.prim_hoplim", &["cm/primary/hop_limit"]),
    ("infiniband.cm.req.prim_tfcclass", &["cm/primary/traffic_class"]),
    ("infiniband.cm.req.prim_sl", &["cm/primary/service_level"]),
    ("infiniband.cm.req.prim_localacktout", &["cm/primary/ack_timeout"]),
    ("infiniband.cm.req.prim_localgid_ipv4", &["cm/primary/local_gid"]),
    ("infiniband.cm.req.prim_remotegid_ipv4", &["cm/primary/remote_gid"]),
    ("infiniband.cm.req.ip_cm.sport", &["cm/ip_cm/src_port"]),
    ("infiniband.cm.req.ip_cm.sip4", &["cm/ip_cm/src"]),
    ("infiniband.cm.req.ip_cm.dip4", &["cm/ip_cm/dst"]),
    ("infiniband.cm.rep", &["cm/local_comm_id"]),
    ("infiniband.cm.rep.remotecommid", &["cm/remote_comm_id"]),
    ("infiniband.cm.rep.localqpn", &["cm/local_qpn"]),
    ("infiniband.cm.rep.startpsn", &["cm/starting_psn"]),
    ("infiniband.cm.rep.respres", &["cm/responder_resources"]),
    ("infiniband.cm.rep.initdepth", &["cm/initiator_depth"]),
    ("infiniband.cm.rep.tgtackdelay", &["cm/target_ack_delay"]),
    ("infiniband.cm.rep.e2eflowctrl", &["cm/flow_control"]),
    ("infiniband.cm.rep.rnrretrcount", &["cm/rnr_retry_count"]),
    ("infiniband.cm.rep.srq", &["cm/srq"]),
    ("infiniband.cm.rep.localcaguid", &["cm/local_ca_guid"]),
    ("infiniband.cm.rtu.localcommid", &["cm/local_comm_id"]),
    ("infiniband.cm.rtu.remotecommid", &["cm/remote_comm_id"]),
    ("infiniband.cm.rej.localcommid", &["cm/local_comm_id"]),
    ("infiniband.cm.rej.remotecommid", &["cm/remote_comm_id"]),
    ("infiniband.cm.rej.msgrej", &["cm/message"]),
    ("infiniband.cm.rej.rejinfolen", &["cm/info_len"]),
    ("infiniband.cm.rej.reason", &["cm/reason"]),
    ("infiniband.cm.dreq.localcommid", &["cm/local_comm_id"]),
    ("infiniband.cm.dreq.remotecommid", &["cm/remote_comm_id"]),
    ("infiniband.cm.drsp.localcommid", &["cm/local_comm_id"]),
    ("infiniband.cm.drsp.remotecommid", &["cm/remote_comm_id"]),
];

/// Version of the header in front of a request's private data. There is 0 only (IBTA vol. 1, annex A11), and others are no
/// such header: tshark shows fields of it all the same.
const VERSION: &str = "infiniband.cm.req.ip_cm.majv";
const IP_CM: &str = "infiniband.cm.req.ip_cm.";

/// What tshark says: a row of fields for each frame, and last the version.
fn tshark(file: &Path) -> Option<Vec<Vec<String>>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-T", "fields", "-E", "occurrence=f", "-E", "separator=|"]);
    for (name, _) in FIELDS {
        command.args(["-e", name]);
    }
    command.args(["-e", VERSION]);
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("skipped: tshark: {error}");
            return None;
        }
    };
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect())
}

/// tshark's value and ours as what can be compared.
fn same(name: &str, theirs: &str, ours: &Value) -> bool {
    let number = match theirs.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => theirs.parse::<u64>().ok(),
    };
    match ours {
        Value::Bool(set) => Some(u64::from(*set)) == number || theirs == if *set { "True" } else { "False" },
        Value::Number(value) if name.ends_with("dport") => number == value.as_u64().map(|id| id & 0xffff),
        Value::Number(value) => number.is_some() && number == value.as_u64(),
        Value::String(text) => text == theirs,
        _ => false,
    }
}

/// Compares a file; how many values were compared.
fn compare(file: &Path) -> Option<usize> {
    let rows = tshark(file)?;
    let ours = dissect(&std::fs::read(file).unwrap());
    let mut first = HashMap::new();
    for (index, seen) in ours.seen.iter().enumerate() {
        first.entry(seen.place.0).or_insert(index);
    }
    let mut compared = 0;
    let mut differences = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let found = first.get(&(number as u64 + 1)).map(|index| &ours.seen[*index]);
        let is_other = row.last().is_some_and(|version| !["", "0", "0x00"].contains(&version.as_str()));
        if is_other && found.is_some_and(|seen| seen.json["fields"].pointer("/cm/ip_cm").is_some()) {
            differences.push(format!("frame {}: a header of another version", number + 1));
        }
        for ((name, paths), theirs) in FIELDS.iter().zip(row) {
            if theirs.is_empty() || (is_other && name.starts_with(IP_CM)) {
                continue;
            }
            let value = found.and_then(|seen| {
                paths.iter().find_map(|path| seen.json["fields"].pointer(&format!("/{path}")))
            });
            compared += 1;
            if !value.is_some_and(|value| same(name, theirs, value)) {
                differences.push(format!("frame {}: {name} {theirs}, ours {value:?}", number + 1));
            }
        }
    }
    assert!(differences.is_empty(), "{}:\n{}", file.display(), differences.join("\n"));
    Some(compared)
}

/// Cards and kernels, by other people's hands.
#[test]
fn recorded_frames_of_cards_and_kernels() {
    let file = scratch("recorded.pcap", &pcap(ETHERNET, &recorded()));
    let Some(compared) = compare(&file) else { return };
    assert!(compared > 300, "{compared} values");
}

/// Whole sessions between cards, or with kernels.
#[test]
fn sessions_of_cards() {
    let files = captures_of_cards();
    if files.is_empty() {
        return eprintln!("skipped: sessions_of_cards: no captures at hand");
    }
    for file in files {
        let Some(compared) = compare(&file) else { return };
        assert!(compared > 150, "{compared} values of {}", file.display());
    }
}

/// Every operation of ours, over IPv4 and IPv6.
#[test]
fn sessions_of_ours() {
    for ipv6 in [false, true] {
        let config = PairConfig { name: "tshark", ipv6, ..PairConfig::default() };
        let mut session = Session::with(config, &rxe_core::testing::ConnectOptions::default());
        let remote = session.remote(1);
        for _ in 0..4 {
            session.recv(1, 10_000);
        }
        session.send(0, SendOp::Send, 5_000);
        session.send(0, SendOp::SendImm([1, 2, 3, 4]), 3);
        session.send(0, SendOp::Write(remote), 9_001);
        session.send(0, SendOp::WriteImm(remote, [9; 4]), 10);
        session.send(0, SendOp::Read(remote), 7_777);
        session.send(
            0,
            SendOp::CompareSwap { remote, compare: 0x0102_0304_0506_0708, swap: 0x1112_1314_1516_1718 },
            8,
        );
        session.send(0, SendOp::FetchAdd { remote, add: 77 }, 8);
        // Nothing waits for it: a NAK for "not ready".
        session.recv(1, 1);
        session.send(0, SendOp::Send, BUFFER as u32 / 64);
        session.run();
        let file = scratch(&format!("ours-{ipv6}.pcapng"), &session.capture());
        let Some(compared) = compare(&file) else { return };
        assert!(compared > 400, "{compared} values");
    }
}
