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
use core::ffi::c_int;
use rxe_verbs::Gid;
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
    let seen = rxe_verbs::Grh::parse(&given(grh)?.bytes()).ok_or(INVALID)?;
    let table = context.context.gids();
    let sgid_index = table.find(Gid::from(seen.dst), seen.encapsulation.into()).ok_or(INVALID)?;
    attr.is_global = 1;
    attr.grh = GlobalRoute {
        dgid: CGid(Gid::from(seen.src).0),
        flow_label: seen.flow_label,
        sgid_index,
        hop_limit: FAR,
        traffic_class: seen.traffic_class,
    };
    Ok(attr)
}
