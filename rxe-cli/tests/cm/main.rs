//! The programs about connections: rping, cmtime, listen and connect, each role in a process of its own.

mod cmtime;
#[path = "../common/mod.rs"]
mod common;
mod doc;
#[path = "../../../rxe-verbs/tests/netns/mod.rs"]
mod netns;
mod rping;
mod stage;
mod watch;
mod wire;

use common::{failed, rxe, text};
use stage::{Host, scratch};
use std::{path::Path, process::Command};

#[test]
fn wrong_usage_is_two() {
    for (arguments, part) in [
        ("rping -s 25", "26..=65535"),
        ("rping -p 0", "1..=65535"),
        ("rping 127.0.0.1 --persistent", "cannot be used with"),
        ("cmtime -n 0", "1..=1000000"),
        ("cmtime -r 8", "0..=7"),
        ("connect", "ADDR:PORT"),
        ("connect 127.0.0.1:7 --private-data 0xf", "two hexadecimal digits"),
        ("connect 127.0.0.1:7 --ack-timeout 9999", "up to 8796"),
        ("listen 7 --delay=-1", "0 to 86400"),
        ("listen 7 -n 0", "1.."),
    ] {
        let output = rxe(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {output:?}");
        assert!(text(&output.stderr).contains(part), "{arguments}: {output:?}");
    }
}

#[test]
fn nobody_listens() {
    let Some(host) = Host::new() else { return };
    for address in ["127.0.0.1", "::1"] {
        let advice = format!("start the program on {address} that listens to port 77");
        for program in ["rping -n 1 -p 77", "cmtime -p 77 -n 3"] {
            let output = host.rxe(&format!("{program} {address}"));
            failed(&output, "the peer refuses: invalid service ID (8)");
            failed(&output, &advice);
        }
        for (option, why) in [("", "invalid service ID (8)"), ("--datagram", "service ID not supported (1)")]
        {
            let output = host.rxe(&format!("connect [{address}]:77 {option}"));
            failed(&output, why);
            failed(&output, &advice);
        }
    }
    failed(&host.rxe("rping -n 1 not.a.name.invalid"), "is the name right?");
    failed(&host.rxe("rping -n 1 127.0.0.1 -b 192.0.2.7"), "192.0.2.7 is not an address of this host");
    failed(&host.rxe("rping -n 1 192.0.2.7"), "`ip route get 192.0.2.7`");
    failed(&host.rxe("connect 127.0.0.1"), "is no ADDR:PORT");
    failed(&host.rxe("listen 192.0.2.7:7"), "192.0.2.7 is not an address of this host");
    let _listener = host.listen("77 -n 1");
    for program in ["listen 77", "rping -p 77", "cmtime -p 77"] {
        failed(&host.rxe(program), "port 77 of RDMA_PS_TCP is in use on this host");
    }
}

/// What is printed is the result, so the program does not end well without it.
#[test]
fn output_that_does_not_fit_on_the_disk_is_an_error() {
    let Some(host) = Host::new() else { return };
    let _listener = host.listen("77");
    for arguments in ["connect 127.0.0.1:77 --hold 0", "connect 127.0.0.1:77 --hold 0 --json"] {
        let mut command = rxe(arguments);
        command.stdout(std::fs::File::options().write(true).open("/dev/full").unwrap());
        failed(&host.output(command), "cannot write the output");
    }
}

/// A host that has no RDMA device, as far as the other can see.
#[test]
fn nobody_answers() {
    let Some((here, _there)) = netns::pair(1500) else { return };
    let host = Host::of(here);
    for address in ["10.9.0.2", "fd09::2"] {
        let advice = format!("{address} does not answer; is it up, has it an RDMA device");
        for arguments in [
            format!("rping -n 1 -t 1 {address}"),
            format!("connect [{address}]:77 --timeout 0.3"),
            format!("connect [{address}]:77 --timeout 0.3 --datagram"),
            // Until the connection manager itself gives up.
            format!("connect [{address}]:77 --ack-timeout 8e-6 --response-timeout 0.017"),
        ] {
            failed(&host.rxe(&arguments), &advice);
        }
        failed(&host.rxe(&format!("cmtime -n 3 -t 0.3 {address}")), "is it still there?");
    }
}

/// A program that connects by RoCE v1 from the first of a pair's ends, with the configuration file that it needs.
fn by_v1(arguments: &str, link: &str, config: &Path) -> Command {
    std::fs::write(config, "[[port]]\ninterface = \"v0\"\nrdma_cm = \"v1\"\n").unwrap();
    let mut command = rxe(&format!("connect {arguments} --bind 10.9.0.1"));
    command.env("RXE_CONFIG", config).env("RXE_LINK", link);
    command
}

/// The peer has RoCE v2 alone, and is asked by v1: whoever waits learns which of the two was asked by.
#[test]
fn the_other_roce_is_named() {
    let Some((here, there)) = netns::pair(1500) else { return };
    let (host, peer) = (Host::of(here), Host::of(there));
    let _listener = peer.listen("10.9.0.2:77");
    let config = scratch("v1.toml");
    let connect =
        |link| host.output(by_v1("10.9.0.2:77 --ack-timeout 8e-6 --response-timeout 0.017", link, &config));
    failed(&connect("raw"), "10.9.0.2: the peer does not answer to RoCE v1; it may have RoCE v2 alone");
    failed(&connect("udp"), "the link carries RoCE v2 alone (RXE_LINK=raw carries both)");
    std::fs::remove_file(config).unwrap();
}

/// Who listens does not hear RoCE v1, and another process does: that one says that nobody listens there by v1.
#[test]
fn a_request_by_the_other_roce_is_refused_by_who_hears_it() {
    let Some((here, there)) = netns::pair(1500) else { return };
    let (host, peer) = (Host::of(here), Host::of(there));
    let _listener = peer.listen("10.9.0.2:77");
    let mut beside = rxe("listen 10.9.0.2:78");
    beside.env("RXE_LINK", "raw");
    let _beside = peer.watched(beside, "LISTENING");
    let config = scratch("v1.toml");
    failed(&host.output(by_v1("10.9.0.2:77", "raw", &config)), "invalid service ID (8)");
    std::fs::remove_file(config).unwrap();
}
