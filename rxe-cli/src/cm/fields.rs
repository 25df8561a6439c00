//! The fields of each message: names, values and meanings.

use super::cell::{Cell, time};
use rxe_cm::proto::{Guid, Message, Path, PrivateData, RejectReason, ServiceId, Shown};
use rxe_verbs::Mtu;

/// A field of a message.
#[derive(Debug)]
pub(super) struct Field {
    /// The name, as in rxe-cm's messages. Fields of paths begin with `primary_` or `alternate_`.
    pub(super) name: String,
    pub(super) value: Cell,
    /// Its meaning, as text.
    pub(super) note: String,
    /// Whether it is important for understanding the message.
    pub(super) matters: bool,
}

/// The fields of a message in the order of its bytes.
#[derive(Debug, Default)]
pub(super) struct Fields(pub(super) Vec<Field>);

impl Fields {
    pub(super) fn of(message: &Message) -> Self {
        let mut fields = Self::default();
        message.each_shown(&mut |name, shown, text| match (name, shown, message) {
            (_, Shown::Path(path), _) => fields.path(name, path, name == "primary"),
            ("private_data", _, Message::Req(req)) => fields.headed(&req.private_data),
            ("private_data", _, Message::SidrReq(req)) => fields.headed(&req.private_data),
            _ => {
                let value = value(message, name, shown, &format!("{text:?}"));
                fields.put(name, value, about(message, name, shown));
            }
        });
        fields
    }

    fn put(&mut self, name: &str, value: Cell, (matters, note): (bool, String)) {
        self.0.push(Field { name: name.to_owned(), value, note, matters });
    }

    /// Private data that begins with rdma_cm's header.
    fn headed<const N: usize>(&mut self, data: &PrivateData<N>) {
        match data.split_header() {
            Ok((header, rest)) => {
                let (src, dst) = (header.src.to_canonical(), header.dst.to_canonical());
                let text = format!("{src} port {} to {dst}", header.src_port);
                let json = serde_json::json!({ "src_port": header.src_port, "src": src, "dst": dst });
                let note = "who asks whom, in front of the private data";
                self.put("ip_cm_header", Cell { text, json }, (true, note.to_owned()));
                self.put("user_data", Cell::bytes(rest), for_the_program(rest));
            }
            Err(error) => {
                self.put("ip_cm_header", Cell::words(format!("none: {error}")), (true, String::new()));
            }
        }
        // Both parts of it are shown already.
        let all = Cell { text: String::new(), ..Cell::bytes(&data.0) };
        self.put("private_data", all, (false, String::new()));
    }

    fn path(&mut self, which: &str, path: &Path, primary: bool) {
        if *path == Path::default() {
            let none = Cell { text: "none".to_owned(), json: serde_json::Value::Null };
            self.put(which, none, (false, "all zero".to_owned()));
            return;
        }
        let mut put = |name: &str, value: Cell, note: String, matters: bool| {
            self.0.push(Field { name: format!("{which}_{name}"), value, note, matters: matters && primary });
        };
        let none = "none: RoCE has no LIDs";
        let lid = |lid: u16| if matches!(lid, 0 | 0xffff) { none.to_owned() } else { String::new() };
        put("local_lid", Cell::hex(path.local_lid, 4), lid(path.local_lid), false);
        put("remote_lid", Cell::hex(path.remote_lid, 4), lid(path.remote_lid), false);
        put("local_gid", Cell::address(path.local_gid), "the sender's address".to_owned(), true);
        put("remote_gid", Cell::address(path.remote_gid), "the receiver's".to_owned(), true);
        let flow = "the UDP source port follows from it".to_owned();
        put("flow_label", Cell::hex(path.flow_label, 5), flow, false);
        let rate = if path.packet_rate == 0 { "the port's" } else { "" };
        put("packet_rate", Cell::number(path.packet_rate), rate.to_owned(), false);
        let class = path.traffic_class;
        let dscp = format!("of the connection's packets: DSCP {}, ECN {}", class >> 2, class & 3);
        put("traffic_class", Cell::hex(class, 2), dscp, true);
        put("hop_limit", Cell::number(path.hop_limit), "of the connection's packets".to_owned(), false);
        put("service_level", Cell::number(path.service_level), "SL of the connection".to_owned(), true);
        put("subnet_local", Cell::flag(path.subnet_local), "whether no router is between".to_owned(), false);
        let ack = format!("the receiver sends again after {}", time(path.ack_timeout));
        put("ack_timeout", Cell::number(path.ack_timeout), ack, true);
    }
}

/// A field's value; `text` is what its own type makes of it.
fn value(message: &Message, name: &str, shown: Shown<'_>, text: &str) -> Cell {
    match (name, shown) {
        ("starting_psn", Shown::Count(psn)) => Cell::hex(psn, 6),
        ("local_ca_guid", Shown::Number(guid, _)) => Cell::guid(Guid(guid)),
        ("transport", _) => Cell::words(text.to_uppercase()),
        ("message", Shown::Count(bits)) => {
            let which = match (text, message) {
                ("Other", Message::Mra(_)) => "LAP".to_owned(),
                ("Other", _) => "none in particular".to_owned(),
                ("Reserved", _) => "not defined".to_owned(),
                _ => text.to_uppercase(),
            };
            Cell { text: which, json: bits.into() }
        }
        (_, Shown::Number(value, 16)) => Cell::long(value),
        (_, Shown::Number(value, digits)) => Cell::hex(value, digits.into()),
        (_, Shown::Count(value)) => Cell::number(value),
        (_, Shown::Flag(set)) => Cell::flag(set),
        (_, Shown::Address(address)) => Cell::address(address),
        (_, Shown::Bytes(bytes)) => Cell::bytes(bytes),
        (_, Shown::Path(_)) => Cell::words(""),
    }
}

fn for_the_program(bytes: &[u8]) -> (bool, String) {
    (bytes.iter().any(|byte| *byte != 0), format!("for the program, {} bytes", bytes.len()))
}

/// Whether a field is important, and its meaning.
fn about(message: &Message, name: &str, shown: Shown<'_>) -> (bool, String) {
    let number = match shown {
        Shown::Count(number) | Shown::Number(number, _) => number,
        Shown::Bytes(bytes) if name == "private_data" => return for_the_program(bytes),
        _ => 0,
    };
    let (key, also) = (|note: &str| (true, note.to_owned()), |note: &str| (false, note.to_owned()));
    let answers = |who| key(&format!("the {who} answers within {}", time(number as u8)));
    match name {
        "local_comm_id" => key("the sender's number for the connection"),
        "remote_comm_id" => key("the receiver's number for the connection"),
        "request_id" if matches!(message, Message::SidrReq(_)) => key("the sender's number for the question"),
        "request_id" => key("the asker's number for the question"),
        "vendor_id" => also("vendor of connection options (ECE)"),
        "service_id" => match ServiceId(number).port() {
            Some((space, port)) => {
                key(&format!("RDMA_PS_{}, port {port}", format!("{space:?}").to_uppercase()))
            }
            None => key("no port of rdma_cm"),
        },
        "local_ca_guid" => also("the sender's adapter"),
        "local_qkey" => also("datagram services only"),
        "qkey" => key("the key that its datagrams need"),
        "local_qpn" => key("the sender's queue pair"),
        "remote_qpn" => key("the receiver's queue pair"),
        "qpn" => key("the queue pair to send datagrams to"),
        "responder_resources" => key("READs and atomics that the sender can take at a time"),
        "initiator_depth" => key("READs and atomics that the sender wants to issue at a time"),
        "local_eecn" | "remote_eecn" | "rdc_exists" => also("reliable datagrams only"),
        "remote_cm_response_timeout" => answers("receiver"),
        "local_cm_response_timeout" => answers("sender"),
        "target_ack_delay" => key(&format!("the sender acknowledges within {}", time(number as u8))),
        "service_timeout" => key(&format!("the answer may take {} more", time(number as u8))),
        "transport" => key("the service wanted"),
        "flow_control" => also("whether the sender's receive queue grants credits"),
        "starting_psn" => key("the first PSN that the receiver of this message sends with"),
        "retry_count" => key("retries after timeouts, for the receiver"),
        "rnr_retry_count" if number == 7 => key("retries after RNR NAKs, for the receiver: without end"),
        "rnr_retry_count" => key("retries after RNR NAKs, for the receiver"),
        "max_cm_retries" => key("how often each message is repeated"),
        "pkey" => also("partition"),
        "path_mtu" => match Mtu::from_code(number as u8) {
            Some(mtu) => key(&format!("{} bytes", mtu.bytes())),
            None => key("not defined"),
        },
        "srq" => also("whether the sender has a shared receive queue"),
        "extended_transport" => also("1: XRC"),
        "sap_supported" => also("the alternate path can be suspended"),
        "failover_accepted" if number == 0 => also("the alternate path is accepted, if any"),
        "message" if matches!(message, Message::Mra(_)) => key("what has arrived"),
        "message" => key("what is refused"),
        "reason" => key(RejectReason(number as u16).words().unwrap_or("not defined")),
        "status" => key(match message {
            Message::SidrRep(rep) => rep.status.words().unwrap_or("not defined"),
            _ if number == 0 => "the path is loaded",
            _ => "the path is not loaded",
        }),
        "info_len" => also("bytes of additional information"),
        "info" => also(match message {
            Message::Rej(rej) if rej.reason == RejectReason::TIMEOUT => {
                "additional information: the sender's adapter"
            }
            Message::Rej(rej) if rej.reason == RejectReason::INVALID_GID => {
                "additional information: a GID of the sender's"
            }
            _ => "additional information",
        }),
        _ => also(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxe_cm::proto::{Apr, Datagram, Drep, Dreq, Lap, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
    use std::collections::BTreeSet;

    /// Anything that a peer sends can be shown.
    #[test]
    fn any_message_is_shown() {
        let mut state = 1_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        };
        for round in 0..11_000_u16 {
            let mut mad = [0; 256];
            mad.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&random()));
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16..18].copy_from_slice(&(0x10 + round % 11).to_be_bytes());
            let message = Datagram::parse(&mad).unwrap().message;
            for field in Fields::of(&message).0 {
                let words = format!("{}{}", field.value.text, field.note);
                assert!(!words.chars().any(char::is_control), "{}: {words:?}", field.name);
            }
        }
    }

    /// No field of a message is without a meaning.
    #[test]
    fn every_field_has_a_meaning() {
        let path = Path { hop_limit: 64, ..Path::default() };
        let messages: [Message; 11] = [
            Req { primary: path, alternate: path, ..Req::default() }.into(),
            Mra::default().into(),
            Rej::default().into(),
            Rep::default().into(),
            Rtu::default().into(),
            Dreq::default().into(),
            Drep::default().into(),
            SidrReq::default().into(),
            SidrRep::default().into(),
            Lap { alternate: path, ..Lap::default() }.into(),
            Apr::default().into(),
        ];
        for message in messages {
            let fields = Fields::of(&message).0;
            let names: BTreeSet<&str> = fields.iter().map(|field| field.name.as_str()).collect();
            assert_eq!(names.len(), fields.len(), "a name twice in {}", message.name());
            for field in &fields {
                let told = !field.note.is_empty() || matches!(&*field.name, "ip_cm_header" | "private_data");
                assert!(told, "{} of {}", field.name, message.name());
            }
            let of_paths =
                names.iter().filter(|name| name.starts_with("primary") || name.starts_with("alternate"));
            assert_eq!(of_paths.count() % 11, 0, "{}", message.name());
            assert!(fields.iter().any(|field| field.matters), "{}", message.name());
        }
    }
}
