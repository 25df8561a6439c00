//! Bytes on the wire. Decoding is total: any datagram gives a [`Packet`] or a [`DecodeError`], never a panic; what is
//! emitted decodes to the same values.

mod aeth;
mod bth;
mod ext;
mod gf;
pub mod icrc;
mod ident;
mod opcode;
mod packet;

pub use aeth::{Aeth, NakCode, Syndrome, rnr_delay};
pub use bth::Bth;
pub use ext::{AtomicEth, Deth, Ext, Feth, Reth};
pub use ident::{HeaderSeen, IdentTracker, Verdict};
pub use opcode::{BTH_LEN, Class, Extensions, Opcode, OpcodeInfo, Position, Service};
pub use packet::{DecodeError, ICRC_LEN, Packet, emit, wire_len};
