//! Traffic in its steady state allocates nothing: between two contexts over real UDP sockets, whatever thread does the
//! work. One test a program, because the counter is of the whole process.

use benches::ends::{self, End};
use rxe_verbs::{
    CompChannel, Completion, Context, ContextOptions, Mtu, Payload, PortStats, RecvWr, SendOp, SendWr, Sge,
    WcOpcode, WcStatus,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::{
    alloc::System,
    time::{Duration, Instant},
};

#[global_allocator]
static COUNTER: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How long a message may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Requests posted and not completed: all that the queue holds, so that whatever is kept for later use is enough.
const DEPTH: u32 = 128;

#[derive(Clone, Copy, Debug)]
enum Op {
    Write,
    Send,
    Read,
}

/// Where a request's bytes come from, or a receive's go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Data {
    Element,
    FourElements,
    Inline,
}

/// The elements that hold `size` bytes, and how many there are.
fn elements(end: &End, data: Data, size: u32) -> ([Sge; 4], usize) {
    if data == Data::FourElements {
        let part = size / 4;
        return ([0, 1, 2, 3].map(|n| end.sge((n * part) as usize, part)), 4);
    }
    ([end.sge(0, size); 4], 1)
}

/// Sends `count` messages of `size` bytes and waits for all of them.
fn traffic(ends: &[End; 2], op: Op, data: Data, size: u32, count: u32) {
    let [a, b] = ends;
    let ((near, n), (far, m)) = (elements(a, data, size), elements(b, data, size));
    let bytes = [0x5a; 64];
    let (mut posted, mut done, mut received, mut receives) = (0, 0, 0, 0);
    let mut some = [Completion::default(); 32];
    let mut life = Instant::now();
    while done < count || matches!(op, Op::Send) && received < count {
        while matches!(op, Op::Send) && receives < count && receives - received < DEPTH {
            b.qp.post_recv(&RecvWr { wr_id: 0, sges: &far[..m] }).expect("room for a receive");
            receives += 1;
        }
        while posted < count && posted - done < DEPTH {
            let what = match op {
                Op::Write => SendOp::Write(b.remote(0)),
                Op::Send => SendOp::Send,
                Op::Read => SendOp::Read(b.remote(0)),
            };
            let payload = if data == Data::Inline {
                Payload::Inline(&bytes[..size as usize])
            } else {
                Payload::Sges(&near[..n])
            };
            a.qp.post_send(&SendWr { payload, ..SendWr::new(0, what, &[]) }).expect("room for a request");
            posted += 1;
        }
        for end in ends {
            let found = end.cq.poll(&mut some).expect("no overrun");
            for wc in &some[..found] {
                assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
                if wc.opcode == WcOpcode::Recv {
                    received += 1;
                } else {
                    done += 1;
                }
                life = Instant::now();
            }
        }
        if life.elapsed() > PATIENCE {
            panic!("nothing completes: {:?} {:?}", a.qp.stats(), b.qp.stats());
        }
    }
}

/// The same, one WRITE at a time, and asleep until it completes.
fn sleeping(ends: &[End; 2], channel: &CompChannel, size: u32, count: u32) {
    let [a, b] = ends;
    let mut some = [Completion::default(); 4];
    for _ in 0..count {
        a.cq.req_notify(false);
        a.qp.post_send(&SendWr::new(0, SendOp::Write(b.remote(0)), &[a.sge(0, size)])).expect("room");
        let cq = channel.get_event_within(PATIENCE).expect("a completion");
        cq.ack_events(1);
        assert_eq!(cq.poll(&mut some).expect("no overrun"), 1);
        assert_eq!(some[0].status, WcStatus::Success, "{:?}", some[0]);
    }
}

fn packets(contexts: &[Context; 2]) -> u64 {
    contexts.iter().map(Context::port_stats).map(|stats: PortStats| stats.packets_sent).sum()
}

#[test]
fn no_packet_allocates() {
    let contexts = [1, 2]
        .map(|n| ContextOptions::new().alone().open_address(ends::loopback(n)).expect("a loopback device"));
    let ends = ends::connected(&contexts, 1 << 20, Mtu::M4096).expect("connected");
    let mut failures = Vec::new();
    let mut measure = |what: &str, least: u32, run: &dyn Fn()| {
        run();
        let (region, before) = (Region::new(COUNTER), packets(&contexts));
        run();
        let (change, sent) = (region.change(), packets(&contexts) - before);
        let allocations = change.allocations + change.reallocations;
        eprintln!("{what}: {allocations} allocations over {sent} packets");
        assert!(sent >= u64::from(least), "the counter of packets stands still");
        // Queues still grow when a burst is longer than any before it: that ends by itself.
        if allocations as u64 * 1000 >= sent {
            failures.push(format!("{what}: {change:?} over {sent} packets"));
        }
    };
    for (op, data, size, count) in [
        (Op::Write, Data::Element, 1 << 20, 100),
        (Op::Write, Data::Element, 64 << 10, 1000),
        (Op::Write, Data::Element, 8, 10_000),
        (Op::Write, Data::Inline, 64, 10_000),
        (Op::Write, Data::FourElements, 64, 10_000),
        (Op::Send, Data::Element, 64 << 10, 1000),
        (Op::Send, Data::Element, 8, 10_000),
        (Op::Send, Data::Inline, 64, 10_000),
        (Op::Send, Data::FourElements, 64, 10_000),
        (Op::Read, Data::Element, 64 << 10, 1000),
        (Op::Read, Data::FourElements, 64, 10_000),
    ] {
        let what = format!("{op:?}, {data:?} of {size} bytes");
        measure(&what, count, &|| traffic(&ends, op, data, size, count));
    }
    let channel = contexts[0].create_comp_channel().expect("a channel");
    let sleeper = ends::connected_with(&contexts, 4096, Mtu::M4096, Some(&channel)).expect("connected");
    measure("Write of 64 bytes, asleep", 1000, &|| sleeping(&sleeper, &channel, 64, 1000));
    assert!(failures.is_empty(), "{failures:#?}");
}
