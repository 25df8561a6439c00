//! The program that measures requests and answers, run so briefly that its figures mean nothing: every way to wait, many connections,
//! a busy loop beside it.

use serde_json::Value;
use std::process::Command;

/// What it prints, one value a row.
fn run(arguments: &[&str]) -> Vec<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_echo"));
    command.args(["--json", "--rounds", "1", "--seconds", "0.05"]).args(arguments);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {} {said}", output.status);
    let rows = String::from_utf8(output.stdout).unwrap();
    rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn answers_come_whatever_the_programs_wait_for() {
    let mut rows = run(&["--connections", "1,20", "--size", "64,16384", "--wire", "tcp,one,each,bare"]);
    assert_eq!(rows.len(), 16);
    for wait in ["edge", "poll", "select"] {
        rows.extend(run(&["--connections", "20", "--size", "64", "--wire", "one,each", "--wait", wait]));
    }
    rows.extend(run(&["--connections", "20", "--size", "64", "--wire", "one", "--wait", "event"]));
    rows.extend(run(&["--connections", "1", "--size", "64", "--wire", "each", "--hogs", "1"]));
    assert_eq!(rows.len(), 24);
    for row in rows {
        assert!(row["figures"]["rate"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
    }
}
