//! A packet wakes the thread that waits for it, and no other. What is counted is how often threads went to sleep, so
//! nothing else may run in this process: one test.

mod verbs_common;

use rxe_verbs::{
    CompChannel, Completion, Context, ContextOptions, Mtu, Polling, QpInit, QpType, RecvWr, SendOp, SendWr,
    WcStatus,
};
use std::{collections::BTreeSet, fs, thread, time::Duration};
use verbs_common::{End, PATIENCE, Two, connect, loopback};

const MESSAGES: u64 = 100;

/// One whose program waits inside the library, and looks for nothing before it sleeps.
struct Side {
    end: End,
    channel: CompChannel,
    /// The background thread.
    thread: String,
}

fn background_threads() -> BTreeSet<String> {
    fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|entry| entry.unwrap().path().to_str().unwrap().to_owned())
        .filter(|task| fs::read_to_string(format!("{task}/comm")).unwrap() == "rxe\n")
        .collect()
}

/// Times a thread went to sleep.
fn sleeps(task: &str) -> u64 {
    let status = fs::read_to_string(format!("{task}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

impl Side {
    fn new(context: &Context) -> Self {
        let before = background_threads();
        let channel = context.create_comp_channel().unwrap();
        let mut end = End::new(context, QpType::Rc, 4096);
        end.cq = context.create_cq(64, Some(&channel)).unwrap();
        end.qp = end.pd.create_qp(&QpInit::new(QpType::Rc, &end.cq)).unwrap();
        // A thread names itself.
        let thread = core::iter::repeat_with(|| {
            thread::yield_now();
            background_threads().difference(&before).next().cloned()
        });
        Self { end, channel, thread: thread.flatten().next().unwrap() }
    }

    fn send(&self) {
        self.end.qp.post_send(&SendWr::new(2, SendOp::Send, &[self.end.mr.sge(0, 8)])).unwrap();
    }

    /// Sends messages, each after the answer to the one before and a pause.
    fn exchange(&self, first: bool, pause: Duration) {
        if first {
            self.send();
        }
        let (mut received, mut sent) = (0, u64::from(first));
        let mut completed = 0;
        while received < MESSAGES || completed < MESSAGES {
            self.end.cq.req_notify(false);
            let mut wcs = [Completion::default(); 8];
            let mut found = self.end.cq.poll(&mut wcs).unwrap();
            if found == 0 {
                self.channel.get_event_within(PATIENCE).expect("an event").ack_events(1);
                found = self.end.cq.poll(&mut wcs).unwrap();
            }
            for wc in &wcs[..found] {
                assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
                if wc.wr_id == 2 {
                    completed += 1;
                    continue;
                }
                received += 1;
                self.end.qp.post_recv(&RecvWr { wr_id: 1, sges: &[self.end.mr.sge(0, 64)] }).unwrap();
                if sent < MESSAGES {
                    sent += 1;
                    self.send();
                    if !pause.is_zero() {
                        thread::sleep(pause);
                    }
                }
            }
        }
    }
}

#[test]
fn a_packet_wakes_one_thread() {
    let open = |n| ContextOptions::new().alone().polling(Polling::Sleep).open_address(loopback(n)).unwrap();
    let two = Two::of("udp4", open(1), open(2));
    let [a, b] = [Side::new(&two.a), Side::new(&two.b)];
    connect(&a.end.qp, &b.end.qp, Mtu::M1024);
    for side in [&a, &b] {
        for _ in 0..2 {
            side.end.qp.post_recv(&RecvWr { wr_id: 1, sges: &[side.end.mr.sge(0, 64)] }).unwrap();
        }
    }
    let before = sleeps(&b.thread);
    thread::scope(|scope| {
        scope.spawn(|| b.exchange(false, Duration::ZERO));
        // Longer than the background thread waits for a program to come back.
        a.exchange(true, Duration::from_millis(4));
    });
    let slept = sleeps(&b.thread) - before;
    // Once for each, a tick after it came: who wakes it at once has it sleep three times.
    assert!(
        slept < 2 * MESSAGES,
        "{MESSAGES} messages: the library's thread beside their receiver slept {slept} times"
    );
}
