//! Several endpoints of a process that send to one socket divide what it takes, and need not wake each other for that.
//!
//! Each endpoint has a pair of its own here, because a pair is two. What makes their destinations one socket is that the
//! streams to it are the same.

use crate::bench::{BUFFER, Bench};
use rxe_core::{
    endpoint::{EndpointConfig, Stream, Streams},
    qp::Mtu,
    testing::{ConnectOptions, PairConfig, Verdict},
    wire::Class,
    work::{SendOp, WcStatus},
};
use std::{net::IpAddr, sync::Arc, time::Duration};

/// Bytes that the socket takes.
const ROOM: u32 = 128 * 1024;
/// What a packet of the largest MTU counts.
const PACKET: u64 = 4096 + 64;
/// Bytes of each request.
const LEN: u32 = BUFFER as u32;

#[derive(Debug)]
struct One(Arc<Stream>);

impl Streams for One {
    fn to(&self, _: IpAddr, _: u8) -> Arc<Stream> {
        Arc::clone(&self.0)
    }
}

/// So many endpoints, each of which alone might have more under way than the socket takes.
fn endpoints<const N: usize>(name: &'static str) -> (Arc<Stream>, [Bench; N]) {
    let stream = Arc::new(Stream::new(ROOM));
    let streams: Arc<dyn Streams> = Arc::new(One(Arc::clone(&stream)));
    let benches = core::array::from_fn(|index| {
        let other = EndpointConfig::default();
        let streams = Some((Arc::clone(&streams), index as u8));
        let own = EndpointConfig { streams, send_window: (1 << 20, 1 << 20), ..other.clone() };
        let config = PairConfig { name, endpoints: [own, other], ..PairConfig::default() };
        // Nothing but acknowledgements is to help those who wait.
        Bench::with(config, ConnectOptions { timeout: 0, mtu: Mtu::M4096, ..ConnectOptions::default() })
    });
    (stream, benches)
}

/// Its peer's acknowledgements do not arrive any more.
fn silence(bench: &mut Bench) {
    bench.pair.sides[1].link.set_rule(|crossing| match crossing.packet.map(|packet| packet.info.class) {
        Some(Class::Acknowledge) => Verdict::Drop,
        _ => Verdict::Pass,
    });
}

fn write(bench: &mut Bench, wr_id: u64) {
    let write = SendOp::Write(bench.remote(1, 0));
    bench.send(0, wr_id, write, 0, LEN);
}

fn packets(bench: &Bench) -> u64 {
    bench.wire_of(0, Class::Write).len() as u64
}

#[test]
fn one_that_sends_alone_has_all_of_it() {
    let (stream, [mut bench, _idle]) = endpoints("stream-alone");
    silence(&mut bench);
    write(&mut bench, 1);
    bench.pair.run_for(Duration::from_micros(400));
    assert_eq!(packets(&bench), u64::from(ROOM) / PACKET);
    assert_eq!(stream.in_flight(), packets(&bench) * PACKET);
}

/// One that came when there was no room has a packet under way. Its acknowledgement proves that what the silent one sent
/// before has left the socket, too.
#[test]
fn one_that_nobody_answers_stops_no_other() {
    let (stream, [mut silent, mut other]) = endpoints("stream-silent");
    silence(&mut silent);
    write(&mut silent, 1);
    silent.pair.run_for(Duration::from_micros(400));
    let full = stream.in_flight();
    write(&mut other, 1);
    other.pair.drain(0);
    assert_eq!((packets(&other), stream.in_flight()), (1, full + PACKET));
    assert!(other.wire(0)[0].ack_req);

    // Half a millisecond of patience would help, too: this is before.
    other.pair.run_for(Duration::from_micros(450));
    assert_eq!(other.sent_statuses(0), [(1, WcStatus::Success)]);
    assert_eq!(stream.in_flight(), 0);
}

/// All send without pause. In turns of some microseconds each has its part, and together they never have more under way than
/// the socket takes but for a packet of each.
#[test]
fn those_who_send_have_a_part_each() {
    const REQUESTS: u64 = 8;
    const SENDERS: usize = 3;
    let (stream, mut benches) = endpoints::<SENDERS>("stream-parts");
    for bench in &mut benches {
        (0..REQUESTS).for_each(|wr_id| write(bench, wr_id));
    }
    let done = |bench: &Bench| bench.pair.completions_waiting(0) as u64;
    while benches.iter().all(|bench| done(bench) < REQUESTS) {
        for bench in &mut benches {
            bench.pair.run_for(Duration::from_micros(3));
            bench.pair.sides[0].endpoint.check_admission();
            let most = u64::from(ROOM) + SENDERS as u64 * PACKET;
            assert!(stream.in_flight() <= most, "{} under way", stream.in_flight());
        }
    }
    let sent = benches.each_ref().map(packets);
    let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
    assert!(least * 10 >= most * 9, "{sent:?} packets");

    for bench in &mut benches {
        bench.pair.run_until_idle();
        assert!(bench.sent_statuses(0).iter().all(|(_, status)| *status == WcStatus::Success));
    }
    assert_eq!(stream.in_flight(), 0, "all was given back");
}

/// Who destroys its queue pair gives back what that had under way.
#[test]
fn what_is_given_up_is_room_for_others() {
    let (stream, [mut silent, mut other]) = endpoints("stream-given-up");
    silence(&mut silent);
    write(&mut silent, 1);
    silent.pair.run_for(Duration::from_micros(400));
    let qpn = silent.qpn(0);
    silent.pair.sides[0].endpoint.destroy_qp(qpn).unwrap();
    assert_eq!(stream.in_flight(), 0);
    silence(&mut other);
    write(&mut other, 1);
    other.pair.run_for(Duration::from_micros(400));
    assert_eq!(packets(&other), u64::from(ROOM) / PACKET);
}
