//! How a connection is to be, and what modify calls follow from that.

use super::Objects;
use crate::dut::{Access, Attrs, Av, Change, QpSpec, Service, State};
use std::time::Duration;

/// How a connection is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Service.
    pub service: Service,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// First PSN of ours.
    pub psn: u32,
    /// First PSN of the device's.
    pub dut_psn: u32,
    /// What we may do to the device's memory through this queue pair.
    pub access: Vec<Access>,
    /// Rights of the region that we aim at.
    pub region: Vec<Access>,
    /// Retransmission timeout code of the device.
    pub timeout: u8,
    /// Its retries.
    pub retry_cnt: u8,
    /// Its RNR retries.
    pub rnr_retry: u8,
    /// Timer code of its RNR NAKs.
    pub min_rnr_timer: u8,
    /// READs and atomics that it may have outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics that we may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Receives come from a shared queue.
    pub srq: bool,
    /// TOS or traffic class of its packets.
    pub traffic_class: u8,
    /// Queue key (datagrams).
    pub qkey: u32,
    /// Entries of its completion queues, at least.
    pub cqe: u32,
    /// The state it is brought to.
    pub upto: State,
    /// Use the memory and queues of this connection.
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
            // 8.6 s: nothing is sent again while a case is still about its first packets, on a busy machine either. Cases
            // about losses have their own.
            timeout: 21,
            retry_cnt: 7,
            rnr_retry: 7,
            // 0.64 ms.
            min_rnr_timer: 12,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            srq: false,
            // ECT(0), as cards send it.
            traffic_class: 2,
            qkey: 0x1111_1111,
            cqe: 256,
            upto: State::Rts,
            beside: None,
        }
    }
}

/// Whether its responder answers, and may be asked for READs.
fn is_reliable(service: Service) -> bool {
    matches!(service, Service::Rc | Service::XrcTarget)
}

impl Options {
    /// How long the device may wait for an answer before it sends again: four times the timeout (IBTA vol. 1, 9.7.6.1.3). Zero
    /// where that is longer than any case waits for.
    pub(super) fn silence(&self) -> Duration {
        match self.timeout {
            code @ 1..=19 => Duration::from_nanos((4 * 4096) << code),
            _ => Duration::ZERO,
        }
    }

    /// What its queue pair is made of.
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

    /// What takes a queue pair one step on the way to `to`.
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
