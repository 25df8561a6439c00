//! A ping-pong over a reliable connection, with the queue pairs connected by hand: every attribute is explained.
//!
//! ```text
//! rc_pingpong                       both ends in this process, on 127.0.0.1 and 127.0.0.2
//! rc_pingpong listen  IP            wait for a peer, on our address IP
//! rc_pingpong connect IP SERVER     the peer, on our address IP
//! ```

use rxe_verbs::{
    Access, Context, Cq, Gid, Mr, Mtu, Psn, Qp, QpChange, QpInit, QpState, QpType, Qpn, RecvWr, SendOp,
    SendWr, WcOpcode, WcStatus,
};
use std::{
    error::Error,
    io::{BufRead, BufReader, Write},
    net::{IpAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

const PORT: u16 = 18_515;
const ROUNDS: u32 = 10_000;
const SIZE: u32 = 64;
const PATIENCE: Duration = Duration::from_secs(10);

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// What each end must know of the other. Verbs does not say how it gets there: here by a line of text over TCP.
struct Contact {
    /// Where: the peer's address, as the GID table spells it.
    gid: Gid,
    /// Which queue pair there.
    qpn: Qpn,
    /// The PSN of the first packet it will send.
    psn: Psn,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let listener = TcpListener::bind(("127.0.0.1", 0))?;
            let server = listener.local_addr()?;
            let ponger = thread::spawn(move || run([127, 0, 0, 1].into(), listener.accept()?.0, false));
            run([127, 0, 0, 2].into(), TcpStream::connect(server)?, true)?;
            ponger.join().expect("the other end did not panic")
        }
        ["listen", ip] => run(ip.parse()?, TcpListener::bind(("::", PORT))?.accept()?.0, false),
        ["connect", ip, server] => run(ip.parse()?, TcpStream::connect((server, PORT))?, true),
        _ => Err("usage: rc_pingpong [listen IP | connect IP SERVER]".into()),
    }
}

/// One end. The pinger sends first.
fn run(address: IpAddr, mut tcp: TcpStream, pinger: bool) -> Result<()> {
    // A context is an opened device; with `Device::first` and `Context::open` it would have all of the host's addresses.
    let context = Context::open_address(address)?;
    // Only objects of one protection domain work together: a key of another one opens nothing.
    let pd = context.alloc_pd()?;
    // Registered memory: the only memory that work requests may name. What arrives is written into it (LOCAL_WRITE); a
    // peer that is to write or read it by itself would need REMOTE_WRITE or REMOTE_READ, and its rkey.
    let mr = pd.alloc_mr(SIZE as usize * 2, Access::LOCAL_WRITE)?;
    // Completions of both directions come to one queue. It must never be full: here four can wait at most.
    let cq = context.create_cq(16, None)?;
    let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq))?;

    // INIT. From now on receives may be posted; nothing is received yet.
    qp.modify(&QpChange {
        state: Some(QpState::Init),
        // Which entry of the partition table: both ends need the same partition. 0 is the default one.
        pkey_index: Some(0),
        // Devices have one port, number 1.
        port: Some(1),
        // What the peer may do by itself: nothing, SEND needs no rights.
        access: Some(Access::empty()),
        ..QpChange::default()
    })?;
    // The receive for the first message has to be there before the peer sends it.
    post_receive(&qp, &mr)?;

    let own = Contact { gid: context.gids().get(0), qpn: qp.qpn(), psn: Psn::new(rand_psn()) };
    let peer = exchange(&mut tcp, &own)?;
    connect(&qp, &own, &peer)?;
    // Neither sends before both are ready to receive. (A packet that comes too early is lost and sent again after the
    // timeout, so this only saves time.)
    exchange(&mut tcp, &own)?;

    let start = Instant::now();
    let mut done = Done { received: 0, sent: 0 };
    for round in 0..ROUNDS {
        if pinger {
            send(&qp, &mr, round)?;
        }
        // This round's message is there, and our previous one is acknowledged: its memory may be written again.
        let sent = if pinger { round + 1 } else { round };
        done.wait_for(round + 1, sent, &cq, &qp)?;
        let got = mr.read_vec(SIZE as usize, 4)?;
        if got != round.to_be_bytes() {
            return Err(format!("round {round}: got {got:?}").into());
        }
        // The next receive first: the peer sends as soon as it has our answer.
        post_receive(&qp, &mr)?;
        if !pinger {
            send(&qp, &mr, round)?;
        }
    }
    done.wait_for(ROUNDS, ROUNDS, &cq, &qp)?;
    if pinger {
        let time = start.elapsed();
        println!("{ROUNDS} rounds of {SIZE} bytes: {:?} each way", time / (2 * ROUNDS));
    }
    // An acknowledgement that we still owe leaves when the queue pair goes away.
    Ok(())
}

/// RTR and RTS: the connection.
fn connect(qp: &Qp, own: &Contact, peer: &Contact) -> Result<()> {
    // RTR, ready to receive.
    qp.modify(&QpChange {
        state: Some(QpState::Rtr),
        // The way there: from our GID at index 0 to the peer's. RoCE always needs the peer's GID; it becomes the
        // destination address of the packets.
        av: Some(qp.context().address_vector(0, peer.gid)?),
        // The payload of a full packet. Both ends must have the same; at most what both ports have (`active_mtu`).
        path_mtu: Some(Mtu::M1024),
        // The one queue pair that packets are sent to, and accepted from.
        dest_qpn: Some(peer.qpn),
        // The PSN expected first: the one the peer's RTS names as `sq_psn`.
        rq_psn: Some(peer.psn),
        // READs and atomics the peer may have outstanding with us: at least its `max_rd_atomic`.
        max_dest_rd_atomic: Some(1),
        // How long a sender waits when it finds no receive posted, as a code: 12 is 0.64 ms.
        min_rnr_timer: Some(12),
        ..QpChange::default()
    })?;
    // RTS, ready to send.
    qp.modify(&QpChange {
        state: Some(QpState::Rts),
        // The PSN of our first packet. Any number will do; a fresh one keeps stray packets of earlier connections out.
        sq_psn: Some(own.psn),
        // How long to wait for an acknowledgement: 4.096 us times 2 to this power, here 67 ms.
        timeout: Some(14),
        // How often to send again before the work request fails with RetryExceeded.
        retry_count: Some(7),
        // How often to try again when the peer has no receive posted; 7 means for ever.
        rnr_retry: Some(7),
        // READs and atomics we may have outstanding.
        max_rd_atomic: Some(1),
        ..QpChange::default()
    })?;
    Ok(())
}

/// The second half of the region is for what arrives.
fn post_receive(qp: &Qp, mr: &Mr) -> Result<()> {
    Ok(qp.post_recv(&RecvWr { wr_id: 1, sges: &[mr.sge(SIZE as usize, SIZE)] })?)
}

/// The first half is sent.
fn send(qp: &Qp, mr: &Mr, round: u32) -> Result<()> {
    mr.write_at(0, &round.to_be_bytes())?;
    Ok(qp.post_send(&SendWr::new(2, SendOp::Send, &[mr.sge(0, SIZE)]))?)
}

/// Completions so far. Those of the two directions come in any order.
struct Done {
    received: u32,
    sent: u32,
}

impl Done {
    fn wait_for(&mut self, received: u32, sent: u32, cq: &Cq, qp: &Qp) -> Result<()> {
        while self.received < received || self.sent < sent {
            let wc = cq.poll_within(PATIENCE)?.ok_or("the peer is silent")?;
            if wc.status != WcStatus::Success {
                return Err(format!("{wc:?}; the network says {:?}", qp.context().link_report()).into());
            }
            match wc.opcode {
                WcOpcode::Recv => self.received += 1,
                _ => self.sent += 1,
            }
        }
        Ok(())
    }
}

/// Tells the peer who we are, and learns who it is.
fn exchange(tcp: &mut TcpStream, own: &Contact) -> Result<Contact> {
    let Contact { gid, qpn, psn } = own;
    writeln!(tcp, "{} {} {gid}", qpn.value(), psn.value())?;
    let mut line = String::new();
    BufReader::with_capacity(1, &*tcp).read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let mut word = || words.next().ok_or("the peer's line is too short");
    Ok(Contact { qpn: Qpn::new(word()?.parse()?), psn: Psn::new(word()?.parse()?), gid: word()?.parse()? })
}

/// 24 bits that differ from run to run.
fn rand_psn() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) as u32
}
