//! Processes with several threads, each of which has a slot of its own.

use super::{
    netns::Namespace,
    stage::{self, HOME, JOIN, PATIENCE, Service, finish, hear, hello, observe, raw, say, say_raw, until},
};
use nix::{
    sys::{
        signal::{Signal, kill},
        socket::{MsgFlags, recv},
        wait::{WaitStatus, waitpid},
    },
    unistd::{ForkResult, Pid, alarm, fork},
};
use rxe_verbs::{
    Access, Completion, Context, ContextOptions, Cq, Gid, Mr, Mtu, PollError, Psn, Qp, QpChange, QpInit,
    QpState, QpType, Remote, SendOp, SendWr, WcStatus,
    host::{Observer, report::ServiceReport},
};
use std::{
    collections::BTreeSet,
    os::fd::{AsRawFd, OwnedFd},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

const THREADS: u8 = 3;
/// Bytes of a message: three packets.
const MESSAGE: usize = 10_000;

/// A stack with a queue pair on each of several shards.
pub(super) struct Wide {
    context: Context,
    pub(super) lanes: Vec<Lane>,
}

pub(super) struct Lane {
    pub(super) qp: Qp,
    cq: Cq,
    mr: Mr,
}

impl Wide {
    fn new(namespace: &Namespace) -> Self {
        namespace.run(Self::here)
    }

    /// In the namespace that the thread is in.
    fn here() -> Self {
        Self::of(ContextOptions::new().threads(THREADS).open_address(HOME).unwrap())
    }

    /// New queue pairs of a stack.
    pub(super) fn of(context: Context) -> Self {
        let pd = context.alloc_pd().unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let lane = |_| {
            let cq = context.create_cq(16, None).unwrap();
            let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq)).unwrap();
            Lane { qp, cq, mr: pd.alloc_mr(3 * MESSAGE, access).unwrap() }
        };
        let lanes = (0..THREADS).map(lane).collect();
        Self { context, lanes }
    }

    fn slots(&self) -> BTreeSet<u8> {
        self.lanes.iter().map(|lane| lane.qp.qpn().slot()).collect()
    }
}

impl Lane {
    pub(super) fn connect(&self, peer: &Self) {
        let none = QpChange::default();
        let access = Some(Access::REMOTE_WRITE | Access::REMOTE_READ);
        let init =
            QpChange { state: Some(QpState::Init), pkey_index: Some(0), port: Some(1), access, ..none };
        let rtr = QpChange {
            state: Some(QpState::Rtr),
            av: Some(self.qp.context().address_vector(0, Gid::from(HOME)).unwrap()),
            path_mtu: Some(Mtu::M4096),
            dest_qpn: Some(peer.qp.qpn()),
            rq_psn: Some(Psn::new(1)),
            max_dest_rd_atomic: Some(4),
            min_rnr_timer: Some(1),
            ..none
        };
        let rts = QpChange {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(1)),
            // Longer than packets may go astray.
            timeout: Some(18),
            retry_count: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(4),
            ..none
        };
        for change in [init, rtr, rts] {
            self.qp.modify(&change).unwrap();
        }
    }

    /// Writes to the peer, reads it back, and compares.
    pub(super) fn trade(&self, peer: &Self, round: u64) {
        let data: Vec<u8> =
            (0..MESSAGE as u64).map(|n| (n * 31 + round * 7 + n * round / 251) as u8).collect();
        self.mr.write_at(0, &data).unwrap();
        let there = Remote { addr: peer.mr.addr() + MESSAGE as u64, rkey: peer.mr.rkey() };
        for (op, place) in [(SendOp::Write(there), 0), (SendOp::Read(there), 2 * MESSAGE)] {
            let sges = [self.mr.sge(place, MESSAGE as u32)];
            self.qp.post_send(&SendWr::new(1, op, &sges)).unwrap();
            let wc = self.cq.poll_within(PATIENCE).unwrap().expect("a completion");
            assert_eq!(wc.status, WcStatus::Success, "{:?}", self.qp.stats());
        }
        assert!(self.mr.read_vec(2 * MESSAGE, MESSAGE).unwrap() == data, "round {round}: other bytes");
        assert!(peer.mr.read_vec(MESSAGE, MESSAGE).unwrap() == data, "round {round}: other bytes there");
    }
}

/// Each lane of `a` with the next one's of `b`: different shards.
pub(super) fn across<'a>(a: &'a Wide, b: &'a Wide) -> Vec<(&'a Lane, &'a Lane)> {
    let pairs: Vec<_> = a.lanes.iter().zip(b.lanes.iter().cycle().skip(1)).collect();
    for (one, other) in &pairs {
        one.connect(other);
        other.connect(one);
    }
    pairs
}

/// The slots of this process, as the service knows them.
fn own_slots(report: &ServiceReport) -> BTreeSet<u8> {
    let pid = std::process::id() as i32;
    report.clients.iter().filter(|client| client.pid == pid).map(|client| client.slot).collect()
}

/// Between all shards of two stacks, while the service dies and another takes over.
#[test]
fn traffic_of_several_slots_outlives_the_service() {
    let Some(namespace) = Namespace::new() else { return };
    let mut service = Service::start(&namespace);
    let (a, b) = (Wide::new(&namespace), Wide::new(&namespace));
    assert_eq!((a.slots().len(), b.slots().len()), (3, 3));
    assert_eq!(Some(&a.context.slot()), a.slots().first());
    let both = &a.slots() | &b.slots();
    assert_eq!(own_slots(&observe(&namespace).unwrap()), both, "a slot for each, and no other");
    let pairs = across(&a, &b);
    let (stop, rounds) = (&AtomicBool::new(false), [const { AtomicU64::new(0) }; 6]);
    let go_on = || {
        let before: Vec<u64> = rounds.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        until(|| {
            rounds.iter().zip(&before).all(|(count, before)| count.load(Ordering::Relaxed) > before + 1)
        });
    };
    thread::scope(|scope| {
        let directions = pairs.iter().flat_map(|(one, other)| [(*one, *other), (*other, *one)]);
        for ((own, peer), count) in directions.zip(&rounds) {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    own.trade(peer, count.fetch_add(1, Ordering::Relaxed));
                }
            });
        }
        go_on();
        service.kill();
        go_on();
        until(|| observe(&namespace).is_some_and(|report| report.counters.rejoined == 6));
        go_on();
        stop.store(true, Ordering::Relaxed);
    });
    let report = observe(&namespace).unwrap();
    assert_eq!(own_slots(&report), both);
    let newcomer = Wide::new(&namespace);
    assert!(newcomer.slots().is_disjoint(&both), "{:?}", newcomer.slots());
    let again = Wide::of(a.context.clone());
    assert_eq!(again.slots(), a.slots());
    across(&newcomer, &again).iter().for_each(|(one, other)| one.trade(other, 1));
}

#[test]
fn a_killed_process_gives_all_its_slots_back() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let (mut child, mut output) = stage::child(&namespace, "shards::child_is_wide");
    hear(&mut output, "ready");
    let pid = Pid::from_raw(child.id() as i32);
    let report = observe(&namespace).unwrap();
    assert_eq!(report.clients.len(), 3, "{report:?}");
    assert!(report.clients.iter().all(|client| client.pid == pid.as_raw() && client.connected), "{report:?}");
    kill(pid, Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    until(|| observe(&namespace).unwrap().clients.is_empty());
    let report = observe(&namespace).unwrap();
    assert_eq!((report.counters.died, report.resting.len()), (3, 3), "{report:?}");
}

#[test]
#[ignore = "run by a_killed_process_gives_all_its_slots_back"]
fn child_is_wide() {
    let wide = Wide::here();
    let peer = Wide::of(wide.context.clone());
    across(&wide, &peer).iter().for_each(|(one, other)| one.trade(other, 3));
    say("ready");
    stage::wait_for_parent();
    drop(wide);
}

/// It joins anew: what it had before is gone, all of it.
#[test]
fn a_process_may_close_all_the_descriptors_of_its_slots() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let (child, output) = stage::child(&namespace, "shards::child_closes_all_slots");
    finish(child, output);
}

#[test]
#[ignore = "run by a_process_may_close_all_the_descriptors_of_its_slots"]
fn child_closes_all_slots() {
    let wide = Wide::here();
    // Nothing of it is touched any more, whatever fails below.
    let wide = std::mem::ManuallyDrop::new(wide);
    // SAFETY: closes descriptors that the library owns, which is what is tested: it must not use those numbers again.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) }, 0);
    thread::sleep(Duration::from_millis(300));
    let again = Wide::here();
    assert!(again.slots().is_disjoint(&wide.slots()));
    let peer = Wide::of(again.context.clone());
    across(&again, &peer).iter().for_each(|(one, other)| one.trade(other, 5));
    // Threads that wait for closed descriptors keep some of them open for a moment.
    until(|| own_slots(&Observer::connect().unwrap().unwrap().status().unwrap()) == again.slots());
}

/// A process gets 16 slots for threads, and 32 in all, so that others get some, too.
#[test]
fn no_process_gets_all_slots() {
    for (hello, most) in [(hello(JOIN), 32), (further(), 16)] {
        let Some(namespace) = Namespace::new() else { return };
        let _service = Service::start(&namespace);
        let join = || {
            let fd = raw(&namespace);
            assert!(say_raw(&fd, &hello, &[]));
            let mut answer = [0; 4096];
            let len = recv(fd.as_raw_fd(), &mut answer, MsgFlags::empty()).unwrap();
            (fd, String::from_utf8_lossy(&answer[..len]).into_owned())
        };
        // Kept: a slot goes with its connection.
        let members: Vec<(OwnedFd, String)> = (0..most).map(|_| join()).collect();
        assert_eq!(observe(&namespace).unwrap().clients.len(), most);
        let (_, answer) = join();
        assert!(answer.contains(&format!("this process has {most} slots of the port already")), "{answer}");
        assert!(members.iter().all(|(_, answer)| !answer.contains("slots of the port")));
        let (child, output) = stage::child(&namespace, "shards::child_joins");
        finish(child, output);
    }
}

/// Six processes with 32 slots each leave the rest to others, also if they ask for more.
#[test]
fn a_few_processes_do_not_get_all_slots() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let mut greedy: Vec<_> = (0..8).map(|_| stage::child(&namespace, "shards::child_is_greedy")).collect();
    for (_, output) in &mut greedy {
        hear(output, "has what it gets");
    }
    let held = observe(&namespace).unwrap().clients.len();
    assert!((192..=192 + greedy.len()).contains(&held), "{held} slots are held");
    let modest: Vec<_> = (0..8).map(|_| stage::child(&namespace, "shards::child_joins_once")).collect();
    modest.into_iter().chain(greedy).for_each(|(child, output)| finish(child, output));
}

#[test]
#[ignore = "run by a_few_processes_do_not_get_all_slots"]
fn child_is_greedy() {
    let hello = hello(JOIN);
    let join = || {
        let fd = stage::raw_here();
        assert!(say_raw(&fd, &hello, &[]));
        let mut answer = [0; 4096];
        let _ = recv(fd.as_raw_fd(), &mut answer, MsgFlags::empty()).unwrap();
        (answer[0] == 0).then_some(fd)
    };
    let _members: Vec<OwnedFd> = (0..40).filter_map(|_| join()).collect();
    say("it has what it gets");
    stage::wait_for_parent();
}

#[test]
#[ignore = "run by a_few_processes_do_not_get_all_slots"]
fn child_joins_once() {
    assert_ne!(stage::End::here().slot(), 0);
}

/// The same greeting, of who has a slot.
fn further() -> Vec<u8> {
    let mut bytes = hello(JOIN);
    let features = b"\0rxeh\x02\x02".len();
    assert_eq!(bytes[features], 0);
    bytes[features] = 1;
    bytes
}

#[test]
#[ignore = "run by no_process_gets_all_slots"]
fn child_joins() {
    assert_eq!(Wide::here().slots().len(), 3);
}

/// A fork in the middle of the traffic of all shards: the child's copies are dead, it gets slots of its own, and the parent
/// keeps all of its.
#[test]
fn a_forked_child_has_none_of_the_slots() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let (child, output) = stage::child(&namespace, "shards::child_forks_with_slots");
    finish(child, output);
}

#[test]
#[ignore = "run by a_forked_child_has_none_of_the_slots"]
fn child_forks_with_slots() {
    let wide = Wide::here();
    let peer = Wide::of(wide.context.clone());
    let (pairs, stop) = (across(&wide, &peer), &AtomicBool::new(false));
    let slots = wide.slots();
    thread::scope(|scope| {
        for (own, other) in &pairs {
            let goes_on = |_: &u64| !stop.load(Ordering::Relaxed);
            scope.spawn(move || (0..).take_while(goes_on).for_each(|round| own.trade(other, round)));
        }
        for _ in 0..3 {
            // SAFETY: the child uses what is safe there: allocation (glibc sees to it), and no lock of another thread.
            match unsafe { fork() }.unwrap() {
                ForkResult::Child => {
                    alarm::set(60);
                    let dead = wide.lanes.iter().all(|lane| {
                        lane.cq.poll(&mut [Completion::default()])
                            == Err(PollError::Forked(rxe_verbs::Forked))
                    });
                    let own = Wide::here();
                    let more = Wide::of(own.context.clone());
                    across(&own, &more).iter().for_each(|(one, other)| one.trade(other, 9));
                    let good = dead && own.slots().len() == 3 && own.slots().is_disjoint(&slots);
                    // SAFETY: ends the process without the test harness's handlers.
                    unsafe { libc::_exit(i32::from(!good)) };
                }
                ForkResult::Parent { child } => {
                    assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let report = Observer::connect().unwrap().unwrap().status().unwrap();
    assert_eq!(own_slots(&report), slots, "{report:?}");
}
