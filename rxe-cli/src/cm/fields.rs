//! The fields of each message: names, values and meanings.

use super::cell::{Cell, time};
use rxe_cm::proto::{
    Apr, Concerns, Lap, Message, Mra, Path, PrivateData, Rej, RejectReason, Rep, Req, ServiceId, SidrRep,
    SidrReq,
};
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

const COMM_ID: &str = "the sender's number for the connection";
const PEERS_ID: &str = "the receiver's number for the connection";
const PSN: &str = "the first PSN that the receiver of this message sends with";
const CAN_TAKE: &str = "READs and atomics that the sender can take at a time";
const WANTS: &str = "READs and atomics that the sender wants to issue at a time";
const UNUSED: &str = "reliable datagrams only";

impl Fields {
    pub(super) fn of(message: &Message) -> Self {
        let mut fields = Self::default();
        match message {
            Message::Req(req) => fields.req(req),
            Message::Mra(mra) => fields.mra(mra),
            Message::Rej(rej) => fields.rej(rej),
            Message::Rep(rep) => fields.rep(rep),
            Message::Rtu(rtu) => {
                fields.ids(rtu.local_comm_id.0, rtu.remote_comm_id.0);
                fields.data(&rtu.private_data);
            }
            Message::Dreq(dreq) => {
                fields.ids(dreq.local_comm_id.0, dreq.remote_comm_id.0);
                let qpn = Cell::hex(dreq.remote_qpn.value(), 6);
                fields.key("remote_qpn", qpn, "the receiver's queue pair");
                fields.data(&dreq.private_data);
            }
            Message::Drep(drep) => {
                fields.ids(drep.local_comm_id.0, drep.remote_comm_id.0);
                fields.data(&drep.private_data);
            }
            Message::SidrReq(req) => fields.sidr_req(req),
            Message::SidrRep(rep) => fields.sidr_rep(rep),
            Message::Lap(lap) => fields.lap(lap),
            Message::Apr(apr) => fields.apr(apr),
        }
        fields
    }

    /// An important field.
    fn key(&mut self, name: &str, value: Cell, note: impl Into<String>) {
        self.0.push(Field { name: name.to_owned(), value, note: note.into(), matters: true });
    }

    /// Another field.
    fn also(&mut self, name: &str, value: Cell, note: impl Into<String>) {
        self.0.push(Field { name: name.to_owned(), value, note: note.into(), matters: false });
    }

    fn ids(&mut self, local: u32, remote: u32) {
        self.key("local_comm_id", Cell::hex(local, 8), COMM_ID);
        self.key("remote_comm_id", Cell::hex(remote, 8), PEERS_ID);
    }

    fn data<const N: usize>(&mut self, data: &PrivateData<N>) {
        self.bytes("private_data", &data.0);
    }

    fn bytes(&mut self, name: &str, bytes: &[u8]) {
        let note = format!("for the program, {} bytes", bytes.len());
        let matters = bytes.iter().any(|byte| *byte != 0);
        self.0.push(Field { name: name.to_owned(), value: Cell::bytes(bytes), note, matters });
    }

    /// Private data that begins with rdma_cm's header.
    fn headed<const N: usize>(&mut self, data: &PrivateData<N>) {
        match data.split_header() {
            Ok((header, rest)) => {
                let (src, dst) = (header.src.to_canonical(), header.dst.to_canonical());
                let text = format!("{src} port {} to {dst}", header.src_port);
                let json = serde_json::json!({ "src_port": header.src_port, "src": src, "dst": dst });
                let note = "who asks whom, in front of the private data";
                self.key("ip_cm_header", Cell { text, json }, note);
                self.bytes("user_data", rest);
            }
            Err(error) => self.key("ip_cm_header", Cell::words(format!("none: {error}")), ""),
        }
        // Both parts of it are shown already.
        let all = Cell { text: String::new(), ..Cell::bytes(&data.0) };
        self.also("private_data", all, "");
    }

    fn service(&mut self, id: ServiceId) {
        let note = match id.port() {
            Some((space, port)) => format!("RDMA_PS_{}, port {port}", format!("{space:?}").to_uppercase()),
            None => "no port of rdma_cm".to_owned(),
        };
        self.key("service_id", Cell::long(id.0), note);
    }

    fn req(&mut self, req: &Req) {
        self.key("local_comm_id", Cell::hex(req.local_comm_id.0, 8), COMM_ID);
        self.also("vendor_id", Cell::hex(req.vendor_id, 6), "vendor of connection options (ECE)");
        self.service(req.service_id);
        self.also("local_ca_guid", Cell::guid(req.local_ca_guid), "the sender's adapter");
        self.also("local_qkey", Cell::hex(req.local_qkey.0, 8), "datagram services only");
        self.key("local_qpn", Cell::hex(req.local_qpn.value(), 6), "the sender's queue pair");
        self.key("responder_resources", Cell::number(req.responder_resources), CAN_TAKE);
        self.also("local_eecn", Cell::hex(req.local_eecn, 6), UNUSED);
        self.key("initiator_depth", Cell::number(req.initiator_depth), WANTS);
        self.also("remote_eecn", Cell::hex(req.remote_eecn, 6), UNUSED);
        let (theirs, ours) = (req.remote_cm_response_timeout, req.local_cm_response_timeout);
        self.key("remote_cm_response_timeout", Cell::number(theirs), answers("receiver", theirs));
        let transport = format!("{:?}", req.transport).to_uppercase();
        self.key("transport", Cell::words(transport), "the service wanted");
        let credits = "whether the sender's receive queue grants credits";
        self.also("flow_control", Cell::flag(req.flow_control), credits);
        self.key("starting_psn", Cell::hex(req.starting_psn.value(), 6), PSN);
        self.key("local_cm_response_timeout", Cell::number(ours), answers("sender", ours));
        self.key("retry_count", Cell::number(req.retry_count), "retries after timeouts, for the receiver");
        self.also("pkey", Cell::hex(req.pkey.0, 4), "partition");
        let mtu =
            req.mtu().map_or_else(|| "not defined".to_owned(), |mtu: Mtu| format!("{} bytes", mtu.bytes()));
        self.key("path_mtu", Cell::number(req.path_mtu), mtu);
        self.also("rdc_exists", Cell::flag(req.rdc_exists), UNUSED);
        self.key("rnr_retry_count", Cell::number(req.rnr_retry_count), rnr(req.rnr_retry_count));
        self.key("max_cm_retries", Cell::number(req.max_cm_retries), "how often each message is repeated");
        self.also("srq", Cell::flag(req.srq), "whether the sender has a shared receive queue");
        self.also("extended_transport", Cell::number(req.extended_transport), "1: XRC");
        self.path("primary", &req.primary, true);
        self.path("alternate", &req.alternate, false);
        self.also("sap_supported", Cell::flag(req.sap_supported), "the alternate path can be suspended");
        self.headed(&req.private_data);
    }

    fn path(&mut self, which: &str, path: &Path, primary: bool) {
        if *path == Path::default() {
            self.also(which, Cell { text: "none".to_owned(), json: serde_json::Value::Null }, "all zero");
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

    fn rep(&mut self, rep: &Rep) {
        self.ids(rep.local_comm_id.0, rep.remote_comm_id.0);
        self.also("local_qkey", Cell::hex(rep.local_qkey.0, 8), "datagram services only");
        self.key("local_qpn", Cell::hex(rep.local_qpn.value(), 6), "the sender's queue pair");
        self.also("vendor_id", Cell::hex(rep.vendor_id, 6), "vendor of connection options (ECE)");
        self.also("local_eecn", Cell::hex(rep.local_eecn, 6), UNUSED);
        self.key("starting_psn", Cell::hex(rep.starting_psn.value(), 6), PSN);
        self.key("responder_resources", Cell::number(rep.responder_resources), CAN_TAKE);
        self.key("initiator_depth", Cell::number(rep.initiator_depth), WANTS);
        let delay = format!("the sender acknowledges within {}", time(rep.target_ack_delay));
        self.key("target_ack_delay", Cell::number(rep.target_ack_delay), delay);
        let failover = if rep.failover_accepted == 0 { "the alternate path is accepted, if any" } else { "" };
        self.also("failover_accepted", Cell::number(rep.failover_accepted), failover);
        let credits = "whether the sender's receive queue grants credits";
        self.also("flow_control", Cell::flag(rep.flow_control), credits);
        self.key("rnr_retry_count", Cell::number(rep.rnr_retry_count), rnr(rep.rnr_retry_count));
        self.also("srq", Cell::flag(rep.srq), "whether the sender has a shared receive queue");
        self.also("local_ca_guid", Cell::guid(rep.local_ca_guid), "the sender's adapter");
        self.data(&rep.private_data);
    }

    fn mra(&mut self, mra: &Mra) {
        self.ids(mra.local_comm_id.0, mra.remote_comm_id.0);
        self.concerns(mra.message, "LAP", "has arrived");
        let more = format!("the answer may take {} more", time(mra.service_timeout));
        self.key("service_timeout", Cell::number(mra.service_timeout), more);
        self.data(&mra.private_data);
    }

    fn concerns(&mut self, message: Concerns, other: &str, what: &str) {
        let which = match message {
            Concerns::Req => "REQ",
            Concerns::Rep => "REP",
            Concerns::Other => other,
            Concerns::Reserved => "not defined",
        };
        let value = Cell { text: which.to_owned(), json: message.bits().into() };
        self.key("message", value, format!("what {what}"));
    }

    fn rej(&mut self, rej: &Rej) {
        self.ids(rej.local_comm_id.0, rej.remote_comm_id.0);
        self.concerns(rej.message, "none in particular", "is refused");
        self.also("info_len", Cell::number(rej.info_len), "bytes of additional information");
        let words = rej.reason.words().unwrap_or("not defined");
        self.key("reason", Cell::number(rej.reason.0), words);
        let info = match rej.reason {
            RejectReason::TIMEOUT => "additional information: the sender's adapter",
            RejectReason::INVALID_GID => "additional information: a GID of the sender's",
            _ => "additional information",
        };
        self.also("info", Cell::bytes(&rej.info.0), info);
        self.data(&rej.private_data);
    }

    fn sidr_req(&mut self, req: &SidrReq) {
        self.key("request_id", Cell::hex(req.request_id.0, 8), "the sender's number for the question");
        self.also("pkey", Cell::hex(req.pkey.0, 4), "partition");
        self.service(req.service_id);
        self.headed(&req.private_data);
    }

    fn sidr_rep(&mut self, rep: &SidrRep) {
        self.key("request_id", Cell::hex(rep.request_id.0, 8), "the asker's number for the question");
        let words = rep.status.words().unwrap_or("not defined");
        self.key("status", Cell::number(rep.status.0), words);
        self.also("info_len", Cell::number(rep.info_len), "bytes of additional information");
        self.also("vendor_id", Cell::hex(rep.vendor_id, 6), "vendor of connection options (ECE)");
        self.key("qpn", Cell::hex(rep.qpn.value(), 6), "the queue pair to send datagrams to");
        self.service(rep.service_id);
        self.key("qkey", Cell::hex(rep.qkey.0, 8), "the key that its datagrams need");
        self.also("info", Cell::bytes(&rep.info.0), "additional information");
        self.data(&rep.private_data);
    }

    fn lap(&mut self, lap: &Lap) {
        self.ids(lap.local_comm_id.0, lap.remote_comm_id.0);
        self.key("remote_qpn", Cell::hex(lap.remote_qpn.value(), 6), "the receiver's queue pair");
        let code = lap.remote_cm_response_timeout;
        self.key("remote_cm_response_timeout", Cell::number(code), answers("receiver", code));
        self.path("alternate", &lap.alternate, false);
        self.data(&lap.private_data);
    }

    fn apr(&mut self, apr: &Apr) {
        self.ids(apr.local_comm_id.0, apr.remote_comm_id.0);
        self.also("info_len", Cell::number(apr.info_len), "bytes of additional information");
        let loaded = if apr.status == 0 { "the path is loaded" } else { "the path is not loaded" };
        self.key("status", Cell::number(apr.status), loaded);
        self.also("info", Cell::bytes(&apr.info.0), "additional information");
        self.data(&apr.private_data);
    }
}

fn answers(who: &str, code: u8) -> String {
    format!("the {who} answers within {}", time(code))
}

fn rnr(count: u8) -> &'static str {
    match count {
        7 => "retries after RNR NAKs, for the receiver: without end",
        _ => "retries after RNR NAKs, for the receiver",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxe_cm::proto::{Datagram, Drep, Dreq, Rtu};
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

    /// No field of a message is missing, compared with the tables of rxe-cm.
    #[test]
    fn every_field_is_shown() {
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
            let mut count = 0;
            message.each(&mut |name, _| {
                count += 1;
                let found = match name {
                    "primary" | "alternate" => {
                        names.iter().filter(|field| field.starts_with(name)).count() == 11
                    }
                    _ => names.contains(name),
                };
                assert!(found, "{} of {} is not shown", name, message.name());
            });
            assert!(count >= 3, "{}", message.name());
            assert!(fields.iter().any(|field| field.matters), "{}", message.name());
        }
    }
}
