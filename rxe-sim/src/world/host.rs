//! Hosts: the endpoint, the adapter that sends its packets, and the start and end of flows.

use super::{Event, World};
use crate::{
    packet::{HEADERS, Packet, Queue, Ticket},
    scenario::{Adapter, Control, Recovery},
    selective::{Receiver, Sender},
    units::{NANO, SECOND},
};
use rxe_core::{
    endpoint::{Acks, Endpoint, EndpointConfig, Run, RunMeta, Transmit},
    memory::{AccessError, Asker, Memory},
    num::{Key, Psn, Qpn},
    qp::{
        CongestionControl, Dcqcn, DcqcnParams, LineRate, Mtu, Pacing, QpCaps, QpChange, QpConfig, QpState,
        QpType, Timely, TimelyParams, Timing,
    },
    time::Instant,
    wire::{HeaderSeen, Opcode},
    work::{
        Access, AddressVector, CqId, Event as Told, GidType, PdId, RecvWr, Remote, SendOp, SendWr, Sge,
        WcOpcode, WcStatus,
    },
};
use std::{
    cell::RefCell,
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

/// ECN-capable transport (RFC 3168, 5: ECT(0)).
const ECT: u8 = 2;
/// The timeout of queue pairs if the adapter handles losses.
const PATIENT: Duration = Duration::from_secs(1000);

/// A host.
#[derive(Debug)]
pub(super) struct Host {
    pub endpoint: Endpoint,
    /// Its wire to the network.
    pub wire: usize,
    /// Packets that selective repeat sends again.
    pub again: Queue,
    /// The next deadline of its endpoint.
    pub wake: Option<u64>,
    /// Flows by the number of their queue pair on this host.
    pub flow_of: HashMap<u32, usize>,
}

/// The state of a flow that has started.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Queue pairs at sender and receiver.
    pub qpns: Option<[Qpn; 2]>,
    /// When the last byte was delivered.
    pub delivered: Option<u64>,
    pub failed: bool,
    pub selective: Option<Box<(Sender, Receiver)>>,
}

/// The memory of all hosts. It stores no data, only the number of bytes that were placed for each flow. A flow's number is its
/// key.
#[derive(Debug, Default)]
pub(super) struct Placed(pub RefCell<Vec<u64>>);

impl Memory for Placed {
    fn check(&self, _: Asker, _: Key, _: u64, _: u64, _: Access) -> Result<(), AccessError> {
        Ok(())
    }

    fn read(&self, _: Asker, _: Key, _: u64, _: Access, _: &mut [u8]) -> Result<(), AccessError> {
        Ok(())
    }

    fn write(&self, _: Asker, key: Key, _: u64, _: Access, data: &[u8]) -> Result<(), AccessError> {
        self.0.borrow_mut()[key.0 as usize] += data.len() as u64;
        Ok(())
    }
}

/// A host's address.
#[must_use]
pub fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 + host as u32 + 1)
}

/// The host of an address.
fn host_of(addr: IpAddr) -> usize {
    match addr {
        IpAddr::V4(addr) => (addr.to_bits() - 0x0a00_0001) as usize,
        IpAddr::V6(_) => 0,
    }
}

/// An endpoint for a host.
pub(super) fn endpoint(host: usize, seed: u64) -> Endpoint {
    Endpoint::new(EndpointConfig {
        max_segments: 1,
        max_batch: super::ARENA,
        memory: true,
        answers_apart: true,
        parts: false,
        send_window: (u32::MAX, u32::MAX),
        seed: seed ^ (host as u64) << 20,
        ..EndpointConfig::default()
    })
}

fn control(adapter: &Adapter, line: u64) -> Box<dyn CongestionControl> {
    match adapter.control {
        Control::None => Box::new(LineRate),
        Control::Dcqcn => {
            let (keys, usual) = (adapter.dcqcn, DcqcnParams::paper(line));
            Box::new(Dcqcn::new(DcqcnParams {
                line,
                least: keys.least.map_or(usual.least, |rate| rate.0),
                gain: keys.gain.unwrap_or(usual.gain),
                alpha_timer: keys.alpha_timer.map_or(usual.alpha_timer, |time| time.duration()),
                rate_timer: keys.rate_timer.map_or(usual.rate_timer, |time| time.duration()),
                byte_counter: keys.byte_counter.map_or(usual.byte_counter, |size| size.0),
                recovery: keys.recovery.unwrap_or(usual.recovery),
                additive: keys.additive.map_or(usual.additive, |rate| rate.0),
                hyper: keys.hyper.map_or(usual.hyper, |rate| rate.0),
                cut_interval: keys.cut_interval.map_or(usual.cut_interval, |time| time.duration()),
                clamp_target: keys.clamp_target.unwrap_or(usual.clamp_target),
                timer_alone: keys.timer_alone.unwrap_or(usual.timer_alone),
            }))
        }
        Control::Timely => {
            let (keys, usual) = (adapter.timely, TimelyParams::paper(line));
            Box::new(Timely::new(TimelyParams {
                line,
                least: keys.least.map_or(usual.least, |rate| rate.0),
                additive: keys.additive.map_or(usual.additive, |rate| rate.0),
                low: keys.low.map_or(usual.low, |time| time.duration()),
                high: keys.high.map_or(usual.high, |time| time.duration()),
                smallest: keys.smallest.map_or(usual.smallest, |time| time.duration()),
                ..usual
            }))
        }
    }
}

impl World {
    fn instant(&self) -> Instant {
        Instant::from_nanos(self.now / NANO)
    }

    /// Starts a flow: creates a queue pair at each end, and posts one WRITE with immediate.
    pub(super) fn start_flow(&mut self, index: usize) {
        let flow = self.flows[index];
        let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let config = QpConfig {
            qp_type: QpType::Rc,
            pd: PdId(1),
            send_cq: CqId(1),
            recv_cq: CqId(2),
            srq: None,
            xrcd: None,
            caps,
            signal_all: false,
        };
        let ends = [flow.src, flow.dst];
        let made = ends.map(|host| self.hosts[host].endpoint.create_qp(config));
        let [Ok(from), Ok(to)] = made else {
            self.progress[index].failed = true;
            return;
        };
        let (qpns, psns) = ([from, to], [0, 1].map(|_| Psn::new(self.rng.bits() as u32 & 0x00ff_ffff)));
        for side in 0..2 {
            self.bring_up(
                ends[side],
                ends[1 - side],
                qpns[side],
                qpns[1 - side],
                [psns[side], psns[1 - side]],
            );
            self.hosts[ends[side]].flow_of.insert(qpns[side].value(), index);
        }
        let line = self.topology.wires[self.hosts[flow.src].wire].rate;
        let selective = self.adapter.recovery == Recovery::Selective;
        let shortest = if selective { PATIENT } else { self.adapter.timeout.duration() };
        let pacing = Pacing {
            control: control(&self.adapter, line),
            window: self.adapter.window.map_or(u32::MAX, |size| u32::try_from(size.0).unwrap_or(u32::MAX)),
            ask_after: u32::try_from(self.adapter.ask_after.0).unwrap_or(u32::MAX),
            catch_up: Duration::ZERO,
            timing: Timing { shortest, probes: false },
        };
        self.hosts[flow.src].endpoint.pace(from, pacing);
        let progress = &mut self.progress[index];
        progress.qpns = Some(qpns);
        if selective {
            progress.selective = Some(Box::new((Sender::default(), Receiver::new(psns[0].value()))));
        }
        let now = self.instant();
        let key = Key(index as u32);
        let receive = self.hosts[flow.dst].endpoint.post_recv(to, &RecvWr { wr_id: index as u64, sges: &[] });
        let sges = [Sge { addr: 0, len: flow.size as u32, lkey: key }];
        let op = SendOp::WriteImm(Remote { addr: 0, rkey: key }, [0; 4]);
        let sent = self.hosts[flow.src].endpoint.post_send(now, from, &SendWr::new(index as u64, op, &sges));
        if receive.is_err() || sent.is_err() {
            self.progress[index].failed = true;
        }
        self.active += 1;
        self.send(self.hosts[flow.src].wire);
        self.set_alarm(flow.src);
    }

    fn bring_up(&mut self, host: usize, peer: usize, qpn: Qpn, dest: Qpn, psns: [Psn; 2]) {
        let av = AddressVector {
            src: address(host).into(),
            dst: address(peer).into(),
            ifindex: 0,
            traffic_class: ECT,
            hop_limit: 64,
            flow_label: 0,
            service_level: 0,
            sgid_index: 0,
            gid_type: GidType::RoceV2,
        };
        let steps = [
            QpChange {
                state: Some(QpState::Init),
                pkey_index: Some(0),
                port: Some(1),
                access: Some(Access::REMOTE_WRITE),
                ..QpChange::default()
            },
            QpChange {
                state: Some(QpState::Rtr),
                av: Some(av),
                path_mtu: Mtu::from_bytes(self.adapter.mtu),
                dest_qpn: Some(dest),
                rq_psn: Some(psns[1]),
                max_dest_rd_atomic: Some(1),
                min_rnr_timer: Some(1),
                ..QpChange::default()
            },
            QpChange {
                state: Some(QpState::Rts),
                sq_psn: Some(psns[0]),
                timeout: Some(1),
                retry_count: Some(7),
                rnr_retry: Some(7),
                max_rd_atomic: Some(1),
                ..QpChange::default()
            },
        ];
        let now = self.instant();
        for step in steps {
            let changed = self.hosts[host].endpoint.modify_qp(now, qpn, &step, &self.memory);
            debug_assert_eq!(changed, Ok(()));
        }
    }

    /// The next data packet that a host sends.
    pub(super) fn next_of_host(&mut self, host: usize) -> Option<Ticket> {
        if let Some(packet) = self.hosts[host].again.pop() {
            return Some(packet);
        }
        let now = self.instant();
        let batch =
            self.hosts[host].endpoint.poll_transmit(now, &self.memory, &mut self.arena, Acks::Flush)?;
        let packet = self.packet(host, &batch);
        self.counts.packets += 1;
        if self.adapter.recovery == Recovery::Selective && !packet.control {
            self.keep_copy(&packet);
        }
        Some(self.pool.insert(packet))
    }

    /// Whether a host may have a data packet to send.
    pub(super) fn has_more(&self, host: usize) -> bool {
        !self.hosts[host].again.is_empty() || self.hosts[host].endpoint.may_transmit()
    }

    /// The packet in the arena.
    fn packet(&self, host: usize, batch: &Transmit) -> Packet {
        let opcode = Opcode(self.arena[0]);
        let header_len = opcode.info().map_or(HEADERS, |info| info.header_len).min(HEADERS).min(batch.len);
        let mut headers = [0; HEADERS];
        headers[..header_len].copy_from_slice(&self.arena[..header_len]);
        let mut packet = Packet {
            headers,
            len: batch.len as u16,
            header_len: header_len as u8,
            tos: batch.tos,
            src: host as u16,
            dst: host_of(batch.dst) as u16,
            control: matches!(opcode, Opcode::RC_ACKNOWLEDGE | Opcode::CNP),
            ..Packet::EMPTY
        };
        packet.hash = hash(&packet);
        packet
    }

    /// A packet has arrived at a host.
    pub(super) fn receive(&mut self, host: usize, at: u32) {
        let packet = *self.pool.get(at);
        self.pool.remove(at);
        self.counts.deliveries += 1;
        if self.adapter.recovery == Recovery::Selective {
            self.receive_selective(host, &packet);
        } else {
            self.hand_over(host, &packet);
        }
        self.send(self.hosts[host].wire);
        self.set_alarm(host);
    }

    /// Gives a packet to the endpoint, and sends the responses.
    pub(super) fn hand_over(&mut self, host: usize, packet: &Packet) {
        let header_len = usize::from(packet.header_len);
        self.scratch[..header_len].copy_from_slice(&packet.headers[..header_len]);
        let meta = RunMeta {
            src: address(packet.src.into()).into(),
            dst: address(host).into(),
            src_port: 0,
            ifindex: 0,
            tos: packet.tos,
            hop_limit: 64,
            seen: HeaderSeen::Bare,
        };
        let now = self.instant();
        let bytes = &self.scratch[..usize::from(packet.len)];
        let qpn = Qpn::new(packet.dest_qpn());
        let endpoint = &mut self.hosts[host].endpoint;
        endpoint.handle_run(now, &Run { meta, bytes, segment: 0 }, &self.memory);
        while let Some(batch) = self.hosts[host].endpoint.poll_answer(now, qpn, &self.memory, &mut self.arena)
        {
            let answer = self.packet(host, &batch);
            self.push_control(host, answer);
        }
        self.take_completions(host);
    }

    /// Sends a response of a host, before data.
    pub(super) fn push_control(&mut self, host: usize, packet: Packet) {
        let ticket = self.pool.insert(packet);
        self.ports[self.hosts[host].wire].control.push(ticket);
    }

    fn take_completions(&mut self, host: usize) {
        while let Some(told) = self.hosts[host].endpoint.poll_event() {
            let Told::Completion { wc, .. } = told else { continue };
            let index = wc.wr_id as usize;
            let progress = &mut self.progress[index];
            if wc.status != WcStatus::Success {
                progress.failed = true;
                self.end_flow(index);
            } else if wc.opcode == WcOpcode::RecvRdmaWithImm {
                progress.delivered = Some(self.now);
                self.delivered += 1;
            } else {
                self.end_flow(index);
            }
        }
    }

    /// Bits per second at which a flow may send now; 0 if it is not under way.
    pub(super) fn rate_of(&mut self, index: usize) -> u64 {
        let (src, now) = (self.flows[index].src, self.instant());
        let Some([from, _]) = self.progress[index].qpns else { return 0 };
        let line = self.topology.wires[self.hosts[src].wire].rate;
        self.hosts[src].endpoint.pace_of(now, from).unwrap_or(0).min(line)
    }

    /// Destroys the queue pairs of a flow.
    fn end_flow(&mut self, index: usize) {
        let flow = self.flows[index];
        let Some(qpns) = self.progress[index].qpns.take() else { return };
        for (host, qpn) in [flow.src, flow.dst].into_iter().zip(qpns) {
            let host = &mut self.hosts[host];
            if let Some(stats) = host.endpoint.qp_stats(qpn) {
                self.counts.retransmitted += stats.retransmitted;
                self.counts.timeouts += stats.timeouts;
                self.counts.naks += stats.psn_naks_received;
                self.counts.notifications += stats.cnps_received;
            }
            host.flow_of.remove(&qpn.value());
            let destroyed = host.endpoint.destroy_qp(qpn);
            debug_assert_eq!(destroyed, Ok(()));
        }
        self.progress[index].selective = None;
        self.active -= 1;
    }

    /// A deadline of a host has passed.
    pub(super) fn wake(&mut self, host: usize) {
        if self.hosts[host].wake != Some(self.now) {
            return;
        }
        let now = self.instant();
        self.hosts[host].wake = None;
        self.hosts[host].endpoint.handle_timeout(now, &self.memory);
        self.take_completions(host);
        self.send(self.hosts[host].wire);
        self.set_alarm(host);
    }

    /// Adds an event for the next deadline of the host's endpoint.
    pub(super) fn set_alarm(&mut self, host: usize) {
        let Some(deadline) = self.hosts[host].endpoint.poll_timeout() else { return };
        let at = deadline.nanos().saturating_mul(NANO).max(self.now + NANO);
        if self.hosts[host].wake.is_none_or(|known| at < known) && at < 100_000 * SECOND {
            self.hosts[host].wake = Some(at);
            self.schedule(at, Event::Wake(host));
        }
    }
}

/// The hash by which switches choose paths. It is the same for all packets of a queue pair in one direction.
pub(super) fn hash(packet: &Packet) -> u32 {
    let key = u64::from(packet.src) << 40 ^ u64::from(packet.dst) << 24 ^ u64::from(packet.dest_qpn());
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}
