//! What a queue pair would do next, worked out once: the machine plans, admission grants what the plan needs, the batch
//! takes a packet of its length, and the machine commits itself, which writes the packet and counts it.

use crate::{
    wire::{self, Opcode},
    work::WcStatus,
};

/// What comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Plan {
    /// Nothing until something happens.
    Nothing,
    /// Work without a packet: a window is bound or invalidated.
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

/// A packet that is planned, and not yet written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Draft {
    pub half: Half,
    pub opcode: Opcode,
    /// Payload bytes.
    pub payload: u32,
    /// Bytes of the request's data before this packet's.
    pub offset: u64,
    /// Whether the request ends with it. Of a READ that is decided by how much is granted.
    pub end: bool,
    /// Whether it is a message of its own, although the request has more.
    pub part: bool,
    pub need: Need,
}

impl Draft {
    /// The whole of a message of one packet, which needs nothing.
    pub(crate) const fn single(half: Half, opcode: Opcode, payload: u32) -> Self {
        Self { half, opcode, payload, offset: 0, end: true, part: false, need: Need::Nothing }
    }

    /// Bytes on the wire, BTH to ICRC.
    pub(crate) fn len(&self) -> usize {
        wire::wire_len(self.opcode, self.payload as usize)
    }
}

/// What admission is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// Nothing: answers, acknowledgements, atomics and unreliable services.
    Nothing,
    /// Room in the destination's buffer.
    Room {
        /// Bytes it takes there.
        cost: u32,
        /// Bytes that the largest packet behind it would take.
        next: u32,
        /// Whether its message ends with it.
        ends: bool,
    },
    /// Room in our own buffer for READ responses.
    Responses(Wanted),
}

/// READ responses that are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    /// Bytes of the first packet of them.
    pub least: u32,
    /// Bytes of all.
    pub most: u32,
    /// Bytes of a full packet: only whole packets are granted, but for the last.
    pub packet: u32,
    /// Whether it is asked for again, which is as it was at first or not at all.
    pub again: bool,
}

impl Need {
    /// Bytes of the destination's buffer.
    pub(crate) const fn cost(&self) -> u32 {
        if let Self::Room { cost, .. } = self { *cost } else { 0 }
    }
}

/// What admission grants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Grant {
    /// The packet is to ask for an acknowledgement, so that its room is given back.
    pub ask: bool,
    /// Bytes of READ responses that may be asked for.
    pub bytes: u32,
}

/// Why nothing is granted now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// The destination's buffer is taken.
    Room,
    /// Our own buffer is taken.
    Responses,
    /// The queue pair has had its turn, and others wait.
    Turn,
    /// The queue pair holds as much as it may until something of that is answered.
    Answer,
    /// Its rate does not allow a packet yet.
    Pace,
}

/// Where in a batch the next packet stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Spot {
    /// It is the first one.
    pub begins: bool,
    /// No packet of its size fits behind it.
    pub ends: bool,
    /// It is the turn of its queue pair, which has waited in line.
    pub in_turn: bool,
    /// Bytes of this batch that the queue pair has filled already.
    pub spent: u32,
    /// Others that wait in line for room there, of the same lane.
    pub waiting: usize,
    /// Anybody waits there, in whichever lane.
    pub awaited: bool,
}
