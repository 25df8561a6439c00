//! Ids: creation, destruction, addresses, options.

use super::{Channel, Id, More, event::wait_if_sync, ids, manager, opened, opened_for, show};
use crate::{
    border::{
        Address, Bytes, Errno, INVALID, Out, Owned, Result, given, object, pointer, quietly, sockaddr_bytes,
        value, waiting_value,
    },
    c::{self, Pointer, rdma as r},
    convert::qp_type_number,
    object::{Context, Device},
    verbs::device::devices,
};
use core::{
    ffi::{c_int, c_void},
    ptr,
    sync::atomic::{AtomicI32, AtomicU8, AtomicU16, AtomicU64, Ordering},
};
use rxe_cm::{CmId, proto::PortSpace};
use rxe_verbs::{Gid, QpType};
use std::sync::{Arc, Mutex};

/// rdma_create_event_channel(3). The connection manager is started here, where librdmacm looks for devices. Programs that
/// have agreed elsewhere on when to connect expect that the listener's first id is made quickly.
#[unsafe(no_mangle)]
extern "C" fn rdma_create_event_channel() -> *mut Channel {
    pointer(|| {
        manager()?;
        Channel::new()
    })
}

/// rdma_destroy_event_channel(3).
#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_event_channel(channel: Owned<Channel>) {
    quietly(|| channel.free());
}

/// rdma_create_id(3). Without a channel the id is synchronous.
#[unsafe(no_mangle)]
extern "C" fn rdma_create_id(
    channel: Option<&Channel>,
    id: Out<'_, *mut Id>,
    context: *mut c_void,
    ps: c_int,
) -> c_int {
    value(|| {
        let (place, space) = (given(id)?, space_of(ps)?);
        let qp_type =
            if matches!(space, PortSpace::Udp | PortSpace::Ipoib) { QpType::Ud } else { QpType::Rc };
        let made = create(channel, context, space, qp_type)?;
        place.write(made);
        Ok(0)
    })
}

pub(super) fn space_of(number: c_int) -> Result<PortSpace> {
    u16::try_from(number).ok().and_then(PortSpace::from_number).ok_or(INVALID)
}

/// Makes an id. Without a channel it gets one of its own.
pub(super) fn create(
    channel: Option<&Channel>,
    context: *mut c_void,
    space: PortSpace,
    qp_type: QpType,
) -> Result<*mut Id> {
    let manager = manager()?;
    let sync = channel.is_none();
    let channel: *const Channel = match channel {
        Some(channel) => channel,
        None => Channel::new()?,
    };
    let owned = Owned::ours(channel.cast_mut());
    let made = manager.create_id_for(&owned.get()?.channel, space, qp_type);
    if made.is_err() && sync {
        owned.free();
    }
    let cm = made?;
    let id = enter(cm, channel, context, space, qp_type);
    Owned::ours(id).get()?.more().sync = sync;
    Ok(id)
}

/// The object of an id.
pub(super) fn enter(
    cm: CmId,
    channel: *const Channel,
    context: *mut c_void,
    space: PortSpace,
    qp_type: QpType,
) -> *mut Id {
    let number = cm.number();
    let c = r::CmId {
        verbs: Pointer::default(),
        channel: Pointer::new(channel.cast_mut().cast()),
        context: Pointer::new(context),
        qp: Pointer::default(),
        route: r::Route {
            src: r::Storage::new(),
            dst: r::Storage::new(),
            ib: r::IbAddr {
                sgid: [const { AtomicU64::new(0) }; 2],
                dgid: [const { AtomicU64::new(0) }; 2],
                pkey: AtomicU16::new(0),
            },
            path_rec: Pointer::default(),
            num_paths: AtomicI32::new(0),
        },
        ps: space.number().into(),
        port_num: AtomicU8::new(0),
        event: Pointer::default(),
        send_cq_channel: Pointer::default(),
        send_cq: Pointer::default(),
        recv_cq_channel: Pointer::default(),
        recv_cq: Pointer::default(),
        srq: Pointer::default(),
        pd: Pointer::default(),
        qp_type: AtomicI32::new(qp_type_number(qp_type)),
    };
    let id = Box::into_raw(Box::new(Id { c, cm, events: Arc::default(), more: Mutex::new(More::default()) }));
    ids().enter(number, id);
    id
}

impl Id {
    pub(super) fn channel(&self) -> Result<&Channel> {
        given(object(&self.c.channel))
    }

    /// Writes addresses, device and route into the structure that C sees, as far as they are known.
    pub(super) fn refresh(&self) -> Result<()> {
        let route = &self.c.route;
        let both = [
            (self.cm.local_addr(), &route.src, &route.ib.sgid),
            (self.cm.peer_addr(), &route.dst, &route.ib.dgid),
        ];
        for (address, storage, gid) in both {
            let Some(address) = address else { continue };
            storage.set(&sockaddr_bytes(address));
            let bytes = Gid::from(address.ip()).0;
            for (word, half) in gid.iter().zip(bytes.chunks(8)) {
                word.store(u64::from_ne_bytes(half.try_into().unwrap_or_default()), Ordering::Relaxed);
            }
        }
        let known = self.cm.context().filter(|context| !self.is_for_all(context));
        if let (Some(context), true) = (known, self.c.verbs.load(Ordering::Acquire).is_null()) {
            let opened = opened_for(&context)?;
            let index = self.cm.path().map_or(0, |path| usize::from(path.pkey_index));
            let pkey = context.pkeys().get(index).map_or(0xffff, |pkey| pkey.0);
            route.ib.pkey.store(pkey.to_be(), Ordering::Relaxed);
            self.c.port_num.store(1, Ordering::Relaxed);
            if self.c.pd.load(Ordering::Acquire).is_null() {
                show(&self.c.pd, opened.pd.load(Ordering::Acquire));
            }
            show(&self.c.verbs, Context::as_c(&raw const *opened.context).cast::<c::context::Context>());
        }
        self.show_path();
        Ok(())
    }

    /// Whether it is bound to a loopback address and has no peer. Such an address stands for all addresses, and only a peer decides
    /// about the device, as with rdma_cm. But if there is only that one device, programs get it at once.
    fn is_for_all(&self, context: &rxe_verbs::Context) -> bool {
        let loopback = self.cm.local_addr().is_some_and(|local| local.ip().is_loopback());
        let is_it =
            |device: &Device| device.current().is_ok_and(|device| device.name() == context.device().name());
        let alone = || devices().is_ok_and(|all| matches!(all[..], [only] if is_it(only)));
        loopback && self.cm.peer_addr().is_none() && !alone()
    }

    fn show_path(&self) {
        let Some(path) = self.cm.path() else { return };
        let own = self.cm.context();
        let pkey = own.and_then(|context| context.pkeys().get(usize::from(path.pkey_index)).copied());
        let pkey = pkey.unwrap_or_default();
        let mut more = self.more();
        if more.path.is_some() {
            return;
        }
        // The selectors say "exactly".
        const EXACTLY: u8 = 2;
        let record = more.path.insert(Box::new(r::PathRec {
            dgid: c::Gid(Gid::from(path.av.dst).0),
            sgid: c::Gid(Gid::from(path.av.src).0),
            flow_label: path.av.flow_label.to_be(),
            hop_limit: path.av.hop_limit,
            traffic_class: path.av.traffic_class,
            reversible: 1,
            numb_path: 1,
            pkey: pkey.0.to_be(),
            sl: path.av.service_level,
            mtu_selector: EXACTLY,
            mtu: path.mtu.code(),
            rate_selector: EXACTLY,
            rate: path.rate,
            packet_life_time_selector: EXACTLY,
            packet_life_time: path.packet_lifetime,
            ..r::PathRec::default()
        }));
        show(&self.c.route.path_rec, &raw const **record);
        self.c.route.num_paths.store(1, Ordering::Release);
    }
}

/// rdma_destroy_id(3): waits until its events are acknowledged.
#[unsafe(no_mangle)]
pub(super) extern "C" fn rdma_destroy_id(id: Owned<Id>) -> c_int {
    value(|| {
        let this = id.get()?;
        let (channel, sync) = (this.c.channel.load(Ordering::Acquire).cast::<Channel>(), this.more().sync);
        super::event::acknowledge_own(this);
        if this.events.is_own() {
            ids().remove(&this.cm.number());
        }
        this.events.wait();
        let cm = this.cm.clone();
        id.free();
        cm.destroy();
        if sync {
            Owned::ours(channel).free();
        }
        Ok(0)
    })
}

/// rdma_bind_addr(3).
#[unsafe(no_mangle)]
pub(super) extern "C" fn rdma_bind_addr(id: Option<&Id>, address: Address) -> c_int {
    value(|| {
        let id = given(id)?;
        id.cm.bind(given(address.read()?)?)?;
        id.refresh()?;
        Ok(0)
    })
}

/// rdma_resolve_addr(3). It is done at once, so the timeout never passes.
#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn rdma_resolve_addr(
    id: Option<&Id>,
    from: Address,
    to: Address,
    _timeout: c_int,
) -> c_int {
    waiting_value(|| {
        let id = given(id)?;
        id.cm.resolve_addr(from.read()?, given(to.read()?)?)?;
        id.refresh()?;
        wait_if_sync(id)
    })
}

/// rdma_resolve_route(3).
#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn rdma_resolve_route(id: Option<&Id>, _timeout: c_int) -> c_int {
    waiting_value(|| {
        let id = given(id)?;
        id.cm.resolve_route()?;
        id.refresh()?;
        wait_if_sync(id)
    })
}

/// rdma_listen(3).
#[unsafe(no_mangle)]
extern "C" fn rdma_listen(id: Option<&Id>, backlog: c_int) -> c_int {
    value(|| {
        let id = given(id)?;
        id.cm.listen(usize::try_from(backlog).unwrap_or(0))?;
        id.refresh()?;
        Ok(0)
    })
}

/// rdma_get_src_port(3).
#[unsafe(no_mangle)]
extern "C" fn rdma_get_src_port(id: Option<&Id>) -> u16 {
    id.map_or(0, |id| id.c.route.src.port())
}

/// rdma_get_dst_port(3).
#[unsafe(no_mangle)]
extern "C" fn rdma_get_dst_port(id: Option<&Id>) -> u16 {
    id.map_or(0, |id| id.c.route.dst.port())
}

/// The kernel's error for options that it does not know.
const UNKNOWN: Errno = Errno(libc::ENOSYS);

/// rdma_set_option(3).
#[unsafe(no_mangle)]
extern "C" fn rdma_set_option(id: Option<&Id>, level: c_int, name: c_int, wish: Bytes, len: usize) -> c_int {
    value(|| {
        let id = given(id)?;
        if (level, name) == (r::OPTION_IB, r::OPTION_IB_PATH) {
            id.cm.set_path(&super::path::own(wish, len)?)?;
            return Ok(0);
        }
        if level != r::OPTION_ID {
            return Err(UNKNOWN);
        }
        let bytes = wish.read(len.min(8));
        let byte = || bytes.first().copied().filter(|_| len == 1).ok_or(INVALID);
        let flag = || -> Result<bool> {
            let number = bytes[..].try_into().map(c_int::from_ne_bytes).map_err(|_| INVALID)?;
            Ok(number != 0)
        };
        let mut options = id.cm.options();
        match name {
            // The ECN bits are not for the program to set. librdmacm does not refuse them.
            r::OPTION_ID_TOS => options.tos = Some(byte()? & !3),
            r::OPTION_ID_REUSEADDR => options.reuse_addr = flag()?,
            r::OPTION_ID_AFONLY => options.family_only = flag()?,
            // 0 takes the wish back. (In a kernel this is so for the route. Its queue pair then waits for answers without end.)
            r::OPTION_ID_ACK_TIMEOUT => options.ack_timeout = Some(byte()?).filter(|code| *code != 0),
            _ => return Err(UNKNOWN),
        }
        id.cm.set_options(options)?;
        Ok(0)
    })
}

/// rdma_migrate_id(3). Without a channel the id becomes synchronous.
#[unsafe(no_mangle)]
pub(super) extern "C" fn rdma_migrate_id(id: Option<&Id>, channel: Option<&Channel>) -> c_int {
    value(|| {
        let id = given(id)?;
        let sync = channel.is_none();
        // It is synchronous already.
        if sync && id.more().sync {
            return Err(INVALID);
        }
        let channel: *const Channel = match channel {
            Some(channel) => channel,
            None => Channel::new()?,
        };
        super::event::acknowledge_own(id);
        let owned = Owned::ours(channel.cast_mut());
        let migrated = id.cm.migrate(&owned.get()?.channel);
        if migrated.is_err() && sync {
            owned.free();
        }
        migrated?;
        let old = id.c.channel.swap(channel.cast_mut().cast(), Ordering::AcqRel).cast::<Channel>();
        if core::mem::replace(&mut id.more().sync, sync) {
            Owned::ours(old).free();
        }
        Ok(0)
    })
}

/// rdma_get_devices(3). The list ends with a null pointer.
#[unsafe(no_mangle)]
extern "C" fn rdma_get_devices(count: Option<&mut c_int>) -> *mut Devices {
    pointer(|| {
        let mut list = [ptr::null(); MOST + 1];
        let opened = opened()?;
        for (place, opened) in list.iter_mut().take(MOST).zip(&opened) {
            *place = Context::as_c(&raw const *opened.context);
        }
        if let Some(count) = count {
            *count = opened.len().min(MOST) as c_int;
        }
        Ok(Box::into_raw(Box::new(list)))
    })
}

/// Most devices in a list.
const MOST: usize = 255;

type Devices = [c::context::ContextPtr; MOST + 1];

/// rdma_free_devices(3): frees the list. The devices stay open.
#[unsafe(no_mangle)]
extern "C" fn rdma_free_devices(list: Owned<Devices>) {
    quietly(|| list.free());
}
