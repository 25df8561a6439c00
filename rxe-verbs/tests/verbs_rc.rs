//! Every operation of a reliable connection, between two contexts, over every kind of link; the reader of the memory
//! compares.

mod verbs_common;

use rxe_verbs::{
    Access, BindWindow, Completion, ContextOptions, Mtu, MwBind, Payload, Psn, QpChange, QpInit, QpState,
    QpType, RecvWr, Remote, SendFlags, SendOp, SendWr, WcExtra, WcOpcode, WcStatus, WindowType,
    net::FaultPlan,
};
use verbs_common::{ALL, End, bad_inproc, connected, everywhere, inproc, pattern, to_init, udp4};

const SIZES: [usize; 8] = [0, 1, 3, 255, 256, 4096, 4097, 300_000];

fn remote(end: &End, offset: usize) -> Remote {
    Remote { addr: end.mr.addr() + offset as u64, rkey: end.mr.rkey() }
}

#[test]
fn send_and_receive() {
    everywhere(|two| {
        for mtu in [Mtu::M256, Mtu::M1024, Mtu::M4096] {
            let (a, b) = connected(two, QpType::Rc, 1 << 20, mtu);
            for (number, size) in SIZES.into_iter().enumerate() {
                let data = pattern(number as u64, size);
                a.mr.write_at(0, &data).unwrap();
                b.mr.fill(0).unwrap();
                let id = number as u64;
                b.qp.post_recv(&RecvWr { wr_id: id, sges: &[b.mr.sge(0, 400_000)] }).unwrap();
                let op = if number % 2 == 0 { SendOp::Send } else { SendOp::SendImm(*b"imm!") };
                a.qp.post_send(&SendWr::new(id, op, &[a.mr.sge(0, size as u32)])).unwrap();
                let got = b.good();
                assert_eq!((got.wr_id, got.byte_len, got.opcode), (id, size as u32, WcOpcode::Recv));
                let extra = if number % 2 == 0 { WcExtra::None } else { WcExtra::Immediate(*b"imm!") };
                assert_eq!((got.extra, got.qpn), (extra, b.qp.qpn()));
                assert_eq!(b.mr.read_vec(0, size).unwrap(), data);
                assert_eq!(b.mr.load_u8(size), Ok(0));
                let done = a.good();
                assert_eq!((done.wr_id, done.opcode, done.qpn), (id, WcOpcode::Send, a.qp.qpn()));
            }
        }
    });
}

#[test]
fn scattered_and_inline() {
    everywhere(|two| {
        let (a, b) = connected(two, QpType::Rc, 1 << 16, Mtu::M256);
        let data = pattern(1, 1000);
        a.mr.write_at(0, &data).unwrap();
        let to = [b.mr.sge(5000, 1), b.mr.sge(6000, 299), b.mr.sge(7000, 900)];
        b.qp.post_recv(&RecvWr { wr_id: 1, sges: &to }).unwrap();
        let from = [a.mr.sge(500, 500), a.mr.sge(0, 0), a.mr.sge(0, 500)];
        a.qp.post_send(&SendWr::new(1, SendOp::Send, &from)).unwrap();
        b.good();
        a.good();
        let sent = [&data[500..], &data[..500]].concat();
        let got = [(5000, 1), (6000, 299), (7000, 700)].map(|(at, len)| b.mr.read_vec(at, len).unwrap());
        assert_eq!(got.concat(), sent);

        let mut inline = pattern(2, 100);
        b.qp.post_recv(&RecvWr { wr_id: 2, sges: &[b.mr.sge(0, 200)] }).unwrap();
        let wr = SendWr { payload: Payload::Inline(&inline), ..SendWr::new(2, SendOp::Send, &[]) };
        a.qp.post_send(&wr).unwrap();
        let sent = inline.clone();
        inline.fill(0);
        assert_eq!(b.good().byte_len, 100);
        a.good();
        assert_eq!(b.mr.read_vec(0, 100).unwrap(), sent);
    });
}

#[test]
fn write_and_read() {
    everywhere(|two| {
        for mtu in [Mtu::M256, Mtu::M4096] {
            let (a, b) = connected(two, QpType::Rc, 1 << 20, mtu);
            for (number, size) in SIZES.into_iter().enumerate() {
                let data = pattern(number as u64, size);
                a.mr.write_at(0, &data).unwrap();
                b.mr.fill(7).unwrap();
                let sges = [a.mr.sge(0, size as u32)];
                a.qp.post_send(&SendWr::new(1, SendOp::Write(remote(&b, 64)), &sges)).unwrap();
                assert_eq!(a.good().opcode, WcOpcode::Write);
                assert_eq!(b.mr.read_vec(64, size).unwrap(), data);
                assert_eq!((b.mr.load_u8(63), b.mr.load_u8(64 + size)), (Ok(7), Ok(7)));

                a.mr.fill(9).unwrap();
                a.qp.post_send(&SendWr::new(2, SendOp::Read(remote(&b, 64)), &sges)).unwrap();
                let done = a.good();
                assert_eq!((done.wr_id, done.opcode, done.byte_len), (2, WcOpcode::Read, size as u32));
                assert_eq!(a.mr.read_vec(0, size).unwrap(), data);
                assert_eq!(a.mr.load_u8(size), Ok(9));
            }
            b.qp.post_recv(&RecvWr { wr_id: 5, sges: &[] }).unwrap();
            let op = SendOp::WriteImm(remote(&b, 0), [1, 2, 3, 4]);
            a.qp.post_send(&SendWr::new(6, op, &[a.mr.sge(0, 5000)])).unwrap();
            let got = b.good();
            assert_eq!((got.wr_id, got.opcode, got.byte_len), (5, WcOpcode::RecvRdmaWithImm, 5000));
            assert_eq!(got.extra, WcExtra::Immediate([1, 2, 3, 4]));
            a.good();
        }
    });
}

#[test]
fn atomics_and_flush() {
    everywhere(|two| {
        let (a, b) = connected(two, QpType::Rc, 4096, Mtu::M1024);
        b.mr.swap_u64(16, 100).unwrap();
        let result = [a.mr.sge(8, 8)];
        a.qp.post_send(&SendWr::new(1, SendOp::FetchAdd { remote: remote(&b, 16), add: 23 }, &result))
            .unwrap();
        assert_eq!(a.good().opcode, WcOpcode::FetchAdd);
        assert_eq!((a.mr.load_u64(8), b.mr.load_u64(16)), (Ok(100), Ok(123)));
        for (compare, old, new) in [(5, 123, 123), (123, 123, 77)] {
            let op = SendOp::CompareSwap { remote: remote(&b, 16), compare, swap: 77 };
            a.qp.post_send(&SendWr::new(2, op, &result)).unwrap();
            assert_eq!(a.good().opcode, WcOpcode::CompareSwap);
            assert_eq!((a.mr.load_u64(8), b.mr.load_u64(16)), (Ok(old), Ok(new)));
        }
        let value = *b"8 bytes!";
        a.qp.post_send(&SendWr::new(3, SendOp::AtomicWrite { remote: remote(&b, 24), value }, &[])).unwrap();
        assert_eq!(a.good().opcode, WcOpcode::AtomicWrite);
        assert_eq!(b.mr.read_vec(24, 8).unwrap(), value);
        for (placement, selectivity) in [(1, 0), (2, 0), (3, 1)] {
            let op = SendOp::Flush { remote: remote(&b, 0), len: 64, placement, selectivity };
            a.qp.post_send(&SendWr::new(4, op, &[])).unwrap();
            assert_eq!(a.good().opcode, WcOpcode::Flush);
        }
    });
}

#[test]
fn many_outstanding() {
    everywhere(|two| {
        let (a, b) = connected(two, QpType::Rc, 1 << 20, Mtu::M1024);
        let data = pattern(3, 1 << 20);
        a.mr.write_at(0, &data).unwrap();
        let size = 8192;
        let flags = SendFlags::SIGNALED;
        for (number, chunk) in (0..128u64).zip((0..1 << 20).step_by(size)) {
            let wr = SendWr { flags, ..SendWr::new(number, SendOp::Write(remote(&b, chunk)), &[]) };
            let sges = [a.mr.sge(chunk, size as u32)];
            a.qp.post_send(&SendWr { payload: Payload::Sges(&sges), ..wr }).unwrap();
        }
        for number in 0..128 {
            assert_eq!(a.good().wr_id, number);
        }
        assert_eq!(b.mr.read_vec(0, 1 << 20).unwrap(), data);
    });
}

#[test]
fn windows() {
    everywhere(|two_ends| {
        let (a, b) = connected(two_ends, QpType::Rc, 4096, Mtu::M1024);
        let write = |rkey, offset: u64, len| {
            let op = SendOp::Write(Remote { addr: b.mr.addr() + offset, rkey });
            a.qp.post_send(&SendWr::new(1, op, &[a.mr.sge(0, len)])).unwrap();
            a.wait().status
        };
        a.mr.write_at(0, b"through a window").unwrap();

        let one = b.pd.alloc_mw(WindowType::One).unwrap();
        let bind = MwBind {
            wr_id: 9,
            flags: SendFlags::SIGNALED,
            region: &b.mr,
            addr: b.mr.addr() + 100,
            len: 50,
            access: Access::REMOTE_WRITE,
        };
        let first = b.qp.bind_mw(&one, &bind).unwrap();
        assert_eq!((b.good().opcode, one.rkey()), (WcOpcode::BindWindow, first));
        assert_eq!(write(first, 100, 16), WcStatus::Success);
        assert_eq!(b.mr.read_vec(100, 16).unwrap(), b"through a window");
        let second = b.qp.bind_mw(&one, &bind).unwrap();
        b.good();
        assert_ne!(first, second);

        let two = b.pd.alloc_mw(WindowType::Two).unwrap();
        let bind = BindWindow {
            window: two.rkey(),
            new_rkey: two.rkey().rotated(),
            region: b.mr.lkey(),
            addr: b.mr.addr(),
            len: 64,
            access: Access::REMOTE_WRITE,
        };
        b.qp.post_send(&SendWr::new(2, SendOp::BindWindow(bind), &[])).unwrap();
        b.good();
        assert_eq!(two.rkey(), bind.new_rkey);
        assert_eq!(write(two.rkey(), 0, 16), WcStatus::Success);
        assert_eq!(write(second, 120, 16), WcStatus::Success);

        // The peer takes the right back with its message.
        b.qp.post_recv(&RecvWr { wr_id: 3, sges: &[] }).unwrap();
        a.qp.post_send(&SendWr::new(3, SendOp::SendInvalidate(two.rkey()), &[])).unwrap();
        assert_eq!(b.good().extra, WcExtra::Invalidated(two.rkey()));
        a.good();
        assert_eq!(write(two.rkey(), 0, 16), WcStatus::RemoteAccess);

        // An unbound window's key is dead. (The access before has ended that connection.)
        let (a, b) = connected(two_ends, QpType::Rc, 4096, Mtu::M1024);
        let window = b.pd.alloc_mw(WindowType::One).unwrap();
        let bind = MwBind {
            wr_id: 9,
            flags: SendFlags::SIGNALED,
            region: &b.mr,
            addr: b.mr.addr(),
            len: 50,
            access: Access::REMOTE_WRITE,
        };
        let bound = b.qp.bind_mw(&window, &bind).unwrap();
        b.good();
        b.qp.unbind_mw(&window, 5, SendFlags::SIGNALED).unwrap();
        b.good();
        let op = SendOp::Write(Remote { addr: b.mr.addr(), rkey: bound });
        a.qp.post_send(&SendWr::new(1, op, &[a.mr.sge(0, 8)])).unwrap();
        assert_eq!(a.wait().status, WcStatus::RemoteAccess);
    });
}

#[test]
fn a_window_dies_with_its_region() {
    let two = inproc();
    let (a, b) = connected(&two, QpType::Rc, 4096, Mtu::M1024);
    let other = b.pd.alloc_mr(4096, ALL).unwrap();
    let mw = b.pd.alloc_mw(WindowType::One).unwrap();
    let bind = MwBind {
        wr_id: 1,
        flags: SendFlags::SIGNALED,
        region: &other,
        addr: other.addr(),
        len: 4096,
        access: Access::REMOTE_WRITE,
    };
    let rkey = b.qp.bind_mw(&mw, &bind).unwrap();
    b.good();
    let (other, error) = other.deregister().expect_err("a window is bound to it");
    assert_eq!(error.errno(), libc::EBUSY);
    let addr = other.addr();
    drop(other);
    a.qp.post_send(&SendWr::new(1, SendOp::Write(Remote { addr, rkey }), &[a.mr.sge(0, 8)])).unwrap();
    assert_eq!(a.wait().status, WcStatus::RemoteAccess);
}

#[test]
fn a_late_receive_is_waited_for() {
    everywhere(|two| {
        let (a, b) = connected(two, QpType::Rc, 4096, Mtu::M1024);
        a.mr.write_at(0, b"early").unwrap();
        a.qp.post_send(&SendWr::new(1, SendOp::Send, &[a.mr.sge(0, 5)])).unwrap();
        let start = std::time::Instant::now();
        while b.qp.stats().rnr_naks_sent == 0 {
            assert!(start.elapsed() < verbs_common::PATIENCE, "not told to wait");
            std::thread::yield_now();
        }
        assert_eq!(a.cq.poll(&mut [Completion::default()]), Ok(0));
        b.qp.post_recv(&RecvWr { wr_id: 2, sges: &[b.mr.sge(0, 100)] }).unwrap();
        assert_eq!(b.good().byte_len, 5);
        a.good();
    });
}

#[test]
fn a_bad_key_is_an_error_of_both() {
    everywhere(|two| {
        let (a, b) = connected(two, QpType::Rc, 4096, Mtu::M1024);
        b.qp.post_recv(&RecvWr { wr_id: 7, sges: &[b.mr.sge(0, 8)] }).unwrap();
        let wrong = Remote { addr: b.mr.addr() + 4090, rkey: b.mr.rkey() };
        a.qp.post_send(&SendWr::new(1, SendOp::Write(wrong), &[a.mr.sge(0, 16)])).unwrap();
        a.qp.post_send(&SendWr::new(2, SendOp::Send, &[a.mr.sge(0, 8)])).unwrap();
        assert_eq!(a.wait().status, WcStatus::RemoteAccess);
        let flushed = a.wait();
        assert_eq!((flushed.wr_id, flushed.status), (2, WcStatus::WorkRequestFlushed));
        assert_eq!(b.wait().status, WcStatus::WorkRequestFlushed);
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Error, QpState::Error));
        // Why, in words: at whoever refused, and at whoever was refused.
        let (failed, refused) = (a.qp.reasons().failed.unwrap(), b.qp.reasons().refused.unwrap());
        let request = format!("RDMA WRITE to {:#x}, 16 bytes, key {:#010x}: ", wrong.addr, wrong.rkey.0);
        for reason in [failed, refused] {
            assert!(reason.to_string().starts_with(&request), "{reason}");
        }
        assert!(refused.to_string().contains("not inside the region"), "{refused}");

        // RESET makes them usable again.
        for qp in [&a.qp, &b.qp] {
            qp.modify(&QpChange { state: Some(QpState::Reset), ..QpChange::default() }).unwrap();
        }
        verbs_common::connect(&a.qp, &b.qp, Mtu::M1024);
        a.mr.write_at(0, b"again").unwrap();
        let right = Remote { addr: b.mr.addr(), rkey: b.mr.rkey() };
        a.qp.post_send(&SendWr::new(3, SendOp::Write(right), &[a.mr.sge(0, 5)])).unwrap();
        assert_eq!(a.good().wr_id, 3);
        assert_eq!(b.mr.read_vec(0, 5).unwrap(), b"again");
    });
}

#[test]
fn nobody_answers() {
    let two = udp4();
    let a = End::new(&two.a, QpType::Rc, 4096);
    to_init(&a.qp);
    let av = two.a.address_vector(0, two.b.gids().get(0)).unwrap();
    a.qp.modify(&QpChange {
        state: Some(QpState::Rtr),
        av: Some(av),
        path_mtu: Some(Mtu::M1024),
        dest_qpn: Some(rxe_verbs::Qpn::new(0x1234)),
        rq_psn: Some(Psn::new(0)),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(12),
        ..QpChange::default()
    })
    .unwrap();
    a.qp.modify(&QpChange {
        state: Some(QpState::Rts),
        sq_psn: Some(Psn::new(0)),
        timeout: Some(8),
        retry_count: Some(2),
        rnr_retry: Some(7),
        max_rd_atomic: Some(1),
        ..QpChange::default()
    })
    .unwrap();
    a.qp.post_send(&SendWr::new(1, SendOp::Send, &[a.mr.sge(0, 8)])).unwrap();
    assert_eq!(a.wait().status, WcStatus::RetryExceeded);
    // Without queue pairs nobody but us looks.
    two.b.progress();
    assert!(two.b.port_stats().dropped_no_qp >= 1);
}

#[test]
fn a_bad_network() {
    let plan = FaultPlan::parse("loss=20,dup=20,reorder=20,corrupt=20,seed=5").unwrap();
    let two = bad_inproc(&plan);
    // 134 ms, eight times in a row: longer than a busy machine keeps the peer from its processor.
    verbs_common::set_timeout(15);
    let (a, b) = connected(&two, QpType::Rc, 1 << 18, Mtu::M1024);
    for round in 0..30 {
        let data = pattern(round, 50_000);
        a.mr.write_at(0, &data).unwrap();
        b.qp.post_recv(&RecvWr { wr_id: round, sges: &[b.mr.sge(0, 50_000)] }).unwrap();
        let sges = [a.mr.sge(0, 50_000)];
        a.qp.post_send(&SendWr::new(1, SendOp::Send, &sges)).unwrap();
        a.qp.post_send(&SendWr::new(2, SendOp::Write(remote(&b, 60_000)), &sges)).unwrap();
        let back = [a.mr.sge(60_000, 50_000)];
        a.qp.post_send(&SendWr::new(3, SendOp::Read(remote(&b, 60_000)), &back)).unwrap();
        let add = SendOp::FetchAdd { remote: remote(&b, 200_000), add: 1 };
        a.qp.post_send(&SendWr::new(4, add, &[a.mr.sge(200_000, 8)])).unwrap();
        assert_eq!(b.good().wr_id, round);
        for id in 1..=4 {
            assert_eq!(a.good().wr_id, id);
        }
        for (end, offset) in [(&b, 0), (&b, 60_000), (&a, 60_000)] {
            assert_eq!(end.mr.read_vec(offset, 50_000).unwrap(), data);
        }
        assert_eq!(a.mr.load_u64(200_000), Ok(round));
    }
    let stats = a.qp.stats();
    assert!(stats.retransmitted > 0, "the network was not bad: {stats:?}");
    assert!(two.b.port_stats().dropped_icrc > 0, "{:?}", two.b.port_stats());
}

#[test]
fn both_on_one_context() {
    let context = ContextOptions::new().alone().open_address(verbs_common::loopback(9)).unwrap();
    let (a, b) = (End::new(&context, QpType::Rc, 4096), End::new(&context, QpType::Rc, 4096));
    verbs_common::connect(&a.qp, &b.qp, Mtu::M4096);
    a.mr.write_at(0, b"to myself").unwrap();
    a.qp.post_send(&SendWr::new(1, SendOp::Write(remote(&b, 0)), &[a.mr.sge(0, 9)])).unwrap();
    a.good();
    assert_eq!(b.mr.read_vec(0, 9).unwrap(), b"to myself");
}

/// As adapters do: programs that set a queue pair up anew expect its completions only from then on.
#[test]
fn reset_forgets_completions() {
    everywhere(|two| {
        let (a, b) = connected(two, QpType::Rc, 4096, Mtu::M1024);
        a.qp.post_recv(&RecvWr { wr_id: 1, sges: &[a.mr.sge(0, 64)] }).unwrap();
        a.qp.post_send(&SendWr::new(2, SendOp::Write(remote(&b, 0)), &[a.mr.sge(0, 8)])).unwrap();
        b.qp.post_recv(&RecvWr { wr_id: 3, sges: &[b.mr.sge(0, 64)] }).unwrap();
        let go = |end: &End, state| end.qp.modify(&QpChange { state: Some(state), ..QpChange::default() });
        for end in [&a, &b] {
            go(end, QpState::Error).unwrap();
            go(end, QpState::Reset).unwrap();
            assert_eq!(end.cq.poll(&mut [Completion::default(); 4]), Ok(0));
        }
        // Others' stay.
        let other = a.pd.create_qp(&QpInit::new(QpType::Rc, &a.cq)).unwrap();
        verbs_common::connect(&other, &b.qp, Mtu::M1024);
        other.post_recv(&RecvWr { wr_id: 4, sges: &[a.mr.sge(0, 64)] }).unwrap();
        other.modify(&QpChange { state: Some(QpState::Error), ..QpChange::default() }).unwrap();
        go(&a, QpState::Reset).unwrap();
        assert_eq!(a.wait().wr_id, 4);
    });
}

#[test]
fn all_or_none_of_a_list() {
    everywhere(|two| {
        let (a, b) = connected(two, QpType::Rc, 4096, Mtu::M1024);
        let (_, config) = a.qp.query();
        let sges = [a.mr.sge(0, 8)];
        let write = |wr_id| SendWr::new(wr_id, SendOp::Write(remote(&b, 0)), &sges);
        let many: Vec<_> = (0..=u64::from(config.caps.max_send_wr)).map(write).collect();
        let refused = a.qp.post_send_all(&many).unwrap_err();
        assert_eq!(refused.index, many.len() - 1);
        let too_long = vec![7; config.caps.max_inline as usize + 1];
        let wrong = SendWr { payload: Payload::Inline(&too_long), ..write(1) };
        let inline = SendWr { payload: Payload::Inline(&[7; 8]), ..write(2) };
        assert_eq!(a.qp.post_send_all(&[write(0), inline, wrong]).unwrap_err().index, 2);
        // None of them was: the queue is empty, and only what comes now is done.
        a.qp.post_send_all(&many[1..]).unwrap();
        for wr in &many[1..] {
            assert_eq!(a.good().wr_id, wr.wr_id);
        }
        assert_eq!(a.cq.poll(&mut [Completion::default(); 4]), Ok(0));
    });
}
