//! What a subnet manager decides on an InfiniBand fabric, for hosts that have none: which service level, lane and partition a
//! path has.
//!
//! Administrators write these decisions into the files of OpenSM, and this crate reads the same files and comes to the
//! same answers: `opensm.conf` ([`Options`]), `qos-policy.conf` ([`QosPolicy`]) and `partitions.conf`
//! ([`Partitions`]). [`Fabric`] is the three together; it answers a [`PathQuery`] as OpenSM answers a query for a path record
//! (IBTA vol. 1, 15.2.5.16). Below it are the [`Lanes`], which take service levels to virtual lanes and these to DSCP, and
//! the [`Arbiter`], which says whose turn it is on a link.
//!
//! It is pure: texts and queries go in, answers come out. Who reads the files, and who carries the answers to
//! connections, is elsewhere (`rxe_verbs::host`, `rxe_cm`).
//!
//! Where we differ from OpenSM 3.3.23 on purpose:
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
