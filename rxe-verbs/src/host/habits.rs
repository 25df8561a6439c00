//! Guesses what system another host has by its packets to queue pair 1. These have fields that each system fills in its own way and
//! no receiver checks.

use rxe_core::{num::Qpn, wire::Packet};
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, net::IpAddr};

/// Most hosts that are remembered. If there is one more, all are forgotten.
const MOST: usize = 1024;
/// UDP source ports of Linux' `rdma_rxe` for queue pair 1: a hash of the number 1. Older kernels use the first port of the range for
/// all packets.
const KERNEL_PORTS: [u16; 2] = [55_410, 49_152];
/// The first of the UDP source ports that are for this (RoCEv2 annex A17.4.3).
const FIRST_PORT: u16 = 0xc000;

/// A system that sends such packets. Others may send the same, so this is a guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Habit {
    /// Linux' `rdma_rxe` (seen in captures of 2023 and on Linux 6.1 and 6.12): MigReq 0, and it asks for acknowledgements of
    /// datagrams.
    Kernel,
    /// ConnectX-4 to ConnectX-6 (captures of 2017 to 2023): MigReq 1, no acknowledgements asked for, a source port of the range
    /// for that. rxe sends the same. Other vendors' adapters may differ, and are unknown then.
    Adapter,
}

impl Habit {
    /// The system that sends packets like this one. `None` if it is not to queue pair 1, or if no known system sends such packets.
    #[must_use]
    pub fn of(packet: &Packet<'_>, source_port: u16) -> Option<Self> {
        if packet.bth.dest_qp != Qpn::GSI {
            return None;
        }
        match (packet.bth.migreq, packet.bth.ack_req, source_port) {
            (false, true, port) if KERNEL_PORTS.contains(&port) => Some(Self::Kernel),
            (true, false, FIRST_PORT..) => Some(Self::Adapter),
            _ => None,
        }
    }
}

/// The systems of hosts whose packets have arrived. Senders can forge addresses, so there may be too many, or wrong ones.
#[derive(Debug, Default)]
pub(crate) struct Habits(HashMap<IpAddr, Option<Habit>>);

impl Habits {
    /// Notes an intact packet. The latest counts, because a host may have been restarted with another system.
    pub(crate) fn note(&mut self, from: IpAddr, source_port: u16, packet: &Packet<'_>) {
        if self.0.len() >= MOST && !self.0.contains_key(&from) {
            self.0.clear();
        }
        self.0.insert(from, Habit::of(packet, source_port));
    }

    /// All that are known, by address.
    pub(crate) fn all(&self) -> Vec<(IpAddr, Habit)> {
        let mut all: Vec<_> = self.0.iter().filter_map(|(who, habit)| Some((*who, (*habit)?))).collect();
        all.sort_unstable_by_key(|(who, _)| *who);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames of adapters and kernels from real wires.
    const FRAMES: &str = include_str!("../../../rxe-core/tests/data/frames.txt");

    /// UDP source port of an IPv4 frame, and what follows UDP's header.
    fn taken_apart(frame: &[u8]) -> Option<(u16, &[u8])> {
        let ip = if frame.get(12..14)? == [0x81, 0] { &frame[18..] } else { &frame[14..] };
        let udp = &ip[20..];
        let length = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
        Some((u16::from_be_bytes([udp[0], udp[1]]), udp.get(8..length)?))
    }

    fn bytes_of(line: &str) -> Vec<u8> {
        let digits: Vec<u8> = line.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// Each frame to queue pair 1 is recognised by the comment above it, and no other frame is anything.
    #[test]
    fn frames_of_real_wires_are_recognised() {
        let (mut owner, mut kernels, mut adapters) = ("", 0, 0);
        for line in FRAMES.lines() {
            if let Some(comment) = line.strip_prefix('#') {
                owner = comment;
                continue;
            }
            let frame = bytes_of(line);
            let Some((port, bytes)) = taken_apart(&frame) else { continue };
            let Ok(packet) = Packet::decode(bytes) else { continue };
            let habit = Habit::of(&packet, port);
            if packet.bth.dest_qp != Qpn::GSI {
                assert_eq!(habit, None, "{owner}");
            } else if owner.to_lowercase().contains("kernel") {
                assert_eq!(habit, Some(Habit::Kernel), "{owner}");
                kernels += 1;
            } else {
                assert_eq!(habit, Some(Habit::Adapter), "{owner}");
                adapters += 1;
            }
        }
        assert!(kernels >= 3 && adapters >= 2, "{kernels} and {adapters}");
    }

    #[test]
    fn the_latest_counts_and_what_is_like_nobody_is_unknown() {
        let frames: Vec<_> = FRAMES.lines().filter(|line| !line.starts_with('#')).map(bytes_of).collect();
        let (port, bytes) = taken_apart(&frames[0]).unwrap();
        let packet = Packet::decode(bytes).unwrap();
        let mut habits = Habits::default();
        let who = IpAddr::from([10, 0, 0, 1]);
        for (port, wanted) in
            [(port, Some(Habit::Adapter)), (4791, None), (1, None), (0xffff, Some(Habit::Adapter))]
        {
            habits.note(who, port, &packet);
            let known: Vec<_> = wanted.iter().map(|habit| (who, *habit)).collect();
            assert_eq!(habits.all(), known, "{port}");
        }
        for host in 0..3 * MOST as u32 {
            habits.note(host.to_be_bytes().into(), port, &packet);
            assert!(habits.all().len() <= MOST);
        }
        assert!(habits.all().iter().all(|(other, _)| *other != who));
    }
}
