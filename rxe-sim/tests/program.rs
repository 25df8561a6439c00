//! The program: what it says if its output cannot be written, or if it cannot read itself.

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const SCENARIO: &str = "end = \"2ms\"\n[network]\nkind = \"star\"\nhosts = 3\nrate = \"10gbit\"\ndelay = \"1us\"\n\
    [record]\nevery = \"100us\"\nqueues = [\"s0-h2\"]\n\
    [[traffic]]\nkind = \"flows\"\nfrom = [\"h0\", \"h1\"]\nto = \"h2\"\nsize = \"100KB\"\n";

/// A folder with a scenario, and a sweep of it.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("scenario.toml"), SCENARIO).expect("a scenario");
    let sweep = "scenario = \"scenario.toml\"\nseeds = 1\nshow = [\"all.delivered\"]\n";
    fs::write(folder.join("x.sweep.toml"), sweep).expect("a sweep");
    folder
}

fn sim(folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rxe-sim"));
    command.args(arguments.split_whitespace()).current_dir(folder);
    command
}

fn failed(output: &Output, why: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(why), "{said}");
}

#[test]
fn a_file_of_the_other_kind_is_named_as_such() {
    let folder = folder("kinds");
    failed(
        &sim(&folder, "x.sweep.toml").output().expect("rxe-sim"),
        "rxe sim sweep x.sweep.toml --out FOLDER",
    );
    failed(&sim(&folder, "sweep scenario.toml --out out").output().expect("rxe-sim"), "rxe sim FILE");
    fs::remove_dir_all(folder).expect("the folder goes");
}

#[test]
fn tables_that_do_not_fit_on_the_disk_are_an_error() {
    for name in ["flows.csv", "record.csv"] {
        let folder = folder(name);
        fs::create_dir_all(folder.join("out")).expect("a folder");
        symlink("/dev/full", folder.join("out").join(name)).expect("a link");
        let output = sim(&folder, "scenario.toml --out out").output().expect("rxe-sim");
        failed(&output, "No space left on device");
        fs::remove_dir_all(folder).expect("removed");
    }
}

/// As by the other commands of rxe.
#[test]
fn programs_get_json_on_one_line() {
    let folder = folder("json");
    let output = sim(&folder, "scenario.toml --json").output().expect("rxe-sim");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.starts_with('{') && said.lines().count() == 1, "{said}");
    fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn a_capture_that_cannot_be_written_is_told_in_the_words_of_the_system() {
    let folder = folder("capture");
    for (file, why) in
        [("/nowhere/file", "No such file or directory"), ("/dev/full", "No space left on device")]
    {
        let output = sim(&folder, &format!("scenario.toml --pcap h0-s0={file}")).output().expect("rxe-sim");
        failed(&output, &format!("{file}: {why}"));
    }
    fs::remove_dir_all(folder).expect("removed");
}

/// `rxe sim x.toml | head -1`
#[test]
fn a_reader_that_goes_ends_the_program() {
    let folder = folder("reader");
    for arguments in ["scenario.toml", "scenario.toml --json", "sweep x.sweep.toml --out sweep"] {
        let (from, into) = std::io::pipe().expect("a pipe");
        drop(from);
        let output = sim(&folder, arguments).stdout(into).output().expect("rxe-sim");
        assert_eq!(output.status.code(), Some(128 + 13), "{arguments}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments}");
        let full = File::options().write(true).open("/dev/full").expect("/dev/full");
        let output = sim(&folder, arguments).stdout(full).output().expect("rxe-sim");
        failed(&output, "No space left on device");
    }
    fs::remove_dir_all(folder).expect("removed");
}

/// Its results would be those of any other build.
#[test]
fn without_proc_no_sweep_is_played() {
    const SKIPPED: i32 = 77;
    let folder = folder("proc");
    let script = "mount -t tmpfs none /proc || exit 77; exec \"$0\" sweep x.sweep.toml --out out";
    let mut unshare = Command::new("unshare");
    unshare.args(["-rm", "sh", "-c", script, env!("CARGO_BIN_EXE_rxe-sim")]).current_dir(&folder);
    match unshare.output() {
        Ok(output) if output.status.code() != Some(SKIPPED) && !output.stderr.starts_with(b"unshare:") => {
            failed(&output, "have /proc mounted");
        }
        _ => eprintln!("skipped: without_proc_no_sweep_is_played: needs a mount namespace"),
    }
    fs::remove_dir_all(folder).expect("removed");
}
