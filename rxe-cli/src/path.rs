//! `rxe path`: the path record of a destination, as `saquery -p` prints what a subnet manager answers.

use crate::{Result, output};
use rxe_cm::proto::{PortSpace, ServiceId};
use rxe_fabric::{Path, PathQuery, Port};
use rxe_verbs::{
    Device, Gid, Mtu, Pkey,
    host::{HostConfig, HostFabric},
};
use serde_json::{Value, json};
use std::{
    fmt::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    path::PathBuf,
    str::FromStr,
};

/// Where to the system is asked for the way; nothing is sent.
const PROBE_PORT: u16 = 4791;
/// How long a packet lives where no file says so: what rdma_cm takes on Ethernet.
const PACKET_LIFE: u8 = 16;

/// Show the path record of a destination: the service level, lane, traffic class and P_Key that connections to it have
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address, or GID in IPv6 form
    #[arg(value_name = "DEST")]
    dest: IpAddr,
    /// Ask from this address; without it, from the one by which this host reaches the destination
    #[arg(long, value_name = "ADDR")]
    from: Option<IpAddr>,
    /// For this service ID (0x... or decimal)
    #[arg(long, value_name = "ID", value_parser = number::<u64>, conflicts_with = "port")]
    service_id: Option<u64>,
    /// For this port of rdma_cm, asked as rdma_resolve_route asks: with the port's first P_Key, and QoS class 0
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Port space of --port
    #[arg(long, value_enum, default_value_t = Space::Tcp, requires = "port")]
    space: Space,
    /// In the partition of this P_Key
    #[arg(long, value_name = "KEY", value_parser = number::<u16>)]
    pkey: Option<u16>,
    /// Of this QoS class
    #[arg(long, value_name = "CLASS", value_parser = number::<u16>)]
    qos_class: Option<u16>,
    /// With this service level only
    #[arg(long, value_name = "SL", value_parser = clap::value_parser!(u8).range(0..16))]
    sl: Option<u8>,
    /// The configuration to ask, in place of the host's
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A port space of rdma_cm.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Space {
    Tcp,
    Udp,
    Ib,
    Ipoib,
}

fn number<T: TryFrom<u64>>(text: &str) -> std::result::Result<T, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let parsed = match digits {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => u64::from_str(text),
    };
    let number = parsed.map_err(|error| error.to_string())?;
    T::try_from(number).map_err(|_| format!("{number} is too large"))
}

/// An end of the path.
struct End {
    address: IpAddr,
    port: Port,
    device: Option<Device>,
}

impl End {
    fn new(address: IpAddr, fabric: &HostFabric) -> Self {
        let device =
            Device::of_address(address).ok().filter(|device| device.addresses().any(|ip| ip == address));
        let port = fabric.port(address, device.as_ref().map(Device::guid));
        Self { address, port, device }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let config = match &args.config {
        Some(path) => HostConfig::read(path)?,
        None => HostConfig::load()?,
    };
    let fabric = config.host_fabric();
    for warning in fabric.warnings() {
        eprintln!("rxe: {warning}");
    }
    let from = match args.from {
        Some(from) => from,
        None => source_for(args.dest)?,
    };
    let (from, to) = (End::new(from, &fabric), End::new(args.dest, &fabric));
    let space = match args.space {
        Space::Tcp => PortSpace::Tcp,
        Space::Udp => PortSpace::Udp,
        Space::Ib => PortSpace::Ib,
        Space::Ipoib => PortSpace::Ipoib,
    };
    let service_id = args.port.map(|port| ServiceId::new(space, port).0).or(args.service_id);
    let as_rdma_cm = args.port.is_some() && args.pkey.is_none();
    let classed = args.port.is_some() && args.dest.is_ipv4();
    let query = PathQuery {
        from: &from.port,
        to: &to.port,
        service_id,
        qos_class: args.qos_class.or_else(|| classed.then_some(0)),
        pkey: args.pkey,
        sl: args.sl,
        mtu: from.device.as_ref().map_or(Mtu::M4096, Device::active_mtu).code(),
        rate: 0,
    };
    let table = match &from.device {
        Some(device) => config.pkeys_of(device.netdev()),
        None => &config.pkeys,
    };
    let table: Vec<Pkey> = table.iter().copied().map(Pkey).collect();
    let found = if as_rdma_cm { fabric.path(&query, &table) } else { fabric.fabric().path(&query) };
    let mut path = found.map_err(|why| format!("no path from {} to {}: {why}", from.address, to.address))?;
    if let Some(rule) = service_id.and_then(|id| config.rule_for(id)) {
        (path.sl, path.traffic_class) = (rule.sl, rule.traffic_class);
        path.vl = fabric.fabric().lanes().vl(rule.sl).unwrap_or(path.vl);
        (path.level, path.rule_line) = (Some("[[service_level]] of the configuration".to_owned()), None);
    }
    // A port is no way from itself (IBTA vol. 1, table 205).
    let usual = if from.port == to.port { 0 } else { PACKET_LIFE };
    let life = path.packet_life.unwrap_or(usual);
    if args.json {
        return output::json(&shown(&path, life, service_id, &from, &to));
    }
    out!("{}", dump(&path, life, service_id, &from, &to));
    Ok(())
}

/// The address by which the system reaches another.
fn source_for(dest: IpAddr) -> Result<IpAddr> {
    let any: IpAddr =
        if dest.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let probe = || -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((dest, PROBE_PORT))?;
        Ok(socket.local_addr()?.ip())
    };
    probe().map_err(|error| format!("no way to {dest}: {error}; name the other end by --from").into())
}

fn gid(address: IpAddr) -> Ipv6Addr {
    Ipv6Addr::from(Gid::from(address).0)
}

fn shown(path: &Path, life: u8, service_id: Option<u64>, from: &End, to: &End) -> Value {
    json!({
        "sgid": gid(from.address).to_string(),
        "dgid": gid(to.address).to_string(),
        "service_id": service_id,
        "pkey": path.pkey,
        "partition": path.partition,
        "sl": path.sl,
        "vl": path.vl,
        "traffic_class": path.traffic_class,
        "dscp": path.traffic_class >> 2,
        "mtu": path.mtu,
        "mtu_bytes": Mtu::from_code(path.mtu).map(Mtu::bytes),
        "rate": path.rate,
        "packet_life": life,
        "level": path.level,
        "rule_line": path.rule_line,
    })
}

/// The layout is saquery's, so that scripts which read that can read this; what RoCE adds is at the end.
fn dump(path: &Path, life: u8, service_id: Option<u64>, from: &End, to: &End) -> String {
    // "Exactly", in the upper two bits.
    const EXACTLY: u8 = 0x80;
    let mut text = "PathRecord dump:\n".to_owned();
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "\t\t{name:.<24}{value}");
    };
    line("service_id", format!("{:#018x}", service_id.unwrap_or(0)));
    line("dgid", gid(to.address).to_string());
    line("sgid", gid(from.address).to_string());
    line("dlid", "0 (RoCE has no LIDs)".to_owned());
    line("slid", "0".to_owned());
    line("tclass", format!("{:#x}", path.traffic_class));
    line("num_path_revers", "0x80".to_owned());
    line("pkey", format!("0x{:04X}", path.pkey));
    line("qos_class", "0x0".to_owned());
    line("sl", format!("{:#x}", path.sl));
    line("mtu", format!("{:#x}", EXACTLY | path.mtu));
    line("rate", format!("{:#x}", if path.rate == 0 { 0 } else { EXACTLY | path.rate }));
    line("pkt_life", format!("{:#x}", EXACTLY | life));
    line("virtual lane", path.vl.to_string());
    line("dscp", (path.traffic_class >> 2).to_string());
    line("partition", path.partition.clone());
    let level = match (&path.level, path.rule_line) {
        (Some(level), Some(rule)) => format!("{level} (rule in line {rule})"),
        (Some(level), None) => level.clone(),
        (None, _) => "none: there is no QoS policy".to_owned(),
    };
    line("QoS level", level);
    text
}
