//! What a reliable queue pair costs while it is idle: made and brought to RTS, nothing posted. One test a program,
//! because the counter is of the whole process.

use benches::ends;
use rxe_verbs::{ContextOptions, Mtu, Qp, QpInit, QpState, QpType};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static COUNTER: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes of an idle queue pair at most, tables that find it included.
const MOST: usize = 4096;
const COUNT: usize = 1000;

#[test]
fn an_idle_queue_pair_is_small() {
    let contexts = [1, 2]
        .map(|n| ContextOptions::new().alone().open_address(ends::loopback(n)).expect("a loopback device"));
    // The first connection allocates what all share.
    let first = ends::connected(&contexts, 4096, Mtu::M4096).expect("connected");
    let pds = contexts.each_ref().map(|context| context.alloc_pd().expect("a domain"));
    let cqs = contexts.each_ref().map(|context| context.create_cq(16, None).expect("a completion queue"));
    let mut all: Vec<[Qp; 2]> = Vec::with_capacity(COUNT);
    let region = Region::new(COUNTER);
    for _ in 0..COUNT {
        let make =
            |side: usize| pds[side].create_qp(&QpInit::new(QpType::Rc, &cqs[side])).expect("a queue pair");
        let pair = [make(0), make(1)];
        ends::connect(&pair[0], &pair[1], Mtu::M4096).expect("brought up");
        all.push(pair);
    }
    let change = region.change();
    assert!(all.iter().flatten().all(|qp| qp.state() == QpState::Rts));
    let grown = change.bytes_allocated as isize - change.bytes_deallocated as isize;
    let each = usize::try_from(grown).expect("queue pairs take memory") / (2 * COUNT);
    let handle = size_of::<Qp>();
    eprintln!("{each} bytes on the heap and {handle} in the handle for each of {} queue pairs", 2 * COUNT);
    assert!(each + handle <= MOST, "{each} + {handle} bytes for an idle queue pair; at most {MOST}");
    drop((first, all));
}
