//! Ports and their tables of GIDs and partition keys.

use crate::{
    border::{Errno, INVALID, OutList, Result, code, given, value, write_sized},
    c::{
        Gid,
        context::ContextPtr,
        device::{GidEntry, PortAttr},
        value as v,
    },
    convert::{count, pkey},
    object::Context,
};
use core::{
    ffi::{c_int, c_void},
    mem::{MaybeUninit, offset_of},
};
use rxe_verbs::{GidTable, GidType, PortState, limits};

/// IBTA's LinkWidth 4X and LinkSpeed QDR: 40 Gbit/s, about the most that a process reaches. The speed of the interface may be more than
/// software reaches, or not known.
const WIDTH_4X: u8 = 2;
const SPEED_QDR: u8 = 4;

fn port_attr(context: &Context, port: u8) -> Result<PortAttr> {
    if port != 1 {
        return Err(INVALID);
    }
    let now = context.context.port();
    let up = now.state == PortState::Active;
    Ok(PortAttr {
        state: if up { v::PORT_ACTIVE } else { v::PORT_DOWN },
        max_mtu: now.max_mtu.code().into(),
        active_mtu: now.active_mtu.code().into(),
        gid_tbl_len: c_int::try_from(now.gid_table_len).unwrap_or(c_int::MAX),
        port_cap_flags: v::PORT_CM_SUP | v::PORT_IP_BASED_GIDS,
        max_msg_sz: limits::MAX_MESSAGE,
        pkey_tbl_len: u16::try_from(now.pkey_table_len).unwrap_or(u16::MAX),
        max_vl_num: 1,
        active_width: WIDTH_4X,
        active_speed: SPEED_QDR,
        phys_state: if up { v::PHYS_LINK_UP } else { v::PHYS_DISABLED },
        link_layer: v::LINK_LAYER_ETHERNET,
        flags: v::QPF_GRH_REQUIRED,
        ..PortAttr::default()
    })
}

/// ibv_query_port(3) for programs that do not call the extended function. Their structure ends before the second set of
/// capability flags.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_port(context: ContextPtr, port: u8, out: *mut c_void) -> c_int {
    query_port(context, port, out, offset_of!(PortAttr, port_cap_flags2))
}

/// ibv_query_port(3), called with the size that the program knows.
pub(super) extern "C" fn query_port(context: ContextPtr, port: u8, out: *mut c_void, size: usize) -> c_int {
    code(|| write_sized(out, size, &port_attr(Context::of(context)?, port)?))
}

/// ibv_query_port_speed(3): in units of 100 Mbit/s.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_port_speed(
    context: ContextPtr,
    port: u32,
    speed: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    /// The product of the port's width and speed.
    const QDR_4X: u64 = 400;
    code(|| {
        let port = u8::try_from(port).map_err(|_| INVALID)?;
        let now = port_attr(Context::of(context)?, port)?;
        given(speed)?.write(if now.state == v::PORT_ACTIVE { QDR_4X } else { 0 });
        Ok(())
    })
}

/// ibv_query_gid(3). An entry without an address reads as zeroes.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_gid(
    context: ContextPtr,
    port: u8,
    index: c_int,
    out: Option<&mut MaybeUninit<Gid>>,
) -> c_int {
    value(|| {
        let index = u32::try_from(index).map_err(|_| INVALID)?;
        let gid = match entry(Context::of(context)?, port.into(), index) {
            Ok(entry) => entry.gid,
            Err(Errno(libc::ENODATA)) => Gid::default(),
            Err(errno) => return Err(errno),
        };
        given(out)?.write(gid);
        Ok(0)
    })
}

/// One entry of the table. ENODATA if it is not in use.
fn entry(context: &Context, port: u32, index: u32) -> Result<GidEntry> {
    let table = context.context.gids();
    if port != 1 || index as usize >= table.len() {
        return Err(INVALID);
    }
    u8::try_from(index).ok().and_then(|index| gid_entry(context, &table, index)).ok_or(Errno(libc::ENODATA))
}

fn gid_entry(context: &Context, table: &GidTable, index: u8) -> Option<GidEntry> {
    let gid = table.get(index);
    (!gid.is_zero()).then(|| GidEntry {
        gid: Gid(gid.0),
        gid_index: index.into(),
        port_num: 1,
        gid_type: match table.gid_type(index) {
            GidType::RoceV1 => v::GID_TYPE_ROCE_V1,
            GidType::RoceV2 => v::GID_TYPE_ROCE_V2,
        },
        ndev_ifindex: context.context.device().interface().index,
    })
}

/// ibv_query_gid_ex(3).
#[unsafe(no_mangle)]
extern "C" fn _ibv_query_gid_ex(
    context: ContextPtr,
    port: u32,
    index: u32,
    out: *mut c_void,
    flags: u32,
    size: usize,
) -> c_int {
    code(|| {
        if flags != 0 {
            return Err(INVALID);
        }
        write_sized(out, size, &entry(Context::of(context)?, port, index)?)
    })
}

/// ibv_query_gid_table(3): the number of entries, or a negative `errno` value.
#[unsafe(no_mangle)]
extern "C" fn _ibv_query_gid_table(
    context: ContextPtr,
    mut out: OutList<u8>,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    let mut found = 0;
    let errno = code(|| {
        let context = Context::of(context)?;
        if flags != 0 || size == 0 {
            return Err(INVALID);
        }
        let table = context.context.gids();
        let entries: Vec<GidEntry> =
            table.iter().filter_map(|(index, _)| gid_entry(context, &table, index)).collect();
        if entries.len() > room {
            return Err(INVALID);
        }
        let places = out.places(room.checked_mul(size).ok_or(INVALID)?);
        for (entry, place) in entries.iter().zip(places.chunks_mut(size)) {
            write_sized(place.as_mut_ptr().cast(), size, entry)?;
            found += 1;
        }
        Ok(())
    });
    if errno == 0 { found } else { -(errno as isize) }
}

/// ibv_query_gid_type, of libibverbs' private interface: 0 stands for RoCE v1 there, 1 for v2.
#[unsafe(no_mangle)]
extern "C" fn rxe_private_ibv_query_gid_type(
    context: ContextPtr,
    port: u8,
    index: u32,
    out: Option<&mut MaybeUninit<c_int>>,
) -> c_int {
    const SYSFS_ROCE_V1: c_int = 0;
    const SYSFS_ROCE_V2: c_int = 1;
    value(|| {
        let kind = match entry(Context::of(context)?, port.into(), index) {
            Ok(entry) if entry.gid_type == v::GID_TYPE_ROCE_V1 => SYSFS_ROCE_V1,
            Ok(_) | Err(Errno(libc::ENODATA)) => SYSFS_ROCE_V2,
            Err(errno) => return Err(errno),
        };
        given(out)?.write(kind);
        Ok(0)
    })
}

/// ibv_query_pkey(3): in network order.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_pkey(
    context: ContextPtr,
    port: u8,
    index: c_int,
    out: Option<&mut MaybeUninit<[u8; 2]>>,
) -> c_int {
    value(|| {
        let context = Context::of(context)?;
        let keys = context.context.pkeys();
        let key = keys.get(count(index)?).filter(|_| port == 1).ok_or(INVALID)?;
        given(out)?.write(pkey(*key));
        Ok(0)
    })
}

/// ibv_get_pkey_index(3): the key in network order.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_pkey_index(context: ContextPtr, port: u8, wanted: u16) -> c_int {
    value(|| {
        let context = Context::of(context)?;
        let wanted = wanted.to_ne_bytes();
        let index = context.context.pkeys().iter().position(|key| pkey(*key) == wanted);
        let index = index.filter(|_| port == 1).ok_or(INVALID)?;
        c_int::try_from(index).map_err(|_| INVALID)
    })
}
