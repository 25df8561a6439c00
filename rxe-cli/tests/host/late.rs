//! A request that arrives a moment before a program listens reaches it all the same.

use super::{
    netns::Namespace,
    stage::{End, REQ, SERVICE, Service, listens, mad, observe, until},
};
use std::{collections::BTreeSet, thread, time::Duration};

/// How often the listener may be too late, on a host that lets it wait for its turn.
const TRIES: u32 = 20;

#[test]
fn a_request_waits_for_its_listener() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let (a, b) = (End::new(&namespace), End::new(&namespace));
    let count = || observe(&namespace).unwrap().counters;
    for round in 0..TRIES {
        let service_id = SERVICE + u64::from(round);
        let before = count();
        let request = mad(REQ, u32::from(b.slot()) << 24 | round, 0, service_id);
        b.send(&request);
        // So long that a service that has its turn has seen it, and shorter than it waits.
        thread::sleep(Duration::from_millis(20));
        a.context.host_port().unwrap().listen(listens(service_id)).expect("nobody else listens");
        until(|| count().dispatched + count().unheard > before.dispatched + before.unheard);
        let after = count();
        if after.dispatched > before.dispatched {
            assert_eq!(a.receive(), request);
            return;
        }
    }
    panic!("{TRIES} times nobody heard it");
}

/// Whoever has many ports says so to the next service, and hears its answers meanwhile.
#[test]
fn thousands_of_ports_outlive_the_service() {
    const PORTS: u64 = 3000;
    let Some(namespace) = Namespace::new() else { return };
    let mut service = Service::start(&namespace);
    let a = End::new(&namespace);
    let port = a.context.host_port().unwrap();
    for n in 0..PORTS {
        port.listen(listens(SERVICE + n)).expect("nobody else listens");
    }
    service.kill();
    let _next = Service::start(&namespace);
    until(|| {
        observe(&namespace).is_some_and(|report| {
            let all: usize = report.clients.iter().map(|client| client.listening.len()).sum();
            all == PORTS as usize && report.clients.iter().all(|client| client.connected)
        })
    });
    // It stays so: nobody was cut off while all was said again.
    thread::sleep(Duration::from_millis(300));
    let report = observe(&namespace).unwrap();
    assert_eq!((report.counters.rejoined, report.counters.misbehaved), (1, 0));
    let complete = |listening: usize, connected| connected && listening == PORTS as usize;
    assert!(report.clients.iter().all(|client| complete(client.listening.len(), client.connected)));
    let numbers = report.clients.iter().flat_map(|client| client.listening.iter().map(|one| one.number));
    assert_eq!(numbers.collect::<BTreeSet<u32>>().len(), PORTS as usize, "each has a number of its own");
}
