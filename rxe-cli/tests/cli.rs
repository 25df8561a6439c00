//! The program as its user meets it: exit codes, messages, and two processes that talk to each other.

mod common;

use common::{Background, client, failed, good, rxe, stranger, text};
use std::{
    ffi::OsStr,
    io::{Read, Write},
    net::TcpListener,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt},
        process::ExitStatusExt,
    },
    path::PathBuf,
    process::{Command, Output},
};

#[test]
fn wrong_usage_is_two() {
    for (arguments, part) in [
        ("", "Usage"),
        ("dance", "dance"),
        ("pingpong xc", "xc"),
        ("pingpong rc --mtu 1000", "256, 512, 1024, 2048, 4096"),
        ("pingpong rc --size 0", "0"),
        ("pingpong rc --bind here", "here"),
        ("perf write bw --size 3x host", "3x"),
        ("perf write bw -n 1 -D 1 host", "--duration"),
        ("perf write bw -D 0 host", "0.01"),
        ("perf dance bw host", "possible values: write, send, read, atomic"),
        ("perf write bw --size 0 host", "1 to 256M"),
        ("perf write bw -q 0 host", "1..=256"),
        ("pingpong rc --port 70000", "1..=65535"),
        ("pingpong rc --port 0", "1..=65535"),
        ("perf --port 0", "1..=65535"),
        ("pingpong rc --iters 0", "1..="),
        ("pingpong rc --gid 300", "0..=255"),
        ("pingpong rc --rx-depth 0", "1..=65536"),
        ("pingpong srq --num-qp 0", "1..=256"),
        ("pingpong rc --device lo --bind 127.0.0.1", "cannot be used with"),
        ("devices --dance", "--dance"),
    ] {
        let output = rxe(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {output:?}");
        assert!(text(&output.stderr).contains(part), "{arguments}: {output:?}");
    }
}

#[test]
fn the_loopback_is_a_device() {
    let output = rxe("devices -v lo").output().unwrap();
    good(&output);
    let shown = text(&output.stdout);
    assert!(shown.contains("hca_id:") && shown.contains("4096 (5)"), "{shown}");
    assert!(shown.contains("0000:0000:0000:0000:0000:ffff:7f00:0001"), "{shown}");
    let output = rxe("devices --json").output().unwrap();
    good(&output);
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(list.as_array().unwrap().iter().any(|device| device["netdev"] == "lo"), "{list}");
    failed(&rxe("devices rxe77").output().unwrap(), "rxe77");
}

#[test]
fn wrong_places_are_told() {
    failed(
        &rxe("pingpong rc --bind 192.0.2.77").output().unwrap(),
        "192.0.2.77 is not an address of this host",
    );
    failed(&rxe("pingpong rc --bind 127.70.0.1 --gid 9").output().unwrap(), "no GID with index 9");
    failed(&rxe("pingpong rc --device rxe77").output().unwrap(), "`rxe devices`");
    failed(&rxe("pingpong ud --bind 127.70.0.2 --size 5000").output().unwrap(), "--size 4096");
    failed(&rxe("pingpong rc --bind 127.70.0.3 127.70.0.4").output().unwrap(), "is the other side started");
    failed(&rxe("perf read lat --bind 127.70.0.5 127.70.0.6").output().unwrap(), "is the other side started");
    failed(&rxe("pingpong rc --bind 127.70.0.7 not.a.name.invalid").output().unwrap(), "is the name right?");
    failed(&rxe("demo --pcap /nowhere/file").output().unwrap(), "--pcap");
    failed(
        &rxe("demo --pcap /dev/full").output().unwrap(),
        "/dev/full is not complete: No space left on device",
    );
}

/// `--bind` is for both connections.
#[test]
fn the_tcp_connection_leaves_from_the_named_address() {
    let listener = TcpListener::bind(("127.76.1.2", 18_515)).unwrap();
    for arguments in
        ["pingpong rc --bind 127.76.1.1 127.76.1.2", "perf write bw --bind 127.76.1.1 127.76.1.2"]
    {
        let _client = Background::start(arguments);
        let (_, from) = listener.accept().unwrap();
        assert_eq!(from.ip().to_string(), "127.76.1.1", "{arguments}");
    }
    // The queue pairs alone use it if the peer is named by the other IP version.
    let listener = TcpListener::bind(("::1", 18_515)).unwrap();
    let _client = Background::start("pingpong rc --bind 127.76.1.1 ::1");
    assert!(listener.accept().is_ok());
}

/// A peer that tells where it is, and then is not there.
#[test]
fn a_peer_that_does_not_answer_is_told() {
    let listener = TcpListener::bind(("127.76.0.2", 18_515)).unwrap();
    let client = Background::start("pingpong rc --bind 127.76.0.1 127.76.0.2");
    let (mut tcp, _) = listener.accept().unwrap();
    tcp.read_exact(&mut [0; 52]).unwrap();
    tcp.write_all(b"0000:000011:abcdef:00000000000000000000ffff7f4c0002\0").unwrap();
    tcp.read_exact(&mut [0; 5]).unwrap();
    failed(&client.finish(), "the peer does not answer");
}

/// Two commands that are pasted at once start in any order.
#[test]
fn a_client_may_start_a_little_before_its_server() {
    let client = Background::start("pingpong rc --bind 127.78.0.1 127.78.0.2");
    std::thread::sleep(std::time::Duration::from_millis(200));
    let server = Background::start("pingpong rc --bind 127.78.0.2");
    good(&client.finish());
    good(&server.finish());
}

/// Each side cuts its messages as it was told; the other sees that the pieces do not fit.
#[test]
fn different_mtus_are_told() {
    for (number, (one, two)) in [(256, 1024), (1024, 256)].into_iter().enumerate() {
        let (here, there) = (format!("127.77.{number}.1"), format!("127.77.{number}.2"));
        let server = Background::start(&format!("pingpong rc --mtu {one} --bind {here}"));
        failed(
            &client(&format!("pingpong rc --mtu {two} --bind {there} {here}")),
            "the same --size and --mtu?",
        );
        failed(&server.finish(), "the same --size and --mtu?");
    }
}

#[test]
fn a_stranger_who_says_nothing_is_told() {
    let server = Background::start("pingpong rc --bind 127.71.0.1");
    drop(stranger("127.71.0.1"));
    failed(&server.finish(), "did not tell its address");
}

#[test]
fn strangers_are_told() {
    let says = |address: &str, line: &[u8]| {
        let server = Background::start(&format!("pingpong rc --bind {address}"));
        let mut tcp = stranger(address);
        tcp.write_all(line).unwrap();
        // Until it hangs up.
        let _ = tcp.read_to_end(&mut Vec::new());
        server.finish()
    };
    let no_gid = b"0000:000011:abcdef:00000000000000000000000000000000\0";
    failed(&says("127.72.0.1", no_gid), "-g 0");
    failed(&says("127.72.0.2", &[b'x'; 52]), "not understood");
}

#[test]
fn pingpong_of_every_service() {
    for (number, options) in [
        "rc",
        "rc -n 20 -s 300000 -m 4096",
        "rc -n 200 -s 1 -m 256",
        "uc -n 300",
        "ud -n 300",
        "ud -n 100 -s 4096",
        "srq -n 500",
        "srq -n 100 -q 3 -s 20000",
    ]
    .into_iter()
    .enumerate()
    {
        let (one, two) = (format!("127.73.{number}.1"), format!("127.73.{number}.2"));
        let server = Background::start(&format!("pingpong {options} --check --bind {one}"));
        let output = client(&format!("pingpong {options} --check --bind {two} {one}"));
        let other = server.finish();
        good(&output);
        good(&other);
        for output in [&output, &other] {
            assert!(text(&output.stdout).contains("every byte received was right"), "{output:?}");
        }
    }
}

/// Who has fewer is done, and the other waits for more.
#[test]
fn different_numbers_of_messages_are_told() {
    let server = Background::start("pingpong rc -n 20 --bind 127.74.1.1");
    good(&client("pingpong rc -n 10 --bind 127.74.1.2 127.74.1.1"));
    failed(&server.finish(), "have both as many --iters");
}

#[test]
fn different_sizes_are_told() {
    let server = Background::start("pingpong rc -s 100 --bind 127.74.0.1");
    let output = client("pingpong rc -s 200 --bind 127.74.0.2 127.74.0.1");
    failed(&output, "--size");
    failed(&server.finish(), "--size");
}

#[test]
fn perf_measures() {
    for (number, what) in [
        "write bw -n 50 -s 1K,64K",
        "send bw -n 50 -q 2",
        "read bw -D 1",
        "atomic bw -n 50",
        "write lat -n 50",
        "send lat -n 50 -s 1,5000",
        "read lat -n 50",
        "atomic lat -n 50",
    ]
    .into_iter()
    .enumerate()
    {
        let (one, two) = (format!("127.75.{number}.1"), format!("127.75.{number}.2"));
        let server = Background::start(&format!("perf --bind {one}"));
        let output = client(&format!("perf {what} --json --bind {two} {one}"));
        good(&output);
        good(&server.finish());
        let lines: Vec<serde_json::Value> =
            text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), what.matches(',').count() + 1, "{what}");
        for line in lines {
            let messages =
                line["bandwidth"]["messages"].as_u64().or_else(|| line["latency"]["messages"].as_u64());
            let messages = messages.unwrap();
            assert!(if what.contains("-n 50") { messages == 50 } else { messages > 0 }, "{what}: {line}");
        }
    }
}

/// A latency is measured with one queue pair, whatever `-q` says.
#[test]
fn perf_says_how_many_queue_pairs_it_uses() {
    for (number, (kind, pairs)) in [("lat", 1), ("bw", 3)].into_iter().enumerate() {
        let (one, two) = (format!("127.79.{number}.1"), format!("127.79.{number}.2"));
        let server = Background::start(&format!("perf --bind {one}"));
        let output = client(&format!("perf write {kind} -n 50 -q 3 --bind {two} {one}"));
        good(&output);
        good(&server.finish());
        let wanted = format!(", {pairs} queue pair(s), ");
        assert!(text(&output.stdout).contains(&wanted), "{kind}: {output:?}");
    }
}

/// In the middle of a measurement, which the server then has not served to its end.
#[test]
fn the_death_of_a_measuring_side_is_told() {
    let server = Background::start("perf --bind 127.79.4.1");
    let script = std::env::temp_dir().join(format!("rxe-cli-dies-{}", std::process::id()));
    std::fs::write(&script, "kill after 100 packets\n").unwrap();
    let client = common::client_of(|| {
        let mut command = rxe("perf write lat -n 100000000 --bind 127.79.4.2 127.79.4.1");
        command.env("RXE_FAULT_SCRIPT", &script);
        command
    });
    assert_eq!(client.status.signal(), Some(9), "{client:?}");
    // It may notice by what it sends, or by what does not come.
    failed(&server.finish(), "");
    std::fs::remove_file(script).unwrap();
}

/// More round trips than there is memory for their times: it begins, and ends with the other side, which a script kills.
#[test]
fn a_long_measurement_begins() {
    let script = std::env::temp_dir().join(format!("rxe-cli-kill-{}", std::process::id()));
    std::fs::write(&script, "kill after 100 packets\n").unwrap();
    let mut server = rxe("perf --bind 127.79.3.1");
    server.env("RXE_FAULT_SCRIPT", &script);
    let server = Background::spawn(server);
    let output = common::client_of(|| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -v 33554432; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_rxe")]);
        command.args("perf write lat -n 4294967295 --bind 127.79.3.2 127.79.3.1".split(' '));
        command.env("RXE_CONFIG", common::CONFIG);
        command
    });
    assert_eq!(server.finish().status.signal(), Some(9));
    failed(&output, "the other side is silent");
    std::fs::remove_file(script).unwrap();
}

#[test]
fn the_demonstration_holds() {
    let pcap = std::env::temp_dir().join(format!("rxe-cli-test-{}.pcapng", std::process::id()));
    let output = rxe("demo --json --pcap").arg(&pcap).output().unwrap();
    good(&output);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["passed"], true);
    assert!(report["checks"].as_array().unwrap().len() >= 21, "{report}");
    // Its capture, judged by a program that shares no code with it: every packet's ICRC is right.
    let checker = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/icrc-check");
    let packets = report["capture"]["packets"].as_u64().unwrap();
    let judged = Command::new(checker).arg("--min").arg(packets.to_string()).arg(&pcap).output().unwrap();
    assert_eq!(judged.status.code(), Some(0), "{judged:?}");
    let verdict = text(&judged.stdout);
    assert!(verdict.contains(&format!("{packets} packets right, 0 wrong")), "{verdict}");
    for kind in
        ["RC SEND_MIDDLE", "RC READ_RESPONSE_MIDDLE", "RC ATOMIC_ACK", "UC WRITE_LAST", "UD SEND_ONLY"]
    {
        assert!(verdict.contains(kind), "{kind} is missing: {verdict}");
    }
    std::fs::remove_file(&pcap).unwrap();
}

#[test]
fn a_trace_has_a_line_for_every_packet() {
    let output = rxe("demo --json").env("RXE_TRACE", "1").output().unwrap();
    good(&output);
    let said = text(&output.stderr);
    // Time, direction, address, packet. Both processes of the demonstration tell of what they send and of what comes.
    let of = |direction: &str| {
        let lines = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let mut packets: Vec<String> = lines
            .filter(|words| words.get(1) == Some(&direction))
            .map(|words| {
                assert!(
                    words[0].parse::<f64>().is_ok() && words[2].parse::<std::net::IpAddr>().is_ok(),
                    "{words:?}"
                );
                words[3..].join(" ")
            })
            .collect();
        packets.sort_unstable();
        packets
    };
    let (sent, received) = (of(">"), of("<"));
    for kind in ["RC WRITE_FIRST", "RC READ_REQUEST", "RC ACK", "UD SEND_ONLY"] {
        assert!(
            received.iter().any(|packet| packet.starts_with(kind)),
            "{kind} is missing of {}",
            received.len()
        );
    }
    // What arrived was sent: nothing is made up, and nothing is lost but what may be under way at the end.
    let mut left = sent.iter();
    for packet in &received {
        assert!(left.any(|one| one == packet), "{packet} was received, but not sent");
    }
}

/// A folder with two files in the place of the drop-in; no program here loads them.
fn dropin(name: &str, link: bool) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("rxe-run-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let (first, second) = (dir.join("libibverbs.so.1"), dir.join("librdmacm.so.1"));
    std::fs::write(&first, "").unwrap();
    if link {
        std::os::unix::fs::symlink("libibverbs.so.1", second).unwrap();
    } else {
        std::fs::write(second, "").unwrap();
    }
    dir
}

#[test]
fn env_prints_what_run_sets() {
    let dir = dropin("env", true);
    let mut command = rxe("env --device eth0 --trace --pcap /tmp/it's.pcapng -v");
    let command = command.env("RXE_LIB", &dir).env("LD_LIBRARY_PATH", "/opt/x").env_remove("LD_PRELOAD");
    let output = command.env_remove("RXE_SERVICE").output().unwrap();
    good(&output);
    let script = format!("{}\nset | grep -E '^(LD|RXE)_'", text(&output.stdout));
    let shell =
        Command::new("sh").args(["-c", &script]).env_clear().env("PATH", "/usr/bin:/bin").output().unwrap();
    let shown = text(&shell.stdout);
    let dir = dir.canonicalize().unwrap();
    for wanted in [
        format!("LD_LIBRARY_PATH='{}:/opt/x'", dir.display()),
        format!("LD_PRELOAD='{}/libibverbs.so.1'", dir.display()),
        "RXE_DEVICE='eth0'".to_owned(),
        "RXE_LOG='1'".to_owned(),
        "RXE_TRACE='1'".to_owned(),
        format!("RXE_SERVICE='{}'", env!("CARGO_BIN_EXE_rxe")),
    ] {
        assert!(shown.lines().any(|line| line == wanted), "{wanted} is not in\n{shown}");
    }
    assert!(shown.contains("s.pcapng"), "{shown}");
    std::fs::remove_dir_all(dir).unwrap();
}

/// A shell takes any bytes, and folders may be called by any.
#[test]
fn env_prints_names_that_are_no_utf_8() {
    let dir = dropin("bytes", true);
    let place = [&b"/opt/it's \xff:"[..], std::env::var("PATH").unwrap().as_bytes()].concat();
    let mut command = rxe("env");
    command.env("RXE_LIB", &dir).env("XDG_RUNTIME_DIR", &dir).env("PATH", OsStr::from_bytes(&place));
    let output = command.output().unwrap();
    good(&output);
    let script = [&output.stdout, &b"printf %s \"$PATH\""[..]].concat();
    let mut shell = Command::new("sh");
    let shown = shell.arg("-c").arg(OsStr::from_bytes(&script)).env_clear().output().unwrap().stdout;
    assert!(shown.ends_with(&place), "{}", String::from_utf8_lossy(&shown));
    std::fs::remove_dir_all(dir).unwrap();
}

/// `rxe devices -v | head`
#[test]
fn a_reader_that_goes_ends_the_program() {
    for arguments in ["devices -v", "devices --json", "link", "--help"] {
        let (from, into) = std::io::pipe().unwrap();
        drop(from);
        let output = rxe(arguments).stdout(into).output().unwrap();
        assert_eq!(text(&output.stderr), "", "{arguments}");
        assert_ne!(output.status.code(), Some(101), "{arguments}");
    }
}

/// Also by what opens no device itself.
#[test]
fn variables_that_cannot_be_understood_are_told() {
    for (name, value) in
        [("RXE_FAULT", "loss=xx"), ("RXE_POLL", "xx"), ("RXE_USERCOPY", "never"), ("RXE_RCVBUF", "much")]
    {
        for arguments in ["run true", "env", "devices"] {
            let output = rxe(arguments).env(name, value).env("RXE_LIB", "/nowhere").output().unwrap();
            failed(&output, &format!("{value}\" is not understood"));
        }
    }
}

/// A sanitizer's runtime is only content if it is first; what the user preloads comes before ours.
#[test]
fn the_user_s_libraries_are_loaded_first() {
    let dir = dropin("first", true);
    let output = rxe("env").env("RXE_LIB", &dir).env("LD_PRELOAD", "").output().unwrap();
    good(&output);
    let preload = |output: &Output| {
        let line = text(&output.stdout).lines().find_map(|line| line.strip_prefix("export LD_PRELOAD="));
        line.unwrap().trim_matches('\'').to_owned()
    };
    let ours = preload(&output);
    let nested = format!("{ours}:libc.so.6");
    let output = rxe("env").env("RXE_LIB", &dir).env("LD_PRELOAD", nested).output().unwrap();
    assert_eq!(preload(&output), format!("libc.so.6:{ours}"));
    // The program names a sanitizer's runtime; there is none here, and nothing is run.
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-Wl,-soname,libasan.so.77", "-x", "c", "/dev/null", "-o"]);
    match gcc.arg(dir.join("libasan.so.77")).output() {
        Ok(built) => good(&built),
        Err(_) => return eprintln!("skipped: the_user_s_libraries_are_loaded_first: needs gcc"),
    }
    let (source, program) = (dir.join("main.c"), dir.join("program"));
    let code = "#include <stdlib.h>\n#include <stdio.h>\nint main(void) { puts(getenv(\"LD_PRELOAD\")); }";
    std::fs::write(&source, code).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.arg("-Wl,--no-as-needed").arg(&source).arg("-o").arg(&program).arg(dir.join("libasan.so.77"));
    good(&gcc.output().unwrap());
    let mut command = rxe("run --sysfs off --");
    command.arg(&program).env("RXE_LIB", &dir).env("LD_LIBRARY_PATH", &dir).env_remove("LD_PRELOAD");
    let shown = command.output().unwrap();
    assert!(text(&shown.stdout).starts_with("libasan.so.77:/"), "{shown:?}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn run_says_what_is_missing() {
    let missing = rxe("run true").env("RXE_LIB", "/nowhere").output().unwrap();
    failed(&missing, "libibverbs.so.1 is not in /nowhere");
    let dir = dropin("copy", false);
    failed(&rxe("run true").env("RXE_LIB", &dir).output().unwrap(), "must be a link");
    std::fs::remove_dir_all(dir).unwrap();
    let dir = dropin("none", true);
    // As shells have it.
    for (program, code) in [("/no/program", 127), ("no_such_program", 127), ("/etc/passwd", 126)] {
        let output = rxe(&format!("run {program}")).env("RXE_LIB", &dir).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(text(&output.stderr).starts_with(&format!("rxe: cannot run {program}: ")), "{output:?}");
    }
    let config = rxe("run true").env("RXE_LIB", &dir).env("RXE_CONFIG", "/no/file").output().unwrap();
    failed(&config, "/no/file");
    std::fs::remove_dir_all(dir).unwrap();
}

/// In a user namespace root is nobody, and the folder that it would use is real root's: `unshare -Urnm`.
#[test]
fn the_view_is_written_in_a_user_namespace() {
    let dir = dropin("userns", true);
    std::fs::write(dir.join("librxe_sysfs.so"), "").unwrap();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", env!("CARGO_BIN_EXE_rxe"), "env"]);
    command.env("RXE_LIB", &dir).env_remove("XDG_RUNTIME_DIR").env_remove("TMPDIR");
    let output = command.output().unwrap();
    if text(&output.stderr).contains("unshare") {
        eprintln!("skipped: the_view_is_written_in_a_user_namespace: {}", text(&output.stderr).trim());
        return;
    }
    good(&output);
    assert!(view_of(&output).unwrap().is_dir());
    std::fs::remove_dir_all(dir).unwrap();
}

/// Partition keys are shown as the host's file has them.
#[test]
fn configured_partition_keys_are_shown() {
    let dir = dropin("pkeys", true);
    let config = dir.join("rxe.toml");
    std::fs::write(&config, "pkeys = [0x8123, 0xffff]\n").unwrap();
    std::fs::write(dir.join("librxe_sysfs.so"), "").unwrap();
    let run = |arguments: &str| {
        let mut command = rxe(arguments);
        command.env("RXE_CONFIG", &config).env("RXE_LIB", &dir).env("XDG_RUNTIME_DIR", &dir);
        let output = command.output().unwrap();
        good(&output);
        output
    };
    let output = run("devices -v lo");
    let shown = text(&output.stdout);
    let value = |name: &str| {
        let line = shown.lines().find_map(|line| line.trim_start().strip_prefix(name)).unwrap();
        line.trim().to_owned()
    };
    assert_eq!(value("pkey_tbl_len:"), "2", "{shown}");
    assert_eq!((value("PKey[  0]:"), value("PKey[  1]:")), ("0x8123".to_owned(), "0xffff".to_owned()));
    let list: serde_json::Value = serde_json::from_slice(&run("devices --json").stdout).unwrap();
    assert_eq!(list[0]["pkeys"], serde_json::json!([0x8123, 0xffff]));
    let devices = view_of(&run("env --device lo")).unwrap().join("infiniband");
    let device = std::fs::read_dir(devices).unwrap().next().unwrap().unwrap().path();
    assert_eq!(std::fs::read_to_string(device.join("ports/1/pkeys/0")).unwrap(), "0x8123\n");
    assert!(device.join("ports/1/pkeys/1").exists());
    std::fs::remove_dir_all(dir).unwrap();
}

/// Where `rxe env` has put the view.
fn view_of(output: &Output) -> Option<PathBuf> {
    let folder = text(&output.stdout).lines().find_map(|line| line.strip_prefix("export RXE_SYSFS="))?;
    Some(folder.trim_matches('\'').into())
}

/// A folder that somebody else has put in our way, or can change, is not used; one that nobody can is.
#[test]
fn the_view_is_where_nobody_else_can_change_it() {
    let dir = dropin("foreign", true);
    std::fs::write(dir.join("librxe_sysfs.so"), "").unwrap();
    let uid = std::fs::metadata("/proc/self").unwrap().uid();
    let (runtime, temporary) = (dir.join("runtime"), dir.join("tmp"));
    for folder in [&runtime, &temporary] {
        std::fs::create_dir(folder).unwrap();
    }
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o1777)).unwrap();
    let view = || {
        let mut command = rxe("env");
        command.env("RXE_LIB", &dir).env("XDG_RUNTIME_DIR", &runtime).env("TMPDIR", &temporary);
        view_of(&command.output().unwrap()).unwrap()
    };
    assert!(view().starts_with(runtime.join(format!("rxe-{uid}"))));
    // The folder above is another user's, as under `sudo -E`.
    let usual = temporary.join(format!("rxe-{uid}"));
    std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(view().starts_with(&usual));
    // Both are taken: a new one, and the same again.
    std::fs::remove_dir_all(&usual).unwrap();
    std::os::unix::fs::symlink("/tmp", &usual).unwrap();
    let own = view();
    assert!(own.starts_with(&temporary) && !own.starts_with(&usual), "{own:?}");
    assert_eq!(view(), own);
    std::fs::remove_dir_all(dir).unwrap();
}

/// A set-group-ID program, whose loader says so (`AT_SECURE`), takes no orders from the environment.
#[test]
fn programs_with_more_rights_do_not_heed_the_environment() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!(
            "skipped: programs_with_more_rights_do_not_heed_the_environment: needs root for a file of another group"
        );
        return;
    }
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("secure-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (program, pcap) = (dir.join("rxe"), dir.join("x.pcapng"));
    std::fs::copy(env!("CARGO_BIN_EXE_rxe"), &program).unwrap();
    let doctor = || {
        let mut command = Command::new(&program);
        command.args(["doctor", "--json"]).env("RXE_CONFIG", "/no/file").env("RXE_PCAP", &pcap);
        let output = command.env("RXE_SERVICE", "off").output().unwrap();
        text(&output.stdout).to_owned()
    };
    assert!(doctor().contains("/no/file"));
    std::os::unix::fs::chown(&program, None, Some(65_534)).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o2755)).unwrap();
    let _ = std::fs::remove_file(&pcap);
    let shown = doctor();
    assert!(!shown.contains("/no/file") && shown.contains("readable"), "{shown}");
    assert!(!pcap.exists(), "it records for whoever has started it");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn programs_find_the_devices_below_sys() {
    let dir = dropin("sysfs", true);
    std::fs::write(dir.join("librxe_sysfs.so"), "").unwrap();
    let env = |arguments: &str| {
        let mut command = rxe(arguments);
        let output = command.env("RXE_LIB", &dir).env("XDG_RUNTIME_DIR", &dir).output().unwrap();
        good(&output);
        view_of(&output)
    };
    assert_eq!(env("env --sysfs off"), None);
    let folder = env("env --device lo").unwrap();
    let names = || -> Vec<String> {
        let list = std::fs::read_dir(folder.join("infiniband")).unwrap();
        list.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let [device] = &names()[..] else { panic!("{:?}", names()) };
    let device = folder.join("infiniband").join(device);
    let read = |path: &str| std::fs::read_to_string(device.join(path)).unwrap();
    assert_eq!(read("ports/1/gids/0"), "0000:0000:0000:0000:0000:ffff:7f00:0001\n");
    assert_eq!(read("ports/1/gid_attrs/types/0"), "RoCE v2\n");
    assert_eq!(read("ports/1/state"), "4: ACTIVE\n");
    assert!(device.join("device/net/lo/mtu").exists(), "the interface is a link to the system's");
    // The next run puts right what is not so, and takes away what is no more.
    std::fs::create_dir_all(folder.join("infiniband/rxe99/ports/1")).unwrap();
    std::fs::write(folder.join("infiniband/rxe99/ports/1/state"), "").unwrap();
    std::fs::write(device.join("ports/1/state"), "").unwrap();
    env("env --device lo").unwrap();
    assert_eq!((names().len(), read("ports/1/state").as_str()), (1, "4: ACTIVE\n"));
    std::fs::remove_dir_all(dir).unwrap();
}
