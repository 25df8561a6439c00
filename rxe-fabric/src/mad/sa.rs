//! Subnet administration (IBTA vol. 1, chapter 15): records of nodes, ports and paths. Each host is its own subnet manager
//! here, so it answers from its own knowledge and from OpenSM's files.

use super::{
    CLASS_PORT_INFO, MAD_LEN, Mad,
    bits::{get, put, put_bytes},
    class, class_port_info, method, smp, status,
    subnet::{Subnet, Target},
};
use crate::path::speed;
use core::ops::{Range, RangeInclusive};

/// Version of the class since release 1.1.
pub(super) const VERSION: u8 = 2;
/// Attributes.
pub(super) const NODE_RECORD: u16 = 0x11;
const PORT_INFO_RECORD: u16 = 0x12;
const SM_INFO_RECORD: u16 = 0x18;
const PATH_RECORD: u16 = 0x35;
/// The header of segments.
const SEGMENT: Range<usize> = 24..36;
/// The offset of the records, and the bytes of records that a datagram can hold.
pub(super) const RECORDS: usize = 56;
/// Most bytes of an answer, with any number of records: what a program of this host can get in one message.
const MOST: usize = 15 * 1024;
/// The capability bit IsQoSSupported is not among the 16 bits that are reported.
const CAPABILITIES: u16 = 0;

/// Fields of a record, as (bit, bits), in the order of the component mask.
type Fields = &'static [(usize, usize)];

const NODE_FIELDS: Fields = &[
    (0, 16),
    (16, 16),
    (32, 8),
    (40, 8),
    (48, 8),
    (56, 8),
    (64, 64),
    (128, 64),
    (192, 64),
    (256, 16),
    (272, 16),
    (288, 32),
    (320, 8),
    (328, 24),
];
const PORT_FIELDS: Fields = &[(0, 16), (16, 8), (24, 8), (32, 64), (96, 64), (160, 16), (176, 16)];
const MANAGER_FIELDS: Fields = &[(0, 16), (16, 16), (32, 64), (96, 64), (160, 32), (192, 4), (196, 4)];
/// The component of NodeRecord with the node's description, and where it is, in bytes.
const DESCRIPTION_COMPONENT: u32 = 14;
const DESCRIPTION: Range<usize> = 44..108;
/// The component of PortInfoRecord with a port's capabilities, and their offset.
const CAPABILITY_COMPONENT: u32 = 7;
const PORT_CAPABILITIES: usize = 192;
/// Attribute modifier of a query by capabilities: it selects ports that have all of these, and possibly others.
const AT_LEAST: u32 = 1 << 31;

/// An end of a path in a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// By its GID, or by the default prefix and its GUID.
    Gid([u8; 16]),
    /// By its LID.
    Lid(u16),
}

/// A query for path records. Fields that are `None` were not given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathRequest {
    /// Service ID.
    pub service_id: Option<u64>,
    /// The sending end.
    pub from: Option<Destination>,
    /// The other end.
    pub to: Option<Destination>,
    /// P_Key.
    pub pkey: Option<u16>,
    /// QoS class.
    pub qos_class: Option<u16>,
    /// Service level.
    pub sl: Option<u8>,
}

/// A path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathAnswer {
    /// Service ID, as it was asked for.
    pub service_id: u64,
    /// GIDs: from, to.
    pub gids: ([u8; 16], [u8; 16]),
    /// LIDs: from, to.
    pub lids: (u16, u16),
    /// Traffic class.
    pub traffic_class: u8,
    /// P_Key.
    pub pkey: u16,
    /// Service level.
    pub sl: u8,
    /// MTU, 1 to 5.
    pub mtu: u8,
    /// Rate, a code of path records; 0 if it is not known.
    pub rate: u8,
    /// Lifetime of packets, 4.096 us << code.
    pub packet_life: u8,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaRequest {
    /// Paths. The caller finds them by the policy.
    Paths(PathRequest),
    /// Anything else.
    Other,
}

/// An answer: a header and any number of records. It may be longer than a datagram.
pub type SaAnswer = Vec<u8>;

/// What a request asks for.
#[must_use]
pub fn request(mad: &Mad) -> SaRequest {
    let reads = matches!(mad.method(), method::GET | method::GET_TABLE);
    if !reads || mad.attribute() != PATH_RECORD {
        return SaRequest::Other;
    }
    let (mask, record) = (mask(mad), &mad.0[RECORDS..]);
    let has = |bit: u32| mask >> bit & 1 != 0;
    let gid = |at: usize| record[at..at + 16].try_into().map(Destination::Gid).ok();
    let lid = |at: usize| Some(Destination::Lid(get(record, at * 8, 16) as u16));
    let end = |by_gid, gid_at, by_lid, lid_at| {
        if has(by_gid) {
            gid(gid_at)
        } else if has(by_lid) {
            lid(lid_at)
        } else {
            None
        }
    };
    SaRequest::Paths(PathRequest {
        service_id: (has(0) || has(1)).then(|| get(record, 0, 64)),
        to: end(2, 8, 4, 40),
        from: end(3, 24, 5, 42),
        pkey: has(13).then(|| get(record, 400, 16) as u16),
        qos_class: has(14).then(|| get(record, 416, 12) as u16),
        sl: has(15).then(|| get(record, 428, 4) as u8),
    })
}

/// Answers a request. `paths` are those that it asks for ([`request`]). `None` if it needs no answer.
#[must_use]
pub fn answer(mad: &Mad, subnet: &Subnet<'_>, paths: &[PathAnswer]) -> Option<SaAnswer> {
    if mad.class() != class::SA {
        return None;
    }
    let is_table = mad.method() == method::GET_TABLE;
    let is_other = matches!(mad.method(), method::GET_TRACE_TABLE | method::GET_MULTI | method::DELETE);
    if !is_table && !is_other {
        mad.unmatched()?;
    }
    let refuse = |status| Some(mad.reply(status).0.to_vec());
    if mad.version() != VERSION {
        return refuse(status::BAD_VERSION);
    }
    if is_other {
        let mut refusal = mad.reply(status::UNSUPPORTED_METHOD);
        // It is no segment, even if the request is one.
        refusal.0[SEGMENT].fill(0);
        if mad.method() == method::GET_TRACE_TABLE {
            refusal.0[3] = method::GET_TABLE | method::RESPONSE;
        }
        return Some(refusal.0.to_vec());
    }
    if mad.method() == method::SET {
        return refuse(status::UNSUPPORTED);
    }
    if mad.attribute() == CLASS_PORT_INFO && !is_table {
        let mut reply = mad.reply(0);
        reply.0[RECORDS..].fill(0);
        class_port_info(VERSION, CAPABILITIES, &mut reply.0[RECORDS..]);
        return Some(reply.0.to_vec());
    }
    let (records, size, compared) = match mad.attribute() {
        NODE_RECORD => (nodes(mad, subnet), 112, DESCRIPTION_COMPONENT + 1),
        PORT_INFO_RECORD => (ports(mad, subnet), 72, CAPABILITY_COMPONENT + 1),
        SM_INFO_RECORD => (managers(mad, subnet), 32, MANAGER_FIELDS.len() as u32),
        PATH_RECORD => (path_records(mad, paths), 64, u64::BITS),
        _ => return refuse(status::UNSUPPORTED),
    };
    // Records that were chosen without a component would be the wrong ones.
    if mask(mad).checked_shr(compared).is_some_and(|others| others != 0) {
        return refuse(status::INVALID_REQUEST);
    }
    match (is_table, &records[..]) {
        // The requester could not see that some are missing.
        (true, records) if RECORDS + records.len() * size > MOST => refuse(status::NO_RESOURCES),
        (true, records) => Some(table(mad, records, size)),
        (false, []) => refuse(status::NO_RECORDS),
        // By the query without conditions a host asks another who it is ([`super::ask_node`]).
        (false, [_, _, ..]) if mask(mad) != 0 => refuse(status::TOO_MANY_RECORDS),
        (false, [first, ..]) => {
            let mut reply = mad.reply(0);
            reply.0[RECORDS..].fill(0);
            put_bytes(&mut reply.0, RECORDS, first);
            put(&mut reply.0, 352, 16, size as u64 / 8);
            Some(reply.0.to_vec())
        }
    }
}

/// The answer as a single datagram, because only one segment is sent (IBTA vol. 1, 13.6.2). If it is longer, the datagram says
/// that there is no room for it.
#[must_use]
pub fn first_segment(request: &Mad, answer: &[u8]) -> Mad {
    Mad::of(answer).unwrap_or_else(|| request.reply(status::NO_RESOURCES))
}

fn mask(mad: &Mad) -> u64 {
    get(&mad.0, 384, 64)
}

/// Whether a record has the requested values in the fields of the mask.
fn fits(mad: &Mad, record: &[u8], fields: Fields) -> bool {
    let asked = &mad.0[RECORDS..];
    let same = |&(at, width): &(usize, usize)| get(asked, at, width) == get(record, at, width);
    let named = fields.iter().enumerate().filter(|(bit, _)| mask(mad) >> bit & 1 != 0);
    named.map(|(_, field)| field).all(same)
}

fn nodes(mad: &Mad, subnet: &Subnet<'_>) -> Vec<Vec<u8>> {
    let record = |target: Target<'_>| {
        let mut record = vec![0; 108];
        put(&mut record, 0, 16, subnet.node(target).lid.into());
        let arrives = u8::from(target != Target::Switch);
        let about = |attribute| smp::describe(attribute, 0, target, arrives, subnet);
        put_bytes(&mut record, 4, &about(0x11)?[..40]);
        put_bytes(&mut record, 44, &about(0x10)?);
        Some(record)
    };
    let is_called = |record: &Vec<u8>| {
        let asks = mask(mad) >> DESCRIPTION_COMPONENT & 1 != 0;
        !asks || mad.0[RECORDS..][DESCRIPTION] == record[DESCRIPTION]
    };
    let all = subnet.targets().filter_map(record);
    all.filter(|record| fits(mad, record, NODE_FIELDS)).filter(is_called).collect()
}

fn ports(mad: &Mad, subnet: &Subnet<'_>) -> Vec<Vec<u8>> {
    let record = |target: Target<'_>, port: u8| {
        let mut record = vec![0; 68];
        put(&mut record, 0, 16, subnet.node(target).lid.into());
        put(&mut record, 16, 8, port.into());
        put_bytes(&mut record, 4, &smp::describe(0x15, port.into(), target, port, subnet)?);
        Some(record)
    };
    let of_node = |target| {
        let numbers = if target == Target::Switch { 0..=subnet.ports() } else { 1..=1 };
        numbers.filter_map(move |port| record(target, port))
    };
    let wanted = get(&mad.0[RECORDS..], PORT_CAPABILITIES, 32);
    let is_capable = |record: &Vec<u8>| {
        let has = get(record, PORT_CAPABILITIES, 32);
        let is_asked = mask(mad) >> CAPABILITY_COMPONENT & 1 != 0;
        !is_asked || if mad.modifier() & AT_LEAST != 0 { has & wanted == wanted } else { has == wanted }
    };
    let all = subnet.targets().flat_map(of_node);
    all.filter(|record| fits(mad, record, PORT_FIELDS)).filter(is_capable).collect()
}

fn managers(mad: &Mad, subnet: &Subnet<'_>) -> Vec<Vec<u8>> {
    let mut record = vec![0; 28];
    put(&mut record, 0, 16, subnet.own.lid.into());
    if let Some(info) = smp::describe(0x20, 0, Target::Own, 1, subnet) {
        put_bytes(&mut record, 4, &info[..24]);
    }
    if fits(mad, &record, MANAGER_FIELDS) { vec![record] } else { Vec::new() }
}

/// A property of paths that a query may bound: the component of its selector, which that of its value follows, where they are in the
/// record, the codes that it may have, how much a code stands for, and whether a path that could have more also has exactly less.
struct Bound {
    component: u32,
    at: usize,
    codes: RangeInclusive<u8>,
    much: fn(u8) -> u32,
    has_less: bool,
}

const MTU: Bound = Bound { component: 16, at: 432, codes: 1..=5, much: u32::from, has_less: true };
const RATE: Bound = Bound { component: 18, at: 440, codes: 2..=24, much: speed, has_less: false };
const PACKET_LIFE: Bound = Bound { component: 20, at: 448, codes: 1..=63, much: u32::from, has_less: true };

impl Bound {
    /// The code for the answer, if the path is possible with one that the query allows: more than, less than or exactly its value,
    /// or any (IBTA vol. 1, 15.2.5.16). As in OpenSM, a selector or a value alone allows any.
    fn allowed(&self, mad: &Mad, has: u8) -> Option<u8> {
        let record = &mad.0[RECORDS..];
        if mask(mad) >> self.component & 3 != 3 {
            return Some(has);
        }
        let (selector, wanted) = (get(record, self.at, 2), get(record, self.at + 2, 6) as u8);
        let (most, bound) = ((self.much)(has), (self.much)(wanted));
        match selector {
            0 => (most > bound).then_some(has),
            1 if most >= bound => {
                let below = self.codes.clone().filter(|code| (self.much)(*code) < bound);
                below.max_by_key(|code| (self.much)(*code))
            }
            2 => (most == bound || self.has_less && most > bound).then_some(wanted),
            _ => Some(has),
        }
    }
}

/// The records of the paths that are possible within the query's bounds. A rate that is not known is within any.
fn path_records(mad: &Mad, paths: &[PathAnswer]) -> Vec<Vec<u8>> {
    let bounded = |path: &PathAnswer| {
        Some(PathAnswer {
            mtu: MTU.allowed(mad, path.mtu)?,
            rate: if path.rate == 0 { 0 } else { RATE.allowed(mad, path.rate)? },
            packet_life: PACKET_LIFE.allowed(mad, path.packet_life)?,
            ..*path
        })
    };
    paths.iter().filter_map(bounded).map(|path| path_record(&path)).collect()
}

fn path_record(path: &PathAnswer) -> Vec<u8> {
    // Selectors "exactly", and "reversible", as in OpenSM's answers.
    const EXACTLY: u64 = 2;
    const REVERSIBLE: u64 = 0x80;
    let mut record = vec![0; 64];
    put(&mut record, 0, 64, path.service_id);
    put_bytes(&mut record, 8, &path.gids.1);
    put_bytes(&mut record, 24, &path.gids.0);
    put(&mut record, 320, 16, path.lids.1.into());
    put(&mut record, 336, 16, path.lids.0.into());
    put(&mut record, 384, 8, path.traffic_class.into());
    put(&mut record, 392, 8, REVERSIBLE);
    put(&mut record, 400, 16, path.pkey.into());
    put(&mut record, 428, 4, path.sl.into());
    for (at, value) in [(432, path.mtu), (440, path.rate), (448, path.packet_life)] {
        let is_known = at == 448 || value != 0;
        put(&mut record, at, 2, if is_known { EXACTLY } else { 0 });
        put(&mut record, at + 2, 6, value.into());
    }
    record
}

/// The records in a row, behind the header of a segmented transaction.
fn table(mad: &Mad, records: &[Vec<u8>], size: usize) -> SaAnswer {
    // Version 1; data; active, first and last segment; no time.
    const HEADER: [u8; 4] = [1, 1, 0xff, 0];
    /// Bytes of this class's header that count as data.
    const OWN_HEADER: usize = 20;
    let mut reply = mad.reply(0);
    put_bytes(&mut reply.0, 24, &HEADER);
    put(&mut reply.0, 224, 32, 1);
    put(&mut reply.0, 256, 32, (OWN_HEADER + records.len() * size) as u64);
    put(&mut reply.0, 352, 16, size as u64 / 8);
    let mut answer = reply.0[..RECORDS].to_vec();
    for record in records {
        answer.extend(record);
        answer.resize(answer.len() + size - record.len(), 0);
    }
    // No answer is shorter than an empty datagram.
    answer.resize(answer.len().max(RECORDS), 0);
    debug_assert!(answer.len() <= MOST.max(MAD_LEN));
    answer
}

#[cfg(test)]
mod tests;
