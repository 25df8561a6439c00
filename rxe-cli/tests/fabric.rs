//! What OpenSM's files decide: `rxe path` shows it, connections follow it, and tshark sees it on the wire.

#[path = "common/mod.rs"]
mod common;
#[path = "../../rxe-verbs/tests/netns/mod.rs"]
mod netns;
#[path = "cm/stage.rs"]
#[allow(dead_code, reason = "the tests of the connection manager use the rest")]
mod stage;

use common::{Background, failed, good, page, rxe, text};
use netns::skip;
use serde_json::Value;
use stage::{Host, scratch};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The port of rping: service ID 0x1061c06.
const POLICY: &str = "qos-ulps\n default : 0\n any, service-id 0x1061c06 : 3\nend-qos-ulps\n";
/// Everybody is in Blue, whose key is the first.
const PARTITIONS: &str = "Default=0x7fff : ALL=full;\nBlue=0x12, indx0, sl=5 : ALL=full;\n";
/// This host is a limited member of everything.
const LIMITED: &str = "Blue=0x12 : ALL=limited;\n";

/// Files in a folder of their own; the configuration's name.
fn files(policy: &str, partitions: &str, more: &str) -> PathBuf {
    let folder = scratch("fabric");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("policy"), policy).unwrap();
    fs::write(folder.join("partitions"), partitions).unwrap();
    let config = folder.join("rxe.toml");
    let text = format!(
        "[service]\nidle_seconds = 1\n[fabric]\nqos_policy_file = \"policy\"\npartition_config_file = \"partitions\"\n{more}"
    );
    fs::write(&config, text).unwrap();
    config
}

fn with(config: &Path, arguments: &str) -> Command {
    let mut command = rxe(arguments);
    command.env("RXE_CONFIG", config);
    command
}

#[test]
fn a_path_is_printed_as_text_and_as_json() {
    let Some(host) = Host::new() else { return };
    let config = files(POLICY, PARTITIONS, "dscp = [0,1,2,30,4,5,6,7,8,9,10,11,12,13,14]\n");
    let output = host.output(with(&config, "path --port 7174 --json 127.0.0.1"));
    good(&output);
    let path: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (name, value) in [("sl", 3), ("vl", 3), ("dscp", 30), ("pkey", 0x8012), ("rule_line", 3), ("mtu", 5)]
    {
        assert_eq!(path[name], value, "{name}: {path}");
    }
    // Without the port no rule fits.
    let output = host.output(with(&config, "path --service-id 0x1061c07 --pkey 0xffff 127.0.0.1"));
    good(&output);
    let dump = text(&output.stdout);
    for line in [
        "service_id..............0x0000000001061c07",
        "sl......................0x0",
        "pkey....................0xFFFF",
    ] {
        assert!(dump.contains(line), "{dump}");
    }
    failed(&host.output(with(&config, "path --pkey 0x44 127.0.0.1")), "do not share P_Key 0x0044");
    failed(
        &host.output(with(&config, "path --port 7174 --sl 4 127.0.0.1")),
        "service level 4 is not possible",
    );
}

/// A GID of an IPv4 address is as good as the address, and asks as rdma_cm asks over IPv4: by the QoS class that the TOS says.
#[test]
fn the_two_ends_of_a_path_are_of_one_ip_version() {
    let Some(host) = Host::new() else { return };
    let policy = "qos-levels\n qos-level\n  name: DEFAULT\n  sl: 0\n end-qos-level\n qos-level\n  name: four\n  sl: 4\n \
                  end-qos-level\nend-qos-levels\nqos-match-rules\n qos-match-rule\n  qos-class: 8\n  qos-level-name: four\n \
                  end-qos-match-rule\nend-qos-match-rules\n";
    let config = files(policy, PARTITIONS, "");
    let asked = |ends: &str| {
        let output = host.output(with(&config, &format!("path --port 7174 --tclass 8 {ends}")));
        good(&output);
        text(&output.stdout).to_owned()
    };
    let by_address = asked("127.0.0.1");
    assert!(by_address.contains("sl......................0x4"), "{by_address}");
    for ends in ["::ffff:127.0.0.1", "127.0.0.1 --from ::ffff:127.0.0.1", "::ffff:127.0.0.1 --from 127.0.0.1"]
    {
        assert_eq!(asked(ends), by_address, "{ends}");
    }
    for (ends, from, to) in
        [("127.0.0.1 --from ::1", "::1", "127.0.0.1"), ("::1 --from 127.0.0.1", "127.0.0.1", "::1")]
    {
        let wanted = format!("no path from {from} to {to}: they are of different IP versions");
        failed(&host.output(with(&config, &format!("path {ends}"))), &wanted);
    }
}

#[test]
fn a_mistake_names_file_line_and_word() {
    let config = files("qos-ulps\n default : 3\n sdp, port 4 : 1\nend-qos-ulps\n", PARTITIONS, "");
    failed(
        &with(&config, "path 127.0.0.1").output().unwrap(),
        "policy: line 3, at \"port\": sdp has no such key",
    );
    let config = files(POLICY, "Default=0x7fff : ALL=full;\nBlue=0x12 ALL;\n", "");
    failed(&with(&config, "devices").output().unwrap(), "partitions: line 2, at \"Blue=0x12 ALL\"");
}

/// A column of what tcpdump has recorded, as tshark reads it, without empty lines.
fn column(record: &Path, filter: &str, field: &str) -> Vec<String> {
    let record = record.to_str().unwrap();
    let output =
        Command::new("tshark").args(["-r", record, "-Y", filter, "-T", "fields", "-e", field]).output();
    let output = output.unwrap();
    text(&output.stdout).lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn connections_have_the_level_the_class_and_the_key() {
    if ["tshark", "tcpdump"].iter().any(|tool| Command::new(tool).arg("--version").output().is_err()) {
        return skip("tshark and tcpdump are not both installed (scripts/install-deps)");
    }
    let Some(host) = Host::new() else { return };
    let config = files(POLICY, PARTITIONS, "");
    let record = scratch("fabric.pcap");
    let mut tcpdump = Command::new("tcpdump");
    tcpdump.args([
        "-i",
        "lo",
        "-U",
        "--immediate-mode",
        "-Z",
        "root",
        "-w",
        record.to_str().unwrap(),
        "udp port 4791",
    ]);
    let errors = scratch("tcpdump");
    tcpdump.stderr(fs::File::create(&errors).unwrap());
    let recorder = host.run(move || tcpdump.spawn().unwrap());
    let mut recorder = Ended(recorder);
    while !fs::read_to_string(&errors).unwrap().contains("listening on") {
        assert!(recorder.0.try_wait().unwrap().is_none(), "{}", fs::read_to_string(&errors).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let server = host.watched(with(&config, "rping"), "");
    let client = || host.output(with(&config, "rping 127.0.0.1 -n 3 --check"));
    let start = std::time::Instant::now();
    let mut output = client();
    while text(&output.stderr).contains("start the program on") && start.elapsed() < common::PATIENCE {
        output = client();
    }
    good(&output);
    drop(server);
    // All of the connection, in both directions: every packet of reliable queue pairs. (The service probes its port once a second.)
    let data = "infiniband.bth.opcode < 32";
    // On a busy machine the recorder may be late with what it writes.
    let start = std::time::Instant::now();
    while column(&record, data, "ip.dsfield.dscp").len() < 12 && start.elapsed() < common::PATIENCE {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    recorder.interrupt();
    assert_eq!(column(&record, "infiniband.cm.req", "infiniband.cm.req.prim_sl").first().unwrap(), "0x03");
    assert_eq!(column(&record, "infiniband.cm.req", "infiniband.cm.req.pkey").first().unwrap(), "0x8012");
    let (classes, keys) =
        (column(&record, data, "ip.dsfield.dscp"), column(&record, data, "infiniband.bth.p_key"));
    assert!(classes.len() >= 12, "{classes:?}");
    assert!(classes.iter().all(|dscp| dscp == "24"), "{classes:?}");
    assert!(keys.iter().all(|key| key == "32786" || key == "0x8012"), "{keys:?}");
}

/// A program that ends with the test.
struct Ended(std::process::Child);

impl Ended {
    /// Has it end in order.
    fn interrupt(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.0.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn limited_members_do_not_reach_each_other() {
    let Some(host) = Host::new() else { return };
    let elsewhere = "[[fabric.port]]\nguid = \"0x99\"\nmanager = true\n";
    let config = files(POLICY, LIMITED, elsewhere);
    failed(&host.output(with(&config, "path --port 7174 127.0.0.1")), "share no partition");
    failed(&host.output(with(&config, "rping 127.0.0.1 -n 1")), "the host's policy has no such path");
}

/// What a command says of a process, once that is the case.
fn told_when(host: &Host, config: &Path, arguments: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    let start = std::time::Instant::now();
    loop {
        let output = host.output(with(config, arguments));
        if output.status.success() {
            let told: Value = serde_json::from_slice(&output.stdout).unwrap();
            let clients = told["clients"].as_array().unwrap();
            if let Some(client) = clients.iter().find(|client| is_it(client)) {
                return client.clone();
            }
        }
        assert!(start.elapsed() < common::PATIENCE, "{output:?}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// What `rxe stat` says of a process, once that is the case.
fn stat_when(host: &Host, config: &Path, is_it: impl Fn(&Value) -> bool) -> Value {
    told_when(host, config, "stat --json", is_it)
}

/// Starts a server, and a client that pings without end.
fn endless(host: &Host, config: &Path) -> (stage::Watched, Background) {
    let server = host.watched(with(config, "rping --persistent"), "");
    // A client that finds nobody listening ends.
    let listens = |client: &Value| client["listening"].as_array().is_some_and(|list| !list.is_empty());
    told_when(host, config, "service status --json", listens);
    let command = with(config, "rping 127.0.0.1 --check");
    (server, host.run(move || Background::spawn(command)))
}

/// Counters of a lane in a report.
fn of_lane(client: &Value, lane: u8, counter: &str) -> u64 {
    let lanes = client["lanes"].as_array().unwrap();
    let found = lanes.iter().find(|report| report["lane"] == lane);
    let counters = found.map_or(&Value::Null, |report| &report["counters"]).as_array();
    let pairs = counters.into_iter().flatten();
    pairs.filter(|pair| pair[0] == counter).filter_map(|pair| pair[1].as_u64()).sum()
}

#[test]
fn partitions_change_while_programs_run() {
    let Some(host) = Host::new() else { return };
    let config = files(POLICY, PARTITIONS, "");
    let partitions = config.with_file_name("partitions");
    let (server, client) = endless(&host, &config);
    // The lane of the service level that the policy gives to that port.
    let report = stat_when(&host, &config, |client| of_lane(client, 3, "packets_sent") > 20);
    assert!(of_lane(&report, 3, "packets_received") > 0, "{report}");
    let output = host.output(with(&config, "stat"));
    assert!(text(&output.stdout).contains("  lane 3: packets_sent "), "{output:?}");

    // A file with an error changes nothing, and the error is reported.
    fs::write(&partitions, "Default=0x7fff : ALL=full;\nBlue=0x12 ALL;\n").unwrap();
    let output = host.output(with(&config, "service reload"));
    failed(&output, "nothing was changed");
    failed(&output, "partitions: line 2");
    let before = of_lane(&report, 3, "packets_sent");
    stat_when(&host, &config, |client| of_lane(client, 3, "packets_sent") > before + 20);

    // The key is taken away: both ends are told, and neither waits for ever.
    fs::write(&partitions, "Default=0x7fff : ALL=full;\n").unwrap();
    let output = host.output(with(&config, "service reload"));
    good(&output);
    assert!(text(&output.stdout).starts_with("P_Keys changed, lanes as before"), "{output:?}");
    let output = client.finish();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    drop(server);
    good(&host.output(with(&config, "path --pkey 0xffff 127.0.0.1")));
    failed(&host.output(with(&config, "path --pkey 0x8012 127.0.0.1")), "do not share P_Key");

    // And given again, with another service level.
    fs::write(&partitions, PARTITIONS).unwrap();
    let output = host.output(with(&config, "service reload --json"));
    // The service may have ended with its last client.
    if output.status.success() {
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&report["pkeys"], &report["error"]), (&Value::Bool(true), &Value::Null), "{report}");
    }
    let (server, client) = endless(&host, &config);
    stat_when(&host, &config, |client| of_lane(client, 3, "packets_sent") > 20);
    drop((client, server));
}

#[test]
fn each_device_may_have_its_own_partitions() {
    let Some(host) = Host::new() else { return };
    let more = "[[port]]\ninterface = \"lo\"\npkeys = [0xffff, 0x8055]\n";
    let folder = scratch("tables");
    fs::create_dir_all(&folder).unwrap();
    let config = folder.join("rxe.toml");
    fs::write(&config, format!("pkeys = [0xffff]\n{more}[service]\nidle_seconds = 1\n")).unwrap();
    let output = host.output(with(&config, "devices -v"));
    good(&output);
    assert!(text(&output.stdout).contains("0x8055"), "{output:?}");
    let (server, client) = endless(&host, &config);
    stat_when(&host, &config, |client| of_lane(client, 0, "packets_sent") > 20);
    drop((client, server));
}

/// Memory that a kernel would refuse to lock is refused, with an error text, if the configuration asks for it.
#[test]
fn registered_memory_may_be_limited() {
    let Some(host) = Host::new() else { return };
    if Command::new("setpriv").arg("--version").output().is_err() {
        return skip("setpriv is not installed (scripts/install-deps)");
    }
    let folder = scratch("memlock");
    fs::create_dir_all(&folder).unwrap();
    let (config, limits) = (folder.join("rxe.toml"), folder.join("limits.conf"));
    let uid = std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").unwrap());
    fs::write(&limits, format!("{uid}:{uid} soft memlock 96 # KiB\n")).unwrap();
    fs::write(
        &config,
        "memlock = \"enforce\"\nmemlock_limits = \"limits.conf\"\n[service]\nidle_seconds = 1\n",
    )
    .unwrap();
    // A process that may lock any amount is not limited.
    let limited = |arguments: &str| {
        let inner = with(&config, arguments);
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock", "--"]);
        command.arg(inner.get_program()).args(inner.get_args()).env("RXE_CONFIG", &config);
        command
    };
    let server = host.watched(limited("rping"), "");
    let report = stat_when(&host, &config, |client| client["name"] == "rxe");
    assert_eq!(report["locked"]["limit"], 96 * 1024, "{report}");
    assert_eq!(report["locked"]["enforced"], true, "{report}");
    let output = host.output(limited("rping 127.0.0.1 -n 1"));
    failed(&output, "beyond the limit for locked memory");
    let output = host.output(limited("stat"));
    assert!(text(&output.stdout).contains("limit 96 KiB"), "{output:?}");
    drop(server);
    fs::write(&limits, "joe soft memlock many\n").unwrap();
    failed(&host.output(limited("devices")), "limits.conf: line 1, at \"many\"");
}

const PAGE: &str = include_str!("../../docs/fabric.md");

/// The page's commands print what the page says.
#[test]
fn the_page_shows_what_is_printed() {
    let Some(host) = Host::new() else { return };
    let config = files(POLICY, PARTITIONS, "");
    let text_of = fs::read_to_string(&config).unwrap().replace("idle_seconds = 1", "idle_seconds = 600");
    fs::write(&config, text_of).unwrap();
    let commands = page::commands(PAGE);
    assert!(commands.len() >= 3, "the page has lost its commands");
    for shown in commands {
        let command = shown.command.strip_prefix("rxe ").expect("a command of rxe's");
        let ran = host.output(with(&config, command));
        if shown.output.is_empty() {
            good(&ran);
            continue;
        }
        let printed = format!("{}{}", text(&ran.stdout), text(&ran.stderr));
        let wanted: Vec<_> =
            shown.output.iter().map(|line| (line != page::LEFT_OUT).then_some(line)).collect();
        let lines: Vec<_> = printed.lines().collect();
        assert!(
            page::fits(&wanted, &lines, |wanted, printed| wanted.as_str() == printed).is_ok(),
            "docs/fabric.md shows something else than `rxe {command}` prints:\n{printed}"
        );
    }
    good(&host.output(with(&config, "service stop")));
}
