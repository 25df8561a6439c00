//! The words of classic BPF programs that the filters of sockets and the steering of their group are made of.

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

/// An instruction that is no branch.
pub(super) const fn step(code: u16, k: u32) -> Instruction {
    branch(code, k, 0, 0)
}

/// A comparison of the accumulator with `k`, and how many instructions it skips if it holds, and if not.
pub(super) const fn branch(code: u16, k: u32, jump_true: u8, jump_false: u8) -> Instruction {
    Instruction { code, jump_true, jump_false, k }
}
