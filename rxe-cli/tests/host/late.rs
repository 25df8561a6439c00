//! A request that comes a moment before somebody listens finds its listener all the same.

use super::{
    netns::Namespace,
    stage::{End, REQ, SERVICE, Service, listens, mad, observe, until},
};
use std::{thread, time::Duration};

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
