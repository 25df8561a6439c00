//! Device memory. It is ordinary memory, for programs that ask for device memory.

use super::{
    memory::{make_mr, register},
    pd::unused,
};
use crate::{
    border::{Bytes, Errno, INVALID, Owned, Result, UNSUPPORTED, code, given, pointer},
    c::{self, attr::AllocDmAttr, context::ContextPtr},
    convert::access,
    object::{Context, Dm, Mr, Pd},
};
use core::{
    ffi::{c_int, c_void},
    ptr,
};
use memmap2::MmapOptions;
use rxe_verbs::Access;
use std::sync::Arc;

/// Most bytes of one allocation.
pub(super) const MOST: usize = 1 << 20;
/// Offsets and lengths of copies are multiples of this, as adapters want them.
const ALIGNMENT: u64 = 4;

/// ibv_alloc_dm(3).
pub(super) extern "C" fn alloc_dm(context: ContextPtr, attr: Option<&AllocDmAttr>) -> *mut Dm {
    const PAGE_BITS: u32 = 12;
    pointer(|| {
        // A forked child may do this, too, as with a kernel device: it only allocates memory.
        let (context, attr) = (Context::of_anybody(context)?, given(attr)?);
        if attr.comp_mask != 0 {
            return Err(UNSUPPORTED);
        }
        if attr.length == 0 || attr.length > MOST || attr.log_align_req > PAGE_BITS {
            return Err(INVALID);
        }
        let pages = MmapOptions::new().len(attr.length).map_anon();
        let pages = pages.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::ENOMEM)))?;
        let memory = Arc::new(pages.into());
        Ok(make(context, memory, attr.length))
    })
}

fn make(context: &Context, memory: Arc<memmap2::MmapRaw>, len: usize) -> *mut Dm {
    context.dms.enter_new(|handle| {
        let c =
            c::object::Dm { context: context.pointer(), memcpy_to_dm, memcpy_from_dm, comp_mask: 0, handle };
        Box::into_raw(Box::new(Dm { c, memory, len, context: context.share(), users: Arc::default() }))
    })
}

/// ibv_free_dm(3).
pub(super) extern "C" fn free_dm(dm: Owned<Dm>) -> c_int {
    code(|| {
        let object = dm.get()?;
        unused(&object.users)?;
        object.context.dms.remove(&object.c.handle);
        dm.free();
        Ok(())
    })
}

/// ibv_import_dm(3): another handle of the same memory.
#[unsafe(no_mangle)]
extern "C" fn ibv_import_dm(context: ContextPtr, handle: u32) -> *mut Dm {
    pointer(|| {
        let context = Context::of(context)?;
        let mut found = None;
        context.dms.find(&handle, |dm| found = Some((Arc::clone(&dm.memory), dm.len)));
        let (memory, len) = found.ok_or(INVALID)?;
        Ok(make(context, memory, len))
    })
}

/// ibv_unimport_dm(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_dm(dm: Owned<Dm>) {
    free_dm(dm);
}

/// The `len` bytes at `offset`.
fn place(dm: &Dm, offset: u64, len: usize) -> Result<*mut u8> {
    let end = offset.checked_add(len as u64).filter(|end| *end <= dm.len as u64);
    if end.is_none() || !offset.is_multiple_of(ALIGNMENT) || !(len as u64).is_multiple_of(ALIGNMENT) {
        return Err(INVALID);
    }
    Ok(dm.memory.as_mut_ptr().wrapping_add(offset as usize))
}

/// ibv_memcpy_to_dm(3).
extern "C" fn memcpy_to_dm(dm: Option<&Dm>, offset: u64, from: Bytes, len: usize) -> c_int {
    code(|| from.copy_to(place(given(dm)?, offset, len)?, len))
}

/// ibv_memcpy_from_dm(3).
extern "C" fn memcpy_from_dm(to: *mut c_void, dm: Option<&Dm>, offset: u64, len: usize) -> c_int {
    code(|| {
        let from = place(given(dm)?, offset, len)?;
        if to.is_null() {
            return Err(INVALID);
        }
        // SAFETY: inside the memory, which lives as long as `dm`; the program promises room for as many bytes.
        unsafe { ptr::copy_nonoverlapping(from, to.cast(), len) };
        Ok(())
    })
}

/// ibv_reg_dm_mr(3): addressed from 0 on.
pub(super) extern "C" fn reg_dm_mr(
    pd: Option<&Pd>,
    dm: Option<&Dm>,
    offset: u64,
    len: usize,
    bits: u32,
) -> *mut Mr {
    pointer(|| {
        let (pd, dm, rights) = (given(pd)?, given(dm)?, access(bits)?);
        if !rights.contains(Access::ZERO_BASED) {
            return Err(INVALID);
        }
        let start = place(dm, offset, len)?;
        // Adapters also register a length of 0. Our region then has one byte that cannot be written, and that no peer can read.
        let (start, bytes, rights) = match len {
            0 => (dm.memory.as_mut_ptr(), 1, Access::ZERO_BASED),
            _ => (start, len as u64, rights),
        };
        let mr = register(&pd.pd, start.expose_provenance() as u64, bytes, 0, rights)?;
        Ok(make_mr(pd, mr, ptr::null_mut(), len, Some(Arc::new(Arc::clone(&dm.users)))))
    })
}
