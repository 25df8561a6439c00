//! A REQ that the connection manager would never send, by its machine on a queue pair 1 of our own: a process apart.

use crate::{options::Options, peer::PATIENCE};
use rxe_cm::proto::{
    CmaHeader, CommId, Datagram, Guid, Path, PortSpace, PrivateData, Req, ServiceId, Transport,
    machine::{Connection, Event, Local},
};
use rxe_core::time::Instant;
use rxe_verbs::{
    Access, AddressVector, Context, Cq, Device, Gid, Mr, Payload, Pkey, Psn, Qkey, Qp, QpCaps, QpChange,
    QpInit, QpState, QpType, Qpn, RecvWr, SendFlags, SendOp, SendWr, UdDest,
};
use std::time::{Duration, Instant as Clock};
use testbed::agent::Failure;

const MAD: usize = 256;
const GRH: usize = 40;
const PLACES: usize = 8;

/// Sends it, and prints how it was answered: `rejected REASON`, or `accepted`.
pub(crate) fn play(options: &Options) -> Result<(), Failure> {
    let context = Context::open(&Device::of_address(options.ours)?)?;
    let gsi = Gsi::open(&context)?;
    let (index, _) = context
        .gids()
        .iter()
        .find(|(_, gid)| *gid == Gid::from(options.ours))
        .ok_or("our address has no GID")?;
    let av = context.address_vector(index, Gid::from(options.theirs))?;
    let slot = u32::from(context.slot()) << 24;
    let local = Local {
        comm_id: CommId(slot | std::process::id() & 0xff_ffff),
        ca_guid: Guid(u64::from_be_bytes(context.device().guid())),
        transaction: u64::from(std::process::id()) << 32,
        packet_lifetime: 16,
    };
    let qpn = Qpn::new(slot >> 8 | 0xfff0);
    let kind = options.get("kind", String::new())?;
    let req = odd(&kind, plain(options, qpn)?, options)?;
    let start = Clock::now();
    let now = || Instant::ZERO + start.elapsed();
    let mut machine = Connection::connect(now(), local, &req, 0);
    while start.elapsed() < PATIENCE {
        machine.handle_timeout(now());
        while let Some(datagram) = machine.poll_transmit() {
            gsi.send(av, &datagram.emit())?;
        }
        while let Some(event) = machine.poll_event() {
            match event {
                Event::Rejected(why) => {
                    println!("rejected {}", why.reason.0);
                    return Ok(());
                }
                Event::Accepted(_) => {
                    println!("accepted");
                    return Ok(());
                }
                _ => {}
            }
        }
        if let Some(datagram) = gsi.receive(Duration::from_millis(50))? {
            // What is not for us changes nothing.
            let _ = machine.handle(now(), &datagram);
        }
    }
    Err("no answer".into())
}

/// What nobody could find fault with.
fn plain(options: &Options, qpn: Qpn) -> Result<Req, Failure> {
    let port = options.get("port", 0)?;
    let header = CmaHeader { src_port: 50_000, src: options.ours, dst: options.theirs };
    Ok(Req {
        service_id: ServiceId::new(PortSpace::Tcp, port),
        local_qpn: qpn,
        responder_resources: 1,
        initiator_depth: 1,
        remote_cm_response_timeout: 20,
        local_cm_response_timeout: 20,
        starting_psn: Psn::new(0x12_3456),
        retry_count: 7,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        pkey: Pkey(0xffff),
        path_mtu: 3,
        primary: Path {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: options.ours,
            remote_gid: options.theirs,
            hop_limit: 64,
            ack_timeout: 19,
            ..Path::default()
        },
        private_data: PrivateData::with_header(&header, &[])?,
        ..Req::default()
    })
}

/// What is wrong with it.
fn odd(kind: &str, req: Req, options: &Options) -> Result<Req, Failure> {
    let stranger = if options.ours.is_ipv4() { "198.51.100.1" } else { "2001:db8::1" }.parse()?;
    Ok(match kind {
        "plain" => req,
        "partition" => Req { pkey: Pkey(0x8123), ..req },
        "alternate path" => {
            let alternate = Path { local_gid: stranger, remote_gid: stranger, local_lid: 1, ..req.primary };
            Req { alternate, ..req }
        }
        "transport" => Req { transport: Transport::Uc, ..req },
        "IP header" => Req { private_data: PrivateData::new(&[0xff; 36])?, ..req },
        "address" => {
            let header = CmaHeader { src_port: 50_000, src: options.ours, dst: stranger };
            Req { private_data: PrivateData::with_header(&header, &[])?, ..req }
        }
        "service" => Req { service_id: ServiceId(0x1234_5678_9abc_def0), ..req },
        other => return Err(format!("kind={other}?").into()),
    })
}

/// Queue pair 1.
struct Gsi {
    qp: Qp,
    sends: Cq,
    receives: Cq,
    memory: Mr,
}

impl Gsi {
    fn open(context: &Context) -> Result<Self, Failure> {
        let pd = context.alloc_pd()?;
        let (sends, receives) = (context.create_cq(16, None)?, context.create_cq(PLACES as u32, None)?);
        let caps = QpCaps {
            max_send_wr: 16,
            max_recv_wr: PLACES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: MAD as u32,
        };
        let mut init = QpInit::new(QpType::Gsi, &receives);
        (init.send_cq, init.caps) = (&sends, caps);
        let qp = pd.create_qp(&init)?;
        let none = QpChange::default();
        let qkey = Some(Qkey::GSI);
        qp.modify(&QpChange { state: Some(QpState::Init), pkey_index: Some(0), qkey, ..none })?;
        qp.modify(&QpChange { state: Some(QpState::Rtr), ..none })?;
        qp.modify(&QpChange { state: Some(QpState::Rts), sq_psn: Some(Psn::new(0)), ..none })?;
        let memory = pd.alloc_mr(PLACES * 512, Access::LOCAL_WRITE)?;
        let gsi = Self { qp, sends, receives, memory };
        (0..PLACES).try_for_each(|place| gsi.expect(place))?;
        Ok(gsi)
    }

    fn expect(&self, place: usize) -> Result<(), Failure> {
        let sges = [self.memory.sge(place * 512, (GRH + MAD) as u32)];
        Ok(self.qp.post_recv(&RecvWr { wr_id: place as u64, sges: &sges })?)
    }

    fn send(&self, av: AddressVector, mad: &[u8; MAD]) -> Result<(), Failure> {
        let dest = Some(UdDest { av, remote_qpn: Qpn::GSI, remote_qkey: Qkey::GSI, pkey: None });
        let wr = SendWr {
            dest,
            payload: Payload::Inline(mad),
            flags: SendFlags::SIGNALED,
            ..SendWr::new(0, SendOp::Send, &[])
        };
        self.qp.post_send(&wr)?;
        crate::peer::completion(&self.sends).map(drop)
    }

    /// The next message, if one comes in time.
    fn receive(&self, limit: Duration) -> Result<Option<Datagram>, Failure> {
        let Some(wc) = self.receives.poll_within(limit)? else { return Ok(None) };
        let place = wc.wr_id as usize;
        let mad = self.memory.read_vec(place * 512 + GRH, MAD)?;
        self.expect(place)?;
        Ok(Datagram::parse(&mad).ok())
    }
}
