//! Datagrams: no connection, no acknowledgement; every message names its destination, and one queue pair reaches all
//! others.
//!
//! Both ends are in this process, on 127.0.0.1 and 127.0.0.2.

use rxe_verbs::{
    Access, Ah, Completion, Context, Cq, Gid, Mr, Pd, Psn, Qkey, Qp, QpChange, QpInit, QpState, QpType,
    RecvWr, SendOp, SendWr, UdDest, WcOpcode, WcStatus,
};
use std::{error::Error, thread, time::Duration};

const ROUNDS: u32 = 1000;
/// A datagram fits one packet: at most the port's active MTU, 4096 on the loopback.
const SIZE: usize = 1000;
/// What arrives is preceded by 40 bytes for the network header (IPv4's fills the last 20 of them).
const GRH: usize = 40;
/// A datagram's key: a queue pair takes only those that carry its own. Any number both know; the top bit must be 0.
const QKEY: Qkey = Qkey(0x1234);
const PATIENCE: Duration = Duration::from_secs(10);

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

struct End {
    pd: Pd,
    mr: Mr,
    cq: Cq,
    qp: Qp,
}

fn main() -> Result<()> {
    let (pinger, ponger) = (End::new("127.0.0.1")?, End::new("127.0.0.2")?);
    // How to reach the ponger: its address becomes an address handle, its number and key go into each request.
    let to_ponger = pinger.way_to(ponger.gid())?.dest(ponger.qp.qpn(), QKEY);
    // A datagram that finds no receive is lost, so the first one is posted before anybody sends.
    ponger.receive()?;
    let other = thread::spawn(move || ponger.answer_all());

    let mut lost = 0;
    for round in 0..ROUNDS {
        pinger.receive()?;
        pinger.send(round, to_ponger)?;
        match pinger.next_message(Duration::from_millis(100))? {
            Some(wc) => {
                let got = pinger.mr.read_vec(SIZE + GRH, 4)?;
                assert_eq!((got, wc.byte_len as usize), (round.to_be_bytes().to_vec(), SIZE + GRH));
            }
            // Nobody sends a lost datagram again.
            None => lost += 1,
        }
    }
    println!("{ROUNDS} datagrams of {SIZE} bytes there and back, {lost} lost");
    other.join().expect("the ponger did not panic")
}

impl End {
    fn new(address: &str) -> Result<Self> {
        let context = Context::open_address(address.parse()?)?;
        let pd = context.alloc_pd()?;
        let mr = pd.alloc_mr(2 * SIZE + GRH, Access::LOCAL_WRITE)?;
        let cq = context.create_cq(16, None)?;
        let qp = pd.create_qp(&QpInit::new(QpType::Ud, &cq))?;
        let none = QpChange::default();
        qp.modify(&QpChange {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            qkey: Some(QKEY),
            ..none
        })?;
        // There is no peer to name: RTR needs nothing, RTS only a first PSN.
        qp.modify(&QpChange { state: Some(QpState::Rtr), ..none })?;
        qp.modify(&QpChange { state: Some(QpState::Rts), sq_psn: Some(Psn::new(0)), ..none })?;
        Ok(Self { pd, mr, cq, qp })
    }

    fn gid(&self) -> Gid {
        self.qp.context().gids().get(0)
    }

    fn way_to(&self, gid: Gid) -> Result<Ah> {
        Ok(self.pd.create_ah(self.qp.context().address_vector(0, gid)?))
    }

    /// Posts a receive into the second half of the region.
    fn receive(&self) -> Result<()> {
        Ok(self.qp.post_recv(&RecvWr { wr_id: 1, sges: &[self.mr.sge(SIZE, (SIZE + GRH) as u32)] })?)
    }

    fn send(&self, round: u32, dest: UdDest) -> Result<()> {
        self.mr.write_at(0, &round.to_be_bytes())?;
        let sges = [self.mr.sge(0, SIZE as u32)];
        Ok(self.qp.post_send(&SendWr { dest: Some(dest), ..SendWr::new(2, SendOp::Send, &sges) })?)
    }

    /// The next datagram, or none in `timeout`; completions of our own sends are passed over.
    fn next_message(&self, timeout: Duration) -> Result<Option<Completion>> {
        while let Some(wc) = self.cq.poll_within(timeout)? {
            if wc.status != WcStatus::Success {
                return Err(format!("{wc:?}").into());
            }
            if wc.opcode == WcOpcode::Recv {
                return Ok(Some(wc));
            }
        }
        Ok(None)
    }

    /// Sends every datagram back to where it came from.
    fn answer_all(self) -> Result<()> {
        for _ in 0..ROUNDS {
            let Some(wc) = self.next_message(PATIENCE)? else { return Ok(()) };
            // Who sent it: its queue pair is in the completion, its address in the 40 bytes before the message.
            let source: [u8; 4] = self.mr.read_vec(SIZE + 20 + 12, 4)?.try_into().expect("4 bytes");
            let dest = self.way_to(Gid::from(std::net::IpAddr::from(source)))?.dest(wc.src_qp, QKEY);
            let round = u32::from_be_bytes(self.mr.read_vec(SIZE + GRH, 4)?.try_into().expect("4 bytes"));
            self.receive()?;
            self.send(round, dest)?;
        }
        // Our last answers have left before the queue pair goes away: datagrams complete when they are sent.
        Ok(())
    }
}
