//! The whole benchmark report, with measurements so short that the figures mean nothing: each is there, is a number, and is drawn.

#[path = "../../rxe-verbs/tests/netns/mod.rs"]
mod netns;

use netns::Namespace;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// Sections by name: the names of their lines, and how many points each has.
const SECTIONS: [(&str, &[(&str, usize)]); 8] = [
    ("bandwidth", SIZES),
    ("processor", SIZES),
    (
        "latency",
        &[
            ("SEND, polling", 4),
            ("UDP, polling", 4),
            ("SEND, sleeping, 2 CPUs", 4),
            ("UDP, sleeping, 2 CPUs", 4),
            ("SEND, sleeping, 1 CPU", 4),
            ("UDP, sleeping, 1 CPU", 4),
        ],
    ),
    ("rate", &[("1 queue pair", 7), ("16 queue pairs", 7), ("256 queue pairs", 7), ("UDP, one a call", 1)]),
    ("loss", &[("WRITE 64 KiB", 4), ("SEND 64 KiB", 4), ("READ 64 KiB", 4)]),
    ("queue-pairs-small", &[("WRITE 64 B", 5)]),
    ("queue-pairs-large", &[("WRITE 64 KiB", 5)]),
    ("connections", &[("ours", 3)]),
];
const SIZES: &[(&str, usize)] = &[
    ("WRITE", 9),
    ("SEND", 9),
    ("READ", 9),
    ("WRITE, sleeping", 9),
    ("TCP (iperf3)", 8),
    ("limit of UDP", 9),
];

fn figures(namespace: &Namespace, folder: &Path, arguments: &'static [&'static str]) -> Output {
    let folder = folder.to_owned();
    namespace.run(move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_figures"));
        command.arg("full").args(arguments).arg("--out").arg(folder);
        command.stderr(Stdio::inherit()).output().unwrap()
    })
}

fn report(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("report.json")).unwrap()).unwrap()
}

/// Texts in a plot, and how many points each thick line has.
fn drawn(path: &Path) -> (Vec<String>, Vec<usize>) {
    let svg = fs::read_to_string(path).unwrap();
    let document =
        roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(document.root_element().tag_name().name(), "svg");
    let texts = document.descendants().filter(|node| node.has_tag_name("text"));
    let texts = texts.filter_map(|node| node.text()).map(|text| text.trim().to_owned()).collect();
    for node in document.descendants() {
        for attribute in node.attributes() {
            assert!(!attribute.value().contains("NaN"), "{}: {attribute:?}", path.display());
        }
    }
    let thick = document.descendants().filter(|node| node.attribute("stroke-width") == Some("2"));
    let points =
        thick.filter_map(|node| node.attribute("points")).map(|points| points.split_whitespace().count());
    (texts, points.collect())
}

fn check_section(folder: &Path, section: &Value, lines: &[(&str, usize)], samples: usize) {
    let name = section["name"].as_str().unwrap();
    let (texts, mut curves) = drawn(&folder.join(format!("{name}.svg")));
    let series = section["series"].as_array().unwrap();
    assert_eq!(series.len(), lines.len(), "{name}");
    for (found, (line, count)) in series.iter().zip(lines) {
        assert_eq!(found["name"], *line, "{name}");
        assert!(texts.iter().any(|text| text == line), "{name}.svg does not name {line}: {texts:?}");
        let points = found["points"].as_array().unwrap();
        assert_eq!(points.len(), *count, "{name}, {line}");
        for point in points {
            let values = point["samples"].as_array().unwrap();
            assert_eq!(values.len(), samples, "{name}, {line}: {point}");
            for value in values.iter().chain([&point["median"], &point["least"], &point["most"]]) {
                // What is not finite is null in JSON.
                assert!(value.as_f64().is_some_and(|value| value >= 0.0), "{name}, {line}: {point}");
            }
        }
    }
    // And a short one for each beside its name.
    let mut expected: Vec<usize> = lines.iter().flat_map(|(_, count)| [*count, 2]).collect();
    expected.sort_unstable();
    curves.sort_unstable();
    assert_eq!(curves, expected, "{name}.svg");
}

#[test]
fn every_figure_is_measured_stored_and_drawn() {
    let Some(namespace) = Namespace::new() else { return };
    if Command::new("iperf3").arg("--version").output().is_err() {
        netns::skip("there is no iperf3 (Debian package iperf3)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = figures(&namespace, folder.path(), &["--rounds", "1", "--seconds", "0.02"]);
    assert!(output.status.success(), "{}", output.status);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed, fs::read_to_string(folder.path().join("report.md")).unwrap());
    let report = report(folder.path());
    for name in ["machine", "date", "command"] {
        assert!(report[name].as_str().is_some_and(|text| !text.is_empty()), "no {name}");
    }
    let ratios = report["ratios"].as_array().unwrap();
    assert!(ratios.len() >= 16, "{} ratios", ratios.len());
    for ratio in ratios {
        for name in ["first", "second", "ratio", "least", "most"] {
            assert!(ratio[name].as_f64().is_some_and(|value| value >= 0.0), "{name} of {ratio}");
        }
        let has_aim = !ratio["aim"].as_str().unwrap().is_empty();
        assert_eq!(ratio["reached"].is_boolean(), has_aim, "{ratio}");
        assert!(printed.contains(&format!("| {} |", ratio["name"].as_str().unwrap())), "{ratio}");
    }
    let sections = report["sections"].as_array().unwrap();
    let found: BTreeMap<&str, &Value> =
        sections.iter().map(|section| (section["name"].as_str().unwrap(), section)).collect();
    assert_eq!(sections.len(), SECTIONS.len());
    for (name, lines) in SECTIONS {
        check_section(folder.path(), found[name], lines, 1);
        assert!(printed.contains(&format!("({name}.svg)")), "report.md does not show {name}.svg");
        let places = lines.iter().map(|(_, count)| count).max().unwrap();
        let table = printed.split(&format!("({name}.svg)")).nth(1).unwrap().trim_start();
        let rows = table.lines().take_while(|line| line.starts_with('|')).count();
        assert_eq!(rows, places + 2, "rows of {name} in report.md");
    }
}

/// What one section is, with that many samples a point.
fn check_latency(folder: &Path, samples: usize) {
    let report = report(folder);
    assert_eq!(report["rounds"], samples);
    assert_eq!(report["sections"].as_array().unwrap().len(), 1);
    check_section(folder, &report["sections"][0], SECTIONS[2].1, samples);
}

#[test]
fn rounds_are_added_to_what_is_stored_if_they_belong_there() {
    let Some(namespace) = Namespace::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().into();
    let first = figures(&namespace, &path, &["--only", "latency", "--rounds", "1", "--seconds", "0.02"]);
    assert!(first.status.success(), "{}", first.status);
    check_latency(&path, 1);
    let more = figures(
        &namespace,
        &path,
        &["--only", "latency", "--rounds", "2", "--seconds", "0.02", "--add", "--json"],
    );
    assert!(more.status.success(), "{}", more.status);
    check_latency(&path, 3);
    assert_eq!(serde_json::from_slice::<Value>(&more.stdout).unwrap(), report(&path));
    // Another length, other sections, nothing stored: refused, and what is there stays.
    let longer =
        figures(&namespace, &path, &["--only", "latency", "--rounds", "1", "--seconds", "0.03", "--add"]);
    assert_eq!(longer.status.code(), Some(1));
    let others =
        figures(&namespace, &path, &["--only", "loss", "--rounds", "1", "--seconds", "0.02", "--add"]);
    assert_eq!(others.status.code(), Some(1));
    let nothing = figures(
        &namespace,
        &path.join("new"),
        &["--only", "latency", "--rounds", "1", "--seconds", "0.02", "--add"],
    );
    assert_eq!(nothing.status.code(), Some(1));
    check_latency(&path, 3);
}
