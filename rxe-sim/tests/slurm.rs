//! A sweep on a real Slurm, which `scripts/slurm` starts for it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const SCENARIO: &str = "end = \"2ms\"\n[network]\nkind = \"star\"\nhosts = 3\nrate = \"10gbit\"\ndelay = \"1us\"\n\
    [record]\nevery = \"100us\"\nqueues = [\"s0-h2\"]\n\
    [[traffic]]\nkind = \"flows\"\nfrom = [\"h0\", \"h1\"]\nto = \"h2\"\nsize = \"100KB\"\n";

/// The second value is a link that there is not, which a job finds only when it plays.
const SWEEP: &str = "scenario = \"scenario.toml\"\nseeds = 3\nshow = [\"all.delivered\", \"queues.0.longest\"]\n\
    [vary]\n\"record.queues\" = [[\"s0-h2\"], [\"s0-h9\"], [\"s0-h1\"]]\n";

/// Whether Slurm is installed.
fn has_slurm(test: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let is_there = |name: &str| path.split(':').any(|folder| Path::new(folder).join(name).exists());
    let all = ["slurmctld", "slurmd", "sbatch", "squeue"].into_iter().all(is_there);
    if !all {
        println!("skipped: {test}: Slurm is not installed (Debian: slurmctld slurmd slurm-client)");
    }
    all
}

fn on_slurm(script: &str, folder: &Path) -> Output {
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/slurm"))
        .args(["--", "bash", "-c", script])
        .env("SIM", env!("CARGO_BIN_EXE_rxe-sim"))
        .current_dir(folder)
        .output()
        .expect("scripts/slurm");
    println!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    output
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("scenario.toml"), SCENARIO).expect("a scenario");
    fs::write(folder.join("x.sweep.toml"), SWEEP).expect("a sweep");
    folder
}

/// Failed jobs lose only themselves; called again, only what is missing is submitted; and what is queued already is waited for.
#[test]
fn a_sweep_on_slurm_loses_only_what_failed_and_goes_on() {
    if !has_slurm("a_sweep_on_slurm_loses_only_what_failed_and_goes_on") {
        return;
    }
    let folder = folder("sweep-on-slurm");
    let script = r#"
        count() { squeue -h -r -t all -o %A | wc -l; }
        "$SIM" sweep x.sweep.toml --out out --slurm; echo "exit $?, $(count) tasks"
        # A result that is gone is played again, and with it what failed.
        rm out/job-00001.json
        "$SIM" sweep x.sweep.toml --out out --slurm; echo "exit $?, $(count) tasks"
        # With no room for jobs one who waits is ended; the next one finds its jobs in the queue.
        rm out/job-00002.json
        for n in 1 2 3 4; do scontrol update nodename=n$n state=drain reason=test; done
        "$SIM" sweep x.sweep.toml --out out --slurm & first=$!
        until [ "$(squeue -h -r -t pending -o %A | wc -l)" = 4 ]; do sleep 0.1; done
        kill $first; wait $first
        for n in 1 2 3 4; do scontrol update nodename=n$n state=resume; done
        "$SIM" sweep x.sweep.toml --out out --slurm; echo "exit $?, $(count) tasks"
    "#;
    let output = on_slurm(script, &folder);
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let told_of: Vec<_> = said.lines().filter(|line| line.starts_with("exit")).collect();
    assert_eq!(told_of[..2], ["exit 1, 9 tasks", "exit 1, 13 tasks"]);
    // The last call submits again what had failed before it came, at most three; job 2 was queued for it.
    let last = (17..=20).map(|tasks| format!("exit 1, {tasks} tasks")).find(|line| told_of[2] == line);
    assert!(last.is_some(), "{}", told_of[2]);
    for job in 3..6 {
        let line = format!("job {job}: FAILED (NonZeroExitCode): rxe sim: ");
        assert!(told.contains(&line) && told.contains("s0-h9"), "{line}");
    }
    let table = fs::read_to_string(folder.join("out/table.csv")).expect("a table");
    assert_eq!(table.lines().count(), 1 + 6, "{table}");
    assert!(table.lines().skip(1).all(|line| line.split(',').nth(2) == Some("2")), "both flows: {table}");
    fs::remove_dir_all(folder).expect("the folder goes");
}

/// Without Slurm it is said what is missing, and nothing is lost.
#[test]
fn without_slurm_it_is_said_so() {
    let folder = folder("sweep-without-slurm");
    let output = Command::new(env!("CARGO_BIN_EXE_rxe-sim"))
        .args(["sweep", "x.sweep.toml", "--out", "out", "--slurm"])
        .env("PATH", "/nowhere")
        .current_dir(&folder)
        .output()
        .expect("rxe-sim");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("slurm-client"), "{told}");
    fs::remove_dir_all(folder).expect("the folder goes");
}
