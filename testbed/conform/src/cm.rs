//! The suite's connection manager. It sends only the messages that a case tells it to send, and records those that arrive.

use crate::{
    bench::World,
    case::{Outcome, broken, check},
    conn::MOST_PASSED,
    dut::{Cm, CmEvent, Handle, Space},
    wire::cm::{GSI, Kind, LOCAL_ID, Message, REMOTE_ID, mad, other, rep, req, sidr},
};
use std::{cell::RefCell, net::IpAddr, rc::Rc, time::Duration};

/// Bytes that rdma_cm puts in front of a program's private data in a REQ or SIDR_REQ: versions, port and two addresses (IBTA
/// vol. 1, annex A11).
pub const IP_HEADER: usize = 36;
/// A response timeout of ours after which a device repeats its message: 268 ms.
pub const SOON: u64 = 16;
/// A response timeout of ours that is longer than a case takes: 4.3 s.
const LATE: u64 = 20;
/// The Local ACK timeout in our REQs: 67 ms. The duration of the timewait state of a connection follows from it.
const ACK_TIMEOUT: u64 = 14;

/// A connection that is established, or is being established.
#[derive(Clone, Debug)]
pub struct Link {
    /// Our communication ID.
    pub own: u32,
    /// The device's communication ID.
    pub far: u32,
    /// The handle of the device's id, as its program uses it.
    pub id: Handle,
    /// Our queue pair.
    pub qpn: u32,
    /// The device's queue pair.
    pub far_qpn: u32,
    /// The transaction ID of the messages that set it up.
    pub transaction: u64,
}

/// The suite's end of the connection manager's protocol.
#[derive(Debug)]
pub struct Peer {
    world: Rc<RefCell<World>>,
    channel: Handle,
    /// The port of the service that this case tests, on either side.
    pub port: u16,
    /// The GUID of our adapter.
    pub guid: u64,
    space: Space,
    /// Our communication IDs in this case. A message for any other ID was left over from an earlier case.
    ids: Vec<u32>,
    seen: Vec<Message>,
}

/// An address as a GID.
fn gid(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

/// An address in 16 bytes, as rdma_cm writes it: an IPv4 address has zeros in front.
fn sixteen(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)).to_be_bytes(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn unhex(digits: &str) -> Vec<u8> {
    (0..digits.len() / 2).filter_map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()).collect()
}

impl Peer {
    /// Makes a peer, and a channel for the events of the device's program.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn new(world: &Rc<RefCell<World>>, space: Space) -> Outcome<Self> {
        let mut w = world.borrow_mut();
        let channel = w.dut.cm()?.channel()?;
        let (port, guid) = (w.new_port(), w.identity | 1);
        drop(w);
        Ok(Self { world: Rc::clone(world), channel, port, guid, space, ids: Vec::new(), seen: Vec::new() })
    }

    /// Lets the device's program make a call.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn program<T>(
        &self,
        what: &str,
        act: impl FnOnce(&mut dyn Cm) -> crate::dut::Answer<T>,
    ) -> Outcome<T> {
        let mut world = self.world.borrow_mut();
        world.note(what.to_owned());
        Ok(act(world.dut.cm()?)?)
    }

    /// The addresses of the device and of the suite.
    fn addresses(&self) -> (IpAddr, IpAddr) {
        let ends = self.world.borrow().ends();
        (ends.dst, ends.src)
    }

    /// The device's program listens.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn listen(&self) -> Outcome<Handle> {
        let ((device, _), channel, space, port) = (self.addresses(), self.channel, self.space, self.port);
        let id = self.program("rdma_create_id", |cm| cm.id(channel, space))?;
        self.program(&format!("rdma_listen on port {port}"), |cm| cm.listen(id, device, port))?;
        Ok(id)
    }

    /// The service that the case tests.
    #[must_use]
    pub fn service(&self) -> u64 {
        let space = match self.space {
            Space::Tcp => 0x0106,
            Space::Udp => 0x0111,
        };
        space << 16 | u64::from(self.port)
    }

    /// The bytes that rdma_cm puts in front of private data, followed by the program's private data.
    #[must_use]
    pub fn headed(&self, private: &[u8]) -> Vec<u8> {
        let (device, own) = self.addresses();
        let version = if own.is_ipv4() { 0x40 } else { 0x60 };
        let mut bytes = vec![0, version, 0xb0, 0x0b];
        bytes.extend(sixteen(own));
        bytes.extend(sixteen(device));
        bytes.extend(private);
        bytes
    }

    /// A new communication ID of ours.
    pub fn new_id(&mut self) -> u32 {
        let id = self.world.borrow_mut().new_id();
        self.ids.push(id);
        id
    }

    /// Counts messages to this communication ID as messages of this case, too.
    pub fn expect_id(&mut self, id: u32) {
        self.ids.push(id);
    }

    /// A REQ for the service, correct in every field.
    pub fn req(&mut self) -> Message {
        let (device, own) = self.addresses();
        let (id, qpn) = (self.new_id(), self.world.borrow_mut().new_qpn());
        let (own, device) = (gid(own), gid(device));
        let halves = |gid: u128| [(gid >> 64) as u64, gid as u64];
        let mut message = Message::new(Kind::Req).with(mad::TRANSACTION, u64::from(id) << 32 | 7);
        for (field, value) in [
            (LOCAL_ID, id.into()),
            (req::SERVICE, self.service()),
            (req::GUID, self.guid),
            (req::QPN, qpn.into()),
            (req::RESOURCES, 1),
            (req::DEPTH, 1),
            (req::REMOTE_TIMEOUT, LATE),
            (req::FLOW, 1),
            (req::PSN, 0x12_3456),
            (req::LOCAL_TIMEOUT, LATE),
            (req::RETRY, 7),
            (req::PKEY, 0xffff),
            (req::MTU, 3),
            (req::RNR_RETRY, 7),
            (req::CM_RETRIES, 15),
            (req::LOCAL_LID, 0xffff),
            (req::REMOTE_LID, 0xffff),
            (req::LOCAL_GID[0], halves(own)[0]),
            (req::LOCAL_GID[1], halves(own)[1]),
            (req::REMOTE_GID[0], halves(device)[0]),
            (req::REMOTE_GID[1], halves(device)[1]),
            (req::HOP_LIMIT, 64),
            (req::ACK_TIMEOUT, ACK_TIMEOUT),
        ] {
            message = message.with(field, value);
        }
        let header = self.headed(&[]);
        message.with_private(&header)
    }

    /// A SIDR_REQ for the service, correct in every field.
    pub fn sidr_req(&mut self) -> Message {
        let id = self.new_id();
        let header = self.headed(&[]);
        Message::new(Kind::SidrReq)
            .with(mad::TRANSACTION, u64::from(id) << 32 | 9)
            .with(LOCAL_ID, id.into())
            .with(sidr::PKEY, 0xffff)
            .with(sidr::SERVICE, self.service())
            .with_private(&header)
    }

    /// A message about a connection.
    #[must_use]
    pub fn about(&self, link: &Link, kind: Kind) -> Message {
        let message = Message::new(kind)
            .with(mad::TRANSACTION, link.transaction)
            .with(LOCAL_ID, link.own.into())
            .with(REMOTE_ID, link.far.into());
        match kind {
            Kind::Dreq => message.with(other::DREQ_QPN, link.far_qpn.into()),
            Kind::Lap => message.with(other::LAP_QPN, link.far_qpn.into()),
            _ => message,
        }
    }

    /// The REP for a REQ of the device.
    pub fn rep(&mut self, request: &Message) -> Message {
        let (id, qpn) = (self.new_id(), self.world.borrow_mut().new_qpn());
        let mut message = self.reply(request, Kind::Rep).with(LOCAL_ID, id.into());
        for (field, value) in [
            (rep::QPN, qpn.into()),
            (rep::PSN, 0x65_4321),
            (rep::RESOURCES, 1),
            (rep::DEPTH, 1),
            (rep::ACK_DELAY, 10),
            (rep::RNR_RETRY, 7),
            (rep::FLOW, 1),
            (rep::GUID, self.guid),
        ] {
            message = message.with(field, value);
        }
        message
    }

    /// An empty response to a message of the device.
    #[must_use]
    pub fn reply(&self, to: &Message, kind: Kind) -> Message {
        Message::new(kind)
            .with(mad::TRANSACTION, to.get(mad::TRANSACTION))
            .with(LOCAL_ID, to.get(REMOTE_ID))
            .with(REMOTE_ID, to.get(LOCAL_ID))
    }

    /// A REJ for a message of the device.
    #[must_use]
    pub fn rej(&self, to: &Message, reason: u64) -> Message {
        let which = u64::from(to.kind() == Some(Kind::Rep));
        self.reply(to, Kind::Rej).with(other::MESSAGE, which).with(other::REASON, reason)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// If the link is down.
    pub fn tx(&self, message: &Message) -> Outcome {
        self.world.borrow_mut().send(&message.packet())
    }

    /// Whether a message belongs to this case.
    fn ours(&self, message: &Message) -> bool {
        let known = |field| self.ids.iter().any(|id| u64::from(*id) == message.get(field));
        match message.kind() {
            Some(Kind::Req) => message.get(req::SERVICE) == self.service(),
            Some(Kind::SidrReq) => message.get(sidr::SERVICE) == self.service(),
            Some(Kind::SidrRep) => known(LOCAL_ID),
            Some(_) => known(REMOTE_ID),
            None => true,
        }
    }

    /// The next message of this case, repetitions included.
    fn take(&self, within: Duration) -> Outcome<Option<Message>> {
        let mut world = self.world.borrow_mut();
        let end = world.now() + within;
        loop {
            let left = end.saturating_sub(world.now());
            let Some(got) = world.take(GSI, left)? else { return Ok(None) };
            match Message::of(&got.packet) {
                Some(message) if self.ours(&message) => return Ok(Some(message)),
                _ => {}
            }
        }
    }

    /// The device's next message, which must be of that kind. Repetitions of earlier messages are skipped.
    ///
    /// # Errors
    /// If the next message is of another kind, or none arrives.
    pub fn rx(&mut self, kind: Kind) -> Outcome<Message> {
        self.rx_any(&[kind])
    }

    /// The same for one of several kinds.
    ///
    /// # Errors
    /// If the next message is of another kind, or none arrives.
    pub fn rx_any(&mut self, kinds: &[Kind]) -> Outcome<Message> {
        let wanted = || kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(" or ");
        let (patience, start) = (self.world.borrow().patience(), self.world.borrow().now());
        loop {
            let left = (start + patience).saturating_sub(self.world.borrow().now());
            let Some(message) = self.take(left)? else {
                return broken(format!("expected {}, nothing came for {patience:?}", wanted()));
            };
            if self.seen.contains(&message) {
                continue;
            }
            let fits = message.kind().is_some_and(|kind| kinds.contains(&kind));
            check(fits, || format!("expected {}, got {message:?}", wanted()))?;
            self.seen.push(message.clone());
            return Ok(message);
        }
    }

    /// The device repeats the same message once more.
    ///
    /// # Errors
    /// If it does not within `within`, or if it sends another message.
    pub fn again(&self, message: &Message, within: Duration) -> Outcome {
        match self.take(within)? {
            None => broken(format!("expected {message:?} once more, nothing came for {within:?}")),
            Some(got) => check(got == *message, || {
                let at = got.bytes().iter().zip(message.bytes()).position(|(a, b)| a != b).unwrap_or(0);
                format!("expected {message:?} once more, got {got:?}, which differs at byte {at}")
            }),
        }
    }

    /// The device sends no further message of this kind. Repetitions of earlier messages are skipped.
    ///
    /// # Errors
    /// If one arrives, or if there is no end to the others.
    pub fn none(&self, kind: Kind) -> Outcome {
        let (calm, mut count) = (self.calm(), 0);
        while let Some(message) = self.take(calm)? {
            count += 1;
            check(count < MOST_PASSED, || format!("{count} messages and no end, at last {message:?}"))?;
            if message.kind() == Some(kind) && !self.seen.contains(&message) {
                return broken(format!("expected no {}, got {message:?}", kind.name()));
            }
        }
        Ok(())
    }

    /// The device sends no message for that long.
    ///
    /// # Errors
    /// If it sends one.
    pub fn quiet(&self, time: Duration) -> Outcome {
        match self.take(time)? {
            None => Ok(()),
            Some(message) => broken(format!("expected silence, got {message:?}")),
        }
    }

    /// How long no message may arrive for the link to count as quiet.
    #[must_use]
    pub fn calm(&self) -> Duration {
        self.world.borrow().calm()
    }

    /// The next event that the device's program receives within `within`.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn event_within(&self, within: Duration) -> Outcome<Option<CmEvent>> {
        let channel = self.channel;
        let mut world = self.world.borrow_mut();
        let event = world.until(within, |w| Ok(w.dut.cm()?.event(channel)?))?;
        if let Some(event) = &event {
            world.note(format!("event {} status {}", event.event, event.status));
        }
        Ok(event)
    }

    /// The device's program receives this event next.
    ///
    /// # Errors
    /// If it receives another event, or none.
    pub fn event(&self, name: &str) -> Outcome<CmEvent> {
        let patience = self.world.borrow().patience();
        match self.event_within(patience)? {
            Some(event) if event.event == name => Ok(event),
            Some(event) => {
                broken(format!("expected the event {name}, got {} ({})", event.event, event.status))
            }
            None => broken(format!("expected the event {name}, none came")),
        }
    }

    /// The program receives no event.
    ///
    /// # Errors
    /// If it receives one.
    pub fn no_event(&self) -> Outcome {
        match self.event_within(self.calm())? {
            None => Ok(()),
            Some(event) => broken(format!("expected no event, got {}", event.event)),
        }
    }

    /// The fate of a REQ that was sent: `None` if the program receives it as an event, or the device's REJ.
    ///
    /// # Errors
    /// If neither happens, or something else happens.
    pub fn decision(&self) -> Outcome<Option<Message>> {
        let (patience, start) = (self.world.borrow().patience(), self.world.borrow().now());
        while self.world.borrow().now() < start + patience {
            if let Some(event) = self.event_within(self.calm())? {
                check(event.event == "CONNECT_REQUEST", || {
                    format!("expected a request, got {}", event.event)
                })?;
                return Ok(None);
            }
            if let Some(message) = self.take(Duration::ZERO)? {
                check(message.kind() == Some(Kind::Rej), || format!("expected REJ, got {message:?}"))?;
                return Ok(Some(message));
            }
        }
        broken(format!("neither an event nor a REJ within {patience:?}"))
    }

    /// Sends that REQ, and waits until the program receives it. Returns the handle of the new connection's id.
    ///
    /// # Errors
    /// If the program does not receive it.
    pub fn asks(&self, request: &Message) -> Outcome<Handle> {
        self.tx(request)?;
        let event = self.event("CONNECT_REQUEST")?;
        event.id.map_or_else(|| broken("a request without an id"), Ok)
    }

    /// The program accepts the connection. Returns its REP.
    ///
    /// # Errors
    /// If no REP arrives.
    pub fn accepted(&mut self, request: &Message, id: Handle) -> Outcome<(Link, Message)> {
        let far_qpn = 0x0040_0000 | self.world.borrow_mut().new_qpn();
        self.program("rdma_accept", |cm| cm.accept(id, far_qpn, &[]))?;
        let reply = self.rx(Kind::Rep)?;
        let link = Link {
            own: request.get(LOCAL_ID) as u32,
            far: reply.get(LOCAL_ID) as u32,
            id,
            qpn: request.get(req::QPN) as u32,
            far_qpn,
            transaction: request.get(mad::TRANSACTION),
        };
        Ok((link, reply))
    }

    /// Sets up a connection that we request, up to the ESTABLISHED event of the program.
    ///
    /// # Errors
    /// If the connection is not established.
    pub fn passive_with(&mut self, change: impl FnOnce(Message) -> Message) -> Outcome<Link> {
        let request = change(self.req());
        let id = self.asks(&request)?;
        let (link, _) = self.accepted(&request, id)?;
        self.tx(&self.about(&link, Kind::Rtu))?;
        self.event("ESTABLISHED")?;
        Ok(link)
    }

    /// The same, with the usual REQ.
    ///
    /// # Errors
    /// If the connection is not established.
    pub fn passive(&mut self) -> Outcome<Link> {
        self.passive_with(|request| request)
    }

    /// The device's program connects to us. Returns its id, its queue pair, and its REQ or SIDR_REQ.
    ///
    /// # Errors
    /// If no such message arrives.
    pub fn called(&mut self, private: &[u8]) -> Outcome<(Handle, u32, Message)> {
        let ((device, own), channel, space, port) = (self.addresses(), self.channel, self.space, self.port);
        let id = self.program("rdma_create_id", |cm| cm.id(channel, space))?;
        self.program("rdma_resolve_addr, rdma_resolve_route", |cm| cm.resolve(id, device, own, port))?;
        let qpn = 0x0040_0000 | self.world.borrow_mut().new_qpn();
        self.program("rdma_connect", |cm| cm.connect(id, qpn, private))?;
        let kind = if space == Space::Tcp { Kind::Req } else { Kind::SidrReq };
        Ok((id, qpn, self.rx(kind)?))
    }

    /// The device's program reports that its end is ready. Returns its RTU.
    ///
    /// # Errors
    /// If no RTU arrives.
    pub fn established(&mut self, id: Handle) -> Outcome<Message> {
        self.program("rdma_establish", |cm| cm.establish(id))?;
        self.rx(Kind::Rtu)
    }

    /// The program receives a DREQ of ours as an event, and agrees to the disconnection. Returns its DREP.
    ///
    /// # Errors
    /// If it does not.
    pub fn ended(&mut self, link: &Link, dreq: &Message) -> Outcome<Message> {
        self.tx(dreq)?;
        self.event("DISCONNECTED")?;
        self.program("rdma_disconnect", |cm| cm.disconnect(link.id))?;
        self.rx(Kind::Drep)
    }

    /// A connection that the device's program requests, up to its RTU.
    ///
    /// # Errors
    /// If the connection is not established.
    pub fn active(&mut self) -> Outcome<Link> {
        let (id, far_qpn, request) = self.called(&[])?;
        let reply = self.rep(&request);
        self.tx(&reply)?;
        self.event("CONNECT_RESPONSE")?;
        self.established(id)?;
        Ok(Link {
            own: reply.get(LOCAL_ID) as u32,
            far: request.get(LOCAL_ID) as u32,
            id,
            qpn: reply.get(rep::QPN) as u32,
            far_qpn,
            transaction: request.get(mad::TRANSACTION),
        })
    }
}

/// Checks that the private data of an event begins with these bytes.
///
/// # Errors
/// If it does not.
pub fn told(event: &CmEvent, data: &[u8]) -> Outcome {
    let found = unhex(&event.private);
    check(found.starts_with(data), || {
        format!("the private data is {:02x?}, not {data:02x?}", &found[..found.len().min(data.len())])
    })
}
