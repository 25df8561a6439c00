//! `rxe devices`: what ibv_devices and ibv_devinfo show.

use crate::{Result, output};
use rxe_verbs::{Device, Mtu, PortState, VENDOR_ID, VENDOR_PART_ID, devices, host::HostConfig, limits};
use std::fmt::Write;

/// List the devices: one for each network interface
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show limits and all GIDs too
    #[arg(short, long)]
    verbose: bool,
    /// Only this device (rxe0) or network interface (eth0)
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let list = match &args.name {
        Some(name) => vec![Device::find(name)?],
        None => devices()?,
    };
    if list.is_empty() {
        return Err(
            "there is no device: no interface has a usable IP address; `ip link set lo up` makes one".into(),
        );
    }
    let pkeys = HostConfig::load()?.pkeys;
    if args.json {
        let list: Vec<_> = list.iter().map(|device| json(device, &pkeys)).collect();
        output::json(&list)?;
        return Ok(());
    }
    for device in &list {
        out!("{}", describe(device, &pkeys, args.verbose));
    }
    Ok(())
}

fn guid(device: &Device) -> String {
    let guid = device.guid();
    let groups: Vec<_> = guid.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":")
}

const fn state(device: &Device) -> (&'static str, u8) {
    match device.state() {
        PortState::Down => ("PORT_DOWN", 1),
        PortState::Active => ("PORT_ACTIVE", 4),
    }
}

fn mtu(mtu: Mtu) -> String {
    format!("{} ({})", mtu.bytes(), mtu.code())
}

/// The layout is ibv_devinfo's, so that scripts which read that can read this.
fn describe(device: &Device, pkeys: &[u16], verbose: bool) -> String {
    let mut text = String::new();
    let mut line = |depth: usize, name: &str, value: &str| {
        let tabs = "\t".repeat(depth);
        // Writing to a string does not fail.
        let _ = writeln!(text, "{tabs}{:<32}{value}", format!("{name}:"));
    };
    line(0, "hca_id", device.name());
    line(1, "transport", "InfiniBand (0)");
    line(1, "fw_ver", env!("CARGO_PKG_VERSION"));
    line(1, "node_guid", &guid(device));
    line(1, "sys_image_guid", &guid(device));
    line(1, "vendor_id", &format!("{VENDOR_ID:#06x}"));
    line(1, "vendor_part_id", &VENDOR_PART_ID.to_string());
    line(1, "netdev", device.netdev());
    line(1, "phys_port_cnt", "1");
    if verbose {
        for (name, value) in limit_table() {
            line(1, name, &value.to_string());
        }
    }
    line(2, "port", "1");
    let (word, code) = state(device);
    line(3, "state", &format!("{word} ({code})"));
    line(3, "max_mtu", &mtu(Mtu::M4096));
    line(3, "active_mtu", &mtu(device.active_mtu()));
    line(3, "sm_lid", "0");
    line(3, "port_lid", "0");
    line(3, "port_lmc", "0x00");
    line(3, "link_layer", "Ethernet");
    let gids = device.gids();
    if verbose {
        line(3, "gid_tbl_len", &gids.len().to_string());
        line(3, "pkey_tbl_len", &pkeys.len().to_string());
        for (index, key) in pkeys.iter().enumerate() {
            line(3, &format!("PKey[{index:3}]"), &format!("{key:#06x}"));
        }
    }
    for index in 0..u8::try_from(gids.len()).unwrap_or(u8::MAX) {
        let gid = gids.get(index);
        let Some(address) = gid.address() else { continue };
        if verbose {
            line(3, &format!("GID[{index:3}]"), &format!("{gid}, RoCE v2, {address}"));
        } else {
            line(3, &format!("GID[{index:3}]"), &address.to_string());
        }
    }
    text.push('\n');
    text
}

fn limit_table() -> [(&'static str, u64); 13] {
    [
        ("max_mr_size", limits::MAX_MR_SIZE),
        ("max_qp", limits::MAX_QP.into()),
        ("max_qp_wr", limits::MAX_QP_WR.into()),
        ("max_sge", limits::MAX_SGE.into()),
        ("max_cq", limits::MAX_CQ.into()),
        ("max_cqe", limits::MAX_CQE.into()),
        ("max_mr", limits::MAX_MR.into()),
        ("max_pd", limits::MAX_PD.into()),
        ("max_qp_rd_atom", limits::MAX_RD_ATOMIC.into()),
        ("max_qp_init_rd_atom", limits::MAX_RD_ATOMIC.into()),
        ("max_mcast_grp", limits::MAX_MCAST_GRP.into()),
        ("max_ah", limits::MAX_AH.into()),
        ("max_srq", limits::MAX_SRQ.into()),
    ]
}

fn json(device: &Device, pkeys: &[u16]) -> serde_json::Value {
    let gids = device.gids();
    let gids: Vec<_> =
        (0..u8::try_from(gids.len()).unwrap_or(u8::MAX)).map(|index| gids.get(index).to_string()).collect();
    serde_json::json!({
        "name": device.name(),
        "netdev": device.netdev(),
        "guid": guid(device),
        "state": state(device).0,
        "active_mtu": device.active_mtu().bytes(),
        "addresses": device.addresses().map(|address| address.to_string()).collect::<Vec<_>>(),
        "gids": gids,
        "pkeys": pkeys,
    })
}
