//! Which queue pairs are fetched from memory before they are used. It changes nothing else, so only the wishes are seen.

use rxe_core::{
    endpoint::{Endpoint, EndpointConfig, Run, RunMeta},
    num::{Psn, Qpn},
    qp::{QpCaps, QpConfig, QpType},
    testing::Heap,
    time::Instant,
    wire::{Bth, HeaderSeen, Opcode},
    work::{CqId, PdId},
};
use std::cell::RefCell;

thread_local! {
    static WISHES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

fn note(start: *const u8, len: usize) {
    assert!((1..1024).contains(&len), "{len}");
    WISHES.with_borrow_mut(|wishes| wishes.push(start.addr()));
}

/// What was wished since the last time.
fn wishes() -> Vec<usize> {
    WISHES.take()
}

fn endpoint(count: usize) -> (Endpoint, Vec<Qpn>) {
    let mut endpoint = Endpoint::new(EndpointConfig { fetch: note, ..EndpointConfig::default() });
    let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    let config = QpConfig {
        qp_type: QpType::Rc,
        pd: PdId(0),
        send_cq: CqId(0),
        recv_cq: CqId(0),
        srq: None,
        xrcd: None,
        caps,
        signal_all: true,
    };
    let qpns = (0..count).map(|_| endpoint.create_qp(config).expect("made")).collect();
    (endpoint, qpns)
}

#[test]
fn who_came_next_the_last_time() {
    let (mut endpoint, qpns) = endpoint(3);
    let round = |endpoint: &mut Endpoint| -> Vec<Vec<usize>> {
        let each = |&qpn| {
            endpoint.expect_post(qpn);
            wishes()
        };
        qpns.iter().map(each).collect()
    };
    round(&mut endpoint);
    let second = round(&mut endpoint);
    assert!(second.iter().all(|wishes| !wishes.is_empty()), "{second:?}");
    assert_eq!(round(&mut endpoint), second);
    // In the order of their use: the first one is fetched before the first, by the last one's post.
    let other_way: Vec<Vec<usize>> = {
        for _ in 0..2 {
            qpns.iter().rev().for_each(|&qpn| endpoint.expect_post(qpn));
        }
        wishes();
        let each = |&qpn| {
            endpoint.expect_post(qpn);
            wishes()
        };
        qpns.iter().rev().map(each).collect()
    };
    let [zero, one, two] = [&second[2], &second[0], &second[1]];
    assert_eq!(other_way, [one.clone(), zero.clone(), two.clone()]);
}

#[test]
fn one_by_itself_or_one_that_is_gone_is_not() {
    let (mut endpoint, qpns) = endpoint(2);
    for _ in 0..3 {
        endpoint.expect_post(qpns[0]);
    }
    endpoint.expect_post(qpns[1]);
    wishes();
    endpoint.expect_post(qpns[1]);
    assert_eq!(wishes(), []);
    endpoint.destroy_qp(qpns[1]).expect("it is there");
    endpoint.expect_post(qpns[1]);
    endpoint.expect_post(qpns[0]);
    endpoint.expect_post(qpns[1]);
    assert_eq!(wishes(), []);
}

/// A run of packets to these queue pairs, none of which is whole: no matter.
fn arrive(endpoint: &mut Endpoint, dests: &[Qpn]) -> Vec<usize> {
    let meta = RunMeta {
        src: [10, 0, 0, 2].into(),
        dst: [10, 0, 0, 1].into(),
        src_port: 49_152,
        ifindex: 0,
        tos: 0,
        hop_limit: 64,
        seen: HeaderSeen::Hidden,
    };
    let packet =
        |&dest: &Qpn| [&Bth::new(Opcode::RC_ACKNOWLEDGE, dest, Psn::new(1)).emit()[..], &[0; 8]].concat();
    let bytes: Vec<u8> = dests.iter().flat_map(packet).collect();
    endpoint.handle_run(Instant::ZERO, &Run { meta, bytes: &bytes, segment: 20 }, &Heap::new(0, 0, 0));
    wishes()
}

#[test]
fn whose_packet_comes_a_little_later() {
    let (mut endpoint, qpns) = endpoint(3);
    let [a, b, c] = [qpns[0], qpns[1], qpns[2]];
    let third = arrive(&mut endpoint, &[a, b, c]);
    assert!(!third.is_empty());
    assert_eq!(arrive(&mut endpoint, &[b, b, c]), third);
    assert_eq!(arrive(&mut endpoint, &[a, b, c, a, c]).len(), 3 * third.len() - third.len());
    for none in [&[a, b][..], &[a, b, a, b], &[a, b, Qpn::new(0x77_0001)], &[c; 8]] {
        assert_eq!(arrive(&mut endpoint, none), [], "{none:?}");
    }
}
