//! The RDMA side: the device, the datagram queue pair and receive buffers.

use crate::{
    Error, Options,
    pool::Pool,
    proto::{address::LinkAddress, encap, group},
};
use rxe_verbs::{
    AddressVector, CompChannel, Context, Cq, Device, Gid, GidType, Pd, Psn, Qkey, Qp, QpCaps, QpChange,
    QpInit, QpState, QpType, Qpn, RecvWr, UdDest,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
};

/// The Q_Key of the broadcast group, and so of all interfaces. OpenSM uses this value.
const QKEY: Qkey = Qkey(0x0b1b);
/// Bytes before each received datagram: room for the network header (IBTA vol. 1, 10.8.3).
pub(crate) const GRH: usize = 40;
/// Receive buffers for datagrams.
const RECEIVES: u32 = 1024;
/// Most datagrams under way.
pub(crate) const SENDS: u32 = 512;
/// Address handles to neighbours that are kept.
const MOST_WAYS: usize = 2048;

/// The mode of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// As datagrams (RFC 4391): the MTU is the port's, less 4.
    #[default]
    Datagram,
    /// Over reliable connections to neighbours that accept them (RFC 4755): an MTU of 65520.
    Connected,
}

/// The device and queue pair of an interface.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) channel: CompChannel,
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) arrivals: Pool,
    pub(crate) gid_index: u8,
    pub(crate) pkey: u16,
    pub(crate) pkey_index: u16,
    /// Our link-layer address.
    pub(crate) address: LinkAddress,
    /// Longest IP packet in a datagram.
    pub(crate) mtu: u16,
    ways: HashMap<Ipv6Addr, AddressVector>,
}

impl Port {
    /// Opens a device and creates the datagram queue pair. The completion queue also has room for `more` completions of other
    /// queue pairs.
    pub(crate) fn open(options: &Options, more: u32) -> Result<Self, Error> {
        let device = match &options.device {
            Some(name) => Device::find(name)?,
            None => Device::first()?,
        };
        Self::on(Context::open(&device)?, options, more)
    }

    /// The same on a device that is open.
    pub(crate) fn on(context: Context, options: &Options, more: u32) -> Result<Self, Error> {
        let (gid_index, gid) = choose_gid(&context, options.gid_index)?;
        let (pkey, pkey_index) = choose_pkey(&context, options.pkey)?;
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq(RECEIVES + SENDS + more, Some(&channel))?;
        let caps = QpCaps {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let qp = pd.create_qp(&QpInit { caps, signal_all: true, ..QpInit::new(QpType::Ud, &cq) })?;
        let none = QpChange::default();
        for change in [
            QpChange {
                state: Some(QpState::Init),
                pkey_index: Some(pkey_index),
                port: Some(1),
                qkey: Some(QKEY),
                ..none
            },
            QpChange { state: Some(QpState::Rtr), ..none },
            QpChange { state: Some(QpState::Rts), sq_psn: Some(Psn::new(0)), ..none },
        ] {
            qp.modify(&change)?;
        }
        let bytes = context.port().active_mtu.bytes();
        let mtu = u16::try_from(bytes as usize - encap::LEN).unwrap_or(u16::MAX);
        let arrivals = Pool::new(&pd, RECEIVES, GRH + bytes as usize)?;
        let connected = options.mode == Mode::Connected;
        let address = LinkAddress { connected, qpn: qp.qpn().value(), gid: Ipv6Addr::from(gid.0) };
        let ways = HashMap::new();
        let port =
            Self { context, pd, channel, cq, qp, arrivals, gid_index, pkey, pkey_index, address, mtu, ways };
        port.receive(0..RECEIVES);
        Ok(port)
    }

    /// Posts receive slots.
    pub(crate) fn receive(&self, slots: impl Iterator<Item = u32>) {
        let len = GRH + encap::LEN + usize::from(self.mtu);
        let slots: Vec<_> = slots.map(|slot| (slot, [self.arrivals.sge(slot, len)])).collect();
        let list: Vec<_> = slots
            .iter()
            .map(|(slot, sges)| RecvWr { wr_id: crate::interface::Work::Datagram.id(*slot), sges })
            .collect();
        // The queue has as many places as there are slots.
        let _ = self.qp.post_recv_list(&list);
    }

    /// Whether the port's addresses are IPv4.
    fn is_ipv4(&self) -> bool {
        self.address.gid.to_ipv4_mapped().is_some()
    }

    /// The GID that a group has on the wire.
    pub(crate) fn carrier(&self, mgid: Ipv6Addr) -> Gid {
        if self.is_ipv4() { Gid::from(IpAddr::V4(group::carrier(mgid))) } else { Gid(mgid.octets()) }
    }

    /// The address handle for datagrams to a group.
    pub(crate) fn group_dest(&mut self, mgid: Ipv6Addr) -> Option<UdDest> {
        let gid = self.carrier(mgid);
        let av = self.way(gid)?;
        Some(UdDest { av, remote_qpn: Qpn::MULTICAST, remote_qkey: QKEY, pkey: None })
    }

    /// The address handle for datagrams to a neighbour; `None` if its address is of the other IP version.
    pub(crate) fn dest(&mut self, neighbour: LinkAddress) -> Option<UdDest> {
        let av = self.way(Gid(neighbour.gid.octets()))?;
        Some(UdDest { av, remote_qpn: Qpn::new(neighbour.qpn), remote_qkey: QKEY, pkey: None })
    }

    fn way(&mut self, gid: Gid) -> Option<AddressVector> {
        let key = Ipv6Addr::from(gid.0);
        if let Some(&av) = self.ways.get(&key) {
            return Some(av);
        }
        let av = self.context.address_vector(self.gid_index, gid).ok()?;
        if self.ways.len() >= MOST_WAYS {
            self.ways.clear();
        }
        // Groups are on this link. Neighbours may be behind a router.
        let av = AddressVector { hop_limit: if key.is_multicast() { 1 } else { 64 }, ..av };
        self.ways.insert(key, av);
        Some(av)
    }
}

/// The GID that was asked for; else the link-local address, which IPoIB's GIDs are by nature, else the first.
fn choose_gid(context: &Context, wanted: Option<u8>) -> Result<(u8, Gid), Error> {
    let gids = context.gids();
    let index = wanted.unwrap_or_else(|| {
        let local = |gid: &Gid| matches!(gid.address(), Some(IpAddr::V6(v6)) if v6.is_unicast_link_local());
        let found = gids.iter().find(|(index, gid)| local(gid) && gids.gid_type(*index) == GidType::RoceV2);
        found.map_or(0, |(index, _)| index)
    });
    let gid = gids.get(index);
    if gid.is_zero() {
        return Err(Error::Gid { device: context.device().name().to_owned(), index });
    }
    Ok((index, gid))
}

/// The key of the table that is in the partition asked for, or the first.
fn choose_pkey(context: &Context, wanted: Option<u16>) -> Result<(u16, u16), Error> {
    let table = context.pkeys();
    let partition = |key: u16| key & 0x7fff;
    let place = match wanted {
        None => 0,
        Some(key) => table.iter().position(|own| partition(own.0) == partition(key)).ok_or_else(|| {
            let table: Vec<_> = table.iter().map(|own| format!("{:#06x}", own.0)).collect();
            let device = context.device().name().to_owned();
            Error::Pkey { wanted: key, device, table: table.join(" ") }
        })?,
    };
    let key = table.get(place).copied().unwrap_or_default();
    Ok((key.0, u16::try_from(place).unwrap_or(0)))
}
