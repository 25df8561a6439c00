//! Memory regions and windows.

use super::pd::BUSY;
use crate::{
    border::{Errno, INVALID, List, Owned, Result, UNSUPPORTED, code, given, known, pointer},
    c::{
        self, Pointer, value as v,
        work::{MwBind, Sge},
    },
    convert::{access, send_flags, window_type},
    object::{Mr, Mw, Pd, Qp, Users},
};
use core::{
    ffi::{c_int, c_void},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};
use rxe_verbs::{Access, MemoryRange, RegisterError};
use std::sync::{Arc, Mutex, PoisonError};

/// Registers the program's memory.
pub(super) fn register(
    pd: &rxe_verbs::Pd,
    addr: u64,
    len: u64,
    iova: u64,
    rights: Access,
) -> Result<rxe_verbs::Mr> {
    let (addr, len) = (usize::try_from(addr), usize::try_from(len));
    let (Ok(addr), Ok(len)) = (addr, len) else { return Err(INVALID) };
    let range = MemoryRange { addr, len, iova };
    if !rights.contains(Access::ON_DEMAND) {
        range.check_mapped(rights)?;
    }
    // SAFETY: the program promises so much memory, as it does to every verbs library. It may access it itself, as C does.
    Ok(unsafe { pd.reg_mr_raw(addr, len, iova, rights) }?)
}

fn reg_mr(pd: Option<&Pd>, addr: *mut c_void, len: usize, iova: u64, bits: u32) -> *mut Mr {
    pointer(|| {
        let pd = given(pd)?;
        pd.known()?;
        let address = addr.expose_provenance() as u64;
        let mr = register(&pd.pd, address, len as u64, iova, access(bits)?)?;
        Ok(make_mr(pd, mr, addr, len, None))
    })
}

/// The object of a region that has the address `addr` for C.
pub(super) fn make_mr(
    pd: &Pd,
    mr: rxe_verbs::Mr,
    addr: *mut c_void,
    len: usize,
    of: Option<Arc<dyn core::fmt::Debug + Send + Sync>>,
) -> *mut Mr {
    let key = mr.lkey().0;
    let c = c::object::Mr {
        context: pd.context.pointer(),
        pd: c_pd(pd),
        addr: Pointer::new(addr),
        length: AtomicU64::new(len as u64),
        handle: key,
        lkey: AtomicU32::new(key),
        rkey: AtomicU32::new(mr.rkey().0),
    };
    let context = Arc::clone(&pd.context);
    let domain = Mutex::new(Users::clone(&pd.users));
    let object = Box::into_raw(Box::new(Mr { c, mr: Mutex::new(Some(mr)), pd: domain, context, _of: of }));
    pd.context.mrs.enter(key, object);
    object
}

/// The pointer for the `pd` field of an object.
pub(super) fn c_pd(pd: &Pd) -> Pointer<c::object::Pd> {
    Pointer::new((&raw const pd.c).cast_mut())
}

/// ibv_reg_mr(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr(pd: Option<&Pd>, addr: *mut c_void, len: usize, access: c_int) -> *mut Mr {
    reg_mr(pd, addr, len, addr.expose_provenance() as u64, access.cast_unsigned())
}

/// ibv_reg_mr_iova(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova(
    pd: Option<&Pd>,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_int,
) -> *mut Mr {
    reg_mr(pd, addr, len, iova, access.cast_unsigned())
}

/// The header calls this for both functions above if the rights are not constant.
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova2(
    pd: Option<&Pd>,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: u32,
) -> *mut Mr {
    reg_mr(pd, addr, len, iova, access)
}

/// ibv_rereg_mr(3). The keys stay.
#[unsafe(no_mangle)]
extern "C" fn ibv_rereg_mr(
    mr: Option<&Mr>,
    flags: c_int,
    pd: Option<&Pd>,
    addr: *mut c_void,
    len: usize,
    rights: c_int,
) -> c_int {
    let mut result = v::REREG_MR_ERR_INPUT;
    let errno = code(|| {
        let mr = given(mr)?;
        let change = Change::of(flags, pd, addr, len, rights)?;
        result = v::REREG_MR_ERR_CMD;
        change.apply(mr)
    });
    if errno == 0 { 0 } else { result }
}

/// The changes that ibv_rereg_mr makes.
struct Change<'a> {
    memory: Option<(*mut c_void, usize)>,
    pd: Option<&'a Pd>,
    rights: Option<Access>,
}

impl<'a> Change<'a> {
    fn of(flags: c_int, pd: Option<&'a Pd>, addr: *mut c_void, len: usize, rights: c_int) -> Result<Self> {
        let all = v::REREG_MR_CHANGE_TRANSLATION | v::REREG_MR_CHANGE_PD | v::REREG_MR_CHANGE_ACCESS;
        let has = |flag| flags & flag != 0;
        if flags & !all != 0 || (rights != 0 && !has(v::REREG_MR_CHANGE_ACCESS)) {
            return Err(INVALID);
        }
        if has(v::REREG_MR_CHANGE_TRANSLATION) && (addr.is_null() || len == 0) {
            return Err(INVALID);
        }
        Ok(Self {
            memory: has(v::REREG_MR_CHANGE_TRANSLATION).then_some((addr, len)),
            pd: if has(v::REREG_MR_CHANGE_PD) { Some(given(pd)?) } else { None },
            rights: has(v::REREG_MR_CHANGE_ACCESS).then(|| access(rights.cast_unsigned())).transpose()?,
        })
    }

    fn apply(&self, object: &Mr) -> Result<()> {
        let mut held = object.lock();
        let mr = held.as_mut().ok_or(INVALID)?;
        let memory = self.memory.map(|(addr, len)| {
            let addr = addr.expose_provenance();
            MemoryRange { addr, len, iova: addr as u64 }
        });
        if let Some(range) = memory {
            range.check_mapped(self.rights.unwrap_or_else(|| mr.access()))?;
        }
        let pd = self.pd.map(|pd| &pd.pd);
        // SAFETY: as in `register`.
        unsafe { mr.reregister(pd, memory, self.rights) }?;
        if let Some((addr, len)) = self.memory {
            object.c.addr.store(addr, Ordering::Relaxed);
            object.c.length.store(len as u64, Ordering::Relaxed);
        }
        if let Some(pd) = self.pd {
            object.c.pd.store((&raw const pd.c).cast_mut(), Ordering::Relaxed);
            *object.pd.lock().unwrap_or_else(PoisonError::into_inner) = Users::clone(&pd.users);
        }
        Ok(())
    }
}

/// ibv_dereg_mr(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_dereg_mr(mr: Owned<Mr>) -> c_int {
    code(|| {
        let object = mr.get()?;
        // A forked child finds none of its parent's.
        let own = object.context.context.check_owner().is_ok();
        if own && object.context.mrs.find(&object.c.handle, |_| ()).is_none() {
            return Err(Errno(libc::ENOENT));
        }
        let mut held = object.lock();
        let old = held.take().ok_or(INVALID)?;
        if let Err((old, error)) = old.deregister() {
            *held = Some(old);
            return Err(match error {
                RegisterError::Bound => BUSY,
                error => error.into(),
            });
        }
        drop(held);
        object.context.mrs.remove(&object.c.handle);
        mr.free();
        Ok(())
    })
}

/// ibv_advise_mr(3). Memory is paged in when it is used, so the advice is checked and has no effect.
pub(super) extern "C" fn advise_mr(
    pd: Option<&Pd>,
    advice: c_int,
    flags: u32,
    list: List<Sge>,
    count: u32,
) -> c_int {
    const KINDS: core::ops::RangeInclusive<c_int> = 0..=2;
    const FLUSH: u32 = 1;
    code(|| {
        given(pd)?;
        if !KINDS.contains(&advice) || flags & !FLUSH != 0 {
            return Err(UNSUPPORTED);
        }
        if count == 0 || list.elements(count as usize).is_empty() {
            return Err(INVALID);
        }
        Ok(())
    })
}

/// ibv_alloc_mw(3).
pub(super) extern "C" fn alloc_mw(pd: Option<&Pd>, kind: c_int) -> *mut Mw {
    pointer(|| {
        let pd = given(pd)?;
        pd.known()?;
        let mw = pd.pd.alloc_mw(window_type(kind)?)?;
        let key = mw.rkey().0;
        let c = c::object::Mw {
            context: pd.context.pointer(),
            pd: c_pd(pd),
            rkey: AtomicU32::new(key),
            handle: key,
            kind,
        };
        let (users, context) = (Users::clone(&pd.users), Arc::clone(&pd.context));
        Ok(Box::into_raw(Box::new(Mw { c, mw, _pd: users, _context: context })))
    })
}

/// ibv_dealloc_mw(3).
pub(super) extern "C" fn dealloc_mw(mw: Owned<Mw>) -> c_int {
    code(|| {
        let object = mw.get()?;
        // Each binding changes the low 8 bits.
        known(object.c.handle & !0xff, object.mw.rkey().0 & !0xff)?;
        mw.free();
        Ok(())
    })
}

/// ibv_bind_mw(3), after the header's checks.
pub(super) extern "C" fn bind_mw(qp: Option<&Qp>, mw: Option<&Mw>, bind: Option<&MwBind<'_>>) -> c_int {
    code(|| {
        let (qp, mw, bind) = (given(qp)?, given(mw)?, given(bind)?);
        let (info, flags) = (&bind.bind_info, send_flags(bind.send_flags));
        if info.mr.is_none() {
            let key = qp.qp.unbind_mw(&mw.mw, bind.wr_id, flags)?;
            mw.c.rkey.store(key.0, Ordering::Relaxed);
            return Ok(());
        }
        let region = given(info.mr)?.lock();
        let bind = rxe_verbs::MwBind {
            wr_id: bind.wr_id,
            flags,
            region: region.as_ref().ok_or(INVALID)?,
            addr: info.addr,
            len: info.length,
            access: access(info.mw_access_flags)?,
        };
        let key = qp.qp.bind_mw(&mw.mw, &bind)?;
        mw.c.rkey.store(key.0, Ordering::Relaxed);
        Ok(())
    })
}

/// ibv_fork_init(3): does nothing. Forked children have none of the parent's objects.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// ibv_is_fork_initialized(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_int {
    v::FORK_UNNEEDED
}

/// A private function of libibverbs, which it exports for providers.
#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// A private function of libibverbs, which it exports for providers.
#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
