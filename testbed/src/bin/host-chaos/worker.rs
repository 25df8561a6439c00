//! One process of a pair: sends numbered messages, and checks those of its partner byte by byte.
//!
//! Each message is a WRITE to the partner's memory and a SEND that says where. The partner posts a receive again when
//! it has checked both, so at most [`DEPTH`] messages are ahead of it and no WRITE meets one that it still reads. Contents
//! and first PSN are this process's alone ([`crate::Name`]): a packet of another pair, or of an earlier life of this one,
//! cannot look right.

use crate::Name;
use rxe_verbs::{
    Access, Completion, Context, Gid, Key, Mr, Mtu, Psn, Qp, QpChange, QpInit, QpState, QpType, Qpn, RecvWr,
    Remote, SendOp, SendWr, WcStatus,
};
use serde_json::{Value, json};
use std::{
    io::{BufRead, Write},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use testbed::{agent::Failure, pattern::pattern};

/// Receives posted, and messages not yet completed.
const DEPTH: usize = 8;
/// Bytes of a SEND at most, and of a WRITE.
const PLACE: usize = 16 << 10;
/// Places for incoming WRITEs: more than can be ahead of the reader.
const PLACES: usize = 2 * DEPTH;
/// Where things are in the one region.
const RECEIVES: usize = 0;
const WRITTEN: usize = RECEIVES + DEPTH * PLACE;
const SOURCES: usize = WRITTEN + PLACES * PLACE;
const SIZE: usize = SOURCES + 2 * DEPTH * PLACE;
/// How often it tells how far it is.
const TELL: Duration = Duration::from_millis(200);

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let [address, name] = arguments else { return Err("worker ADDRESS NAME".into()) };
    let address: IpAddr = address.parse()?;
    let name = Name(name.parse()?);
    let context = Context::open_address(address)?;
    let pd = context.alloc_pd()?;
    let mr = pd.alloc_mr(SIZE, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let cq = context.create_cq(256, None)?;
    let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq))?;
    let psn = name.first_psn();
    say(&json!({ "card": {
        "qpn": qp.qpn().value(), "psn": psn, "name": name.0, "addr": mr.addr(), "rkey": mr.rkey().0,
        "address": address.to_string(),
    } }));
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let card: Value = serde_json::from_str(&line)?;
    connect(&qp, &card, psn)?;
    let peer = Name(number(&card, "name")?);
    let remote = Remote { addr: number(&card, "addr")?, rkey: Key(number(&card, "rkey")? as u32) };
    let mut worker = Worker {
        mr: &mr,
        qp: &qp,
        remote,
        own: Source::new(name),
        peer: Source::new(peer),
        sent: 0,
        done: 0,
        checked: 0,
        bytes: 0,
        told: Instant::now(),
        stop: stop_signal(),
        stopped: false,
    };
    for place in 0..DEPTH {
        worker.receive(place)?;
    }
    let mut completions = [Completion::default(); 32];
    loop {
        worker.send_more()?;
        let count = cq.poll(&mut completions)?;
        for wc in &completions[..count] {
            if !worker.handle(wc)? {
                return Ok(());
            }
        }
        // Sixteen of these share two processors.
        if count == 0
            && let Some(wc) = cq.poll_within(Duration::from_millis(20))?
            && !worker.handle(&wc)?
        {
            return Ok(());
        }
        worker.tell();
    }
}

/// Set once the next line comes from whoever runs us.
fn stop_signal() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&stop);
    thread::spawn(move || {
        if std::io::stdin().lock().read_line(&mut String::new()).is_ok() {
            set.store(true, Ordering::Release);
        }
    });
    stop
}

/// One write a line, so that a line is never cut off when we are killed.
fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    // Whoever listened may be gone, and ends us.
    let _ = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
}

fn number(card: &Value, name: &str) -> Result<u64, Failure> {
    card[name].as_u64().ok_or_else(|| format!("the card has no {name}: {card}").into())
}

fn connect(qp: &Qp, card: &Value, psn: u32) -> Result<(), Failure> {
    let address: IpAddr = card["address"].as_str().ok_or("no address")?.parse()?;
    let none = QpChange::default();
    qp.modify(&QpChange {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::REMOTE_WRITE),
        ..none
    })?;
    qp.modify(&QpChange {
        state: Some(QpState::Rtr),
        av: Some(qp.context().address_vector(0, Gid::from(address))?),
        path_mtu: Some(Mtu::M4096),
        dest_qpn: Some(Qpn::new(number(card, "qpn")? as u32)),
        rq_psn: Some(Psn::new(number(card, "psn")? as u32)),
        max_dest_rd_atomic: Some(1),
        // 0.64 ms: who has no processor posts no receives, and is not helped by being asked again at once.
        min_rnr_timer: Some(12),
        ..none
    })?;
    // 0.27 s, seven times: two seconds until a dead partner is noticed, and long against the stalls of a busy machine.
    Ok(qp.modify(&QpChange {
        state: Some(QpState::Rts),
        sq_psn: Some(Psn::new(psn)),
        timeout: Some(16),
        retry_count: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(1),
        ..none
    })?)
}

struct Worker<'a> {
    mr: &'a Mr,
    qp: &'a Qp,
    remote: Remote,
    own: Source,
    peer: Source,
    sent: u64,
    done: u64,
    checked: u64,
    bytes: u64,
    told: Instant,
    /// Whether it is to send nothing more.
    stop: Arc<AtomicBool>,
    /// Whether it has said that it has nothing under way.
    stopped: bool,
}

/// Length of message `number`: from a few bytes to several packets.
const fn length(number: u64) -> usize {
    16 + (number * 7919 % 12_000) as usize
}

/// The bytes that one process sends: parts of a block that no other process has. Cheap to make, because the processes
/// share what processors there are.
struct Source {
    name: Name,
    block: Vec<u8>,
}

impl Source {
    /// Bytes of a block, a prime; and how far the messages' parts are from each other.
    const SIZE: usize = 65_521;
    const STEP: u64 = 97;

    fn new(name: Name) -> Self {
        // Once more, so that a part may begin anywhere.
        Self { name, block: pattern(name.0, 2 * Self::SIZE) }
    }

    fn content(&self, number: u64, kind: u64) -> Vec<u8> {
        let mark = self.name.0 << 40 | number << 1 | kind;
        let begin = ((mark % Self::SIZE as u64) * Self::STEP % Self::SIZE as u64) as usize;
        let mut bytes = self.block[begin..][..length(number + kind)].to_vec();
        // So that a wrong one can be recognised.
        bytes[..8].copy_from_slice(&mark.to_le_bytes());
        bytes
    }
}

impl Worker<'_> {
    fn receive(&self, place: usize) -> Result<(), Failure> {
        let sges = [self.mr.sge(RECEIVES + place * PLACE, PLACE as u32)];
        Ok(self.qp.post_recv(&RecvWr { wr_id: place as u64, sges: &sges })?)
    }

    /// Posts messages as far as the depth allows.
    fn send_more(&mut self) -> Result<(), Failure> {
        while self.sent < self.done + DEPTH as u64 && !self.stop.load(Ordering::Acquire) {
            let number = self.sent;
            let source = SOURCES + (number as usize % DEPTH) * 2 * PLACE;
            let (write, send) = (self.own.content(number, 1), self.own.content(number, 0));
            self.mr.write_at(source, &write)?;
            self.mr.write_at(source + PLACE, &send)?;
            let there = WRITTEN + (number as usize % PLACES) * PLACE;
            let remote = Remote { addr: self.remote.addr + there as u64, ..self.remote };
            let sges = [self.mr.sge(source, write.len() as u32)];
            let unsignaled = SendWr {
                flags: rxe_verbs::SendFlags::empty(),
                ..SendWr::new(1 << 32, SendOp::Write(remote), &sges)
            };
            self.qp.post_send(&unsignaled)?;
            let sges = [self.mr.sge(source + PLACE, send.len() as u32)];
            self.qp.post_send(&SendWr::new(1 << 32, SendOp::Send, &sges))?;
            self.sent += 1;
        }
        Ok(())
    }

    /// Takes a completion; false if it is an error, which has been told then.
    fn handle(&mut self, wc: &Completion) -> Result<bool, Failure> {
        if wc.status != WcStatus::Success {
            say(&json!({ "status": format!("{:?}", wc.status) }));
            return Ok(false);
        }
        if wc.wr_id >> 32 != 0 {
            self.done += 1;
            return Ok(true);
        }
        let (place, number) = (wc.wr_id as usize, self.checked);
        let expected = self.peer.content(number, 0);
        let found = self.mr.read_vec(RECEIVES + place * PLACE, wc.byte_len as usize)?;
        let written = self.peer.content(number, 1);
        let there = WRITTEN + (number as usize % PLACES) * PLACE;
        let seen = self.mr.read_vec(there, written.len())?;
        for (what, found, expected) in [("SEND", found, expected), ("WRITE", seen, written)] {
            if found != expected {
                let at = found.iter().zip(&expected).position(|(a, b)| a != b);
                let head = |bytes: &[u8]| format!("{:02x?}", &bytes[..bytes.len().min(8)]);
                say(&json!({ "wrong": format!(
                    "{what} of message {number} differs at byte {at:?} of {}: it begins with {}, not {}",
                    found.len(), head(&found), head(&expected)
                ) }));
                return Err("wrong data".into());
            }
            self.bytes += found.len() as u64;
        }
        self.checked += 1;
        self.receive(place)?;
        Ok(true)
    }

    fn tell(&mut self) {
        if !self.stopped && self.done == self.sent && self.stop.load(Ordering::Acquire) {
            self.stopped = true;
            say(&json!({ "sent": self.done }));
        }
        if self.told.elapsed() >= TELL {
            self.told = Instant::now();
            say(&json!({ "messages": self.checked, "bytes": core::mem::take(&mut self.bytes) }));
        }
    }
}
