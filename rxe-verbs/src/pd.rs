//! Protection domains (ibv_pd): which objects may be used together.

use crate::{
    ah::Ah,
    context::Context,
    cq::Cq,
    error::{CreateError, RegisterError},
    limits,
    mr::Mr,
    mw::Mw,
    qp::{Qp, QpInit},
    srq::{Kind, Srq},
    tags::MAX_TAGS,
};
use rxe_core::{
    region::WindowType,
    work::{Access, AddressVector, PdId},
};
use std::sync::Arc;

/// A protection domain. Clones are the same domain. The domain lives as long as one of them, or an object made from it.
#[derive(Clone, Debug)]
pub struct Pd(Arc<PdInner>);

#[derive(Debug)]
struct PdInner {
    id: PdId,
    context: Context,
}

impl Pd {
    pub(crate) fn new(context: &Context) -> Result<Self, CreateError> {
        context.0.stack.check()?;
        let id = context.0.stack.pds.take().ok_or(CreateError::Exhausted("protection domains"))?;
        Ok(Self(Arc::new(PdInner { id: PdId(id), context: context.clone() })))
    }

    /// Its number in the protocol core.
    #[must_use]
    pub fn id(&self) -> PdId {
        self.0.id
    }

    /// The context it was made from.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Whether objects or other handles still hold it. ibv_dealloc_pd fails with EBUSY then.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Allocates `len` bytes of zeroed memory and registers them (ibv_reg_mr). Peers and work requests address them from
    /// [`Mr::addr`] on.
    ///
    /// # Errors
    /// [`RegisterError`]: no bytes, rights that do not go together, no memory.
    pub fn alloc_mr(&self, len: usize, access: Access) -> Result<Mr, RegisterError> {
        Mr::allocate(self, len, None, access)
    }

    /// As [`Self::alloc_mr`], but the caller chooses the address `iova` of the first byte (ibv_reg_mr_iova).
    ///
    /// # Errors
    /// As [`Self::alloc_mr`].
    pub fn alloc_mr_iova(&self, len: usize, iova: u64, access: Access) -> Result<Mr, RegisterError> {
        Mr::allocate(self, len, Some(iova), access)
    }

    /// Registers the caller's own memory: `len` bytes at address `addr`. Peers and work requests address them from `iova` on
    /// (usually equal to `addr`). The memory may be unmapped, protected or truncated while it is registered: accesses then end
    /// with an error. It does not have to be mapped yet.
    ///
    /// # Errors
    /// As [`Self::alloc_mr`].
    ///
    /// # Safety
    /// As long as the region lives, peers may read and write the bytes at any time, as its rights allow. So no Rust
    /// reference may cover them, except shared references to atomics. If the bytes are unmapped and other memory is mapped at
    /// their address, the same holds for that memory.
    pub unsafe fn reg_mr_raw(
        &self,
        addr: usize,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Mr, RegisterError> {
        // SAFETY: the caller promises what `Mr::foreign` asks for.
        unsafe { Mr::foreign(self, addr, len, iova, access) }
    }

    /// Makes a memory window (ibv_alloc_mw).
    ///
    /// # Errors
    /// [`RegisterError::Exhausted`].
    pub fn alloc_mw(&self, kind: WindowType) -> Result<Mw, RegisterError> {
        Mw::new(self, kind)
    }

    /// Makes a shared receive queue (ibv_create_srq).
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<Srq, CreateError> {
        Srq::new(self, &Kind::Basic, max_wr, max_sge)
    }

    /// Makes a tag matching queue (ibv_create_srq_ex with IBV_SRQT_TM): a shared receive queue with a matching list of at most
    /// `max_tags` entries. Its messages complete on `cq`.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_tag_srq(
        &self,
        cq: &Cq,
        max_wr: u32,
        max_sge: u32,
        max_tags: u32,
    ) -> Result<Srq, CreateError> {
        limits::check("tags", max_tags.into(), 0, MAX_TAGS.into())?;
        Srq::new(self, &Kind::Tags { cq: cq.clone(), max_tags }, max_wr, max_sge)
    }

    /// Makes a queue pair (ibv_create_qp).
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<Qp, CreateError> {
        Qp::new(self, init)
    }

    /// Makes an address handle for datagrams (ibv_create_ah).
    #[must_use]
    pub fn create_ah(&self, av: AddressVector) -> Ah {
        Ah::new(self, av)
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        if self.context.0.stack.check().is_ok() {
            self.context.0.stack.pds.give_back(self.id.0);
        }
    }
}
