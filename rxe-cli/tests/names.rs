//! The names of devices: by the configuration, by `rdma dev set`, and in what vendors' programs show.

#[path = "common/mod.rs"]
mod common;
#[path = "../../rxe-verbs/tests/netns/mod.rs"]
mod netns;
#[path = "cm/stage.rs"]
#[allow(dead_code, reason = "the tests of the connection manager use the rest")]
mod stage;

use common::{PATIENCE, failed, good, rxe, text};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use stage::{Host, scratch};
use std::{fs, path::Path, process::Command, thread, time::Duration, time::Instant};

fn with(config: &Path, arguments: &str) -> Command {
    let mut command = rxe(arguments);
    command.env("RXE_CONFIG", config);
    command
}

fn shown(host: &Host, command: Command) -> String {
    let output = host.output(command);
    good(&output);
    text(&output.stdout).to_owned()
}

#[test]
fn a_device_is_called_as_it_was_told() {
    let Some(host) = Host::new() else { return };
    let config = scratch("names.toml");
    fs::write(&config, "[[port]]\ninterface = \"lo\"\nname = \"roce_lo\"\n[service]\nidle_seconds = 1\n")
        .unwrap();
    let command = |arguments: &str| with(&config, arguments);
    let ours = |arguments: &str| shown(&host, command(arguments));
    assert!(ours("devices").contains("roce_lo\n"), "by the configuration");
    assert_eq!(ours("ibdev2netdev"), "roce_lo port 1 ==> lo (Up)\n");
    // Without it the number counts, which is also what its index is.
    let plain = shown(&host, rxe("rdma link show -j"));
    let plain: Value = serde_json::from_str(&plain).unwrap();
    assert_eq!((&plain[0]["ifname"], &plain[0]["ifindex"]), (&"rxe0".into(), &0.into()));

    ours("rdma dev set roce_lo name roce_eth0");
    assert!(ours("rdma link").starts_with("link roce_eth0/1 state ACTIVE"), "by an administrator");
    assert!(ours("rdma dev show roce_eth0").starts_with("0: roce_eth0: "));
    // By its interface it is always found.
    ours("link set lo name b");
    assert_eq!(ours("ibdev2netdev"), "b port 1 ==> lo (Up)\n");
    for (name, why) in
        [("rxe7", "cannot be called rxe7: a name is"), ("a/b", "a name is"), ("-a", "unknown option")]
    {
        failed(&host.output(command(&format!("rdma dev set b name {name}"))), why);
    }
    failed(&host.output(command("rdma dev set roce_lo name x")), "no device is called roce_lo");
    ours("rdma dev set b name rxe0");
    assert_eq!(ours("ibdev2netdev"), "rxe0 port 1 ==> lo (Up)\n", "taken back");
}

#[test]
fn gids_are_shown_as_vendors_do() {
    let Some(host) = Host::new() else { return };
    let rows = |arguments: &str| {
        let printed = shown(&host, rxe(arguments));
        printed.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect::<Vec<Vec<_>>>()
    };
    let all = rows("show_gids");
    assert_eq!(all[0].iter().filter(|word| !word.is_empty()).count(), 7, "{all:?}");
    let v4 = all.iter().find(|row| row.get(3).is_some_and(|gid| gid.ends_with(":ffff:7f00:0001"))).unwrap();
    let wanted = ["rxe0", "1", &v4[2], "0000:0000:0000:0000:0000:ffff:7f00:0001", "127.0.0.1  ", "v2", "lo"];
    assert_eq!(*v4, wanted);
    assert_eq!(*all.last().unwrap(), [format!("n_gids_found={}", all.len() - 3)]);
    assert_eq!(rows("show_gids rxe0 1"), all);
    failed(&host.output(rxe("show_gids rxe0 2")), "no port 2");
    failed(&host.output(rxe("show_gids nope")), "no device is called nope");
}

/// Where the link carries both RoCEs each GID is listed by both, first all of v2, as kernels name them.
#[test]
fn gids_of_both_roces_are_listed() {
    let Some(host) = Host::new() else { return };
    let over = |link: &str, arguments: &str| {
        let mut command = rxe(arguments);
        command.env("RXE_LINK", link);
        shown(&host, command)
    };
    // Of the index no word: those of v1 stand behind.
    let rows = |link: &str| -> Vec<(String, String)> {
        let table = over(link, "show_gids");
        let columns = table.lines().skip(2).map(|line| line.split('\t').collect::<Vec<_>>());
        // An IPv6 address has one column more, which is empty.
        let gids = columns.filter(|row| row.len() >= 7);
        gids.map(|row| (row[3].to_owned(), row[row.len() - 2].to_owned())).collect()
    };
    let v2 = rows("udp");
    assert!(!v2.is_empty() && v2.iter().all(|(_, version)| version == "v2"), "{v2:?}");
    let both = rows("raw");
    assert_eq!(both[..v2.len()], v2);
    let v1 = &both[v2.len()..];
    assert!(
        v1.iter().all(|(gid, version)| version == "v1" && v2.iter().any(|(of, _)| of == gid)),
        "{both:?}"
    );
    assert!(v2.iter().all(|(gid, _)| v1.iter().any(|(of, _)| of == gid)), "{both:?}");
    let (udp, raw) = (over("udp", "devices -v"), over("raw", "devices -v"));
    assert_eq!(udp.matches("IB/RoCE v1").count(), 0, "{udp}");
    assert_eq!(
        (raw.matches("IB/RoCE v1").count(), raw.matches("RoCE v2").count()),
        (v1.len(), v2.len()),
        "{raw}"
    );
}

/// Programs go on under a new name, and what they count is found by it.
#[test]
fn counters_follow_the_name() {
    let Some(host) = Host::new() else { return };
    let config = Path::new(common::CONFIG);
    let server = host.watched(with(config, "rping --persistent"), "");
    let start = Instant::now();
    let sent = || -> Option<(String, u64)> {
        let links: Value = serde_json::from_str(&shown(&host, with(config, "rdma statistic -j"))).unwrap();
        Some((links[0]["ifname"].as_str()?.to_owned(), links[0]["sent_pkts"].as_u64()?))
    };
    let ping = || {
        while !host.output(with(config, "rping 127.0.0.1 -n 3")).status.success() {
            assert!(start.elapsed() < PATIENCE, "nobody answers");
            thread::sleep(Duration::from_millis(20));
        }
    };
    ping();
    let (name, before) = sent().unwrap();
    assert!(name == "rxe0" && before > 0, "{name} {before}");
    shown(&host, with(config, "rdma dev set rxe0 name later"));
    ping();
    let (name, after) = sent().unwrap();
    assert!(name == "later" && after > before, "{name} {after}");
    drop(server);
}

/// Both sides know the hosts that programs have connected with, and the names that the configuration gives them.
#[test]
fn hosts_that_were_met_are_listed() {
    let Some((here, there)) = netns::pair(1500) else { return };
    let (here, there) = (Host::of(here), Host::of(there));
    let devices: Value = serde_json::from_str(&shown(&there, rxe("devices v1 --json"))).unwrap();
    let guid = devices[0]["guid"].as_str().unwrap();
    let config = scratch("fabric.toml");
    let named = format!("[[fabric.port]]\nguid = \"{guid}\"\nname = \"storage/P1\"\n");
    fs::write(&config, format!("{named}[service]\nidle_seconds = 60\n")).unwrap();
    let fabric = || -> Value { serde_json::from_str(&shown(&here, with(&config, "fabric --json"))).unwrap() };
    let before = fabric();
    assert_eq!(
        (&before["others"][0]["name"], &before["others"][0]["seconds"]),
        (&"storage/P1".into(), &Value::Null)
    );

    let server = here.watched(with(&config, "rping --persistent"), "");
    good(&there.client("rping 10.9.0.1 -n 3"));
    let met = fabric();
    let others = met["others"].as_array().unwrap();
    assert_eq!(others.len(), 1, "{met}");
    assert_eq!(others[0]["guid"], guid, "{met}");
    assert_eq!((&others[0]["name"], &others[0]["pkeys"][0]), (&"storage/P1".into(), &0xffff.into()), "{met}");
    assert!(others[0]["addresses"][0] == "10.9.0.2" && others[0]["seconds"].is_u64(), "{met}");
    let stat: Value = serde_json::from_str(&shown(&here, with(&config, "stat --json"))).unwrap();
    let of_server =
        stat["clients"].as_array().unwrap().iter().find(|client| client["name"] == "rxe").unwrap();
    for list in [&stat["peers"], &of_server["peers"]] {
        assert_eq!(list[0]["guid"], guid, "{stat}");
    }
    // It is remembered when the program that met it is gone.
    drop(server);
    let line = format!("guid {guid}  \"storage/P1\"  P_Keys 0xffff  heard of ");
    let printed = shown(&here, with(&config, "fabric"));
    assert!(printed.lines().any(|text| text.contains(&line)), "{printed}");
    good(&here.output(with(&config, "service stop")));
}

/// A service that is stopped cannot be asked why it does not answer.
#[test]
fn a_service_that_does_not_answer_is_told() {
    let Some(host) = Host::new() else { return };
    let service = host.watched(with(Path::new(common::LASTING), "service run"), "");
    let start = Instant::now();
    let status = loop {
        let output = host.output(rxe("service status --json"));
        if output.status.success() {
            break serde_json::from_slice::<Value>(&output.stdout).unwrap();
        }
        assert!(start.elapsed() < PATIENCE, "{output:?}");
    };
    let process = Pid::from_raw(status["pid"].as_i64().unwrap() as i32);
    kill(process, Signal::SIGSTOP).unwrap();
    failed(
        &host.output(rxe("service status")),
        "`ss -xlp src @rxe/4791` shows its process, which may be stopped",
    );
    kill(process, Signal::SIGCONT).unwrap();
    good(&host.output(rxe("service status")));
    drop(service);
}

/// Those that are too many are told, and the others' answers are shown.
#[test]
fn more_hosts_than_are_asked_at_a_time() {
    let Some((here, _there)) = netns::pair(1500) else { return };
    let host = Host::of(here);
    let hosts: Vec<String> = (0x100..0x100 + 258).map(|last| format!("fd09::{last:x}")).collect();
    let output = host.output(rxe(&format!("fabric --probe {}", hosts.join(" "))));
    good(&output);
    // The kernel may know a neighbour besides.
    assert!(
        text(&output.stderr).ends_with(" hosts are known, of which the first 256 are asked\n"),
        "{output:?}"
    );
    let silent = text(&output.stdout).lines().filter(|line| line.ends_with(", does not answer"));
    assert_eq!(silent.count(), 256, "{output:?}");
}
