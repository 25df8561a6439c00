//! CM messages that hardware and kernels sent: parsed to what tshark and the senders' own formulas say, emitted bit for bit.

use rxe_cm::proto::{
    CmaHeader, CommId, Concerns, Datagram, Dreq, Guid, Message, Path, PortSpace, PrivateData, Rej,
    RejectReason, Req, Rtu, ServiceId, Transport,
};
use rxe_core::{
    num::{Psn, Qpn},
    qp::Mtu,
    wire::{MAD_LEN, Packet},
};
use std::net::{IpAddr, Ipv4Addr};

/// The management datagrams of the recording: Ethernet, perhaps a VLAN tag, IPv4, UDP, BTH, DETH, 256 bytes, ICRC.
fn mads() -> Vec<Vec<u8>> {
    include_str!("../../rxe-core/tests/data/frames.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .filter_map(|line| {
            let frame: Vec<u8> = (0..line.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&line[at..at + 2], 16).unwrap())
                .collect();
            let ip = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
            let packet = Packet::decode(&frame[ip + 28..]).unwrap();
            (packet.bth.dest_qp == Qpn::GSI).then(|| packet.payload.to_vec())
        })
        .collect()
}

fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    Ipv4Addr::new(a, b, c, d).into()
}

/// What all three REQs have in common.
fn req() -> Req {
    let primary = Path { local_lid: 0xffff, remote_lid: 0xffff, hop_limit: 64, ..Path::default() };
    Req {
        responder_resources: 16,
        initiator_depth: 16,
        transport: Transport::Rc,
        retry_count: 7,
        path_mtu: 3,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        primary,
        ..Req::default()
    }
}

/// A REQ with its addresses in path and IP CM header.
fn between(req: Req, src: IpAddr, src_port: u16, dst: IpAddr) -> Req {
    Req {
        primary: Path { local_gid: src, remote_gid: dst, ..req.primary },
        private_data: PrivateData::with_header(&CmaHeader { src_port, src, dst }, &[]).unwrap(),
        ..req
    }
}

fn wanted() -> Vec<Datagram> {
    let fpga = v4(192, 170, 1, 50);
    let connectx = Req {
        local_comm_id: CommId(0x35b7_fe57),
        vendor_id: 0x15b3,
        service_id: ServiceId::new(PortSpace::Tcp, 0x6b13),
        local_ca_guid: Guid(0xb859_9f03_0007_7e2a),
        local_qpn: Qpn::new(0x144),
        remote_cm_response_timeout: 22,
        starting_psn: Psn::new(0xcf_7bf6),
        local_cm_response_timeout: 22,
        primary: Path { flow_label: 0x5_ba59, ack_timeout: 18, ..req().primary },
        ..req()
    };
    let rxe = Req {
        local_comm_id: CommId(0x407e_c9f2),
        service_id: ServiceId::new(PortSpace::Tcp, 0x1c06),
        local_ca_guid: Guid(0x227b_d2ff_fe93_899a),
        local_qpn: Qpn::new(0x15),
        responder_resources: 1,
        remote_cm_response_timeout: 20,
        starting_psn: Psn::new(0x4b_1dd4),
        local_cm_response_timeout: 20,
        primary: Path { flow_label: 0x4_d8c6, ack_timeout: 17, ..req().primary },
        ..req()
    };
    let rping = Req {
        local_comm_id: CommId(0x9420_937f),
        service_id: ServiceId::new(PortSpace::Tcp, 7174),
        local_ca_guid: Guid(0x5054_00ff_fe12_3456),
        local_qpn: Qpn::new(0x11),
        initiator_depth: 1,
        starting_psn: Psn::new(0x5b_1b95),
        path_mtu: 5,
        primary: Path { flow_label: 0xa_8890, ack_timeout: 19, ..req().primary },
        ..rxe
    };
    let rtu = |local| {
        Rtu { local_comm_id: CommId(local), remote_comm_id: CommId(0xfedc_abed), ..Rtu::default() }.into()
    };
    let dreq = Dreq {
        local_comm_id: CommId(0x407e_c9f2),
        remote_comm_id: CommId(0xfedc_abed),
        remote_qpn: Qpn::new(0xde_aded),
        ..Dreq::default()
    };
    let rej = Rej {
        local_comm_id: CommId(0x9420_937f),
        message: Concerns::Other,
        info_len: 8,
        reason: RejectReason::TIMEOUT,
        info: PrivateData::new(&0x5054_00ff_fe12_3456_u64.to_be_bytes()).unwrap(),
        ..Rej::default()
    };
    let host = v4(192, 170, 1, 2);
    let rping: Message = between(rping, v4(10, 99, 0, 2), 0xda36, v4(10, 99, 0, 1)).into();
    [
        (0x3_57fe_b735, between(connectx, host, 0xaffa, fpga).into()),
        (0x3_57fe_b735, rtu(0x35b7_fe57)),
        (0x2_f2c9_7e40, between(rxe, host, 0xab40, fpga).into()),
        (0x2_f2c9_7e40, rtu(0x407e_c9f2)),
        (0x2_f2c9_7e40, dreq.into()),
        (0x2_7f93_2094, rping),
        (0x2_7f93_2094, rping),
        (0x2_7f93_2094, rej.into()),
    ]
    .map(|(transaction, message)| Datagram { transaction, modifier: 0, message })
    .to_vec()
}

#[test]
fn recorded_messages_say_what_was_meant() {
    let mads = mads();
    let wanted = wanted();
    assert_eq!(mads.len(), wanted.len());
    for (mad, wanted) in mads.iter().zip(wanted) {
        assert_eq!(Datagram::parse(mad).as_ref(), Ok(&wanted));
        assert_eq!(wanted.emit()[..], mad[..MAD_LEN], "bit for bit");
    }
}

#[test]
fn recorded_requests_by_meaning() {
    let Message::Req(req) = Datagram::parse(&mads()[0]).unwrap().message else { panic!("not a REQ") };
    assert_eq!(req.mtu(), Some(Mtu::M1024));
    assert_eq!(req.service_id.port(), Some((PortSpace::Tcp, 27_411)));
    assert_eq!(req.local_ca_guid.to_string(), "b859:9f03:0007:7e2a");
    let (header, data) = req.private_data.split_header().unwrap();
    assert_eq!((header.src, header.dst), (v4(192, 170, 1, 2), v4(192, 170, 1, 50)));
    assert_eq!(data, [0; 56]);
    // The formula by which the sender made flow label and UDP source port (64079) of its ports.
    let label = (u32::from(header.src_port) * 31 + 27_411) & 0xf_ffff;
    assert_eq!(label, req.primary.flow_label);
    assert_eq!(0xc000 | ((label & 0x3fff) ^ (label >> 14)), 64_079);
    let Message::Rej(rej) = Datagram::parse(&mads()[7]).unwrap().message else { panic!("not a REJ") };
    assert_eq!(rej.info(), 0x5054_00ff_fe12_3456_u64.to_be_bytes());
    assert_eq!(rej.reason.to_string(), "timeout (4)");
}

#[test]
fn messages_print_in_one_line() {
    assert_eq!(
        Datagram::parse(&mads()[4]).unwrap().to_string(),
        "DREQ tid 0x00000002f2c97e40 local_comm_id 0x407ec9f2 remote_comm_id 0xfedcabed remote_qpn 0xdeaded \
         private_data [0/220]"
    );
}
