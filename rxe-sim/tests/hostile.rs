//! Scenario and sweep files that end anywhere, or are damaged anywhere: an error or a scenario, never a panic.

use rxe_sim::Scenario;
use std::{fs, path::PathBuf};

/// Scenarios of docs/lab: between them they have every table and every kind of value.
fn samples() -> Vec<String> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/lab"));
    let names = ["dcqcn-victim.toml", "irn.toml", "hpcc-full.toml", "dcqcn-unfairness.toml", "hops.toml"];
    names.iter().map(|name| fs::read_to_string(folder.join(name)).expect(name)).collect()
}

#[test]
fn every_length_of_a_scenario() {
    for sample in samples() {
        assert!(Scenario::read(&sample).is_ok());
        for (len, _) in sample.char_indices() {
            if let Err(error) = Scenario::read(&sample[..len]) {
                assert!(!error.to_string().is_empty());
            }
        }
    }
}

/// Each character becomes each of some that mean something in TOML, in numbers and in units.
#[test]
fn every_character_of_a_scenario_damaged() {
    for sample in samples().into_iter().take(2) {
        for (at, found) in sample.char_indices() {
            for other in ['9', '-', '"', '=', 'ß'] {
                let damaged = format!("{}{other}{}", &sample[..at], &sample[at + found.len_utf8()..]);
                let _ = Scenario::read(&damaged);
            }
        }
    }
}
