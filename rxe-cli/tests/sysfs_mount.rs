//! `rxe run --sysfs=mount`: programs that no preloaded library reaches see the devices, and nobody else does.

mod common;
#[path = "../../rxe-verbs/tests/netns/mod.rs"]
mod netns;

use common::{CONFIG, failed, good, rxe, text};
use netns::Namespace;
use nix::{sys::stat::Mode, unistd::mkfifo};
use rxe_verbs::host::Observer;
use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

/// A folder with an empty file in the place of the drop-in, which the loader passes over.
fn dropin(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("rxe-mount-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("libibverbs.so.1"), "").unwrap();
    symlink("libibverbs.so.1", dir.join("librdmacm.so.1")).unwrap();
    dir
}

fn with(dir: &Path, arguments: &str) -> Command {
    let mut command = rxe(arguments);
    command.env("RXE_LIB", dir).env("XDG_RUNTIME_DIR", dir).env("RXE_SERVICE", "off");
    command
}

#[test]
fn programs_without_our_libraries_see_the_devices() {
    let dir = dropin("seen");
    let output = with(&dir, "run --device lo --sysfs=mount -- ls /sys/class/infiniband").output().unwrap();
    if text(&output.stderr).contains("needs a mount namespace") {
        netns::skip(text(&output.stderr));
        return;
    }
    good(&output);
    let name = text(&output.stdout).trim().to_owned();
    // The shell's own redirection; and what else is in /sys/class is still there.
    let script = format!(
        "read state </sys/class/infiniband/{name}/ports/1/state; read mtu </sys/class/infiniband/{name}/device/net/lo/mtu\n\
         read index </sys/class/net/lo/ifindex; echo $state, $mtu, $index; id -u; touch /sys/class/x 2>/dev/null || echo no"
    );
    let mut command = with(&dir, "run --device lo --sysfs=mount -- sh -c");
    let output = command.arg(script).output().unwrap();
    good(&output);
    let read = |path: &str| std::fs::read_to_string(path).unwrap().trim().to_owned();
    let own = Command::new("id").arg("-u").output().unwrap();
    let wanted = format!(
        "4: ACTIVE, {}, {}\n{}no\n",
        read("/sys/class/net/lo/mtu"),
        read("/sys/class/net/lo/ifindex"),
        text(&own.stdout)
    );
    assert_eq!(text(&output.stdout), wanted);
    let outside = Path::new("/sys/class/infiniband").join(&name);
    let ours = outside.join("ports/1/gid_attrs/ndevs/0");
    assert!(!ours.exists() || Path::new("/sys/module/rdma_rxe").exists(), "seen by everybody");
    std::fs::remove_dir_all(dir).unwrap();
}

/// Another `rxe run` around it, or `rxe env` in the shell: its hooks are not in the way, and its devices are not shown.
#[test]
fn a_run_within_a_run_mounts_its_own_view() {
    let Some(namespace) = Namespace::new() else { return };
    namespace.ip("link add seen type veth peer name other");
    for (number, interface) in ["seen", "other"].into_iter().enumerate() {
        namespace.ip(&format!("addr add 10.47.{number}.1/24 dev {interface}"));
    }
    let dir = dropin("nested");
    let hooks = Path::new(env!("CARGO_BIN_EXE_rxe")).with_file_name("librxe_sysfs.so");
    if !hooks.exists() {
        let mut build = Command::new(env!("CARGO"));
        good(&build.args(["build", "--quiet", "-p", "rxe-sysfs"]).output().unwrap());
    }
    std::fs::copy(hooks, dir.join("librxe_sysfs.so")).unwrap();
    let mut command = with(&dir, "run --device other --");
    command.arg(env!("CARGO_BIN_EXE_rxe"));
    command.args("run --device seen --sysfs=mount -- sh -c".split(' '));
    command.arg("ls -d /sys/class/infiniband/*/device/net/*");
    let output = namespace.run(move || command.output().unwrap());
    if text(&output.stderr).contains("needs a mount namespace") {
        return netns::skip(text(&output.stderr));
    }
    good(&output);
    let shown = text(&output.stdout);
    assert!(shown.trim().ends_with("/device/net/seen") && shown.lines().count() == 1, "{output:?}");
    std::fs::remove_dir_all(dir).unwrap();
}

/// However long the service takes to come up: programs in there find it, and it is not in there.
#[test]
fn the_service_stays_outside() {
    let Some(namespace) = Namespace::new() else { return };
    let dir = dropin("service");
    // The configuration comes late: `rxe run` reads the first copies, the service the last.
    let config = dir.join("config");
    mkfifo(&config, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let mut command = with(&dir, "run --device lo --sysfs=mount -- sh -c");
    command.env("RXE_CONFIG", &config).env_remove("RXE_SERVICE");
    let script = r#"readlink /proc/self/ns/mnt; exec "$0" service status --json"#;
    command.args([script, env!("CARGO_BIN_EXE_rxe")]);
    thread::spawn(move || {
        // As often as anybody reads it; the last time it waits for a reader until the test has ended.
        while std::fs::write(&config, std::fs::read(CONFIG).unwrap()).is_ok() {
            // So long that whoever has read a copy has closed it: nothing tells that.
            thread::sleep(Duration::from_secs(2));
        }
    });
    let (output, service) = namespace.run(move || {
        let output = command.output().unwrap();
        let service = Observer::connect().unwrap().map(|observer| observer.status().unwrap().pid);
        (output, service.map(|pid| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).unwrap()))
    });
    if text(&output.stderr).contains("needs a mount namespace") {
        netns::skip(text(&output.stderr));
        return;
    }
    good(&output);
    let inside = text(&output.stdout).lines().next().map(Into::into);
    let here = std::fs::read_link("/proc/thread-self/ns/mnt").ok();
    assert_ne!(inside, here, "the program has a namespace of its own");
    assert_eq!(service, here);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn where_there_are_no_namespaces_it_says_so() {
    let dir = dropin("none");
    failed(&with(&dir, "env --sysfs=mount").output().unwrap(), "is for `rxe run`");
    let forbidden =
        "for kind in user mnt; do echo 0 >/proc/sys/user/max_${kind}_namespaces || exit 9; done; exec \"$@\"";
    let run = with(&dir, "run --sysfs=mount -- true");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", forbidden, "sh"]);
    command.arg(run.get_program()).args(run.get_args());
    command.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = command.output();
    match output {
        Ok(output) if output.status.code() == Some(1) && text(&output.stderr).starts_with("rxe: ") => {
            failed(&output, "--sysfs=mount needs a mount namespace");
        }
        Ok(output) if output.status.success() => panic!("it was not refused: {output:?}"),
        other => netns::skip(&format!("no namespace to forbid it in: {other:?}")),
    }
    std::fs::remove_dir_all(dir).unwrap();
}
