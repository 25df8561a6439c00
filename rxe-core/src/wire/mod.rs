//! Packet formats. Any datagram decodes to a [`Packet`] or a [`DecodeError`]; decoding never panics. What [`emit`] writes decodes to
//! the same values.

mod aeth;
mod bth;
mod cnp;
pub mod crc;
mod encap;
mod ext;
mod gf;
mod grh;
pub mod icrc;
mod ident;
mod mad;
mod opcode;
mod packet;
mod print;
mod seal;

pub use aeth::{Aeth, NakCode, Syndrome, rnr_delay};
pub use bth::Bth;
pub use cnp::{CNP_LEN, CNP_TOS, cnp};
pub use encap::{Encapsulation, HeaderSeen, Ident};
pub use ext::{AtomicEth, Deth, Ext, Feth, Reth};
pub use grh::{GRH_LEN, Grh, NEXT_HEADER_BTH};
pub use ident::{IdentTracker, Verdict};
pub use mad::{MAD_HEADER_LEN, MAD_LEN, MadHeader};
pub use opcode::{BTH_LEN, Class, Extensions, Opcode, OpcodeInfo, Position, Service};
pub use packet::{DecodeError, Head, HeadError, ICRC_LEN, Packet, emit, wire_len};
pub use seal::{FlushIcrc, Sealer};
