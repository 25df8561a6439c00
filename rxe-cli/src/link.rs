//! `rxe link show`: the devices in the words of rdma(8).

use crate::Result;
use rxe_verbs::{Device, PortState, devices};
use serde_json::json;

/// The devices as `rdma link show` prints them
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show all links, or one
    Show {
        /// Only this one: rxe0 or rxe0/1
        #[arg(value_name = "LINK")]
        link: Option<String>,
        /// Print JSON
        #[arg(short, long)]
        json: bool,
    },
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (link, json) = match &args.action {
        Some(Action::Show { link, json }) => (link.as_deref(), *json),
        None => (None, false),
    };
    show(link, json)
}

/// One link, or all.
pub(crate) fn show(link: Option<&str>, json: bool) -> Result<()> {
    let list = match link {
        // A device has one port.
        Some(name) => vec![Device::find(name.strip_suffix("/1").unwrap_or(name))?],
        None => devices()?,
    };
    if json {
        let list: Vec<_> = list.iter().map(as_json).collect();
        println!("{}", serde_json::to_string(&list)?);
        return Ok(());
    }
    for device in &list {
        let (state, physical) = states(device);
        println!(
            "link {}/1 state {state} physical_state {physical} netdev {} ",
            device.name(),
            device.netdev()
        );
    }
    Ok(())
}

const fn states(device: &Device) -> (&'static str, &'static str) {
    match device.state() {
        PortState::Active => ("ACTIVE", "LINK_UP"),
        PortState::Down => ("DOWN", "DISABLED"),
    }
}

fn as_json(device: &Device) -> serde_json::Value {
    let (state, physical) = states(device);
    json!({
        "ifname": device.name(), "port": 1, "state": state, "physical_state": physical, "netdev": device.netdev(),
    })
}
