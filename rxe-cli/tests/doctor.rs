//! `rxe doctor`, and `rdma` as documents have people type it.

mod common;

use common::{failed, good, rxe, text};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn folder(name: &str) -> PathBuf {
    let folder =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("doctor-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A program that is this one with something changed.
fn changed(name: &str, mode: u32, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = fs::read(std::env::current_exe().unwrap()).unwrap();
    change(&mut bytes);
    file(name, mode, &bytes)
}

fn file(name: &str, mode: u32, bytes: &[u8]) -> PathBuf {
    let path = folder(name).join("program");
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

fn doctor(program: &Path) -> Output {
    rxe("doctor").arg(program).output().unwrap()
}

#[test]
fn every_finding_has_a_state_and_what_is_not_good_a_cure() {
    let output = rxe("doctor --json").output().unwrap();
    let list: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let state = |finding: &serde_json::Value| finding["state"].as_str().unwrap().to_owned();
    for check in [
        "environment",
        "configuration",
        "devices",
        "port 4791",
        "rmem_max",
        "wmem_max",
        "rp_filter",
        "sandbox",
    ] {
        assert!(list.iter().any(|finding| finding["check"] == check), "{check}: {list:?}");
    }
    assert!(list.iter().all(|finding| state(finding) == "good" || finding["cure"].is_string()), "{list:?}");
    assert_eq!(output.status.success(), list.iter().all(|finding| state(finding) != "bad"), "{list:?}");
}

/// If a variable is in the way, the cure is not to end whoever has the port.
#[test]
fn a_variable_that_is_in_the_way_is_named() {
    let bad = |variable: &str, value: &str| -> Vec<serde_json::Value> {
        let output = rxe("doctor --json").env(variable, value).output().unwrap();
        let list: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
        list.into_iter().filter(|finding| finding["state"] == "bad").collect()
    };
    let before = bad("RXE_POLL", "");
    for (variable, value, part) in [
        ("RXE_POLL", "xx", "RXE_POLL=\"xx\" is not understood"),
        ("RXE_FAULT", "loss=x", "loss=x"),
        ("RXE_PCAP", "/nowhere/file", "/nowhere/file"),
    ] {
        let found = bad(variable, value);
        let new: Vec<_> = found.iter().filter(|finding| !before.contains(finding)).collect();
        let [finding] = &new[..] else { panic!("{variable}={value}: {new:?}") };
        assert_eq!(finding["check"], "environment", "{finding}");
        assert!(finding["text"].as_str().unwrap().contains(part), "{finding}");
    }
}

#[test]
fn a_static_program_cannot_be_reached() {
    const PT_INTERP: u32 = 3;
    let path = changed("static", 0o755, |bytes| {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        // e_phoff, e_phentsize and e_phnum of a 64-bit ELF header.
        let start = usize::try_from(number(32)).unwrap();
        let [size, count] = [54, 56].map(|at| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]])));
        let header = (0..count).map(|index| start + index * size);
        let found = header.into_iter().find(|at| bytes[*at..at + 4] == PT_INTERP.to_le_bytes());
        bytes[found.unwrap()] = 0;
    });
    let output = doctor(&path);
    failed(&output, "in the way");
    assert!(text(&output.stdout).contains("linked statically"), "{output:?}");
}

#[test]
fn other_processors_and_privilege_are_seen() {
    for (name, mode, part) in [("machine", 0o755, "another processor"), ("privilege", 0o4755, "set-user-ID")]
    {
        let path = changed(name, mode, |bytes| {
            if name == "machine" {
                // e_machine: SPARC V9.
                bytes[18] = 43;
            }
        });
        let output = doctor(&path);
        failed(&output, "in the way");
        assert!(text(&output.stdout).contains(part), "{output:?}");
    }
}

/// `rxe run` says it, too, and runs the program all the same.
#[test]
fn run_tells_of_what_will_not_work() {
    let program = folder("told").join("true");
    fs::copy("/bin/true", &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let place = folder("told-dropin");
    fs::write(place.join("libibverbs.so.1"), "").unwrap();
    let _ = std::os::unix::fs::symlink("libibverbs.so.1", place.join("librdmacm.so.1"));
    let run = |more: &str| {
        let mut command = rxe(&format!("run --sysfs {more} --"));
        command.arg(&program).env("RXE_LIB", &place).output().unwrap()
    };
    let output = run("off");
    assert!(text(&output.stderr).contains("set-user-ID"), "{output:?}");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// Libraries that a program finds by itself.
#[test]
fn names_and_folders_of_the_program_s_own_are_seen() {
    let dir = folder("rpath");
    let (source, program) = (dir.join("main.c"), dir.join("program"));
    fs::write(&source, "const char *name = \"/opt/x/libibverbs.so.1\"; int main(void) { return !name; }")
        .unwrap();
    let rpath = "-Wl,--disable-new-dtags,--no-as-needed,-rpath,$ORIGIN/own";
    fs::create_dir_all(dir.join("own")).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-Wl,-soname,librdmacm.so.1", "-x", "c", "/dev/null", "-o"]);
    let Ok(built) = gcc.arg(dir.join("own/librdmacm.so.1")).output() else {
        eprintln!("skipped: names_and_folders_of_the_program_s_own_are_seen: needs gcc");
        return;
    };
    good(&built);
    let mut gcc = Command::new("gcc");
    gcc.arg(rpath).arg(&source).arg("-o").arg(&program).arg(dir.join("own/librdmacm.so.1"));
    good(&gcc.output().unwrap());
    let output = doctor(&program);
    let shown = text(&output.stdout);
    assert!(shown.contains("its RPATH has it load") && shown.contains("own/librdmacm.so.1"), "{shown}");
    assert!(shown.contains("it has the name /opt/x/libibverbs.so.1 in it"), "{shown}");
}

#[test]
fn capabilities_of_a_file_are_seen() {
    let path = changed("capable", 0o755, |_| {});
    match Command::new("setcap").arg("cap_net_raw+ep").arg(&path).output() {
        Ok(output) if output.status.success() => {}
        _ => {
            eprintln!("skipped: capabilities_of_a_file_are_seen: needs root and setcap");
            return;
        }
    }
    let output = doctor(&path);
    failed(&output, "in the way");
    assert!(text(&output.stdout).contains("file capabilities"), "{output:?}");
}

#[test]
fn scripts_are_followed_and_strangers_told() {
    let script = file("script", 0o755, b"#!/usr/bin/env -S sh\nexit 0\n");
    let shown = doctor(&script);
    let shown = text(&shown.stdout);
    assert!(shown.contains("is a script for") && shown.contains("can run under `rxe run`"), "{shown}");
    for (name, mode, content, part) in [
        ("nothing", 0o644, &b"\x7fELF"[..], "cannot be run"),
        ("garbage", 0o755, &b"\x7fELF and no more"[..], "no program of Linux'"),
    ] {
        let output = doctor(&file(name, mode, content));
        failed(&output, "in the way");
        assert!(text(&output.stdout).contains(part), "{output:?}");
    }
}

#[test]
fn links_need_not_be_added() {
    let own = rxe("link show").output().unwrap();
    let typed = rxe("rdma link").output().unwrap();
    good(&typed);
    assert_eq!(typed.stdout, own.stdout);
    good(&rxe("rdma link add rxe_lo type rxe netdev lo").output().unwrap());
    failed(&rxe("rdma link add rxe_lo type rxe netdev nope").output().unwrap(), "nope");
    failed(&rxe("rdma link add rxe_lo netdev lo").output().unwrap(), "type is missing");
    failed(&rxe("rdma link add rxe_lo type siw netdev lo").output().unwrap(), "siw");
    failed(&rxe("rdma link del rxe77").output().unwrap(), "rxe77");
    let json: serde_json::Value =
        serde_json::from_slice(&rxe("rdma -j link show").output().unwrap().stdout).unwrap();
    assert!(json.as_array().unwrap().iter().any(|link| link["netdev"] == "lo"), "{json}");
    let shown = rxe("rdma dev").output().unwrap();
    assert!(text(&shown.stdout).contains(": node_type ca fw "), "{shown:?}");
}

/// Options stand before, between and behind the words; lists are lists, and what is not a list is one thing.
#[test]
fn rdma_is_read_as_iproute2_reads_it() {
    let json = |arguments: &str| -> serde_json::Value {
        let output = rxe(arguments).output().unwrap();
        good(&output);
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let links = json("rdma link show -j");
    for same in
        ["rdma -j link show", "rdma link -j", "rdma -jp link list", "rdma l sh -d --json", "link show --json"]
    {
        assert_eq!(json(same), links, "{same}");
    }
    let lo = links.as_array().unwrap().iter().find(|link| link["netdev"] == "lo").unwrap();
    let names: Vec<_> = lo.as_object().unwrap().keys().collect();
    let wanted = ["ifindex", "ifname", "port", "state", "physical_state", "netdev", "netdev_index"];
    assert_eq!(names, wanted);
    let name = lo["ifname"].as_str().unwrap();
    assert_eq!(json(&format!("rdma link show {name}/1 -j")), serde_json::json!([lo]));
    assert_eq!(json(&format!("rdma dev show {name} -j"))[0]["node_type"], "ca");
    assert_eq!(json("rdma system show -j")["copy-on-fork"], true);
    assert!(json("rdma -j statistic show link")[0]["rcvd_pkts"].is_u64());
    assert!(json("rdma resource -j")[0]["qp"].is_u64());
    assert!(json("rdma res show qp -j").is_array());
    // Not by the system's program, which has other devices.
    for wrong in ["link frob", "link show rxe0 rxe1", "link set rxe0 mtu 9000"] {
        failed(&rxe(wrong).output().unwrap(), &format!("rxe {wrong}: not understood; `rxe link help`"));
    }
    // One line for programs, and several for who asks for them.
    for (arguments, several) in [("link -j", false), ("link -j -p", true), ("rdma link -jp", true)] {
        let output = rxe(arguments).output().unwrap();
        assert_eq!(text(&output.stdout).lines().count() > 1, several, "{arguments}: {output:?}");
    }
    let detailed = rxe("rdma link -d").output().unwrap();
    assert!(text(&detailed.stdout).contains(" netdev_index "), "{detailed:?}");
    failed(&rxe("rdma link -x").output().unwrap(), "unknown option -x");
    good(&rxe("rdma res show qp lqpn 1 type rc state rts pid 1 comm x").output().unwrap());
    failed(&rxe("rdma res show qp tpye RC").output().unwrap(), "tpye is not known of queue pairs here");
    failed(&rxe("rdma link show nope/1").output().unwrap(), "nope");
}
