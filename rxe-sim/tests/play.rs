//! Small scenarios, judged by arithmetic and by what papers say must come out.

use rxe_sim::{Scenario, World, report::Report};
use std::time::Duration;

fn play(text: &str) -> Report {
    let scenario = Scenario::read(text).unwrap_or_else(|error| panic!("{error}"));
    let mut world = World::new(&scenario).unwrap_or_else(|error| panic!("{error}"));
    world.run(|_| ());
    Report::new(&scenario.title, scenario.seed, &world, Duration::from_secs(1))
}

fn star(hosts: usize, more: &str) -> String {
    format!(
        "end = \"1s\"\n[network]\nkind = \"star\"\nhosts = {hosts}\nrate = \"10gbit\"\ndelay = \"10us\"\n{more}"
    )
}

/// One flow alone takes what the links take: 40 us of delay, and 1090 bytes on the wire for 1024 of payload.
#[test]
fn a_flow_alone_takes_what_its_links_take() {
    let text = "[[traffic]]\nkind = \"flows\"\nfrom = [\"h0\"]\nto = \"h1\"\nsize = \"1024KB\"";
    let report = play(&star(2, text));
    assert_eq!((report.all.delivered, report.counts.packets, report.counts.retransmitted), (1, 1000, 0));
    let links = 20.0 + 1000.0 * (1024.0 + 16.0 + 66.0) * 8.0 / 1e4;
    assert!((report.all.fct_mean_us / links - 1.0).abs() < 0.01, "{} of {links} us", report.all.fct_mean_us);
    assert!((0.99..1.01).contains(&report.all.slowdown_mean), "{}", report.all.slowdown_mean);
}

/// Two senders have half of the receiver's link each.
#[test]
fn two_senders_share_a_link() {
    let text = "[record]\nevery = \"100us\"\nflows = true\n[[traffic]]\nkind = \"flows\"\nfrom = [\"h0\", \"h1\"]\nto = \"h2\"\nsize = \"2MB\"";
    let report = play(&star(3, text));
    assert_eq!(report.all.delivered, 2);
    assert!((1.9..2.1).contains(&report.all.slowdown_mean), "{}", report.all.slowdown_mean);
}

/// Classic ARQ: with a loss of p, and W packets under way, a packet costs 1 + W p / (1 - p) transmissions.
#[test]
fn go_back_n_has_its_analytic_goodput() {
    // 20 us each way and 64 packets of 0.88 us: the window is what the way holds, to a packet.
    for (loss, size) in [(0.0005, 40), (0.002, 20), (0.01, 8)] {
        let text = format!(
            "loss = {loss}\n[adapter]\nwindow = \"50KB\"\ntimeout = \"10ms\"\n[[traffic]]\nkind = \"flows\"\nfrom = [\"h0\"]\nto = \"h1\"\nsize = \"{size}MB\""
        );
        let report = play(&star(2, &text));
        let (sent, again) = (report.counts.packets as f64, report.counts.retransmitted as f64);
        let needed = f64::from(size) * 1e6 / 1024.0;
        let under_way = 46.0;
        // A packet crosses two links.
        let p: f64 = 1.0 - (1.0 - loss) * (1.0 - loss);
        let expected = 1.0 + under_way * p / (1.0 - p);
        let measured = sent / needed;
        println!("loss {loss}: {measured:.4} transmissions, {expected:.4} expected, {again} again");
        assert!((measured / expected - 1.0).abs() < 0.1, "loss {loss}: {measured} against {expected}");
        assert_eq!(report.all.delivered, 1);
    }
}

/// Selective repeat sends again what was lost, and little more.
#[test]
fn selective_repeat_sends_each_loss_again_once() {
    let text = "loss = 0.01\n[adapter]\nwindow = \"120KB\"\nrecovery = \"selective\"\n[[traffic]]\nkind = \"flows\"\nfrom = [\"h0\"]\nto = \"h1\"\nsize = \"20MB\"";
    let report = play(&star(2, text));
    assert_eq!(report.all.delivered, 1);
    let (lost, again) = (report.counts.lost, report.counts.retransmitted);
    assert!(lost > 100 && again >= lost && again <= lost + lost / 10, "{again} sent again, {lost} lost");
}

/// The short timeout is for at most three packets under way. While there are more, silence may be longer.
#[test]
fn the_short_timeout_is_for_few_packets() {
    // The first acknowledgement comes after 240 us.
    let text = "[adapter]\nwindow = \"100KB\"\nrecovery = \"selective\"\ntimeout = \"320us\"\nshort_timeout = \"100us\"\n[[traffic]]\nkind = \"flows\"\nfrom = [\"h0\"]\nto = \"h1\"\nsize = \"100KB\"";
    let counts = play(&star(2, text).replace("10us", "60us")).counts;
    assert_eq!((counts.timeouts, counts.retransmitted), (0, 0), "{counts:?}");
}

/// The record has each flow's rate by its congestion control: the link's without any, and nothing before and after the flow.
#[test]
fn rates_are_recorded() {
    let rates = |control: &str| {
        let text = format!(
            "[switch]\necn = {{ kmin = \"5KB\", kmax = \"20KB\", pmax = 1.0 }}\n[adapter]\ncontrol = \"{control}\"\n[record]\nevery = \"50us\"\nflows = true\n[[traffic]]\nkind = \"flows\"\nfrom = [\"h0\", \"h1\"]\nto = \"h2\"\nsize = \"1MB\"\napart = \"200us\""
        );
        let scenario = Scenario::read(&star(3, &text)).expect("a scenario");
        let mut world = World::new(&scenario).expect("a network");
        world.run(|_| ());
        let (samples, _) = world.record();
        samples.iter().map(|sample| sample.rates[1]).collect::<Vec<u64>>()
    };
    const LINE: u64 = 10_000_000_000;
    let (none, dcqcn) = (rates("none"), rates("dcqcn"));
    assert_eq!((none[0], dcqcn[0]), (0, 0), "it begins later");
    assert!(none.iter().all(|rate| [0, LINE].contains(rate)) && none.contains(&LINE), "{none:?}");
    assert!(dcqcn.iter().any(|rate| *rate > 0 && *rate < LINE) && dcqcn.contains(&LINE), "{dcqcn:?}");
}

/// The same scenario and seed give the same simulation, another seed another one.
#[test]
fn everything_follows_from_the_seed() {
    let text = |seed| {
        let network = "end = \"5ms\"\n[network]\nkind = \"fat-tree\"\nports = 4\nrate = \"10gbit\"\ndelay = \"1us\"\n[switch]\nbuffer = \"200KB\"\necn = { kmin = \"20KB\", kmax = \"80KB\", pmax = 0.1 }\n[adapter]\ncontrol = \"dcqcn\"\n[[traffic]]\nkind = \"poisson\"\nsizes = \"hadoop\"\nload = 0.5\nuntil = \"2ms\"";
        format!("seed = {seed}\n{network}")
    };
    let [one, same, other] = [7, 7, 8].map(|seed| {
        let mut report = serde_json::to_value(play(&text(seed))).expect("JSON");
        report["seed"] = 0.into();
        report
    });
    assert_eq!(one, same);
    assert_ne!(one, other);
}

/// DCQCN keeps the queue short that is as long as the window allows without it, and the shares equal.
#[test]
fn dcqcn_keeps_queues_short() {
    let text = |control: &str| {
        star(
            5,
            &format!(
                "[switch]\nbuffer = \"4MB\"\npfc = {{ alpha = 0.125, hysteresis = \"10KB\" }}\necn = {{ kmin = \"5KB\", kmax = \"200KB\", pmax = 0.01 }}\n[adapter]\ncontrol = \"{control}\"\n[record]\nevery = \"100us\"\nqueues = [\"s0-h4\"]\nflows = true\n[[traffic]]\nkind = \"flows\"\nfrom = [\"h0\", \"h1\", \"h2\", \"h3\"]\nto = \"h4\"\nsize = \"30MB\""
            ),
        )
        .replace("end = \"1s\"", "end = \"60ms\"")
    };
    let (none, dcqcn) = (play(&text("none")), play(&text("dcqcn")));
    assert!(none.counts.pauses > 0 && none.counts.dropped == 0, "{:?}", none.counts);
    assert!(dcqcn.counts.notifications > 0, "{:?}", dcqcn.counts);
    assert!(dcqcn.queues[0].mean * 4.0 < none.queues[0].mean, "{:?} {:?}", dcqcn.queues, none.queues);
}

/// If a single packet makes the difference, a pause may end and begin again at the same moment.
#[test]
fn pauses_without_hysteresis_lose_nothing() {
    // A link holds 12.5 KB each way, for which there is room above the 10 KB.
    let text = "[switch]\nport_buffer = \"50KB\"\npfc = { xoff = \"10KB\", hysteresis = \"0B\" }\n[[traffic]]\nkind = \"flows\"\nfrom = [\"h0\", \"h1\"]\nto = \"h2\"\nsize = \"2MB\"";
    let report = play(&star(3, text));
    let counts = report.counts;
    assert!(counts.pauses > 100, "{counts:?}");
    assert_eq!((counts.dropped, counts.retransmitted, report.all.delivered), (0, 0, 2), "{counts:?}");
}

#[test]
fn errors_name_line_and_key() {
    let wrong = Scenario::read(
        "end = \"1s\"\ntraffic = []\n[network]\nkind = \"star\"\nhosts = 2\nrate = \"fast\"\ndelay = \"1us\"",
    );
    let text = wrong.unwrap_err().to_string();
    assert!(text.contains("\"fast\" is no rate"), "{text}");
    let unknown = Scenario::read(
        "end = \"1s\"\ncolour = 3\ntraffic = []\n[network]\nkind = \"star\"\nhosts = 2\nrate = \"1gbit\"\ndelay = \"1us\"",
    );
    let text = unknown.unwrap_err().to_string();
    assert!(text.contains("line 2") && text.contains("colour"), "{text}");
}

/// Numbers of the right form that no memory is enough for, or that mean nothing, are refused at once.
#[test]
fn values_that_make_no_sense_are_refused() {
    let network = |network: &str, more: &str| {
        format!("end = \"1s\"\n{more}\n[network]\n{network}\nrate = \"1gbit\"\ndelay = \"1us\"")
    };
    let star = |more: &str| network("kind = \"star\"\nhosts = 4", "") + "\n" + more;
    let traffic = |kind: &str, more: &str| star(&format!("[[traffic]]\nkind = \"{kind}\"\n{more}"));
    for (text, told) in [
        (network("kind = \"star\"\nhosts = 1000000000000", "traffic = []"), "at most 60000"),
        (
            network(
                "kind = \"leaf-spine\"\nleaves = 4294967296\nspines = 1\nhosts = 4294967296\nuplink = \"1gbit\"",
                "traffic = []",
            ),
            "leaves",
        ),
        (traffic("poisson", "sizes = { fixed = \"0B\" }\nload = 0.5\nuntil = \"1s\""), "1 B to 2 GiB"),
        (traffic("poisson", "sizes = { fixed = \"5GB\" }\nload = 0.5\nuntil = \"1s\""), "1 B to 2 GiB"),
        (
            traffic("poisson", "sizes = { fixed = \"1B\" }\nload = 1.0\nuntil = \"1s\""),
            "more than 4194304 flows",
        ),
        (traffic("incast", "fan_in = 2\nsize = \"1B\"\nevery = \"1ns\""), "more than 4194304 flows"),
        (traffic("incast", "fan_in = 0\nsize = \"1B\"\nevery = \"1ns\""), "nobody sends"),
        (traffic("flows", "from = [\"h0\"]\nto = \"h0\"\nsize = \"1B\""), "sends to itself"),
        (star("[switch]\nalpha = nan\n[[traffic]]\nkind = \"permutation\"\nsize = \"1B\""), "switch.alpha"),
        (
            star("[record]\nevery = \"1ns\"\n[[traffic]]\nkind = \"permutation\"\nsize = \"1B\""),
            "record.every",
        ),
        (
            star(
                "[adapter]\nrecovery = \"selective\"\nwindow = \"9KB\"\nshort_timeout = \"0ns\"\n[[traffic]]\nkind = \"permutation\"\nsize = \"1B\"",
            ),
            "adapter.timeout",
        ),
        (
            network(
                "kind = \"leaf-spine\"\nleaves = 10000\nspines = 1\nhosts = 6\nuplink = \"1gbit\"",
                "traffic = []",
            ),
            "10001 switches",
        ),
        (
            star("[adapter.dcqcn]\ngain = nan\n[[traffic]]\nkind = \"permutation\"\nsize = \"1B\""),
            "adapter.dcqcn.gain",
        ),
    ] {
        let error = Scenario::read(&text).and_then(|scenario| World::new(&scenario));
        let error = error.map(|_| ()).expect_err(&text).to_string();
        assert!(error.contains(told), "{text}\n{error}");
    }
}

/// Flows that would start behind the end are left out, however many they are and however late.
#[test]
fn what_starts_behind_the_end_is_left_out() {
    let flows = |more: &str| {
        let kind = "kind = \"flows\"\nfrom = [\"h0\", \"h1\"]\nto = \"h2\"\nsize = \"1KB\"";
        play(&star(3, &format!("[[traffic]]\n{kind}\n{more}"))).all.flows
    };
    assert_eq!(flows("start = \"2s\"\ncount = 1000000000000000"), 0);
    assert_eq!(flows("start = \"1ms\"\napart = \"8000000s\"\ncount = 100"), 1);
}

/// What docs/lab has are scenarios and sweeps, every job of them.
#[test]
fn the_lab_can_be_played() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/lab");
    let (mut scenarios, mut sweeps) = (0, 0);
    for entry in std::fs::read_dir(folder).expect("docs/lab") {
        let path = entry.expect("an entry").path();
        let name = path.to_string_lossy().into_owned();
        if name.ends_with(".sweep.toml") {
            let plan = rxe_sim::sweep::Plan::read(&path).unwrap_or_else(|error| panic!("{error}"));
            assert!(!plan.jobs.is_empty());
            sweeps += 1;
        } else if name.ends_with(".toml") {
            let scenario = Scenario::read(&std::fs::read_to_string(&path).expect("text"));
            let scenario = scenario.unwrap_or_else(|error| panic!("{name}: {error}"));
            World::new(&scenario).unwrap_or_else(|error| panic!("{name}: {error}"));
            scenarios += 1;
        }
    }
    assert!(scenarios >= 7 && sweeps >= 6, "{scenarios} scenarios, {sweeps} sweeps");
}

/// A captured link holds whole packets, as a check of the ICRC sees it that shares no code with us.
#[test]
fn captures_hold_whole_packets() {
    let text = star(2, "[[traffic]]\nkind = \"flows\"\nfrom = [\"h0\"]\nto = \"h1\"\nsize = \"100KB\"");
    let scenario = Scenario::read(&text).expect("a scenario");
    let mut world = World::new(&scenario).expect("a network");
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("rxe-sim-play.pcap");
    let tap = rxe_sim::pcap::Tap::create(&file).expect("a file");
    let wire = world.wire("s0-h1").expect("a link");
    world.tap(wire, tap.clone());
    world.run(|_| ());
    tap.finish().expect("a whole file");
    let packets = world.counts().packets;
    drop((tap, world));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/icrc-check");
    let output = std::process::Command::new(script).arg(&file).output().expect("scripts/icrc-check");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(&format!("{packets} packets right, 0 wrong")), "{said}");
}
