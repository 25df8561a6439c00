//! Fields of management datagrams. Names and offsets are from the tables of the connection manager.

use super::{Field, Value};
use crate::packet::port;
use rxe_cm::proto::{CmaHeader, Datagram, Message, Path, ServiceId, Shown};
use rxe_core::wire::MadHeader;

/// Unit of the connection manager's timeouts.
const TIMEOUT_UNIT_NS: u64 = 4096;

/// A message of the connection manager.
pub(super) fn mad(datagram: &Datagram) -> Field {
    let mut inside = vec![
        Field::number("attribute", datagram.message.attribute().into(), 4).note(datagram.message.name()),
        Field::number("transaction", datagram.transaction, 16),
        Field::number("modifier", datagram.modifier.into(), 8),
    ];
    datagram
        .message
        .each_shown(&mut |name, shown, text| inside.push(field(name, shown, &format!("{text:?}"))));
    let addressed = match &datagram.message {
        Message::Req(req) => req.private_data.split_header().ok().map(|(header, _)| header),
        Message::SidrReq(req) => req.private_data.split_header().ok().map(|(header, _)| header),
        _ => None,
    };
    inside.extend(addressed.as_ref().map(ip_cm));
    Field::group("cm", inside)
}

/// A datagram of another class.
pub(super) fn header(header: &MadHeader) -> Field {
    Field::group(
        "mad",
        vec![
            Field::number("base_version", header.base_version.into(), 2),
            Field::number("class", header.class.into(), 2),
            Field::number("class_version", header.class_version.into(), 2),
            Field::number("method", header.method.into(), 2),
            Field::number("status", header.status.into(), 4),
            Field::number("transaction", header.transaction, 16),
            Field::number("attribute", header.attribute.into(), 4),
            Field::number("modifier", header.modifier.into(), 8),
        ],
    )
}

fn field(name: &'static str, shown: Shown<'_>, text: &str) -> Field {
    let value = match shown {
        Shown::Flag(set) => Value::Flag(set),
        Shown::Count(value) => Value::Count(value),
        Shown::Number(value, digits) => Value::Number(value, digits),
        Shown::Address(address) => Value::Address(address),
        Shown::Bytes(bytes) => Value::Bytes(bytes.to_vec()),
        Shown::Path(path) => return Field::group(name, self::path(path)),
    };
    Field::new(name, value).note(note(name, shown, text))
}

/// The meaning of a value, if it follows from its type or name.
fn note(name: &str, shown: Shown<'_>, text: &str) -> String {
    match (name, shown) {
        ("service_id", Shown::Number(id, _)) => port(ServiceId(id)),
        ("reason" | "transport" | "message" | "status", Shown::Count(_))
            if text.starts_with(char::is_alphabetic) =>
        {
            text.to_owned()
        }
        ("path_mtu", Shown::Count(code @ 1..=5)) => format!("{} bytes", 128_u32 << code),
        (
            "remote_cm_response_timeout" | "local_cm_response_timeout" | "service_timeout" | "ack_timeout",
            Shown::Count(code),
        ) => timeout(code),
        ("target_ack_delay", Shown::Count(code)) => timeout(code),
        ("rnr_retry_count", Shown::Count(7)) => "without end".to_owned(),
        ("starting_psn", _) => "the first PSN that the receiver of this message sends with".to_owned(),
        _ => String::new(),
    }
}

/// 4.096 us << code.
fn timeout(code: u64) -> String {
    rxe_ladder::duration(TIMEOUT_UNIT_NS << (code & 31))
}

fn path(path: &Path) -> Vec<Field> {
    vec![
        Field::number("local_lid", path.local_lid.into(), 4),
        Field::number("remote_lid", path.remote_lid.into(), 4),
        Field::new("local_gid", Value::Address(path.local_gid)),
        Field::new("remote_gid", Value::Address(path.remote_gid)),
        Field::number("flow_label", path.flow_label.into(), 5),
        Field::count("packet_rate", path.packet_rate.into()),
        Field::number("traffic_class", path.traffic_class.into(), 2),
        Field::count("hop_limit", path.hop_limit.into()),
        Field::count("service_level", path.service_level.into()),
        Field::flag("subnet_local", path.subnet_local),
        Field::count("ack_timeout", path.ack_timeout.into()).note(timeout(path.ack_timeout.into())),
    ]
}

/// The IP CM header in front of the private data: addresses and port.
fn ip_cm(header: &CmaHeader) -> Field {
    Field::group(
        "ip_cm",
        vec![
            Field::count("src_port", header.src_port.into()),
            Field::new("src", Value::Address(header.src.to_canonical())),
            Field::new("dst", Value::Address(header.dst.to_canonical())),
        ],
    )
}
