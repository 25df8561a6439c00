//! Queries hosts: one management datagram each, from queue pair 1 to queue pair 1. Only hosts that are known already, or that
//! the user names, are queried, and slowly, so that the network is not flooded.

use crate::{Result, path::source_for};
use rxe_fabric::mad::{Mad, NodeSays, ask_node, class, node_says};
use rxe_verbs::{
    Device, Gid,
    host::{MadAddress, MadFilter, MadPort, ManagedMad, TIMED_OUT},
};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    thread,
    time::{Duration, Instant},
};

/// Most hosts that are queried.
pub(super) const MOST: usize = 256;
/// Time between two queries.
const PACE: Duration = Duration::from_millis(10);
/// How long an answer may take, and how often a query is repeated.
const TIMEOUT: Duration = Duration::from_millis(500);
const RETRIES: u32 = 2;
/// Additional time of the host service, which returns unanswered queries.
const SLACK: Duration = Duration::from_secs(10);
/// Version of subnet administration.
const VERSION: u8 = 2;
/// Well-known Q_Key of queue pair 1 (IBTA vol. 1, 3.5.3).
const QKEY: u32 = 0x8001_0000;

/// The result of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It has identified itself.
    Says(NodeSays),
    /// It has refused the query, as kernels do.
    Refuses,
    /// There was no answer.
    Silent,
}

/// A device's port, and the registration for its queries.
type Port = (MadPort, u32);

/// Queries these hosts, at most the first [`MOST`]. Hosts without a route are not among the results.
pub(super) fn ask(hosts: &[IpAddr]) -> Result<BTreeMap<IpAddr, Answer>> {
    let mut ports: BTreeMap<String, Port> = BTreeMap::new();
    let mut answers = BTreeMap::new();
    let mut open = 0;
    for (number, host) in hosts.iter().take(MOST).enumerate() {
        let Some(device) = source_for(*host).ok().and_then(|own| Device::of_address(own).ok()) else {
            continue;
        };
        if !ports.contains_key(device.name()) {
            ports.insert(device.name().to_owned(), open_port(device.name())?);
        }
        let Some(port) = ports.get(device.name()) else { continue };
        if number > 0 {
            thread::sleep(PACE);
        }
        send(port, *host, number)?;
        open += 1;
        // Answers are received between the queries.
        ports.values().try_for_each(|port| take(port, hosts, &mut answers))?;
    }
    let until = Instant::now() + TIMEOUT * (RETRIES + 1) + SLACK;
    while answers.len() < open && Instant::now() < until {
        for port in ports.values() {
            // Interrupted by a signal: tries again.
            let _ = port.0.wait(Some(PACE));
            take(port, hosts, &mut answers)?;
        }
    }
    Ok(answers)
}

fn open_port(device: &str) -> Result<Port> {
    let port = MadPort::open(device)?;
    let filter = MadFilter { class: class::SA, version: VERSION, ..MadFilter::default() };
    let agent = port.register(filter)?.ok_or("the host service takes no more questions from this program")?;
    Ok((port, agent))
}

fn send((port, agent): &Port, host: IpAddr, number: usize) -> Result<()> {
    let address = MadAddress { qpn: 1, qkey: QKEY, gid: Some(Gid::from(host).0), ..MadAddress::default() };
    let mad = ManagedMad {
        agent: *agent,
        timeout_ms: TIMEOUT.as_millis() as u32,
        retries: RETRIES,
        address,
        bytes: ask_node(number as u64).0.to_vec(),
        ..ManagedMad::default()
    };
    Ok(port.send(mad)?)
}

/// Takes the answers that have arrived.
fn take((port, _): &Port, hosts: &[IpAddr], answers: &mut BTreeMap<IpAddr, Answer>) -> Result<()> {
    while let Some(told) = port.receive()? {
        let Some(mad) = Mad::of(&told.bytes[..told.bytes.len().min(rxe_fabric::mad::MAD_LEN)]) else {
            continue;
        };
        // The service uses the upper half for itself.
        let number = usize::try_from(mad.tid() & 0xffff_ffff).unwrap_or(usize::MAX);
        let Some(host) = hosts.get(number) else { continue };
        let answer = match node_says(&mad) {
            _ if told.status == TIMED_OUT => Answer::Silent,
            Some(says) => Answer::Says(says),
            None => Answer::Refuses,
        };
        answers.insert(*host, answer);
    }
    Ok(())
}

/// Hosts in the kernel's table of neighbours (/proc/net/arp) on these interfaces.
pub(super) fn neighbours(table: &str, interfaces: &[&str]) -> Vec<IpAddr> {
    /// ATF_COM: the entry is complete.
    const COMPLETE: u32 = 2;
    let host = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [address, _, flags, .., interface] = words[..] else { return None };
        let flags = u32::from_str_radix(flags.strip_prefix("0x")?, 16).ok()?;
        let address: Ipv4Addr = address.parse().ok()?;
        (flags & COMPLETE != 0 && interfaces.contains(&interface)).then_some(IpAddr::V4(address))
    };
    table.lines().skip(1).filter_map(host).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_those_with_a_station_on_our_interfaces() {
        let table = "IP address       HW type     Flags       HW address            Mask     Device
10.0.0.7         0x1         0x2         02:fc:00:00:00:05     *        eth1
10.0.0.8         0x1         0x0         00:00:00:00:00:00     *        eth1
10.0.0.9         0x1         0x6         02:fc:00:00:00:09     *        eth1
10.1.0.1         0x1         0x2         02:fc:00:00:00:06     *        docker0
rubbish          0x1         0x2         02:fc:00:00:00:06     *        eth1
10.0.0.10
";
        let found = neighbours(table, &["lo", "eth1"]);
        assert_eq!(found, [IpAddr::from([10, 0, 0, 7]), IpAddr::from([10, 0, 0, 9])]);
    }
}
