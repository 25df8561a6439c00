//! cmtime, both roles.

use super::{
    common::{good, text},
    stage::{Host, lines},
};
use serde_json::Value;

const COUNT: u64 = 200;

fn steps(table: &Value) -> Vec<&str> {
    let steps = table["steps"].as_array().unwrap();
    for step in steps {
        assert_eq!(step["messages"], COUNT, "{step}");
        let number = |name: &str| step[name].as_f64().unwrap();
        assert!(number("min_usec") <= number("median_usec"), "{step}");
        assert!(number("median_usec") <= number("p99_usec"), "{step}");
        // The slowest took no longer than all together; in thousandths of a millisecond.
        assert!(number("max_usec") <= number("total_ms") * 1000.0 + 1.0, "{step}");
    }
    steps.iter().map(|step| step["step"].as_str().unwrap()).collect()
}

#[test]
fn every_step_is_measured() {
    let Some(host) = Host::new() else { return };
    for (address, bind) in [("127.0.0.1", false), ("::1", true)] {
        let server = host.start(&format!("cmtime -n {COUNT} --json"));
        let bind = if bind { format!("-b {address}") } else { String::new() };
        let client = host.client(&format!("cmtime {address} -n {COUNT} --json {bind}"));
        good(&client);
        let table = &lines(text(&client.stdout))[0];
        let mut expected = vec![
            "create id",
            "resolve addr",
            "resolve route",
            "create qp",
            "connect",
            "disconnect",
            "destroy",
        ];
        if !bind.is_empty() {
            expected.insert(1, "bind addr");
        }
        assert_eq!(steps(table), expected);
        assert_eq!(table["connections"], COUNT);
        let rate = |name: &str| table[name].as_f64().unwrap();
        assert!(rate("connections_per_second") >= rate("from_scratch_per_second"));
        assert!(rate("from_scratch_per_second") > 0.0);
        let server = server.finish();
        good(&server);
        let table = &lines(text(&server.stdout))[0];
        assert_eq!(steps(table), ["create qp", "accept", "destroy"]);
        assert_eq!(table["connections"], COUNT);
    }
}

#[test]
fn a_server_without_end_serves_again_and_again() {
    let Some(host) = Host::new() else { return };
    let _server = host.start("cmtime -p 88");
    for window in [1, 7, 1000] {
        let client = host.client(&format!("cmtime 127.0.0.1 -p 88 -n 50 -w {window}"));
        good(&client);
        let shown = text(&client.stdout);
        assert!(shown.starts_with("step ") && shown.contains("50 connections, "), "{shown}");
    }
}

/// Each id of the client is bound to an address and so has a port, of which the host service keeps account.
#[test]
fn thousands_of_ids_that_are_bound() {
    let Some(host) = Host::new() else { return };
    let _server = host.start("cmtime -p 88");
    let client = host.client("cmtime 127.0.0.1 -b 127.0.0.1 -p 88 -n 4200");
    good(&client);
    assert!(text(&client.stdout).contains("4200 connections, "), "{client:?}");
}
