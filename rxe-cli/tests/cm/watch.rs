//! listen and connect: what they print on both sides of the same connection.

use super::{
    common::{failed, good, text},
    stage::{Host, lines, names},
};
use serde_json::Value;

const OURS: [&str; 2] = ["127.0.0.1", "[::1]"];

/// The messages of one side; times apart, both sides should have printed the same.
fn messages(lines: &[Value]) -> Vec<(&Value, &Value, &Value)> {
    let messages = lines.iter().filter(|line| line.get("message").is_some());
    messages.map(|line| (&line["message"], &line["transaction"], &line["fields"])).collect()
}

fn sent(lines: &[Value]) -> Vec<&str> {
    lines
        .iter()
        .filter(|line| line["direction"] == "sent")
        .filter_map(|line| line["message"].as_str())
        .collect()
}

fn hex(text: &str, len: usize) -> String {
    let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("{digits:0<width$}", width = 2 * len)
}

#[test]
fn a_connection_from_both_sides() {
    let Some(host) = Host::new() else { return };
    for address in OURS {
        let listener = host.listen("7471 -n 1 --json --private-data welcome");
        let output = host.rxe(&format!("connect {address}:7471 --json --private-data hello --tos 104"));
        good(&output);
        let (active, passive) = (lines(text(&output.stdout)), lines(&listener.finish()));
        assert_eq!(
            names(&active),
            [
                "ADDR_RESOLVED",
                "ROUTE_RESOLVED",
                "REQ",
                "REP",
                "RTU",
                "ESTABLISHED",
                "DREQ",
                "DREP",
                "DISCONNECTED",
                "TIMEWAIT_EXIT"
            ]
        );
        assert_eq!(
            names(&passive),
            [
                "LISTENING",
                "REQ",
                "CONNECT_REQUEST",
                "REP",
                "RTU",
                "ESTABLISHED",
                "DREQ",
                "DISCONNECTED",
                "DREP",
                "TIMEWAIT_EXIT"
            ]
        );
        assert_eq!(messages(&active), messages(&passive));
        assert_eq!(sent(&active), ["REQ", "RTU", "DREQ"]);
        assert_eq!(sent(&passive), ["REP", "DREP"]);
        let (req, rep) = (&active[2]["fields"], &active[3]["fields"]);
        assert_eq!(req["service_id"], "0x0000000001061d2f");
        assert_eq!(req["primary_traffic_class"], 104);
        assert_eq!(req["user_data"], hex("hello", 56));
        assert_eq!(rep["private_data"], hex("welcome", 196));
        // What each side is told about the other comes from the other's message, mirrored.
        let (established, request) = (&active[5], &passive[2]);
        assert_eq!(established["private_data"], rep["private_data"]);
        assert_eq!(request["private_data"], req["user_data"]);
        assert_eq!((&established["qpn"], &request["qpn"]), (&rep["local_qpn"], &req["local_qpn"]));
        assert_eq!(request["responder_resources"], req["initiator_depth"]);
        assert_eq!(active[6]["fields"]["remote_qpn"], rep["local_qpn"]);
    }
}

#[test]
fn refusals_carry_data() {
    let Some(host) = Host::new() else { return };
    for address in OURS {
        let listener = host.listen("7471 -n 2 --json --reject --private-data 0x01ff");
        for _ in 0..2 {
            let output = host.rxe(&format!("connect {address}:7471 -v"));
            failed(&output, "said no (consumer reject, 28)");
            let shown = text(&output.stdout);
            assert!(shown.contains("*** REJECTED") && shown.contains("0x01ff"), "{shown}");
        }
        let passive = lines(&listener.finish());
        let one = ["REQ", "CONNECT_REQUEST", "REJ"];
        assert_eq!(names(&passive), [&["LISTENING"][..], &one, &one].concat());
        assert_eq!(passive[3]["fields"]["reason"], 28);
    }
}

#[test]
fn a_slow_listener_asks_for_patience() {
    let Some(host) = Host::new() else { return };
    let listener = host.listen("7471 -n 1 --json --delay 3");
    let output = host.rxe("connect 127.0.0.1:7471 --json --ack-timeout 0.017 --response-timeout 0.067");
    good(&output);
    let active = lines(text(&output.stdout));
    let names = names(&active);
    let repeats = names.iter().filter(|name| **name == "REQ").count() - 1;
    assert!(repeats >= 1, "{names:?}");
    let mra = active.iter().find(|line| line["message"] == "MRA").expect("an MRA");
    assert_eq!((&mra["fields"]["message"], &mra["fields"]["service_timeout"]), (&0.into(), &24.into()));
    let again = active.iter().filter(|line| line["message"] == "REQ").map(|line| line["again"].as_u64());
    assert!(again.eq((0..=repeats as u64).map(Some)), "{active:?}");
    listener.finish();
}

#[test]
fn datagram_services_are_found() {
    let Some(host) = Host::new() else { return };
    for address in OURS {
        let listener = host.listen("7471 -n 1 --datagram --json --private-data here");
        let output = host.rxe(&format!("connect {address}:7471 --datagram --json --private-data where?"));
        good(&output);
        let (active, passive) = (lines(text(&output.stdout)), lines(&listener.finish()));
        assert_eq!(
            names(&active),
            ["ADDR_RESOLVED", "ROUTE_RESOLVED", "SIDR_REQ", "SIDR_REP", "ESTABLISHED"]
        );
        assert_eq!(names(&passive), ["LISTENING", "SIDR_REQ", "CONNECT_REQUEST", "SIDR_REP"]);
        assert_eq!(messages(&active), messages(&passive));
        let (req, rep) = (&active[2]["fields"], &active[3]["fields"]);
        assert_eq!((&req["service_id"], &rep["status"]), (&"0x0000000001111d2f".into(), &0.into()));
        assert_eq!(
            (&req["user_data"], &rep["private_data"]),
            (&hex("where?", 180).into(), &hex("here", 136).into())
        );
        assert_eq!((&active[4]["qpn"], &active[4]["qkey"]), (&rep["qpn"], &0x0123_4567.into()));
        let listener = host.listen("7471 -n 1 --datagram --reject");
        failed(&host.rxe(&format!("connect {address}:7471 --datagram")), "rejected by the service (2)");
        listener.finish();
    }
}

/// A client that gives up tells its peer. The listener's program is told, although the message cannot name its connection.
#[test]
fn giving_up_is_told_to_the_peer() {
    let Some(host) = Host::new() else { return };
    for address in OURS {
        let listener = host.listen("7471 --json --delay 10 -n 1 --timeout 60");
        let output = host.rxe(&format!("connect {address}:7471 --json --timeout 2"));
        failed(&output, "given up after 2 s");
        let active = lines(text(&output.stdout));
        let rej = active.iter().find(|line| line["message"] == "REJ").expect("a REJ");
        assert_eq!((&rej["direction"], &rej["fields"]["reason"]), (&"sent".into(), &4.into()));
        assert_eq!(rej["fields"]["remote_comm_id"], 0);
        let passive = lines(&listener.finish());
        let last = passive.last().unwrap();
        assert_eq!((&last["event"], &last["status"]), (&"REJECTED".into(), &4.into()));
    }
}

/// Told at once, and not to the first peer's cost.
#[test]
fn private_data_that_do_not_fit_are_told_before_anybody_comes() {
    let Some(host) = Host::new() else { return };
    for (options, room) in [("", 196), ("--reject", 148), ("--datagram", 136), ("--datagram --reject", 136)] {
        let data = "x".repeat(room + 1);
        let wanted = format!("--private-data has {} bytes, and these answers have room for {room}", room + 1);
        failed(&host.rxe(&format!("listen 7471 --timeout 1 {options} --private-data {data}")), &wanted);
    }
    let all = "y".repeat(196);
    let listener = host.listen(&format!("7471 -n 1 --private-data {all}"));
    let output = host.rxe("connect 127.0.0.1:7471");
    good(&output);
    assert!(text(&output.stdout).contains(&all), "{output:?}");
    listener.finish();
}

/// A listener that would have refused goes on to the next one, who gets the refusal.
#[test]
fn who_gives_up_before_the_refusal_does_not_end_the_listener() {
    let Some(host) = Host::new() else { return };
    for address in OURS {
        let listener = host.listen("7471 --json --reject --delay 3 -n 2 --timeout 60");
        failed(&host.rxe(&format!("connect {address}:7471 --timeout 1")), "given up after 1 s");
        failed(&host.rxe(&format!("connect {address}:7471")), "said no (consumer reject, 28)");
        let passive = lines(&listener.finish());
        let told: Vec<_> = passive.iter().filter(|line| line["event"] == "REJECTED").collect();
        assert_eq!(told.len(), 1, "{passive:?}");
        assert_eq!(passive.iter().filter(|line| line["message"] == "REJ").count(), 2, "{passive:?}");
    }
}

/// No colours in a pipe, and one line an event.
#[test]
fn text_for_people() {
    let Some(host) = Host::new() else { return };
    let listener = host.listen("127.0.0.1:7471 -n 1");
    let output = host.rxe("connect -v 127.0.0.1:7471");
    good(&output);
    for (shown, arrow, verbose) in [
        (text(&output.stdout).to_owned(), "--> REQ to 127.0.0.1", true),
        (listener.finish(), "<-- REQ from 127.0.0.1", false),
    ] {
        assert!(!shown.contains('\x1b'), "{shown}");
        assert!(shown.contains(arrow), "{shown}");
        assert!(shown.contains("0x0000000001061d2f   RDMA_PS_TCP, port 7471"), "{shown}");
        assert!(shown.contains("the receiver answers within 1074 ms"), "{shown}");
        assert_eq!(shown.contains("primary hop limit"), verbose, "{shown}");
    }
}
