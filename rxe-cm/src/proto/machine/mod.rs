//! Connections as machines (IBTA vol. 1, chapter 12): messages, commands and time go in, messages and events come out. No sockets
//! and no clock; time is a parameter.
//!
//! * In: [`Connection::handle`], [`Connection::handle_timeout`], and the user's commands.
//! * Out: [`Connection::poll_transmit`], [`Connection::poll_event`], [`Connection::poll_timeout`]. After each call of the first kind
//!   the caller asks these until they return nothing.
//!
//! One [`Connection`] is one side of one connection. [`Directory`] knows all of them: it finds the one a message is for, new
//! requests, and stale connections. [`SidrRequester`] and [`SidrResponder`] look up datagram services.
//!
//! # States
//!
//! | state | side | repeated by timer | message or command -> next state | answers repetitions by |
//! |---|---|---|---|---|
//! | `ReqSent` | active | REQ | REP -> `RepReceived`; MRA: waits longer; REJ -> `Closed` (stale: `TimeWait`); no answer -> `Refused` | |
//! | `RepReceived` | active | | `confirm` -> `Established`; `reject` -> `Refused`; REJ as above | REP by MRA, if one was asked for |
//! | `ReqReceived` | passive | | `accept` -> `RepSent`; `reject` -> `Refused`; REJ as above | REQ by MRA, if one was asked for |
//! | `RepSent` | passive | REP | RTU, data -> `Established`; DREQ -> `DreqReceived`; MRA: waits longer; REJ as above; no answer -> `Refused` | REQ by REP |
//! | `Established` | both | | `disconnect` -> `DreqSent`; DREQ -> `DreqReceived`; REJ -> `TimeWait` | REP by RTU; LAP by APR |
//! | `DreqSent` | both | DREQ | DREP, DREQ (crossing), REJ, no answer -> `TimeWait` | |
//! | `DreqReceived` | both | | `confirm_disconnect` -> `TimeWait` | |
//! | `TimeWait` | both | | its end -> `Closed` | DREQ by DREP; REQ by REJ "stale" |
//! | `Refused` | both | | the end of all the peer's repetitions, or its REJ -> `Closed` | REQ, REP, RTU by our REJ; DREQ by DREP |
//! | `Closed` | both | | | |
//!
//! `Refused` keeps the REJ for a peer that has not received it. So a passive side that has given up waiting for the RTU still tells an
//! active side that takes the connection for established.
//!
//! # Times
//!
//! A message is repeated after the response timeout that the REQ grants the other side, plus two packet lifetimes (there and
//! back), at most as often as the REQ's max CM retries say. Then the side gives up, and says so by REJ "timeout" with its channel
//! adapter's GUID. An MRA makes one such wait longer. TIMEWAIT lasts two packet lifetimes and the peer's ACK delay. For the passive
//! side that is the REQ's local ACK timeout. A peer may name hours, but it gets 120 s: for all repetitions of a REP or DREQ together, for
//! an MRA, for TIMEWAIT and for `Refused`.

mod active;
mod connection;
mod directory;
mod event;
mod passive;
mod release;
mod retry;
mod sidr;

pub use connection::{Connection, Local, Peer, Role, State, WrongState};
pub use directory::{Directory, InUse, Route};
pub use event::{Accepted, Ending, Event, Ignored, Proof, Rejection, Request, Terms};
pub use retry::{ack_timeout, timeout};
pub use sidr::{Resolution, SidrEvent, SidrRequester, SidrResponder, SidrTiming};
