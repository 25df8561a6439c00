//! `rxe path`: the path record of a destination, as `saquery -p` prints what a subnet manager answers.

use crate::{Result, output};
use rxe_cm::proto::{PortSpace, ServiceId};
use rxe_fabric::Path;
use rxe_verbs::{
    Gid, Mtu,
    host::{FoundPath, HostConfig, PathQuestion},
};
use serde_json::{Value, json};
use std::{
    fmt::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    path::PathBuf,
    str::FromStr,
};

/// The port for asking the system for the route. Nothing is sent.
const PROBE_PORT: u16 = 4791;

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
    /// For this port of rdma_cm, asked as rdma_resolve_route asks: with the port's first P_Key, and QoS class 0 (--tclass says another)
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
    /// With this traffic class, as a program sets it by RDMA_OPTION_ID_TOS: it comes before that of the lane, and over IPv4 it is the
    /// QoS class of --port
    #[arg(long, value_name = "CLASS", value_parser = number::<u8>)]
    tclass: Option<u8>,
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

pub(crate) fn run(args: &Args) -> Result<()> {
    let config = match &args.config {
        Some(path) => HostConfig::read(path)?,
        None => HostConfig::load()?,
    };
    let fabric = config.host_fabric();
    for warning in fabric.warnings() {
        eprintln!("rxe: {warning}");
    }
    // A GID may be that of an IPv4 address.
    let dest = args.dest.to_canonical();
    let from = match args.from {
        Some(from) => from.to_canonical(),
        None => source_for(dest)?,
    };
    if from.is_ipv4() != dest.is_ipv4() {
        return Err(format!("no path from {from} to {dest}: they are of different IP versions").into());
    }
    let space = match args.space {
        Space::Tcp => PortSpace::Tcp,
        Space::Udp => PortSpace::Udp,
        Space::Ib => PortSpace::Ib,
        Space::Ipoib => PortSpace::Ipoib,
    };
    let service_id = args.port.map(|port| ServiceId::new(space, port).0).or(args.service_id);
    let classed = args.port.is_some() && dest.is_ipv4();
    let (ends, question) = (
        (from, dest),
        PathQuestion {
            from,
            to: dest,
            service_id,
            pkey: args.pkey,
            qos_class: args.qos_class.or_else(|| classed.then(|| args.tclass.unwrap_or(0).into())),
            sl: args.sl,
            as_rdma_cm: args.port.is_some() && args.pkey.is_none(),
        },
    );
    let found = config.path_between(&question);
    let FoundPath { mut path, packet_life: life } =
        found.map_err(|why| format!("no path from {from} to {dest}: {why}"))?;
    path.traffic_class = args.tclass.unwrap_or(path.traffic_class);
    if args.json {
        return output::json(&shown(&path, life, service_id, ends));
    }
    out!("{}", dump(&path, life, service_id, ends));
    Ok(())
}

/// The address by which the system reaches another.
/// The address of this host by which it reaches another.
pub(crate) fn source_for(dest: IpAddr) -> Result<IpAddr> {
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

fn shown(path: &Path, life: u8, service_id: Option<u64>, (from, to): (IpAddr, IpAddr)) -> Value {
    json!({
        "sgid": gid(from).to_string(),
        "dgid": gid(to).to_string(),
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

/// The layout is that of saquery, so that scripts can read it. What RoCE adds is at the end.
fn dump(path: &Path, life: u8, service_id: Option<u64>, (from, to): (IpAddr, IpAddr)) -> String {
    // "Exactly", in the upper two bits.
    const EXACTLY: u8 = 0x80;
    let mut text = "PathRecord dump:\n".to_owned();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\t\t{name:.<24}{value}");
    };
    line("service_id", format!("{:#018x}", service_id.unwrap_or(0)));
    line("dgid", gid(to).to_string());
    line("sgid", gid(from).to_string());
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
