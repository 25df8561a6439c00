//! `rxe fabric`: who is there, as far as this host knows without asking: its own devices, hosts that programs have connected
//! with, and those that the configuration names.

use crate::{
    Result,
    listing::{Listed, listed},
    output,
};
use rxe_fabric::mad::lid_of;
use rxe_verbs::{
    Device,
    host::{HostConfig, KnownPort, Observer, PeerReport},
};
use serde_json::{Value, json};
use std::{fmt::Write, net::IpAddr};

/// Show who is there: this host's devices, hosts that connections were made with, and ports that the configuration names.
/// Nothing is sent
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Another host.
struct Other<'a> {
    met: Option<&'a PeerReport>,
    named: Option<&'a KnownPort>,
}

impl Other<'_> {
    fn addresses(&self) -> Vec<IpAddr> {
        let met = self.met.map(|met| met.address);
        let named = self.named.into_iter().flat_map(|named| named.addresses.iter().copied());
        let mut all: Vec<_> = met.into_iter().chain(named).collect();
        all.dedup();
        all
    }

    fn guid(&self) -> u64 {
        let named = || self.named.and_then(|named| named.port.guids.first().copied());
        self.met.map(|met| met.guid).or_else(named).unwrap_or(0)
    }

    /// LID, by the first address.
    fn lid(&self) -> u16 {
        self.addresses().first().map_or(0, |address| lid_of(*address))
    }

    fn name(&self) -> &str {
        self.named.map_or("", |named| &named.port.name)
    }

    fn json(&self) -> Value {
        json!({
            "addresses": self.addresses(), "guid": in_groups(self.guid()), "lid": self.lid(), "name": self.name(),
            "pkeys": self.met.map(|met| &met.pkeys), "seconds": self.met.map(|met| met.seconds),
        })
    }

    fn line(&self) -> String {
        let addresses: Vec<_> = self.addresses().iter().map(ToString::to_string).collect();
        let guid = in_groups(self.guid());
        let mut text = format!("  {}  lid {}  guid {guid}", addresses.join(" "), self.lid());
        if !self.name().is_empty() {
            // Writing to a string does not fail.
            let _ = write!(text, "  \"{}\"", self.name());
        }
        match self.met {
            Some(met) => {
                let _ = write!(text, "{}  heard of {} s ago", keys(&met.pkeys), met.seconds);
            }
            None => text.push_str("  named by the configuration, not heard of"),
        }
        text
    }
}

fn in_groups(guid: u64) -> String {
    let groups = [48, 32, 16, 0].map(|shift| format!("{:04x}", guid >> shift & 0xffff));
    groups.join(":")
}

fn keys(list: &[u16]) -> String {
    let keys: Vec<_> = list.iter().map(|key| format!(" {key:#06x}")).collect();
    if keys.is_empty() { String::new() } else { format!("  P_Keys{}", keys.concat()) }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let config = HostConfig::load()?;
    let fabric = config.host_fabric();
    let met = match Observer::connect()? {
        Some(observer) => observer.stats()?.peers,
        // Where nobody serves nobody has been met.
        None => Vec::new(),
    };
    let own = listed(None)?;
    let others = others(&met, fabric.ports());
    if args.json {
        let own: Vec<_> = own.iter().map(|device| device.json(config.pkeys_of(&device.netdev))).collect();
        let others: Vec<_> = others.iter().map(Other::json).collect();
        return output::json(&json!({ "own": own, "others": others }));
    }
    outln!("this host");
    for device in &own {
        outln!("{}", describe(device, config.pkeys_of(&device.netdev)));
    }
    outln!("others");
    for other in &others {
        outln!("{}", other.line());
    }
    Ok(())
}

/// Hosts that were met and ports that are named: one that is both once. This host is among neither.
fn others<'a>(met: &'a [PeerReport], named: &'a [KnownPort]) -> Vec<Other<'a>> {
    let is_own = |address: &IpAddr| Device::of_address(*address).is_ok();
    let is_same = |met: &PeerReport, named: &KnownPort| {
        named.addresses.contains(&met.address) || named.port.guids.contains(&met.guid)
    };
    let met: Vec<_> = met.iter().filter(|met| !is_own(&met.address)).collect();
    let unmet = |named: &&KnownPort| {
        !met.iter().any(|met| is_same(met, named)) && !named.addresses.iter().any(is_own)
    };
    let unmet = named.iter().filter(unmet).map(|named| Other { met: None, named: Some(named) });
    let of_met = |met: &&'a PeerReport| Other {
        met: Some(*met),
        named: named.iter().find(|named| is_same(met, named)),
    };
    met.iter().map(of_met).chain(unmet).collect()
}

fn describe(device: &Listed, pkeys: &[u16]) -> String {
    let Listed { name, netdev, lid, guid, state, addresses, .. } = device;
    format!(
        "  {name} {netdev} {}  lid {lid}  guid {guid}{}  {}",
        state.short,
        keys(pkeys),
        addresses.join(" ")
    )
}
