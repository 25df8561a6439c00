//! A subnet as a host sees it: itself, a switch that stands for the Ethernet, and the hosts that it knows.

use super::{PERMISSIVE_LID, SWITCH_LID};
use crate::{arbiter::Tables, lanes::Lanes};

/// Bit of a GUID for "locally assigned". The switch has the GUID of the asking host with this bit inverted, and another bit
/// below.
const MADE_UP: u64 = 0x8000_0000_0000_0000;

/// A release as the revision of NodeInfo: one byte each for major, minor and patch number, in the lower three bytes. Larger
/// numbers become 255.
#[must_use]
pub fn revision_of(release: &str) -> u32 {
    let numbers = release.split(['.', '-', '+']).take(3).map(|part| part.parse::<u32>().unwrap_or(0));
    numbers.chain([0; 3]).take(3).fold(0, |all, number| all << 8 | number.min(255))
}

/// The release of a revision.
#[must_use]
pub fn release_of(revision: u32) -> String {
    let [_, major, minor, patch] = revision.to_be_bytes();
    format!("{major}.{minor}.{patch}")
}

/// A port of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// GUID of its adapter and of its port, which are the same here.
    pub guid: u64,
    /// LID.
    pub lid: u16,
    /// GID: its address.
    pub gid: [u8; 16],
    /// Description, 63 bytes at most.
    pub name: String,
}

/// A host's view of the subnet of one of its ports.
#[derive(Clone, Debug)]
pub struct Subnet<'a> {
    /// The port that the request is for, or from.
    pub own: Node,
    /// Its interface.
    pub netdev: String,
    /// Whether it works.
    pub is_active: bool,
    /// MTU, 1 to 5 for 256 to 4096 bytes.
    pub mtu: u8,
    /// P_Key table.
    pub pkeys: &'a [u16],
    /// Service levels and lanes.
    pub lanes: &'a Lanes,
    /// How lanes share the link.
    pub tables: &'a Tables,
    /// The other hosts. The first 253 are at a port of the switch.
    pub others: Vec<Node>,
    /// Vendor ID, 24 bits, and the model.
    pub model: (u32, u16),
    /// The port's own release, which NodeInfo calls its revision ([`revision_of`]).
    pub revision: u32,
}

/// The node that a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target<'a> {
    Own,
    Switch,
    Other(&'a Node),
}

impl Subnet<'_> {
    /// The node with a LID. 0 and the permissive LID mean the port itself.
    pub(super) fn with_lid(&self, lid: u16) -> Option<Target<'_>> {
        match lid {
            0 | PERMISSIVE_LID => Some(Target::Own),
            SWITCH_LID => Some(Target::Switch),
            lid if lid == self.own.lid => Some(Target::Own),
            lid => self.others.iter().find(|node| node.lid == lid).map(Target::Other),
        }
    }

    /// The node at a port of the switch.
    pub(super) fn behind(&self, port: u8) -> Option<Target<'_>> {
        match port {
            0 => None,
            1 => Some(Target::Own),
            port => self.others.get(usize::from(port) - 2).map(Target::Other),
        }
    }

    /// Ports of the switch.
    pub(super) fn ports(&self) -> u8 {
        u8::try_from(1 + self.others.len()).unwrap_or(u8::MAX).min(254)
    }

    /// The port of the switch that a node is at.
    pub(super) fn port_of(&self, target: Target<'_>) -> u8 {
        match target {
            Target::Own => 1,
            Target::Switch => 0,
            Target::Other(node) => {
                let place = self.others.iter().position(|other| other == node).unwrap_or(0);
                u8::try_from(place + 2).unwrap_or(u8::MAX)
            }
        }
    }

    /// The switch.
    pub(super) fn switch(&self) -> Node {
        let name = format!("Ethernet at {}", self.netdev);
        Node { guid: self.own.guid ^ MADE_UP ^ 1, lid: SWITCH_LID, gid: [0; 16], name }
    }

    /// The node that a target stands for.
    pub(super) fn node(&self, target: Target<'_>) -> Node {
        match target {
            Target::Own => self.own.clone(),
            Target::Switch => self.switch(),
            Target::Other(node) => node.clone(),
        }
    }

    /// All nodes: the host itself, the switch, and the others.
    pub(super) fn targets(&self) -> impl Iterator<Item = Target<'_>> {
        [Target::Own, Target::Switch].into_iter().chain(self.others.iter().map(Target::Other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_a_revision_and_back() {
        for (release, revision, back) in [
            ("0.1.0", 0x100, "0.1.0"),
            ("1.22.3", 0x01_1603, "1.22.3"),
            ("2.0.300", 0x02_00ff, "2.0.255"),
            ("3.1-rc1", 0x03_0100, "3.1.0"),
            ("", 0, "0.0.0"),
        ] {
            assert_eq!(
                (revision_of(release), release_of(revision)),
                (revision, back.to_owned()),
                "{release}"
            );
        }
    }
}
