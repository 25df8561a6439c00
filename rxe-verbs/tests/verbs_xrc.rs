//! XRC between two contexts: targets, domains, and the shared receive queues that a request names.

mod verbs_common;

use rxe_verbs::{
    AsyncEvent, Context, CreateError, Listener, Mtu, Psn, Qp, QpChange, QpInit, QpState, QpType, RecvWr,
    Remote, SendOp, SendWr, WcOpcode, WcStatus, work,
};
use std::{fs::File, iter, os::fd::AsFd};
use verbs_common::{ALL, End, everywhere, inproc, pattern, to_init};

/// Connects an initiator to a target.
fn connect(initiator: &Qp, target: &Qp, ends: [&End; 2]) {
    for (own, other, [near, far], starts) in
        [(initiator, target, ends, true), (target, initiator, [ends[1], ends[0]], false)]
    {
        to_init(own);
        let av = near.qp.context().address_vector(0, far.gid()).unwrap();
        own.modify(&QpChange {
            state: Some(QpState::Rtr),
            av: Some(av),
            path_mtu: Some(Mtu::M1024),
            dest_qpn: Some(other.qpn()),
            rq_psn: Some(Psn::new(7)),
            max_dest_rd_atomic: (!starts).then_some(4),
            min_rnr_timer: (!starts).then_some(1),
            ..QpChange::default()
        })
        .unwrap();
        own.modify(&QpChange {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(7)),
            timeout: Some(18),
            retry_count: starts.then_some(7),
            rnr_retry: starts.then_some(7),
            max_rd_atomic: starts.then_some(4),
            ..QpChange::default()
        })
        .unwrap();
    }
}

#[test]
fn messages_and_writes_go_where_they_name() {
    everywhere(|two| {
        let (a, b) = (End::new(&two.a, QpType::Rc, 1 << 16), End::new(&two.b, QpType::Rc, 1 << 16));
        let initiator = a.pd.create_qp(&QpInit::new(QpType::XrcInitiator, &a.cq)).unwrap();
        let domain = two.b.open_xrcd(None, true, false).unwrap();
        let target = domain.create_target().unwrap();
        // A second queue in a protection domain of its own, completing elsewhere.
        let (other_pd, other_cq) = (two.b.alloc_pd().unwrap(), two.b.create_cq(16, None).unwrap());
        let other_mr = other_pd.alloc_mr(1 << 16, ALL).unwrap();
        let queues = [
            domain.create_srq(&b.pd, &b.cq, 16, 1).unwrap(),
            domain.create_srq(&other_pd, &other_cq, 16, 1).unwrap(),
        ];
        connect(&initiator, &target, [&a, &b]);
        for round in 0..8_u64 {
            let which = round as usize % 2;
            let (srq, mr) = (&queues[which], [&b.mr, &other_mr][which]);
            let cq = [&b.cq, &other_cq][which];
            let data = pattern(round, 5000);
            a.mr.write_at(0, &data).unwrap();
            srq.post_recv(&RecvWr { wr_id: round, sges: &[mr.sge(0, 8192)] }).unwrap();
            let sges = [a.mr.sge(0, 5000)];
            let xrc_srq = srq.number().unwrap();
            initiator.post_send(&SendWr { xrc_srq, ..SendWr::new(1, SendOp::Send, &sges) }).unwrap();
            a.good();
            let got = cq.poll_within(verbs_common::PATIENCE).unwrap().unwrap();
            assert_eq!((got.wr_id, got.byte_len, got.opcode), (round, 5000, WcOpcode::Recv));
            assert_eq!(got.qpn, target.qpn());
            assert_eq!(mr.read_vec(0, 5000).unwrap(), data);
            let to = Remote { addr: mr.addr() + 9000, rkey: mr.rkey() };
            initiator.post_send(&SendWr { xrc_srq, ..SendWr::new(2, SendOp::Write(to), &sges) }).unwrap();
            a.good();
            assert_eq!(mr.read_vec(9000, 5000).unwrap(), data);
        }
    });
}

#[test]
fn a_file_leads_to_the_same_domain_while_it_is_open() {
    let context = inproc().a;
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    let again = File::open(std::env::current_exe().unwrap()).unwrap();
    let open = |file: &File, create, exclusive| context.open_xrcd(Some(file.as_fd()), create, exclusive);
    assert!(matches!(open(&file, false, false), Err(CreateError::NoDomain)));
    let first = open(&file, true, true).unwrap();
    assert_eq!(open(&again, false, false).unwrap().id(), first.id());
    assert!(matches!(open(&again, true, true), Err(CreateError::DomainExists)));
    assert_ne!(
        context.open_xrcd(None, true, false).unwrap().id(),
        first.id(),
        "without a file it is a new one"
    );
    // An object keeps it.
    let target = first.create_target().unwrap();
    drop(first);
    assert!(open(&file, false, false).is_ok());
    drop(target);
    assert!(matches!(open(&file, false, false), Err(CreateError::NoDomain)));
}

/// As ibv_open_qp(3) has it: every handle hears of a target's events, also when the first one is gone.
#[test]
fn listeners_hear_of_a_target_one_by_one() {
    let two = inproc();
    let (a, b) = (End::new(&two.a, QpType::Rc, 4096), End::new(&two.b, QpType::Rc, 4096));
    let initiator = a.pd.create_qp(&QpInit::new(QpType::XrcInitiator, &a.cq)).unwrap();
    let domain = two.b.open_xrcd(None, true, false).unwrap();
    let target = domain.create_target().unwrap();
    let (first, second, elsewhere) =
        (target.listen(&two.b).unwrap(), target.listen(&two.b).unwrap(), target.listen(&two.a).unwrap());
    connect(&initiator, &target, [&a, &b]);
    let srq = domain.create_srq(&b.pd, &b.cq, 16, 1).unwrap();
    let nobody = srq.number().unwrap() + 77;
    drop(first);
    let sges = [a.mr.sge(0, 8)];
    initiator.post_send(&SendWr { xrc_srq: nobody, ..SendWr::new(1, SendOp::Send, &sges) }).unwrap();
    assert_eq!(a.wait().status, WcStatus::RemoteInvalidRequest);
    let all = |context: &Context| -> Vec<_> { iter::from_fn(|| context.try_get_async_event()).collect() };
    let heard = |listener: &Listener| AsyncEvent::Heard {
        event: work::AsyncEvent::QpRequestError(target.qpn()),
        listener: listener.name(),
    };
    assert_eq!(all(&two.b), [heard(&second)]);
    assert!(all(&two.a).contains(&heard(&elsewhere)));
    drop((second, elsewhere));
    drop(target);
    assert_eq!(all(&two.b), []);
}

#[test]
fn parts_of_another_context_are_refused() {
    let two = inproc();
    let domain = two.a.open_xrcd(None, true, false).unwrap();
    let (pd, cq) = (two.b.alloc_pd().unwrap(), two.b.create_cq(4, None).unwrap());
    assert!(matches!(domain.create_srq(&pd, &cq, 4, 1), Err(CreateError::Stranger(_))));
    let (pd, own) = (two.a.alloc_pd().unwrap(), two.a.create_cq(4, None).unwrap());
    assert!(matches!(domain.create_srq(&pd, &cq, 4, 1), Err(CreateError::Stranger(_))));
    let srq = domain.create_srq(&pd, &own, 4, 1).unwrap();
    let init = QpInit { srq: Some(&srq), ..QpInit::new(QpType::Rc, &own) };
    assert!(pd.create_qp(&init).is_err(), "an XRC one is for targets only");
    assert!(pd.create_srq(4, 1).unwrap().number().is_none());
}
