//! What the library finds out about interfaces, and that it notices changes.

mod netns;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use rxe_verbs::net::interfaces::{Address, Interface, Watch, interfaces};

fn address(ip: &str, prefix: u8) -> Address {
    Address { ip: ip.parse::<IpAddr>().unwrap(), prefix, usable: true }
}

#[test]
fn interfaces_are_described() {
    let Some((left, _right)) = netns::pair(1500) else { return };
    let list = || left.run(|| interfaces().unwrap());
    // The kernel reports a new link as running a moment after both ends are up.
    until(|| list().iter().any(|i| i.name == "v0" && i.running));
    let before = list();
    let names: Vec<&str> = before.iter().map(|interface| interface.name.as_str()).collect();
    assert_eq!(names[0], "lo");
    let find = |list: &[Interface]| list.iter().find(|i| i.name == "v0").cloned().expect("v0");
    let v0 = find(&before);
    assert_eq!((v0.mtu, v0.up, v0.running, v0.loopback, v0.default_route), (1500, true, true, false, false));
    assert!(v0.mac.is_some_and(|mac| mac != [0; 6]));
    let addresses = [address("10.9.0.1", 24), address("fd09::1", 64), address("fe80::1", 64)];
    assert!(v0.addresses.len() == 3 && addresses.iter().all(|address| v0.addresses.contains(address)));
    assert!(before[0].loopback && before[0].addresses.contains(&address("127.0.0.1", 8)));

    let watch = left.run(|| Watch::new().unwrap());
    settled(&watch);
    left.ip("link set v0 mtu 4200");
    noticed(&watch);
    left.ip("addr add 10.9.1.1/16 dev v0 label v0:old");
    noticed(&watch);
    left.ip("route add default via 10.9.0.2");
    noticed(&watch);
    left.ip("route add default dev lo metric 5000");
    noticed(&watch);
    let v0 = find(&list());
    assert_eq!((v0.mtu, v0.default_route), (4200, true));
    assert!(v0.addresses.contains(&address("10.9.1.1", 16)));
    assert_eq!(list().len(), before.len());
    assert!(v0.addresses.windows(2).all(|pair| pair[0].ip.is_ipv4() || pair[1].ip.is_ipv6()));

    left.ip("route del default via 10.9.0.2");
    left.ip("route del default dev lo metric 5000");
    left.ip("route add default via fd09::2");
    assert!(find(&list()).default_route);
    left.ip("link set v0 down");
    let v0 = find(&list());
    assert_eq!((v0.up, v0.running, v0.default_route), (false, false, false));
}

/// Waits until a change is announced. One change may be announced several times.
fn noticed(watch: &Watch) {
    until(|| watch.changed());
    settled(watch);
}

/// Waits until nothing is announced for a moment, because the kernel announces some changes late.
fn settled(watch: &Watch) {
    until(|| {
        std::thread::sleep(Duration::from_millis(20));
        !watch.changed()
    });
}

fn until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "it does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}
