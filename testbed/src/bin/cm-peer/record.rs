//! What we mean by each message that we send, for comparison with what tshark reads in the packets: one JSON object a line,
//! with tshark's names of the fields.

use rxe_cm::{
    Crossing, Direction,
    proto::{Datagram, Message, Path, PrivateData, Rej, Rep, Req},
};
use serde_json::{Map, Value, json};
use std::{fs::File, io::Write, net::IpAddr};

/// Adds a message to the file, if it is ours.
pub(crate) fn note(mut file: &File, crossing: &Crossing) {
    if crossing.direction == Direction::Sent {
        // In one piece: several programs write to its end.
        let line = format!("{}\n", meaning(crossing.local, &crossing.datagram));
        if let Err(error) = file.write_all(line.as_bytes()) {
            eprintln!("cm-peer: a message was not noted: {error}");
        }
    }
}

/// Fields of one message.
struct Fields(&'static str, Map<String, Value>);

impl Fields {
    fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.1.insert(format!("infiniband.cm.{}{name}", self.0), value.into());
    }

    fn data<const N: usize>(&mut self, name: &str, data: &PrivateData<N>) {
        self.put(name, hex(&data.0));
    }

    fn ids(&mut self, local: rxe_cm::proto::CommId, remote: rxe_cm::proto::CommId) {
        self.put(".localcommid", local.0);
        self.put(".remotecommid", remote.0);
    }
}

fn hex(bytes: &[u8]) -> String {
    super::cases::hex(bytes)
}

fn meaning(from: IpAddr, datagram: &Datagram) -> Value {
    let mut fields = Fields("", Map::new());
    match &datagram.message {
        Message::Req(message) => req(&mut fields, message),
        Message::Rep(message) => rep(&mut fields, message),
        Message::Rej(message) => rej(&mut fields, message),
        Message::Rtu(message) => {
            fields.0 = "rtu";
            fields.ids(message.local_comm_id, message.remote_comm_id);
            fields.data(".private", &message.private_data);
        }
        Message::Dreq(message) => {
            fields.0 = "dreq";
            fields.ids(message.local_comm_id, message.remote_comm_id);
            fields.data(".private", &message.private_data);
            fields.0 = "req";
            fields.put(".remoteqpneecn", message.remote_qpn.value());
        }
        Message::Drep(message) => {
            fields.0 = "drsp";
            fields.ids(message.local_comm_id, message.remote_comm_id);
            fields.data(".private", &message.private_data);
        }
        // tshark 4.0 has no fields for these, and shows their bytes.
        _ => {
            let mad = datagram.emit();
            fields.1.insert("infiniband.mad.data".to_owned(), hex(&mad[24..]).into());
        }
    }
    let (transaction, attribute) = (datagram.transaction, datagram.message.attribute());
    json!({
        "from": from.to_string(),
        "transaction": transaction,
        "attribute": attribute,
        "modifier": datagram.modifier,
        "fields": fields.1,
    })
}

fn req(fields: &mut Fields, req: &Req) {
    fields.0 = "req";
    fields.put("", req.local_comm_id.0);
    fields.put(".serviceid", req.service_id.0);
    fields.put(".localcaguid", req.local_ca_guid.0);
    fields.put(".localqpn", req.local_qpn.value());
    fields.put(".startpsn", req.starting_psn.value());
    fields.put(".responderres", req.responder_resources);
    fields.put(".initdepth", req.initiator_depth);
    fields.put(".remoteresptout", req.remote_cm_response_timeout);
    fields.put(".localresptout", req.local_cm_response_timeout);
    fields.put(".transpsvctype", req.transport.bits());
    fields.put(".e2eflowctrl", u8::from(req.flow_control));
    fields.put(".retrcount", req.retry_count);
    fields.put(".rnrretrcount", req.rnr_retry_count);
    fields.put(".maxcmretr", req.max_cm_retries);
    fields.put(".pkey", req.pkey.0);
    fields.put(".pppmtu", req.path_mtu);
    fields.put(".srq", u8::from(req.srq));
    path(fields, "prim", &req.primary);
    let Ok((header, data)) = req.private_data.split_header() else {
        fields.data(".private", &req.private_data);
        return;
    };
    let version = if header.src.is_ipv4() { 4 } else { 6 };
    fields.put(".ip_cm.ipv", version);
    fields.put(".ip_cm.sport", header.src_port);
    fields.put(&format!(".ip_cm.sip{version}"), header.src.to_string());
    fields.put(&format!(".ip_cm.dip{version}"), header.dst.to_string());
    fields.put(".ip_cm.private", hex(data));
}

fn path(fields: &mut Fields, which: &str, path: &Path) {
    let mut put = |name: &str, value: Value| fields.put(&format!(".{which}_{name}"), value);
    put("locallid", path.local_lid.into());
    put("remotelid", path.remote_lid.into());
    for (name, gid) in [("localgid", path.local_gid), ("remotegid", path.remote_gid)] {
        let v4 = if gid.is_ipv4() { "_ipv4" } else { "" };
        put(&format!("{name}{v4}"), gid.to_string().into());
    }
    put("tfcclass", path.traffic_class.into());
    put("hoplim", path.hop_limit.into());
    put("sl", path.service_level.into());
    put("subnetlocal", u8::from(path.subnet_local).into());
    put("localacktout", path.ack_timeout.into());
}

fn rep(fields: &mut Fields, rep: &Rep) {
    fields.0 = "rep";
    fields.put("", rep.local_comm_id.0);
    fields.put(".remotecommid", rep.remote_comm_id.0);
    fields.put(".localqpn", rep.local_qpn.value());
    fields.put(".startpsn", rep.starting_psn.value());
    fields.put(".respres", rep.responder_resources);
    fields.put(".initdepth", rep.initiator_depth);
    fields.put(".tgtackdelay", rep.target_ack_delay);
    fields.put(".failoveracc", rep.failover_accepted);
    fields.put(".e2eflowctrl", u8::from(rep.flow_control));
    fields.put(".rnrretrcount", rep.rnr_retry_count);
    fields.put(".srq", u8::from(rep.srq));
    fields.put(".localcaguid", rep.local_ca_guid.0);
    fields.data(".private", &rep.private_data);
}

fn rej(fields: &mut Fields, rej: &Rej) {
    fields.0 = "rej";
    fields.ids(rej.local_comm_id, rej.remote_comm_id);
    fields.put(".msgrej", rej.message.bits());
    fields.put(".rejinfolen", rej.info_len);
    fields.put(".reason", rej.reason.0);
    fields.data(".ari", &rej.info);
    fields.data(".private", &rej.private_data);
}
