//! A path in a message, and the two messages that change one in a living connection.

use crate::proto::{
    CommId, PrivateData,
    layout::{Area, Body, Field, Place, message},
};
use core::net::{IpAddr, Ipv6Addr};
use rxe_core::num::Qpn;

/// A path between two ports. "Local" is the side that sent the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// InfiniBand's local address; 0xffff or 0 on RoCE.
    pub local_lid: u16,
    /// InfiniBand's local address of the other side; 0xffff or 0 on RoCE.
    pub remote_lid: u16,
    /// Address (GID) of the sender of the message.
    pub local_gid: IpAddr,
    /// Address (GID) of its receiver.
    pub remote_gid: IpAddr,
    /// Flow label, 20 bits. On RoCE the UDP source port follows from it.
    pub flow_label: u32,
    /// Packet rate code, 6 bits.
    pub packet_rate: u8,
    /// Traffic class: the IP TOS.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Whether both are in one subnet.
    pub subnet_local: bool,
    /// Local ACK timeout, 4.096 us << code, 5 bits.
    pub ack_timeout: u8,
}

impl Default for Path {
    /// All zero: no path.
    fn default() -> Self {
        Self {
            local_lid: 0,
            remote_lid: 0,
            local_gid: Ipv6Addr::UNSPECIFIED.into(),
            remote_gid: Ipv6Addr::UNSPECIFIED.into(),
            flow_label: 0,
            packet_rate: 0,
            traffic_class: 0,
            hop_limit: 0,
            service_level: 0,
            subnet_local: false,
            ack_timeout: 0,
        }
    }
}

/// Where each part of a path lies, counted from the path's start. The first 36 bytes are the same in both messages.
struct Shape {
    packet_rate: usize,
    traffic_class: usize,
    hop_limit: usize,
}

const IN_REQ: Shape = Shape { packet_rate: 39, traffic_class: 40, hop_limit: 41 };
const IN_LAP: Shape = Shape { packet_rate: 41, traffic_class: 39, hop_limit: 40 };

impl Shape {
    fn read(&self, at: usize, body: &Body) -> Path {
        let byte = |offset: usize| Field::bytes(at + offset..at + offset + 1);
        Path {
            local_lid: Field::bytes(at..at + 2).read(body),
            remote_lid: Field::bytes(at + 2..at + 4).read(body),
            local_gid: Area(at + 4).read(body),
            remote_gid: Area(at + 20).read(body),
            flow_label: Field::upper20(at + 36).read(body),
            packet_rate: Field::bits(at + self.packet_rate, 5, 0).read(body),
            traffic_class: byte(self.traffic_class).read(body),
            hop_limit: byte(self.hop_limit).read(body),
            service_level: Field::bits(at + 42, 7, 4).read(body),
            subnet_local: Field::bits(at + 42, 3, 3).read(body),
            ack_timeout: Field::bits(at + 43, 7, 3).read(body),
        }
    }

    fn write(&self, at: usize, body: &mut Body, path: &Path) {
        let byte = |offset: usize| Field::bytes(at + offset..at + offset + 1);
        Field::bytes(at..at + 2).write(body, &path.local_lid);
        Field::bytes(at + 2..at + 4).write(body, &path.remote_lid);
        Area(at + 4).write(body, &path.local_gid);
        Area(at + 20).write(body, &path.remote_gid);
        Field::upper20(at + 36).write(body, &path.flow_label);
        Field::bits(at + self.packet_rate, 5, 0).write(body, &path.packet_rate);
        byte(self.traffic_class).write(body, &path.traffic_class);
        byte(self.hop_limit).write(body, &path.hop_limit);
        Field::bits(at + 42, 7, 4).write(body, &path.service_level);
        Field::bits(at + 42, 3, 3).write(body, &path.subnet_local);
        Field::bits(at + 43, 7, 3).write(body, &path.ack_timeout);
    }
}

/// A path as REQ holds it, from this byte on.
pub(super) struct ReqPath(pub(super) usize);

impl Place<Path> for ReqPath {
    fn read(&self, body: &Body) -> Path {
        IN_REQ.read(self.0, body)
    }

    fn write(&self, body: &mut Body, path: &Path) {
        IN_REQ.write(self.0, body, path);
    }
}

/// A path as LAP holds it, from this byte on.
struct LapPath(usize);

impl Place<Path> for LapPath {
    fn read(&self, body: &Body) -> Path {
        IN_LAP.read(self.0, body)
    }

    fn write(&self, body: &mut Body, path: &Path) {
        IN_LAP.write(self.0, body, path);
    }
}

message! {
    /// LAP, "load alternate path": the active side names another path. Kernels ignore it on RoCE. 168 bytes of private data.
    Lap {
        /// The sender's number for the connection.
        local_comm_id: CommId = Field::bytes(0..4),
        /// The receiver's number for the connection.
        remote_comm_id: CommId = Field::bytes(4..8),
        /// The receiver's queue pair.
        remote_qpn: Qpn = Field::bytes(12..15),
        /// How long the receiver may take to answer, 4.096 us << code.
        remote_cm_response_timeout: u8 = Field::bits(15, 7, 3),
        /// The path.
        alternate: Path = LapPath(20),
        /// Private data.
        private_data: PrivateData<168> = Area(64),
    }
}

message! {
    /// APR, "alternate path response": the answer to LAP. Kernels ignore it on RoCE. 148 bytes of private data.
    Apr {
        /// The sender's number for the connection.
        local_comm_id: CommId = Field::bytes(0..4),
        /// The receiver's number for the connection.
        remote_comm_id: CommId = Field::bytes(4..8),
        /// Bytes of `info` that are valid.
        info_len: u8 = Field::bytes(8..9),
        /// 0 if the path was loaded, else why not.
        status: u8 = Field::bytes(9..10),
        /// More about the status.
        info: PrivateData<72> = Area(12),
        /// Private data.
        private_data: PrivateData<148> = Area(84),
    }
}
