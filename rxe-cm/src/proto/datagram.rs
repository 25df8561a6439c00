//! A whole management datagram: header and message.

use super::{
    layout::{BODY_LEN, Shown},
    message::{Apr, Drep, Dreq, Lap, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq},
};
use core::fmt;
use rxe_core::wire::{MAD_HEADER_LEN, MAD_LEN, MadHeader};
use thiserror::Error;

/// Why bytes are not a message of the connection manager. Each is a counted drop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ParseError {
    /// Not 256 bytes.
    #[error("{0} bytes, a management datagram has 256")]
    Length(usize),
    /// The management class, version or method is not that of the connection manager.
    #[error("class {class:#04x} version {version} method {method:#04x} is not the connection manager's")]
    NotCm {
        /// Management class.
        class: u8,
        /// Class version.
        version: u8,
        /// Method.
        method: u8,
    },
    /// The attribute ID is that of no known message.
    #[error("unknown message {0:#06x}")]
    Message(u16),
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $attribute:literal $words:literal,)*) => {
        /// A message of the connection manager.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Message {
            $($(#[$doc])* $name($name),)*
        }

        impl Message {
            /// Its number in the management header.
            #[must_use]
            pub const fn attribute(&self) -> u16 {
                match self {
                    $(Self::$name(_) => $attribute,)*
                }
            }

            /// Its name as the specification writes it.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $words,)*
                }
            }

            /// Shows every field by name.
            pub fn each(&self, show: &mut dyn FnMut(&'static str, &dyn fmt::Debug)) {
                match self {
                    $(Self::$name(message) => message.each(show),)*
                }
            }

            /// Shows every field by name, with what its value means (see [`Shown`]).
            pub fn each_shown(&self, show: &mut dyn FnMut(&'static str, Shown<'_>, &dyn fmt::Debug)) {
                match self {
                    $(Self::$name(message) => message.each_shown(show),)*
                }
            }

            fn parse(attribute: u16, body: &[u8; BODY_LEN]) -> Option<Self> {
                match attribute {
                    $($attribute => Some(Self::$name($name::parse(body))),)*
                    _ => None,
                }
            }

            fn emit(&self, body: &mut [u8; BODY_LEN]) {
                match self {
                    $(Self::$name(message) => message.emit(body),)*
                }
            }
        }

        $(impl From<$name> for Message {
            fn from(message: $name) -> Self {
                Self::$name(message)
            }
        })*
    };
}

messages! {
    /// Asks for a connection.
    Req = 0x10 "REQ",
    /// Says that the answer will take longer.
    Mra = 0x11 "MRA",
    /// Refuses.
    Rej = 0x12 "REJ",
    /// Accepts.
    Rep = 0x13 "REP",
    /// Confirms.
    Rtu = 0x14 "RTU",
    /// Asks to end the connection.
    Dreq = 0x15 "DREQ",
    /// Confirms that the connection has ended.
    Drep = 0x16 "DREP",
    /// Asks for a datagram service.
    SidrReq = 0x17 "SIDR_REQ",
    /// Answers which queue pair serves it.
    SidrRep = 0x18 "SIDR_REP",
    /// Proposes an alternate path.
    Lap = 0x19 "LAP",
    /// Answers the proposal.
    Apr = 0x1a "APR",
}

/// A message, and the fields of its management header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// Transaction ID: the side that asks chooses it, and the answer has the same. Peers match messages by communication IDs instead.
    pub transaction: u64,
    /// Options of enhanced connection establishment (REQ, REP, SIDR_REP); else 0.
    pub modifier: u32,
    /// The message.
    pub message: Message,
}

impl Datagram {
    /// Reads a datagram. Its status is ignored, as kernels do.
    ///
    /// # Errors
    /// [`ParseError`] says why it is not a message of the connection manager.
    pub fn parse(mad: &[u8]) -> Result<Self, ParseError> {
        let error = ParseError::Length(mad.len());
        let (head, rest) = mad.split_first_chunk::<MAD_HEADER_LEN>().ok_or(error)?;
        let body: &[u8; BODY_LEN] = rest.try_into().map_err(|_| error)?;
        let head = MadHeader::parse(head);
        if !head.is_cm() {
            let MadHeader { class, class_version: version, method, .. } = head;
            return Err(ParseError::NotCm { class, version, method });
        }
        let message = Message::parse(head.attribute, body).ok_or(ParseError::Message(head.attribute))?;
        Ok(Self { transaction: head.transaction, modifier: head.modifier, message })
    }

    /// Writes the datagram; reserved bits are zero.
    #[must_use]
    pub fn emit(&self) -> [u8; MAD_LEN] {
        let mut body = [0; BODY_LEN];
        self.message.emit(&mut body);
        let head = MadHeader {
            modifier: self.modifier,
            ..MadHeader::cm(self.message.attribute(), self.transaction)
        };
        let mut out = [0; MAD_LEN];
        out[..MAD_HEADER_LEN].copy_from_slice(&head.emit());
        out[MAD_HEADER_LEN..].copy_from_slice(&body);
        out
    }
}

impl fmt::Display for Datagram {
    /// One line: the message's name, then its fields.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tid {:#018x}", self.message.name(), self.transaction)?;
        let mut result = Ok(());
        self.message.each(&mut |name, value| {
            result = result.and_then(|()| write!(f, " {name} {value:?}"));
        });
        result
    }
}
