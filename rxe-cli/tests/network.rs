//! The program in networks of its own: where its port is taken, nothing has an address, IPv6 is all there is, or the two
//! sides have different MTUs.

mod common;

use common::{Background, CONFIG, PATIENCE, client_of, failed, good, text};
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A network namespace, removed at the end.
struct Namespace(String);

impl Namespace {
    /// A new one with nothing up; `None`, and why on stderr, where we may not make one.
    fn new(name: &str) -> Option<Self> {
        let name = format!("rxe-cli-{name}-{}", std::process::id());
        let output =
            Command::new("ip").args(["netns", "add", &name]).output().expect("ip (iproute2) is needed");
        if output.status.success() {
            return Some(Self(name));
        }
        let why = text(&output.stderr).trim();
        // Past the test harness, which would keep it to itself.
        let _ = writeln!(
            std::io::stderr(),
            "skipped: {name}: needs root: no network namespace can be made here ({why})"
        );
        None
    }

    fn with_loopback(name: &str) -> Option<Self> {
        let namespace = Self::new(name)?;
        namespace.ip("link set lo up");
        Some(namespace)
    }

    fn ip(&self, arguments: &str) {
        let command = Command::new("ip").args(["-n", &self.0]).args(arguments.split(' ')).output();
        let output = command.expect("ip (iproute2) is needed");
        assert!(output.status.success(), "ip {arguments}: {}", text(&output.stderr));
    }

    /// A program to be run inside.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, program]).stdin(Stdio::null());
        command
    }

    fn rxe(&self, arguments: &str) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_rxe"));
        command.args(arguments.split_whitespace()).env("RXE_CONFIG", CONFIG);
        command
    }

    fn run(&self, arguments: &str) -> Output {
        self.rxe(arguments).output().unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Server and client, when both have ended.
fn both((one, server): (&Namespace, &str), (two, client): (&Namespace, &str)) -> [Output; 2] {
    let server = Background::spawn(one.rxe(server));
    let client = client_of(|| two.rxe(client));
    [server.finish(), client]
}

/// Another program has the port and does not share it.
#[test]
fn a_port_held_by_a_stranger_is_told() {
    const HOLDER: &str = "import socket, sys
holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
holder.bind(('0.0.0.0', 4791))
print('held', flush=True)
sys.stdin.read()";
    let Some(namespace) = Namespace::with_loopback("held") else { return };
    let mut holder = namespace.command("python3");
    let mut holder =
        holder.args(["-c", HOLDER]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    let held = |address: &str| {
        format!(
            "UDP port 4791 of {address} is held by process {} (python3); end it, or use another",
            holder.id()
        )
    };
    failed(&namespace.run("pingpong rc"), &held("0.0.0.0"));
    failed(&namespace.run("pingpong ud --bind 127.0.0.5"), &held("0.0.0.0"));
    failed(&namespace.run("perf"), &held("0.0.0.0"));
    let dir = std::env::temp_dir().join(format!("rxe-cli-held-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let demo = namespace.rxe("demo").env("TMPDIR", &dir).output().unwrap();
    failed(&demo, &held("0.0.0.0"));
    assert!(!text(&demo.stderr).contains("the other side"), "{demo:?}");
    // There is nothing to be recorded, so that no file is left.
    fs::remove_dir(dir).unwrap();
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
}

/// Files below a folder, by their inodes: one that was written anew has another.
fn inodes(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let about = fs::symlink_metadata(&path).unwrap();
        if about.is_dir() {
            found.extend(inodes(&path));
        } else {
            found.insert(path, about.ino());
        }
    }
    found
}

/// Files that `rxe run` writes for its programs stay while programs of an earlier run use them: only files with a change are written
/// anew, and devices keep their names when interfaces come and go.
#[test]
fn a_second_run_leaves_the_view_of_the_first() {
    let Some(namespace) = Namespace::with_loopback("view") else { return };
    let dir = std::env::temp_dir().join(format!("rxe-cli-view-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    for name in ["libibverbs.so.1", "librxe_sysfs.so"] {
        fs::write(dir.join(name), "").unwrap();
    }
    std::os::unix::fs::symlink("libibverbs.so.1", dir.join("librdmacm.so.1")).unwrap();
    let view = || -> PathBuf {
        let output = namespace.rxe("env").env("RXE_LIB", &dir).env("XDG_RUNTIME_DIR", &dir).output().unwrap();
        good(&output);
        let line = text(&output.stdout).lines().find_map(|line| line.strip_prefix("export RXE_SYSFS="));
        line.unwrap().trim_matches('\'').into()
    };
    let folder = view();
    let device = |name: &str| folder.join("infiniband").join(name);
    let before = inodes(&device("rxe0"));
    assert!(before.len() > 20, "{before:?}");
    assert_eq!((view(), inodes(&device("rxe0"))), (folder.clone(), before.clone()));
    // By the alphabet, or by what was listed last, it could be the first.
    namespace.ip("link add a0 type veth peer name a1");
    namespace.ip("addr add 10.9.8.7/24 dev a0");
    namespace.ip("link set a0 up");
    assert_eq!((view(), inodes(&device("rxe0"))), (folder.clone(), before.clone()));
    assert!(device("rxe1/device/net/a0").symlink_metadata().is_ok(), "a name of its own");
    namespace.ip("link del a0");
    assert_eq!((view(), inodes(&device("rxe0"))), (folder.clone(), before));
    assert!(!device("rxe1").exists(), "it is gone");
    fs::remove_dir_all(dir).unwrap();
}

/// Views of devices with similar names do not take each other's place, and the name `v1` says nothing of RoCE v1.
#[test]
fn each_device_has_a_view_of_its_own() {
    let Some(namespace) = Namespace::with_loopback("views") else { return };
    let dir = std::env::temp_dir().join(format!("rxe-cli-views-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    for name in ["libibverbs.so.1", "librxe_sysfs.so"] {
        fs::write(dir.join(name), "").unwrap();
    }
    std::os::unix::fs::symlink("libibverbs.so.1", dir.join("librdmacm.so.1")).unwrap();
    namespace.ip("link add a.b type veth peer name a_b");
    namespace.ip("link add v1 type veth peer name v2");
    let interfaces = ["a.b", "a_b", "v1", "v2"];
    for (number, interface) in interfaces.iter().enumerate() {
        namespace.ip(&format!("addr add 10.45.{number}.1/24 dev {interface}"));
        namespace.ip(&format!("link set {interface} up"));
    }
    let view = |arguments: &str, link: &str| -> PathBuf {
        let mut command = namespace.rxe(&format!("env {arguments}"));
        command.env("RXE_LIB", &dir).env("XDG_RUNTIME_DIR", &dir).env("RXE_LINK", link);
        let output = command.output().unwrap();
        good(&output);
        let line = text(&output.stdout).lines().find_map(|line| line.strip_prefix("export RXE_SYSFS="));
        line.unwrap().trim_matches('\'').into()
    };
    let is_v1 = |view: &Path| view.to_str().unwrap().ends_with("-v1");
    assert!(is_v1(&view("", "raw")) && !is_v1(&view("", "udp")));
    let views = interfaces.map(|interface| view(&format!("--device {interface}"), "udp"));
    for (interface, view) in interfaces.iter().zip(&views) {
        let [device] = &fs::read_dir(view.join("infiniband")).unwrap().collect::<Vec<_>>()[..] else {
            panic!("{interface} is not alone in its view");
        };
        let net = device.as_ref().unwrap().path().join("device/net").join(interface);
        assert!(net.symlink_metadata().is_ok(), "{} is another's", view.display());
        assert!(!is_v1(view), "{interface}");
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_host_without_addresses_is_told() {
    let Some(namespace) = Namespace::new("none") else { return };
    for command in ["pingpong rc", "pingpong rc 192.0.2.1", "perf", "perf write bw ::1", "devices", "demo"] {
        failed(&namespace.run(command), "`ip link set lo up`");
    }
    failed(&namespace.run("pingpong rc --bind 127.0.0.1"), "127.0.0.1 is not an address of this host");
    failed(&namespace.run("pingpong rc --device lo"), "no device is called lo");
}

#[test]
fn an_unreachable_peer_is_told() {
    let Some(namespace) = Namespace::with_loopback("alone") else { return };
    failed(
        &namespace.run("pingpong rc 192.0.2.1"),
        "cannot reach 192.0.2.1, TCP port 18515: Network is unreachable",
    );
    failed(&namespace.run("perf read bw 2001:db8::1"), "cannot reach 2001:db8::1, TCP port 18515");
}

#[test]
fn ipv6_alone() {
    let Some(namespace) = Namespace::with_loopback("ipv6") else { return };
    namespace.ip("addr del 127.0.0.1/8 dev lo");
    namespace.ip("addr add ::2/128 dev lo nodad");
    for service in ["rc", "uc", "ud", "srq -n 200", "rc --events", "srq -n 200 --events"] {
        let options = format!("pingpong {service} --check --bind");
        let outputs =
            both((&namespace, &format!("{options} ::1")), (&namespace, &format!("{options} ::2 ::1")));
        for output in outputs {
            good(&output);
            assert!(text(&output.stdout).contains("GID ::1"), "{output:?}");
            assert!(text(&output.stdout).contains("every byte received was right"), "{output:?}");
        }
    }
    for what in ["write bw", "read lat", "atomic lat"] {
        let client = format!("perf {what} -n 50 --json --bind ::2 ::1");
        let [server, client] = both((&namespace, "perf --bind ::1"), (&namespace, &client));
        good(&server);
        good(&client);
        let line: serde_json::Value = serde_json::from_slice(&client.stdout).unwrap();
        let messages =
            line["bandwidth"]["messages"].as_u64().or_else(|| line["latency"]["messages"].as_u64());
        assert_eq!(messages, Some(50), "{line}");
    }
}

/// A link-local address belongs to an interface, which the server finds by itself, and the client names.
#[test]
fn link_local_addresses() {
    let (Some(here), Some(there)) = (Namespace::with_loopback("local"), Namespace::with_loopback("far"))
    else {
        return;
    };
    here.ip(&format!("link add v0 type veth peer name v1 netns {}", there.0));
    for (namespace, name, address) in [(&here, "v0", "fe80::1/64"), (&there, "v1", "fe80::2/64")] {
        namespace.ip(&format!("addr add {address} dev {name} nodad"));
        namespace.ip(&format!("link set {name} up"));
    }
    for (server, client) in [
        ("pingpong rc --check --bind fe80::1", "pingpong rc --check --bind fe80::2 fe80::1%v1"),
        ("perf --bind fe80::1", "perf write bw -n 50 --bind fe80::2 fe80::1%v1"),
    ] {
        let [server, client] = both((&here, server), (&there, client));
        good(&client);
        good(&server);
    }
}

/// Two hosts, one with a larger MTU than the other.
#[test]
fn different_interface_mtus_are_told() {
    let (Some(large), Some(small)) = (Namespace::with_loopback("large"), Namespace::with_loopback("small"))
    else {
        return;
    };
    large.ip(&format!("link add v0 mtu 9000 type veth peer name v1 mtu 1500 netns {}", small.0));
    for (namespace, name, address) in [(&large, "v0", "10.9.0.1/24"), (&small, "v1", "10.9.0.2/24")] {
        namespace.ip(&format!("addr add {address} dev {name}"));
        namespace.ip(&format!("link set {name} up"));
    }
    // Until both have a carrier, the port is not there.
    let start = Instant::now();
    while !text(&small.run("devices -v v1").stdout).contains("PORT_ACTIVE") {
        assert!(start.elapsed() < PATIENCE, "v1 does not come up");
        thread::sleep(Duration::from_millis(20));
    }
    failed(&small.run("pingpong rc --bind 10.9.0.2 --mtu 4096"), "use --mtu 1024 on both sides");
    // The larger packets do not arrive.
    let server = "pingpong rc --bind 10.9.0.2 --mtu 1024";
    let [server, client] =
        both((&small, server), (&large, "pingpong rc --bind 10.9.0.1 --mtu 4096 10.9.0.2"));
    failed(&client, "has it the same MTU?");
    failed(&server, "have both the same --size and --mtu?");
    // `perf` asks the other side beforehand.
    let client = "perf write bw -m 4096 --bind 10.9.0.1 10.9.0.2";
    let [server, client] = both((&small, "perf --bind 10.9.0.2"), (&large, client));
    failed(&client, "this side takes 4096, the other 1024; use --mtu 1024");
    good(&server);
    let client = "perf write bw -n 50 --bind 10.9.0.1 10.9.0.2";
    let [server, client] = both((&small, "perf --bind 10.9.0.2"), (&large, client));
    good(&client);
    good(&server);
    assert!(text(&client.stdout).contains("MTU 1024"), "{client:?}");
}

/// Interfaces that come later do not change the names of those that were there.
#[test]
fn a_device_is_called_the_same_by_all_processes() {
    let Some(namespace) = Namespace::with_loopback("names") else { return };
    let list = || -> Vec<(String, String)> {
        let output = namespace.run("link show -j");
        good(&output);
        let list: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
        let text = |link: &serde_json::Value, name: &str| link[name].as_str().unwrap().to_owned();
        list.iter().map(|link| (text(link, "ifname"), text(link, "netdev"))).collect()
    };
    let pair = |name: &str, netdev: &str| (name.to_owned(), netdev.to_owned());
    assert_eq!(list(), [pair("rxe0", "lo")]);
    namespace.ip("link add later type veth peer name latest");
    for (number, name) in ["later", "latest"].into_iter().enumerate() {
        namespace.ip(&format!("link set {name} up"));
        namespace.ip(&format!("addr add 10.44.{number}.1/24 dev {name}"));
    }
    namespace.ip("route add default dev latest");
    let all = [pair("rxe1", "latest"), pair("rxe2", "later"), pair("rxe0", "lo")];
    assert_eq!(list(), all);
    namespace.ip("addr flush dev latest");
    namespace.ip("link set latest down");
    assert_eq!(list(), all[1..]);
}
