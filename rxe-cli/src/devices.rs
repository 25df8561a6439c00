//! `rxe devices`: shows what ibv_devices and ibv_devinfo show.

use crate::{
    Result,
    listing::{FIRMWARE, Listed, listed},
    output,
};
use rxe_verbs::{Mtu, VENDOR_ID, VENDOR_PART_ID, host::HostConfig, limits};
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
    let list = listed(args.name.as_deref())?;
    if list.is_empty() {
        return Err(
            "there is no device: no interface has a usable IP address; `ip link set lo up` makes one".into(),
        );
    }
    let config = HostConfig::load()?;
    if args.json {
        let list: Vec<_> = list.iter().map(|device| device.json(config.pkeys_of(&device.netdev))).collect();
        output::json(&list)?;
        return Ok(());
    }
    for device in &list {
        out!("{}", describe(device, config.pkeys_of(&device.netdev), args.verbose));
    }
    Ok(())
}

fn mtu((bytes, code): (u32, u8)) -> String {
    format!("{bytes} ({code})")
}

/// The layout is that of ibv_devinfo, so that scripts can read it.
fn describe(device: &Listed, pkeys: &[u16], verbose: bool) -> String {
    let mut text = String::new();
    let mut line = |depth: usize, name: &str, value: &str| {
        let tabs = "\t".repeat(depth);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{tabs}{:<32}{value}", format!("{name}:"));
    };
    line(0, "hca_id", &device.name);
    line(1, "transport", "InfiniBand (0)");
    line(1, "fw_ver", FIRMWARE);
    line(1, "node_guid", &device.guid);
    line(1, "sys_image_guid", &device.guid);
    line(1, "vendor_id", &format!("{VENDOR_ID:#06x}"));
    line(1, "vendor_part_id", &VENDOR_PART_ID.to_string());
    line(1, "netdev", &device.netdev);
    line(1, "phys_port_cnt", "1");
    if verbose {
        for (name, value) in limit_table() {
            line(1, name, &value.to_string());
        }
    }
    line(2, "port", "1");
    line(3, "state", &format!("{} ({})", device.state.verbs, device.state.code));
    line(3, "max_mtu", &mtu((Mtu::M4096.bytes(), Mtu::M4096.code())));
    line(3, "active_mtu", &mtu(device.mtu));
    line(3, "sm_lid", "0");
    line(3, "port_lid", "0");
    line(3, "port_lmc", "0x00");
    line(3, "link_layer", "Ethernet");
    if verbose {
        line(3, "gid_tbl_len", &device.gids.len().to_string());
        line(3, "pkey_tbl_len", &pkeys.len().to_string());
        for (index, key) in pkeys.iter().enumerate() {
            line(3, &format!("PKey[{index:3}]"), &format!("{key:#06x}"));
        }
    }
    for (index, (gid, address, kind)) in device.gids.iter().enumerate() {
        let Some(address) = address else { continue };
        if verbose {
            line(3, &format!("GID[{index:3}]"), &format!("{gid}, {kind}, {address}"));
        } else {
            line(3, &format!("GID[{index:3}]"), address);
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
