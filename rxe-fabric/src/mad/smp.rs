//! Subnet management (IBTA vol. 1, chapter 14): attributes of nodes and ports. On Ethernet there is no queue pair 0 for it, so
//! each host answers its own requests, for itself and for the hosts that it knows.

use super::{
    DATA, MAD_LEN, MULTICAST_LIDS, Mad, SWITCH_LID,
    bits::{put, put_bytes},
    class, method, status,
    subnet::{Node, Subnet, Target},
};

/// Version of the class.
const VERSION: u8 = 1;
/// Attributes (IBTA vol. 1, table 123).
const NODE_DESCRIPTION: u16 = 0x10;
const NODE_INFO: u16 = 0x11;
const SWITCH_INFO: u16 = 0x12;
const GUID_INFO: u16 = 0x14;
const PORT_INFO: u16 = 0x15;
const PKEY_TABLE: u16 = 0x16;
const SL_TO_VL: u16 = 0x17;
const VL_ARBITRATION: u16 = 0x18;
const LINEAR_FORWARDING: u16 = 0x19;
const SM_INFO: u16 = 0x20;

/// Bytes of an attribute.
pub(super) const ATTRIBUTE: usize = 64;
/// The offset of the hops in a directed request, and their largest number.
const PATH: usize = 128;
const MOST_HOPS: u8 = 63;
/// The capability of a subnet manager (IsSM). Every host is its own.
const IS_SM: u64 = 1 << 1;
/// The state of an active manager.
const MASTER: u64 = 3;
/// NodeInfo.NodeType.
const CA: u64 = 1;
const SWITCH: u64 = 2;
/// P_Keys and arbitration entries in a block.
const BLOCK: usize = 32;
/// The port by which a request of this host arrives at any node: hosts have one, and this host is at the switch's first.
const FROM_HERE: u8 = 1;
/// The port of LIDs that a switch does not forward to.
const NO_PORT: u8 = 0xff;

/// Answers a request that was sent to `lid`. `None` if there is no such node or hop, or if the method needs no answer. Nothing
/// can be set.
#[must_use]
pub fn answer(request: &Mad, lid: u16, subnet: &Subnet<'_>) -> Option<Mad> {
    if !matches!(request.class(), class::SMP | class::SMP_DIRECTED) {
        return None;
    }
    let start = subnet.with_lid(lid)?;
    // The port of the node by which it arrives.
    let (target, arrives) =
        if request.is_directed() { walk(request, start, subnet)? } else { (start, FROM_HERE) };
    let mut reply = request.unmatched()?;
    // It has returned to the sender.
    if request.is_directed() {
        reply.0[6] = 0;
    }
    if request.version() != VERSION {
        put(&mut reply.0, 33, 15, status::BAD_VERSION.into());
        return Some(reply);
    }
    if request.method() != method::GET {
        return Some(reply);
    }
    let (attribute, modifier) = (request.attribute(), request.modifier());
    if let Some(data) = describe(attribute, modifier, target, arrives, subnet) {
        reply = request.reply(0);
        reply.0[6] = if request.is_directed() { 0 } else { reply.0[6] };
        put_bytes(&mut reply.0, DATA, &data);
    } else if is_known(attribute, target) {
        put(&mut reply.0, 33, 15, status::INVALID_FIELD.into());
    }
    Some(reply)
}

/// Whether a node has this attribute, perhaps with another modifier.
fn is_known(attribute: u16, target: Target<'_>) -> bool {
    match attribute {
        SWITCH_INFO | LINEAR_FORWARDING => target == Target::Switch,
        NODE_DESCRIPTION | NODE_INFO | GUID_INFO..=VL_ARBITRATION | SM_INFO => true,
        _ => false,
    }
}

/// Follows the hops of a directed request. Returns the node, and the port by which it arrives there.
fn walk<'a>(request: &Mad, start: Target<'a>, subnet: &'a Subnet<'_>) -> Option<(Target<'a>, u8)> {
    let hops = request.0[7];
    if hops > MOST_HOPS {
        return None;
    }
    let mut at = (start, FROM_HERE);
    for hop in 1..=usize::from(hops) {
        let leaves = request.0.get(PATH + hop).copied().filter(|_| PATH + hop < MAD_LEN)?;
        at = match at.0 {
            Target::Switch => (subnet.behind(leaves)?, 1),
            // Hosts do not forward requests. The first hop leaves the sender.
            node if hop == 1 && leaves == 1 => (Target::Switch, subnet.port_of(node)),
            _ => return None,
        };
    }
    Some(at)
}

/// The data of an attribute; `None` if the node has none with this modifier.
pub(super) fn describe(
    attribute: u16,
    modifier: u32,
    target: Target<'_>,
    arrives: u8,
    subnet: &Subnet<'_>,
) -> Option<[u8; ATTRIBUTE]> {
    let node = subnet.node(target);
    let mut data = [0; ATTRIBUTE];
    match (attribute, target) {
        (NODE_DESCRIPTION, _) => put_bytes(&mut data[..ATTRIBUTE - 1], 0, node.name.as_bytes()),
        (NODE_INFO, _) => node_info(&node, target, arrives, subnet, &mut data),
        (SWITCH_INFO, Target::Switch) => switch_info(&mut data),
        (LINEAR_FORWARDING, Target::Switch) => forwarding(modifier, subnet, &mut data)?,
        (GUID_INFO, _) if modifier == 0 => put(&mut data, 0, 64, node.guid),
        (PORT_INFO, _) => port_info(modifier, &node, target, subnet, arrives, &mut data)?,
        (PKEY_TABLE, Target::Own) => {
            let keys = subnet.pkeys.chunks(BLOCK).nth(usize::from(modifier as u16))?;
            let place = |(index, key): (usize, &u16)| (index * 16, u64::from(*key));
            keys.iter().enumerate().map(place).for_each(|(at, key)| put(&mut data, at, 16, key));
        }
        (SL_TO_VL, Target::Own) => {
            let levels = subnet.lanes.sl2vl().iter().enumerate();
            levels.for_each(|(level, lane)| put(&mut data, level * 4, 4, u64::from(*lane)));
        }
        (VL_ARBITRATION, Target::Own) => {
            let (table, second) = match modifier >> 16 {
                1 => (&subnet.tables.low, 0),
                2 => (&subnet.tables.low, 1),
                3 => (&subnet.tables.high, 0),
                4 => (&subnet.tables.high, 1),
                _ => return None,
            };
            for (index, entry) in table.iter().skip(second * BLOCK).take(BLOCK).enumerate() {
                put(&mut data, index * 16 + 4, 4, entry.vl.into());
                put(&mut data, index * 16 + 8, 8, entry.weight.into());
            }
        }
        // Each host decides for itself.
        (SM_INFO, Target::Own) => {
            put(&mut data, 0, 64, node.guid);
            put(&mut data, 164, 4, MASTER);
        }
        _ => return None,
    }
    Some(data)
}

fn node_info(node: &Node, target: Target<'_>, arrives: u8, subnet: &Subnet<'_>, data: &mut [u8]) {
    let (kind, ports) = match target {
        Target::Switch => (SWITCH, subnet.ports()),
        _ => (CA, 1),
    };
    let (vendor, model) = subnet.model;
    put(data, 0, 8, 1);
    put(data, 8, 8, 1);
    put(data, 16, 8, kind);
    put(data, 24, 8, ports.into());
    for at in [32, 96, 160] {
        put(data, at, 64, node.guid);
    }
    let keys = if target == Target::Own { subnet.pkeys.len() } else { 1 };
    put(data, 224, 16, keys as u64);
    put(data, 240, 16, model.into());
    // This is unknown for other hosts.
    put(data, 256, 32, if target == Target::Own { subnet.revision.into() } else { 0 });
    put(data, 288, 8, arrives.into());
    put(data, 296, 24, vendor.into());
}

/// A switch has a table of ports by LIDs (IBTA vol. 1, 14.2.5.4), with all LIDs of ports in it.
fn switch_info(data: &mut [u8]) {
    put(data, 0, 16, MULTICAST_LIDS.into());
    put(data, 48, 16, SWITCH_LID.into());
    put(data, 96, 16, 1);
}

/// A block of that table: the ports of as many LIDs as there are bytes (IBTA vol. 1, 14.2.5.10).
fn forwarding(block: u32, subnet: &Subnet<'_>, data: &mut [u8; ATTRIBUTE]) -> Option<()> {
    let first = u16::try_from(block).ok()?.checked_mul(ATTRIBUTE as u16)?;
    if first >= MULTICAST_LIDS {
        return None;
    }
    for (lid, place) in (first..).zip(data.iter_mut()) {
        let target = if lid == 0 { None } else { subnet.with_lid(lid) };
        *place = target.map_or(NO_PORT, |target| subnet.port_of(target));
    }
    Some(())
}

/// As in our view of sysfs: 40 Gbit/s, whatever the rate of the Ethernet.
fn port_info(
    modifier: u32,
    node: &Node,
    target: Target<'_>,
    subnet: &Subnet<'_>,
    arrives: u8,
    data: &mut [u8],
) -> Option<()> {
    // What is used, and what is possible: a port with more also has each that is less (IBTA vol. 1, 14.2.5.6).
    const FOUR_LANES: u64 = 2;
    const UP_TO_FOUR: u64 = 3;
    const QDR: u64 = 4;
    const UP_TO_QDR: u64 = 7;
    const UP_TO_LANE_14: u64 = 5;
    const LARGEST_MTU: u64 = 5;
    const LINK_LOCAL: u64 = 0xfe80 << 48;
    let last = if target == Target::Switch { subnet.ports() } else { 1 };
    // 0 means the port by which the request arrived. A switch has a port with this number.
    let port = match (modifier, target) {
        (0, Target::Switch) => 0,
        (0, _) => 1,
        (port, _) => u8::try_from(port).ok().filter(|port| *port <= last)?,
    };
    let is_active = match (target, port) {
        (Target::Own, _) | (Target::Switch, 1) => subnet.is_active,
        _ => true,
    };
    let has_lid = target != Target::Switch || port == 0;
    put(data, 64, 64, LINK_LOCAL);
    put(data, 128, 16, if has_lid { node.lid.into() } else { 0 });
    put(data, 144, 16, subnet.own.lid.into());
    put(data, 160, 32, if target == Target::Own { IS_SM } else { 0 });
    put(data, 224, 8, arrives.into());
    for (at, widths) in [(232, UP_TO_FOUR), (240, UP_TO_FOUR), (248, FOUR_LANES)] {
        put(data, at, 8, widths);
    }
    for (at, speeds) in [(256, UP_TO_QDR), (280, QDR), (284, UP_TO_QDR)] {
        put(data, at, 4, speeds);
    }
    let (state, wire) = if is_active { (4, 5) } else { (1, 3) };
    put(data, 260, 4, state);
    put(data, 264, 4, wire);
    put(data, 268, 4, 2);
    put(data, 288, 4, subnet.mtu.into());
    put(data, 332, 4, LARGEST_MTU);
    put(data, 296, 4, UP_TO_LANE_14);
    put(data, 344, 4, UP_TO_LANE_14);
    put(data, 304, 8, subnet.tables.limit.0.into());
    put(data, 312, 8, 64);
    put(data, 320, 8, 64);
    put(data, 400, 8, 1);
    put(data, 419, 5, 18);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        arbiter::Tables,
        lanes::Lanes,
        mad::{PERMISSIVE_LID, bits::get},
    };

    fn subnet<'a>(lanes: &'a Lanes, tables: &'a Tables) -> Subnet<'a> {
        let node =
            |lid: u16| Node { guid: 0x100 + u64::from(lid), lid, gid: [0; 16], name: format!("host {lid}") };
        Subnet {
            own: node(1),
            netdev: "eth0".to_owned(),
            is_active: true,
            mtu: 3,
            pkeys: &[0xffff, 0x8012],
            lanes,
            tables,
            others: vec![node(7), node(9)],
            model: (0xfffffe, 1),
            revision: 0x100,
        }
    }

    fn get_of(attribute: u16, modifier: u32) -> Mad {
        let mut bytes = [0; MAD_LEN];
        bytes[..4].copy_from_slice(&[1, class::SMP, 1, method::GET]);
        put(&mut bytes, 128, 16, attribute.into());
        put(&mut bytes, 160, 32, modifier.into());
        Mad(bytes)
    }

    fn directed(path: &[u8], attribute: u16) -> Mad {
        let mut mad = get_of(attribute, 0);
        (mad.0[1], mad.0[7]) = (class::SMP_DIRECTED, path.len() as u8);
        put(&mut mad.0, 256, 32, u64::from(u32::MAX));
        mad.0[PATH + 1..PATH + 1 + path.len()].copy_from_slice(path);
        mad
    }

    fn field(mad: &Mad, at: usize, width: usize) -> u64 {
        get(&mad.0[DATA..], at, width)
    }

    #[test]
    fn nodes_are_found_by_lid_and_by_hops() {
        let (lanes, tables) = (Lanes::default(), Tables::default());
        let subnet = subnet(&lanes, &tables);
        let guid = |mad: &Mad, lid| answer(mad, lid, &subnet).map(|mad| field(&mad, 96, 64));
        assert_eq!(guid(&get_of(NODE_INFO, 0), 0), Some(0x101));
        assert_eq!(guid(&get_of(NODE_INFO, 0), 9), Some(0x109));
        assert_eq!(guid(&get_of(NODE_INFO, 0), 8), None);
        for (path, wanted) in [
            (&[][..], Some(0x101)),
            (&[1], Some(subnet.switch().guid)),
            (&[1, 1], Some(0x101)),
            (&[1, 3], Some(0x109)),
            (&[1, 4], None),
            (&[1, 0], None),
            (&[2], None),
            (&[1, 2, 1], None),
        ] {
            let request = directed(path, NODE_INFO);
            assert_eq!(guid(&request, PERMISSIVE_LID), wanted, "{path:?}");
        }
        let reply = answer(&directed(&[1], NODE_INFO), PERMISSIVE_LID, &subnet).unwrap();
        assert_eq!(
            (reply.status(), field(&reply, 16, 8), field(&reply, 24, 8), field(&reply, 288, 8)),
            (0x8000, 2, 3, 1)
        );
        let mut endless = directed(&[1], NODE_INFO);
        endless.0[7] = 200;
        assert_eq!(answer(&endless, PERMISSIVE_LID, &subnet), None);
    }

    #[test]
    fn ports_tables_and_what_there_is_not() {
        let (lanes, tables) = (Lanes::default(), Tables::default());
        let subnet = subnet(&lanes, &tables);
        let ask = |attribute, modifier| answer(&get_of(attribute, modifier), 1, &subnet).unwrap();
        assert_eq!(field(&ask(NODE_INFO, 0), 256, 32), 0x100);
        assert_eq!(field(&answer(&get_of(NODE_INFO, 0), 9, &subnet).unwrap(), 256, 32), 0, "of others");
        let port = ask(PORT_INFO, 1);
        assert_eq!(
            (field(&port, 128, 16), field(&port, 144, 16), field(&port, 260, 4), field(&port, 288, 4)),
            (1, 1, 4, 3)
        );
        // Widths and speeds: enabled, supported, active; values that IBTA has for these fields.
        assert_eq!([232, 240, 248].map(|at| field(&port, at, 8)), [3, 3, 2]);
        assert_eq!([284, 256, 280].map(|at| field(&port, at, 4)), [7, 7, 4]);
        assert_eq!(ask(PORT_INFO, 2).status(), status::INVALID_FIELD);
        let keys = ask(PKEY_TABLE, 0);
        assert_eq!((field(&keys, 0, 16), field(&keys, 16, 16), field(&keys, 32, 16)), (0xffff, 0x8012, 0));
        assert_eq!(ask(PKEY_TABLE, 1).status(), status::INVALID_FIELD);
        assert_eq!(field(&ask(SL_TO_VL, 0), 60, 4), 7);
        assert_eq!(field(&ask(VL_ARBITRATION, 3 << 16), 8, 8), 4);
        assert_eq!(field(&ask(SM_INFO, 0), 164, 4), 3);
        assert_eq!(&ask(NODE_DESCRIPTION, 0).0[DATA..DATA + 7], b"host 1\0");
        // What there is not, what only switches have, and a version that is not ours.
        for attribute in [0x13, 0x31, SWITCH_INFO, LINEAR_FORWARDING] {
            assert_eq!(ask(attribute, 0).status(), status::UNSUPPORTED, "{attribute:#x}");
        }
        let mut old = directed(&[1], NODE_INFO);
        old.0[2] = 0;
        assert_eq!(answer(&old, PERMISSIVE_LID, &subnet).unwrap().status(), 0x8004);
        let mut set = get_of(PORT_INFO, 1);
        set.0[3] = method::SET;
        assert_eq!(answer(&set, 1, &subnet).unwrap().status(), status::UNSUPPORTED);
        // Ports of the switch: its own has the LID, that of the last host is there, and no further.
        let of_switch = |port| answer(&get_of(PORT_INFO, port), subnet.switch().lid, &subnet).unwrap();
        assert_eq!(field(&of_switch(0), 128, 16), u64::from(subnet.switch().lid));
        assert_eq!((field(&of_switch(3), 128, 16), of_switch(4).status()), (0, status::INVALID_FIELD));
    }

    #[test]
    fn the_switch_knows_the_port_of_each_lid() {
        let (lanes, tables) = (Lanes::default(), Tables::default());
        let subnet = subnet(&lanes, &tables);
        let ask =
            |attribute, modifier| answer(&get_of(attribute, modifier), subnet.switch().lid, &subnet).unwrap();
        let info = ask(SWITCH_INFO, 0);
        let (capacity, top) = (field(&info, 0, 16), field(&info, 48, 16));
        assert!(capacity > top && top >= u64::from(subnet.switch().lid), "{capacity} {top}");
        let port = |lid: u16| {
            let block = ask(LINEAR_FORWARDING, u32::from(lid) / 64);
            assert_eq!(block.status(), 0);
            block.0[DATA + usize::from(lid) % 64]
        };
        assert_eq!([1, 7, 9, 0xbfff, 0, 2, 8, 0xbffe].map(port), [1, 2, 3, 0, 255, 255, 255, 255]);
        assert_eq!(ask(LINEAR_FORWARDING, 768).status(), status::INVALID_FIELD);
        assert_eq!(ask(LINEAR_FORWARDING, u32::MAX).status(), status::INVALID_FIELD);
        // The port by which the request has come (IBTA vol. 1, 14.2.5.3 and 14.2.5.6).
        assert_eq!((field(&ask(NODE_INFO, 0), 288, 8), field(&ask(PORT_INFO, 2), 224, 8)), (1, 1));
        let of_host = answer(&get_of(LINEAR_FORWARDING, 0), 1, &subnet).unwrap();
        assert_eq!(of_host.status(), status::UNSUPPORTED);
    }
}
