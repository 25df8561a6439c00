//! The program as its user meets it: exit codes, messages, and two processes that talk to each other.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);

fn rxe(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rxe"));
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    command
}

/// Ends it if a test fails.
struct Background(Option<Child>);

impl Background {
    fn start(arguments: &str) -> Self {
        let child = rxe(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Self(Some(child))
    }

    fn finish(mut self) -> Output {
        let mut child = self.0.take().unwrap();
        let start = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if start.elapsed() > PATIENCE {
                child.kill().unwrap();
                panic!("it does not end: {:?}", child.wait_with_output());
            }
            thread::sleep(Duration::from_millis(5));
        }
        child.wait_with_output().unwrap()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs the client until the server listens.
fn client(arguments: &str) -> Output {
    let start = Instant::now();
    loop {
        let output = rxe(arguments).output().unwrap();
        let waits = text(&output.stderr).contains("cannot reach");
        if !waits || start.elapsed() > PATIENCE {
            return output;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Connects to a server as soon as it listens.
fn stranger(address: &str) -> TcpStream {
    let start = Instant::now();
    loop {
        match TcpStream::connect((address, 18_515)) {
            Ok(tcp) => return tcp,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

fn good(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// It failed with one sentence, which has this in it.
fn failed(output: &Output, part: &str) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(message.starts_with("rxe: ") && message.contains(part), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
}

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
    failed(&rxe("demo --pcap /nowhere/file").output().unwrap(), "--pcap");
}

#[test]
fn a_held_port_is_told() {
    let server = Background::start("pingpong rc --bind 127.71.0.1");
    drop(stranger("127.71.0.1"));
    failed(&server.finish(), "did not tell its address");
    let server = Background::start("pingpong rc --bind 127.71.0.2");
    let _tcp = stranger("127.71.0.2");
    failed(&rxe("pingpong rc --bind 127.71.0.2").output().unwrap(), "UDP port 4791");
    drop(server);
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
        "read bw -D 0.1",
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
