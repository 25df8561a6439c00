//! The suite against our own devices, as `rxe-conform` runs it: every must and every should passes.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

/// On a busy machine an answer may be late.
const PATIENT: [&str; 2] = ["--patience", "60"];

/// A folder for the reports of one test.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn conform(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rxe-conform"));
    command.args(words);
    command
}

fn words(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The suite in a network namespace of its own, after a command there; nothing where none is to be had.
fn apart(first: &str, words: &[&str]) -> Option<Command> {
    let may = Command::new("unshare").args(["-rn", "true"]).status().is_ok_and(|status| status.success());
    let script = format!("{first} && exec \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["-rn", "sh", "-c", &script, "sh", env!("CARGO_BIN_EXE_rxe-conform")]).args(words);
    may.then_some(command)
}

/// All passed, and as many as there should be.
fn passed(output: &Output, least: u64, report: &PathBuf) {
    assert!(output.status.success(), "{}", words(output));
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    let summary = &report["summary"];
    let count = summary["pass"].as_u64().unwrap();
    assert!(count >= least, "only {summary}");
}

#[test]
fn our_core_passes_every_case() {
    for (dut, least) in [("core", 540), ("core6", 530)] {
        let folder = folder(dut);
        let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let (json, junit, html, markdown) = (file("r.json"), file("r.xml"), file("r.html"), file("r.md"));
        let reports = ["--json", &json, "--junit", &junit, "--html", &html, "--markdown", &markdown];
        let output = conform(&["--dut", dut, "--strict"]).args(reports).output().unwrap();
        passed(&output, least, &folder.join("r.json"));
        let xml = fs::read_to_string(junit).unwrap();
        assert!(xml.contains("failures=\"0\"") && xml.matches("<testcase").count() > 540, "{}", &xml[..300]);
        assert!(fs::read_to_string(markdown).unwrap().contains("| RC.PSN.DUP | 15 | 0 |"));
    }
}

/// In a network namespace of its own where that can be had, because the RoCE port is one for all of this host's.
#[test]
fn our_provider_passes_over_udp() {
    let folder = folder("udp");
    let report = folder.join("r.json");
    let mut words = vec!["--dut", "udp", "--quick", "--strict", "--json", report.to_str().unwrap()];
    words.extend(PATIENT);
    let output = match apart("ip link set lo up", &words) {
        Some(mut apart) => apart.output(),
        None => conform(&words).output(),
    };
    passed(&output.unwrap(), 620, &report);
}

/// A link of MTU 1500: what needs longer packets is not run, and says why.
#[test]
fn longer_packets_than_the_link_has_are_left_out() {
    let report = folder("udp-1500").join("r.json");
    let mut words = vec!["--dut", "udp", "--filter", "RC.MTU", "--json", report.to_str().unwrap()];
    words.extend(PATIENT);
    let Some(mut apart) = apart("ip link set lo mtu 1500 up", &words) else {
        return eprintln!(
            "skipped: longer_packets_than_the_link_has_are_left_out: needs a network namespace"
        );
    };
    passed(&apart.output().unwrap(), 9, &report);
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    let skipped = |finding: &&serde_json::Value| finding["verdict"] == "skip" && finding["theme"] != "LAW";
    let whys: Vec<_> = report["cases"].as_array().unwrap().iter().filter(skipped).collect();
    assert_eq!(whys.len(), 6, "{whys:?}");
    for finding in whys {
        let why = finding["why"].as_str().unwrap();
        assert!(why.contains("not supported by this link: the device's port has one of 1024"), "{finding}");
    }
}

/// With whole frames, by both RoCEs, in a network namespace that the suite makes.
#[test]
fn our_provider_passes_with_whole_frames() {
    let own = Command::new("unshare")
        .args(["-Urn", "true"])
        .output()
        .is_ok_and(|output| output.status.success())
        || Command::new("unshare").args(["-n", "true"]).output().is_ok_and(|output| output.status.success());
    if !own {
        return eprintln!("skipped: our_provider_passes_with_whole_frames: needs a network namespace");
    }
    for (dut, least) in [("raw", 660), ("rocev1", 640)] {
        let report = folder(dut).join("r.json");
        let output = conform(&["--dut", dut, "--quick", "--strict", "--json", report.to_str().unwrap()])
            .args(PATIENT)
            .output()
            .unwrap();
        passed(&output, least, &report);
    }
}

#[test]
fn what_goes_wrong_has_its_exit_code() {
    let code = |words: &[&str]| conform(words).output().unwrap().status.code();
    assert_eq!(code(&["--list"]), Some(0));
    assert_eq!(code(&["--dut", "nonsense"]), Some(2));
    assert_eq!(code(&["--filter", "NO.SUCH"]), Some(2));
    assert_eq!(code(&["--patience", "-1"]), Some(2));
    assert_eq!(code(&["--expected", "/no/such/list"]), Some(2));
    assert_eq!(code(&["--dut", "udp", "--raw", "lo"]), Some(2));
    // Nobody listens there.
    let remote =
        ["--dut", "remote", "--agent", "127.0.0.1:9", "--address", "127.0.0.1", "--own", "127.0.0.99"];
    assert_eq!(code(&remote), Some(3));
    let output = conform(&["--dut", "remote"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(words(&output).contains("--agent"), "{}", words(&output));
}

/// A report that cannot be written is said to be so, and loses neither the others nor the summary.
#[test]
fn a_file_that_cannot_be_written_loses_nothing_else() {
    let markdown = folder("unwritable").join("r.md");
    let _ = fs::remove_file(&markdown);
    for kind in ["--json", "--junit", "--html", "--captures"] {
        let words_given = ["--filter", "RC.PSN.WRAP", kind, "/proc/no/such", "--markdown"];
        let output = conform(&words_given).arg(&markdown).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{kind}: {}", words(&output));
        assert!(words(&output).contains("/proc/no/such: "), "{kind}: {}", words(&output));
        assert!(words(&output).contains(" passed, "), "{kind}: {}", words(&output));
        fs::remove_file(&markdown).unwrap();
    }
}

/// Standard output is the report's alone, although a case fails.
#[test]
fn a_report_to_standard_output_can_be_parsed() {
    let list = folder("lists").join("stdout.toml");
    fs::write(&list, "[[difference]]\nid = 'RC.PSN.WRAP.1'\nwhy = 'it was so once'\n").unwrap();
    let words = ["--filter", "RC.PSN.WRAP.1", "--expected", list.to_str().unwrap(), "--json", "-"];
    let output = conform(&words).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["summary"]["mended"], 1, "{report}");
}

#[test]
fn a_list_of_differences_that_is_out_of_date_fails() {
    let list = folder("lists").join("old.toml");
    fs::write(&list, "[[difference]]\nid = 'RC.PSN.WRAP.1'\nwhy = 'it was so once'\n").unwrap();
    let output =
        conform(&["--filter", "RC.PSN.WRAP.1", "--expected", list.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    assert!(words(&output).contains("MENDED"), "{}", words(&output));
}
