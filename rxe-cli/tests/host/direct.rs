//! Requests that reach their listener without the service.

use super::{
    netns::Namespace,
    stage::{End, HOME, REQ, SERVICE, Service, exchange, listens, mad, observe, until},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rxe_verbs::host::Listen;

const REJ: u16 = 0x12;

fn dispatched(namespace: &Namespace) -> u64 {
    observe(namespace).unwrap().counters.dispatched
}

fn listens_to_none(namespace: &Namespace) -> bool {
    observe(namespace).unwrap().clients.iter().all(|client| client.listening.is_empty())
}

#[test]
fn requests_after_the_first_need_no_service() {
    let Some(namespace) = Namespace::new() else { return };
    let service = Service::start(&namespace);
    let (a, b, c) = (End::new(&namespace), End::new(&namespace), End::new(&namespace));
    let token = a.context.host_port().unwrap().listen(listens(SERVICE)).expect("nobody else listens");
    exchange(&a, &b, 1);
    // Whoever has been answered knows that it has done what it does after handing the request on.
    assert_eq!(dispatched(&namespace), 1);
    // The service is stopped, and requests still arrive.
    kill(Pid::from_raw(service.pid()), Signal::SIGSTOP).unwrap();
    for round in 2..6 {
        exchange(&a, &b, round);
        exchange(&a, &c, round);
    }
    kill(Pid::from_raw(service.pid()), Signal::SIGCONT).unwrap();
    assert_eq!(dispatched(&namespace), 1);
    // Another service ID goes by the service, which says no.
    b.send(&mad(REQ, 0x11, 0, SERVICE + 1));
    until(|| observe(&namespace).unwrap().counters.unheard == 1);

    // Whoever listens next gets them, and nobody before.
    a.context.host_port().unwrap().unlisten(token);
    until(|| listens_to_none(&namespace));
    b.send(&mad(REQ, 0x12, 0, SERVICE));
    until(|| observe(&namespace).unwrap().counters.unheard == 2);
    a.hears_nothing();
    assert!(c.context.host_port().unwrap().listen(listens(SERVICE)).is_some());
    exchange(&c, &b, 7);
    exchange(&c, &b, 8);
    // It ends.
    drop(c);
    until(|| listens_to_none(&namespace));
    b.send(&mad(REQ, 0x13, 0, SERVICE));
    until(|| observe(&namespace).unwrap().counters.unheard == 3);
    a.hears_nothing();
}

#[test]
fn a_second_listener_is_heeded() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let (a, b, c) = (End::new(&namespace), End::new(&namespace), End::new(&namespace));
    let shared = Listen { reuse: true, ..listens(SERVICE) };
    assert!(a.context.host_port().unwrap().listen(shared).is_some());
    exchange(&a, &b, 1);
    exchange(&a, &b, 2);
    let here = Listen { address: Some(HOME), ..shared };
    let token = c.context.host_port().unwrap().listen(here).expect("they share");
    exchange(&c, &b, 3);
    exchange(&c, &b, 4);
    a.hears_nothing();
    c.context.host_port().unwrap().unlisten(token);
    until(|| {
        observe(&namespace).unwrap().clients.iter().map(|client| client.listening.len()).sum::<usize>() == 1
    });
    exchange(&a, &b, 5);
}

/// A client may take its request back before the first answer. That message names no ID of ours, and the service has not seen the request.
#[test]
fn a_request_is_taken_back() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let (a, b, c) = (End::new(&namespace), End::new(&namespace), End::new(&namespace));
    assert!(a.context.host_port().unwrap().listen(listens(SERVICE)).is_some());
    exchange(&a, &b, 1);
    let request = mad(REQ, 0x77, 0, SERVICE);
    b.send(&request);
    assert_eq!(a.receive(), request);
    let mut given_up = mad(REJ, 0x77, 0, 0);
    // Reason 4, timeout.
    given_up[34..36].copy_from_slice(&[0, 4]);
    b.send(&given_up);
    assert_eq!(a.receive(), given_up);
    c.hears_nothing();
    // Other messages that name no connection are dropped.
    given_up[35] = 28;
    b.send(&given_up);
    until(|| observe(&namespace).unwrap().counters.dropped == 1);
    a.hears_nothing();
}
