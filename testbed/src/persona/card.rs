//! The persona's network card: whole frames through a packet socket, one IP ID counter, and losses on demand.

use super::{
    findings::Findings,
    wire::{self, Ends, Packet},
};
use pnet_datalink::{Channel, Config, DataLinkReceiver, DataLinkSender};
use std::{collections::VecDeque, fmt, io, net::IpAddr, time::Duration};

/// How long [`Card::receive`] waits.
const PATIENCE: Duration = Duration::from_millis(1);
/// Packets of the trace that are kept.
const TRACE: usize = 200;

/// Direction of a packet as the persona sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the persona.
    Out,
    /// To the persona.
    In,
}

/// A loss to come: the packet of this opcode after `skip` others of it.
#[derive(Clone, Copy, Debug)]
struct Loss {
    direction: Direction,
    opcode: u8,
    skip: u32,
}

/// A packet that reached the card.
#[derive(Debug)]
pub struct Arrival {
    /// The packet.
    pub packet: Packet,
    /// Whether it is to be treated as lost behind the card.
    pub lost: bool,
}

/// The card.
pub struct Card {
    sender: Box<dyn DataLinkSender>,
    receiver: Box<dyn DataLinkReceiver>,
    ends: Ends,
    ident: u16,
    losses: Vec<Loss>,
    lost: u32,
    trace: VecDeque<String>,
    /// What was found about the peer.
    pub findings: Findings,
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Card").field("ends", &self.ends).finish_non_exhaustive()
    }
}

impl Card {
    /// A card on `interface` of the network namespace of the calling thread. Needs root there.
    ///
    /// # Errors
    ///
    /// Those of the packet socket; `NotFound` if there is no such interface.
    pub fn open(interface: &str, own: IpAddr, peer: IpAddr, peer_mac: [u8; 6]) -> io::Result<Self> {
        let (interface, own_mac) = find(interface)?;
        let config = Config { read_timeout: Some(PATIENCE), read_buffer_size: 1 << 17, ..Config::default() };
        let Channel::Ethernet(sender, receiver) = pnet_datalink::channel(&interface, config)? else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let ends = Ends { own_mac, peer_mac, own, peer };
        Ok(Self {
            sender,
            receiver,
            ends,
            ident: 0x5a10,
            losses: Vec::new(),
            lost: 0,
            trace: VecDeque::new(),
            findings: Findings::default(),
        })
    }

    /// Sends `packet` with the next IP ID.
    ///
    /// # Panics
    ///
    /// If the socket refuses it.
    pub fn send(&mut self, packet: &Packet) {
        self.ident = self.ident.wrapping_add(1);
        if self.ident == 0 {
            self.ident = 1;
        }
        let packet = Packet { ident: Some((self.ident, 0x4000)), ..packet.clone() };
        let lost = self.is_lost(Direction::Out, packet.opcode);
        self.note("->", &packet, lost);
        if !lost {
            let frame = wire::build(&self.ends, &packet);
            self.sender
                .send_to(&frame, None)
                .expect("a packet socket sends at once")
                .expect("the frame left");
        }
    }

    /// Moves the IP ID counter, as traffic with somebody else would.
    pub const fn move_ident(&mut self, by: u16) {
        self.ident = self.ident.wrapping_add(by);
    }

    /// Loses the packet with `opcode` that comes after `skip` others with it from now on.
    pub fn lose(&mut self, direction: Direction, opcode: u8, skip: u32) {
        self.losses.push(Loss { direction, opcode, skip });
    }

    /// Packets lost on demand so far.
    #[must_use]
    pub const fn lost(&self) -> u32 {
        self.lost
    }

    fn is_lost(&mut self, direction: Direction, opcode: u8) -> bool {
        let mut lost = false;
        self.losses.retain_mut(|loss| {
            if (loss.direction, loss.opcode) != (direction, opcode) {
                return true;
            }
            let now = loss.skip == 0;
            loss.skip = loss.skip.saturating_sub(1);
            lost |= now;
            !now
        });
        self.lost += u32::from(lost);
        lost
    }

    /// The next packet from the peer, if one comes within a millisecond. Its form has been judged.
    ///
    /// # Panics
    ///
    /// If the socket fails.
    pub fn receive(&mut self) -> Option<Arrival> {
        let frame = match self.receiver.next() {
            Ok(frame) => frame,
            Err(error) if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::Interrupted) => {
                return None;
            }
            Err(error) => panic!("the packet socket failed: {error}"),
        };
        let parsed = wire::parse(&self.ends, frame)?;
        let parsed = match parsed {
            Ok(parsed) => parsed,
            Err(why) => {
                self.findings.check("a known opcode, headers complete", false, || why);
                return None;
            }
        };
        self.findings.check("a known opcode, headers complete", true, String::new);
        for (law, holds) in &parsed.laws {
            self.findings.check(law, *holds, || format!("{:?}", parsed.packet));
        }
        let lost = self.is_lost(Direction::In, parsed.packet.opcode);
        self.note("<-", &parsed.packet, lost);
        Some(Arrival { packet: parsed.packet, lost })
    }

    fn note(&mut self, arrow: &str, packet: &Packet, lost: bool) {
        if self.trace.len() == TRACE {
            self.trace.pop_front();
        }
        let asks = if packet.asks() { " asks" } else { "" };
        let aeth = packet.aeth.map_or_else(String::new, |a| format!(" {:02x}/{}", a.syndrome, a.msn));
        let lost = if lost { " LOST" } else { "" };
        self.trace.push_back(format!(
            "{arrow} qp {:06x} op {:02x} psn {:06x} {:4} B{aeth}{asks}{lost}",
            packet.qpn,
            packet.opcode,
            packet.psn,
            packet.payload.len()
        ));
    }

    /// The last packets, for a failure's message.
    #[must_use]
    pub fn trace(&self) -> String {
        self.trace.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// The Ethernet address of an interface of the calling thread's network namespace.
///
/// # Errors
///
/// `NotFound` if there is no such interface.
pub fn mac(interface: &str) -> io::Result<[u8; 6]> {
    find(interface).map(|found| found.1)
}

fn find(name: &str) -> io::Result<(pnet_datalink::NetworkInterface, [u8; 6])> {
    let interface = pnet_datalink::interfaces().into_iter().find(|interface| interface.name == name);
    let interface = interface.ok_or(io::ErrorKind::NotFound)?;
    let mac = interface.mac.ok_or(io::ErrorKind::NotFound)?.octets();
    Ok((interface, mac))
}
