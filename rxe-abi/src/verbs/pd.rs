//! Protection domains, parent domains, thread domains.

use crate::{
    border::{Errno, Owned, Result, UNSUPPORTED, code, given, pointer},
    c::{self, attr::ParentDomainInitAttr, context::ContextPtr},
    object::{Context, Pd, Td, Users},
};
use core::ffi::c_int;
use std::sync::Arc;

pub(super) const BUSY: Errno = Errno(libc::EBUSY);

/// EBUSY if other objects use this one, so that it cannot be destroyed.
pub(super) fn unused(users: &Users) -> Result<()> {
    if Arc::strong_count(users) > 1 { Err(BUSY) } else { Ok(()) }
}

/// ibv_alloc_pd(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_pd(context: ContextPtr) -> *mut Pd {
    pointer(|| {
        let context = Context::of(context)?;
        let pd = context.context.alloc_pd()?;
        let handle = pd.id().0;
        let object = make(context, pd, None);
        context.pds.enter(handle, object);
        Ok(object)
    })
}

pub(crate) fn make(context: &Context, pd: rxe_verbs::Pd, over: Option<(Users, Option<Users>)>) -> *mut Pd {
    let c = c::object::Pd { context: context.pointer(), handle: pd.id().0 };
    Box::into_raw(Box::new(Pd { c, pd, context: context.share(), users: Users::default(), _over: over }))
}

/// ibv_dealloc_pd(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_dealloc_pd(pd: Owned<Pd>) -> c_int {
    code(|| {
        let object = pd.get()?;
        object.known()?;
        unused(&object.users)?;
        if object._over.is_none() {
            object.context.pds.remove(&object.c.handle);
        }
        pd.free();
        Ok(())
    })
}

/// ibv_alloc_parent_domain(3). Its allocators are not used, because nothing is allocated by them. ALLOW_CC_UNPROTECTED_ALLOC allows
/// memory that a confidential machine shares with its host. Only devices that cannot access private memory need that.
pub(super) extern "C" fn alloc_parent_domain(
    context: ContextPtr,
    attr: Option<&ParentDomainInitAttr<'_>>,
) -> *mut Pd {
    const KNOWN: u32 = 7;
    pointer(|| {
        let (context, attr) = (Context::of(context)?, given(attr)?);
        let pd = given(attr.pd)?;
        if attr.comp_mask & !KNOWN != 0 {
            return Err(UNSUPPORTED);
        }
        let td = attr.td.map(|td| Arc::clone(&td.users));
        Ok(make(context, pd.pd.clone(), Some((Arc::clone(&pd.users), td))))
    })
}

/// ibv_alloc_td(3).
pub(super) extern "C" fn alloc_td(context: ContextPtr, comp_mask: Option<&u32>) -> *mut Td {
    pointer(|| {
        let context = Context::of(context)?;
        if *given(comp_mask)? != 0 {
            return Err(UNSUPPORTED);
        }
        let c = c::object::Td { context: context.pointer() };
        Ok(Box::into_raw(Box::new(Td { c, context: context.share(), users: Users::default() })))
    })
}

/// ibv_dealloc_td(3).
pub(super) extern "C" fn dealloc_td(td: Owned<Td>) -> c_int {
    code(|| {
        unused(&td.get()?.users)?;
        td.free();
        Ok(())
    })
}
