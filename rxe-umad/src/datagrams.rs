//! Opening ports, registering, sending and receiving.

use crate::{
    border::{Array, Buffer, Text, number_of, refuse, set_errno},
    c::{MadAddr, RegAttr, UserMad},
    devices::device,
    open,
};
use core::{
    ffi::{c_int, c_uint, c_void},
    time::Duration,
};
use rxe_cancel::{Shield, cancellation_point};
use rxe_fabric::mad::class;
use rxe_verbs::host::{MadAddress, MadFilter, MadPort, ManagedMad};
use std::time::Instant;

/// Bytes of a datagram that is sent.
const MOST: usize = rxe_fabric::mad::MAD_LEN;
/// The OUI of registrations if a program gives none: that of OpenIB.
const OPENIB: [u8; 3] = [0x00, 0x14, 0x05];
/// How long a thread sleeps before it checks whether another thread has taken the datagram.
const GLANCE: Duration = Duration::from_secs(1);

/// umad_init(3).
#[unsafe(no_mangle)]
extern "C" fn umad_init() -> c_int {
    0
}

/// umad_done(3).
#[unsafe(no_mangle)]
extern "C" fn umad_done() -> c_int {
    0
}

/// umad_open_port(3). Returns the descriptor, which becomes readable when a datagram has arrived.
#[unsafe(no_mangle)]
extern "C" fn umad_open_port(name: Text, number: c_int) -> c_int {
    if !matches!(number, 0 | 1) {
        return refuse(libc::EINVAL);
    }
    let _shield = Shield::new();
    let Some(device) = device(name.get()) else { return refuse(libc::ENODEV) };
    match MadPort::open(device.name()) {
        Ok(port) => open::keep(port),
        Err(error) => {
            // Programs only print that it has failed, so the reason is printed here.
            eprintln!("rxe: {error}");
            refuse(libc::EIO)
        }
    }
}

/// umad_close_port(3).
#[unsafe(no_mangle)]
extern "C" fn umad_close_port(port: c_int) -> c_int {
    let _shield = Shield::new();
    open::close(port);
    0
}

/// umad_get_fd(3).
#[unsafe(no_mangle)]
extern "C" fn umad_get_fd(port: c_int) -> c_int {
    port
}

/// Registers. Returns the number of the registration, or an error number.
fn register(port: c_int, filter: MadFilter) -> Result<u32, c_int> {
    let _shield = Shield::new();
    let port = open::port(port).ok_or(libc::EBADF)?;
    match port.register(filter) {
        Ok(agent) => agent.ok_or(libc::EINVAL),
        Err(_) => Err(libc::EIO),
    }
}

fn methods(mask: Option<[u64; 2]>) -> u128 {
    mask.map_or(0, |[low, high]| u128::from(high) << 64 | u128::from(low))
}

fn oui_for(class: u8, oui: [u8; 3]) -> Option<[u8; 3]> {
    class::VENDOR_WITH_OUI.contains(&class).then_some(oui)
}

fn with_errno(result: Result<u32, c_int>) -> c_int {
    match result {
        Ok(agent) => agent as c_int,
        Err(number) => {
            set_errno(number);
            // libibumad returns this error for any reason.
            -libc::EPERM
        }
    }
}

/// umad_register(3).
#[unsafe(no_mangle)]
extern "C" fn umad_register(port: c_int, class: c_int, version: c_int, _rmpp: u8, mask: Array<u64>) -> c_int {
    let (Ok(class), Ok(version)) = (u8::try_from(class), u8::try_from(version)) else {
        return with_errno(Err(libc::EINVAL));
    };
    let filter = MadFilter { class, version, oui: oui_for(class, OPENIB), methods: methods(mask.read()) };
    with_errno(register(port, filter))
}

/// umad_register_oui(3).
#[unsafe(no_mangle)]
extern "C" fn umad_register_oui(
    port: c_int,
    class: c_int,
    _rmpp: u8,
    oui: Array<u8>,
    mask: Array<u64>,
) -> c_int {
    let class = u8::try_from(class).ok().filter(|class| class::VENDOR_WITH_OUI.contains(class));
    let (Some(class), Some(oui)) = (class, oui.read()) else { return refuse(libc::EINVAL) };
    let filter = MadFilter { class, version: 1, oui: Some(oui), methods: methods(mask.read()) };
    with_errno(register(port, filter))
}

/// umad_register2(3): 0 or the number of an error. Segments by the program itself (UMAD_USER_RMPP) are not possible.
#[unsafe(no_mangle)]
extern "C" fn umad_register2(port: c_int, attr: Option<&mut RegAttr>, agent: Option<&mut u32>) -> c_int {
    let (Some(attr), Some(agent)) = (attr, agent) else { return libc::EINVAL };
    let [none, oui @ ..] = attr.oui.to_be_bytes();
    if class::VENDOR_WITH_OUI.contains(&attr.mgmt_class) && (none != 0 || oui == [0; 3]) {
        return libc::EINVAL;
    }
    if attr.flags != 0 {
        attr.flags = 0;
        return libc::EINVAL;
    }
    let class = attr.mgmt_class;
    let (version, methods) = (attr.mgmt_class_version, methods(Some(attr.method_mask)));
    match register(port, MadFilter { class, version, oui: oui_for(class, oui), methods }) {
        Ok(number) => {
            *agent = number;
            0
        }
        Err(number) => number,
    }
}

/// umad_unregister(3).
#[unsafe(no_mangle)]
extern "C" fn umad_unregister(port: c_int, agent: c_int) -> c_int {
    let _shield = Shield::new();
    let done = open::port(port).map(|port| port.unregister(agent.cast_unsigned()));
    if matches!(done, Some(Ok(true))) {
        return 0;
    }
    set_errno(libc::EINVAL);
    -1
}

fn address_of(addr: &MadAddr) -> MadAddress {
    MadAddress {
        qpn: u32::from_be_bytes(addr.qpn),
        qkey: u32::from_be_bytes(addr.qkey),
        lid: u16::from_be_bytes(addr.lid),
        sl: addr.sl,
        gid: (addr.grh_present != 0).then_some(addr.gid),
        traffic_class: if addr.grh_present != 0 { addr.traffic_class } else { 0 },
        pkey_index: addr.pkey_index,
    }
}

fn addr_of(address: &MadAddress) -> MadAddr {
    MadAddr {
        qpn: address.qpn.to_be_bytes(),
        qkey: address.qkey.to_be_bytes(),
        lid: address.lid.to_be_bytes(),
        sl: address.sl,
        grh_present: address.gid.is_some().into(),
        gid: address.gid.unwrap_or_default(),
        traffic_class: address.traffic_class,
        pkey_index: address.pkey_index,
        ..MadAddr::default()
    }
}

/// umad_send(3).
#[unsafe(no_mangle)]
extern "C" fn umad_send(
    port: c_int,
    agent: c_int,
    umad: Buffer,
    length: c_int,
    timeout_ms: c_int,
    retries: c_int,
) -> c_int {
    let _shield = Shield::new();
    let fail = |number| {
        set_errno(number);
        -libc::EIO
    };
    umad.change(|header| {
        (header.agent_id, header.timeout_ms, header.retries) =
            (agent.cast_unsigned(), timeout_ms.cast_unsigned(), retries.cast_unsigned());
    });
    let length = usize::try_from(length).ok().filter(|length| (24..=MOST).contains(length));
    let (Some(header), Some(length)) = (umad.header(), length) else { return fail(libc::EINVAL) };
    let Some(port) = open::port(port) else { return fail(libc::EBADF) };
    let sent = port.send(ManagedMad {
        agent: header.agent_id,
        status: 0,
        timeout_ms: u32::try_from(timeout_ms).unwrap_or(0),
        retries: u32::try_from(retries).unwrap_or(0),
        address: address_of(&header.addr),
        bytes: umad.read(length),
    });
    sent.map_or_else(|error| fail(number_of(&error)), |()| 0)
}

/// The next datagram. Waits for this many milliseconds, or without limit if the number is negative.
fn next(port: &MadPort, timeout_ms: c_int) -> Result<ManagedMad, c_int> {
    let limit = u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
    loop {
        if let Some(mad) = port.receive().map_err(|error| number_of(&error))? {
            return Ok(mad);
        }
        if !waits(port, limit)? {
            return Err(if timeout_ms == 0 { libc::EAGAIN } else { libc::ETIMEDOUT });
        }
    }
}

/// Waits for a while. Returns false when the time is over.
fn waits(port: &MadPort, limit: Option<Instant>) -> Result<bool, c_int> {
    let left = limit.map(|limit| limit.saturating_duration_since(Instant::now()));
    if left.is_some_and(|left| left.is_zero()) {
        return Ok(false);
    }
    port.wait(Some(left.map_or(GLANCE, |left| left.min(GLANCE)))).map_err(|error| number_of(&error))?;
    Ok(true)
}

/// umad_recv(3). Returns the registration that the datagram is for. If the buffer is too short it gets the header, and the
/// length that is needed.
#[unsafe(no_mangle)]
extern "C-unwind" fn umad_recv(
    port: c_int,
    umad: Buffer,
    length: Option<&mut c_int>,
    timeout_ms: c_int,
) -> c_int {
    cancellation_point(|| receive(port, umad, length, timeout_ms))
}

fn receive(port: c_int, umad: Buffer, length: Option<&mut c_int>, timeout_ms: c_int) -> c_int {
    let Some(length) = length.filter(|_| !umad.is_null()) else { return refuse(libc::EINVAL) };
    let Some(port) = open::port(port) else { return refuse(libc::EIO) };
    let mad = match next(&port, timeout_ms) {
        Ok(mad) => mad,
        Err(number) => return refuse(number),
    };
    let size = mad.bytes.len();
    umad.set_header(&UserMad {
        agent_id: mad.agent,
        status: mad.status,
        timeout_ms: mad.timeout_ms,
        retries: mad.retries,
        length: (size_of::<UserMad>() + size) as u32,
        addr: addr_of(&mad.address),
    });
    let room = usize::try_from(*length).unwrap_or(0);
    *length = size as c_int;
    if room < size {
        port.give_back(mad);
        return refuse(libc::ENOSPC);
    }
    umad.write(&mad.bytes);
    mad.agent as c_int
}

/// umad_poll(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn umad_poll(port: c_int, timeout_ms: c_int) -> c_int {
    cancellation_point(|| until_there(port, timeout_ms))
}

/// Waits until there is a datagram.
fn until_there(port: c_int, timeout_ms: c_int) -> c_int {
    let Some(port) = open::port(port) else { return refuse(libc::EIO) };
    let limit = u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
    loop {
        if matches!(port.wait(Some(Duration::ZERO)), Ok(true)) {
            return 0;
        }
        match waits(&port, limit) {
            Ok(true) => {}
            Ok(false) => return refuse(libc::ETIMEDOUT),
            Err(_) => return -libc::EIO,
        }
    }
}

/// umad_get_mad(3).
#[unsafe(no_mangle)]
extern "C" fn umad_get_mad(umad: Buffer) -> *mut c_void {
    umad.data().cast()
}

/// umad_size(3).
#[unsafe(no_mangle)]
extern "C" fn umad_size() -> usize {
    size_of::<UserMad>()
}

/// umad_status(3).
#[unsafe(no_mangle)]
extern "C" fn umad_status(umad: Buffer) -> c_int {
    umad.header().map_or(libc::EINVAL, |header| header.status.cast_signed())
}

/// umad_get_mad_addr(3).
#[unsafe(no_mangle)]
extern "C" fn umad_get_mad_addr(umad: Buffer) -> *mut c_void {
    const AT: usize = core::mem::offset_of!(UserMad, addr);
    umad.data().wrapping_sub(size_of::<UserMad>() - AT).cast()
}

/// umad_set_grh(3): its flow label is in host order.
#[unsafe(no_mangle)]
extern "C" fn umad_set_grh(umad: Buffer, addr: Option<&MadAddr>) -> c_int {
    umad.change(|header| match addr {
        None => header.addr.grh_present = 0,
        Some(addr) => {
            header.addr = MadAddr {
                grh_present: 1,
                gid: addr.gid,
                flow_label: addr.flow_label.to_be(),
                hop_limit: addr.hop_limit,
                traffic_class: addr.traffic_class,
                ..header.addr
            };
        }
    });
    0
}

/// umad_set_addr(3).
#[unsafe(no_mangle)]
extern "C" fn umad_set_addr(umad: Buffer, lid: c_int, qpn: c_int, sl: c_int, qkey: c_int) -> c_int {
    umad_set_addr_net(
        umad,
        (lid as u16).to_be(),
        qpn.cast_unsigned().to_be(),
        sl,
        qkey.cast_unsigned().to_be(),
    )
}

/// umad_set_addr_net(3). All values except the service level are in network order.
#[unsafe(no_mangle)]
extern "C" fn umad_set_addr_net(umad: Buffer, lid: u16, qpn: c_uint, sl: c_int, qkey: c_uint) -> c_int {
    umad.change(|header| {
        header.addr = MadAddr {
            lid: lid.to_ne_bytes(),
            qpn: qpn.to_ne_bytes(),
            sl: sl as u8,
            qkey: qkey.to_ne_bytes(),
            ..header.addr
        };
    });
    0
}

/// umad_set_pkey(3): its index.
#[unsafe(no_mangle)]
extern "C" fn umad_set_pkey(umad: Buffer, index: c_int) -> c_int {
    umad.change(|header| header.addr.pkey_index = index as u16);
    0
}

/// umad_get_pkey(3).
#[unsafe(no_mangle)]
extern "C" fn umad_get_pkey(umad: Buffer) -> c_int {
    umad.header().map_or(0, |header| header.addr.pkey_index.into())
}
