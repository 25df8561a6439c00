//! A forked child: its parent's objects give EIO in it, whatever the parent's threads were doing at the fork. What the child opens
//! itself works, and the parent goes on.

mod verbs_common;

use nix::{
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, alarm, fork},
};
use rxe_verbs::{
    Access, CompChannel, Completion, ContextOptions, CreateError, EventError, ModifyQpError, Mtu, PollError,
    PostError, PostListError, QpChange, QpInit, QpState, QpType, RecvWr, RegisterError, SendOp, SendWr, Srq,
    WindowType,
};
use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};
use verbs_common::{End, Two, connected, loopback, udp4};

/// Long after this a child that hangs is ended by a signal.
const SECONDS: u32 = 60;

/// Runs `work` in a forked child, which must end well: it may allocate (glibc sees to that), and takes no lock that a
/// thread of the parent's may hold.
fn in_child(work: impl FnOnce() -> Result<(), String>) {
    // SAFETY: see above.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            alarm::set(SECONDS);
            let result = work();
            if let Err(wrong) = &result {
                let text = format!("in the child: {wrong}\n");
                let _ = nix::unistd::write(std::io::stderr(), text.as_bytes());
            }
            // SAFETY: ends the process without the test harness's handlers.
            unsafe { libc::_exit(i32::from(result.is_err())) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
}

macro_rules! gives {
    ($call:expr, $wanted:pat, $errno:expr) => {
        match $call {
            Err(error @ $wanted) => {
                let errno: i32 = $errno(&error);
                if errno != libc::EIO {
                    return Err(format!("{}: errno {errno}", stringify!($call)));
                }
            }
            other => return Err(format!("{}: {other:?}", stringify!($call))),
        }
    };
}

/// Every call that could reach the parent's peer, or wait for a thread that is not there.
fn everything_is_dead(end: &End, srq: &Srq, channel: &CompChannel) -> Result<(), String> {
    let context = end.qp.context();
    let sges = [end.mr.sge(0, 8)];
    let send = SendWr::new(1, SendOp::Send, &sges);
    let recv = RecvWr { wr_id: 1, sges: &sges };
    let post = rxe_verbs::post_errno;
    gives!(end.qp.post_send(&send), PostError::Forked, post);
    gives!(
        end.qp.post_send_list(&[send]),
        PostListError { index: 0, reason: PostError::Forked },
        PostListError::errno
    );
    gives!(
        end.qp.post_send_all(&[send]),
        PostListError { index: 0, reason: PostError::Forked },
        PostListError::errno
    );
    gives!(end.qp.post_recv(&recv), PostError::Forked, post);
    gives!(
        end.qp.post_recv_list(&[recv]),
        PostListError { index: 0, reason: PostError::Forked },
        PostListError::errno
    );
    gives!(srq.post_recv(&recv), PostError::Forked, post);
    gives!(
        srq.post_recv_list(&[recv]),
        PostListError { index: 0, reason: PostError::Forked },
        PostListError::errno
    );
    gives!(srq.modify(Some(8), None), PostError::Forked, post);
    let poll = |error: &PollError| error.errno();
    gives!(end.cq.poll(&mut [Completion::default()]), PollError::Forked(_), poll);
    gives!(end.cq.poll_within(Duration::from_secs(60)), PollError::Forked(_), poll);
    let to_error = QpChange { state: Some(QpState::Error), ..QpChange::default() };
    gives!(end.qp.modify(&to_error), ModifyQpError::Forked(_), |error: &ModifyQpError| error.errno());
    let create = |error: &CreateError| error.errno();
    gives!(context.alloc_pd(), CreateError::Forked(_), create);
    gives!(context.create_cq(8, None), CreateError::Forked(_), create);
    gives!(context.create_comp_channel(), CreateError::Forked(_), create);
    gives!(end.cq.resize(8), CreateError::Forked(_), create);
    gives!(end.pd.create_qp(&QpInit::new(QpType::Rc, &end.cq)), CreateError::Forked(_), create);
    gives!(end.pd.create_srq(8, 1), CreateError::Forked(_), create);
    let register = |error: &RegisterError| error.errno();
    gives!(end.pd.alloc_mr(64, Access::LOCAL_WRITE), RegisterError::Forked(_), register);
    gives!(end.pd.alloc_mw(WindowType::Two), RegisterError::Forked(_), register);
    let event = |error: &EventError| error.errno();
    gives!(channel.get_event(), EventError::Forked(_), event);
    gives!(context.get_async_event(None), EventError::Forked(_), event);
    // What has no error to give says what a dead device says, and returns.
    end.cq.req_notify(false);
    end.cq.wait_acked();
    context.progress();
    let silent = channel.try_get_event().is_none() && context.try_get_async_event().is_none();
    let dead = end.qp.state() == QpState::Error && !context.is_active() && context.check_owner().is_err();
    // These may give any result, but they must return.
    let _ =
        (context.pkeys(), context.gids(), context.port_stats(), context.link_state(), context.link_report());
    let _ = (end.qp.query(), end.qp.stats(), end.qp.reasons(), end.qp.psns(), end.cq.unacked_events());
    let _ = (srq.query(), srq.number(), end.cq.capacity(), end.mr.read_vec(0, 8));
    if silent && dead { Ok(()) } else { Err(format!("{silent} {dead}")) }
}

fn exchange(a: &End, b: &End, round: u8) {
    a.mr.write_at(0, &[round; 64]).unwrap();
    b.qp.post_recv(&RecvWr { wr_id: 2, sges: &[b.mr.sge(64, 64)] }).unwrap();
    a.qp.post_send(&SendWr::new(1, SendOp::Send, &[a.mr.sge(0, 64)])).unwrap();
    b.good();
    a.good();
    assert_eq!(b.mr.read_vec(64, 64).unwrap(), [round; 64]);
}

/// The tests use the same addresses, and so the same port, and count its packets. So they run one after the other.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_parent_s_objects_say_eio_in_a_child() {
    let _one = one_at_a_time();
    let two = udp4();
    // 9 s: a packet that was sent again because the machine was busy would be counted, too.
    verbs_common::set_timeout(21);
    let (a, b) = pair(&two);
    let (srq, channel) = (a.pd.create_srq(8, 1).unwrap(), two.a.create_comp_channel().unwrap());
    exchange(&a, &b, 1);
    let counted = two.b.port_stats();
    in_child(|| everything_is_dead(&a, &srq, &channel));
    // Nothing has left the child by the parent's queue pair.
    assert_eq!(two.b.port_stats(), counted);
    exchange(&a, &b, 2);
    // Nor does anything leave, or end, when it drops them.
    let counted = two.b.port_stats();
    let state = a.qp.state();
    let mut parcel = Some((two, a, b, srq, channel));
    in_child(|| {
        drop(parcel.take());
        let open = |number| {
            ContextOptions::new().alone().open_address(loopback(number)).map_err(|error| error.to_string())
        };
        let own = Two::of("the child's", open(3)?, open(4)?);
        let (a, b) = pair(&own);
        exchange(&a, &b, 9);
        Ok(())
    });
    let (two, a, b, ..) = parcel.unwrap();
    assert_eq!((two.b.port_stats(), a.qp.state()), (counted, state));
    exchange(&a, &b, 3);
}

fn pair(two: &Two) -> (End, End) {
    connected(two, QpType::Rc, 4096, Mtu::M1024)
}

/// Ends the threads of a scope, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads of the parent's are in the middle of everything when it forks: locks that they hold stay locked in the child.
#[test]
fn a_child_hangs_at_no_lock_of_its_parent_s_threads() {
    let _one = one_at_a_time();
    let two = udp4();
    let (a, b) = pair(&two);
    let (srq, channel) = (a.pd.create_srq(8, 1).unwrap(), two.a.create_comp_channel().unwrap());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    two.a.progress();
                    let _ = (a.qp.stats(), a.cq.unacked_events(), two.a.port());
                    drop(a.pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap());
                }
            });
        }
        for _ in 0..100 {
            let mut spare = Some(End::new(&two.a, QpType::Rc, 64));
            in_child(|| {
                everything_is_dead(&a, &srq, &channel)?;
                drop(spare.take());
                Ok(())
            });
        }
    });
    exchange(&a, &b, 1);
}

/// The lists of the whole library have locks, too: which devices there are, and what is open.
#[test]
fn a_child_opens_what_it_wants_though_its_parent_s_threads_were_opening() {
    let _one = one_at_a_time();
    let open = |number| {
        ContextOptions::new().alone().open_address(loopback(number)).map_err(|error| error.to_string())
    };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(open(5).unwrap());
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(!rxe_verbs::devices().unwrap().is_empty());
            }
        });
        for _ in 0..50 {
            in_child(|| {
                let found = rxe_verbs::devices().map_err(|error| error.to_string())?;
                drop(open(6)?);
                if found.is_empty() { Err("no devices".to_owned()) } else { Ok(()) }
            });
        }
    });
}
