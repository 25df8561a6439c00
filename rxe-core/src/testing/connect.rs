//! Creates queue pairs on both sides and brings them to RTS.

use super::pair::Pair;
use crate::{
    num::{Pkey, Psn, Qkey, Qpn},
    qp::{Mtu, QpCaps, QpChange, QpConfig, QpState, QpType},
    work::{Access, AddressVector, CqId, PdId, SrqId, UdDest, XrcdId},
};

/// All rights that a peer can have.
pub const REMOTE_ALL: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// All rights of a region.
pub const REGION_ALL: Access = REMOTE_ALL.union(Access::LOCAL_WRITE).union(Access::MW_BIND);

/// Protection domain of queue pairs and regions, unless a test needs several.
pub const PD: PdId = PdId(1);
/// Completion queue of send requests.
pub const SEND_CQ: CqId = CqId(1);
/// Completion queue of receive requests.
pub const RECV_CQ: CqId = CqId(2);

/// Attributes of the two queue pairs of a connection. If there are two values, the first is for side 0.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions {
    /// Type of both queue pairs.
    pub qp_type: QpType,
    /// Path MTU.
    pub mtu: Mtu,
    /// What each side allows its peer to do.
    pub access: Access,
    /// First PSN that each side sends.
    pub psn: [Psn; 2],
    /// Timeout of retransmissions, as a code: 4.096 us times 2 to this power.
    pub timeout: u8,
    /// Number of retries after timeouts and NAKs.
    pub retry_count: u8,
    /// Number of retries after RNR NAKs; 7 means without end.
    pub rnr_retry: u8,
    /// Timer code in RNR NAKs.
    pub min_rnr_timer: u8,
    /// READs and atomics that each side may have outstanding.
    pub max_rd_atomic: [u8; 2],
    /// READs and atomics that each side lets its peer have outstanding.
    pub max_dest_rd_atomic: [u8; 2],
    /// Queue sizes.
    pub caps: QpCaps,
    /// Shared receive queues, if any.
    pub srq: [Option<SrqId>; 2],
    /// XRC domain of XRC targets.
    pub xrcd: Option<XrcdId>,
    /// Protection domains.
    pub pd: [PdId; 2],
    /// Completion queues for sends and receives.
    pub cqs: [(CqId, CqId); 2],
    /// Whether every send request makes a completion.
    pub signal_all: bool,
    /// Q_Key of datagram queue pairs.
    pub qkey: Qkey,
    /// Index into the P_Key tables.
    pub pkey_index: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub service_level: u8,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        let caps =
            QpCaps { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 4, max_recv_sge: 4, max_inline: 256 };
        Self {
            qp_type: QpType::Rc,
            mtu: Mtu::M1024,
            access: REMOTE_ALL,
            psn: [Psn::new(100), Psn::new(200)],
            // 16.8 ms: much longer than the latencies here, much shorter than a test.
            timeout: 12,
            retry_count: 7,
            rnr_retry: 7,
            // 0.64 ms.
            min_rnr_timer: 12,
            max_rd_atomic: [16; 2],
            max_dest_rd_atomic: [16; 2],
            caps,
            srq: [None; 2],
            xrcd: None,
            pd: [PD; 2],
            cqs: [(SEND_CQ, RECV_CQ); 2],
            signal_all: false,
            qkey: Qkey(0x1111_1111),
            pkey_index: 0,
            traffic_class: 0,
            service_level: 0,
        }
    }
}

/// Two connected queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// Their numbers, by side.
    pub qpns: [Qpn; 2],
}

impl Pair {
    /// The address vector from `side` to the other side.
    #[must_use]
    pub fn path(&self, side: usize) -> AddressVector {
        AddressVector {
            src: self.sides[side].addr,
            dst: self.sides[1 - side].addr,
            ifindex: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            service_level: 0,
            sgid_index: 0,
            gid_type: self.config().gid_type(),
        }
    }

    /// Creates one queue pair in RESET.
    ///
    /// # Panics
    /// If the endpoint refuses.
    pub fn create_qp(&mut self, side: usize, options: &ConnectOptions) -> Qpn {
        let config = QpConfig {
            qp_type: options.qp_type,
            pd: options.pd[side],
            send_cq: options.cqs[side].0,
            recv_cq: options.cqs[side].1,
            srq: options.srq[side],
            xrcd: options.xrcd,
            caps: options.caps,
            signal_all: options.signal_all,
        };
        self.sides[side].endpoint.create_qp(config).expect("a queue pair")
    }

    /// The change that moves a queue pair of `side` to state `to` from the state before it, with all attributes that this requires.
    #[must_use]
    pub fn step_to(&self, side: usize, peer: Qpn, options: &ConnectOptions, to: QpState) -> QpChange {
        let datagram = matches!(options.qp_type, QpType::Ud | QpType::Gsi);
        let reliable = !datagram && options.qp_type != QpType::Uc;
        let responder = reliable && options.qp_type != QpType::XrcInitiator;
        let requester = reliable && options.qp_type != QpType::XrcTarget;
        let mut change = QpChange { state: Some(to), ..QpChange::default() };
        match to {
            QpState::Init => {
                change.pkey_index = Some(options.pkey_index);
                change.port = (options.qp_type != QpType::Gsi).then_some(1);
                change.qkey = datagram.then_some(options.qkey);
                change.access = (!datagram).then_some(options.access);
            }
            QpState::Rtr if !datagram => {
                let ConnectOptions { traffic_class, service_level, .. } = *options;
                let av = AddressVector { traffic_class, service_level, ..self.path(side) };
                change.av = Some(av);
                change.path_mtu = Some(options.mtu);
                change.dest_qpn = Some(peer);
                change.rq_psn = Some(options.psn[1 - side]);
                change.max_dest_rd_atomic = responder.then_some(options.max_dest_rd_atomic[side]);
                change.min_rnr_timer = responder.then_some(options.min_rnr_timer);
            }
            QpState::Rts => {
                change.sq_psn = Some(options.psn[side]);
                change.timeout = reliable.then_some(options.timeout);
                change.retry_count = requester.then_some(options.retry_count);
                change.rnr_retry = requester.then_some(options.rnr_retry);
                change.max_rd_atomic = requester.then_some(options.max_rd_atomic[side]);
            }
            _ => {}
        }
        change
    }

    /// Moves a queue pair from RESET to state `to` (INIT, RTR or RTS).
    ///
    /// # Panics
    /// If the endpoint refuses a step.
    pub fn bring_up(&mut self, side: usize, qpn: Qpn, peer: Qpn, options: &ConnectOptions, to: QpState) {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let change = self.step_to(side, peer, options, state);
            self.modify(side, qpn, &change).expect("a step by the table");
            if state == to {
                break;
            }
        }
    }

    /// Creates a queue pair on each side and brings both to RTS.
    ///
    /// # Panics
    /// If an endpoint refuses.
    pub fn connect(&mut self, options: &ConnectOptions) -> Connection {
        let qpns = [self.create_qp(0, options), self.create_qp(1, options)];
        for side in 0..2 {
            self.bring_up(side, qpns[side], qpns[1 - side], options, QpState::Rts);
        }
        Connection { qpns }
    }

    /// The destination with which `side` sends to the datagram queue pair `qpn` of the other side.
    #[must_use]
    pub fn datagram_dest(&self, side: usize, qpn: Qpn, qkey: Qkey) -> UdDest {
        UdDest { av: self.path(side), remote_qpn: qpn, remote_qkey: qkey, pkey: None }
    }

    /// The P_Key of a queue pair of `side` that was created with `options`. `None` if the index is not in the table.
    #[must_use]
    pub fn pkey(&self, side: usize, options: &ConnectOptions) -> Option<Pkey> {
        self.config().endpoints[side].pkeys.get(usize::from(options.pkey_index)).copied()
    }
}
