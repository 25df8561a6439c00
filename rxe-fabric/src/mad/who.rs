//! Asks another host to identify itself, by a query for the record of its own node. Hosts that run rxe answer subnet
//! administration themselves. Kernels answer that the class is not supported, which also shows that the host is there.

use super::{
    Mad,
    bits::{get, put},
    class, method,
    sa::{NODE_RECORD, RECORDS, VERSION},
};

/// The offset of NodeInfo in a record, the offset of the description, and its length.
const INFO: usize = 4;
const DESCRIPTION: usize = 44;
const LONGEST: usize = 64;

/// The answer of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSays {
    /// Its LID, according to itself.
    pub lid: u16,
    /// GUID of its adapter.
    pub guid: u64,
    /// Vendor ID, 24 bits, and the model.
    pub model: (u32, u16),
    /// Its revision. For rxe this is the release ([`super::release_of`]).
    pub revision: u32,
    /// Its description, without control characters.
    pub name: String,
}

/// The query for the record of the host's own node, which is the first record that matches a query without conditions.
#[must_use]
pub fn ask_node(tid: u64) -> Mad {
    let mut mad = Mad([0; super::MAD_LEN]).with_tid(tid);
    mad.0[..4].copy_from_slice(&[1, class::SA, VERSION, method::GET]);
    put(&mut mad.0, 128, 16, NODE_RECORD.into());
    mad
}

/// Parses an answer. `None` if it is not an answer, or a refusal.
#[must_use]
pub fn node_says(answer: &Mad) -> Option<NodeSays> {
    let is_it = answer.class() == class::SA
        && answer.method() == method::GET | method::RESPONSE
        && answer.attribute() == NODE_RECORD
        && answer.status() == 0;
    let record = is_it.then(|| &answer.0[RECORDS..])?;
    let info = &record[INFO..];
    let name = &record[DESCRIPTION..DESCRIPTION + LONGEST];
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let shown = |c: char| if c.is_control() { '?' } else { c };
    Some(NodeSays {
        lid: get(record, 0, 16) as u16,
        guid: get(info, 96, 64),
        model: (get(info, 296, 24) as u32, get(info, 240, 16) as u16),
        revision: get(info, 256, 32) as u32,
        name: String::from_utf8_lossy(name).chars().map(shown).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        arbiter::Tables,
        lanes::Lanes,
        mad::{Node, Subnet, answer_sa, first_segment, release_of, revision_of},
    };

    #[test]
    fn a_host_of_ours_says_who_it_is_and_others_nothing() {
        let node = |lid: u16, name: &str| Node {
            guid: 0x28d7_a3ff_fef8_8b71 + u64::from(lid),
            lid,
            gid: [0; 16],
            name: name.into(),
        };
        let (lanes, tables) = (Lanes::default(), Tables::default());
        let subnet = Subnet {
            own: node(7, "host\u{1b}[1m rxe0"),
            netdev: "eth0".into(),
            is_active: true,
            mtu: 3,
            pkeys: &[0xffff],
            lanes: &lanes,
            tables: &tables,
            others: [node(8, "another")].into(),
            model: (0xff_fffe, 1),
            revision: revision_of("0.1.0"),
        };
        let question = ask_node(0x1234);
        let answer = first_segment(&question, &answer_sa(&question, &subnet, &[]).unwrap());
        assert_eq!(answer.tid(), 0x1234);
        let says = node_says(&answer).unwrap();
        assert_eq!(
            (says.lid, says.guid, says.model, &*says.name, &*release_of(says.revision)),
            (7, 0x28d7_a3ff_fef8_8b78, (0xff_fffe, 1), "host?[1m rxe0", "0.1.0")
        );
        // A kernel's refusal, a query and random bytes give nothing.
        assert_eq!(node_says(&question.unmatched().unwrap()), None);
        assert_eq!(node_says(&question), None);
        assert!(node_says(&Mad([0xff; 256])).is_none() && node_says(&Mad([0; 256])).is_none());
    }
}
