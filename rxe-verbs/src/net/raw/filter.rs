//! BPF filters for the sockets of a raw link: they accept the packets for this process. Each process accepts the queue pairs of
//! its own slot, as the steering program does for UDP sockets ([`crate::net::steer`]).

use super::frame::{ETHERNET, ETHERTYPE_IPV4, ETHERTYPE_ROCE_V1, IPV4, IPV6, UDP, octets};
use core::net::IpAddr;

use crate::net::{
    ROCE_PORT,
    bpf::{AND, JUMP_IF_EQUAL, LOAD_BYTE, LOAD_HALF, LOAD_WORD, RETURN, branch, step},
};
use crate::sys::socket::Instruction;
use rxe_core::endpoint::STEERING_PROBE;

/// Which packets a filter accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    /// Top byte of the process's queue pair numbers. `None` accepts only packets to multicast addresses.
    pub slot: Option<u8>,
    /// Accept packets to queue pair 1.
    pub gsi: bool,
    /// Accept packets to multicast groups (destination QP 0xffffff).
    pub groups: bool,
    /// Accept unicast packets to this address alone.
    pub only: Option<IpAddr>,
}

/// Continues if the accumulator is `k`, else drops the packet. [`finish`] sets the jump.
const fn need(k: u32) -> Instruction {
    branch(JUMP_IF_EQUAL, k, 0, u8::MAX)
}

/// Accepts the packet if the accumulator is `k`, else continues. [`finish`] sets the jump.
const fn take(k: u32) -> Instruction {
    branch(JUMP_IF_EQUAL, k, u8::MAX, 0)
}

/// The filter of the packet socket for `ethertype`. A load beyond a frame's end ends the program and drops the frame.
pub(super) fn of_frames(ethertype: u16, wanted: Wanted) -> Vec<Instruction> {
    let ethernet = ETHERNET as u32;
    let (mut program, bth) = match ethertype {
        ETHERTYPE_ROCE_V1 => (vec![step(LOAD_BYTE, ethernet + 6), need(0x1b)], ethernet + 40),
        _ => {
            let (protocol, ip) = if ethertype == ETHERTYPE_IPV4 { (9, IPV4) } else { (6, IPV6) };
            let udp = ethernet + ip as u32;
            let program = vec![
                step(LOAD_BYTE, ethernet + protocol),
                need(17),
                step(LOAD_HALF, udp + 2),
                need(u32::from(ROCE_PORT)),
            ];
            (program, udp + UDP as u32)
        }
    };
    let at = ethernet + if ethertype == ETHERTYPE_IPV4 { 16 } else { 24 };
    if wanted.slot.is_none() {
        let (mask, group) = if ethertype == ETHERTYPE_IPV4 { (0xf0, 0xe0) } else { (0xff, 0xff) };
        program.extend([step(LOAD_BYTE, at), step(AND, mask), need(group)]);
    }
    program.extend([step(LOAD_WORD, bth + 4), step(AND, 0x00ff_ffff)]);
    program.push(if wanted.groups { take(0x00ff_ffff) } else { refuse(0x00ff_ffff) });
    match wanted.only {
        None => {}
        Some(IpAddr::V4(own)) if ethertype == ETHERTYPE_IPV4 => {
            program.extend([step(LOAD_WORD, at), need(own.to_bits())]);
        }
        Some(own) => {
            for (word, bytes) in (at..).step_by(4).zip(octets(own).chunks_exact(4)) {
                let bytes = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                program.extend([step(LOAD_WORD, word), need(bytes)]);
            }
        }
    }
    program.extend([step(LOAD_WORD, bth + 4), step(AND, 0x00ff_ffff)]);
    program.push(if wanted.gsi { take(1) } else { refuse(1) });
    match wanted.slot {
        Some(slot) => program.extend([step(LOAD_BYTE, bth + 5), need(u32::from(slot))]),
        None => program.push(step(RETURN, 0)),
    }
    finish(program)
}

/// The filter of a port-4791 socket beside a raw link. With `shared` it accepts what the host service and its steering need:
/// packets to queue pair 1, to groups, and steering probes. With `slot` it accepts all packets for the process of that slot.
/// Else it accepts nothing; the socket then only keeps the kernel from telling peers that the port is closed. The filter of a
/// UDP socket sees packets from their UDP header on.
pub(super) fn of_port(shared: bool, slot: Option<u8>) -> Vec<Instruction> {
    let bth = UDP as u32;
    let mut program = Vec::new();
    if shared {
        program.extend([step(LOAD_BYTE, bth), take(u32::from(STEERING_PROBE))]);
    }
    if shared || slot.is_some() {
        program.extend([step(LOAD_WORD, bth + 4), step(AND, 0x00ff_ffff), take(1), take(0x00ff_ffff)]);
    }
    if let Some(slot) = slot {
        program.extend([step(LOAD_BYTE, bth + 5), take(u32::from(slot))]);
    }
    program.push(step(RETURN, 0));
    finish(program)
}

/// Drops the packet if the accumulator is `k`, else continues. [`finish`] sets the jump.
const fn refuse(k: u32) -> Instruction {
    branch(JUMP_IF_EQUAL, k, u8::MAX - 1, 0)
}

/// Appends the two returns, accept and drop, and sets the jumps of [`need`], [`take`] and [`refuse`] to them.
fn finish(mut program: Vec<Instruction>) -> Vec<Instruction> {
    let end = program.len();
    for (at, instruction) in program.iter_mut().enumerate() {
        let (accept, drop) = ((end - at - 1) as u8, (end - at) as u8);
        match (instruction.jump_true, instruction.jump_false) {
            (u8::MAX, _) => instruction.jump_true = accept,
            (_, u8::MAX) => instruction.jump_false = drop,
            (jump, _) if jump == u8::MAX - 1 => instruction.jump_true = drop,
            _ => {}
        }
    }
    program.extend([step(RETURN, u32::MAX), step(RETURN, 0)]);
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::raw::frame::ETHERTYPE_IPV6;

    /// Runs a program as the kernel does; whether it accepts.
    fn accepts(program: &[Instruction], packet: &[u8]) -> bool {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let Instruction { code, jump_true, jump_false, k } = program[at];
            let load = |len: usize| {
                let bytes = packet.get(k as usize..k as usize + len)?;
                Some(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
            };
            let loaded = match code {
                LOAD_WORD => load(4),
                LOAD_HALF => load(2),
                LOAD_BYTE => load(1),
                AND => Some(accumulator & k),
                RETURN => return k != 0,
                _ => {
                    at += usize::from(if accumulator == k { jump_true } else { jump_false });
                    Some(accumulator)
                }
            };
            let Some(loaded) = loaded else { return false };
            accumulator = loaded;
            at += 1;
        }
    }

    /// A frame to a queue pair, at 10.0.0.9 or ::ffff:10.0.0.9.
    fn frame(ethertype: u16, qpn: u32) -> Vec<u8> {
        let (mut frame, bth) = match ethertype {
            ETHERTYPE_IPV4 => (vec![0; 70], 42),
            ETHERTYPE_IPV6 => (vec![0; 90], 62),
            _ => (vec![0; 82], 54),
        };
        match ethertype {
            ETHERTYPE_IPV4 => {
                frame[23] = 17;
                frame[30..34].copy_from_slice(&[10, 0, 0, 9]);
            }
            _ => {
                frame[20] = if ethertype == ETHERTYPE_IPV6 { 17 } else { 0x1b };
                frame[48..54].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 9]);
            }
        }
        if ethertype != ETHERTYPE_ROCE_V1 {
            frame[bth - 6..bth - 4].copy_from_slice(&ROCE_PORT.to_be_bytes());
        }
        frame[bth + 4..bth + 8].copy_from_slice(&qpn.to_be_bytes());
        frame
    }

    #[test]
    fn each_process_takes_what_is_its() {
        for ethertype in [ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ROCE_V1] {
            for all in [false, true] {
                for only in [None, Some(IpAddr::from([10, 0, 0, 9])), Some([10, 0, 0, 8].into())] {
                    let program = of_frames(ethertype, Wanted { slot: Some(7), gsi: all, groups: all, only });
                    let here = only != Some([10, 0, 0, 8].into());
                    let takes = |qpn| accepts(&program, &frame(ethertype, qpn));
                    assert_eq!(takes(0x07_1234), here, "{ethertype:#x} {only:?}");
                    assert!(!takes(0x08_1234));
                    assert_eq!(takes(1), here && all);
                    assert_eq!(takes(0xff_ffff), all);
                    let mut other = frame(ethertype, 0x07_1234);
                    other[if ethertype == ETHERTYPE_IPV4 { 23 } else { 20 }] = 6;
                    assert!(!accepts(&program, &other), "another protocol");
                    for cut in 0..frame(ethertype, 0).len() - 20 {
                        assert!(!accepts(&program, &frame(ethertype, 0x07_1234)[..cut]), "cut to {cut}");
                    }
                }
            }
        }
    }

    #[test]
    fn beside_the_port_frames_bring_groups_alone() {
        for (ethertype, at, group) in [(ETHERTYPE_IPV4, 30, 0xef), (ETHERTYPE_IPV6, 38, 0xff)] {
            for groups in [false, true] {
                let program = of_frames(ethertype, Wanted { slot: None, gsi: false, groups, only: None });
                let takes = |address: u8, qpn| {
                    let mut frame = frame(ethertype, qpn);
                    frame[at] = address;
                    accepts(&program, &frame)
                };
                for qpn in [1, 0x00_1234, 0x07_1234, 0xff_ffff] {
                    assert!(!takes(10, qpn));
                    assert_eq!(takes(group, qpn), groups && qpn == 0xff_ffff, "{ethertype:#x} {qpn:#x}");
                }
            }
        }
    }

    #[test]
    fn the_port_takes_what_the_host_service_needs() {
        let packet = |opcode: u8, qpn: u32| {
            let mut packet = vec![0; 8 + 16];
            packet[8] = opcode;
            packet[12..16].copy_from_slice(&qpn.to_be_bytes());
            packet
        };
        let takes = |shared, opcode, qpn| accepts(&of_port(shared, None), &packet(opcode, qpn));
        assert!(takes(true, 0x64, 1) && takes(true, 0x64, 0xff_ffff) && takes(true, STEERING_PROBE, 9));
        assert!(!takes(true, 0x0a, 0x07_1234) && !takes(false, 0x64, 1));
        for shared in [false, true] {
            let takes = |qpn| accepts(&of_port(shared, Some(7)), &packet(0x0a, qpn));
            assert!(takes(0x07_1234) && !takes(0x08_1234) && takes(1) && takes(0xff_ffff), "{shared}");
        }
    }
}
