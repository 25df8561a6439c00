//! Whole matrices: on a real Slurm that `scripts/slurm` starts, and through real OpenSSH.

use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// Between h1 as the server and another as the client it fails, hangs, or takes its task out of Slurm's queue, each once.
const ODD: &str = r#"
[[program]]
name = "odd"
server = "true"
client = "case {own}-{address} in 10.77.0.2-10.77.0.1) mkdir failed && { echo it is broken; exit 7; };; 10.77.0.3-10.77.0.1) mkdir hung && sleep 12345;; 10.77.0.4-10.77.0.1) mkdir lost && scancel ${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID && sleep 12345;; esac; true"
sizes = false
"#;

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn script(path: &Path, text: &str) {
    fs::write(path, text).expect("a script");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its rights");
}

fn find(programs: &[&str]) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    programs.iter().all(|name| path.split(':').any(|folder| Path::new(folder).join(name).exists()))
}

fn told(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn report(folder: &Path) -> Value {
    let text = fs::read_to_string(folder.join("report.json")).expect("a report");
    serde_json::from_str(&text).expect("JSON")
}

/// The jobs of a report that did not pass: verdict and why.
fn bad(report: &Value) -> Vec<(String, String)> {
    let jobs = report["jobs"].as_array().expect("jobs");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let bad = jobs.iter().filter(|job| job["verdict"] != "pass");
    bad.map(|job| (text(&job["verdict"]), text(&job["why"]))).collect()
}

/// Four hosts (addresses of this one), our checks between all pairs in two sizes, and a program that fails once, hangs once and is
/// lost once: 60 jobs. The second call plays those three alone, and they pass.
#[test]
fn sixty_jobs_on_slurm_of_which_one_fails_one_hangs_and_one_is_lost() {
    let test = "sixty_jobs_on_slurm_of_which_one_fails_one_hangs_and_one_is_lost";
    if !find(&["slurmctld", "slurmd", "sbatch", "squeue"]) {
        println!("skipped: {test}: Slurm is not installed (Debian: slurmctld slurmd slurm-client)");
        return;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_rxe-interop"));
    let rxe = program.with_file_name("rxe");
    if !rxe.exists() {
        println!("skipped: {test}: {} is not built (cargo build -p rxe-cli)", rxe.display());
        return;
    }
    let folder = folder("interop-on-slurm");
    // What stands for ssh: HOST COMMAND, the command for a shell.
    let remote = folder.join("remote");
    script(&remote, "#!/bin/sh\necho \"$1\" >>\"$(dirname \"$0\")/asked\"\nexec sh -c \"$2\"\n");
    let host = |n: usize| format!("[[host]]\nname = \"h{n}\"\naddress = \"10.77.0.{n}\"\ngid = {n}\n");
    let hosts: String = (1..=4).map(host).collect();
    let shell = format!("shell = [\"{}\", \"{{host}}\"]\n", remote.display());
    fs::write(folder.join("hosts.toml"), shell + &hosts + ODD).expect("a hosts file");
    let play = "rxe-interop --hosts hosts.toml --out out --program rxe-pingpong --program rxe-rping --program odd \
                --size 64 --size 4096 --count 20 --limit 60 --slurm; echo \"exit $?, $(squeue -h -r -t all -o %A | wc -l) tasks\"";
    let prepare = "for n in 1 2 3 4; do ip addr add 10.77.0.$n/32 dev lo; done";
    // `rxe WORD` and what the commands name come from beside this program.
    let path = format!(
        "{}:{}:/usr/sbin:/sbin",
        program.parent().expect("a folder").display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/slurm"))
        .args(["--", "bash", "-c", &format!("{prepare}; {play}; cp -r out first; {play}")])
        .env("PATH", path)
        .env("XDG_RUNTIME_DIR", &folder)
        .current_dir(&folder)
        .output()
        .expect("scripts/slurm");
    let told = told(&output);
    println!("{told}");
    assert!(told.contains("exit 1, 60 tasks") && told.contains("exit 0, 63 tasks"));
    assert_eq!(bad(&report(&folder.join("out"))), []);
    let report = report(&folder.join("first"));
    let bad = bad(&report);
    assert_eq!(report["jobs"].as_array().map(Vec::len), Some(60));
    let is = |verdict: &str, why: &str| bad.iter().any(|(v, w)| v == verdict && w.contains(why));
    assert!(bad.len() == 3, "{bad:?}");
    assert!(is("fail", "the client on h2 ended with 7: it is broken"), "{bad:?}");
    assert!(is("hang", "the client on h3 had not ended after 60 s"), "{bad:?}");
    assert!(is("lost", "Slurm ended what played it: CANCELLED"), "{bad:?}");
    let asked = fs::read_to_string(folder.join("asked")).expect("hosts that were asked");
    assert!((1..=4).all(|n| asked.lines().filter(|line| *line == format!("h{n}")).count() >= 30));
    let page = fs::read_to_string(folder.join("first/report.html")).expect("a page");
    assert!(page.contains("57 pass, 1 fail, 1 hang, 1 lost") && page.contains("it is broken"));
    fs::remove_dir_all(folder).expect("the folder goes");
}

/// A matrix in which nothing could be played must not look like one that passed.
#[test]
fn nothing_played_is_no_success() {
    let folder = folder("interop-absent");
    let hosts = "shell = [\"sh\", \"-c\"]\n[[host]]\nname = \"a\"\naddress = \"127.0.0.1\"\n[[host]]\nname = \"b\"\naddress = \"127.0.0.2\"\n\
                 [[program]]\nname = \"odd\"\nserver = \"no-such-program\"\nclient = \"no-such-program\"\nsizes = false\n";
    fs::write(folder.join("hosts.toml"), hosts).expect("a hosts file");
    let output = Command::new(env!("CARGO_BIN_EXE_rxe-interop"))
        .args(["--hosts", "hosts.toml", "--out", "out", "--program", "odd"])
        .current_dir(&folder)
        .output()
        .expect("rxe-interop");
    assert_eq!(output.status.code(), Some(3), "{}", told(&output));
    assert!(told(&output).contains("no job could be run"), "{}", told(&output));
    fs::remove_dir_all(folder).expect("the folder goes");
}

/// OpenSSH's client and server, joined by a pipe in the place of a port. What hangs on a host is gone when its time is over.
#[test]
fn real_ssh_runs_commands_and_leaves_nothing() {
    if !find(&["sshd", "ssh", "ssh-keygen"]) {
        println!(
            "skipped: real_ssh_runs_commands_and_leaves_nothing: OpenSSH's server is not installed (Debian: openssh-server)"
        );
        return;
    }
    let folder = folder("interop-by-ssh");
    let place = folder.display();
    let keygen = |name: &str| {
        let file = folder.join(name);
        let done =
            Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(file).status();
        assert!(done.expect("ssh-keygen").success());
    };
    keygen("host");
    keygen("user");
    fs::copy(folder.join("user.pub"), folder.join("authorized")).expect("a key");
    let server = format!(
        "HostKey {place}/host\nAuthorizedKeysFile {place}/authorized\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\n"
    );
    fs::write(folder.join("sshd_config"), server).expect("a configuration");
    let sleep = format!("sleep 97{}", std::process::id());
    let hosts = format!(
        "shell = [\"ssh\", \"-F\", \"none\", \"-o\", \"BatchMode=yes\", \"-o\", \"StrictHostKeyChecking=no\", \"-o\", \"UserKnownHostsFile=/dev/null\", \
         \"-o\", \"LogLevel=ERROR\", \"-i\", \"{place}/user\", \"-o\", \"ProxyCommand=/usr/sbin/sshd -i -f {place}/sshd_config\", \"{{host}}\"]\n\
         [[host]]\nname = \"a\"\naddress = \"127.0.0.1\"\n[[host]]\nname = \"b\"\naddress = \"127.0.0.2\"\n\
         [[program]]\nname = \"odd\"\nserver = \"echo \\\"by $SSH_CONNECTION\\\"\"\nclient = \"test {{own}} = 127.0.0.1 || {sleep}\"\nsizes = false\n"
    );
    fs::write(folder.join("hosts.toml"), hosts).expect("a hosts file");
    // The server wants a folder that only its service makes; root gets one that nobody else sees.
    let inside =
        "if [ \"$(id -u)\" = 0 ]; then mount -t tmpfs tmpfs /run && mkdir /run/sshd; fi && exec \"$@\"";
    let mut command = Command::new("unshare");
    let map = if Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n") {
        &["--mount"][..]
    } else {
        &["--user", "--map-current-user"]
    };
    let output = command
        .args(map)
        .args(["sh", "-c", inside, "_", env!("CARGO_BIN_EXE_rxe-interop"), "--hosts", "hosts.toml"])
        .args(["--out", "out", "--program", "odd", "--limit", "60"])
        .current_dir(&folder)
        .output()
        .expect("rxe-interop");
    println!("{}", told(&output));
    let report = report(&folder.join("out"));
    assert_eq!(report["jobs"][0]["verdict"], "hang", "{report:#}");
    assert_eq!(report["jobs"][0]["why"], "the client on b had not ended after 60 s");
    assert_eq!(report["jobs"][1]["verdict"], "pass", "{report:#}");
    let server = report["jobs"][1]["server"]["output"].as_str().unwrap_or_default();
    assert!(server.starts_with("by UNKNOWN") || server.starts_with("by 127."), "not by ssh: {server}");
    let left = Command::new("pgrep").args(["-xf", &sleep]).output().expect("pgrep");
    assert_eq!(String::from_utf8_lossy(&left.stdout), "", "left on the host");
    fs::remove_dir_all(folder).expect("the folder goes");
}

/// Mistakes are told before anything runs.
#[test]
fn mistakes_are_told() {
    let folder = folder("interop-mistakes");
    fs::write(folder.join("one.toml"), "[[host]]\nname = \"a\"\naddress = \"192.0.2.1\"\n").expect("a file");
    let both =
        "[[host]]\nname = \"a\"\naddress = \"192.0.2.1\"\n[[host]]\nname = \"b\"\naddress = \"192.0.2.2\"\n";
    fs::write(folder.join("two.toml"), format!("shell = [\"/no/such/shell\"]\n{both}")).expect("a file");
    let run = |arguments: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rxe-interop"));
        let output = command.args(arguments.split(' ')).current_dir(&folder).output().expect("rxe-interop");
        (output.status.code(), told(&output))
    };
    for (arguments, code, words) in [
        ("--hosts none.toml --out out", 3, "none.toml: No such file"),
        ("--hosts one.toml --out out", 3, "a pair needs two"),
        ("--hosts two.toml --out out --program iperf", 3, "there is no program iperf; there are ib_send_bw"),
        ("--hosts two.toml --out out --job 99999", 3, "there is no job 99999 of"),
        ("--hosts two.toml --out out --program rping --size 64", 1, "/no/such/shell cannot be started"),
        ("--hosts two.toml", 2, "--out"),
        ("--hosts two.toml --out out --limit 18446744073709551615", 2, "604800"),
    ] {
        let (got, text) = run(arguments);
        assert_eq!(got, Some(code), "{arguments}: {text}");
        assert!(text.contains(words), "{arguments}: {text}");
    }
    let (_, listed) = run("--hosts two.toml --out out --list --program ib_write_bw");
    assert_eq!(listed.lines().count(), 2 * 3, "{listed}");
    fs::remove_dir_all(folder).expect("the folder goes");
}
