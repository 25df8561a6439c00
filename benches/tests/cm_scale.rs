//! Many connections, at once and one after the other in one process, which leave nothing behind.
//!
//! Their rate is printed and not judged: `cm-load` in a release build is what measures it.

#[path = "../../rxe-verbs/tests/netns/mod.rs"]
mod netns;

use netns::Namespace;
use serde_json::Value;
use std::process::{Command, Stdio};

/// What client and server say at the end.
fn load(namespace: &Namespace, args: &'static [&'static str]) -> [Value; 2] {
    let output = namespace.run(move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cm-load"));
        command.args(args).env("RXE_SERVICE", "embedded").stderr(Stdio::inherit()).output().unwrap()
    });
    assert!(output.status.success(), "{args:?}: {}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &lines {
        println!("{args:?}: {line}");
        assert_eq!(line["left"], 0, "connections left: {line}");
        assert_eq!(line["counters"]["malformed"], 0, "{line}");
    }
    lines.try_into().unwrap()
}

fn memory(said: &Value) -> u64 {
    said["rss"].as_str().and_then(|text| text.strip_suffix(" kB")?.parse().ok()).unwrap()
}

#[test]
fn ten_thousand_connections_at_once() {
    let Some(namespace) = Namespace::new() else { return };
    load(&namespace, &["--count", "10000", "--open"]);
    load(&namespace, &["--count", "2000", "--open", "::1"]);
}

#[test]
fn a_hundred_thousand_connections_leave_nothing_behind() {
    let Some(namespace) = Namespace::new() else { return };
    let few = load(&namespace, &["--count", "10000"]);
    let many = load(&namespace, &["--count", "100000"]);
    for (few, many) in few.iter().zip(&many) {
        // Either process may have the service in it at the end, which needs a few dozen.
        let descriptors = |said: &Value| said["descriptors"].as_u64().unwrap();
        assert!(descriptors(many) < descriptors(few) + 60, "{few} {many}");
        // Ten times as many: if each connection left something behind, it would show.
        assert!(memory(many) < memory(few) * 2, "{few} {many}");
    }
}
