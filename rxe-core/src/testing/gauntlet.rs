//! Attacks a queue pair: it must survive whatever its peer sends. The input is a script of bytes, which says what packets the peer sends
//! and what the attacked application does meanwhile. Addresses, ICRC and datagram lengths are always right, so that packets reach the
//! queue pair and are not dropped before. Fuzz targets provide the scripts, or tests random ones.
//!
//! After each step these are checked:
//! - Bytes that the peer may not write never change.
//! - Each receive that was posted completes at most once.
//! - Packets that leave decode, are addressed to the peer, and have a right ICRC. (It is computed here from the definition, with the IPv4
//!   IDs that segmentation offload gives.)
//! - The queue pair is in RTS or in the error state.

mod seal;

use super::{
    carrier::Wire,
    connect::{ConnectOptions, PD, RECV_CQ, SEND_CQ},
    link::Datagram,
    pair::{Pair, PairConfig},
};
use crate::{
    num::{Key, Psn, Qpn},
    qp::{Mtu, QpChange, QpState, QpType},
    wire::{
        self, Aeth, AtomicEth, Bth, Class, Encapsulation, Ext, Feth, ICRC_LEN, Opcode, Packet, Position,
        Reth, Syndrome,
    },
    work::{Access, Completion, Payload, PdId, RecvWr, Remote, SendOp, SendWr, Sge, WcOpcode, WcStatus},
};
use alloc::{collections::BTreeSet, vec, vec::Vec};
use core::time::Duration;
use seal::icrc_of;

/// Size of each region, bytes.
const REGION: u64 = 4096;
/// Size of each receive buffer in bytes, and number of buffers.
const RECV: u64 = 128;
const RECVS: u64 = 16;
/// Largest number of steps of a script.
const MAX_STEPS: usize = 200;

/// What happened while a script ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Packets sent to the queue pair.
    pub thrown: u32,
    /// Packets that the queue pair sent.
    pub sent: u32,
    /// Receives that completed with success.
    pub received: u32,
    /// Its requests that completed with success.
    pub completed: u32,
    /// How often it went to the error state.
    pub failures: u32,
    /// Whether a byte of the region changed that is open to the peer.
    pub wrote: bool,
}

/// The input, which is read from its front. After its end zeros are read.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let len = self.0.len().min(N);
        out[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        out
    }

    fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }
}

/// The attacked host, and what is known of it.
struct Gauntlet {
    pair: Pair,
    options: ConnectOptions,
    qpn: Qpn,
    peer: Qpn,
    /// What a peer may do to the open region: both the queue pair and the region allow it.
    rights: Access,
    /// Address and key of the region open to the peer, of the receive buffers, and of the buffer for the queue pair's own requests.
    open: (u64, Key),
    receives: (u64, Key),
    landing: (u64, Key),
    closed: Vec<(u64, Key)>,
    recvs_posted: BTreeSet<u64>,
    sends_posted: BTreeSet<u64>,
    next_id: u64,
    thrown: Vec<Vec<u8>>,
    /// State at the last check.
    last: QpState,
    outcome: Outcome,
}

/// Runs one script. `wire` carries the packets.
///
/// # Panics
/// If the queue pair breaks a rule.
#[must_use]
pub fn run(input: &[u8], wire: impl Into<Wire>) -> Outcome {
    let mut script = Script(input);
    let mut gauntlet = Gauntlet::new(&mut script, wire.into());
    let before = gauntlet.pair.sides[1].heap.snapshot();
    for _ in 0..MAX_STEPS {
        if script.0.is_empty() {
            break;
        }
        gauntlet.step(&mut script);
        gauntlet.judge();
    }
    // Whatever state the script left it in, it comes to rest.
    for _ in 0..40 {
        gauntlet.pass(Duration::from_millis(50));
        gauntlet.judge();
    }
    gauntlet.compare(&before);
    gauntlet.finish()
}

impl Gauntlet {
    fn new(script: &mut Script<'_>, wire: Wire) -> Self {
        let options = script.byte();
        let rights = Access::from_bits_truncate(script.word().into())
            & (Access::REMOTE_WRITE
                | Access::REMOTE_READ
                | Access::REMOTE_ATOMIC
                | Access::FLUSH_GLOBAL
                | Access::FLUSH_PERSISTENT);
        // In half of the scripts everything is allowed. Otherwise most packets would be refused.
        let all = super::connect::REMOTE_ALL;
        let (own, region) = match options & 3 {
            0 => (rights, all),
            1 => (all, rights),
            _ => (all, all),
        };
        let config = PairConfig {
            seed: 7,
            name: "gauntlet",
            ipv6: options & 4 != 0,
            encapsulation: wire.encapsulation,
            carrier: wire.carrier,
            heap: 1 << 16,
            trace: 0,
            ..PairConfig::default()
        };
        let connect = ConnectOptions {
            qp_type: if options & 0x38 == 0x38 { QpType::Uc } else { QpType::Rc },
            mtu: if options & 0x40 == 0 { Mtu::M256 } else { Mtu::M1024 },
            access: own,
            timeout: 10,
            retry_count: 2,
            rnr_retry: 1,
            max_dest_rd_atomic: [4; 2],
            ..ConnectOptions::default()
        };
        let mut pair = Pair::new(config);
        let qpns = pair.connect(&connect).qpns;
        let heap = &pair.sides[1].heap;
        let local = Access::LOCAL_WRITE;
        let open = heap.alloc_registered(PD, REGION, local | region);
        let receives = heap.alloc_registered(PD, RECV * RECVS, local);
        let landing = heap.alloc_registered(PD, REGION, local);
        let closed = [
            heap.alloc_registered(PD, REGION, Access::empty()),
            heap.alloc_registered(PD, REGION, Access::REMOTE_READ),
            heap.alloc_registered(PD, REGION, local),
            heap.alloc_registered(PdId(9), REGION, local | all),
        ];
        for (at, seed) in closed.iter().map(|region| region.0).zip(1..) {
            let bytes: Vec<u8> = (0..REGION).map(|i| (i * 7 + seed) as u8).collect();
            heap.set(at, &bytes);
        }
        Self {
            options: connect,
            qpn: qpns[1],
            peer: qpns[0],
            rights: own & region,
            open,
            receives,
            landing,
            closed: closed.to_vec(),
            recvs_posted: BTreeSet::new(),
            sends_posted: BTreeSet::new(),
            next_id: 0,
            thrown: Vec::new(),
            last: QpState::Rts,
            outcome: Outcome::default(),
            pair,
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        if self.state() == QpState::Error {
            self.revive();
        }
        match script.byte() % 16 {
            0 | 1 => self.post_recv(script),
            2 | 3 => self.post_send(script),
            4 => self.pass(Duration::from_micros(u64::from(script.word()))),
            5 => self.pass(Duration::from_millis(u64::from(script.byte()))),
            6 => {
                let at = self.open.0 + u64::from(script.word()) % REGION;
                self.pair.sides[1].heap.take_away(at, 64);
            }
            7 => self.pair.sides[1].heap.give_back(),
            8 if !self.thrown.is_empty() => {
                let again = self.thrown[usize::from(script.byte()) % self.thrown.len()].clone();
                self.throw(again);
            }
            9 => {
                // Arbitrary bytes, with the right queue pair number.
                let len = usize::from(script.byte());
                let mut bytes = script.0[..len.min(script.0.len())].to_vec();
                script.0 = &script.0[bytes.len()..];
                if let Some(place) = bytes.get_mut(4..8) {
                    place.copy_from_slice(&self.qpn.value().to_be_bytes());
                }
                bytes.extend([0; ICRC_LEN]);
                self.throw(bytes);
            }
            10 | 11 => {
                let packet = self.packet(script);
                self.throw(packet);
            }
            _ => {
                let packet = self.honest_packet(script);
                self.throw(packet);
            }
        }
    }

    /// Brings the queue pair from the error state to RTS again.
    fn revive(&mut self) {
        let reset = QpChange { state: Some(QpState::Reset), ..QpChange::default() };
        self.pair.modify(1, self.qpn, &reset).expect("always possible");
        let (peer, options) = (self.peer, self.options);
        self.pair.bring_up(1, self.qpn, peer, &options, QpState::Rts);
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn post_recv(&mut self, script: &mut Script<'_>) {
        let wr_id = self.id();
        let at = self.receives.0 + RECV * (u64::from(script.byte()) % RECVS);
        let sges = [Sge { addr: at, len: script.pick(&[128, 1, 0, 64]), lkey: self.receives.1 }];
        // Recorded first, because it may complete at once.
        self.recvs_posted.insert(wr_id);
        if self.pair.post_recv(1, self.qpn, &RecvWr { wr_id, sges: &sges }).is_err() {
            self.recvs_posted.remove(&wr_id);
        }
    }

    fn post_send(&mut self, script: &mut Script<'_>) {
        let wr_id = self.id();
        let remote = Remote { addr: 0x1000, rkey: Key(0x1234) };
        let op = match script.byte() % 6 {
            0 => SendOp::Read(remote),
            1 => SendOp::Write(remote),
            2 => SendOp::FetchAdd { remote, add: 1 },
            3 => SendOp::Flush { remote, len: 8, placement: 1, selectivity: 0 },
            4 => SendOp::AtomicWrite { remote, value: [1; 8] },
            _ => SendOp::Send,
        };
        let len = match op {
            SendOp::FetchAdd { .. } => 8,
            _ => script.pick(&[8, 0, 1, 256, 1025, 3000]),
        };
        let sges = [Sge { addr: self.landing.0, len, lkey: self.landing.1 }];
        let bare = matches!(op, SendOp::Flush { .. } | SendOp::AtomicWrite { .. });
        let payload = Payload::Sges(if bare { &[] } else { &sges });
        self.sends_posted.insert(wr_id);
        let wr = SendWr { payload, ..SendWr::new(wr_id, op, &[]) };
        if self.pair.post_send(1, self.qpn, &wr).is_err() {
            self.sends_posted.remove(&wr_id);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.pair.now += time;
        let side = &mut self.pair.sides[1];
        side.endpoint.handle_timeout(self.pair.now, &side.heap);
        self.pair.drain(1);
    }

    /// An address and a key. Mostly the peer may access them.
    fn place(&self, script: &mut Script<'_>) -> (u64, Key) {
        let choice = script.byte();
        let (mut addr, mut key) = self.open;
        if choice & 0x0c == 0x0c {
            (addr, key) = self.closed[usize::from(choice & 3)];
        }
        addr = match choice >> 5 {
            0 => addr.wrapping_add_signed(i64::from(script.word() as i16)),
            1 => addr + REGION - u64::from(script.byte()),
            2 => u64::MAX - u64::from(script.byte()),
            3 => self.closed[usize::from(choice & 3)].0,
            _ => addr + 8 * u64::from(script.byte()),
        };
        if choice & 0x10 != 0 && choice & 3 == 3 {
            key = Key(key.0 ^ 1 << (script.byte() % 32));
        }
        (addr, key)
    }

    /// A packet, mostly of the queue pair's service, with a PSN near the expected one.
    fn packet(&self, script: &mut Script<'_>) -> Vec<u8> {
        let service = if self.options.qp_type == QpType::Uc { 0x20 } else { 0 };
        let kind = script.byte();
        let opcode = if kind >= 0xf8 { Opcode(script.byte()) } else { Opcode(service | kind & 0x1f) };
        let Some(info) = opcode.info() else {
            return vec![opcode.0; 24];
        };
        let (sent, expected) = self.pair.sides[1].endpoint.psns(self.qpn).unwrap_or_default();
        let base = if info.is_request() { expected } else { sent.minus(1) };
        let near = script.byte();
        let psn = match near {
            0..0xc0 => base,
            0xc0..0xe0 => base.plus(u32::from(near & 0x1f)),
            0xe0..0xfe => base.minus(u32::from(near & 0x1f)),
            _ => Psn::new(u32::from_le_bytes(script.bytes())),
        };
        let flags = script.byte();
        let mut bth = Bth::new(opcode, self.qpn, psn);
        bth.ack_req = flags & 1 == 0;
        bth.solicited = flags & 2 != 0;
        bth.migreq = flags & 4 != 0;
        let (addr, rkey) = self.place(script);
        let mtu = if flags & 8 == 0 { 256 } else { 1024 };
        let len = script.pick(&[8, 0, 1, 255, 256, 257, 1024, 1025, 4096, 1 << 31, u32::MAX]);
        let payload = match script.byte() {
            _ if !info.payload => 0,
            0..0x80 => mtu,
            exact @ 0x80..0xc0 => usize::from(exact & 0x3f),
            _ => script.pick(&[8, 0, 1, 255, 257, 1025, 4096]),
        };
        let syndrome = if flags & 16 == 0 { 0x1f } else { script.byte() };
        let ext = Ext {
            feth: Feth { placement: script.byte() & 15, selectivity: flags >> 6 },
            reth: Reth { addr, rkey, len: if flags & 32 == 0 { payload as u32 } else { len } },
            atomic: AtomicEth { addr, rkey, swap_or_add: u64::from(flags), compare: 0 },
            aeth: Aeth { syndrome: Syndrome::from_bits(syndrome), ..Aeth::default() },
            original: 5,
            invalidate: rkey,
            ..Ext::default()
        };
        let mut bytes = vec![0; wire::wire_len(opcode, payload)];
        if let Some(place) = wire::emit(&bth, &ext, payload, &mut bytes) {
            place.fill(0xa0 | flags & 15);
        }
        bytes
    }

    /// A packet that a correct peer might send next. Without such packets scripts would not get far.
    fn honest_packet(&self, script: &mut Script<'_>) -> Vec<u8> {
        let (sent, expected) = self.pair.sides[1].endpoint.psns(self.qpn).unwrap_or_default();
        let uc = self.options.qp_type == QpType::Uc;
        let code = match uc {
            true => script.pick(&[0x24, 0x25, 0x2a, 0x2b, 0x20, 0x22, 0x26, 0x28]),
            false => script.pick(&[
                0x04, 0x0a, 0x0c, 0x13, 0x14, 0x05, 0x0b, 0x00, 0x01, 0x02, 0x06, 0x07, 0x08, 0x11, 0x10,
                0x12, 0x1c, 0x1d, 0x04, 0x0a,
            ]),
        };
        let opcode = Opcode(code);
        let Some(info) = opcode.info() else { return vec![0; 24] };
        let psn = if info.is_request() { expected } else { sent.minus(1) };
        let mtu = self.options.mtu.bytes() as usize;
        let payload = match (info.payload, info.class, info.position) {
            (false, ..) => 0,
            (_, Class::AtomicWrite, _) => 8,
            (.., Position::First | Position::Middle) => mtu,
            _ => usize::from(script.byte()) % 128 + 1,
        };
        let addr = self.open.0 + 8 * u64::from(script.byte() & 0x7f);
        let rkey = self.open.1;
        let len = if info.position == Position::First { payload as u32 + 64 } else { payload as u32 };
        let ext = Ext {
            feth: Feth { placement: 1, selectivity: 0 },
            reth: Reth { addr, rkey, len: if info.class == Class::ReadRequest { 300 } else { len } },
            atomic: AtomicEth { addr, rkey, swap_or_add: 3, compare: 0 },
            aeth: Aeth { syndrome: Syndrome::ACK_NO_CREDITS, ..Aeth::default() },
            ..Ext::default()
        };
        let bth = Bth { ack_req: true, ..Bth::new(opcode, self.qpn, psn) };
        let mut bytes = vec![0; wire::wire_len(opcode, payload)];
        if let Some(place) = wire::emit(&bth, &ext, payload, &mut bytes) {
            place.fill(0xb0 | code & 15);
        }
        bytes
    }

    fn throw(&mut self, mut bytes: Vec<u8>) {
        if self.thrown.len() < 64 {
            self.thrown.push(bytes.clone());
        }
        let [src, dst] = [self.pair.sides[0].addr, self.pair.sides[1].addr];
        let encapsulation = self.pair.config().encapsulation;
        if bytes.len() > ICRC_LEN {
            let end = bytes.len() - ICRC_LEN;
            let icrc = icrc_of(encapsulation, (src, dst, 0xc000), 0, &bytes[..end]);
            bytes[end..].copy_from_slice(&icrc.to_le_bytes());
        }
        self.outcome.thrown += 1;
        let datagram =
            Datagram { src, dst, src_port: 0xc000, tos: 0, hop_limit: 64, ident: 0, encapsulation, bytes };
        self.pair.inject(1, &datagram);
    }

    /// Checks everything except memory. Called after every step.
    fn judge(&mut self) {
        let late = self.pair.now + Duration::from_secs(3600);
        while let Some(datagram) = self.pair.sides[1].link.receive(late) {
            self.outcome.sent += 1;
            let packet = Packet::decode(&datagram.bytes).expect("what is sent decodes");
            assert_eq!((datagram.src, datagram.dst), (self.pair.sides[1].addr, self.pair.sides[0].addr));
            let (body, icrc) = datagram.bytes.split_at(datagram.bytes.len() - ICRC_LEN);
            let route = (datagram.src, datagram.dst, datagram.src_port);
            if datagram.encapsulation == Encapsulation::Memory {
                continue;
            }
            let right = icrc_of(datagram.encapsulation, route, datagram.ident, body);
            // A FLUSH that is sent again may have kernel rxe's ICRC, which covers the packet twice.
            let rxe = (body[0] == 0x1c).then(|| {
                let mut crc = crc32fast::Hasher::new_with_initial(right);
                crc.update(body);
                crc.finalize().to_le_bytes()
            });
            assert!(icrc == right.to_le_bytes() || rxe.is_some_and(|rxe| icrc == rxe), "sent {packet}");
        }
        for wc in self.pair.take_completions(1, RECV_CQ) {
            assert!(self.recvs_posted.remove(&wc.wr_id), "nobody posted this receive: {wc:?}");
            self.check_status(&wc);
            self.outcome.received += u32::from(wc.status == WcStatus::Success);
            // For a WRITE with immediate this is the number of bytes written, which are not in the receive buffer.
            let most = if wc.opcode == WcOpcode::Recv { RECV } else { 1 << 31 };
            assert!(u64::from(wc.byte_len) <= most, "{wc:?}");
        }
        for wc in self.pair.take_completions(1, SEND_CQ) {
            // Requests that are not signaled have a completion only if they fail.
            assert!(self.sends_posted.remove(&wc.wr_id), "nobody posted this request: {wc:?}");
            self.check_status(&wc);
            self.outcome.completed += u32::from(wc.status == WcStatus::Success);
        }
        let state = self.state();
        self.outcome.failures += u32::from(state == QpState::Error && self.last == QpState::Rts);
        self.last = state;
        assert!(matches!(state, QpState::Rts | QpState::Error), "{state:?}");
        if state == QpState::Error {
            assert!(self.recvs_posted.is_empty(), "receives left behind: {:?}", self.recvs_posted);
            assert!(self.sends_posted.is_empty(), "requests left behind: {:?}", self.sends_posted);
        }
    }

    fn check_status(&self, wc: &Completion) {
        let fine = wc.status == WcStatus::Success || self.state() == QpState::Error;
        assert!(fine, "a failure leaves the queue pair in the error state: {wc:?}");
    }

    fn state(&self) -> QpState {
        self.pair.sides[1].endpoint.query_qp(self.qpn).map_or(QpState::Reset, |(attrs, _)| attrs.state)
    }

    /// Checks that bytes which the peer may not write have not changed. `before`: all bytes at the start.
    fn compare(&mut self, before: &[u8]) {
        let heap = &self.pair.sides[1].heap;
        let after = heap.snapshot();
        let at = |addr: u64| (addr - heap.base()) as usize;
        let open = at(self.open.0)..at(self.open.0 + REGION);
        self.outcome.wrote = before[open.clone()] != after[open.clone()];
        let writable = self.rights.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let mut wanted = before.to_vec();
        let mut allow = |start: usize, len: u64| {
            let range = start..start + len as usize;
            wanted[range.clone()].copy_from_slice(&after[range]);
        };
        if writable {
            allow(open.start, REGION);
        }
        allow(at(self.receives.0), RECV * RECVS);
        allow(at(self.landing.0), REGION);
        assert_eq!(heap.compare(&wanted), Ok(()), "a byte changed that was not open");
    }

    /// Moves the queue pair to the error state, checks that everything has completed, and destroys it.
    fn finish(mut self) -> Outcome {
        let error = QpChange { state: Some(QpState::Error), ..QpChange::default() };
        let outcome = self.outcome;
        self.pair.modify(1, self.qpn, &error).expect("always possible");
        self.judge();
        self.pair.sides[1].endpoint.destroy_qp(self.qpn).expect("it exists");
        Outcome { failures: outcome.failures, ..self.outcome }
    }
}
