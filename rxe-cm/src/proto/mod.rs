//! Communication management as bytes (IBTA vol. 1, chapter 12, and annex A11 for IP addresses): every message, the header in
//! front of private data, service IDs and reject reasons; and as [`machine`]s. There are no sockets and no clock. The messages use only
//! memory of the caller.
//!
//! Any 256 bytes are parsed to a [`Datagram`] or a [`ParseError`]. Numbers that are not defined are kept, reserved bits are
//! not. A datagram that was emitted parses to the same values.
//!
//! ```
//! use rxe_cm::proto::{CommId, Datagram, Message, Rtu};
//!
//! let rtu = Rtu { local_comm_id: CommId(5), remote_comm_id: CommId(9), ..Rtu::default() };
//! let datagram = Datagram { transaction: 0x1_0000_0005, modifier: 0, message: Message::Rtu(rtu) };
//! let mad = datagram.emit();
//! assert_eq!(Datagram::parse(&mad), Ok(datagram));
//! ```
#![forbid(unsafe_code)]

mod datagram;
mod layout;
pub mod machine;
mod message;
mod private_data;
mod service_id;
mod types;

pub use datagram::{Datagram, Message, ParseError};
pub use layout::{BODY_LEN, Shown};
pub use message::{Apr, Drep, Dreq, Lap, Mra, Path, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
pub use private_data::{CMA_HEADER_LEN, CmaError, CmaHeader, PrivateData, TooLong};
pub use service_id::{PortSpace, ServiceId};
pub use types::{CommId, Concerns, EXTENDED_XRC, Guid, RejectReason, SidrStatus, Transport};
