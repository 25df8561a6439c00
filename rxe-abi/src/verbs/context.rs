//! Opening and closing devices, and the tables of functions that an open device has.

use super::{attributes, cq, dm, flow, import, memory, pd, port, qp, srq, tags, wq, xrcd};
use crate::{
    border::{Errno, Register, Result, code, given, pointer},
    c::{
        Pointer,
        context::{Context as CContext, ContextOps, ContextPtr, VerbsContext},
    },
    object::{Context, Device},
};
use core::ffi::c_int;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rxe_verbs::ContextOptions;
use std::{
    os::fd::{AsRawFd, BorrowedFd},
    sync::Arc,
};

/// Number of completion vectors. They make no difference; there are several for programs that spread their queues.
const VECTORS: c_int = 64;

const OPS: ContextOps = ContextOps {
    _compat_query_device: [None; 7],
    alloc_mw: Some(memory::alloc_mw),
    bind_mw: Some(memory::bind_mw),
    dealloc_mw: Some(memory::dealloc_mw),
    _compat_create_cq: None,
    poll_cq: Some(cq::poll_cq),
    req_notify_cq: Some(cq::req_notify_cq),
    _compat_cq_event: [None; 7],
    post_srq_recv: Some(srq::post_srq_recv),
    _compat_create_qp: [None; 4],
    post_send: Some(qp::post_send),
    post_recv: Some(qp::post_recv),
    _compat_create_ah: [None; 5],
};

/// A `verbs_context` for a device.
fn c_context(device: &'static Device, cmd_fd: c_int, async_fd: c_int) -> VerbsContext {
    VerbsContext {
        query_port: Some(port::query_port),
        advise_mr: Some(memory::advise_mr),
        alloc_null_mr: None,
        read_counters: [None; 4],
        reg_dm_mr: Some(dm::reg_dm_mr),
        alloc_dm: Some(dm::alloc_dm),
        free_dm: Some(dm::free_dm),
        modify_flow_action_esp: [None; 4],
        alloc_parent_domain: Some(pd::alloc_parent_domain),
        dealloc_td: Some(pd::dealloc_td),
        alloc_td: Some(pd::alloc_td),
        modify_cq: Some(cq::modify_cq),
        post_srq_ops: Some(tags::post_srq_ops),
        destroy_rwq_ind_table: Some(wq::destroy_rwq_ind_table),
        create_rwq_ind_table: Some(wq::create_rwq_ind_table),
        destroy_wq: Some(wq::destroy_wq),
        modify_wq: Some(wq::modify_wq),
        create_wq: Some(wq::create_wq),
        query_rt_values: Some(attributes::query_rt_values),
        create_cq_ex: Some(cq::create_cq_ex),
        private: Pointer::default(),
        query_device_ex: Some(attributes::query_device_ex),
        destroy_flow: Some(flow::destroy_flow),
        _placeholder_2: None,
        create_flow: Some(flow::create_flow),
        _placeholder_1: None,
        open_qp: Some(qp::open_qp),
        create_qp_ex: Some(qp::create_qp_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: Some(xrcd::open_xrcd),
        close_xrcd: Some(xrcd::close_xrcd),
        _placeholder: 0,
        sz: size_of::<VerbsContext>(),
        context: CContext {
            device: Pointer::new((&raw const device.c).cast_mut()),
            ops: OPS,
            cmd_fd,
            async_fd,
            num_comp_vectors: VECTORS,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: usize::MAX,
        },
    }
}

/// Makes a descriptor of ours blocking before C programs see it, as the kernel's are. They may change that.
pub(crate) fn blocking(fd: BorrowedFd<'_>) -> Result<c_int> {
    let system = |errno: nix::errno::Errno| Errno(errno as c_int);
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL).map_err(system)?);
    fcntl(fd, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK)).map_err(system)?;
    Ok(fd.as_raw_fd())
}

/// Whether the program has made a descriptor non-blocking.
pub(crate) fn is_non_blocking(fd: BorrowedFd<'_>) -> bool {
    fcntl(fd, FcntlArg::F_GETFL).is_ok_and(|flags| OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK))
}

/// ibv_open_device(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: Option<&'static Device>) -> *mut CContext {
    pointer(|| Ok(Context::as_c(Arc::into_raw(open(given(device)?)?)).cast_mut()))
}

/// Opens a device.
pub(crate) fn open(device: &'static Device) -> Result<Arc<Context>> {
    let options = ContextOptions::new();
    let context = match device.only {
        Some(address) => options.open_address(address)?,
        None => options.open(&device.current()?)?,
    };
    let async_fd = blocking(context.async_fd())?;
    let command = import::command_fd()?;
    let object = Arc::new(Context {
        c: c_context(device, command.as_raw_fd(), async_fd),
        context,
        device,
        cqs: Register::new(),
        qps: Register::new(),
        targets: Register::new(),
        srqs: Register::new(),
        pds: Register::new(),
        mrs: Register::new(),
        dms: Register::new(),
        command,
    });
    import::opened(&object);
    Ok(object)
}

/// ibv_close_device(3). Objects that still exist keep what they need of the device.
#[unsafe(no_mangle)]
extern "C" fn ibv_close_device(context: ContextPtr) -> c_int {
    code(|| {
        Context::of_anybody(context)?.release();
        Ok(())
    })
}
