//! A packet is sent in four steps. The queue pair plans it ([`Plan`]). Admission grants what it needs ([`Need`], [`Grant`]) or
//! says what to wait for ([`Wait`]). The batch provides space of the packet's length. The queue pair commits the plan: it writes
//! the packet and counts it.

use crate::{
    wire::{self, Opcode},
    work::WcStatus,
};

/// What a queue pair would do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Plan {
    /// Nothing until something happens.
    Nothing,
    /// A request without a packet: bind a window, or invalidate a key.
    Local,
    /// The next request can never be sent. It fails with this status.
    Fail(WcStatus),
    /// A packet.
    Send(Draft),
}

/// Which half of a queue pair a packet comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Half {
    /// The responder: answers and acknowledgements.
    Responder,
    /// The requester, or the sender of an unreliable service.
    Requester,
}

/// A packet that is planned and not yet written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Draft {
    pub half: Half,
    pub opcode: Opcode,
    /// Payload bytes.
    pub payload: u32,
    /// Bytes of the request's data before this packet's.
    pub offset: u64,
    /// Whether the request ends with this packet. For a READ the granted bytes decide that.
    pub end: bool,
    /// Whether it is a message of its own, although the request has further packets.
    pub part: bool,
    pub need: Need,
}

impl Draft {
    /// A message of one packet that needs nothing from admission.
    pub(crate) const fn single(half: Half, opcode: Opcode, payload: u32) -> Self {
        Self { half, opcode, payload, offset: 0, end: true, part: false, need: Need::Nothing }
    }

    /// Bytes on the wire, BTH to ICRC.
    pub(crate) fn len(&self) -> usize {
        wire::wire_len(self.opcode, self.payload as usize)
    }
}

/// What a packet needs from admission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// Nothing: answers, acknowledgements, atomics and unreliable services.
    Nothing,
    /// Room in the buffer of the destination's socket.
    Room {
        /// Bytes that the packet takes there.
        cost: u32,
        /// Bytes that the largest packet of the request after it would take.
        next: u32,
        /// Whether the message ends with it.
        ends: bool,
    },
    /// Room in our own socket's buffer for READ responses.
    Responses(Wanted),
}

/// The READ responses that a READ would ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    /// Bytes of the first response packet: less than that is not granted.
    pub least: u32,
    /// Bytes of all response packets.
    pub most: u32,
    /// Bytes of a full packet. Only full packets are granted, except for the last one of the READ.
    pub packet: u32,
    /// Whether the READ is sent again. Then `most` is granted, or nothing.
    pub again: bool,
}

impl Need {
    /// Bytes of the destination's buffer that it takes.
    pub(crate) const fn cost(&self) -> u32 {
        if let Self::Room { cost, .. } = self { *cost } else { 0 }
    }
}

/// What admission grants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Grant {
    /// The packet is to ask for an acknowledgement, so that its room becomes free again.
    pub ask: bool,
    /// Bytes of READ responses that may be asked for.
    pub bytes: u32,
}

/// Why nothing is granted now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// The destination's buffer has no room.
    Room,
    /// Our own buffer has no room for READ responses.
    Responses,
    /// The queue pair has sent its part of a batch, and others wait.
    Turn,
    /// The queue pair has as much in flight as it may, until something of that is answered.
    Answer,
    /// The pacing rate does not allow a packet yet.
    Pace,
}

/// The place of the next packet in a batch, and who else waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Spot {
    /// It is the first packet of the batch.
    pub begins: bool,
    /// No further packet of its size fits into the batch.
    pub ends: bool,
    /// The queue pair has waited in line, and is now first.
    pub in_turn: bool,
    /// Bytes of this batch that the queue pair has filled already.
    pub spent: u32,
    /// Other queue pairs in the line for that destination, in the same virtual lane.
    pub waiting: usize,
    /// Whether any queue pair is in line for that destination, in any virtual lane.
    pub awaited: bool,
}
