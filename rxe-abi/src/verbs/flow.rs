//! Flows: which frames a queue pair for raw packets receives.

use crate::{
    border::{Bytes, INVALID, Owned, Result, UNSUPPORTED, code, given, pointer},
    c::{self, attr::FlowAttr},
    object::{Flow, Qp},
};
use core::ffi::c_int;
use rxe_verbs::{Layer, Pattern};
use std::sync::Arc;

/// IBV_FLOW_ATTR_*.
mod kind {
    use core::ffi::c_int;
    pub(super) const NORMAL: c_int = 0;
    pub(super) const ALL_DEFAULT: c_int = 1;
    pub(super) const MC_DEFAULT: c_int = 2;
    pub(super) const SNIFFER: c_int = 3;
}

/// IBV_FLOW_SPEC_*.
mod spec {
    pub(super) const ETH: u32 = 0x20;
    pub(super) const IPV4: u32 = 0x30;
    pub(super) const IPV6: u32 = 0x31;
    pub(super) const IPV4_EXT: u32 = 0x32;
    pub(super) const TCP: u32 = 0x40;
    pub(super) const UDP: u32 = 0x41;
}

/// Most rules of one flow. More would have no meaning.
const MOST_SPECS: u8 = 16;
/// Most bytes of a rule. That of IPv6 has 88.
const MOST_BYTES: usize = 128;

/// ibv_create_flow(3). Priorities change nothing: each queue pair gets its own copy of a frame.
pub(super) extern "C" fn create_flow(qp: Option<&Qp>, attr: Option<&FlowAttr>) -> *mut Flow {
    pointer(|| {
        let (qp, attr) = (given(qp)?, given(attr)?);
        let raw = qp.raw.as_ref().ok_or(UNSUPPORTED)?;
        if attr.comp_mask != 0 || attr.flags != 0 {
            return Err(UNSUPPORTED);
        }
        if attr.port != 1 {
            return Err(INVALID);
        }
        let flow = match attr.kind {
            kind::NORMAL => rxe_verbs::Flow::Fitting(patterns(attr)?),
            kind::ALL_DEFAULT | kind::SNIFFER => rxe_verbs::Flow::All,
            kind::MC_DEFAULT => rxe_verbs::Flow::Groups,
            _ => return Err(INVALID),
        };
        let flow = raw.take(flow)?;
        let c = c::object::Flow { comp_mask: 0, context: qp.context.pointer(), handle: flow.number() };
        Ok(Box::into_raw(Box::new(Flow { c, _flow: flow, _context: Arc::clone(&qp.context) })))
    })
}

/// ibv_destroy_flow(3).
pub(super) extern "C" fn destroy_flow(flow: Owned<Flow>) -> c_int {
    code(|| {
        flow.get()?;
        flow.free();
        Ok(())
    })
}

/// The rules behind the attributes, each with its own length.
fn patterns(attr: &FlowAttr) -> Result<Vec<Pattern>> {
    const HEAD: usize = 6;
    if attr.num_of_specs > MOST_SPECS {
        return Err(INVALID);
    }
    let mut at = core::ptr::from_ref(attr).expose_provenance() + size_of::<FlowAttr>();
    let mut list = Vec::new();
    for _ in 0..attr.num_of_specs {
        let head = Bytes::at(at as u64).read(HEAD);
        let [a, b, c, d, e, f] = head[..] else { return Err(INVALID) };
        let (kind, size) = (u32::from_ne_bytes([a, b, c, d]), usize::from(u16::from_ne_bytes([e, f])));
        if !(HEAD..=MOST_BYTES).contains(&size) {
            return Err(INVALID);
        }
        list.push(pattern(kind, &Bytes::at(at as u64).read(size))?);
        at += size;
    }
    Ok(list)
}

/// One rule. Its fields are in network order, values before masks.
fn pattern(kind: u32, bytes: &[u8]) -> Result<Pattern> {
    let part = |at: usize, len: usize| bytes.get(at..at + len).ok_or(INVALID);
    let pair = |start: (usize, usize), at: usize, len: usize| {
        Ok::<_, crate::border::Errno>((part(start.0 + at, len)?, part(start.1 + at, len)?))
    };
    // Where the values and the masks of a filter begin, and its fields: offset in the filter, length, offset in the header.
    let (layer, start, fields): (_, _, &[(usize, usize, usize)]) = match kind {
        spec::ETH => (Layer::Ethernet, (6, 22), &[(0, 6, 0), (6, 6, 6), (12, 2, 12)]),
        spec::IPV4 => (Layer::Ipv4, (8, 16), &[(0, 4, 12), (4, 4, 16)]),
        spec::IPV4_EXT => (Layer::Ipv4, (8, 20), &[(0, 4, 12), (4, 4, 16), (8, 1, 9), (9, 1, 1), (10, 1, 8)]),
        spec::IPV6 => (Layer::Ipv6, (8, 48), &[(0, 16, 8), (16, 16, 24), (36, 1, 6), (38, 1, 7)]),
        spec::TCP => (Layer::Tcp, (6, 10), &[(2, 2, 0), (0, 2, 2)]),
        spec::UDP => (Layer::Udp, (6, 10), &[(2, 2, 0), (0, 2, 2)]),
        _ => return Err(UNSUPPORTED),
    };
    // These fields are not compared, so a rule must not ask for them: VLAN tag, IPv4 flags, IPv6 flow label and traffic class.
    let left_out: &[(usize, usize)] = match kind {
        spec::ETH => &[(14, 2)],
        spec::IPV4_EXT => &[(11, 1)],
        spec::IPV6 => &[(32, 4), (37, 1)],
        _ => &[],
    };
    for (at, len) in left_out {
        if part(start.1 + at, *len)?.iter().any(|byte| *byte != 0) {
            return Err(UNSUPPORTED);
        }
    }
    fields.iter().try_fold(Pattern::new(layer), |pattern, (at, len, place)| {
        let (value, mask) = pair(start, *at, *len)?;
        Ok(pattern.with(*place, value, mask))
    })
}
