//! Builds and parses RoCE packets without rxe's own code, so that the suite can test that code, too.
//!
//! [`Packet`] is partial. A field that is not set gets the correct value when the packet is sent, and matches any value when
//! the packet is compared with a received one. Every field can be set to an invalid value.

pub mod cm;
mod codec;
mod icrc;
mod opcode;
mod packet;

pub use codec::{Ends, PORT, Roce, Seen, ends_of, set_header, take_apart};
pub use icrc::icrc;
pub use opcode::{Header, headers, is_response, name, op, service};
pub use packet::{Mismatch, Packet};

/// PSNs and MSNs have 24 bits.
pub const MASK24: u32 = 0x00ff_ffff;

/// Signed distance of two PSNs, `a - b`, within half the number space (IBTA vol. 1, 9.7.1).
#[must_use]
pub const fn distance(a: u32, b: u32) -> i32 {
    (a.wrapping_sub(b) << 8) as i32 >> 8
}
