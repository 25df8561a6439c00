//! Partitions: which ports may communicate (IBTA vol. 1, 10.9), by OpenSM's `partitions.conf`.

mod parse;

use crate::{
    error::{FileError, Warning},
    port::{NodeType, Port},
};

/// The top bit of a P_Key: full member.
const FULL: u16 = 0x8000;
/// The key of the default partition, of which all ports are members.
const DEFAULT_KEY: u16 = 0x7fff;

/// Kinds of membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// Limited: reaches only full members.
    Limited,
    /// Full: reaches all members.
    Full,
    /// Both keys, if `allow_both_pkeys` is set; otherwise a full member.
    Both,
}

/// The ports of a line in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    All,
    Type(NodeType),
    Manager,
    Guid(u64),
}

impl Who {
    fn is(self, port: &Port) -> bool {
        match self {
            Self::All => true,
            Self::Type(node_type) => port.node_type == node_type,
            Self::Manager => port.is_manager,
            Self::Guid(guid) => port.guids.contains(&guid),
        }
    }
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its name.
    pub name: String,
    /// Its key, without the membership bit.
    pub key: u16,
    /// Service level of its paths, unless the policy has another.
    pub sl: u8,
    /// Whether it is used for IPoIB.
    pub ipoib: bool,
    /// Rate of its broadcast group, a code of path records (IBTA vol. 1, 15.2.5.16): 3 is 10 Gbit/s.
    pub rate: u8,
    /// MTU of its broadcast group: 1 to 5 for 256 to 4096 bytes.
    pub mtu: u8,
    /// Multicast groups that exist in it from the beginning.
    pub groups: Vec<core::net::Ipv6Addr>,
    /// In the order of the file. Later lines take precedence.
    members: Vec<(Who, Membership)>,
    /// Ports for which its key is the first of the table.
    first_for: Vec<Who>,
}

impl Partition {
    fn new(name: &str, key: u16) -> Self {
        Self {
            name: name.to_owned(),
            key,
            sl: 0,
            ipoib: false,
            rate: 3,
            mtu: 4,
            groups: Vec::new(),
            members: Vec::new(),
            first_for: Vec::new(),
        }
    }

    /// A port's membership: whether it is a limited member, and whether a full one. Both are possible only if `both` is
    /// allowed.
    fn memberships(&self, port: &Port, both: bool) -> Kinds {
        let mut now = (false, false);
        for (_, membership) in self.members.iter().filter(|(who, _)| who.is(port)) {
            now = match membership {
                Membership::Limited => (true, false),
                Membership::Both if both => (true, true),
                Membership::Full | Membership::Both => (false, true),
            };
        }
        now
    }
}

/// All partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partitions {
    list: Vec<Partition>,
    both: bool,
}

impl Default for Partitions {
    /// Without a file all ports are full members of the default partition.
    fn default() -> Self {
        let mut default = Partition::new("Default", DEFAULT_KEY);
        default.members.push((Who::All, Membership::Full));
        Self { list: vec![default], both: false }
    }
}

impl Partitions {
    /// Partitions with these keys, with all ports as full members: for hosts that have a P_Key table but no file. The
    /// membership bits are ignored.
    #[must_use]
    pub fn open(keys: &[u16]) -> Self {
        let mut list: Vec<Partition> = Vec::new();
        for key in keys.iter().map(|key| key & !FULL) {
            if !list.iter().any(|partition| partition.key == key) {
                let name = if key == DEFAULT_KEY { "Default".to_owned() } else { format!("{key:04x}") };
                let mut partition = Partition::new(&name, key);
                partition.members.push((Who::All, Membership::Full));
                list.push(partition);
            }
        }
        Self { list, both: false }
    }

    /// Reads the file. `both` is `allow_both_pkeys` of `opensm.conf`.
    ///
    /// # Errors
    /// [`FileError`]. OpenSM would ignore the whole file, and continue with only the default partition.
    pub fn parse(text: &str, both: bool) -> Result<(Self, Vec<Warning>), FileError> {
        let (list, warnings) = parse::parse(text)?;
        Ok((list.map_or_else(Self::default, |list| Self { list, both }), warnings))
    }

    /// All partitions in the order of the file, the default one first.
    #[must_use]
    pub fn list(&self) -> &[Partition] {
        &self.list
    }

    /// The partition with this key. The membership bit is ignored.
    #[must_use]
    pub fn of_key(&self, key: u16) -> Option<&Partition> {
        self.list.iter().find(|partition| partition.key == key & !FULL)
    }

    /// Whether a port is a member of any kind.
    #[must_use]
    pub fn is_member(&self, partition: &Partition, port: &Port) -> bool {
        partition.memberships(port, self.both) != (false, false)
    }

    /// The P_Key table of a port. The first key is the one with `indx0` in the file, or that of the default partition. The
    /// others follow in the order of their numbers.
    #[must_use]
    pub fn table(&self, port: &Port) -> Vec<u16> {
        let mut keys = Vec::new();
        for partition in &self.list {
            let first = partition.first_for.iter().any(|who| who.is(port));
            let rank = if first { 0 } else { 1 + u8::from(partition.key != DEFAULT_KEY) };
            let (limited, full) = partition.memberships(port, self.both);
            keys.extend(full.then_some((rank, partition.key, partition.key | FULL)));
            keys.extend(limited.then_some((rank, partition.key, partition.key)));
        }
        keys.sort_by_key(|(rank, base, key)| (*rank, *base, !key));
        keys.into_iter().map(|(.., key)| key).collect()
    }

    /// Whether two ports may communicate with this key. The membership bit is ignored.
    #[must_use]
    pub fn share(&self, one: &Port, other: &Port, key: u16) -> bool {
        let Some(partition) = self.of_key(key) else { return false };
        let of = |port| partition.memberships(port, self.both);
        let ((one_limited, one_full), (other_limited, other_full)) = (of(one), of(other));
        one_full && (other_full || other_limited) || other_full && one_limited
    }

    /// A key with which two ports may communicate, as it is in the table of `from`. It is chosen as by OpenSM, which tries the
    /// keys in the order of their lower, then their upper byte.
    #[must_use]
    pub fn common(&self, from: &Port, to: &Port) -> Option<u16> {
        let mut keys: Vec<&Partition> = self.list.iter().collect();
        keys.sort_by_key(|partition| partition.key.swap_bytes());
        let keys = keys.into_iter().map(|partition| {
            let of = |port| partition.memberships(port, self.both);
            (partition.key, of(from), of(to))
        });
        let keys: Vec<(u16, Kinds, Kinds)> = keys.collect();
        let find = |pairs: &[Pair]| {
            keys.iter().find_map(|(key, from, to)| {
                pairs.iter().find_map(|pair| pair(*from, *to)).map(|membership| key | membership)
            })
        };
        // If a port may have both keys, OpenSM first tries equal ones, then full with limited, then the reverse.
        if self.both { PAIRS.iter().find_map(|pair| find(&[*pair])) } else { find(&PAIRS) }
    }
}

/// Whether a port is a limited member, and whether it is a full one.
type Kinds = (bool, bool);
/// Whether two ports may communicate with this combination. Returns the membership bit of the first.
type Pair = fn(Kinds, Kinds) -> Option<u16>;

const PAIRS: [Pair; 3] = [
    |(_, from), (_, to)| if from && to { Some(FULL) } else { None },
    |(_, from), (to, _)| if from && to { Some(FULL) } else { None },
    |(from, _), (_, to)| if from && to { Some(0) } else { None },
];

#[cfg(test)]
mod tests;
