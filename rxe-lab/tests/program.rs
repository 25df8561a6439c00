//! The program: what it prints, its exit status, and its ladder in a browser.

mod common;

use common::{ETHERNET, pcap, recorded, scratch, session::Session};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rxe_core::work::SendOp;
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

fn dissect(arguments: &[&str], file: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rxe-dissect"));
    command.arg(file).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

fn good(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(text(&output.stderr), "", "{output:?}");
    text(&output.stdout)
}

/// A capture in which the packet of this PSN was lost.
fn one_lost(name: &'static str) -> (PathBuf, u32) {
    let mut session = Session::new(name);
    session.lose(0, |crossing| crossing.index == 17);
    let remote = session.remote(1);
    for _ in 0..12 {
        session.send(0, SendOp::Write(remote), 4_000);
        session.send(0, SendOp::Read(remote), 2_000);
    }
    session.run();
    let sent = session.pair.trace.records().filter(|record| record.side == 0);
    let packets = sent.filter_map(|record| match &record.entry {
        rxe_core::testing::trace::Entry::Packet { datagram, .. } => {
            rxe_core::wire::Packet::decode(&datagram.bytes).ok().map(|packet| packet.bth.psn.value())
        }
        rxe_core::testing::trace::Entry::Note(_) => None,
    });
    let psn = packets.collect::<Vec<_>>()[17];
    (scratch(&format!("{name}.pcapng"), &session.capture()), psn)
}

#[test]
fn the_summary_and_the_lines() {
    let (file, psn) = one_lost("lab-program");
    let output = dissect(&[], &file);
    let told = good(&output);
    assert!(
        told.contains("connection 1  RC  10.0.0.1 qp 0x000011 <> 10.0.0.2 qp 0x000011  MTU 1024"),
        "{told}"
    );
    assert!(told.contains("a NAK asked for it"), "{told}");
    let output = dissect(&["lost"], &file);
    let lines: Vec<_> = good(&output).lines().collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(&format!("psn {psn:06x}")) && lines[0].contains("[lost: "), "{lines:?}");
    let output = dissect(&["retransmitted", "or", "nak"], &file);
    assert!(good(&output).lines().count() > 1);
    let output = dissect(&["-v", "number=1"], &file);
    assert!(good(&output).lines().any(|line| line.trim() == "dest_qp 0x000011"), "{output:?}");
    let output = dissect(&["--flow", "0x99", "-p"], &file);
    assert_eq!(good(&output), "");
    let output = dissect(&["--flow", "17", "--json"], &file);
    let json: serde_json::Value = serde_json::from_str(good(&output)).unwrap();
    assert_eq!(json["connections"][0]["directions"][0]["round_count"], 1);
    let output = dissect(&["--json", "lost"], &file);
    let json: serde_json::Value = serde_json::from_str(good(&output)).unwrap();
    assert_eq!(
        (json["fields"]["bth"]["psn"].as_u64(), &json["marks"][0]),
        (Some(psn.into()), &"lost".into())
    );
}

#[test]
fn mistakes_and_damage_have_their_exit_status() {
    let (file, _) = one_lost("lab-status");
    for (arguments, status, told) in [
        (&["gapp"][..], 1, "did you mean \"gap\""),
        (&["--ladder", "x.png"], 1, ".html or .svg"),
        (&["--flow", "x"], 2, "queue pair number"),
        (&["--ladder", "/nowhere/x.svg"], 1, "/nowhere/x.svg"),
    ] {
        let output = dissect(arguments, &file);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert!(text(&output.stderr).contains(told), "{output:?}");
    }
    let whole = fs::read(&file).unwrap();
    let cut = scratch("lab-cut.pcapng", &whole[..whole.len() - 7]);
    let output = dissect(&[], &cut);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(text(&output.stderr).contains("ends in the middle of a record"), "{output:?}");
    assert!(text(&output.stdout).contains("connection 1"), "{output:?}");
    let strange = scratch("lab-strange", b"no capture at all, but long enough");
    let output = dissect(&[], &strange);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("neither a pcap nor a pcapng"), "{output:?}");
    assert_eq!(dissect(&[], Path::new("/nowhere/at/all")).status.code(), Some(1));
}

/// The output is buffered, and its last part is written at the end.
#[test]
fn output_that_does_not_fit_on_the_disk_is_an_error() {
    let (file, _) = one_lost("lab-full");
    for arguments in [&[][..], &["--packets"], &["--json"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rxe-dissect"));
        let output = command.arg(&file).args(arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains("cannot write the output"), "{output:?}");
    }
}

/// From a pipe, whole; and from a file that grows, until it is interrupted.
#[test]
fn pipes_and_files_that_grow() {
    let frames = recorded();
    let file = pcap(ETHERNET, &frames);
    let mut command = Command::new(env!("CARGO_BIN_EXE_rxe-dissect"));
    let mut child = command.args(["-", "-p"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut into = child.stdin.take().unwrap();
    // A pipe may give a few bytes at a time.
    for part in file.chunks(7) {
        into.write_all(part).unwrap();
    }
    drop(into);
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout).lines().count(), frames.len());

    let growing = scratch("lab-growing.pcap", &file[..24]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_rxe-dissect"));
    let mut child = command.arg(&growing).arg("-f").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut end = fs::File::options().append(true).open(&growing).unwrap();
    end.write_all(&file[24..400]).unwrap();
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("CM REQ"), "{first}");
    end.write_all(&file[400..]).unwrap();
    for _ in 1..frames.len() {
        lines.next().unwrap().unwrap();
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let rest: Vec<_> = lines.map(Result::unwrap).collect();
    assert!(rest.iter().any(|line| line.contains("RoCE packets")), "{rest:?}");
    assert!(child.wait().unwrap().success());
}

/// A student finds the lost packet, in a real browser.
#[test]
fn the_ladder_in_a_browser() {
    let (file, psn) = one_lost("lab-ladder");
    let folder = file.parent().unwrap();
    let (page, image, shot) =
        (folder.join("ladder.html"), folder.join("ladder.svg"), folder.join("ladder.png"));
    for drawing in [&page, &image] {
        let output = dissect(&["--ladder", drawing.to_str().unwrap()], &file);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    let drawn = fs::read_to_string(&image).unwrap();
    assert!(roxmltree::Document::parse(&drawn).is_ok());
    if !Path::new("/usr/bin/chromedriver").exists() || !Path::new("/usr/bin/chromium").exists() {
        return eprintln!("skipped: the_ladder_in_a_browser: needs chromium and chromium-driver");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/page.py");
    let mut command = Command::new("/usr/bin/python3");
    let output = command.arg(script).arg(&page).arg(psn.to_string()).arg(&shot).output().unwrap();
    assert!(output.status.success(), "{}\n{}", page.display(), text(&output.stderr));
}
