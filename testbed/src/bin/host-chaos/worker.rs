//! One process of a pair: sends numbered messages, and checks those of its partner byte by byte.
//!
//! Each message is a WRITE to the partner's memory and a SEND that says where. The partner posts a receive again when
//! it has checked both, so at most [`DEPTH`] messages are ahead of it and no WRITE meets one that it still reads.

use rxe_verbs::{
    Access, Completion, Context, Gid, Key, Mr, Mtu, Psn, Qp, QpChange, QpInit, QpState, QpType, Qpn, RecvWr,
    Remote, SendOp, SendWr, WcStatus,
};
use serde_json::{Value, json};
use std::{
    io::{BufRead, Write},
    net::IpAddr,
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
    let [address, seed] = arguments else { return Err("worker ADDRESS SEED".into()) };
    let address: IpAddr = address.parse()?;
    let seed: u64 = seed.parse()?;
    let context = Context::open_address(address)?;
    let pd = context.alloc_pd()?;
    let mr = pd.alloc_mr(SIZE, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let cq = context.create_cq(256, None)?;
    let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq))?;
    let psn = 0x10_0000 + seed as u32 * 1000;
    say(&json!({ "card": {
        "qpn": qp.qpn().value(), "psn": psn, "seed": seed, "addr": mr.addr(), "rkey": mr.rkey().0,
        "address": address.to_string(),
    } }));
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let card: Value = serde_json::from_str(&line)?;
    connect(&qp, &card, psn)?;
    let peer = number(&card, "seed")?;
    let remote = Remote { addr: number(&card, "addr")?, rkey: Key(number(&card, "rkey")? as u32) };
    let mut worker = Worker {
        mr: &mr,
        qp: &qp,
        remote,
        seed,
        peer,
        sent: 0,
        done: 0,
        checked: 0,
        bytes: 0,
        told: Instant::now(),
    };
    for place in 0..DEPTH {
        worker.receive(place)?;
    }
    let mut completions = [Completion::default(); 32];
    loop {
        worker.send_more()?;
        let count = cq.poll(&mut completions)?;
        for wc in &completions[..count] {
            if wc.status != WcStatus::Success {
                say(&json!({ "status": format!("{:?}", wc.status), "seconds": 0 }));
                return Ok(());
            }
            worker.handle(wc)?;
        }
        if count == 0 {
            // Sixteen of these share two processors.
            if let Some(wc) = cq.poll_within(Duration::from_millis(20))? {
                if wc.status != WcStatus::Success {
                    say(&json!({ "status": format!("{:?}", wc.status) }));
                    return Ok(());
                }
                worker.handle(&wc)?;
            }
        }
        worker.tell();
    }
}

fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    // Whoever listened may be gone, and ends us.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
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
        min_rnr_timer: Some(1),
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
    seed: u64,
    peer: u64,
    sent: u64,
    done: u64,
    checked: u64,
    bytes: u64,
    told: Instant,
}

/// Length of message `number`: from a few bytes to several packets.
const fn length(number: u64) -> usize {
    16 + (number * 7919 % 12_000) as usize
}

fn content(seed: u64, number: u64, kind: u64) -> Vec<u8> {
    let mut bytes = pattern(seed << 40 | number << 1 | kind, length(number + kind));
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

impl Worker<'_> {
    fn receive(&self, place: usize) -> Result<(), Failure> {
        let sges = [self.mr.sge(RECEIVES + place * PLACE, PLACE as u32)];
        Ok(self.qp.post_recv(&RecvWr { wr_id: place as u64, sges: &sges })?)
    }

    /// Posts messages as far as the depth allows.
    fn send_more(&mut self) -> Result<(), Failure> {
        while self.sent < self.done + DEPTH as u64 {
            let number = self.sent;
            let source = SOURCES + (number as usize % DEPTH) * 2 * PLACE;
            let (write, send) = (content(self.seed, number, 1), content(self.seed, number, 0));
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

    fn handle(&mut self, wc: &Completion) -> Result<(), Failure> {
        if wc.wr_id >> 32 != 0 {
            self.done += 1;
            return Ok(());
        }
        let (place, number) = (wc.wr_id as usize, self.checked);
        let expected = content(self.peer, number, 0);
        let found = self.mr.read_vec(RECEIVES + place * PLACE, wc.byte_len as usize)?;
        let written = content(self.peer, number, 1);
        let there = WRITTEN + (number as usize % PLACES) * PLACE;
        let seen = self.mr.read_vec(there, written.len())?;
        for (what, found, expected) in [("SEND", found, expected), ("WRITE", seen, written)] {
            if found != expected {
                let at = found.iter().zip(&expected).position(|(a, b)| a != b);
                say(
                    &json!({ "wrong": format!("{what} of message {number} differs at byte {at:?} of {}", found.len()) }),
                );
                return Err("wrong data".into());
            }
            self.bytes += found.len() as u64;
        }
        self.checked += 1;
        self.receive(place)
    }

    fn tell(&mut self) {
        if self.told.elapsed() >= TELL {
            self.told = Instant::now();
            say(&json!({ "messages": self.checked, "bytes": core::mem::take(&mut self.bytes) }));
        }
    }
}
