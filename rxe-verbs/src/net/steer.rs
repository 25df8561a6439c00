//! The slot program: a classic BPF program that chooses which socket of the port-4791 group gets a packet.
//!
//! Several processes of a host share port 4791 as a `SO_REUSEPORT` group. The high byte of a QPN is the slot of the process
//! that owns the QP. The program looks the slot of a packet up in an explicit table. QP1 belongs to no slot, so for packets to
//! QP1 the program looks at the MAD. Replies of the connection manager have the remote communication ID, whose high byte is
//! again the slot. Requests go to the slot that alone listens for their service ID, if the table has that service ID. Other
//! requests, and all other packets, go to slot 0.
//!
//! The kernel runs the program on the UDP payload: offset 0 is the first byte of the BTH (BTH 12 bytes, DETH 8, MAD 24 bytes of
//! header; IBTA vol. 1, 9.2, 13.4.2, 12.6). A load beyond the packet's end makes the program return 0, so the program checks
//! lengths first.

use std::collections::BTreeMap;

use super::bpf::{
    AND, JUMP, JUMP_IF_AT_LEAST, JUMP_IF_EQUAL, LOAD_BYTE, LOAD_HALF, LOAD_LENGTH, LOAD_WORD, RETURN,
    RETURN_ACCUMULATOR, branch, step,
};
use crate::sys::socket::Instruction;
use rxe_core::endpoint::STEERING_PROBE;

/// Where a steering probe has the number of the group member that it is for.
pub(crate) const PROBE_MEMBER: u32 = 2;
/// Shortest packet with a BTH.
const BTH_END: u32 = 12;
const DEST_QPN_WORD: u32 = 4;
const DEST_QPN_SLOT: u32 = 5;
/// Where a packet has the management class of its MAD, behind BTH and DETH.
const MAD_CLASS: u32 = 21;
const MAD_ATTRIBUTE: u32 = 36;
/// First byte of a SIDR reply's request ID.
const SIDR_REQUEST_ID: u32 = 44;
/// First byte of the remote communication ID in all other CM replies.
const REMOTE_COMM_ID: u32 = 48;
const REMOTE_COMM_ID_END: u32 = 52;
/// Where a request has the two words of its service ID.
const SERVICE_ID: [u32; 2] = [52, 56];
const SERVICE_ID_END: u32 = 60;

/// Management class of the connection manager (IBTA vol. 1, table 104).
const CLASS_CM: u32 = 7;
const SIDR_REP: u32 = 0x18;
/// MRA, REJ, REP, RTU, DREQ, DREP, LAP, APR: attributes that carry a remote communication ID.
const REPLIES: [u32; 8] = [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1a];
/// REQ and SIDR_REQ, which have a service ID.
const REQUESTS: [u32; 2] = [0x10, 0x17];

/// Most service IDs in a table: the program compares a request with one after the other.
pub(crate) const MAX_SERVICES: usize = 32;

/// Which member of the socket group serves which slot.
///
/// Members are numbered in the order they joined; when one leaves, the last takes its number. A slot without an entry
/// belongs to the default member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotTable {
    default: u16,
    members: BTreeMap<u8, u16>,
    /// Service IDs, each with the slot that gets its requests.
    services: Vec<(u64, u8)>,
}

impl SlotTable {
    /// The table of a group with one member, which gets all packets.
    #[must_use]
    pub const fn single() -> Self {
        Self { default: 0, members: BTreeMap::new(), services: Vec::new() }
    }

    /// A table with an entry for each `(slot, member)`. The member of slot 0 is the default; without it, member 0.
    #[must_use]
    pub fn new(entries: impl IntoIterator<Item = (u8, u16)>) -> Self {
        let members: BTreeMap<u8, u16> = entries.into_iter().collect();
        Self { default: members.get(&0).copied().unwrap_or(0), members, services: Vec::new() }
    }

    /// This table, where requests for these service IDs go directly to these slots. Only the first [`MAX_SERVICES`] are used.
    pub(crate) fn with_services(self, services: &[(u64, u8)]) -> Self {
        let services = services.iter().copied().take(MAX_SERVICES).collect();
        Self { services, ..self }
    }

    /// The member that serves `slot`.
    #[must_use]
    pub fn member(&self, slot: u8) -> u16 {
        self.members.get(&slot).copied().unwrap_or(self.default)
    }

    /// The program for this table: about 35 instructions, three for each range of slots with one member, and five for
    /// each service ID.
    pub(crate) fn program(&self) -> Vec<Instruction> {
        let mut program = Vec::new();
        let default = u32::from(self.default);
        let give_up = step(RETURN, default);

        program.extend([step(LOAD_LENGTH, 0), branch(JUMP_IF_AT_LEAST, BTH_END, 1, 0), give_up]);
        // A probe names a member. If the group lacks that member, the kernel chooses one by the hash of the addresses.
        program.extend([
            step(LOAD_BYTE, 0),
            branch(JUMP_IF_EQUAL, STEERING_PROBE.into(), 0, 2),
            step(LOAD_HALF, PROBE_MEMBER),
            step(RETURN_ACCUMULATOR, 0),
        ]);
        program.extend([
            step(LOAD_WORD, DEST_QPN_WORD),
            step(AND, 0x00ff_ffff),
            branch(JUMP_IF_EQUAL, 1, 2, 0),
            step(LOAD_BYTE, DEST_QPN_SLOT),
        ]);
        // The packet is not for QP1: jump to the table. The distance is filled in when the MAD part is complete.
        let to_table = program.len();
        program.push(step(JUMP, 0));

        program.extend([
            step(LOAD_LENGTH, 0),
            branch(JUMP_IF_AT_LEAST, REMOTE_COMM_ID_END, 1, 0),
            give_up,
            step(LOAD_BYTE, MAD_CLASS),
            branch(JUMP_IF_EQUAL, CLASS_CM, 1, 0),
            give_up,
            step(LOAD_HALF, MAD_ATTRIBUTE),
        ]);
        let count = REPLIES.len() as u8;
        for (earlier, reply) in (0u8..).zip(REPLIES) {
            // Each match jumps over the later comparisons and the SIDR part (4 instructions).
            program.push(branch(JUMP_IF_EQUAL, reply, count - 1 - earlier + 4, 0));
        }
        program.push(branch(JUMP_IF_EQUAL, SIDR_REP, 1, 0));
        let to_requests = program.len();
        program.extend([
            step(JUMP, 0),
            step(LOAD_BYTE, SIDR_REQUEST_ID),
            step(JUMP, 1),
            step(LOAD_BYTE, REMOTE_COMM_ID),
        ]);

        program[to_table].k = (program.len() - to_table - 1) as u32;
        search(&self.ranges(), &mut program);
        program[to_requests].k = (program.len() - to_requests - 1) as u32;
        self.requests(&mut program);
        program
    }

    /// Appends the part for messages that are not replies. The accumulator holds their attribute.
    fn requests(&self, program: &mut Vec<Instruction>) {
        let give_up = step(RETURN, u32::from(self.default));
        let [req, sidr_req] = REQUESTS;
        program.extend([
            branch(JUMP_IF_EQUAL, req, 1, 0),
            branch(JUMP_IF_EQUAL, sidr_req, 0, 2),
            step(LOAD_LENGTH, 0),
            branch(JUMP_IF_AT_LEAST, SERVICE_ID_END, 1, 0),
            give_up,
        ]);
        for (service, slot) in &self.services {
            program.extend([
                step(LOAD_WORD, SERVICE_ID[0]),
                branch(JUMP_IF_EQUAL, (service >> 32) as u32, 0, 3),
                step(LOAD_WORD, SERVICE_ID[1]),
                branch(JUMP_IF_EQUAL, *service as u32, 0, 1),
                step(RETURN, self.member(*slot).into()),
            ]);
        }
        program.push(give_up);
    }

    /// Ranges of consecutive slots with the same member, as (last slot, member).
    fn ranges(&self) -> Vec<(u8, u16)> {
        let mut ranges: Vec<(u8, u16)> = Vec::new();
        for slot in 0..=u8::MAX {
            let member = self.member(slot);
            match ranges.last_mut() {
                Some((last, same)) if *same == member => *last = slot,
                _ => ranges.push((slot, member)),
            }
        }
        ranges
    }
}

/// Appends a binary search for the slot in the accumulator. It takes at most eight comparisons, however many processes share
/// the port.
fn search(ranges: &[(u8, u16)], program: &mut Vec<Instruction>) {
    if let [(_, member)] = ranges {
        program.push(step(RETURN, u32::from(*member)));
        return;
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    let first_high = low.last().map_or(0, |(last, _)| u32::from(*last) + 1);
    // A conditional jump skips at most 255 instructions, and the lower half may be longer. An unconditional jump has no limit.
    program.push(branch(JUMP_IF_AT_LEAST, first_high, 0, 1));
    let over = program.len();
    program.push(step(JUMP, 0));
    search(low, program);
    program[over].k = (program.len() - over - 1) as u32;
    search(high, program);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every jump stays inside and the last instruction returns: what the kernel's checker wants.
    fn well_formed(program: &[Instruction]) {
        for (at, i) in program.iter().enumerate() {
            let longest = match i.code {
                JUMP => i.k as usize,
                JUMP_IF_EQUAL | JUMP_IF_AT_LEAST => usize::from(i.jump_true.max(i.jump_false)),
                _ => 0,
            };
            assert!(
                matches!(i.code, RETURN | RETURN_ACCUMULATOR) || at + 1 + longest < program.len(),
                "{at}: {i:?}"
            );
        }
        assert_eq!(program.last().map(|i| i.code), Some(RETURN));
        assert!(program.len() <= 4096);
    }

    /// Runs a program on a packet as the kernel does.
    fn run(program: &[Instruction], packet: &[u8]) -> (u32, usize) {
        let (mut a, mut at, mut steps) = (0u32, 0, 0);
        loop {
            let i = program[at];
            (at, steps) = (at + 1, steps + 1);
            let k = i.k as usize;
            let jump = |taken: bool| usize::from(if taken { i.jump_true } else { i.jump_false });
            match i.code {
                LOAD_LENGTH => a = packet.len() as u32,
                LOAD_BYTE => a = packet[k].into(),
                LOAD_HALF => a = u16::from_be_bytes([packet[k], packet[k + 1]]).into(),
                LOAD_WORD => a = u32::from_be_bytes(packet[k..k + 4].try_into().unwrap()),
                AND => a &= i.k,
                JUMP => at += k,
                JUMP_IF_EQUAL => at += jump(a == i.k),
                JUMP_IF_AT_LEAST => at += jump(a >= i.k),
                RETURN => return (i.k, steps),
                RETURN_ACCUMULATOR => return (a, steps),
                other => panic!("unknown instruction {other:#x}"),
            }
        }
    }

    fn to_slot(slot: u8) -> [u8; 16] {
        let mut packet = [4; 16];
        packet[5] = slot;
        packet
    }

    fn check(table: &SlotTable) {
        let program = table.program();
        well_formed(&program);
        for slot in 0..=u8::MAX {
            let (member, steps) = run(&program, &to_slot(slot));
            assert_eq!(member, u32::from(table.member(slot)), "slot {slot} of {table:?}");
            assert!(steps < 40, "{steps} steps");
        }
    }

    #[test]
    fn one_member_needs_no_table() {
        let program = SlotTable::single().program();
        well_formed(&program);
        check(&SlotTable::single());
        assert_eq!(SlotTable::default(), SlotTable::single());
    }

    #[test]
    fn slots_find_their_members_and_the_rest_falls_to_slot_zero() {
        let table = SlotTable::new([(0, 2), (3, 0), (255, 1), (7, 2)]);
        check(&table);
        assert_eq!([0, 3, 7, 99, 255].map(|slot| table.member(slot)), [2, 0, 2, 2, 1]);
        check(&SlotTable::new([(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]));
    }

    #[test]
    fn a_full_table_fits() {
        let scattered = SlotTable::new((0..=255).map(|slot| (slot, u16::from(slot ^ 0xa5))));
        check(&scattered);
        check(&SlotTable::new((0..=255).map(|slot| (slot, u16::from(slot)))));
    }

    fn mad(attribute: u8, service: u64) -> [u8; 64] {
        let mut packet = [0; 64];
        (packet[7], packet[MAD_CLASS as usize], packet[MAD_ATTRIBUTE as usize + 1]) = (1, 7, attribute);
        packet[52..60].copy_from_slice(&service.to_be_bytes());
        packet
    }

    #[test]
    fn a_request_goes_to_the_slot_that_listens() {
        let wanted = [(0x106_1d2f, 3), (0x1111_2222_0106_1d2f, 7), (0x106_1d30, 9), (5, 200)];
        let table = SlotTable::new([(0, 4), (3, 0), (7, 1), (9, 2)]).with_services(&wanted);
        let program = table.program();
        well_formed(&program);
        check(&table);
        for attribute in [0x10, 0x17] {
            for (service, slot) in wanted {
                let packet = mad(attribute, service);
                assert_eq!(run(&program, &packet).0, table.member(slot).into(), "{service:#x}");
                assert_eq!(run(&program, &packet[..59]).0, 4, "too short to have one");
            }
            assert_eq!(run(&program, &mad(attribute, 0x106_1d31)).0, 4, "somebody else's");
            assert_eq!(run(&program, &mad(attribute, 0x1_0106_1d2f)).0, 4, "half of it");
        }
        assert_eq!(run(&program, &mad(0x1b, 5)).0, 4, "no request");
        let mut reply = mad(0x13, 0x106_1d30);
        reply[48] = 7;
        assert_eq!(run(&program, &reply).0, 1, "by its communication ID");
        let many: Vec<_> = (0..100).map(|n| (n, 3)).collect();
        let full =
            SlotTable::new((0..=255).map(|slot| (slot, u16::from(slot)))).with_services(&many).program();
        well_formed(&full);
        assert_eq!(run(&full, &mad(0x10, 31)).0, 3);
        assert_eq!(run(&full, &mad(0x10, 32)).0, 0, "more than fit");
    }

    #[test]
    fn a_probe_goes_where_it_says() {
        let program = SlotTable::new([(0, 2), (1, 0)]).program();
        let mut packet = [0; 12];
        packet[0] = STEERING_PROBE;
        packet[3] = 77;
        assert_eq!(run(&program, &packet).0, 77);
        assert_eq!(run(&program, &packet[..11]).0, 2, "too short to be one");
    }
}
