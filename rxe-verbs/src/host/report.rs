//! Reports of the service about itself and its clients, for `rxe service status` and `rxe stat`.

use super::{habits::Habit, message::Listen, peers::PeerReport};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::IpAddr};

/// The state of a host service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceReport {
    /// Its process.
    pub pid: u32,
    /// The user it serves.
    pub uid: u32,
    /// Its release.
    pub release: String,
    /// Whether it runs in a thread of one of its clients.
    pub embedded: bool,
    /// Seconds since it started.
    pub seconds: u64,
    /// Members of the socket group.
    pub members: usize,
    /// Whether it has sockets for IPv4 and IPv6.
    pub families: (bool, bool),
    /// The partition table.
    pub pkeys: Vec<u16>,
    /// The processes that have a slot.
    pub clients: Vec<ClientReport>,
    /// Slots that rest after their process.
    pub resting: Vec<u8>,
    /// Its counters.
    pub counters: ServiceCounters,
    /// The last lines of its log.
    pub log: Vec<String>,
    /// Packets exchanged with the processes that have a slot, and by its own socket (slot 0).
    pub exchanged: Vec<Exchanged>,
}

/// Packets that a service has exchanged with the process of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchanged {
    /// The slot.
    pub slot: u8,
    /// Packets for other slots that arrived at this slot's socket.
    pub strayed: u64,
    /// Packets given to its process: those that arrived at other slots' sockets, connection requests, multicast.
    pub given: u64,
}

/// A process that has a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientReport {
    /// The slot: top byte of its queue pair numbers.
    pub slot: u8,
    /// The process. 0 if the service cannot tell, because it is in another PID namespace.
    pub pid: i32,
    /// The program.
    pub name: String,
    /// Whether it is connected. It is not if it has closed its descriptors, or has not rejoined yet after the death
    /// of an earlier service.
    pub connected: bool,
    /// Its listeners.
    pub listening: Vec<Listening>,
}

/// A listener of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listening {
    /// A random number of 32 bits, which tells it from other listeners of the process, also from an earlier one on the same port.
    pub number: u32,
    /// The service ID.
    pub service_id: u64,
    /// The address of ours. `None` for all.
    pub address: Option<IpAddr>,
    /// Whether others may listen to the same service on other addresses ([`Listen::reuse`]).
    pub reuse: bool,
}

impl Listening {
    pub(crate) const fn new(number: u32, listen: Listen) -> Self {
        let Listen { service_id, address, reuse } = listen;
        Self { number, service_id, address, reuse }
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $field:ident),* $(,)?) => {
        /// What a host service counts.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct ServiceCounters { $($(#[doc = $doc])* pub $field: u64),* }

        impl ServiceCounters {
            /// Every counter with its name.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }

            /// Every counter with its name and, in words, what it counts.
            pub fn explained(&self) -> impl Iterator<Item = (&'static str, u64, &'static str)> {
                [$((stringify!($field), self.$field, concat!($($doc),*).trim_ascii())),*].into_iter()
            }
        }
    };
}

counters!(
    /// Slots given to processes.
    joined,
    /// Processes that came back after the death of an earlier service.
    rejoined,
    /// Processes that died.
    died,
    /// Connections refused: another user, another release, no slot left.
    refused,
    /// Connections closed because of what they said.
    misbehaved,
    /// Packets left in the sockets of the dead.
    drained,
    /// Connection requests given to a listener.
    dispatched,
    /// Connection requests that nobody listens for.
    unheard,
    /// Messages that ended connections of processes that died.
    last_words,
    /// Packets that came to the wrong process, or to none, and were given to the right one.
    handed_on,
    /// Copies of multicast packets given to processes.
    multicast,
    /// Packets that were dropped: no such slot, or its process does not take them.
    dropped,
    /// Packets dropped because their ICRC was wrong or they made no sense.
    corrupt,
    /// Times the steering program was found missing or changed, and put back.
    mended,
    /// Processes that went on without their slot: they executed another program, or closed all their descriptors.
    deserted,
    /// Management datagrams that came, other than the connection manager's.
    managed,
);

/// The result of reading the configuration again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// Why nothing has changed: the file, its line and word.
    pub error: Option<String>,
    /// Whether a P_Key table has changed.
    pub pkeys: bool,
    /// Whether lanes or their weights have changed.
    pub lanes: bool,
    /// Slots whose processes were told.
    pub told: usize,
    /// Warnings: parts that may not be meant as they were read.
    pub warnings: Vec<String>,
}

/// The counters of all clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStats {
    /// The counters of each client that answered.
    pub clients: Vec<ClientStats>,
    /// Slots whose process did not answer.
    pub silent: Vec<u8>,
    /// Counters of each device by its name, since the service began. For a process that has ended they include what it had counted when it
    /// closed its device or called exit(3). If it ended by a signal, they include what it told when it was last asked.
    pub devices: BTreeMap<String, BTreeMap<String, u64>>,
    /// Hosts that processes of this one have met since the service began, the latest first.
    pub peers: Vec<PeerReport>,
    /// The systems of other hosts, guessed from their packets to the service, if these are those of a known system.
    pub habits: Vec<(IpAddr, Habit)>,
}

/// The counters of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientStats {
    /// Its slot.
    pub slot: u8,
    /// The process, as it sees itself.
    pub pid: u32,
    /// The program.
    pub name: String,
    /// Counters of its share of the port, by name.
    pub port: Vec<(String, u64)>,
    /// Its queue pairs.
    pub qps: Vec<QpReport>,
    /// Counters by address of this host. They include queue pairs that were destroyed.
    pub places: Vec<PlaceReport>,
    /// Counters of each virtual lane that has any.
    pub lanes: Vec<LaneReport>,
    /// Memory that it has registered.
    pub locked: LockedReport,
    /// Hosts that it has met, the latest first.
    pub peers: Vec<PeerReport>,
}

/// Registered memory, as a kernel counts locked memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockedReport {
    /// Bytes of whole pages, of all regions of the process.
    pub bytes: u64,
    /// The limit for these bytes. `None` if there is none.
    pub limit: Option<u64>,
    /// Whether the limit is enforced by the configuration.
    pub enforced: bool,
    /// Whether the process is exempt (CAP_IPC_LOCK).
    pub exempt: bool,
    /// Regions that were refused.
    pub refused: u64,
}

/// The counters of a virtual lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneReport {
    /// Its number, 0 to 14.
    pub lane: u8,
    /// Counters by name.
    pub counters: Vec<(String, u64)>,
}

/// The counters of an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceReport {
    /// The address. It is the unspecified one for queue pairs that were not connected.
    pub address: IpAddr,
    /// Counters by name.
    pub counters: Vec<(String, u64)>,
}

/// One queue pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpReport {
    /// Its number.
    pub qpn: u32,
    /// Its service: RC, UC, UD, GSI.
    pub service: String,
    /// Its state: RESET to ERR.
    pub state: String,
    /// Counters that are not 0, by name.
    pub counters: Vec<(String, u64)>,
    /// Text: the last request of the peer that it refused, and why.
    pub refused: Option<String>,
    /// Text: the last request of its own that failed, and why.
    pub failed: Option<String>,
    /// The network interface of its device. Empty if it belongs to none, as queue pair 1 does.
    pub interface: String,
}
