//! Two processes that send each other messages and check every byte, while a test disturbs them.

use super::{
    netns::Namespace,
    stage::{self, HOME, PATIENCE, finish, say, until},
};
use rxe_verbs::{
    Access, Context, Gid, Mr, Mtu, Psn, Qp, QpChange, QpInit, QpState, QpType, Qpn, RecvWr, SendOp, SendWr,
    WcStatus,
};
use std::{
    io::{BufRead, Write},
    process::Child,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// Bytes of a message: three packets.
const MESSAGE: usize = 10_000;
/// Answered messages between two signs of life.
const ROUNDS: u32 = 10;
/// One that is shorter ends it.
const END: usize = 1;
/// 1.1 s, eight times: longer than packets may go astray before the service has noticed and mended it.
const TIMEOUT: u8 = 18;

/// The two processes.
pub(crate) struct Traffic {
    asks: (Child, JoinHandle<()>),
    answers: (Child, JoinHandle<()>),
    signs: Arc<AtomicU64>,
}

impl Traffic {
    pub(crate) fn start(namespace: &Namespace) -> Self {
        let [first, second] = [(); 2].map(|()| {
            let (child, mut output) = stage::child(namespace, "traffic::child_trades");
            let line = stage::hear(&mut output, "queue pair ");
            (child, output, line.trim_end().rsplit(' ').next().unwrap().to_owned())
        });
        let signs = Arc::new(AtomicU64::new(0));
        let (number, peer) = (first.2.clone(), second.2.clone());
        let start = |(mut child, output, _): (Child, _, _), to: String, role| {
            writeln!(child.stdin.as_mut().unwrap(), "{to} {role}").unwrap();
            let signs = Arc::clone(&signs);
            let reader = thread::spawn(move || {
                let lines = std::io::BufReader::lines(output);
                for _ in lines.map_while(Result::ok).filter(|line| line.contains("round")) {
                    signs.fetch_add(1, Ordering::Relaxed);
                }
            });
            (child, reader)
        };
        let answers = start(second, number, "answers");
        let asks = start(first, peer, "asks");
        let traffic = Self { asks, answers, signs };
        traffic.goes_on();
        traffic
    }

    /// Messages are answered now.
    pub(crate) fn goes_on(&self) {
        let before = self.signs.load(Ordering::Relaxed);
        // The second one is not about what was under way before.
        until(|| self.signs.load(Ordering::Relaxed) >= before + 2);
    }

    /// Checks that both have found every byte right.
    pub(crate) fn finish(self) {
        self.goes_on();
        for (child, reader) in [self.asks, self.answers] {
            finish(child, std::io::empty());
            reader.join().unwrap();
        }
    }
}

/// One end in its process.
struct Trader {
    context: Context,
    qp: Qp,
    cq: rxe_verbs::Cq,
    mr: Mr,
}

impl Trader {
    fn new() -> Self {
        let context = Context::open_address(HOME).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(16, None).unwrap();
        let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq)).unwrap();
        let mr = pd.alloc_mr(2 * MESSAGE, Access::LOCAL_WRITE).unwrap();
        Self { context, qp, cq, mr }
    }

    fn connect(&self, peer: Qpn) {
        let none = QpChange::default();
        let access = Some(Access::empty());
        let init =
            QpChange { state: Some(QpState::Init), pkey_index: Some(0), port: Some(1), access, ..none };
        let rtr = QpChange {
            state: Some(QpState::Rtr),
            av: Some(self.context.address_vector(0, Gid::from(HOME)).unwrap()),
            path_mtu: Some(Mtu::M4096),
            dest_qpn: Some(peer),
            rq_psn: Some(Psn::new(1)),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(1),
            ..none
        };
        let rts = QpChange {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(1)),
            timeout: Some(TIMEOUT),
            retry_count: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(1),
            ..none
        };
        self.qp.modify(&init).unwrap();
        self.receive_next();
        self.qp.modify(&rtr).unwrap();
        self.qp.modify(&rts).unwrap();
    }

    fn receive_next(&self) {
        let sges = [self.mr.sge(0, MESSAGE as u32)];
        self.qp.post_recv(&RecvWr { wr_id: 0, sges: &sges }).unwrap();
    }

    fn send(&self, bytes: &[u8]) {
        self.mr.write_at(MESSAGE, bytes).unwrap();
        let sges = [self.mr.sge(MESSAGE, bytes.len() as u32)];
        self.qp.post_send(&SendWr::new(1, SendOp::Send, &sges)).unwrap();
    }

    /// Waits until both a message has come and the one sent is acknowledged, or until one of them is so; gives the message.
    fn next(&self, mut wanted: u32) -> Option<Vec<u8>> {
        let mut message = None;
        while wanted > 0 {
            let wc = self.cq.poll_within(PATIENCE).unwrap().expect("a completion");
            assert_eq!(wc.status, WcStatus::Success, "{wc:?} {:?}", self.qp.stats());
            wanted -= 1;
            if wc.wr_id == 0 {
                message = Some(self.mr.read_vec(0, wc.byte_len as usize).unwrap());
                self.receive_next();
            }
        }
        message
    }
}

/// What the message of a round and direction is.
fn content(round: u32, direction: u32) -> Vec<u8> {
    let mut state = (u64::from(round) << 32 | u64::from(direction)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..MESSAGE).map(step).collect()
}

#[test]
#[ignore = "run by abuse::a_thousand_hellos_are_one_too_many"]
fn child_trades() {
    let trader = Trader::new();
    say(&format!("queue pair {}", trader.qp.qpn().value()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let (peer, role) = line.trim_end().split_once(' ').expect("a peer and a role");
    trader.connect(Qpn::new(peer.parse().unwrap()));
    if role == "asks" { ask(&trader) } else { answer(&trader) }
}

fn ask(trader: &Trader) {
    let parent = thread::spawn(stage::wait_for_parent);
    for round in 0.. {
        if parent.is_finished() {
            break;
        }
        trader.send(&content(round, 0));
        assert_eq!(trader.next(2), Some(content(round, 1)), "round {round}");
        if round % ROUNDS == 0 {
            say("round");
        }
        // Others need the processor too.
        thread::sleep(Duration::from_millis(1));
    }
    trader.send(&[0; END]);
    trader.next(1);
}

fn answer(trader: &Trader) {
    let mut wanted = 1;
    for round in 0.. {
        let message = trader.next(wanted).expect("a message");
        if message.len() == END {
            break;
        }
        assert_eq!(message, content(round, 0), "round {round}");
        trader.send(&content(round, 1));
        wanted = 2;
    }
}
