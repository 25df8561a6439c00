//! One packet of a capture: its headers, the result of its ICRC, and the management message in it.

use crate::{
    capture::Record,
    frame::{Frame, Other},
    icrc::{Icrc, segment_len, segment_net},
};
use rxe_cm::proto::{CmaHeader, Datagram, Message};
use rxe_core::{
    num::Psn,
    wire::{Class, Head, HeadError, MAD_HEADER_LEN, MAD_LEN, MadHeader, Opcode, Service, Syndrome},
};
use std::net::IpAddr;

/// A packet of a capture.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The frame's number in the capture, from 1 on.
    pub number: u64,
    /// Which packet of a frame that holds several (segmentation offload), from 1 on; 0 if it is alone.
    pub part: u16,
    /// When it was seen, nanoseconds since 1970.
    pub time: u64,
    /// The headers in front of it, and its bytes.
    pub frame: Frame<'a>,
    /// Its own headers, or why there are none.
    pub head: Result<Head, HeadError>,
    /// The result of its ICRC.
    pub icrc: Icrc,
}

/// A management datagram: what queue pair 1 receives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mad {
    /// A message of the connection manager.
    Cm(Box<Datagram>),
    /// A datagram of another class, or an unknown message.
    Other(MadHeader),
    /// It was captured incompletely.
    Cut,
}

/// The content of a frame.
#[derive(Debug)]
pub enum Found<'a> {
    /// One packet.
    One(Packet<'a>),
    /// Several packets that the sender sent in one frame.
    Batch(Batch<'a>),
}

impl<'a> Found<'a> {
    /// Finds the packets in a frame.
    ///
    /// # Errors
    /// [`Other`] if it is not RoCE.
    pub fn new(number: u64, record: &Record<'a>) -> Result<Self, Other> {
        let frame = Frame::find(record)?;
        let first = Packet::new(number, 0, record.time, frame);
        if first.icrc.is_wrong()
            && let Some(len) = segment_len(&frame)
        {
            return Ok(Self::Batch(Batch { number, time: record.time, frame, len, next: 0 }));
        }
        Ok(Self::One(first))
    }
}

/// The packets of a frame that holds several.
#[derive(Debug)]
pub struct Batch<'a> {
    number: u64,
    time: u64,
    frame: Frame<'a>,
    len: usize,
    next: usize,
}

impl<'a> Iterator for Batch<'a> {
    type Item = Packet<'a>;

    fn next(&mut self) -> Option<Packet<'a>> {
        let rest = self.frame.packet.get(self.next * self.len..).filter(|rest| !rest.is_empty())?;
        let bytes = &rest[..rest.len().min(self.len)];
        let frame = self.frame.with(bytes, segment_net(self.frame.net, self.next));
        self.next += 1;
        Some(Packet::new(self.number, self.next as u16, self.time, frame))
    }
}

impl<'a> Packet<'a> {
    fn new(number: u64, part: u16, time: u64, frame: Frame<'a>) -> Self {
        let head = Head::decode(frame.packet, frame.len);
        Self { number, part, time, frame, head, icrc: Icrc::judge(&frame) }
    }

    /// Source and destination address.
    #[must_use]
    pub fn addresses(&self) -> (IpAddr, IpAddr) {
        self.frame.net.addresses()
    }

    /// The captured payload; empty if the headers cannot be read.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        let Ok(head) = &self.head else { return &[] };
        let (start, bytes) = (head.info.header_len, self.frame.packet);
        let end = (start + head.payload_len).min(bytes.len());
        bytes.get(start..end).unwrap_or_default()
    }

    /// The management datagram in it, if it is one for queue pair 1.
    #[must_use]
    pub fn mad(&self) -> Option<Mad> {
        let head = self.head.as_ref().ok()?;
        if head.info.service != Service::Ud || head.bth.dest_qp.value() != 1 || head.payload_len != MAD_LEN {
            return None;
        }
        let payload = self.payload();
        let Some(header) = payload.first_chunk::<MAD_HEADER_LEN>() else { return Some(Mad::Cut) };
        let header = MadHeader::parse(header);
        if !header.is_cm() {
            return Some(Mad::Other(header));
        }
        if payload.len() < MAD_LEN {
            return Some(Mad::Cut);
        }
        Some(Datagram::parse(payload).map_or(Mad::Other(header), |datagram| Mad::Cm(datagram.into())))
    }

    /// The negative acknowledgement in it.
    #[must_use]
    pub fn nak(&self) -> Option<Syndrome> {
        let head = self.head.as_ref().ok()?;
        let is_answer =
            matches!(head.info.class, Class::Acknowledge | Class::AtomicAcknowledge | Class::ReadResponse);
        let syndrome = head.ext.aeth.syndrome;
        (is_answer && matches!(syndrome, Syndrome::Nak(_) | Syndrome::RnrNak(_))).then_some(syndrome)
    }

    /// Its opcode, if it can be read.
    #[must_use]
    pub fn opcode(&self) -> Option<Opcode> {
        self.frame.packet.first().map(|byte| Opcode(*byte))
    }

    /// Its PSN, if it can be read.
    #[must_use]
    pub fn psn(&self) -> Option<Psn> {
        self.head.as_ref().ok().map(|head| head.bth.psn)
    }

    /// A line of text: a CM message by its name, other packets by opcode and headers.
    #[must_use]
    pub fn label(&self) -> String {
        let head = match &self.head {
            Ok(head) => head,
            Err(error) => {
                let opcode = self.opcode().map_or_else(String::new, |opcode| format!("{opcode}: "));
                return format!("{opcode}{error}");
            }
        };
        match self.mad() {
            Some(Mad::Cm(datagram)) => cm_label(&datagram),
            Some(Mad::Other(header)) => {
                format!(
                    "MAD class {:#04x} method {:#04x} attribute {:#06x}",
                    header.class, header.method, header.attribute
                )
            }
            Some(Mad::Cut) => "MAD, cut".to_owned(),
            None => head.to_string(),
        }
    }
}

/// A CM message as a line of text.
fn cm_label(datagram: &Datagram) -> String {
    let name = datagram.message.name();
    match &datagram.message {
        Message::Req(req) => {
            let from = who(req.private_data.split_header().ok().map(|(header, _)| header));
            let service = port(req.service_id);
            format!("CM {name} qp {} psn {} for {service}{from}", req.local_qpn, req.starting_psn)
        }
        Message::Rep(rep) => format!("CM {name} qp {} psn {}", rep.qpn(), rep.starting_psn),
        Message::Rej(rej) => format!("CM {name} {}", rej.reason),
        Message::Mra(mra) => format!("CM {name} of a {:?}", mra.message),
        Message::SidrReq(req) => {
            let from = who(req.private_data.split_header().ok().map(|(header, _)| header));
            format!("CM {name} for {}{from}", port(req.service_id))
        }
        Message::SidrRep(rep) => format!("CM {name} {} qp {}", rep.status, rep.qpn),
        Message::Dreq(dreq) => format!("CM {name} of qp {}", dreq.remote_qpn),
        _ => format!("CM {name}"),
    }
}

fn who(header: Option<CmaHeader>) -> String {
    header.map_or_else(String::new, |header| {
        format!(" from {} port {}", header.src.to_canonical(), header.src_port)
    })
}

/// A service ID in the terms of rdma_cm.
pub(crate) fn port(id: rxe_cm::proto::ServiceId) -> String {
    match id.port() {
        Some((space, port)) => format!("RDMA_PS_{} port {port}", format!("{space:?}").to_uppercase()),
        None => format!("service {:#018x}", id.0),
    }
}
