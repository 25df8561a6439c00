//! Newer functions beside ibv_reg_mr: one call with all attributes, buffers that the library allocates, and
//! handles with hints for the processor's caches, which an adapter would pass on.

use super::{
    dmabuf,
    memory::{make_mr, register},
    pd::unused,
};
use crate::{
    border::{Errno, INVALID, Out, Owned, Result, UNSUPPORTED, code, given, object, pointer, quietly, value},
    c::{
        self, Pointer,
        attr::{DmahInitAttr, MrInitAttr},
        context::ContextPtr,
    },
    convert::access,
    object::{Buf, Context, Dmah, Mr, Pd, Users},
};
use core::{
    ffi::{c_int, c_void},
    sync::atomic::Ordering,
};
use memmap2::{MmapMut, MmapRaw};
use rxe_verbs::Access;
use std::sync::Arc;

/// IBV_REG_MR_MASK_*.
mod mask {
    pub(super) const IOVA: u64 = 1;
    pub(super) const ADDR: u64 = 1 << 1;
    pub(super) const FD: u64 = 1 << 2;
    pub(super) const FD_OFFSET: u64 = 1 << 3;
    pub(super) const DMAH: u64 = 1 << 4;
    pub(super) const BUF: u64 = 1 << 5;
    pub(super) const ALL: u64 = IOVA | ADDR | FD | FD_OFFSET | DMAH | BUF;
}

/// ibv_reg_mr_ex(3). Memory of a file as with [`ibv_reg_dmabuf_mr`](super::dmabuf).
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_ex(pd: Option<&Pd>, attr: Option<&MrInitAttr>) -> *mut Mr {
    pointer(|| {
        let (pd, attr) = (given(pd)?, given(attr)?);
        let has = |bit| attr.comp_mask & bit != 0;
        if attr.comp_mask & !mask::ALL != 0 {
            return Err(UNSUPPORTED);
        }
        if has(mask::FD) && !has(mask::BUF) {
            // With a file the program gives an offset, and no address.
            if !has(mask::FD_OFFSET) || has(mask::ADDR) {
                return Err(INVALID);
            }
            let rights = access(attr.access.cast_unsigned())?;
            let dmah = if has(mask::DMAH) { Some(hints(pd, attr, rights)?) } else { None };
            let iova = if has(mask::IOVA) { attr.iova } else { attr.fd_offset };
            return dmabuf::import(pd, (attr.fd, attr.fd_offset), attr.length, iova, rights, dmah);
        }
        if !has(mask::ADDR) || has(mask::FD | mask::FD_OFFSET) {
            return Err(INVALID);
        }
        let start = attr.addr.load(Ordering::Relaxed);
        if has(mask::BUF) && !is_inside(pd, given(object(&attr.buf))?, start, attr.length) {
            return Err(INVALID);
        }
        let rights = access(attr.access.cast_unsigned())?;
        let dmah = if has(mask::DMAH) { Some(hints(pd, attr, rights)?) } else { None };
        let addr = start.expose_provenance() as u64;
        let iova = if has(mask::IOVA) { attr.iova } else { addr };
        let mr = register(&pd.pd, addr, attr.length as u64, iova, rights)?;
        Ok(make_mr(pd, mr, start, attr.length, dmah.map(|users| users as _)))
    })
}

/// Whether a range is inside a buffer, and the protection domain is the one with which it was allocated.
fn is_inside(pd: &Pd, buf: &Buf, start: *mut c_void, length: usize) -> bool {
    let offset = start.addr().checked_sub(buf.memory.as_ptr().addr());
    let end = offset.and_then(|offset| offset.checked_add(length));
    Arc::ptr_eq(&pd.users, &buf.pd) && end.is_some_and(|end| end <= buf.memory.len())
}

/// Marks the handle as in use. Adapters give hints for pinned memory only.
fn hints(pd: &Pd, attr: &MrInitAttr, rights: Access) -> Result<Users> {
    let dmah = given(object::<_, Dmah>(&attr.dmah))?;
    if !Arc::ptr_eq(&dmah.context, &pd.context) || rights.contains(Access::ON_DEMAND) {
        return Err(INVALID);
    }
    Ok(Arc::clone(&dmah.users))
}

/// ibv_alloc_dmah(3): hints about processor and kind of memory. They are checked, and have no effect.
#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_dmah(context: ContextPtr, attr: Option<&DmahInitAttr>) -> *mut Dmah {
    const CPU: u32 = 1;
    const HINT: u32 = 1 << 1;
    const MEMORY: u32 = 1 << 2;
    /// Two bits (PCIe's processing hint).
    const MOST_HINT: u8 = 3;
    /// Volatile, persistent.
    const MOST_MEMORY: u8 = 1;
    pointer(|| {
        let (context, attr) = (Context::of(context)?, given(attr)?);
        let has = |bit| attr.comp_mask & bit != 0;
        if attr.comp_mask & !(CPU | HINT | MEMORY) != 0 {
            return Err(UNSUPPORTED);
        }
        if has(CPU) && attr.cpu_id >= processors()
            || has(HINT) && attr.ph > MOST_HINT
            || has(MEMORY) && attr.tph_mem_type > MOST_MEMORY
        {
            return Err(INVALID);
        }
        let c = c::object::Dmah { context: context.pointer() };
        Ok(Box::into_raw(Box::new(Dmah { c, context: context.share(), users: Users::default() })))
    })
}

/// Processors that the system may have.
fn processors() -> u32 {
    // SAFETY: the call only reads a setting.
    u32::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }).unwrap_or(1)
}

/// ibv_dealloc_dmah(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_dealloc_dmah(dmah: Owned<Dmah>) -> c_int {
    code(|| {
        unused(&dmah.get()?.users)?;
        dmah.free();
        Ok(())
    })
}

/// ibv_alloc_buf(3): whole pages of this process.
#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_buf(pd: Option<&Pd>, size: usize, out: Out<'_, *mut Buf>) -> *mut c_void {
    pointer(|| {
        let (pd, out) = (given(pd)?, given(out)?);
        if size == 0 {
            return Err(INVALID);
        }
        let memory = MmapRaw::from(MmapMut::map_anon(size).map_err(|_| Errno(libc::ENOMEM))?);
        let address = memory.as_mut_ptr().cast();
        let buf = Buf { memory, pd: Arc::clone(&pd.users), _context: Arc::clone(&pd.context) };
        out.write(Box::into_raw(Box::new(buf)));
        Ok(address)
    })
}

/// ibv_free_buf(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_free_buf(buf: Owned<Buf>) {
    quietly(|| buf.free());
}

/// ibv_reg_buf_mr(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_buf_mr(
    pd: Option<&Pd>,
    buf: *mut Buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut Mr {
    let attr = MrInitAttr {
        length,
        access,
        comp_mask: mask::BUF | mask::ADDR,
        iova: 0,
        addr: Pointer::new(addr),
        fd: -1,
        fd_offset: 0,
        dmah: Pointer::default(),
        buf: Pointer::new(buf),
    };
    ibv_reg_mr_ex(pd, Some(&attr))
}

/// ibv_export_buf_dmabuf_fd(3). Refused, because the buffer is ordinary memory.
#[unsafe(no_mangle)]
extern "C" fn ibv_export_buf_dmabuf_fd(buf: Option<&Buf>) -> c_int {
    value(|| {
        given(buf)?;
        Err(Errno(libc::ENODATA))
    })
}
