//! Datagrams and unreliable connections between two contexts, and multicast.

mod verbs_common;

use rxe_verbs::{
    Access, Completion, Context, CreateError, Device, Gid, Mtu, PostError, Qkey, QpInit, QpType, Qpn, RecvWr,
    Remote, SendFlags, SendOp, SendWr, WcExtra, WcOpcode,
};
use std::time::{Duration, Instant};
use verbs_common::{
    End, PATIENCE, QKEY, Two, connected, datagram_end, everywhere, inproc, inproc_at, pattern,
};

const GRH: usize = 40;

fn nothing_comes(end: &End) {
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(end.cq.poll(&mut [Completion::default()]), Ok(0));
}

fn send<'a>(from: &'a End, to: &End, sges: &'a [rxe_verbs::Sge], qkey: Qkey) -> SendWr<'a> {
    let av = from.qp.context().address_vector(0, to.gid()).unwrap();
    let ah = from.pd.create_ah(av);
    SendWr { dest: Some(ah.dest(to.qp.qpn(), qkey)), ..SendWr::new(1, SendOp::Send, sges) }
}

#[test]
fn datagrams() {
    everywhere(|two| {
        let (a, b) = (datagram_end(&two.a), datagram_end(&two.b));
        for (number, size) in [0, 1, 1000, 4096].into_iter().enumerate() {
            let data = pattern(number as u64, size);
            a.mr.write_at(0, &data).unwrap();
            b.qp.post_recv(&RecvWr { wr_id: 3, sges: &[b.mr.sge(0, 5000)] }).unwrap();
            let sges = [a.mr.sge(0, size as u32)];
            let op = if number % 2 == 0 { SendOp::Send } else { SendOp::SendImm([4, 3, 2, 1]) };
            a.qp.post_send(&SendWr { op, ..send(&a, &b, &sges, QKEY) }).unwrap();
            let got = b.good();
            assert_eq!((got.opcode, got.byte_len, got.grh), (WcOpcode::Recv, (size + GRH) as u32, true));
            assert_eq!(got.src_qp, a.qp.qpn());
            let extra = if number % 2 == 0 { WcExtra::None } else { WcExtra::Immediate([4, 3, 2, 1]) };
            assert_eq!(got.extra, extra);
            assert_eq!(b.mr.read_vec(GRH, size).unwrap(), data);
            if let Some(std::net::IpAddr::V4(src)) = a.gid().address() {
                // An IPv4 header fills the second half of the GRH area.
                assert_eq!(b.mr.read_vec(20 + 12, 4).unwrap(), src.octets());
            }
            a.good();
        }
        let sges = [a.mr.sge(0, 4097)];
        let too_long = a.qp.post_send(&send(&a, &b, &sges, QKEY));
        assert!(matches!(too_long, Err(PostError::Length(4097, 4096))), "{too_long:?}");
    });
}

#[test]
fn a_wrong_qkey_is_dropped_and_counted() {
    everywhere(|two| {
        let (a, b) = (datagram_end(&two.a), datagram_end(&two.b));
        b.qp.post_recv(&RecvWr { wr_id: 3, sges: &[b.mr.sge(0, 100)] }).unwrap();
        let sges = [a.mr.sge(0, 8)];
        a.qp.post_send(&send(&a, &b, &sges, Qkey(5))).unwrap();
        a.good();
        let start = Instant::now();
        while b.qp.stats().dropped_qkey == 0 {
            assert!(start.elapsed() < PATIENCE, "{:?}", b.qp.stats());
            assert_eq!(b.cq.poll(&mut [Completion::default()]), Ok(0));
        }
        assert_eq!(b.qp.stats().dropped_qkey, 1);
        a.qp.post_send(&send(&a, &b, &sges, QKEY)).unwrap();
        assert_eq!(b.good().wr_id, 3);
    });
}

fn group_reaches_its_members(two: &Two, group: Gid) {
    let (a, b) = (datagram_end(&two.a), datagram_end(&two.b));
    let other = datagram_end(&two.b);
    for end in [&b, &other] {
        for _ in 0..2 {
            end.qp.post_recv(&RecvWr { wr_id: 3, sges: &[end.mr.sge(0, 100)] }).unwrap();
        }
        end.qp.attach_multicast(group).unwrap();
    }
    let mut av = two.a.address_vector(0, group).unwrap();
    av.hop_limit = 1;
    let dest = a.pd.create_ah(av).dest(Qpn::MULTICAST, QKEY);
    let sges = [a.mr.sge(0, 16)];
    let wr = SendWr { dest: Some(dest), ..SendWr::new(1, SendOp::Send, &sges) };
    a.mr.write_at(0, b"to all of a kind").unwrap();
    a.qp.post_send(&wr).unwrap();
    a.good();
    for end in [&b, &other] {
        assert_eq!(end.good().src_qp, a.qp.qpn());
        assert_eq!(end.mr.read_vec(GRH, 16).unwrap(), b"to all of a kind");
    }
    other.qp.detach_multicast(group).unwrap();
    a.qp.post_send(&wr).unwrap();
    b.good();
    nothing_comes(&other);
}

#[test]
fn multicast() {
    group_reaches_its_members(&inproc(), "239.1.2.3".parse().unwrap());
    group_reaches_its_members(&inproc_at("fd00::1", "fd00::2"), "ff15::77".parse().unwrap());
    let two = inproc();
    let end = datagram_end(&two.a);
    let error = end.qp.attach_multicast("10.0.0.7".parse().unwrap()).unwrap_err();
    assert!(matches!(error, CreateError::Group(_)), "{error}");
}

#[test]
fn multicast_over_udp() {
    let Some((left, right)) = verbs_common::namespaces(9000) else { return };
    for (from, to, group) in [("10.9.0.1", "v1", "239.1.2.3"), ("fd09::1", "v1", "ff15::77")] {
        let a = left.run(move || Context::open_address(from.parse().unwrap()).unwrap());
        // A socket bound to one address hears no group.
        let b = right.run(move || Context::open(&Device::find(to).unwrap()).unwrap());
        group_reaches_its_members(&Two::of("udp", a, b), group.parse().unwrap());
    }
}

#[test]
fn unreliable_connection() {
    everywhere(|two| {
        let (a, b) = connected(two, QpType::Uc, 1 << 16, Mtu::M1024);
        let data = pattern(1, 10_000);
        a.mr.write_at(0, &data).unwrap();
        b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[b.mr.sge(0, 20_000)] }).unwrap();
        let sges = [a.mr.sge(0, 10_000)];
        a.qp.post_send(&SendWr::new(1, SendOp::SendImm([9; 4]), &sges)).unwrap();
        let got = b.good();
        assert_eq!((got.byte_len, got.extra), (10_000, WcExtra::Immediate([9; 4])));
        assert_eq!(b.mr.read_vec(0, 10_000).unwrap(), data);
        a.good();
        b.qp.post_recv(&RecvWr { wr_id: 2, sges: &[] }).unwrap();
        let remote = Remote { addr: b.mr.addr() + 30_000, rkey: b.mr.rkey() };
        a.qp.post_send(&SendWr::new(1, SendOp::WriteImm(remote, [8; 4]), &sges)).unwrap();
        assert_eq!(b.good().opcode, WcOpcode::RecvRdmaWithImm);
        assert_eq!(b.mr.read_vec(30_000, 10_000).unwrap(), data);
        a.good();
    });
}

#[test]
fn shared_receive_queue() {
    everywhere(|two| {
        let pd = two.b.alloc_pd().unwrap();
        let srq = pd.create_srq(16, 2).unwrap();
        let cq = two.b.create_cq(64, None).unwrap();
        let mr = pd.alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
        let senders = [End::new(&two.a, QpType::Rc, 64), End::new(&two.a, QpType::Rc, 64)];
        let init = QpInit { srq: Some(&srq), ..QpInit::new(QpType::Rc, &cq) };
        // The receives name regions of the shared queue's domain, whatever that of the queue pair is.
        let other = two.b.alloc_pd().unwrap();
        let receivers = [pd.create_qp(&init).unwrap(), other.create_qp(&init).unwrap()];
        for (sender, receiver) in senders.iter().zip(&receivers) {
            verbs_common::connect(&sender.qp, receiver, Mtu::M1024);
        }
        for wr_id in 0..4 {
            srq.post_recv(&RecvWr { wr_id, sges: &[mr.sge(wr_id as usize * 64, 64)] }).unwrap();
        }
        srq.modify(None, Some(3)).unwrap();
        assert_eq!(srq.query(), (16, 3));
        assert_eq!(srq.modify(None, Some(17)), Err(PostError::Limit(17, 16)));
        assert_eq!(srq.modify(Some(2), None), Err(PostError::Full(2)));
        assert_eq!(srq.query(), (16, 3));
        for (number, sender) in senders.iter().cycle().take(4).enumerate() {
            sender.mr.write_at(0, &[number as u8; 64]).unwrap();
            sender.qp.post_send(&SendWr::new(1, SendOp::Send, &[sender.mr.sge(0, 64)])).unwrap();
            let got = cq.poll_within(PATIENCE).unwrap().expect("a completion");
            assert_eq!((got.wr_id, got.qpn), (number as u64, receivers[number % 2].qpn()));
            assert_eq!(mr.read_vec(number * 64, 64).unwrap(), [number as u8; 64]);
            sender.good();
        }
        let event = two.b.get_async_event(Some(PATIENCE)).unwrap();
        let expected = rxe_verbs::work::AsyncEvent::SrqLimitReached(srq.id());
        let mut seen = vec![event];
        seen.extend(std::iter::from_fn(|| two.b.try_get_async_event()));
        assert!(seen.contains(&rxe_verbs::AsyncEvent::Queue(expected)), "{seen:?}");
        assert!(srq.is_shared());
        assert_eq!(srq.query(), (16, 0), "the limit is disarmed by its event");
    });
}

/// Datagrams that are posted in a row wait for the program's next call, and leave if there is none.
#[test]
fn those_that_wait_leave_without_another_call() {
    const ROW: usize = 16;
    everywhere(|two| {
        let (a, b) = (datagram_end(&two.a), datagram_end(&two.b));
        let sges = [a.mr.sge(0, 8)];
        let one = SendWr { flags: SendFlags::empty(), ..send(&a, &b, &sges, QKEY) };
        let row: Vec<_> = (0..ROW as u64).map(|wr_id| SendWr { wr_id, ..one }).collect();
        for round in 0..5 {
            for wr_id in 0..=ROW as u64 {
                b.qp.post_recv(&RecvWr { wr_id, sges: &[b.mr.sge(0, 100)] }).unwrap();
            }
            // So many are a row, and the one behind them may wait.
            a.qp.post_send_list(&row).unwrap();
            a.qp.post_send(&one).unwrap();
            for got in 0..=ROW {
                let wc = b.cq.poll_within(PATIENCE).unwrap();
                assert!(wc.is_some(), "round {round}: {got} of {} have arrived", ROW + 1);
            }
        }
    });
}
