//! Congestion control of queue pairs over real links: packets that arrive marked or late slow the sender, and the data is right.

mod verbs_common;

use rxe_verbs::{
    Congestion, ContextOptions, DcqcnParams, Mtu, QpType, Remote, SendOp, SendWr, TimelyParams,
    net::{FaultPlan, InprocNet, fault::Script},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use verbs_common::{End, Two, connected, loopback, pattern};

const LINE: u64 = 2_000_000_000;

/// Two contexts, of which the first has this control and the second one sees packets as `script` has them: inside the process, or on
/// the loopback addresses of this number and the next, which are one test's alone.
fn two(sockets: Option<u8>, congestion: Congestion, script: &str) -> Two {
    let script = Some(Arc::new(Script::parse(script).unwrap()));
    let plan = FaultPlan { sending: false, receiving: false, script, ..FaultPlan::default() };
    let (a, b) = (ContextOptions::new().congestion(congestion), ContextOptions::new().faults(plan));
    if let Some(number) = sockets {
        let open = |options: ContextOptions, number| options.alone().open_address(loopback(number)).unwrap();
        return Two::of("udp4", open(a, number), open(b, number + 1));
    }
    let net = InprocNet::new();
    let open = |options: ContextOptions, address: &str| {
        options.open_inproc(&net, &[address.parse().unwrap()]).unwrap()
    };
    Two::of("inproc", open(a, "10.0.0.1"), open(b, "10.0.0.2"))
}

/// Writes so many bytes from one end to the other, whose reader compares.
fn write(a: &End, b: &End, size: usize) {
    let data = pattern(size as u64, size);
    a.mr.write_at(0, &data).unwrap();
    let to = Remote { addr: b.mr.addr(), rkey: b.mr.rkey() };
    a.qp.post_send(&SendWr::new(1, SendOp::Write(to), &[a.mr.sge(0, size as u32)])).unwrap();
    a.good();
    assert!(b.mr.read_vec(0, size).unwrap() == data, "the reader has other bytes");
}

/// DCQCN with timers that never raise the rate again, so that it shows what cut it.
const fn dcqcn() -> DcqcnParams {
    let never = Duration::from_secs(1_000_000);
    DcqcnParams { rate_timer: never, byte_counter: u64::MAX, least: 500_000_000, ..DcqcnParams::paper(LINE) }
}

#[test]
fn marked_packets_cut_the_rate_of_their_queue_pair_alone() {
    for sockets in [None, Some(1)] {
        let two = two(sockets, Congestion::Dcqcn(dcqcn()), "mark rx every 10");
        let (a, b) = connected(&two, QpType::Rc, 1 << 20, Mtu::M1024);
        let (other, _peer) = connected(&two, QpType::Rc, 4096, Mtu::M1024);
        assert_eq!((a.qp.rate(), other.qp.rate(), b.qp.rate()), (Some(LINE), Some(LINE), None));
        write(&a, &b, 1 << 20);
        let (notified, rate) = (a.qp.stats().cnps_received, a.qp.rate());
        assert!(notified > 0 && rate <= Some(LINE / 2), "{}: {notified} notices, {rate:?}", two.name);
        assert_eq!(other.qp.rate(), Some(LINE), "{}", two.name);
    }
}

/// A sender that gets no notification keeps to its rate all the same.
#[test]
fn packets_do_not_leave_faster_than_the_rate() {
    let params = DcqcnParams { line: 100_000_000, ..dcqcn() };
    for sockets in [None, Some(3)] {
        let two = two(sockets, Congestion::Dcqcn(params), "");
        let (a, b) = connected(&two, QpType::Rc, 1 << 20, Mtu::M1024);
        let start = Instant::now();
        write(&a, &b, 1 << 20);
        let took = start.elapsed();
        // A millisecond may be made up for, and the last packet does not wait for its own time.
        let least = Duration::from_secs_f64((1 << 20) as f64 * 8.0 / 1e8) - Duration::from_millis(2);
        assert!(took >= least, "{}: {took:?}, at least {least:?}", two.name);
    }
}

/// With a threshold of nothing every round trip is too long.
#[test]
fn round_trips_cut_the_rate() {
    let (high, smallest) = (Duration::ZERO, Duration::from_nanos(1));
    let params = TimelyParams { low: high, high, smallest, least: 500_000_000, ..TimelyParams::paper(LINE) };
    for sockets in [None, Some(5)] {
        let two = two(sockets, Congestion::Timely(params), "");
        let (a, b) = connected(&two, QpType::Rc, 1 << 20, Mtu::M1024);
        // Each is a round trip at least.
        (0..8).for_each(|_| write(&a, &b, 1 << 17));
        assert!(a.qp.rate() < Some(LINE), "{}: {:?}", two.name, a.qp.rate());
    }
}
