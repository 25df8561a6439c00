//! Address handles.

use super::memory::c_pd;
use crate::{
    border::{Errno, INVALID, Out, Owned, Result, code, given, pointer, value},
    c::{
        self, Gid as CGid,
        attr::{AhAttr, GlobalRoute},
        context::ContextPtr,
        value as v,
        work::{Grh, Wc},
    },
    convert::address_vector,
    object::{Ah, Context, Pd, Users},
};
use core::{ffi::c_int, net::IpAddr};
use rxe_verbs::{Gid, GidType};
use std::sync::Arc;

/// ibv_create_ah(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_create_ah(pd: Option<&Pd>, attr: Option<&AhAttr>) -> *mut Ah {
    pointer(|| make(given(pd)?, given(attr)?))
}

fn make(pd: &Pd, attr: &AhAttr) -> Result<*mut Ah> {
    if attr.port_num != 1 {
        return Err(INVALID);
    }
    // Here an index without a GID has an error number of its own. For queue pairs it has not.
    let context = &pd.context.context;
    context.check_owner()?;
    if attr.is_global != 0 && context.gids().get(attr.grh.sgid_index).is_zero() {
        return Err(Errno(libc::ENODATA));
    }
    let ah = pd.pd.create_ah(address_vector(context, attr)?);
    let c = c::object::Ah { context: pd.context.pointer(), pd: c_pd(pd), handle: 0 };
    let (users, context) = (Users::clone(&pd.users), Arc::clone(&pd.context));
    Ok(Box::into_raw(Box::new(Ah { c, ah, _pd: users, _context: context })))
}

/// ibv_destroy_ah(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_ah(ah: Owned<Ah>) -> c_int {
    code(|| {
        ah.get()?;
        ah.free();
        Ok(())
    })
}

/// ibv_init_ah_from_wc(3): the address of a datagram's sender.
#[unsafe(no_mangle)]
extern "C" fn ibv_init_ah_from_wc(
    context: ContextPtr,
    port: u8,
    wc: Option<&Wc>,
    grh: Option<&Grh>,
    out: Out<'_, AhAttr>,
) -> c_int {
    value(|| {
        let attr = way_back(Context::of(context)?, port, given(wc)?, grh)?;
        given(out)?.write(attr);
        Ok(0)
    })
}

/// ibv_create_ah_from_wc(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_create_ah_from_wc(
    pd: Option<&Pd>,
    wc: Option<&Wc>,
    grh: Option<&Grh>,
    port: u8,
) -> *mut Ah {
    pointer(|| {
        let pd = given(pd)?;
        make(pd, &way_back(&pd.context, port, given(wc)?, grh)?)
    })
}

/// Hop limit of a reply: the one that libibverbs uses.
const FAR: u8 = 0xff;

fn way_back(context: &Context, port: u8, wc: &Wc, grh: Option<&Grh>) -> Result<AhAttr> {
    // On Ethernet `wc.sl` tells the kind of packet. It is not a service level for the way back.
    let mut attr =
        AhAttr { dlid: wc.slid, src_path_bits: wc.dlid_path_bits, port_num: port, ..AhAttr::default() };
    if wc.wc_flags & v::WC_GRH == 0 {
        return Ok(attr);
    }
    let seen = Seen::of(given(grh)?).ok_or(INVALID)?;
    let own = Gid::from(seen.to);
    let table = context.context.gids();
    let sgid_index = table.find(own, seen.gid_type).ok_or(INVALID)?;
    attr.is_global = 1;
    attr.grh = GlobalRoute {
        dgid: CGid(Gid::from(seen.from).0),
        flow_label: seen.flow_label,
        sgid_index,
        hop_limit: FAR,
        traffic_class: seen.traffic_class,
    };
    Ok(attr)
}

/// The addresses and other fields in the 40 bytes before a datagram.
struct Seen {
    gid_type: GidType,
    from: IpAddr,
    to: IpAddr,
    flow_label: u32,
    traffic_class: u8,
}

impl Seen {
    /// An IPv6 header fills all 40 bytes, an IPv4 header the last 20 (IBTA annex A17).
    fn of(grh: &Grh) -> Option<Self> {
        let word = u32::from_be_bytes(grh.version_tclass_flow);
        if word >> 28 == 6 {
            // The header of RoCEv1 says that a BTH follows. Its IPv4 addresses are mapped ones.
            let v1 = grh.next_hdr == 0x1b;
            return Some(Self {
                gid_type: if v1 { GidType::RoceV1 } else { GidType::RoceV2 },
                from: IpAddr::from(grh.sgid.0).to_canonical(),
                to: IpAddr::from(grh.dgid.0).to_canonical(),
                flow_label: word & 0xf_ffff,
                traffic_class: (word >> 20) as u8,
            });
        }
        let (first, second) = (&grh.sgid.0[12..], &grh.dgid.0);
        let address = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
        (first[0] == 0x45).then_some(())?;
        Some(Self {
            gid_type: GidType::RoceV2,
            from: address(&second[8..12])?,
            to: address(&second[12..])?,
            flow_label: 0,
            traffic_class: first[1],
        })
    }
}
