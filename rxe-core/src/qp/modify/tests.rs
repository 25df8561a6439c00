use super::{super::attrs::Mtu, *};
use crate::{
    num::{Psn, Qkey},
    work::{Access, GidType},
};
use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
use alloc::format;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const TYPES: [QpType; 6] =
    [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcInitiator, QpType::XrcTarget, QpType::Gsi];
const STATES: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, Error];

const fn v4(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}

fn av() -> AddressVector {
    AddressVector {
        src: v4(1),
        dst: v4(2),
        ifindex: 0,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        service_level: 0,
        sgid_index: 0,
        gid_type: GidType::RoceV2,
    }
}

/// A change that names exactly `mask`, with values that are all right and none a default.
fn change(mask: AttrMask, to: QpState, from: QpState) -> QpChange {
    let has = |bit| mask.contains(bit);
    QpChange {
        state: has(AttrMask::STATE).then_some(to),
        current_state: has(AttrMask::CUR_STATE).then_some(from),
        sqd_notify: has(AttrMask::EN_SQD_ASYNC_NOTIFY).then_some(true),
        access: has(AttrMask::ACCESS_FLAGS).then_some(Access::REMOTE_READ),
        pkey_index: has(AttrMask::PKEY_INDEX).then_some(3),
        port: has(AttrMask::PORT).then_some(1),
        qkey: has(AttrMask::QKEY).then_some(Qkey(0x1234)),
        av: has(AttrMask::AV).then(av),
        path_mtu: has(AttrMask::PATH_MTU).then_some(Mtu::M2048),
        timeout: has(AttrMask::TIMEOUT).then_some(14),
        retry_count: has(AttrMask::RETRY_CNT).then_some(5),
        rnr_retry: has(AttrMask::RNR_RETRY).then_some(6),
        rq_psn: has(AttrMask::RQ_PSN).then(|| Psn::new(100)),
        max_rd_atomic: has(AttrMask::MAX_QP_RD_ATOMIC).then_some(16),
        alternate: has(AttrMask::ALT_PATH).then(av),
        min_rnr_timer: has(AttrMask::MIN_RNR_TIMER).then_some(12),
        sq_psn: has(AttrMask::SQ_PSN).then(|| Psn::new(200)),
        max_dest_rd_atomic: has(AttrMask::MAX_DEST_RD_ATOMIC).then_some(8),
        migration: has(AttrMask::PATH_MIG_STATE).then_some(2),
        caps: has(AttrMask::CAP).then_some(super::super::attrs::QpCaps {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        }),
        dest_qpn: has(AttrMask::DEST_QPN).then(|| Qpn::new(17)),
    }
}

fn in_state(state: QpState) -> QpAttrs {
    QpAttrs { state, ..QpAttrs::default() }
}

fn matrix() -> String {
    let mut out = String::new();
    for qp_type in TYPES {
        for from in STATES {
            for to in STATES {
                let line = match rule(qp_type, from, to) {
                    None => format!("{qp_type:?} {from:?} -> {to:?}: no\n"),
                    Some(rule) => format!(
                        "{qp_type:?} {from:?} -> {to:?}: {} | {}\n",
                        rule.required.names(),
                        rule.optional.names()
                    ),
                };
                // An empty set would leave a blank at the end of the line, which editors like to eat.
                out.push_str(line.replace(":  |", ": - |").replace("| \n", "| -\n").as_str());
            }
        }
    }
    out
}

/// The committed text is what review reads. After a wanted change: `RXE_UPDATE_SNAPSHOTS=1 cargo test -p rxe-core matrix`.
#[test]
fn matrix_is_the_committed_one() {
    if std::env::var_os("RXE_UPDATE_SNAPSHOTS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/qp/modify/matrix.txt");
        std::fs::write(path, matrix()).expect("write the snapshot");
        return;
    }
    let committed = include_str!("matrix.txt");
    for (ours, theirs) in matrix().lines().zip(committed.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(matrix().lines().count(), committed.lines().count());
}

#[test]
fn no_transition_has_two_rows() {
    for qp_type in TYPES {
        for from in STATES {
            for to in STATES {
                assert!(table::rows(qp_type, from, to).count() <= 1, "{qp_type:?} {from:?} {to:?}");
            }
        }
    }
}

/// Every transition: takes the required attributes, and all optional ones with them; refuses each one missing and each one
/// too many, by name.
#[test]
fn every_attribute_of_every_transition() {
    for qp_type in TYPES {
        for (from, to) in STATES.into_iter().flat_map(|from| STATES.into_iter().map(move |to| (from, to))) {
            let base = AttrMask::STATE;
            let now = in_state(from);
            let Some(rule) = rule(qp_type, from, to) else {
                let refused = apply(qp_type, &now, &change(base, to, from));
                assert_eq!(refused, Err(ModifyError::Transition { qp_type, from, to }));
                continue;
            };
            for full in [rule.required, rule.required | rule.optional] {
                let next = apply(qp_type, &now, &change(base | full, to, from)).expect("allowed");
                assert_eq!(next.state, to);
            }
            for bit in AttrMask::all().iter().filter(|&bit| bit != AttrMask::STATE) {
                let (mask, missing, forbidden) = if rule.required.contains(bit) {
                    (rule.required - bit, bit, AttrMask::empty())
                } else if rule.optional.contains(bit) {
                    continue;
                } else {
                    (rule.required | bit, AttrMask::empty(), bit)
                };
                let refused = apply(qp_type, &now, &change(base | mask, to, from));
                let expected = ModifyError::Attributes {
                    from,
                    to,
                    missing: missing.names(),
                    forbidden: forbidden.names(),
                };
                assert_eq!(refused, Err(expected), "{qp_type:?} {from:?} {to:?} {bit:?}");
            }
        }
    }
}

#[test]
fn error_lists_names() {
    let mask = AttrMask::STATE | AttrMask::AV | AttrMask::DEST_QPN | AttrMask::MIN_RNR_TIMER | AttrMask::QKEY;
    let error = apply(
        QpType::Rc,
        &in_state(Init),
        &change(mask | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::SQ_PSN, Rtr, Init),
    )
    .expect_err("two missing, two too many");
    assert_eq!(format!("{error}"), "Init to Rtr: missing [PATH_MTU, RQ_PSN], not allowed [QKEY, SQ_PSN]");
}

/// An RC queue pair keeps the attributes that each transition sets; RESET forgets them all.
#[test]
fn attributes_are_kept_and_reset_forgets() {
    let mut attrs = QpAttrs::default();
    for (from, to) in [(Reset, Init), (Init, Rtr), (Rtr, Rts), (Rts, Sqd)] {
        let rule = rule(QpType::Rc, from, to).expect("a transition");
        let mask = AttrMask::STATE | rule.required | rule.optional;
        attrs = apply(QpType::Rc, &attrs, &change(mask, to, from)).expect("allowed");
    }
    let expected = QpAttrs {
        state: Sqd,
        sqd_notify: true,
        access: Access::REMOTE_READ,
        pkey_index: 3,
        qkey: Qkey(0),
        av: Some(av()),
        path_mtu: Mtu::M2048,
        timeout: 14,
        retry_count: 5,
        rnr_retry: 6,
        rq_psn: Psn::new(100),
        sq_psn: Psn::new(200),
        max_rd_atomic: 16,
        max_dest_rd_atomic: 8,
        min_rnr_timer: 12,
        migration: 2,
        alternate: Some(av()),
        dest_qpn: Qpn::new(17),
    };
    assert_eq!(attrs, expected);
    let failed = apply(QpType::Rc, &attrs, &change(AttrMask::STATE, Error, Sqd)).expect("allowed");
    assert_eq!(failed, QpAttrs { state: Error, ..expected });
    let reset = apply(QpType::Rc, &failed, &change(AttrMask::STATE, Reset, Error)).expect("allowed");
    assert_eq!(reset, QpAttrs::default());
}

/// A drain that asks for no event gives none, even if an earlier drain asked for one.
#[test]
fn drain_event_is_asked_for_each_time() {
    let rts = QpAttrs { sqd_notify: true, ..in_state(Rts) };
    let drained = apply(QpType::Rc, &rts, &change(AttrMask::STATE, Sqd, Rts)).expect("allowed");
    assert!(!drained.sqd_notify);
}

#[test]
fn change_without_state_stays() {
    let changed = apply(QpType::Ud, &in_state(Rts), &change(AttrMask::QKEY, Rts, Rts)).expect("allowed");
    assert_eq!(changed, QpAttrs { qkey: Qkey(0x1234), ..in_state(Rts) });
    let refused = apply(QpType::Rc, &in_state(Rtr), &change(AttrMask::MIN_RNR_TIMER, Rtr, Rtr));
    assert_eq!(refused, Err(ModifyError::Transition { qp_type: QpType::Rc, from: Rtr, to: Rtr }));
}

#[test]
fn current_state_must_be_true() {
    let claim = QpChange { state: Some(Rts), current_state: Some(Sqd), ..QpChange::default() };
    let refused = apply(QpType::Ud, &in_state(Sqe), &claim);
    assert_eq!(refused, Err(ModifyError::CurrentState { actual: Sqe, claimed: Sqd }));
    let claim = QpChange { current_state: Some(Sqe), ..claim };
    assert!(apply(QpType::Ud, &in_state(Sqe), &claim).is_ok());
}

#[test]
fn values_are_checked() {
    let rule = rule(QpType::Rc, Init, Rtr).expect("a transition");
    let good = change(AttrMask::STATE | rule.required | AttrMask::ALT_PATH, Rtr, Init);
    let wrong = |change: QpChange| match apply(QpType::Rc, &in_state(Init), &change) {
        Err(ModifyError::Value { attribute, value, .. }) => (attribute, value),
        other => panic!("{other:?}"),
    };
    let with_av = |av| QpChange { av: Some(av), ..good };
    assert_eq!(wrong(QpChange { min_rnr_timer: Some(32), ..good }), ("MIN_RNR_TIMER", 32));
    assert_eq!(wrong(QpChange { max_dest_rd_atomic: Some(129), ..good }), ("MAX_DEST_RD_ATOMIC", 129));
    for qpn in [0, 1, 0xff_ffff] {
        let bad = QpChange { dest_qpn: Some(Qpn::new(qpn)), ..good };
        assert_eq!(wrong(bad), ("DEST_QPN", u64::from(qpn)));
    }
    let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
    assert_eq!(wrong(with_av(AddressVector { src: v6, ..av() })).0, "AV");
    assert_eq!(wrong(with_av(AddressVector { dst: IpAddr::V4(Ipv4Addr::UNSPECIFIED), ..av() })).0, "AV");
    assert_eq!(
        wrong(with_av(AddressVector { dst: IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1)), ..av() })).0,
        "AV"
    );
    assert_eq!(wrong(with_av(AddressVector { flow_label: 1 << 20, ..av() })), ("AV", 1 << 20));
    assert_eq!(wrong(with_av(AddressVector { service_level: 16, ..av() })), ("AV", 16));
    let alternate = QpChange { alternate: Some(AddressVector { src: v6, ..av() }), ..good };
    assert_eq!(wrong(alternate).0, "ALT_PATH");

    let live = change(AttrMask::STATE | REQUESTER | AttrMask::PATH_MIG_STATE, Rts, Rtr);
    let wrong = |change: QpChange| match apply(QpType::Rc, &in_state(Rtr), &change) {
        Err(ModifyError::Value { attribute, .. }) => attribute,
        other => panic!("{other:?}"),
    };
    assert_eq!(wrong(QpChange { timeout: Some(32), ..live }), "TIMEOUT");
    assert_eq!(wrong(QpChange { retry_count: Some(8), ..live }), "RETRY_CNT");
    assert_eq!(wrong(QpChange { rnr_retry: Some(8), ..live }), "RNR_RETRY");
    assert_eq!(wrong(QpChange { max_rd_atomic: Some(129), ..live }), "MAX_QP_RD_ATOMIC");
    assert_eq!(wrong(QpChange { migration: Some(3), ..live }), "PATH_MIG_STATE");
    let init =
        change(AttrMask::STATE | AttrMask::PORT | AttrMask::PKEY_INDEX | AttrMask::ACCESS_FLAGS, Init, Reset);
    let port = apply(QpType::Uc, &QpAttrs::default(), &QpChange { port: Some(2), ..init });
    assert!(matches!(port, Err(ModifyError::Value { attribute: "PORT", value: 2, .. })));
}

const REQUESTER: AttrMask = AttrMask::TIMEOUT
    .union(AttrMask::RETRY_CNT)
    .union(AttrMask::RNR_RETRY)
    .union(AttrMask::SQ_PSN)
    .union(AttrMask::MAX_QP_RD_ATOMIC);
