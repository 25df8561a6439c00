//! `show_gids` and `ibdev2netdev`, two small programs that come with vendors' drivers. Under `rxe run` programs with these
//! names lead here. The columns are those of the vendors' programs, because scripts read them.

use crate::{
    Result,
    listing::{FIRMWARE, Listed, listed},
};

/// A device has one port.
const PORT: u8 = 1;

/// The GID tables: device, port, index, GID, its IPv4 address, version of RoCE, interface
#[derive(Debug, clap::Args)]
pub(crate) struct GidsArgs {
    /// Only this device
    #[arg(value_name = "DEV")]
    device: Option<String>,
    /// Only this port of it
    #[arg(value_name = "PORT")]
    port: Option<u8>,
}

/// Which device belongs to which network interface
#[derive(Debug, clap::Args)]
pub(crate) struct NetdevsArgs {
    /// Kind and firmware of the device, and the state of its port, too
    #[arg(short)]
    verbose: bool,
}

pub(crate) fn gids(args: &GidsArgs) -> Result<()> {
    if let Some(other) = args.port.filter(|port| *port != PORT) {
        return Err(format!("there is no port {other}: a device has one, {PORT}").into());
    }
    outln!("DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV");
    outln!("---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---");
    let mut count = 0;
    for device in listed(args.device.as_deref())? {
        for line in gid_lines(&device) {
            outln!("{line}");
            count += 1;
        }
    }
    outln!("n_gids_found={count}");
    Ok(())
}

fn gid_lines(device: &Listed) -> Vec<String> {
    let line = |(index, (gid, address, kind)): (usize, &(String, Option<String>, _))| {
        let address = address.as_ref()?;
        // An IPv6 address is the GID itself.
        let v4 = if address.contains(':') { "\t" } else { &format!("{address}  ") };
        let kind = kind_of(*kind);
        Some(format!("{}\t{PORT}\t{index}\t{gid}\t{v4}\t{kind}\t{}", device.name, device.netdev))
    };
    device.gids.iter().enumerate().filter_map(line).collect()
}

const fn kind_of(kind: rxe_verbs::GidType) -> &'static str {
    match kind {
        rxe_verbs::GidType::RoceV1 => "v1",
        rxe_verbs::GidType::RoceV2 => "v2",
    }
}

pub(crate) fn netdevs(args: &NetdevsArgs) -> Result<()> {
    for device in listed(None)? {
        let Listed { name, netdev, state, .. } = &device;
        let is_up = if state.short == "ACTIVE" { "Up" } else { "Down" };
        if args.verbose {
            outln!(
                "{name} (rxe - software device) fw {FIRMWARE} port {PORT} ({}) ==> {netdev} ({is_up})",
                state.short
            );
        } else {
            outln!("{name} port {PORT} ==> {netdev} ({is_up})");
        }
    }
    Ok(())
}
