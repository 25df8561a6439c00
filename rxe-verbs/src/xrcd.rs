//! XRC domains (ibv_xrcd). A domain says which XRC targets may use which shared receive queues.

use crate::{
    context::Context,
    cq::Cq,
    engine::Stack,
    error::CreateError,
    pd::Pd,
    qp::Qp,
    srq::{Kind, Srq},
};
use rxe_core::work::XrcdId;
use std::{
    fs::File,
    os::{fd::BorrowedFd, unix::fs::MetadataExt},
    sync::{Arc, Weak},
};

/// Identity of a file: device and inode. Domains opened by the same file are one domain.
pub(crate) type FileId = (u64, u64);

/// An XRC domain. Clones are the same domain. The domain lives as long as one of them, or an object made from it. Domains that
/// are opened with the same file are one domain, but only within this process: the receives of another process's queues lie in
/// its own memory.
#[derive(Clone, Debug)]
pub struct Xrcd(Arc<Opened>);

/// One opening of a domain.
#[derive(Debug)]
struct Opened {
    domain: Arc<Domain>,
    /// The protection domain of its targets, in which nothing is registered.
    none: Pd,
}

#[derive(Debug)]
pub(crate) struct Domain {
    id: XrcdId,
    stack: Arc<Stack>,
    file: Option<FileId>,
}

impl Xrcd {
    pub(crate) fn open(
        context: &Context,
        file: Option<BorrowedFd<'_>>,
        create: bool,
        exclusive: bool,
    ) -> Result<Self, CreateError> {
        let none = Pd::new(context)?;
        let stack = &context.0.stack;
        let file = file.map(identify).transpose()?;
        // The lock is held until a new domain is in the map, so that two threads cannot make two domains for one file.
        let mut files = stack.xrcd_files();
        let known = file.and_then(|file| files.get(&file));
        // Do not upgrade here: if the upgraded handle were the last, its drop would take the lock again.
        if exclusive && known.is_some_and(|domain| domain.strong_count() > 0) {
            return Err(CreateError::DomainExists);
        }
        let domain = match known.and_then(Weak::upgrade) {
            Some(domain) => domain,
            None if file.is_some() && !create => return Err(CreateError::NoDomain),
            None => {
                let id = stack.xrcds.take().ok_or(CreateError::Exhausted("XRC domains"))?;
                let domain = Arc::new(Domain { id: XrcdId(id), stack: Arc::clone(stack), file });
                if let Some(file) = file {
                    files.insert(file, Arc::downgrade(&domain));
                }
                domain
            }
        };
        Ok(Self(Arc::new(Opened { domain, none })))
    }

    /// Its number in the protocol core.
    #[must_use]
    pub fn id(&self) -> XrcdId {
        self.0.domain.id
    }

    /// Whether both are openings of one domain.
    #[must_use]
    pub fn is_same_domain(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.domain, &other.0.domain)
    }

    /// The context it was opened with.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.0.none.context()
    }

    pub(crate) fn pd(&self) -> &Pd {
        &self.0.none
    }

    pub(crate) fn belongs_to(&self, stack: &Arc<Stack>) -> bool {
        Arc::ptr_eq(&self.0.domain.stack, stack)
    }

    /// Whether objects or other handles still hold it. ibv_close_xrcd fails with EBUSY then.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Makes a target (ibv_create_qp_ex with IBV_QPT_XRC_RECV). What its peer sends goes to the shared receive queues of this
    /// domain.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_target(&self) -> Result<Qp, CreateError> {
        Qp::target(self)
    }

    /// Makes a shared receive queue of this domain, whose receives name regions of `pd` and complete on `cq`
    /// (ibv_create_srq_ex with IBV_SRQT_XRC).
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_srq(&self, pd: &Pd, cq: &Cq, max_wr: u32, max_sge: u32) -> Result<Srq, CreateError> {
        Srq::new(pd, &Kind::Xrc { xrcd: self.clone(), cq: cq.clone() }, max_wr, max_sge)
    }
}

fn identify(file: BorrowedFd<'_>) -> Result<FileId, CreateError> {
    let action = "look at the XRC domain's file";
    let about = file.try_clone_to_owned().and_then(|copy| File::from(copy).metadata());
    about.map(|about| (about.dev(), about.ino())).map_err(|source| CreateError::System { action, source })
}

impl Drop for Domain {
    fn drop(&mut self) {
        if let Some(file) = self.file {
            let mut files = self.stack.xrcd_files();
            // Another thread may have made a new domain for the file since the last handle was dropped.
            if files.get(&file).is_some_and(|domain| domain.strong_count() == 0) {
                files.remove(&file);
            }
        }
        self.stack.xrcds.give_back(self.id.0);
    }
}
