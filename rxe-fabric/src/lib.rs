//! The decisions of a subnet manager on an InfiniBand fabric, for hosts without one: the service level, lane and partition of a
//! path.
//!
//! Administrators configure these decisions in the files of OpenSM. This crate reads the same files, and gives the same
//! answers: `opensm.conf` ([`Options`]), `qos-policy.conf` ([`QosPolicy`]) and `partitions.conf` ([`Partitions`]). [`Fabric`]
//! combines the three. It answers a [`PathQuery`] as OpenSM answers a query for a path record (IBTA vol. 1, 15.2.5.16).
//! [`Lanes`] maps service levels to virtual lanes, and these to DSCP. The [`Arbiter`] decides which lane may send next on a
//! link.
//!
//! It is pure: it gets texts and queries, and returns answers. Other crates read the files, and apply the answers to
//! connections (`rxe_verbs::host`, `rxe_cm`).
//!
//! Intended differences from OpenSM 3.3.23:
//! * A file with a mistake is refused, with its line and word, and nothing of it is used. OpenSM goes on without a policy,
//!   or with the default partition, and says so in its log only.
//! * Service levels above 15, numbers that do not fit, octal numbers with an 8 or a 9, and text behind the end of a value are
//!   mistakes. OpenSM cuts them off.
//! * Blanks inside a name belong to it; OpenSM takes them out. Names may contain the words of the grammar.
//! * There is no list of all ports of the subnet. `ALL` is any port, and a group by GUID may name ports that nobody has seen.
//! * Rules for IPoIB need not have a partition with two full members that are up.

#![forbid(unsafe_code)]

mod arbiter;
mod error;
mod lanes;
pub mod mad;
mod number;
mod options;
mod partitions;
mod path;
mod port;
mod qos;
mod ranges;

pub use arbiter::{Arbiter, Entry, HighLimit, Tables};
pub use error::{FileError, Warning};
pub use lanes::{Lanes, SL_COUNT, VL_COUNT, VL_NONE};
pub use options::Options;
pub use partitions::{Membership, Partition, Partitions};
pub use path::{Fabric, NoPath, Path, PathQuery};
pub use port::{NodeType, Port};
pub use qos::{Level, QosPolicy, Request};
pub use ranges::Ranges;
