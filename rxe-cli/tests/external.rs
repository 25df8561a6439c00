//! `rxe WORD` runs `rxe-WORD`. If there is no such program, the error is the one for unknown words.

mod common;

use common::{good, rxe, text};
use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

/// A folder with a program `rxe-WORD` that prints its arguments, one a line.
fn folder(name: &str, word: &str, mode: u32) -> PathBuf {
    let dir = env::temp_dir().join(format!("rxe-external-{name}-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let program = dir.join(format!("rxe-{word}"));
    fs::write(&program, "#!/bin/sh\nprintf '%s\\n' here \"$@\"\nexit 7\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
    dir
}

/// The program with this folder first on the PATH.
fn with(dir: &Path, arguments: &[&str]) -> Command {
    let path = format!("{}:{}", dir.display(), env::var("PATH").unwrap());
    let mut command = rxe("");
    command.args(arguments).env("PATH", path);
    command
}

#[test]
fn a_program_of_that_name_gets_the_rest_of_the_line() {
    let dir = folder("rest", "frobnicate", 0o755);
    let output = with(&dir, &["frobnicate", "a b", "--help", "-x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(text(&output.stdout), "here\na b\n--help\n-x\n");
    let output = with(&dir, &["help", "frobnicate"]).output().unwrap();
    assert_eq!(text(&output.stdout), "here\n--help\n");
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn help_lists_the_programs_that_are_there() {
    let dir = folder("help", "frobnicate", 0o755);
    fs::write(dir.join("rxe-letter"), "no program").unwrap();
    for arguments in [&["--help"][..], &["-h"], &["help"]] {
        let output = with(&dir, arguments).output().unwrap();
        good(&output);
        let help = text(&output.stdout);
        let line = help.lines().find(|line| line.trim_start().starts_with("frobnicate"));
        assert!(line.is_some_and(|line| line.contains(&*dir.to_string_lossy())), "{help}");
        assert!(!help.contains("letter"), "{help}");
    }
    fs::remove_dir_all(dir).unwrap();
}

/// Commands of our own are never taken by other programs. clap reports unknown ones, with a suggestion.
#[test]
fn no_program_takes_a_command_s_place() {
    let dir = folder("place", "devices", 0o755);
    let output = with(&dir, &["devices", "--json"]).output().unwrap();
    good(&output);
    assert!(!text(&output.stdout).contains("here"), "{output:?}");
    for word in ["devicez", "letter", "../rxe-devices", "-q"] {
        let output = with(&dir, &[word]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains(word), "{output:?}");
    }
    let output = with(&dir, &["devicez"]).output().unwrap();
    assert!(text(&output.stderr).contains("'devices'"), "{output:?}");
    fs::remove_dir_all(dir).unwrap();
}

/// A folder named by a relative path is whatever one stands in.
#[test]
fn relative_folders_add_no_commands() {
    let dir = folder("relative", "frobnicate", 0o755);
    let output = with(Path::new("."), &["frobnicate"]).current_dir(&dir).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn one_that_cannot_be_executed_is_an_error() {
    let dir = folder("broken", "frobnicate", 0o755);
    fs::write(dir.join("rxe-frobnicate"), "#!/nowhere/at/all\n").unwrap();
    let output = with(&dir, &["frobnicate"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    assert!(text(&output.stderr).starts_with("rxe: cannot run "), "{output:?}");
    // A file that is not executable does not count.
    fs::set_permissions(dir.join("rxe-frobnicate"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(with(&dir, &["frobnicate"]).output().unwrap().status.code(), Some(2));
    fs::remove_dir_all(dir).unwrap();
}
