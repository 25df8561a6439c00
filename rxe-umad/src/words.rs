//! Names of classes, methods, attributes and states, and output for debugging.

use crate::{border::Buffer, c::MadAddr};
use core::{
    ffi::{CStr, c_char, c_int},
    sync::atomic::{AtomicI32, Ordering},
};
use rxe_fabric::mad::class;
use std::net::Ipv6Addr;

/// The level of umad_debug.
static LEVEL: AtomicI32 = AtomicI32::new(0);

const UNKNOWN: &CStr = c"<unknown>";

type Names<T> = &'static [(T, &'static CStr)];

const CLASSES: Names<u8> = &[
    (0x01, c"Subn"),
    (0x81, c"Subn"),
    (0x03, c"SubnAdm"),
    (0x04, c"Perf"),
    (0x05, c"BM"),
    (0x06, c"DevMgt"),
    (0x07, c"ComMgt"),
    (0x08, c"SNMP"),
    (0x10, c"DevAdm"),
    (0x11, c"BootMgt"),
    (0x12, c"BIS"),
    (0x21, c"CongestionManagment"),
];
const METHODS: Names<u8> = &[
    (0x01, c"Get"),
    (0x02, c"Set"),
    (0x81, c"GetResp"),
    (0x03, c"Send"),
    (0x05, c"Trap"),
    (0x06, c"Report"),
    (0x86, c"ReportResp"),
    (0x07, c"TrapRepress"),
];
const SA_METHODS: Names<u8> = &[
    (0x12, c"GetTable"),
    (0x92, c"GetTableResp"),
    (0x13, c"GetTraceTable"),
    (0x14, c"GetMulti"),
    (0x94, c"GetMultiResp"),
    (0x15, c"Delete"),
    (0x95, c"DeleteResp"),
];
const ATTRIBUTES: Names<u16> = &[(0x01, c"Class Port Info"), (0x02, c"Notice"), (0x03, c"Inform Info")];
const SM_ATTRIBUTES: Names<u16> = &[
    (0x10, c"NodeDescription"),
    (0x11, c"NodeInfo"),
    (0x12, c"SwitchInfo"),
    (0x14, c"GUIDInfo"),
    (0x15, c"PortInfo"),
    (0x16, c"P_KeyTable"),
    (0x17, c"SLtoVLMappingTable"),
    (0x18, c"VLArbitrationTable"),
    (0x19, c"LinearForwardingTable"),
    (0x1a, c"RandomForwardingTable"),
    (0x1b, c"MulticastForwardingTable"),
    (0x1c, c"LinkSpeedWidthPairsTable"),
    (0x20, c"SMInfo"),
    (0x30, c"VendorDiag"),
    (0x31, c"LedInfo"),
];
const SA_ATTRIBUTES: Names<u16> = &[
    (0x11, c"NodeRecord"),
    (0x12, c"PortInfoRecord"),
    (0x13, c"SLtoVLMappingTableRecord"),
    (0x14, c"SwitchInfoRecord"),
    (0x15, c"LinearForwardingTableRecord"),
    (0x18, c"SMInfoRecord"),
    (0x20, c"LinkRecord"),
    (0x30, c"GuidInfoRecord"),
    (0x31, c"ServiceRecord"),
    (0x33, c"P_KeyTableRecord"),
    (0x35, c"PathRecord"),
    (0x36, c"VLArbitrationTableRecord"),
    (0x38, c"MCMemberRecord"),
    (0x39, c"TraceRecord"),
    (0x3a, c"MultiPathRecord"),
    (0xf3, c"InformInfoRecord"),
];
const CM_ATTRIBUTES: Names<u16> = &[
    (0x10, c"ConnectRequest"),
    (0x11, c"MsgRcptAck"),
    (0x12, c"ConnectReject"),
    (0x13, c"ConnectReply"),
    (0x14, c"ReadyToUse"),
    (0x15, c"DisconnectRequest"),
    (0x16, c"DisconnectReply"),
    (0x17, c"ServiceIDResReq"),
    (0x18, c"ServiceIDResReqResp"),
    (0x19, c"LoadAlternatePath"),
    (0x1a, c"AlternatePathResponse"),
];
const SA_STATES: Names<u8> = &[
    (0, c"Success"),
    (1, c"No Resources"),
    (2, c"Request Invalid"),
    (3, c"No Records"),
    (4, c"Too Many Records"),
    (5, c"Invalid GID"),
    (6, c"Insufficient Components"),
    (7, c"Request Denied"),
    (8, c"Priority Suggested"),
];

fn name<T: PartialEq>(tables: &[Names<T>], number: &T, other: &'static CStr) -> *const c_char {
    let found = tables.iter().flat_map(|table| table.iter()).find(|(known, _)| known == number);
    found.map_or(other, |(_, name)| name).as_ptr()
}

/// umad_class_str(3).
#[unsafe(no_mangle)]
extern "C" fn umad_class_str(class: u8) -> *const c_char {
    let other = match class {
        0x09..=0x0f | 0x30..=0x4f => c"Vendor",
        0x16..=0x20 | 0x22..=0x2f => c"Application",
        _ => UNKNOWN,
    };
    name(&[CLASSES], &class, other)
}

/// umad_method_str(3).
#[unsafe(no_mangle)]
extern "C" fn umad_method_str(class: u8, method: u8) -> *const c_char {
    let tables: &[Names<u8>] = if class == class::SA { &[SA_METHODS, METHODS] } else { &[METHODS] };
    name(tables, &method, UNKNOWN)
}

/// umad_common_mad_status_str(3), of a status in network order.
#[unsafe(no_mangle)]
extern "C" fn umad_common_mad_status_str(status: u16) -> *const c_char {
    let status = u16::from_be(status);
    let word = match (status & 1, status & 2, status & 0x1c) {
        (1, ..) => c"Busy",
        (_, 2, _) => c"Redirection required",
        (.., 0x04) => c"Bad Version",
        (.., 0x08) => c"Method not supported",
        (.., 0x0c) => c"Method/Attribute combo not supported",
        (.., 0x1c) => c"Invalid attribute/modifier field",
        _ => c"Success",
    };
    word.as_ptr()
}

/// umad_sa_mad_status_str(3), of a status in network order.
#[unsafe(no_mangle)]
extern "C" fn umad_sa_mad_status_str(status: u16) -> *const c_char {
    name(&[SA_STATES], &((u16::from_be(status) >> 8) as u8), c"Undefined Error")
}

/// umad_attribute_str(3), of an attribute in network order.
#[unsafe(no_mangle)]
extern "C" fn umad_attribute_str(class: u8, attribute: u16) -> *const c_char {
    let own = match class {
        class::SMP | class::SMP_DIRECTED => SM_ATTRIBUTES,
        class::SA => SA_ATTRIBUTES,
        class::CM => CM_ATTRIBUTES,
        _ => &[],
    };
    name(&[own, ATTRIBUTES], &u16::from_be(attribute), UNKNOWN)
}

/// umad_debug(3). Sets the level, unless it is negative. Returns the level.
#[unsafe(no_mangle)]
extern "C" fn umad_debug(level: c_int) -> c_int {
    if level >= 0 {
        LEVEL.store(level, Ordering::Relaxed);
    }
    LEVEL.load(Ordering::Relaxed)
}

/// umad_addr_dump(3): on standard error.
#[unsafe(no_mangle)]
extern "C" fn umad_addr_dump(addr: Option<&MadAddr>) {
    let Some(addr) = addr else { return };
    eprintln!(
        "qpn {} qkey {:#x} lid {} sl {} grh_present {} traffic_class {} pkey_index {:#x} gid {}",
        u32::from_be_bytes(addr.qpn),
        u32::from_be_bytes(addr.qkey),
        u16::from_be_bytes(addr.lid),
        addr.sl,
        addr.grh_present,
        addr.traffic_class,
        addr.pkey_index,
        Ipv6Addr::from(addr.gid),
    );
}

/// umad_dump(3): on standard error.
#[unsafe(no_mangle)]
extern "C" fn umad_dump(umad: Buffer) {
    let Some(header) = umad.header() else { return };
    eprintln!("agent id {} status {:x} timeout {}", header.agent_id, header.status, header.timeout_ms);
    umad_addr_dump(Some(&header.addr));
}
