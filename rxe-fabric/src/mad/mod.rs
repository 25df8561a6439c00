//! Management datagrams (MADs): messages between agents and managers of an InfiniBand subnet, and the answers for hosts on
//! Ethernet (IBTA vol. 1, chapters 13 to 16).
//!
//! Tools of administrators (`ibstat`, `perfquery`, `saquery`, `smpquery`, `ibping`) send such datagrams. RoCE has no subnet
//! manager and no queue pair 0, so the answers are computed from what a host knows: itself, the hosts with which it had
//! connections, and OpenSM's files. The Ethernet between them appears as one switch. This module gets requests and returns
//! answers; `rxe_verbs::host` transports them.

mod bits;
mod lid;
mod perf;
mod sa;
mod smp;
mod subnet;
mod who;

pub use lid::{MULTICAST_LIDS, PERMISSIVE_LID, SWITCH_LID, address_of_lid, lid_of};
pub use perf::{PortCounts, Reset, answer as answer_perf};
pub use sa::{
    Destination, PathAnswer, PathRequest, SaAnswer, SaRequest, answer as answer_sa, first_segment,
    request as sa_request,
};
pub use smp::answer as answer_smp;
pub use subnet::{Node, Subnet, release_of, revision_of};
pub use who::{NodeSays, ask_node, node_says};

use bits::{get, put};
use core::fmt;

/// Bytes of a datagram (IBTA vol. 1, 13.4.2).
pub const MAD_LEN: usize = 256;
/// Bytes of the header that all classes have.
const HEADER: usize = 24;
/// The offset of the data of subnet and performance management.
const DATA: usize = 64;

/// Management classes (IBTA vol. 1, table 104; OpenIB's own in the vendors' range).
pub mod class {
    /// Subnet management, routed by LIDs.
    pub const SMP: u8 = 0x01;
    /// Subnet management, each hop named.
    pub const SMP_DIRECTED: u8 = 0x81;
    /// Subnet administration.
    pub const SA: u8 = 0x03;
    /// Performance management.
    pub const PERF: u8 = 0x04;
    /// Baseboard management, whose responses are marked elsewhere.
    pub const BASEBOARD: u8 = 0x05;
    /// Communication management.
    pub const CM: u8 = 0x07;
    /// Vendors' classes that have an OUI.
    pub const VENDOR_WITH_OUI: core::ops::RangeInclusive<u8> = 0x30..=0x4f;
}

/// Methods (IBTA vol. 1, 13.4.5 and 15.2.2).
pub mod method {
    /// Reads an attribute.
    pub const GET: u8 = 0x01;
    /// Writes one.
    pub const SET: u8 = 0x02;
    /// Ends the repetition of a trap. It is a response, but has no response bit.
    pub const TRAP_REPRESS: u8 = 0x07;
    /// Reads all records that fit.
    pub const GET_TABLE: u8 = 0x12;
    /// Reads records of a trace.
    pub const GET_TRACE_TABLE: u8 = 0x13;
    /// Reads what needs a request of several segments.
    pub const GET_MULTI: u8 = 0x14;
    /// Removes a record.
    pub const DELETE: u8 = 0x15;
    /// Bit of all responses.
    pub const RESPONSE: u8 = 0x80;
}

/// Status of an answer (IBTA vol. 1, 13.4.7 and 15.2.2).
pub mod status {
    /// The class version is not ours.
    pub const BAD_VERSION: u16 = 0x0004;
    /// The method is not supported.
    pub const UNSUPPORTED_METHOD: u16 = 0x0008;
    /// The method, or the attribute with it, is not supported. Kernels answer this for a class without an agent.
    pub const UNSUPPORTED: u16 = 0x000c;
    /// A field of the attribute has an invalid value.
    pub const INVALID_FIELD: u16 = 0x001c;
    /// Subnet administration: there are more records than fit into the answer.
    pub const NO_RESOURCES: u16 = 0x0100;
    /// Subnet administration: the request is invalid.
    pub const INVALID_REQUEST: u16 = 0x0200;
    /// Subnet administration: no record matches.
    pub const NO_RECORDS: u16 = 0x0300;
    /// Subnet administration: several records match a request for one.
    pub const TOO_MANY_RECORDS: u16 = 0x0400;
    /// Direction bit of a directed answer.
    pub const DIRECTION: u16 = 0x8000;
}

/// `ClassPortInfo`, an attribute of all classes but subnet management.
const CLASS_PORT_INFO: u16 = 0x0001;

/// A datagram.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Mad(pub [u8; MAD_LEN]);

impl fmt::Debug for Mad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mad")
            .field("class", &self.class())
            .field("method", &self.method())
            .field("status", &self.status())
            .field("tid", &self.tid())
            .field("attribute", &self.attribute())
            .field("modifier", &self.modifier())
            .finish_non_exhaustive()
    }
}

impl Mad {
    /// Makes a datagram from its bytes, filled up with zeroes. `None` if there are too few bytes for a header, or too many.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let mut whole = [0; MAD_LEN];
        whole.get_mut(..bytes.len()).filter(|_| bytes.len() >= HEADER)?.copy_from_slice(bytes);
        Some(Self(whole))
    }

    /// Management class.
    #[must_use]
    pub const fn class(&self) -> u8 {
        self.0[1]
    }

    /// Version of the class.
    #[must_use]
    pub const fn version(&self) -> u8 {
        self.0[2]
    }

    /// Method, with the bit of responses.
    #[must_use]
    pub const fn method(&self) -> u8 {
        self.0[3]
    }

    /// Status. In directed ones it includes the direction bit.
    #[must_use]
    pub fn status(&self) -> u16 {
        get(&self.0, 32, 16) as u16
    }

    /// Transaction ID.
    #[must_use]
    pub fn tid(&self) -> u64 {
        get(&self.0, 64, 64)
    }

    /// The same datagram with another transaction ID.
    #[must_use]
    pub fn with_tid(mut self, tid: u64) -> Self {
        put(&mut self.0, 64, 64, tid);
        self
    }

    /// Attribute ID.
    #[must_use]
    pub fn attribute(&self) -> u16 {
        get(&self.0, 128, 16) as u16
    }

    /// Attribute modifier.
    #[must_use]
    pub fn modifier(&self) -> u32 {
        get(&self.0, 160, 32) as u32
    }

    /// The OUI of a vendor's class that has one.
    #[must_use]
    pub fn oui(&self) -> Option<[u8; 3]> {
        class::VENDOR_WITH_OUI.contains(&self.class()).then(|| [self.0[37], self.0[38], self.0[39]])
    }

    /// Whether it is a response (IBTA vol. 1, 13.4.5).
    #[must_use]
    pub fn is_response(&self) -> bool {
        let by_modifier = self.class() == class::BASEBOARD && self.modifier() & 1 != 0;
        self.method() & method::RESPONSE != 0 || self.method() == method::TRAP_REPRESS || by_modifier
    }

    /// Whether it is of the class with directed routes.
    #[must_use]
    pub fn is_directed(&self) -> bool {
        self.class() == class::SMP_DIRECTED
    }

    /// The response to it: the same datagram with the method's response and this status.
    #[must_use]
    pub fn reply(&self, status: u16) -> Self {
        let mut reply = *self;
        reply.0[3] |= method::RESPONSE;
        // A Set is answered by GetResp.
        if self.method() == method::SET {
            reply.0[3] = method::GET | method::RESPONSE;
        }
        let direction = if self.is_directed() { status::DIRECTION } else { 0 };
        put(&mut reply.0, 32, 16, u64::from(status | direction));
        reply
    }

    /// The answer of a kernel for a class without an agent (Linux, mad.c): "unsupported" for Get and Set, and none for other
    /// methods.
    #[must_use]
    pub fn unmatched(&self) -> Option<Self> {
        matches!(self.method(), method::GET | method::SET).then(|| self.reply(status::UNSUPPORTED))
    }
}

/// `ClassPortInfo` of a class: its version and capabilities (IBTA vol. 1, 13.4.8.1).
fn class_port_info(version: u8, capabilities: u16, data: &mut [u8]) {
    // 4.096 us << 18: about a second.
    const RESPONSE_TIME: u64 = 18;
    put(data, 0, 8, 1);
    put(data, 8, 8, version.into());
    put(data, 16, 16, capabilities.into());
    put(data, 59, 5, RESPONSE_TIME);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_marked_as_their_methods_are() {
        let mut bytes = [0; MAD_LEN];
        bytes[..4].copy_from_slice(&[1, class::PERF, 1, method::SET]);
        let set = Mad(bytes).with_tid(7);
        let reply = set.unmatched().unwrap();
        assert_eq!((reply.method(), reply.status(), reply.tid()), (0x81, 0x0c, 7));
        assert!(reply.is_response() && !set.is_response() && reply.unmatched().is_none());
        bytes[1] = class::SMP_DIRECTED;
        assert_eq!(Mad(bytes).unmatched().unwrap().status(), 0x800c);
        bytes[3] = method::TRAP_REPRESS;
        assert!(Mad(bytes).is_response());
        bytes[..4].copy_from_slice(&[1, 0x32, 1, method::GET]);
        bytes[37..40].copy_from_slice(&[0, 0x14, 5]);
        assert_eq!(Mad(bytes).oui(), Some([0, 0x14, 5]));
        assert_eq!(Mad::of(&bytes[..24]).unwrap().oui(), Some([0; 3]));
        assert!(Mad::of(&bytes[..23]).is_none() && Mad::of(&[0; 257]).is_none());
    }
}
