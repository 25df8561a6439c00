//! The suite's judgement of devices that do not behave as ours: our core behind a link that alters what it is sent.

use crate::{
    bench::Bench,
    cases,
    dut::{WrOp, core},
    link::{Arrival, Link, LinkError, Unsent},
    run::{Differences, Finding, Verdict, run},
    wire::{Packet, Roce, ends_of, is_response, op, take_apart},
};
use std::{net::IpAddr, time::Duration};

/// A link that alters each packet of the suite on its way to the device.
struct Altered<F>(Box<dyn Link>, F);

impl<F: FnMut(Packet) -> Packet> Link for Altered<F> {
    fn own(&self) -> IpAddr {
        self.0.own()
    }

    fn source_port(&self) -> u16 {
        self.0.source_port()
    }

    fn roce(&self) -> Roce {
        self.0.roce()
    }

    fn send(&mut self, ip: &[u8]) -> Result<(), Unsent> {
        let (Some(ends), Ok(seen)) = (ends_of(ip), take_apart(ip, true)) else { return self.0.send(ip) };
        let altered = (self.1)(seen.packet.clone());
        // Lengths are made anew.
        let whole = Packet { ip_len: None, udp_len: None, ..altered.clone() };
        // A packet that is left alone goes on as it is, with whatever is wrong with it.
        if altered == seen.packet { self.0.send(ip) } else { self.0.send(&whole.encode(&ends)) }
    }

    fn recv(&mut self, within: Duration) -> Result<Option<Arrival>, LinkError> {
        self.0.recv(within)
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    fn patience(&self) -> Duration {
        self.0.patience()
    }

    fn calm(&self) -> Duration {
        self.0.calm()
    }
}

/// Our core behind such a link.
fn behind(alter: impl FnMut(Packet) -> Packet + 'static) -> Bench {
    let (dut, link) = core::open(false);
    Bench::new(Box::new(dut), Box::new(Altered(Box::new(link), alter)))
}

/// Plays the cases whose id begins so, on our core behind such a link. Laws are left out.
fn played(starts: &[&str], alter: impl FnMut(Packet) -> Packet + 'static) -> Vec<Finding> {
    let mut bench = behind(alter);
    let mut all = cases::all();
    all.retain(|case| starts.iter().any(|start| case.id.starts_with(start)));
    assert!(!all.is_empty(), "{starts:?}");
    let mut findings = run(&mut bench, &all, &Differences::default(), |_, _| ());
    findings.truncate(all.len());
    findings
}

/// What failed, and why.
fn failed(findings: &[Finding]) -> Vec<(&str, &str)> {
    let failed = findings.iter().filter(|finding| finding.verdict == Verdict::Fail);
    failed.map(|finding| (&*finding.id, &*finding.why)).collect()
}

#[test]
fn a_responder_may_acknowledge_more_often_than_it_is_asked_to() {
    let findings = played(&["RC.", "QP.", "MW.", "MANY.", "XRC.", "BTH.", "ICRC."], |packet| {
        let is_request = packet.opcode.is_some_and(|code| code & 0xe0 == 0 && !is_response(code));
        if is_request { packet.ask() } else { packet }
    });
    assert_eq!(failed(&findings), []);
}

/// The cases of reserved opcodes, where the device takes them for this packet of ours.
fn reserved(taken_for: fn(Packet) -> Packet) -> Vec<Finding> {
    let codes = [0x15, 0x18, 0x1b, 0x1e, 0x1f];
    let starts = codes.map(|code| format!("BTH.OPCODE.{code:02X}"));
    let starts = starts.each_ref().map(String::as_str);
    let findings = played(&starts, move |packet| {
        let is_reserved = packet.opcode.is_some_and(|code| codes.contains(&code));
        if is_reserved { taken_for(packet) } else { packet }
    });
    assert_eq!(findings.len(), codes.len());
    findings
}

#[test]
fn a_reserved_opcode_may_be_refused_but_not_obeyed() {
    // A LAST without a FIRST is an invalid request.
    assert_eq!(failed(&reserved(|packet| packet.opcode(op::SEND_LAST))), []);
    let wrong: [fn(Packet) -> Packet; 3] = [
        |packet| packet.opcode(op::SEND_ONLY),
        |packet| packet.opcode(op::WRITE_ONLY).reth(0, 0, 0).data(vec![]),
        // Refused, but as an access that is not allowed.
        |packet| packet.opcode(op::WRITE_ONLY).reth(0, 0, 8),
    ];
    for (at, obeyed) in wrong.into_iter().enumerate() {
        assert_eq!(failed(&reserved(obeyed)).len(), 5, "{at}");
    }
}

/// A packet that should not come, 134 ms late, is seen where the device was given more time, and only there.
#[test]
fn silence_is_waited_for_longer_where_the_device_may_be_slow() {
    let late = |patience: u64, hurried: bool| {
        let mut bench = behind(|packet| packet);
        bench.world.borrow_mut().set_patience(Duration::from_secs(patience));
        bench.world.borrow_mut().hurry(hurried);
        // Code 15 is 134 ms.
        let mut c = bench.rc_with(|options| options.timeout = 15).unwrap();
        c.post(WrOp::Send, 4).unwrap();
        c.request(Packet::of(op::SEND_ONLY)).unwrap();
        c.quiet().is_err()
    };
    assert!(late(60, false) && late(20, false));
    assert!(!late(60, true) && !late(5, false));
    let bench = behind(|packet| packet);
    let usual = bench.world.borrow().calm();
    bench.world.borrow_mut().set_patience(Duration::ZERO);
    assert_eq!(bench.world.borrow().calm(), usual);
}

/// A link on which the device's last packet comes again and again.
struct Endless(Box<dyn Link>, Option<Arrival>);

impl Link for Endless {
    fn own(&self) -> IpAddr {
        self.0.own()
    }

    fn source_port(&self) -> u16 {
        self.0.source_port()
    }

    fn send(&mut self, ip: &[u8]) -> Result<(), Unsent> {
        self.0.send(ip)
    }

    fn recv(&mut self, within: Duration) -> Result<Option<Arrival>, LinkError> {
        if let Some(arrival) = self.0.recv(within.min(Duration::from_micros(500)))? {
            self.1 = Some(arrival);
        }
        Ok(self.1.clone())
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    fn patience(&self) -> Duration {
        self.0.patience()
    }

    fn calm(&self) -> Duration {
        self.0.calm()
    }
}

#[test]
fn a_device_that_repeats_a_packet_without_end_fails_and_holds_up_nothing() {
    let (dut, link) = core::open(false);
    let mut bench = Bench::new(Box::new(dut), Box::new(Endless(Box::new(link), None)));
    let mut all = cases::all();
    let cases = ["RC.READ.ACK.1", "RC.ATOMIC.ACK.1", "RC.RETRY.RESET.1", "RC.RETRY.COUNT.3"];
    all.retain(|case| cases.contains(&&*case.id));
    let findings = run(&mut bench, &all, &Differences::default(), |_, _| ());
    let failed = failed(&findings);
    let endless = failed.iter().filter(|(_, why)| why.contains("no end")).count();
    assert_eq!((failed.len(), endless), (4, 4), "{failed:?}");
}
