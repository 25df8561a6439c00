//! Instructions of classic BPF programs, for the raw link's socket filters and for the steering of the port-4791 group.

use crate::sys::socket::Instruction;

// Instruction codes of linux/bpf_common.h: class | size | mode, or class | operation | source.
pub(super) const LOAD_WORD: u16 = 0x20;
pub(super) const LOAD_HALF: u16 = 0x28;
pub(super) const LOAD_BYTE: u16 = 0x30;
pub(super) const LOAD_LENGTH: u16 = 0x80;
pub(super) const AND: u16 = 0x54;
pub(super) const JUMP: u16 = 0x05;
pub(super) const JUMP_IF_EQUAL: u16 = 0x15;
pub(super) const JUMP_IF_AT_LEAST: u16 = 0x35;
pub(super) const RETURN: u16 = 0x06;
pub(super) const RETURN_ACCUMULATOR: u16 = 0x16;

/// An instruction without conditional jumps.
pub(super) const fn step(code: u16, k: u32) -> Instruction {
    branch(code, k, 0, 0)
}

/// Compares the accumulator with `k`. The program skips `jump_true` instructions if the comparison holds, else `jump_false`.
pub(super) const fn branch(code: u16, k: u32, jump_true: u8, jump_false: u8) -> Instruction {
    Instruction { code, jump_true, jump_false, k }
}
