//! The options of a connection, and the modify calls that follow from them.

use super::Objects;
use crate::dut::{Access, Attrs, Av, Change, QpSpec, Service, State};
use std::time::Duration;

/// The options of a connection.
#[derive(Clone, Debug)]
pub struct Options {
    /// Service.
    pub service: Service,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// First PSN of the suite's requests.
    pub psn: u32,
    /// First PSN of the device's requests.
    pub dut_psn: u32,
    /// Access rights that the device's queue pair grants to the suite.
    pub access: Vec<Access>,
    /// Access rights of the target region.
    pub region: Vec<Access>,
    /// Code of the device's local ACK timeout.
    pub timeout: u8,
    /// Its retry count.
    pub retry_cnt: u8,
    /// Its RNR retry count.
    pub rnr_retry: u8,
    /// Code of the timer value in its RNR NAKs.
    pub min_rnr_timer: u8,
    /// Number of READs and atomics that the device may have outstanding.
    pub max_rd_atomic: u8,
    /// Number of READs and atomics that the suite may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Whether receives come from a shared receive queue.
    pub srq: bool,
    /// TOS or traffic class of the device's packets.
    pub traffic_class: u8,
    /// Queue key (datagrams).
    pub qkey: u32,
    /// Minimum number of entries of its completion queues.
    pub cqe: u32,
    /// The state that the queue pair is brought to.
    pub upto: State,
    /// The connection whose memory and completion queues are used, if not its own.
    pub beside: Option<Objects>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            service: Service::Rc,
            mtu: 1024,
            psn: 0x1000,
            dut_psn: 0x20_0000,
            access: Access::COMMON.to_vec(),
            region: Access::COMMON.to_vec(),
            // 8.6 s. So nothing is retransmitted while a case is still about its first packets, even on a busy machine.
            // Cases about losses set their own timeout.
            timeout: 21,
            retry_cnt: 7,
            rnr_retry: 7,
            // 0.64 ms.
            min_rnr_timer: 12,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            srq: false,
            // ECT(0), as network cards send it.
            traffic_class: 2,
            qkey: 0x1111_1111,
            cqe: 256,
            upto: State::Rts,
            beside: None,
        }
    }
}

/// Whether the responder of this service acknowledges requests and supports READs.
fn is_reliable(service: Service) -> bool {
    matches!(service, Service::Rc | Service::XrcTarget)
}

impl Options {
    /// How long the device may wait for an answer before it retransmits: four times the timeout (IBTA vol. 1, 9.7.6.1.3).
    /// Zero if that is longer than any case waits.
    pub(super) fn silence(&self) -> Duration {
        match self.timeout {
            code @ 1..=19 => Duration::from_nanos((4 * 4096) << code),
            _ => Duration::ZERO,
        }
    }

    /// The attributes with which its queue pair is created.
    pub(super) fn spec(&self, objects: &Objects) -> QpSpec {
        QpSpec {
            pd: objects.pd,
            service: self.service,
            send_cq: objects.send_cq,
            recv_cq: objects.recv_cq,
            srq: objects.srq,
            sig_all: false,
        }
    }

    /// The modify call that moves a queue pair to state `to`.
    #[must_use]
    pub fn step(&self, to: State, dest_qpn: u32, av: Av) -> Change {
        let (reliable, datagram) = (is_reliable(self.service), self.service == Service::Ud);
        let mut attrs = Attrs::default();
        match to {
            State::Init => {
                attrs.port = Some(1);
                attrs.pkey_index = Some(0);
                attrs.qkey = datagram.then_some(self.qkey);
                attrs.access = (!datagram).then(|| self.access.clone());
            }
            State::Rtr if !datagram => {
                attrs.av = Some(av);
                attrs.path_mtu = Some(self.mtu);
                attrs.dest_qpn = Some(dest_qpn);
                attrs.rq_psn = Some(self.psn);
                attrs.max_dest_rd_atomic = reliable.then_some(self.max_dest_rd_atomic);
                attrs.min_rnr_timer = reliable.then_some(self.min_rnr_timer);
            }
            State::Rts => {
                let requester = self.service == Service::Rc;
                attrs.sq_psn = Some(self.dut_psn);
                attrs.timeout = reliable.then_some(self.timeout);
                attrs.retry_cnt = requester.then_some(self.retry_cnt);
                attrs.rnr_retry = requester.then_some(self.rnr_retry);
                attrs.max_rd_atomic = requester.then_some(self.max_rd_atomic);
            }
            _ => {}
        }
        Change { state: Some(to), attrs }
    }
}
