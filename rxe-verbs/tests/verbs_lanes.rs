//! Virtual lanes over real sockets: the shares of lanes that are all busy, small messages beside a busy lane, and the DSCPs that
//! others see.

mod verbs_common;

use rxe_fabric::{Fabric, Options, Partitions};
use rxe_verbs::{
    AddressVector, Completion, Context, ContextOptions, Mtu, Psn, QpChange, QpState, QpType, Remote,
    SendFlags, SendOp, SendWr, Sge, WcStatus,
    net::{Capture, InprocNet},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Instant,
};
use verbs_common::{End, loopback, to_init};

const LONG: usize = 128 * 1024;

fn policy(options: &str) -> Fabric {
    Fabric::new(&Options::parse(options).unwrap().0, None, Partitions::default())
}

/// A connection in a service level.
struct Connection {
    near: End,
    far: End,
}

impl Connection {
    fn new((a, b): &(Context, Context), service_level: u8) -> Self {
        Self::between(End::new(a, QpType::Rc, LONG), End::new(b, QpType::Rc, LONG), service_level)
    }

    fn between(near: End, far: End, service_level: u8) -> Self {
        for (own, peer) in [(&near, &far), (&far, &near)] {
            to_init(&own.qp);
            let av = own.qp.context().address_vector(0, peer.gid()).unwrap();
            let change = QpChange {
                state: Some(QpState::Rtr),
                av: Some(AddressVector { service_level, ..av }),
                path_mtu: Some(Mtu::M4096),
                dest_qpn: Some(peer.qp.qpn()),
                rq_psn: Some(Psn::new(0)),
                max_dest_rd_atomic: Some(16),
                min_rnr_timer: Some(1),
                ..QpChange::default()
            };
            own.qp.modify(&change).unwrap();
            let change = QpChange {
                state: Some(QpState::Rts),
                sq_psn: Some(Psn::new(0)),
                timeout: Some(18),
                retry_count: Some(7),
                rnr_retry: Some(7),
                max_rd_atomic: Some(16),
                ..QpChange::default()
            };
            own.qp.modify(&change).unwrap();
        }
        Self { near, far }
    }

    fn write(&self, wr_id: u64, len: u32) {
        let sges: [Sge; 1] = [self.near.mr.sge(0, len)];
        let remote = Remote { addr: self.far.mr.addr(), rkey: self.far.mr.rkey() };
        let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(wr_id, SendOp::Write(remote), &sges) };
        self.near.qp.post_send(&wr).unwrap();
    }

    /// Takes what is done, and gives the bytes that it was.
    fn done(&self) -> usize {
        let mut list = [Completion::default(); 16];
        let count = self.near.cq.poll(&mut list).unwrap();
        assert!(list[..count].iter().all(|wc| wc.status == WcStatus::Success), "{list:?}");
        count
    }
}

/// Two contexts with these lanes.
fn two(options: &str, first: u8, capture: Option<Capture>) -> (Context, Context) {
    let fabric = policy(options);
    let open = |number| {
        let mut wishes = ContextOptions::new().alone().lanes(&fabric);
        if let Some(capture) = &capture {
            wishes = wishes.capture(capture.clone());
        }
        wishes.open_address(loopback(number)).unwrap()
    };
    (open(first), open(first + 1))
}

const THREE: &str = "qos TRUE\nqos_high_limit 0\nqos_vlarb_high 0:0\nqos_vlarb_low 1:64,2:16,3:4\n";

#[test]
fn busy_lanes_have_their_shares() {
    shares_follow_weights(&two(THREE, 1, None));
}

/// With lanes all queue pairs of a process are in one shard, even if it may have several. Otherwise their lanes could not be weighed.
#[test]
fn several_threads_change_nothing_about_shares() {
    let net = InprocNet::new();
    let open = |fabric: &Fabric, address: &str| {
        let wishes = ContextOptions::new().threads(3).lanes(fabric);
        wishes.open_inproc(&net, &[address.parse().unwrap()]).unwrap()
    };
    let weighted = policy(THREE);
    let contexts = (open(&weighted, "10.0.0.1"), open(&weighted, "10.0.0.2"));
    let made = (0..4).map(|_| End::new(&contexts.0, QpType::Rc, 64).qp.qpn().slot());
    assert_eq!(made.collect::<Vec<_>>(), [0; 4]);
    shares_follow_weights(&contexts);
    // With one lane for all there is nothing to weigh.
    let single = open(&policy("qos TRUE\nqos_max_vls 1\n"), "10.0.0.3");
    let made = (0..4).map(|_| End::new(&single, QpType::Rc, 64).qp.qpn().slot());
    assert_eq!(made.collect::<Vec<_>>(), [0, 1, 2, 0]);
}

/// All is posted before it is counted, and counted in the order of one completion queue: how often the program gets the
/// processor changes nothing.
fn shares_follow_weights(contexts: &(Context, Context)) {
    const MESSAGE: usize = 2 << 20;
    const POSTED: usize = 120;
    // The first messages fill empty buffers, whoever comes first.
    const WARM: usize = 20;
    let cq = contexts.0.create_cq(1024, None).unwrap();
    let connections: Vec<_> = (1..=3)
        .map(|level| {
            Connection::between(
                End::with(&contexts.0, QpType::Rc, MESSAGE, &cq),
                End::new(&contexts.1, QpType::Rc, MESSAGE),
                level,
            )
        })
        .collect();
    for _ in 0..POSTED {
        (0..).zip(&connections).for_each(|(index, connection)| connection.write(index, MESSAGE as u32));
    }
    // The lane of most weight is the first that has sent all.
    let mut done = [0_usize; 3];
    let mut before = done;
    while done[0] < POSTED {
        let wc = connections[0].near.good();
        done[wc.wr_id as usize] += 1;
        if done[0] == WARM && before[0] < WARM {
            before = done;
        }
    }
    let counts: Vec<f64> = done.iter().zip(before).map(|(now, before)| (now - before) as f64).collect();
    let total: f64 = counts.iter().sum();
    for (count, weight) in counts.iter().zip([64.0, 16.0, 4.0]) {
        let (share, due) = (count / total, weight / 84.0);
        println!("weight {weight}: share {share:.3}, {due:.3} is due");
        assert!((share - due).abs() < 0.05, "{share:.3}, {due:.3} is due: {done:?} after {before:?}");
    }
}

#[derive(Clone, Default)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Each lane's packets have its DSCP, and the program none to set.
#[test]
fn a_capture_shows_lanes_by_their_dscp() {
    let bytes = Bytes::default();
    let capture = Capture::new(Box::new(bytes.clone()), "rxe").unwrap();
    let contexts = two(THREE, 3, Some(capture));
    for level in 1..=3 {
        let connection = Connection::new(&contexts, level);
        connection.write(0, 64);
        assert_eq!(connection.near.good().status, WcStatus::Success);
    }
    drop(contexts);
    let bytes = bytes.0.lock().unwrap();
    let mut reader = pcap_file::pcapng::PcapNgReader::new(&bytes[..]).unwrap();
    let mut seen = BTreeMap::<u8, usize>::new();
    while let Some(block) = reader.next_block() {
        if let pcap_file::pcapng::Block::EnhancedPacket(packet) = block.unwrap() {
            // Ethernet or bare IP, as the capture has it: the first byte that begins an IPv4 header without options.
            let ip = packet.data.iter().position(|byte| *byte == 0x45).unwrap();
            *seen.entry(packet.data[ip + 1] >> 2).or_default() += 1;
        }
    }
    assert_eq!(seen.keys().copied().collect::<BTreeSet<_>>(), BTreeSet::from([8, 16, 24]), "{seen:?}");
}

/// 64 bytes beside a busy lane: in a lane of high priority it takes less than in the busy one. Run by hand, for the figures.
#[test]
#[ignore = "a measurement: cargo test --release -p rxe-verbs --test verbs_lanes -- --ignored --nocapture"]
fn latency_of_a_high_lane_beside_a_busy_one() {
    let options = "qos TRUE\nqos_high_limit 255\nqos_vlarb_high 4:64\nqos_vlarb_low 0:4\n";
    let contexts = two(options, 5, None);
    let busy: Vec<_> = (0..8).map(|_| Connection::new(&contexts, 0)).collect();
    busy.iter().for_each(|connection| (0..4).for_each(|_| connection.write(0, LONG as u32)));
    let (high, low) = (Connection::new(&contexts, 4), Connection::new(&contexts, 0));
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..2000 {
        for (connection, times) in [&high, &low].into_iter().zip(&mut times) {
            let start = Instant::now();
            connection.write(0, 64);
            while connection.done() == 0 {
                busy.iter().for_each(|busy| (0..busy.done()).for_each(|_| busy.write(0, LONG as u32)));
            }
            times.push(start.elapsed());
        }
    }
    for (name, times) in ["high lane", "busy lane"].iter().zip(&mut times) {
        times.sort_unstable();
        let at = |part: usize| times[times.len() * part / 100];
        println!("{name}: median {:?}, 99 % {:?}", at(50), at(99));
    }
}
