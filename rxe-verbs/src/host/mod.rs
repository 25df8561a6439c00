//! Several processes of a host on one port: the host service and its clients.
//!
//! One address has one port 4791, and queue pair numbers must be unique on it. Every process gets a *slot*, the top byte
//! of its queue pair numbers, and a member of the port's `SO_REUSEPORT` group, to which a classic BPF program steers the
//! packets of that slot ([`crate::net::steer`]). Slots are given out by the [`service`], which the first process that
//! needs it starts. The client half (`client`) gets a slot and keeps its connection. From then on each process sends and receives by
//! itself.
//!
//! Rooms: `message` (messages), `name` (how the service is found), `slots` and `listeners` (pure bookkeeping), `group` (the sockets),
//! `vault` (what outlives the service), `records` (what outlives a client), `attendant` (what the connection manager does for
//! the service), `config` (the host's file), `fabric` (OpenSM's files that
//! it names), `query` (paths from these), `mads` (management datagrams of programs), `peers` and
//! `habits` (other hosts), `report` (for observers).

mod attendant;
pub(crate) mod client;
mod config;
mod fabric;
pub mod files;
mod group;
mod habits;
mod listeners;
mod mads;
mod memberships;
mod memlock;
mod message;
mod name;
mod peers;
mod query;
pub mod records;
pub mod report;
mod roce_mode;
pub mod service;
mod settings;
mod slots;
mod vault;

pub use attendant::{Attendant, Letter, MAD_LEN, set_attendant};
pub use client::{HostError, MadPort, Observer, SERVICE_VARIABLE};
pub use config::{
    HostConfig, HostConfigError, PortConfig, RoceMode, SYSTEM_FILE, ServiceConfig, ServiceLevel,
    VARIABLE as CONFIG_VARIABLE,
};
pub use fabric::{FabricConfig, HostFabric, KnownPort, NamedPort};
pub use habits::Habit;
pub use mads::{MAX_AGENTS, MadAddress, MadFilter, ManagedMad, TIMED_OUT};
pub use memlock::MemlockMode;
pub use message::Listen;
pub use name::service_file;
pub use peers::{PeerReport, note_peer};
pub use query::{FoundPath, PathQuestion};
pub use roce_mode::CONFIGURED_MODE;
pub use service::{Place, Service, ServiceError};

/// Makes the calling process give up what it inherited, before it becomes the host service or
/// starts it. A service outlives its starter, and must keep none of its locks, pipes, sockets, processors or soft limits.
/// Closes all descriptors above standard error, so the process must not have opened any yet, and must have one thread.
pub fn start_afresh() {
    crate::sys::process::start_afresh();
}

pub(crate) use client::{Attachment, Host, Mode, attach, attach_further};
pub(crate) use config::names_of_configuration;
pub(crate) use group::member_config;
pub(crate) use memlock::Memlock;
pub(crate) use name::own_folder;
pub(crate) use report::LockedReport;
#[cfg(test)]
pub(crate) use settings::Settings;
pub(crate) use settings::{LaneTables, LiveSettings, Own};
