//! Packets that nobody asked for: rubbish, and batches that are steered as one although they are for two slots.

use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, SockaddrStorage, sendmsg, socket,
};
use std::{
    io::IoSlice,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    thread,
    time::{Duration, Instant},
};
use testbed::{agent::Failure, pattern::pattern};

const ROCE_PORT: u16 = 4791;
/// Bytes of each packet of a batch.
const SEGMENT: usize = 64;
/// First byte of what a host probes its own steering with.
const PROBE: u8 = 0xff;
/// RC SEND only, UD SEND only (IBTA vol. 1, table 38).
const RC_SEND_ONLY: u8 = 0x04;
const UD_SEND_ONLY: u8 = 0x64;
/// A slot that is taken when all others are.
const NO_SLOT: u8 = 0xfe;
/// Sockets, and so flows.
const SOCKETS: u64 = 8;

fn head(opcode: u8, qpn: u32) -> [u8; 12] {
    let [_, slot, middle, low] = qpn.to_be_bytes();
    [opcode, 0x40, 0xff, 0xff, 0, slot, middle, low, 0, 0, 0, 0]
}

/// `stray ADDRESS QPN QPN COUNT`: so many batches (UDP_SEGMENT) of two packets, one for each queue pair. The loopback
/// delivers a batch whole, so both packets come to the process of the first, which must give the second away.
pub(crate) fn stray(arguments: &[String]) -> Result<(), Failure> {
    let [address, first, second, count] = arguments else {
        return Err("stray ADDRESS QPN QPN COUNT".into());
    };
    let address = SocketAddr::new(address.parse::<IpAddr>()?, ROCE_PORT);
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut batch = pattern(1, 2 * SEGMENT);
    batch[..12].copy_from_slice(&head(RC_SEND_ONLY, first.parse()?));
    batch[SEGMENT..][..12].copy_from_slice(&head(RC_SEND_ONLY, second.parse()?));
    let segment = SEGMENT as u16;
    for _ in 0..count.parse::<u32>()? {
        sendmsg(
            fd.as_raw_fd(),
            &[IoSlice::new(&batch)],
            &[ControlMessage::UdpGsoSegments(&segment)],
            MsgFlags::empty(),
            Some(&SockaddrStorage::from(address)),
        )?;
    }
    Ok(())
}

/// `rubbish ADDRESS COUNT PER_SECOND SEED SLOTS QPNS`: packets of all kinds that are wrong: too short, without any
/// sense, for queue pairs that exist and for the connection manager, but with a wrong ICRC. SLOTS and QPNS are lists with
/// commas; without any, all slots are tried.
pub(crate) fn rubbish(arguments: &[String]) -> Result<(), Failure> {
    let [address, count, per_second, seed, slots, qpns] = arguments else {
        return Err("rubbish ADDRESS COUNT PER_SECOND SEED SLOTS QPNS".into());
    };
    let address = SocketAddr::new(address.parse::<IpAddr>()?, ROCE_PORT);
    let (count, per_second, seed): (u64, u64, u64) = (count.parse()?, per_second.parse()?, seed.parse()?);
    let mut maker = Maker { slots: list(slots)?, qpns: list(qpns)? };
    if !maker.slots.is_empty() {
        maker.slots.push(NO_SLOT);
    }
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let sockets: Result<Vec<UdpSocket>, _> = (0..SOCKETS).map(|_| UdpSocket::bind((any, 0))).collect();
    let sockets = sockets?;
    let begin = Instant::now();
    for number in 0..count {
        let due = begin + Duration::from_micros(number * 1_000_000 / per_second.max(1));
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let packet = maker.packet(seed << 32 | number);
        sockets[(number % SOCKETS) as usize].send_to(&packet, address)?;
    }
    println!("{count}");
    Ok(())
}

fn list<T: core::str::FromStr>(text: &str) -> Result<Vec<T>, T::Err> {
    text.split(',').filter(|item| !item.is_empty()).map(str::parse).collect()
}

struct Maker {
    /// Slots to which packets are sent, all if empty.
    slots: Vec<u8>,
    qpns: Vec<u32>,
}

impl Maker {
    fn packet(&self, seed: u64) -> Vec<u8> {
        let dice = pattern(seed, 1600);
        let (dice, mut packet) = dice.split_at(16);
        let len = usize::from(u16::from_le_bytes([dice[0], dice[1]])) % 1500;
        let slot = match self.slots.len() {
            0 => dice[2],
            count => self.slots[usize::from(dice[2]) % count],
        };
        match dice[3] % 4 {
            0 => packet = &packet[..len % 12],
            1 if !self.qpns.is_empty() => {
                let qpn = self.qpns[usize::from(dice[4]) % self.qpns.len()];
                return [&head(dice[5] & 0x7f, qpn), &packet[..len]].concat();
            }
            2 => return Self::management(slot, dice, packet),
            _ => packet = &packet[..len],
        }
        let mut packet = packet.to_vec();
        if let Some(there) = packet.get_mut(5) {
            *there = slot;
        }
        // A probe of exactly the right length is no rubbish, and is counted by nobody; nor is one that may be any member's.
        if !self.slots.is_empty() && packet.first() == Some(&PROBE) {
            packet[0] = 0;
        }
        packet
    }

    /// A message of the connection manager (IBTA vol. 1, 12.6) for queue pair 1, with a wrong ICRC.
    fn management(slot: u8, dice: &[u8], noise: &[u8]) -> Vec<u8> {
        let mut packet = head(UD_SEND_ONLY, 1).to_vec();
        // DETH: the Q_Key of queue pair 1, which also sent it.
        packet.extend([0x80, 1, 0, 0, 0, 0, 0, 1]);
        // MAD: version, class 7, class version, method Send; the attribute behind status and transaction.
        let mut mad = noise[..256].to_vec();
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[16..18].copy_from_slice(&[0, 0x10 + dice[6] % 12]);
        // Both places where a reply names whom it answers.
        mad[24] = slot;
        mad[28] = slot;
        packet.extend(mad);
        packet.extend(&noise[256..260]);
        packet
    }
}
