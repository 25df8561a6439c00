//! The messages between the host service and its clients. Each is one packet of a Unix socket.
//!
//! The first message of a connection is a [`Hello`]. Its layout never changes, but fields may be added at its end. It says which versions
//! of the other messages its sender knows. The encoding is postcard. Fields and variants are only ever added at the end.
//! If a message cannot be decoded, or is longer than [`MAX_MESSAGE`], its receiver closes the connection.

use super::{
    mads::{MadFilter, ManagedMad},
    settings::Settings,
};
use rxe_core::{endpoint::RunMeta, wire::HeaderSeen};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{net::IpAddr, ops::RangeInclusive};

/// Versions of these messages that this release knows. What each version added: 2 records of each process by itself, with a file for
/// each in the vault; 3 counters by address; 4 P_Key tables of single devices, which may change; 5 the hosts that a process has met;
/// 6 management datagrams, and numbers of listeners; 7 questions about who answers a request, and the interface of a queue pair; 8 the
/// systems of other hosts.
pub(crate) const VERSIONS: RangeInclusive<u16> = 8..=8;
/// The number in a [`ToService::Told`] that a client sends when it leaves, which answers no question.
pub(crate) const LAST_WORD: u32 = 0;
/// Most bytes of a message.
pub(crate) const MAX_MESSAGE: usize = 16 * 1024;
/// Most bytes of a [`Part`].
pub(crate) const MAX_PART: usize = 8 * 1024;
/// Most bytes of all parts of an answer.
pub(crate) const MAX_ANSWER: usize = 64 << 20;
/// Most bytes of a packet that is handed over: 4096 of payload and all headers.
pub(crate) const MAX_PACKET: usize = 4096 + 128;
/// A bit of [`Hello::features`]: this is not the first slot of a stack. The process can do without it. All its multicast
/// groups, listeners and connections belong to the first.
pub(crate) const FURTHER: u64 = 1;
/// Another bit: the process receives frames, and so it gets the connection requests of RoCE v1, which arrive at all such processes.
pub(crate) const FRAMES: u64 = 2;
/// Another bit: the process has an inbox for packets from other processes of the host, and asks for their inboxes.
pub(crate) const MEMORY: u64 = 4;
/// First bytes of every connection.
pub(crate) const MAGIC: [u8; 4] = *b"rxeh";
/// Most characters of a program's name that are kept.
pub(crate) const MAX_NAME: usize = 64;

/// The first message: who connects, and which versions it knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) magic: [u8; 4],
    /// Oldest version that it knows.
    pub(crate) oldest: u16,
    /// Newest version that it knows.
    pub(crate) newest: u16,
    /// Optional features, a bit each: [`FURTHER`], [`FRAMES`], [`MEMORY`].
    pub(crate) features: u64,
    /// Release, for texts only.
    pub(crate) release: String,
    /// The purpose of the connection.
    pub(crate) role: Role,
}

/// What a connection is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// A process that wants a slot. Its pidfd comes with the message.
    Join {
        /// The program, for texts only.
        name: String,
    },
    /// A process that has a slot from an earlier service. Its pidfd and the vault's four descriptors come with the message.
    Rejoin {
        /// The program, for texts only.
        name: String,
        /// Its slot.
        slot: u8,
    },
    /// A program that only asks questions.
    Observe,
}

impl Hello {
    /// The message of this release, for `role`.
    pub(crate) fn new(role: Role) -> Self {
        let release = env!("CARGO_PKG_VERSION").to_owned();
        Self { magic: MAGIC, oldest: *VERSIONS.start(), newest: *VERSIONS.end(), features: 0, release, role }
    }

    /// The same with these features.
    pub(crate) fn with(self, features: u64) -> Self {
        Self { features, ..self }
    }

    /// The version to use with its sender. An error text if there is none.
    pub(crate) fn agree(&self) -> Result<u16, String> {
        let (own, ours) = (VERSIONS, env!("CARGO_PKG_VERSION"));
        let theirs = clean(&self.release);
        if self.newest < *own.start() {
            return Err(format!(
                "this program was built with rxe {theirs}, too old for the host service of rxe {ours}: upgrade the program, or \
                 end the service (`rxe service stop`) and start with the older one"
            ));
        }
        if self.oldest > *own.end() {
            return Err(format!(
                "the host service is of rxe {ours}, too old for this program's rxe {theirs}: end the programs that use \
                 it and upgrade it"
            ));
        }
        Ok(self.newest.min(*own.end()))
    }
}

/// A slot for the client. Comes with the sockets (IPv4, IPv6, as `families` says), the vault's four descriptors, the
/// records' memory, and the inbox's two if the client has asked for one and one could be made; a rejoining client has all those.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// The version to use.
    pub(crate) version: u16,
    /// The service's release, for texts only.
    pub(crate) release: String,
    /// The slot: top byte of the client's queue pair numbers.
    pub(crate) slot: u8,
    /// Which sockets come with the message: IPv4, IPv6.
    pub(crate) families: (bool, bool),
    /// P_Key tables and lanes.
    pub(crate) settings: Settings,
}

/// A packet that is handed from process to process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Packet {
    src: IpAddr,
    dst: IpAddr,
    src_port: u16,
    ifindex: u32,
    tos: u8,
    hop_limit: u8,
    /// IPv4 ID, if the receiver has found it out.
    ident: Option<u16>,
    /// BTH to ICRC.
    pub(crate) bytes: Vec<u8>,
}

impl Packet {
    pub(crate) fn new(meta: &RunMeta, ident: Option<u16>, bytes: &[u8]) -> Self {
        let RunMeta { src, dst, src_port, ifindex, tos, hop_limit, .. } = *meta;
        Self { src, dst, src_port, ifindex, tos, hop_limit, ident, bytes: bytes.to_vec() }
    }

    /// The headers in the form for an endpoint.
    pub(crate) fn meta(&self) -> RunMeta {
        let seen = self.ident.map_or(HeaderSeen::Hidden, |ident| HeaderSeen::Seen {
            ident,
            fragment: rxe_core::wire::icrc::DONT_FRAGMENT,
        });
        RunMeta {
            src: self.src,
            dst: self.dst,
            src_port: self.src_port,
            ifindex: self.ifindex,
            tos: self.tos,
            hop_limit: self.hop_limit,
            seen,
        }
    }

    /// Whether both addresses are of one family and the length is possible.
    pub(crate) fn is_sound(&self) -> bool {
        self.src.is_ipv4() == self.dst.is_ipv4() && self.bytes.len() <= MAX_PACKET
    }
}

/// Which connection requests a listener is for (IBTA vol. 1, 12.7.3: service ID; annex A11: port spaces).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Listen {
    /// The service ID. Its upper bytes are the port space of the RDMA IP CM.
    pub service_id: u64,
    /// Only requests to this address of ours. If it is "any", requests to all addresses of its family. `None` means all.
    pub address: Option<IpAddr>,
    /// Whether others may listen to the same service on other addresses, or with this flag too (`RDMA_OPTION_ID_REUSEADDR`).
    pub reuse: bool,
}

/// A part of a long answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Whether it is the last part.
    pub(crate) last: bool,
    pub(crate) bytes: Vec<u8>,
}

/// Messages from a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToService {
    Hello(Hello),
    /// Asks for these connection requests. Answered by `Listening` or `NotListening`.
    Listen {
        token: u32,
        listen: Listen,
    },
    /// Ends that.
    Unlisten {
        token: u32,
    },
    /// Hands over a packet that is for another process.
    HandOn(Packet),
    /// A part of the answer to `Ask`.
    Told {
        ask: u32,
        part: Part,
    },
    /// Observers: asks for the state of the service. Answered by parts of a [`super::report::ServiceReport`].
    Status,
    /// Observers: asks for the counters of all clients. Answered by parts of a [`super::report::HostStats`].
    Stats,
    /// Observers: tells the service to end when no process needs it, and to refuse new clients until then.
    Stop,
    /// The client has closed its sockets.
    Leave,
    /// All, also before a `Hello`: asks for the content of a file of sysfs (`rxe0/ports/1/state`). Answered by a part with the
    /// text, which is empty if there is no such file. `rxe-sysfs` sends this without the code of the other messages, so the numbers of
    /// the variants never change.
    Read {
        path: String,
    },
    /// Observers: tells the service to read the configuration again, and to apply it to all processes. Answered by parts of a
    /// [`super::report::ReloadReport`].
    Reload,
    /// Observers: begins to send management datagrams by the port of this device. Answered by `Registered` without a number.
    OpenMads {
        device: String,
    },
    /// Managers: registers for these requests. Answered by `Registered`.
    RegisterMads(MadFilter),
    /// Managers: ends a registration.
    UnregisterMads {
        agent: u32,
    },
    /// Managers: sends a datagram.
    SendMad(ManagedMad),
    /// A request has arrived at all processes, and this client does not listen for it. Asks whether it is to refuse the request.
    /// Answered by `Whose`.
    Whose {
        /// A number for the request, which is the same in all processes.
        request: u64,
        service_id: u64,
        /// The address of ours to which it was sent.
        address: IpAddr,
    },
    /// This client answers that request.
    Taken {
        request: u64,
    },
    /// Asks for the inbox of the process with this slot. Answered by `Inbox`.
    Inbox {
        slot: u8,
    },
}

/// Messages to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToClient {
    Welcome(Welcome),
    /// The connection is refused, with a text for the user.
    Refused(String),
    Listening {
        token: u32,
    },
    /// Another process listens there.
    NotListening {
        token: u32,
    },
    /// A packet for the client: a connection request, or one that another process received.
    Packet(Packet),
    /// Asks for the client's counters. Answered by `Told`.
    Ask {
        ask: u32,
    },
    /// An answer to an observer.
    Part(Part),
    /// The connection is refused for now, with a text for the user.
    Busy(String),
    /// New settings.
    Settings(Settings),
    /// The number of a registration. `None` if it was refused.
    Registered {
        agent: Option<u32>,
    },
    /// A management datagram for the client.
    Mad(ManagedMad),
    /// Whether the client is to answer that request.
    Whose {
        request: u64,
        yours: bool,
    },
    /// The inbox of the process with this slot. Comes with its two descriptors and the process's pidfd, or without them if there is
    /// no inbox, or if the death of its process could not be noticed.
    Inbox {
        slot: u8,
    },
}

/// Encodes a message.
pub(crate) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // This fails only for types that cannot be encoded. All of ours can.
    postcard::to_stdvec(message).unwrap_or_default()
}

/// Decodes a message. `None` if it is none. Further bytes are fields of a newer release, and are ignored.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    postcard::take_from_bytes(bytes).ok().map(|(message, _)| message)
}

/// Cuts a long answer into parts.
pub(crate) fn parts<T: Serialize>(whole: &T) -> Vec<Part> {
    let bytes = encode(whole);
    let count = bytes.len().div_ceil(MAX_PART).max(1);
    (0..count)
        .map(|index| {
            let end = (index + 1) * MAX_PART;
            let bytes = bytes[index * MAX_PART..end.min(bytes.len())].to_vec();
            Part { last: index + 1 == count, bytes }
        })
        .collect()
}

/// A name that another program has sent, made safe for terminal and log, and at most [`MAX_NAME`] bytes long.
pub(crate) fn clean(text: &str) -> String {
    let mut name = printable(text);
    let fits = |(at, c): &(usize, char)| at + c.len_utf8() <= MAX_NAME;
    name.truncate(name.char_indices().take_while(fits).map(|(at, c)| at + c.len_utf8()).last().unwrap_or(0));
    name
}

/// A text that another program has sent, without control characters.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of all slots has to fit into a message, so a name's length counts in bytes.
    #[test]
    fn names_are_short_and_printable() {
        for (sent, kept) in [("a\nb", "a?b"), (&*"n".repeat(100), &*"n".repeat(MAX_NAME))] {
            assert_eq!(clean(sent), kept);
        }
        let long = clean(&"\u{1d11e}".repeat(100));
        assert_eq!((long.len(), long.chars().count()), (MAX_NAME, MAX_NAME / 4));
    }

    fn hello(oldest: u16, newest: u16) -> Hello {
        Hello { oldest, newest, ..Hello::new(Role::Observe) }
    }

    #[test]
    fn versions_meet_or_one_is_told_to_upgrade() {
        assert_eq!(hello(8, 8).agree(), Ok(8));
        assert_eq!(hello(1, 9).agree(), Ok(8));
        assert!(hello(7, 7).agree().unwrap_err().contains("upgrade the program"));
        assert!(hello(9, 9).agree().unwrap_err().contains("upgrade it"));
    }

    /// The layout that every release must understand.
    #[test]
    fn the_first_bytes_of_a_hello_stay() {
        let bytes = encode(&ToService::Hello(hello(1, 300)));
        assert_eq!(bytes[..9], [0, b'r', b'x', b'e', b'h', 1, 0xac, 2, 0]);
        let mut newer = bytes;
        newer.extend([1, 2, 3]);
        assert_eq!(decode(&newer), Some(ToService::Hello(hello(1, 300))));
    }

    /// What `rxe-sysfs/src/ask.rs` writes and reads by hand.
    #[test]
    fn the_bytes_of_a_read_stay() {
        assert_eq!(encode(&ToService::Read { path: "abc".into() }), [9, 3, b'a', b'b', b'c']);
        let answer = ToClient::Part(Part { last: true, bytes: vec![7; 200] });
        assert_eq!(encode(&answer)[..5], [6, 1, 200, 1, 7]);
    }

    #[test]
    fn long_answers_travel_in_parts() {
        let whole: Vec<u32> = (0..10_000).collect();
        let parts = parts(&whole);
        assert!(parts.len() > 1 && parts.iter().all(|part| encode(part).len() < MAX_MESSAGE));
        assert!(
            parts.iter().rev().skip(1).all(|part| !part.last) && parts.last().is_some_and(|part| part.last)
        );
        let bytes: Vec<u8> = parts.into_iter().flat_map(|part| part.bytes).collect();
        assert_eq!(decode(&bytes), Some(whole));
    }

    #[test]
    fn rubbish_is_nothing() {
        assert_eq!(decode::<ToService>(&[]), None);
        assert_eq!(decode::<ToService>(&[200, 1, 2]), None);
        // A length far beyond the message.
        assert_eq!(decode::<ToService>(&[4, 0xff, 0xff, 0xff, 0xff, 0x0f]), None);
        assert_eq!(clean("a\x1b[31mb\n"), "a?[31mb?");
    }
}
