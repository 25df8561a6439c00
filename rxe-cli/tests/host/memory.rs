//! Processes that send to each other through memory.

use super::{
    netns::Namespace,
    shards::{Wide, across},
    stage::{HOME, Service, observe, until},
};
use rxe_verbs::{Context, ContextOptions, Pkey, net::LinkKind};
use std::fs;

/// What sending through memory leaves alone, where by the sockets each round brings 40 KB.
const SMALL: u64 = 1000;
const ROUNDS: u64 = 5;

/// A stack of its own, as another process would have.
fn process(namespace: &Namespace, link: LinkKind, threads: u8) -> Context {
    let options = ContextOptions::new().pkeys(vec![Pkey::DEFAULT]).link(link).threads(threads);
    namespace.run(|| options.open_address(HOME).unwrap())
}

/// Bytes that the loopback has carried.
fn carried(namespace: &Namespace) -> u64 {
    let table = namespace.run(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap());
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix("lo:")).expect("a loopback");
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Connects new queue pairs of `a` and `b`, and tells what the loopback carries while each writes to and reads from the other.
fn traded(namespace: &Namespace, a: &Context, b: &Context) -> u64 {
    let wide = |context: &Context| {
        let context = context.clone();
        namespace.run(move || Wide::of(context))
    };
    let (a, b) = (wide(a), wide(b));
    let pairs = across(&a, &b);
    let before = carried(namespace);
    for round in 0..ROUNDS {
        for (one, other) in &pairs {
            one.trade(other, round);
            other.trade(one, round);
        }
    }
    carried(namespace) - before
}

#[test]
fn what_goes_through_memory_takes_no_interface() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let open = |link| process(&namespace, link, 2);
    let (a, b, plain) = (open(LinkKind::Memory), open(LinkKind::Memory), open(LinkKind::Udp));
    assert!(traded(&namespace, &a, &b) < SMALL);
    assert!(traded(&namespace, &a, &a) < SMALL, "to itself");
    // No process reads an inbox there: packets go by the sockets.
    assert!(traded(&namespace, &a, &plain) > 40_000 * ROUNDS);
    drop(b);
    let c = open(LinkKind::Memory);
    assert!(traded(&namespace, &a, &c) < SMALL, "a newcomer");
}

/// The next service knows only the inboxes of processes that come after it. The others are reached by the sockets.
#[test]
fn a_service_that_knows_no_inbox_does_no_harm() {
    let Some(namespace) = Namespace::new() else { return };
    let mut service = Service::start(&namespace);
    let open = || process(&namespace, LinkKind::Memory, 1);
    let (a, b) = (open(), open());
    assert!(traded(&namespace, &a, &b) < SMALL);
    service.kill();
    until(|| observe(&namespace).is_some_and(|report| report.counters.rejoined == 2));
    assert!(traded(&namespace, &b, &a) < SMALL, "what is open stays");
    let c = open();
    let one_way = traded(&namespace, &a, &c);
    assert!(one_way > SMALL, "{one_way}");
    let d = open();
    assert!(traded(&namespace, &c, &d) < SMALL, "newcomers");
}
