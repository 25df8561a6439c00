//! XRC domains.

use super::pd::unused;
use crate::{
    border::{INVALID, Owned, UNSUPPORTED, code, descriptor, given, pointer},
    c::{self, attr::XrcdInitAttr, context::ContextPtr, value as v},
    object::{Context, Users, Xrcd},
};
use core::ffi::c_int;

/// ibv_open_xrcd(3). Processes never share a domain, even if they open it by the same file.
pub(super) extern "C" fn open_xrcd(context: ContextPtr, init: Option<&XrcdInitAttr>) -> *mut Xrcd {
    const NEEDED: u32 = v::XRCD_INIT_ATTR_FD | v::XRCD_INIT_ATTR_OFLAGS;
    pointer(|| {
        let (context, init) = (Context::of(context)?, given(init)?);
        if init.comp_mask & !NEEDED != 0 {
            return Err(UNSUPPORTED);
        }
        if init.comp_mask != NEEDED {
            return Err(INVALID);
        }
        open(context, init.fd, init.oflags)
    })
}

pub(crate) fn open(context: &Context, fd: c_int, flags: c_int) -> crate::border::Result<*mut Xrcd> {
    let (create, exclusive) = (flags & libc::O_CREAT != 0, flags & libc::O_EXCL != 0);
    let xrcd = context.context.open_xrcd(descriptor(fd), create, exclusive)?;
    let c = c::object::Xrcd { context: context.pointer() };
    Ok(Box::into_raw(Box::new(Xrcd { c, xrcd, context: context.share(), users: Users::default() })))
}

/// ibv_close_xrcd(3).
pub(crate) extern "C" fn close_xrcd(xrcd: Owned<Xrcd>) -> c_int {
    code(|| {
        unused(&xrcd.get()?.users)?;
        xrcd.free();
        Ok(())
    })
}
