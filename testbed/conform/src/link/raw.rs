//! A link of whole Ethernet frames, sent and received by a packet socket. The suite has an Ethernet and an IP address of its
//! own, so the kernel's network stack is not involved. Neighbours are resolved and answered here (ARP, RFC 826; neighbour
//! discovery, RFC 4861).

use super::{Arrival, Link, LinkError, Unsent};
use crate::wire::{Roce, ends_of};
use nix::sys::socket::{setsockopt, sockopt};
use pnet_datalink::{Channel, Config, DataLinkReceiver, DataLinkSender, NetworkInterface};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::IntoRawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How many times the device's Ethernet address is requested: for 20 seconds in total, or longer if the suite gets no
/// processor.
const ASKS: u32 = 67;
/// How long the suite waits for each answer.
const ASK: Duration = Duration::from_millis(300);
/// The timeout of a read from the packet socket.
const TICK: Duration = Duration::from_millis(1);
/// How often the carrier is checked while no frame arrives.
const LOOK: Duration = Duration::from_secs(1);

/// Buffer size: large enough for any frame.
const LARGEST: usize = 16 << 10;

/// `ETH_P_ALL` of linux/if_ether.h: every protocol.
const ALL: u16 = 3;
/// Size of the socket's receive buffer, in bytes.
const ROOM: usize = 8 << 20;

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const VLAN: u16 = 0x8100;
const IPV6: u16 = 0x86dd;
/// Ethertype of RoCEv1: a GRH follows (IBTA vol. 1, annex A16).
const ROCE: u16 = 0x8915;

/// The suite's addresses on the link.
#[derive(Clone, Copy, Debug)]
struct Host {
    mac: [u8; 6],
    address: IpAddr,
}

impl Host {
    /// A frame from the suite.
    fn headed(&self, dst: [u8; 6], kind: u16, body: &[u8]) -> Vec<u8> {
        let mut frame = [&dst[..], &self.mac[..], &kind.to_be_bytes()[..], body].concat();
        frame.resize(frame.len().max(60), 0);
        frame
    }

    /// The answer to a frame that asks for the suite's address.
    fn reply(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let (body, asker) = (frame.get(14..)?, frame.get(6..12)?.try_into().ok()?);
        match (frame.get(12..14)?, self.address) {
            ([0x08, 0x06], IpAddr::V4(own)) => {
                let asked = body.get(7) == Some(&1) && body.get(24..28)? == own.octets();
                let peer = Ipv4Addr::from(<[u8; 4]>::try_from(body.get(14..18)?).ok()?);
                asked.then(|| self.headed(asker, ARP, &arp(2, (self.mac, own), (asker, peer))))
            }
            ([0x86, 0xdd], IpAddr::V6(own)) => {
                let asked = body.get(6) == Some(&58)
                    && body.get(40) == Some(&135)
                    && body.get(48..64)? == own.octets();
                let peer = Ipv6Addr::from(<[u8; 16]>::try_from(body.get(8..24)?).ok()?);
                asked.then(|| self.headed(asker, IPV6, &discovery(136, own, peer, own, self.mac)))
            }
            _ => None,
        }
    }
}

/// A thread that answers requests for the suite's address, even while the suite waits for the device's program.
struct Answerer {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Answerer {
    fn start(name: &str, host: Host) -> Result<Self, LinkError> {
        let (mut sender, mut receiver) = frames(name)?;
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        let thread = thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                match receiver.next() {
                    Ok(frame) => {
                        if let Some(reply) = host.reply(frame) {
                            let _ = sender.send_to(&reply, None);
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                    // The suite reports this error itself, when it receives.
                    Err(_) => thread::sleep(TICK),
                }
            }
        });
        Ok(Self { ended, thread: Some(thread) })
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The link.
pub struct RawLink {
    _answerer: Answerer,
    name: String,
    sender: Box<dyn DataLinkSender>,
    receiver: Box<dyn DataLinkReceiver>,
    peer_mac: [u8; 6],
    host: Host,
    peer: IpAddr,
    roce: Roce,
    opened: Instant,
    /// When the carrier was last checked.
    looked: Instant,
    waiting: VecDeque<Vec<u8>>,
}

impl std::fmt::Debug for RawLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawLink")
            .field("own", &self.host.address)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// A locally administered Ethernet address for the suite, derived from its IP address.
fn mac_of(own: IpAddr) -> [u8; 6] {
    let [a, b, c, d] = match own {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(v6) => (u128::from(v6) as u32).to_be_bytes(),
    };
    [0x02, 0x72, a, b, c, d]
}

fn interface(name: &str) -> Result<NetworkInterface, LinkError> {
    let found = pnet_datalink::interfaces().into_iter().find(|interface| interface.name == name);
    found.ok_or_else(|| LinkError(format!("no interface {name}")))
}

/// A packet socket with a receive buffer for all frames that pass on the interface while the suite does not read. The
/// agent's own packets may be among them.
fn socket(name: &str) -> Result<i32, LinkError> {
    let denied =
        |error| LinkError::new(&format!("a packet socket on {name} (needs root or CAP_NET_RAW)"), error);
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(i32::from(ALL.to_be()))))
        .map_err(denied)?;
    // Without CAP_NET_ADMIN the default size has to suffice.
    let _ = setsockopt(&socket, sockopt::RcvBufForce, &ROOM);
    Ok(socket.into_raw_fd())
}

/// The sending and the receiving half of a packet socket.
pub(crate) type Frames = (Box<dyn DataLinkSender>, Box<dyn DataLinkReceiver>);

/// Opens a packet socket on an interface: its sending and its receiving half. A read waits for one tick at most.
///
/// # Errors
/// If there is no such interface, or the privilege (CAP_NET_RAW) is missing.
pub(crate) fn frames(name: &str) -> Result<Frames, LinkError> {
    let interface = interface(name)?;
    let config = Config {
        read_timeout: Some(TICK),
        promiscuous: true,
        read_buffer_size: LARGEST,
        write_buffer_size: LARGEST,
        socket_fd: Some(socket(name)?),
        ..Config::default()
    };
    let channel = pnet_datalink::channel(&interface, config).map_err(|error| {
        LinkError::new(&format!("a packet socket on {name} (needs root or CAP_NET_RAW)"), error)
    })?;
    let Channel::Ethernet(sender, receiver) = channel else {
        return Err(LinkError(format!("{name} is no Ethernet interface")));
    };
    Ok((sender, receiver))
}

impl RawLink {
    /// Opens interface `name` with address `own`, and resolves the device's address `peer`.
    ///
    /// # Errors
    /// If there is no such interface, if the privilege (CAP_NET_RAW) is missing, or if no host answers at that address.
    pub fn open(name: &str, own: IpAddr, peer: IpAddr, roce: Roce) -> Result<Self, LinkError> {
        let (sender, receiver) = frames(name)?;
        let host = Host { mac: mac_of(own), address: own };
        let mut link = Self {
            _answerer: Answerer::start(name, host)?,
            name: name.to_owned(),
            sender,
            receiver,
            peer_mac: [0; 6],
            host,
            peer,
            roce,
            opened: Instant::now(),
            looked: Instant::now(),
            waiting: VecDeque::new(),
        };
        link.find_neighbour(name)?;
        Ok(link)
    }

    fn find_neighbour(&mut self, name: &str) -> Result<(), LinkError> {
        for _ in 0..ASKS {
            let question = self.question();
            self.put(&question)?;
            let asked = Instant::now();
            while asked.elapsed() < ASK {
                if let Some(frame) = self.frame()?
                    && let Some(mac) = self.neighbour(&frame)
                {
                    self.peer_mac = mac;
                    return Ok(());
                }
            }
        }
        Err(LinkError(format!("nobody at {} answers on {name} within {:?}", self.peer, ASKS * ASK)))
    }

    /// Checks that the interface exists, is up, and has a carrier. If it does not, frames may be lost without an error.
    fn carried(&self) -> Result<(), LinkError> {
        if interface(&self.name)?.is_running() {
            return Ok(());
        }
        Err(LinkError(format!("the link by {} is down", self.name)))
    }

    fn put(&mut self, frame: &[u8]) -> Result<(), Unsent> {
        match self.sender.send_to(frame, None) {
            Some(Err(error)) => {
                let unsent = Unsent::new(&format!("sending a frame by {}", self.name), frame.len(), &error);
                if let Unsent::Link(_) = unsent {
                    // Without a carrier the kernel only reports that its queue has no room.
                    self.carried()?;
                }
                Err(unsent)
            }
            None => Err(LinkError("the packet socket takes no frames".into()).into()),
            Some(Ok(())) => Ok(()),
        }
    }

    /// The next frame, if one arrives within a tick.
    fn frame(&mut self) -> Result<Option<Vec<u8>>, LinkError> {
        match self.receiver.next() {
            Ok(frame) => Ok(Some(frame.to_vec())),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(LinkError::new("receiving frames (is the link down?)", error)),
        }
    }

    /// A request for the peer's Ethernet address.
    fn question(&self) -> Vec<u8> {
        match (self.host.address, self.peer) {
            (IpAddr::V4(own), IpAddr::V4(peer)) => {
                self.host.headed([0xff; 6], ARP, &arp(1, (self.host.mac, own), ([0; 6], peer)))
            }
            (IpAddr::V6(own), IpAddr::V6(peer)) => {
                let [.., a, b, c] = peer.octets();
                let group = Ipv6Addr::new(
                    0xff02,
                    0,
                    0,
                    0,
                    0,
                    1,
                    0xff00 | u16::from(a),
                    u16::from(b) << 8 | u16::from(c),
                );
                let body = discovery(135, own, group, peer, self.host.mac);
                self.host.headed([0x33, 0x33, 0xff, a, b, c], IPV6, &body)
            }
            _ => Vec::new(),
        }
    }

    /// The peer's Ethernet address, if this frame contains it.
    fn neighbour(&self, frame: &[u8]) -> Option<[u8; 6]> {
        let body = frame.get(14..)?;
        match (frame.get(12..14)?, self.peer) {
            ([0x08, 0x06], IpAddr::V4(peer)) => {
                let told = body.get(7) == Some(&2) && body.get(14..18)? == peer.octets();
                told.then(|| body.get(8..14)?.try_into().ok())?
            }
            ([0x86, 0xdd], IpAddr::V6(peer)) => {
                let told = body.get(6) == Some(&58)
                    && body.get(40) == Some(&136)
                    && body.get(48..64)? == peer.octets();
                told.then(|| frame.get(6..12)?.try_into().ok())?
            }
            _ => None,
        }
    }

    /// The destination Ethernet address for an IP packet: the device's, or that of a multicast group (RFC 1112, 6.4; RFC
    /// 2464, 7).
    fn station(&self, ip: &[u8]) -> [u8; 6] {
        match ends_of(ip).map(|ends| ends.dst).filter(IpAddr::is_multicast) {
            Some(IpAddr::V4(group)) => {
                let [_, b, c, d] = group.octets();
                [0x01, 0x00, 0x5e, b & 0x7f, c, d]
            }
            Some(IpAddr::V6(group)) => {
                let [.., a, b, c, d] = group.octets();
                [0x33, 0x33, a, b, c, d]
            }
            None => self.peer_mac,
        }
    }

    /// The IP packet in a frame to us, without Ethernet's padding.
    fn packet(&self, frame: &[u8]) -> Option<Vec<u8>> {
        // The frame is for our address, or for a group address.
        if frame.get(..6)? != self.host.mac && frame[0] & 1 == 0 {
            return None;
        }
        let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
        let (kind, start) = if word(12)? == VLAN { (word(16)?, 18) } else { (word(12)?, 14) };
        let length = match kind {
            IPV4 => usize::from(word(start + 2)?),
            IPV6 | ROCE => usize::from(word(start + 4)?) + 40,
            _ => return None,
        };
        let ip = frame.get(start..)?;
        Some(ip[..length.min(ip.len())].to_vec())
    }
}

/// The Ethertype of an IP packet, or of a packet with a GRH.
fn kind_of(ip: &[u8]) -> u16 {
    match ends_of(ip) {
        Some(ends) if ends.roce == Roce::V1 => ROCE,
        _ if ip.first().is_some_and(|first| first >> 4 == 4) => IPV4,
        _ => IPV6,
    }
}

/// An ARP message.
fn arp(op: u8, own: ([u8; 6], Ipv4Addr), peer: ([u8; 6], Ipv4Addr)) -> Vec<u8> {
    let mut body = vec![0, 1, 8, 0, 6, 4, 0, op];
    for (mac, ip) in [own, peer] {
        body.extend(mac);
        body.extend(ip.octets());
    }
    body
}

/// A neighbour solicitation (135) or advertisement (136) about `target`, with the option that holds the sender's Ethernet
/// address.
fn discovery(kind: u8, src: Ipv6Addr, dst: Ipv6Addr, target: Ipv6Addr, mac: [u8; 6]) -> Vec<u8> {
    // The solicited and override flags of an advertisement.
    let flags = if kind == 136 { 0x60 } else { 0 };
    let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    message.extend(target.octets());
    message.extend([if kind == 136 { 2 } else { 1 }, 1]);
    message.extend(mac);
    let mut pseudo = [src.octets(), dst.octets()].concat();
    pseudo.extend((message.len() as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, 58]);
    let words = [&pseudo[..], &message[..]].concat();
    let mut sum: u32 = words.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    message[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    let mut body = vec![0x60, 0, 0, 0];
    body.extend((message.len() as u16).to_be_bytes());
    body.extend([58, 255]);
    body.extend(src.octets());
    body.extend(dst.octets());
    body.extend(message);
    body
}

impl Link for RawLink {
    fn own(&self) -> IpAddr {
        self.host.address
    }

    fn source_port(&self) -> u16 {
        0xc000
    }

    fn roce(&self) -> Roce {
        self.roce
    }

    fn send(&mut self, ip: &[u8]) -> Result<(), Unsent> {
        let frame = [&self.station(ip)[..], &self.host.mac[..], &kind_of(ip).to_be_bytes()[..], ip].concat();
        self.put(&frame)
    }

    fn send_tagged(&mut self, ip: &[u8], tag: u16) -> Result<(), Unsent> {
        let words = [VLAN, tag, kind_of(ip)].map(u16::to_be_bytes).concat();
        let frame = [&self.station(ip)[..], &self.host.mac[..], &words[..], ip].concat();
        self.put(&frame)
    }

    fn recv(&mut self, within: Duration) -> Result<Option<Arrival>, LinkError> {
        let end = Instant::now() + within;
        loop {
            if let Some(ip) = self.waiting.pop_front() {
                return Ok(Some(Arrival { ip, header_seen: true }));
            }
            if let Some(frame) = self.frame()?
                && let Some(ip) = self.packet(&frame)
                && ends_of(&ip).is_some_and(|ends| ends.roce == self.roce)
            {
                self.waiting.push_back(ip);
            } else if Instant::now() >= end {
                if self.looked.elapsed() >= LOOK {
                    self.looked = Instant::now();
                    self.carried()?;
                }
                return Ok(None);
            }
        }
    }

    fn now(&self) -> Duration {
        self.opened.elapsed()
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(4)
    }

    fn calm(&self) -> Duration {
        Duration::from_millis(30)
    }
}
