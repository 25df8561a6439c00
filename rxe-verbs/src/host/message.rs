//! What the host service and its clients say to each other: one message a packet of a Unix socket.
//!
//! The first message of a connection is a [`Hello`], whose layout never changes but at its end; it says which versions
//! of the rest its sender speaks. Encoding: postcard, in which fields and variants are only ever added at the end.
//! Anything that cannot be decoded, or is longer than [`MAX_MESSAGE`], costs its sender the connection.

use super::{
    mads::{MadFilter, ManagedMad},
    settings::Settings,
};
use rxe_core::{endpoint::RunMeta, wire::HeaderSeen};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{net::IpAddr, ops::RangeInclusive};

/// Versions of these messages that this release speaks. In version 1 all processes had the records of all, and the vault had no
/// file of each; in version 2 nothing was counted by address; in version 3 there was one P_Key table for all, which never changed; in
/// version 4 nobody told which hosts it had met; in version 5 nobody managed, and listeners had no numbers; in version 6 nobody asked
/// whose a request is, or told which interface a queue pair is on; in version 7 nobody told what a host is by its habits.
pub(crate) const VERSIONS: RangeInclusive<u16> = 8..=8;
/// The number of the question that [`ToService::Told`] answers when a client leaves: none.
pub(crate) const LAST_WORD: u32 = 0;
/// Bytes of a message at most.
pub(crate) const MAX_MESSAGE: usize = 16 * 1024;
/// Bytes of a [`Part`] at most.
pub(crate) const MAX_PART: usize = 8 * 1024;
/// Bytes of a packet that is handed over at most: 4096 of payload and all headers.
pub(crate) const MAX_PACKET: usize = 4096 + 128;
/// A bit of [`Hello::features`]: this is not the first slot of a stack. The process can do without, and all its multicast
/// groups, listeners and connections are with the first.
pub(crate) const FURTHER: u64 = 1;
/// Another: the process hears frames, and so the connection requests of RoCE v1, which come to all who do.
pub(crate) const FRAMES: u64 = 2;
/// Another: the process takes what other processes of the host have for it from an inbox, and asks for theirs.
pub(crate) const MEMORY: u64 = 4;
/// First bytes of every connection.
pub(crate) const MAGIC: [u8; 4] = *b"rxeh";
/// Characters of a program's name that are kept.
pub(crate) const MAX_NAME: usize = 64;

/// Who connects, and what it speaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) magic: [u8; 4],
    /// Oldest version spoken.
    pub(crate) oldest: u16,
    /// Newest version spoken.
    pub(crate) newest: u16,
    /// Optional abilities and wishes, a bit each: [`FURTHER`], [`FRAMES`], [`MEMORY`].
    pub(crate) features: u64,
    /// Release, for words only.
    pub(crate) release: String,
    /// What it wants.
    pub(crate) role: Role,
}

/// What a connection is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// A process that wants a slot. Brings its pidfd.
    Join {
        /// The program, for words only.
        name: String,
    },
    /// A process that has a slot, given by a service that is gone. Brings its pidfd and the vault's four descriptors.
    Rejoin {
        /// The program, for words only.
        name: String,
        /// Its slot.
        slot: u8,
    },
    /// Somebody who looks.
    Observe,
}

impl Hello {
    /// Ours, for `role`.
    pub(crate) fn new(role: Role) -> Self {
        let release = env!("CARGO_PKG_VERSION").to_owned();
        Self { magic: MAGIC, oldest: *VERSIONS.start(), newest: *VERSIONS.end(), features: 0, release, role }
    }

    /// The same with these abilities and wishes.
    pub(crate) fn with(self, features: u64) -> Self {
        Self { features, ..self }
    }

    /// The version to speak with its sender; in words if there is none.
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
    /// The version to speak.
    pub(crate) version: u16,
    /// The service's release, for words only.
    pub(crate) release: String,
    /// The slot: top byte of the client's queue pair numbers.
    pub(crate) slot: u8,
    /// Which sockets come along: IPv4, IPv6.
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
    /// IPv4 ID, if whoever received it has found it out.
    ident: Option<u16>,
    /// BTH to ICRC.
    pub(crate) bytes: Vec<u8>,
}

impl Packet {
    pub(crate) fn new(meta: &RunMeta, ident: Option<u16>, bytes: &[u8]) -> Self {
        let RunMeta { src, dst, src_port, ifindex, tos, hop_limit, .. } = *meta;
        Self { src, dst, src_port, ifindex, tos, hop_limit, ident, bytes: bytes.to_vec() }
    }

    /// The headers as an endpoint wants them.
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

    /// Whether its addresses are of one family and its length is possible.
    pub(crate) fn is_sound(&self) -> bool {
        self.src.is_ipv4() == self.dst.is_ipv4() && self.bytes.len() <= MAX_PACKET
    }
}

/// Which connection requests a listener wants (IBTA vol. 1, 12.7.3: service ID; annex A11: port spaces).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Listen {
    /// The service ID. Its upper bytes are the port space of the RDMA IP CM.
    pub service_id: u64,
    /// Requests to this address of ours only, or to all of its family if it is "any"; `None` for all.
    pub address: Option<IpAddr>,
    /// Whether others may listen to the same service on other addresses, or with this flag too (`RDMA_OPTION_ID_REUSEADDR`).
    pub reuse: bool,
}

/// A piece of something long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Whether it is the last.
    pub(crate) last: bool,
    pub(crate) bytes: Vec<u8>,
}

/// From a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToService {
    Hello(Hello),
    /// Send me these requests. Answered by `Listening` or `NotListening`.
    Listen {
        token: u32,
        listen: Listen,
    },
    /// No more.
    Unlisten {
        token: u32,
    },
    /// A packet that is not for me.
    HandOn(Packet),
    /// A piece of what was asked for.
    Told {
        ask: u32,
        part: Part,
    },
    /// Observers: how are you? Answered by parts of a [`super::report::ServiceReport`].
    Status,
    /// Observers: what do the clients count? Answered by parts of a [`super::report::HostStats`].
    Stats,
    /// Observers: end when nobody needs you, and say no to newcomers until then.
    Stop,
    /// I have closed my sockets.
    Leave,
    /// Anybody, also before a `Hello`: what has this file of the view of sysfs? (`rxe0/ports/1/state`) Answered by a part with the
    /// text, empty if there is none. `rxe-sysfs` asks it without the rest of these messages; their numbers stay.
    Read {
        path: String,
    },
    /// Observers: read the configuration again, and have it hold for everybody. Answered by parts of a
    /// [`super::report::ReloadReport`].
    Reload,
    /// Observers: I manage by the port of this device. Answered by `Registered` without a number.
    OpenMads {
        device: String,
    },
    /// Managers: give me these requests. Answered by `Registered`.
    RegisterMads(MadFilter),
    /// Managers: no more.
    UnregisterMads {
        agent: u32,
    },
    /// Managers: send this.
    SendMad(ManagedMad),
    /// A request that has come to all processes is not for me: am I to answer it all the same? Answered by `Whose`.
    Whose {
        /// The same number for all that it has come to.
        request: u64,
        service_id: u64,
        /// Which of our addresses it was sent to.
        address: IpAddr,
    },
    /// I answer that request.
    Taken {
        request: u64,
    },
    /// I am about to talk to the process with this slot: where does it look? Answered by `Inbox`.
    Inbox {
        slot: u8,
    },
}

/// To a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToClient {
    Welcome(Welcome),
    /// No, in words for the user.
    Refused(String),
    Listening {
        token: u32,
    },
    /// Somebody else listens there.
    NotListening {
        token: u32,
    },
    /// A packet for you: a connection request, or one that went astray.
    Packet(Packet),
    /// What do you count? Answered by `Told`.
    Ask {
        ask: u32,
    },
    /// An answer to an observer.
    Part(Part),
    /// Not now, in words for the user.
    Busy(String),
    /// This holds from now on.
    Settings(Settings),
    /// The number of a registration; `None` if there is none.
    Registered {
        agent: Option<u32>,
    },
    /// A management datagram for you.
    Mad(ManagedMad),
    /// Whether you are to answer that request.
    Whose {
        request: u64,
        yours: bool,
    },
    /// The inbox of the process with this slot. Comes with its two descriptors and the process's pidfd, or without where there is
    /// none, or where one could not know that its process has died.
    Inbox {
        slot: u8,
    },
}

/// Encodes a message.
pub(crate) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Fails only for types that have no encoding, and none of ours is one.
    postcard::to_stdvec(message).unwrap_or_default()
}

/// Decodes a message; `None` for anything else. Bytes behind it are a newer release's and ignored.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    postcard::take_from_bytes(bytes).ok().map(|(message, _)| message)
}

/// Cuts something long into parts.
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

/// A stranger's name, fit for a terminal and a log.
pub(crate) fn clean(text: &str) -> String {
    printable(text).chars().take(MAX_NAME).collect()
}

/// A stranger's text without what changes a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
