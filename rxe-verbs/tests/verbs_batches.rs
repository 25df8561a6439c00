//! Messages posted one by one: if the program polls in between, many leave together. If it does not, all leave nevertheless.

mod verbs_common;

use rxe_verbs::{Completion, Mtu, QpType, Remote, SendFlags, SendOp, SendWr, WcStatus};
use std::time::{Duration, Instant};
use verbs_common::{End, PATIENCE, connected, udp4};

/// Posts `list` WRITEs of `size` bytes from byte `at` on in one call.
fn write(a: &End, b: &End, (at, size): (usize, u32), list: usize, flags: SendFlags) {
    let at = |n: usize| at + n * size as usize;
    let sges: Vec<_> = (0..list).map(|n| [a.mr.sge(at(n), size)]).collect();
    let request = |(n, sges)| {
        let remote = Remote { addr: b.mr.addr() + at(n) as u64, rkey: b.mr.rkey() };
        SendWr { flags, ..SendWr::new(1, SendOp::Write(remote), sges) }
    };
    let requests: Vec<_> = sges.iter().map(|sges| &sges[..]).enumerate().map(request).collect();
    if let [one] = &requests[..] {
        a.qp.post_send(one).unwrap();
    } else {
        a.qp.post_send_list(&requests).unwrap();
    }
}

/// Posts `count` WRITEs of `size` bytes, `list` in a call, and polls until they are done.
fn round(a: &End, b: &End, (count, size): (usize, u32), list: usize) {
    for at in (0..count).step_by(list) {
        write(a, b, (at * size as usize, size), list, SendFlags::SIGNALED);
    }
    let (mut done, start) = (0, Instant::now());
    let mut some = [Completion::default(); 16];
    while done < count {
        let found = a.cq.poll(&mut some).unwrap();
        assert!(some[..found].iter().all(|wc| wc.status == WcStatus::Success));
        done += found;
        assert!(start.elapsed() < PATIENCE, "{done} of {count} done");
    }
}

#[test]
fn posts_in_a_row_leave_together() {
    let two = udp4();
    let (a, b) = connected(&two, QpType::Rc, 1 << 16, Mtu::M1024);
    // The first leaves alone; the others' packets have one length, also where a WRITE has several.
    for (size, list, most) in [(64, 1, 5), (64, 2, 5), (64, 8, 5), (1024, 1, 4), (4096, 1, 4)] {
        let start = Instant::now();
        loop {
            let before = two.a.port_stats();
            round(&a, &b, ((1 << 16) / size.max(1024) as usize, size), list);
            let after = two.a.port_stats();
            let (packets, batches) =
                (after.packets_sent - before.packets_sent, after.batches_sent - before.batches_sent);
            // A busy machine may keep the program from polling in time.
            if packets >= 64 && batches <= most {
                break;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "{size} bytes, lists of {list}: {packets} packets in {batches} batches"
            );
        }
    }
}

/// The program polls and posts many times in a row, and then stops. Messages that waited for its next call leave without one.
#[test]
fn nothing_waits_for_a_call_that_never_comes() {
    const SIZE: u32 = 64;
    let two = udp4();
    let (a, b) = connected(&two, QpType::Rc, 1 << 16, Mtu::M1024);
    for turn in 1..=20u8 {
        let start = Instant::now();
        // So that the program counts as one that polls.
        while start.elapsed() < Duration::from_millis(5) {
            round(&a, &b, (4, SIZE), 1);
        }
        a.mr.fill(turn).unwrap();
        for at in 0..32 {
            write(&a, &b, (at * SIZE as usize, SIZE), 1, SendFlags::empty());
        }
        let last = 32 * SIZE as usize - 1;
        let start = Instant::now();
        while b.mr.load_u8(last).unwrap() != turn {
            assert!(start.elapsed() < PATIENCE, "turn {turn}: the last WRITE is not there");
            std::thread::yield_now();
        }
        assert_eq!(b.mr.read_vec(0, last + 1).unwrap(), vec![turn; last + 1]);
    }
}
