//! The ends of a path.

/// What kind of node a port belongs to (NodeInfo.NodeType; IBTA vol. 1, 14.2.5.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeType {
    /// A channel adapter: a host.
    #[default]
    Ca,
    /// A switch.
    Switch,
    /// A router.
    Router,
}

/// A port, as rules name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// Its port GUID, and the interface IDs of its GIDs, which stand for it in rules, too.
    pub guids: Vec<u64>,
    /// Description of its node and port number, as rules write it: "node7 HCA-1/P1". Empty if it is not known.
    pub name: String,
    /// The kind of its node.
    pub node_type: NodeType,
    /// Whether OpenSM would run there, `SELF` in its files.
    pub is_manager: bool,
}

impl Port {
    /// A host's port with one GUID.
    #[must_use]
    pub fn new(guid: u64) -> Self {
        Self { guids: vec![guid], ..Self::default() }
    }
}
