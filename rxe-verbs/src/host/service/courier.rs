//! Datagrams of queue pair 1 that the service sends for others: refusals, and the ends of connections of processes that died.

use super::{Port, Service};
use crate::{
    engine::now,
    host::{
        attendant::{Attendant, Letter, MAD_LEN, attendant},
        records::Connection,
    },
    net::{Link, Transmit, UdpLink},
};
use rxe_core::{
    endpoint::RunMeta,
    num::{Pkey, Psn, Qkey, Qpn},
    wire::{Bth, Deth, Encapsulation, Ext, Opcode, Packet, emit, icrc, wire_len},
};
use std::time::{Duration, Instant};

/// Most refusals a second.
const REFUSALS: u32 = 1000;
/// Most datagrams at a time. Then it is the clients' turn.
const BURST: usize = 128;
/// The usual hop limit.
const HOP_LIMIT: u8 = 64;

/// How many refusals, or other answers to unknown hosts, have left in this second.
#[derive(Debug)]
pub(super) struct Refusals {
    since: Instant,
    count: u32,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { since: Instant::now(), count: 0 }
    }
}

impl Refusals {
    pub(super) fn take(&mut self) -> bool {
        if self.since.elapsed() >= Duration::from_secs(1) {
            *self = Self::default();
        }
        self.count += 1;
        self.count <= REFUSALS
    }
}

/// The state of what is sent for others.
pub(super) struct Courier {
    /// Answers for processes that do not exist. `None` until an attendant is registered.
    attendant: Option<Box<dyn Attendant>>,
    refusals: Refusals,
    /// The next PSN of the datagrams that it sends.
    psn: Psn,
}

impl Courier {
    pub(super) fn new() -> Self {
        Self { attendant: attendant(), refusals: Refusals::default(), psn: Psn::default() }
    }

    /// Called when a process has died. These are the connections in its records.
    pub(super) fn mourn(&mut self, connections: &[Connection]) {
        if let Some(attendant) = &mut self.attendant {
            connections.iter().for_each(|connection| attendant.died(now(), connection));
        }
    }
}

impl Service {
    /// Refuses a request for which no process listens, and confirms the end of a connection that no process has, so that the sender
    /// need not wait.
    pub(super) fn refuse(&mut self, meta: &RunMeta, packet: &Packet<'_>) {
        self.counters.unheard += 1;
        let Ok(mad) = <&[u8; MAD_LEN]>::try_from(packet.payload) else { return };
        if self.courier.attendant.is_none() {
            self.courier.attendant = attendant();
        }
        let Some(answer) = self.courier.attendant.as_mut().and_then(|attendant| attendant.unheard(mad))
        else {
            return;
        };
        if !self.courier.refusals.take() {
            return;
        }
        let letter = Letter {
            local: meta.dst,
            remote: meta.src,
            ifindex: meta.ifindex,
            pkey: packet.bth.pkey.0,
            tos: 0,
            mad: answer,
        };
        self.dispatch_letter(&letter);
    }

    /// Sends the datagrams that are due for processes that died.
    pub(super) fn send_last_words(&mut self) {
        let time = now();
        let Some(attendant) = &mut self.courier.attendant else { return };
        if attendant.poll_timeout().is_none_or(|due| due > time) {
            return;
        }
        let mut letters = Vec::new();
        attendant.letters(time, BURST, &mut letters);
        for letter in &letters {
            self.dispatch_letter(letter);
        }
        self.counters.last_words += letters.len() as u64;
    }

    /// How long until a datagram is due.
    pub(super) fn until_last_words(&self) -> Option<Duration> {
        let due = self.courier.attendant.as_ref()?.poll_timeout()?;
        // If many are due at once, a short pause gives the clients their turn.
        Some(due.since(now()).max(Duration::from_millis(1)))
    }

    pub(super) fn dispatch_letter(&mut self, letter: &Letter) {
        let Some(Port { link, .. }) = &mut self.port else { return };
        self.courier.psn = self.courier.psn.next();
        // If this fails the datagram is lost, like a packet on the way. Either side repeats its message.
        let _ = send(link, letter, self.courier.psn);
    }
}

/// Sends a datagram from our queue pair 1 to that of the peer.
fn send(link: &mut UdpLink, letter: &Letter, psn: Psn) -> Option<()> {
    let bth = Bth { pkey: Pkey(letter.pkey), ..Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, psn) };
    let ext = Ext { deth: Deth { qkey: Qkey::GSI, src_qp: Qpn::GSI }, ..Ext::default() };
    let mut packet = vec![0; wire_len(bth.opcode, MAD_LEN)];
    emit(&bth, &ext, MAD_LEN, &mut packet)?.copy_from_slice(&letter.mad);
    let source_port = *link.capabilities().source_ports.first()?;
    let route = icrc::Route::v2(letter.local, letter.remote, source_port);
    icrc::seal(&route, 0, &mut packet);
    let batch = Transmit {
        src: letter.local,
        dst: letter.remote,
        ifindex: letter.ifindex,
        source_port,
        tos: letter.tos,
        hop_limit: HOP_LIMIT,
        encapsulation: Encapsulation::V2,
        segment_size: packet.len(),
    };
    link.send(&batch, &packet).ok()
}
