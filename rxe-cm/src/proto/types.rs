//! The numbers of connection management. Values that are not defined are kept.

use core::fmt;

/// A communication ID: one side's number for a connection, or a requester's for a service ID resolution.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct CommId(pub u32);

impl fmt::Debug for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The number of a channel adapter (node GUID): an EUI-64, usually made of a MAC address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Guid(pub u64);

impl fmt::Debug for Guid {
    /// As InfiniBand tools write it: `5054:00ff:fe12:3456`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |shift: u32| self.0 >> shift & 0xffff;
        write!(f, "{:04x}:{:04x}:{:04x}:{:04x}", part(48), part(32), part(16), part(0))
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The service that a REQ asks for (2 bits).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// See the REQ's extended transport type.
    Extended,
}

/// The REQ's extended transport type for XRC, by its initiator to a target.
pub const EXTENDED_XRC: u8 = 1;

impl Transport {
    /// Reads the low two bits.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Rc,
            1 => Self::Uc,
            2 => Self::Rd,
            _ => Self::Extended,
        }
    }

    /// The two bits on the wire.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self as u8
    }
}

/// Which message a REJ or MRA is about (2 bits).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Concerns {
    /// A REQ.
    #[default]
    Req,
    /// A REP.
    Rep,
    /// None in particular (REJ), or a LAP (MRA).
    Other,
    /// Not defined.
    Reserved,
}

impl Concerns {
    /// Reads the low two bits.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Req,
            1 => Self::Rep,
            2 => Self::Other,
            _ => Self::Reserved,
        }
    }

    /// The two bits on the wire.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self as u8
    }
}

/// Declares the known values of a number, with the words that say them.
macro_rules! named {
    ($type:ident, $($(#[$doc:meta])* $name:ident = $value:literal $words:literal,)*) => {
        impl $type {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// Every defined value.
            pub const KNOWN: &'static [Self] = &[$(Self::$name),*];

            /// Its meaning in words, if it is a defined value.
            #[must_use]
            pub const fn words(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($words),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.words() {
                    Some(words) => write!(f, "{words} ({})", self.0),
                    None => write!(f, "unknown ({})", self.0),
                }
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

/// Why a connection was refused (IBTA vol. 1, 12.6.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RejectReason(pub u16);

named! { RejectReason,
    /// No queue pair left.
    NO_QP = 1 "no queue pair available",
    /// No end-to-end context left.
    NO_EEC = 2 "no end-to-end context available",
    /// Another resource is used up.
    NO_RESOURCES = 3 "no resources available",
    /// No answer in time, or the side that asked has given up.
    TIMEOUT = 4 "timeout",
    /// The request is not supported.
    UNSUPPORTED = 5 "unsupported request",
    /// The communication ID is not known.
    INVALID_COMM_ID = 6 "invalid communication ID",
    /// The communication IDs and queue pairs do not belong together.
    INVALID_COMM_INSTANCE = 7 "invalid communication instance",
    /// No listener for the service ID.
    INVALID_SERVICE_ID = 8 "invalid service ID",
    /// The service does not support this transport service.
    INVALID_TRANSPORT = 9 "invalid transport service type",
    /// The queue pair belongs to a connection that one side has forgotten.
    STALE_CONNECTION = 10 "stale connection",
    /// No such reliable datagram channel.
    RDC_NOT_EXIST = 11 "reliable datagram channel does not exist",
    /// The primary path's remote GID is not ours, or its local one cannot be reached.
    INVALID_GID = 12 "primary remote GID rejected",
    /// The primary path's LID.
    INVALID_LID = 13 "primary remote LID rejected",
    /// The primary path's service level.
    INVALID_SL = 14 "invalid primary service level",
    /// The primary path's traffic class.
    INVALID_TRAFFIC_CLASS = 15 "invalid primary traffic class",
    /// The primary path's hop limit.
    INVALID_HOP_LIMIT = 16 "invalid primary hop limit",
    /// The primary path's packet rate.
    INVALID_PACKET_RATE = 17 "invalid primary packet rate",
    /// The alternate path's GID.
    INVALID_ALT_GID = 18 "alternate remote GID rejected",
    /// The alternate path's LID.
    INVALID_ALT_LID = 19 "alternate remote LID rejected",
    /// The alternate path's service level.
    INVALID_ALT_SL = 20 "invalid alternate service level",
    /// The alternate path's traffic class.
    INVALID_ALT_TRAFFIC_CLASS = 21 "invalid alternate traffic class",
    /// The alternate path's hop limit.
    INVALID_ALT_HOP_LIMIT = 22 "invalid alternate hop limit",
    /// The alternate path's packet rate.
    INVALID_ALT_PACKET_RATE = 23 "invalid alternate packet rate",
    /// Ask at another port and connection manager.
    PORT_CM_REDIRECT = 24 "port and CM redirection",
    /// Ask at another port.
    PORT_REDIRECT = 25 "port redirection",
    /// The path MTU.
    INVALID_MTU = 26 "invalid path MTU",
    /// Too few responder resources.
    INSUFFICIENT_RESPONDER_RESOURCES = 27 "insufficient responder resources",
    /// The application refused.
    CONSUMER_DEFINED = 28 "consumer reject",
    /// The RNR retry count.
    INVALID_RNR_RETRY = 29 "RNR retry count rejected",
    /// The communication ID is in use for another connection.
    DUPLICATE_LOCAL_COMM_ID = 30 "duplicate local communication ID",
    /// The version of the message class.
    INVALID_CLASS_VERSION = 31 "invalid class version",
    /// The primary path's flow label.
    INVALID_FLOW_LABEL = 32 "invalid primary flow label",
    /// The alternate path's flow label.
    INVALID_ALT_FLOW_LABEL = 33 "invalid alternate flow label",
    /// The vendor's connection options.
    VENDOR_OPTION_NOT_SUPPORTED = 35 "vendor option not supported",
}

/// The answer of a service ID resolution (IBTA vol. 1, 12.11.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SidrStatus(pub u8);

named! { SidrStatus,
    /// Queue pair and Q_Key follow.
    OK = 0 "ok",
    /// No listener for the service ID.
    UNSUPPORTED = 1 "service ID not supported",
    /// The application, or its connection manager, refused.
    REJECT = 2 "rejected by the service",
    /// No queue pair.
    NO_QP = 3 "no queue pair available",
    /// Ask elsewhere.
    REDIRECT = 4 "redirected",
    /// The version of the message class.
    UNSUPPORTED_VERSION = 5 "class version not supported",
}
