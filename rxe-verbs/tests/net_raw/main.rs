//! The oracle and the gauntlet over raw links: two endpoints in virtual time, as in rxe-core's own tests, whose packets cross
//! interfaces of this host. When a packet arrives, and what accident it has, the simulation decides; headers, segmentation,
//! tags and filters are the links' and the kernel's. What comes has to be what was sent, byte by byte, before the model judges.
//! Needs root.
//!
//! `RXE_ORACLE_COUNT=n` plays n scenarios of each family over each RoCE (1,500 are the oracle's whole matrix), and 2n scripts of
//! the gauntlet. `RXE_ORACLE_SEED=n` plays one scenario of each alone and prints what happened if it fails.

#[path = "../netns/mod.rs"]
mod netns;

mod ends;
mod port;

use ends::{Ends, Hosts};
use rxe_core::testing::{
    Rng, Wire, gauntlet,
    oracle::{self, Outcome, Recipe},
};
use rxe_verbs::net::Encapsulation;
use std::{
    cell::RefCell,
    fmt::Debug,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    rc::Rc,
};

/// Scenarios of each family and RoCE, unless the environment says another number.
const COUNT: u64 = 20;
/// Packets kept for the evidence of a failure.
const TRACE: usize = 50_000;

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

/// Plays scenarios of each family and scripts of the gauntlet between two hosts, by both RoCEs.
fn play(hosts: &Hosts) {
    let ends = Rc::new(RefCell::new(hosts.ends()));
    let (mut count, mut scenarios) = (number("RXE_ORACLE_COUNT").unwrap_or(COUNT), 0);
    let mut first = 0;
    if let Some(seed) = number("RXE_ORACLE_SEED") {
        (first, count) = (seed, 1);
    }
    let (mut total, mut thrown) = (Outcome::default(), 0);
    for encapsulation in [Encapsulation::V2, Encapsulation::V1] {
        for recipe in Recipe::ALL {
            for seed in first..first + count {
                let run = |wire: Wire, trace| oracle::run(seed, recipe, wire, trace);
                total.add(&judged(hosts, &ends, encapsulation, (recipe, seed), run));
                scenarios += 1;
            }
        }
        for seed in first..first + 2 * count {
            let mut rng = Rng::new(seed);
            let mut input = vec![0; rng.below(800)];
            rng.fill(&mut input);
            let run = |wire: Wire, _| gauntlet::run(&input, wire);
            thrown += judged(hosts, &ends, encapsulation, ("gauntlet", seed), run).thrown;
        }
    }
    let ends = ends.borrow();
    println!(
        "{}: {scenarios} scenarios, {thrown} packets thrown; {} batches crossed, {} packets, {} of them merged: {total:?}",
        hosts.name, ends.batches, ends.packets, ends.merged
    );
    assert!(total.operations >= scenarios * 4, "scenarios that do nothing prove nothing");
    assert!(ends.packets >= total.packets + u64::from(thrown) / 2, "they have gone another way");
    if count >= COUNT {
        assert!(total.accidents > 0 && total.retransmitted > 0 && total.rnr_naks > 0, "{total:?}");
        assert_eq!(ends.merged > 0, hosts.merges && ends.are_cut_by_the_kernel(), "packets in one frame");
    }
}

/// Plays one; if it fails, a second time over new links, on record.
fn judged<T>(
    hosts: &Hosts,
    ends: &Rc<RefCell<Ends>>,
    encapsulation: Encapsulation,
    what: (impl Debug, u64),
    run: impl Fn(Wire, usize) -> T,
) -> T {
    let over = |ends: Rc<RefCell<Ends>>| Wire { encapsulation, carrier: Some(ends) };
    catch_unwind(AssertUnwindSafe(|| run(over(Rc::clone(ends)), 0))).unwrap_or_else(|panic| {
        eprintln!(
            "\n==== {what:?} over {encapsulation:?}, {}, failed; the same again, on record ====",
            hosts.name
        );
        ends.borrow_mut().renew(hosts);
        run(over(Rc::clone(ends)), TRACE);
        resume_unwind(panic)
    })
}

#[test]
fn veth_of_mtu_1500() {
    ends::stay_on_one_processor();
    let Some(hosts) = Hosts::veth(1500) else { return };
    play(&hosts);
}

#[test]
fn veth_of_mtu_9000() {
    ends::stay_on_one_processor();
    let Some(hosts) = Hosts::veth(9000) else { return };
    play(&hosts);
}

/// The kernel cuts batches before they get to the other end.
#[test]
fn veth_with_cut_batches() {
    ends::stay_on_one_processor();
    let Some(hosts) = Hosts::veth(9000) else { return };
    play(&hosts.with_cut_batches());
}

/// Each packet is a frame of ours, as with kernels before 6.2.
#[test]
fn veth_without_segmentation() {
    ends::stay_on_one_processor();
    let Some(hosts) = Hosts::veth(9000) else { return };
    play(&hosts.without_segmentation());
}

#[test]
fn vlan() {
    ends::stay_on_one_processor();
    let Some(hosts) = Hosts::vlan() else { return };
    play(&hosts);
}

#[test]
fn priority_tags() {
    ends::stay_on_one_processor();
    let Some(hosts) = Hosts::tagged() else { return };
    play(&hosts);
}

#[test]
fn one_interface() {
    ends::stay_on_one_processor();
    let Some(hosts) = Hosts::on_one_interface() else { return };
    play(&hosts);
}

/// What the kernel merges comes by port 4791, and RoCEv1 as frames.
#[test]
fn veth_by_port() {
    ends::stay_on_one_processor();
    let Some(hosts) = Hosts::veth(9000) else { return };
    play(&hosts.by_port());
}

#[test]
fn veth_by_port_one_by_one() {
    ends::stay_on_one_processor();
    let Some(hosts) = Hosts::veth(1500) else { return };
    play(&hosts.by_port_singly());
}

#[test]
fn one_interface_by_port() {
    ends::stay_on_one_processor();
    let Some(hosts) = Hosts::on_one_interface() else { return };
    play(&hosts.by_port());
}
