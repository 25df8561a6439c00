//! `rxe run --fault` and its companions: what they set, what they refuse, and a process that is killed by its script.

mod common;

use common::{Background, failed, good, rxe, text};
use std::{env, fs, os::unix::process::ExitStatusExt, path::PathBuf};

/// A folder that looks like the drop-in's, and a script in it.
fn folder(name: &str, script: &str) -> (PathBuf, PathBuf) {
    let dir = env::temp_dir().join(format!("rxe-run-faults-{name}-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("libibverbs.so.1"), "").unwrap();
    let _ = std::os::unix::fs::symlink("libibverbs.so.1", dir.join("librdmacm.so.1"));
    let file = dir.join("script");
    fs::write(&file, script).unwrap();
    (dir, file)
}

#[test]
fn faults_become_variables() {
    let (dir, file) = folder("variables", "drop rx read-response 3rd\n");
    let shown = |arguments: &[&str]| {
        let mut command = rxe("env --sysfs off");
        let output = command.args(arguments).env("RXE_LIB", &dir).env_remove("RXE_FAULT").output().unwrap();
        good(&output);
        text(&output.stdout).to_owned()
    };
    let told = shown(&["--fault", "loss=1%,delay=200us", "--seed", "7"]);
    assert!(told.contains("export RXE_FAULT='loss=1%,delay=200us,seed=7'\n"), "{told}");
    let told = shown(&["--fault-file", file.to_str().unwrap(), "--fault-log", "/tmp/what-%p"]);
    assert!(told.contains(&format!("export RXE_FAULT_SCRIPT='{}'\n", file.display())), "{told}");
    assert!(told.contains("export RXE_FAULT_LOG='/tmp/what-%p'\n") && !told.contains("RXE_FAULT="), "{told}");
    assert!(!shown(&[]).contains("RXE_FAULT"));
    let output = rxe("run --fault-help").output().unwrap();
    good(&output);
    assert!(text(&output.stdout).contains("turn rnr N"));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn mistakes_are_told_before_anything_runs() {
    let (dir, file) = folder("mistakes", "# fine\ndrop rx red\n");
    let path = file.to_str().unwrap();
    for (arguments, told) in [
        (&["--fault", "loss=101%"][..], "RXE_FAULT=\"loss=101%\" is not understood"),
        (&["--fault-file", path], "line 2, column 9: \"red\" is no condition"),
        (&["--fault-file", "/nowhere/at/all"], "/nowhere/at/all"),
    ] {
        let output = rxe("run").args(arguments).args(["--", "true"]).env("RXE_LIB", &dir).output().unwrap();
        failed(&output, told);
    }
    // Set by hand, it is told by whoever opens a device.
    let output = rxe("devices").env("RXE_FAULT_SCRIPT", path).output().unwrap();
    failed(&output, "cannot be used: line 2, column 9");
    fs::remove_dir_all(dir).unwrap();
}

/// The peer of one that is killed in the middle of a connection.
#[test]
fn a_script_kills_its_process() {
    let (dir, file) = folder("kill", "kill after 40 packets\n");
    let log = dir.join("log");
    let mut server = rxe("demo");
    server.env("RXE_FAULT_SCRIPT", &file).env("RXE_FAULT_LOG", &log);
    let output = Background::spawn(server).finish();
    // Of the two processes one is killed, and the other finds that out.
    let is_killed = output.status.signal() == Some(9);
    assert!(is_killed || !output.status.success(), "{output:?}");
    let told: String = fs::read_dir(&dir)
        .unwrap()
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path()).ok())
        .collect();
    assert!(told.contains("line 1: this process is killed at"), "{told}");
    fs::remove_dir_all(dir).unwrap();
}
