//! The scripts of the fuzz target `responder`, made of random bytes instead of those that a fuzzer finds. The judge is the same.

use rxe_core::{
    testing::{Rng, gauntlet},
    wire::Encapsulation,
};

/// Enough to see each part at work; `testbed/fuzz/run responder` goes on from here.
const SCRIPTS: u64 = 3000;

#[test]
fn random_scripts() {
    let (mut thrown, mut sent, mut received, mut completed, mut failures, mut wrote) = (0, 0, 0, 0, 0, 0);
    for seed in 0..SCRIPTS {
        let mut rng = Rng::new(seed);
        let mut input = vec![0; rng.below(800)];
        rng.fill(&mut input);
        // Half of them as RoCEv2, a quarter each as RoCEv1 and in memory.
        let wires = [Encapsulation::V2, Encapsulation::V1, Encapsulation::V2, Encapsulation::Memory];
        let wire = wires[seed as usize % wires.len()];
        let outcome = std::panic::catch_unwind(|| gauntlet::run(&input, wire)).unwrap_or_else(|panic| {
            eprintln!("the script of seed {seed}, {wire:?}");
            std::panic::resume_unwind(panic)
        });
        thrown += outcome.thrown;
        sent += outcome.sent;
        received += outcome.received;
        completed += outcome.completed;
        failures += outcome.failures;
        wrote += u32::from(outcome.wrote);
    }
    println!(
        "{SCRIPTS} scripts: {thrown} packets thrown, {sent} sent, {received} messages received, {completed} requests \
         completed, {wrote} wrote to the open region, {failures} times in the error state"
    );
    // Each part was at work.
    assert!(thrown > 40_000 && sent > 20_000 && received > 500 && completed > 500);
    assert!(wrote > 1_000 && failures > 5_000);
}
