use super::*;

const SCENARIO: &str = "end = \"1ms\"\n[network]\nkind = \"star\"\nhosts = 2\nrate = \"10gbit\"\ndelay = \"1us\"\n\
    [[traffic]]\nkind = \"flows\"\nfrom = [\"h0\"]\nto = \"h1\"\nsize = \"10KB\"\n";

/// A folder with a scenario and a sweep of it. It is removed when this value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, sweep: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rxe-sim-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        fs::write(path.join("scenario.toml"), SCENARIO).expect("a scenario");
        let folder = Self(path);
        folder.write(sweep);
        folder
    }

    fn write(&self, sweep: &str) {
        let sweep = format!("scenario = \"scenario.toml\"\nseeds = 2\n{sweep}");
        fs::write(self.0.join("x.sweep.toml"), sweep).expect("a sweep");
    }

    fn plan(&self) -> Result<Plan, SweepError> {
        Plan::read(&self.0.join("x.sweep.toml"))
    }

    fn play(&self) -> Plan {
        let plan = self.plan().expect("a plan");
        assert_eq!(plan.play_all(&self.0, 2, |_, _| ()), 0);
        assert_eq!(plan.tabulate(&self.0).expect("tables"), 0);
        plan
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.0.join(name)).expect("a table");
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn figures_of_several_seeds() {
    assert_eq!(figures(vec![]), None);
    assert_eq!(figures(vec![7.0]), Some([7.0; 4]));
    assert_eq!(figures(vec![37.0, 1.0, 3.0]), Some([41.0 / 3.0, 3.0, 1.0, 37.0]));
    assert_eq!(figures(vec![4.0, 1.0, 2.0, 9.0]), Some([4.0, 3.0, 1.0, 9.0]));
}

#[test]
fn results_of_another_scenario_are_played_anew() {
    let folder = Folder::new("stale", "show = [\"all.delivered\", \"counts.packets\"]");
    let plan = folder.play();
    assert_eq!(folder.lines("table.csv")[1], "1,1,10");
    assert!(!plan.play(&folder.0, 0).expect("it is there"), "not again");
    let larger = SCENARIO.replace("10KB", "20KB");
    fs::write(folder.0.join("scenario.toml"), larger).expect("a scenario");
    assert_eq!(folder.plan().expect("a plan").missing(&folder.0), [0, 1]);
    folder.play();
    assert_eq!(folder.lines("table.csv")[1], "1,1,20");
}

/// Another program may have other results.
#[test]
fn results_of_another_program_are_played_anew() {
    let folder = Folder::new("program", "show = [\"all.delivered\"]");
    let plan = folder.play();
    let path = folder.0.join("job-00001.json");
    let text = fs::read_to_string(&path).expect("a result");
    fs::write(&path, text.replace(env!("CARGO_PKG_VERSION"), "0.0.9")).expect("a result");
    assert_eq!(plan.missing(&folder.0), [1]);
}

/// Where two places set the same key, the table would show a value that was not played.
#[test]
fn keys_that_are_set_twice_are_refused() {
    for (sweep, told) in [
        (
            "[vary]\n\"adapter.mtu\" = [512]\n[cells.a]\n\"adapter.mtu\" = 256",
            "cells.a: adapter.mtu is also in vary",
        ),
        (
            "[vary]\n\"switch.pfc.xoff\" = [\"1KB\"]\n[cells.a]\n\"switch.pfc\" = {}",
            "cells.a: switch.pfc is also in vary, as switch.pfc.xoff",
        ),
        (
            "[vary]\nswitch = [{}]\n[cells.a]\n\"switch.pfc\" = {}",
            "cells.a: switch.pfc is also in vary, as switch",
        ),
        ("[vary]\nseed = [7]", "vary.seed: seeds are from 1 to \"seeds\""),
        ("[cells.a]\nseed = 7", "cells.a.seed: seeds are from 1 to \"seeds\""),
    ] {
        let folder = Folder::new("twice", &format!("show = []\n{sweep}"));
        let error = folder.plan().expect_err(sweep).to_string();
        assert!(error.contains(told), "{sweep}: {error}");
    }
    let folder =
        Folder::new("once", "show = []\n[vary]\n\"adapter.mtu\" = [512]\n[cells.a]\n\"adapter.m\" = {}");
    folder.plan().expect("other keys");
}

#[test]
fn a_cell_that_was_changed_is_played_anew() {
    let sweep = |mtu| format!("show = [\"counts.packets\"]\n[cells.a]\n[cells.b]\n\"adapter.mtu\" = {mtu}");
    let folder = Folder::new("cells", &sweep(512));
    folder.play();
    assert_eq!(folder.lines("table.csv")[1..], ["a,1,10", "a,2,10", "b,1,20", "b,2,20"]);
    folder.write(&sweep(256));
    assert_eq!(folder.plan().expect("a plan").missing(&folder.0), [2, 3]);
}

#[test]
fn numbers_that_a_report_does_not_have_are_left_empty() {
    let folder = Folder::new("empty", "show = [\"all.delivered\", \"no.such\"]");
    folder.play();
    assert_eq!(folder.lines("table.csv")[1], "1,1,");
    assert_eq!(folder.lines("summary.csv")[1], "2,1.0000,1.0000,1.0000,1.0000,,,,");
}

#[test]
fn sweeps_without_jobs_or_with_too_many_are_refused() {
    for (vary, told) in [
        ("\"adapter.mtu\" = []", "vary.adapter.mtu: an empty list"),
        ("cell = [1]", "vary.cell: scenarios have no such key"),
    ] {
        let folder = Folder::new("refused", &format!("show = []\n[vary]\n{vary}"));
        let error = folder.plan().expect_err(vary).to_string();
        assert!(error.contains(told), "{vary}: {error}");
    }
    for (seeds, told) in [("0", "seeds: at least 1"), ("10000000000000", "jobs: at most 100000")] {
        let folder = Folder::new("seeds", "show = []");
        let text = format!("scenario = \"scenario.toml\"\nseeds = {seeds}\nshow = []");
        fs::write(folder.0.join("x.sweep.toml"), text).expect("a sweep");
        let error = folder.plan().expect_err(seeds).to_string();
        assert!(error.contains(told), "{seeds}: {error}");
    }
}

#[test]
fn keys_that_lead_nowhere_are_told() {
    for (key, told) in [("traffic.3.size", "a list of 1"), ("end.x", "a string"), ("colour", "unknown field")]
    {
        let folder = Folder::new("nowhere", &format!("show = []\n[vary]\n\"{key}\" = [\"1KB\"]"));
        let error = folder.plan().expect_err(key).to_string();
        assert!(error.contains(told), "{key}: {error}");
    }
}
