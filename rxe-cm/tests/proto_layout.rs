//! Every field of every message is where the specification says. A table of bytes and bits, written out here, is compared with the
//! bytes of a message in which only that field is set.
#![allow(clippy::field_reassign_with_default, reason = "the macro also reaches fields of fields")]

use rxe_cm::proto::{
    Apr, BODY_LEN, CommId, Concerns, Datagram, Drep, Dreq, Guid, Lap, Message, Mra, Path, PrivateData, Rej,
    RejectReason, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq, SidrStatus, Transport,
};
use rxe_core::num::{Pkey, Psn, Qkey, Qpn};
use std::{net::IpAddr, ops::RangeInclusive};

const ID: CommId = CommId(u32::MAX);
const QPN: Qpn = Qpn::new(u32::MAX);
const PSN: Psn = Psn::new(u32::MAX);
const QKEY: Qkey = Qkey(u32::MAX);
const PKEY: Pkey = Pkey(u16::MAX);
const VENDOR: u32 = 0xff_ffff;
const SERVICE: ServiceId = ServiceId(u64::MAX);

fn full<const N: usize>() -> PrivateData<N> {
    PrivateData([0xff; N])
}

fn ones() -> IpAddr {
    IpAddr::from([0xff; 16])
}

/// Which bits are set: (bytes, mask of each).
type Bits = &'static [(RangeInclusive<usize>, u8)];

fn body(message: Message) -> [u8; BODY_LEN] {
    Datagram { transaction: 0, modifier: 0, message }.emit()[24..].try_into().unwrap()
}

/// Checks the fields of one message and returns the bits that none of them uses.
fn check(name: &str, empty: Message, fields: Vec<(&str, Message, Bits)>) -> [u8; BODY_LEN] {
    let empty = body(empty);
    assert_eq!(empty, [0; BODY_LEN], "{name} of defaults is zero");
    let mut unused = [0xff_u8; BODY_LEN];
    for (field, message, bits) in fields {
        let mut wanted = [0; BODY_LEN];
        for (bytes, mask) in bits {
            wanted[bytes.clone()].fill(*mask);
        }
        assert_eq!(body(message), wanted, "{name}.{field}");
        for (unused, wanted) in unused.iter_mut().zip(wanted) {
            assert_eq!(*unused & wanted, wanted, "{name}.{field} overlaps another field");
            *unused &= !wanted;
        }
    }
    unused
}

/// `fields!(empty; field = value, bits; ...)`
macro_rules! fields {
    ($name:ident $base:expr; $($($field:ident).+ = $value:expr, $bits:expr;)*) => {
        check(stringify!($name), $base.into(), vec![$((stringify!($($field).+), {
            let mut message: $name = $base;
            message.$($field).+ = $value;
            message.into()
        }, $bits),)*])
    };
}

/// Every byte that is not wholly used, with the mask of its reserved bits.
fn reserved(unused: &[u8; BODY_LEN]) -> Vec<(usize, u8)> {
    unused.iter().copied().enumerate().filter(|&(_, bits)| bits != 0).collect()
}

#[test]
fn req() {
    let base = || Req { pkey: Pkey(0), ..Req::default() };
    let unused = fields! { Req base();
        local_comm_id = ID, &[(0..=3, 0xff)];
        vendor_id = VENDOR, &[(5..=7, 0xff)];
        service_id = SERVICE, &[(8..=15, 0xff)];
        local_ca_guid = Guid(u64::MAX), &[(16..=23, 0xff)];
        local_qkey = QKEY, &[(28..=31, 0xff)];
        local_qpn = QPN, &[(32..=34, 0xff)];
        responder_resources = 255, &[(35..=35, 0xff)];
        local_eecn = VENDOR, &[(36..=38, 0xff)];
        initiator_depth = 255, &[(39..=39, 0xff)];
        remote_eecn = VENDOR, &[(40..=42, 0xff)];
        remote_cm_response_timeout = 31, &[(43..=43, 0xf8)];
        transport = Transport::Extended, &[(43..=43, 0x06)];
        flow_control = true, &[(43..=43, 0x01)];
        starting_psn = PSN, &[(44..=46, 0xff)];
        local_cm_response_timeout = 31, &[(47..=47, 0xf8)];
        retry_count = 7, &[(47..=47, 0x07)];
        pkey = PKEY, &[(48..=49, 0xff)];
        path_mtu = 15, &[(50..=50, 0xf0)];
        rdc_exists = true, &[(50..=50, 0x08)];
        rnr_retry_count = 7, &[(50..=50, 0x07)];
        max_cm_retries = 15, &[(51..=51, 0xf0)];
        srq = true, &[(51..=51, 0x08)];
        extended_transport = 7, &[(51..=51, 0x07)];
        primary.local_lid = 0xffff, &[(52..=53, 0xff)];
        primary.remote_lid = 0xffff, &[(54..=55, 0xff)];
        primary.local_gid = ones(), &[(56..=71, 0xff)];
        primary.remote_gid = ones(), &[(72..=87, 0xff)];
        primary.flow_label = 0xf_ffff, &[(88..=89, 0xff), (90..=90, 0xf0)];
        primary.packet_rate = 63, &[(91..=91, 0x3f)];
        primary.traffic_class = 255, &[(92..=92, 0xff)];
        primary.hop_limit = 255, &[(93..=93, 0xff)];
        primary.service_level = 15, &[(94..=94, 0xf0)];
        primary.subnet_local = true, &[(94..=94, 0x08)];
        primary.ack_timeout = 31, &[(95..=95, 0xf8)];
        alternate.local_lid = 0xffff, &[(96..=97, 0xff)];
        alternate.remote_lid = 0xffff, &[(98..=99, 0xff)];
        alternate.local_gid = ones(), &[(100..=115, 0xff)];
        alternate.remote_gid = ones(), &[(116..=131, 0xff)];
        alternate.flow_label = 0xf_ffff, &[(132..=133, 0xff), (134..=134, 0xf0)];
        alternate.packet_rate = 63, &[(135..=135, 0x3f)];
        alternate.traffic_class = 255, &[(136..=136, 0xff)];
        alternate.hop_limit = 255, &[(137..=137, 0xff)];
        alternate.service_level = 15, &[(138..=138, 0xf0)];
        alternate.subnet_local = true, &[(138..=138, 0x08)];
        alternate.ack_timeout = 31, &[(139..=139, 0xf8)];
        sap_supported = true, &[(139..=139, 0x04)];
        private_data = full(), &[(140..=231, 0xff)];
    };
    let paths =
        [(90, 0x0f), (91, 0xc0), (94, 0x07), (95, 0x07), (134, 0x0f), (135, 0xc0), (138, 0x07), (139, 0x03)];
    let gaps = [(4, 0xff), (24, 0xff), (25, 0xff), (26, 0xff), (27, 0xff)];
    assert_eq!(reserved(&unused), [&gaps[..], &paths].concat());
}

#[test]
fn rep_rtu_mra() {
    let unused = fields! { Rep Rep::default();
        local_comm_id = ID, &[(0..=3, 0xff)];
        remote_comm_id = ID, &[(4..=7, 0xff)];
        local_qkey = QKEY, &[(8..=11, 0xff)];
        local_qpn = QPN, &[(12..=14, 0xff)];
        vendor_id = VENDOR, &[(15..=15, 0xff), (19..=19, 0xff), (23..=23, 0xff)];
        local_eecn = VENDOR, &[(16..=18, 0xff)];
        starting_psn = PSN, &[(20..=22, 0xff)];
        responder_resources = 255, &[(24..=24, 0xff)];
        initiator_depth = 255, &[(25..=25, 0xff)];
        target_ack_delay = 31, &[(26..=26, 0xf8)];
        failover_accepted = 3, &[(26..=26, 0x06)];
        flow_control = true, &[(26..=26, 0x01)];
        rnr_retry_count = 7, &[(27..=27, 0xe0)];
        srq = true, &[(27..=27, 0x10)];
        local_ca_guid = Guid(u64::MAX), &[(28..=35, 0xff)];
        private_data = full(), &[(36..=231, 0xff)];
    };
    assert_eq!(reserved(&unused), [(27, 0x0f)]);
    let vendor = body(Rep { vendor_id: 0x12_3456, ..Rep::default() }.into());
    assert_eq!([vendor[15], vendor[19], vendor[23]], [0x12, 0x34, 0x56]);
    let unused = fields! { Rtu Rtu::default();
        local_comm_id = ID, &[(0..=3, 0xff)];
        remote_comm_id = ID, &[(4..=7, 0xff)];
        private_data = full(), &[(8..=231, 0xff)];
    };
    assert_eq!(reserved(&unused), []);
    let unused = fields! { Mra Mra::default();
        local_comm_id = ID, &[(0..=3, 0xff)];
        remote_comm_id = ID, &[(4..=7, 0xff)];
        message = Concerns::Reserved, &[(8..=8, 0xc0)];
        service_timeout = 31, &[(9..=9, 0xf8)];
        private_data = full(), &[(10..=231, 0xff)];
    };
    assert_eq!(reserved(&unused), [(8, 0x3f), (9, 0x07)]);
}

#[test]
fn rej_dreq_drep() {
    let unused = fields! { Rej Rej::default();
        local_comm_id = ID, &[(0..=3, 0xff)];
        remote_comm_id = ID, &[(4..=7, 0xff)];
        message = Concerns::Reserved, &[(8..=8, 0xc0)];
        info_len = 127, &[(9..=9, 0xfe)];
        reason = RejectReason(u16::MAX), &[(10..=11, 0xff)];
        info = full(), &[(12..=83, 0xff)];
        private_data = full(), &[(84..=231, 0xff)];
    };
    assert_eq!(reserved(&unused), [(8, 0x3f), (9, 0x01)]);
    let unused = fields! { Dreq Dreq::default();
        local_comm_id = ID, &[(0..=3, 0xff)];
        remote_comm_id = ID, &[(4..=7, 0xff)];
        remote_qpn = QPN, &[(8..=10, 0xff)];
        private_data = full(), &[(12..=231, 0xff)];
    };
    assert_eq!(reserved(&unused), [(11, 0xff)]);
    let unused = fields! { Drep Drep::default();
        local_comm_id = ID, &[(0..=3, 0xff)];
        remote_comm_id = ID, &[(4..=7, 0xff)];
        private_data = full(), &[(8..=231, 0xff)];
    };
    assert_eq!(reserved(&unused), []);
}

#[test]
fn lap_apr() {
    let unused = fields! { Lap Lap::default();
        local_comm_id = ID, &[(0..=3, 0xff)];
        remote_comm_id = ID, &[(4..=7, 0xff)];
        remote_qpn = QPN, &[(12..=14, 0xff)];
        remote_cm_response_timeout = 31, &[(15..=15, 0xf8)];
        alternate.local_lid = 0xffff, &[(20..=21, 0xff)];
        alternate.remote_lid = 0xffff, &[(22..=23, 0xff)];
        alternate.local_gid = ones(), &[(24..=39, 0xff)];
        alternate.remote_gid = ones(), &[(40..=55, 0xff)];
        alternate.flow_label = 0xf_ffff, &[(56..=57, 0xff), (58..=58, 0xf0)];
        alternate.traffic_class = 255, &[(59..=59, 0xff)];
        alternate.hop_limit = 255, &[(60..=60, 0xff)];
        alternate.packet_rate = 63, &[(61..=61, 0x3f)];
        alternate.service_level = 15, &[(62..=62, 0xf0)];
        alternate.subnet_local = true, &[(62..=62, 0x08)];
        alternate.ack_timeout = 31, &[(63..=63, 0xf8)];
        private_data = full(), &[(64..=231, 0xff)];
    };
    let gaps: Vec<_> = (8..12).chain(16..20).map(|at| (at, 0xff)).collect();
    let mut wanted = [&gaps[..], &[(15, 0x07), (58, 0x0f), (61, 0xc0), (62, 0x07), (63, 0x07)]].concat();
    wanted.sort_unstable();
    assert_eq!(reserved(&unused), wanted);
    let unused = fields! { Apr Apr::default();
        local_comm_id = ID, &[(0..=3, 0xff)];
        remote_comm_id = ID, &[(4..=7, 0xff)];
        info_len = 255, &[(8..=8, 0xff)];
        status = 255, &[(9..=9, 0xff)];
        info = full(), &[(12..=83, 0xff)];
        private_data = full(), &[(84..=231, 0xff)];
    };
    assert_eq!(reserved(&unused), [(10, 0xff), (11, 0xff)]);
}

#[test]
fn sidr() {
    let unused = fields! { SidrReq SidrReq { pkey: Pkey(0), ..SidrReq::default() };
        request_id = ID, &[(0..=3, 0xff)];
        pkey = PKEY, &[(4..=5, 0xff)];
        service_id = SERVICE, &[(8..=15, 0xff)];
        private_data = full(), &[(16..=231, 0xff)];
    };
    assert_eq!(reserved(&unused), [(6, 0xff), (7, 0xff)]);
    let unused = fields! { SidrRep SidrRep::default();
        request_id = ID, &[(0..=3, 0xff)];
        status = SidrStatus(255), &[(4..=4, 0xff)];
        info_len = 255, &[(5..=5, 0xff)];
        vendor_id = VENDOR, &[(6..=7, 0xff), (11..=11, 0xff)];
        qpn = QPN, &[(8..=10, 0xff)];
        service_id = SERVICE, &[(12..=19, 0xff)];
        qkey = QKEY, &[(20..=23, 0xff)];
        info = full(), &[(24..=95, 0xff)];
        private_data = full(), &[(96..=231, 0xff)];
    };
    assert_eq!(reserved(&unused), []);
}

/// Numbers go out most significant byte first.
#[test]
fn byte_order() {
    let req = Req {
        local_comm_id: CommId(0x0102_0304),
        service_id: ServiceId(0x1112_1314_1516_1718),
        local_qpn: Qpn::new(0x21_2223),
        starting_psn: Psn::new(0x31_3233),
        primary: Path { flow_label: 0x4_5678, ..Path::default() },
        ..Req::default()
    };
    let body = body(req.into());
    assert_eq!(body[..4], [1, 2, 3, 4]);
    assert_eq!(body[8..16], [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
    assert_eq!(body[32..35], [0x21, 0x22, 0x23]);
    assert_eq!(body[44..47], [0x31, 0x32, 0x33]);
    assert_eq!(body[88..91], [0x45, 0x67, 0x80]);
}
