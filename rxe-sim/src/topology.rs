//! Hosts, switches, links, and the paths between hosts. Switches choose among all shortest paths by a hash (ECMP).

use crate::{
    scenario::{Network, ScenarioError},
    units::{Rate, Span},
};
use std::collections::{HashMap, VecDeque};

/// Most entries in the tables of all switches: 1 GiB. The largest fat tree has 243 million.
const MOST_WAYS: usize = 1 << 28;

/// One direction of a link, as its sender sees it.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    /// The node that sends.
    pub from: usize,
    /// The node at the other end.
    pub to: usize,
    /// The wire of the other direction.
    pub back: usize,
    /// Bits per second.
    pub rate: u64,
    /// Propagation delay, picoseconds.
    pub delay: u64,
    /// Probability that a data packet is lost.
    pub loss: f64,
}

/// A network. Nodes below `hosts` are hosts, the others switches.
#[derive(Debug)]
pub struct Topology {
    /// Number of hosts.
    pub hosts: usize,
    /// Names of the nodes.
    pub names: Vec<String>,
    /// All wires, two for each link.
    pub wires: Vec<Wire>,
    /// The wire of each host.
    links: Vec<u32>,
    /// By switch and host: the set of wires that lead to the host.
    ways: Vec<u32>,
    /// Sets of wires, as ranges of `choices`. A switch has few different sets: one for each wire down to a host or switch, and
    /// one with all wires up.
    sets: Vec<(u32, u32)>,
    choices: Vec<u32>,
}

struct Builder {
    names: Vec<String>,
    wires: Vec<Wire>,
}

impl Builder {
    fn node(&mut self, name: String) -> usize {
        self.names.push(name);
        self.names.len() - 1
    }

    fn hosts(&mut self, count: usize) {
        self.names.extend((0..count).map(|host| format!("h{host}")));
    }

    fn link(&mut self, a: usize, b: usize, rate: Rate, delay: Span, loss: f64) {
        let first = self.wires.len();
        let wire = |from, to, back| Wire { from, to, back, rate: rate.0, delay: delay.0, loss };
        self.wires.push(wire(a, b, first + 1));
        self.wires.push(wire(b, a, first));
    }
}

impl Topology {
    /// Builds the network that the scenario describes.
    ///
    /// # Errors
    /// The description is not a valid network.
    pub fn build(network: &Network) -> Result<Self, ScenarioError> {
        let mut net = Builder { names: Vec::new(), wires: Vec::new() };
        let hosts = match network {
            Network::Star { hosts, rate, delay, loss } => {
                net.hosts(*hosts);
                let switch = net.node("s0".into());
                (0..*hosts).for_each(|host| net.link(host, switch, *rate, *delay, *loss));
                *hosts
            }
            Network::FatTree { ports, rate, delay } => fat_tree(&mut net, *ports, *rate, *delay)?,
            Network::Pods { pods, tors, aggregations, cores, hosts, rate, uplink, delay } => {
                net.hosts(pods * tors * hosts);
                let mut nodes = |name: &str, count| -> Vec<usize> {
                    (0..count).map(|at| net.node(format!("{name}{at}"))).collect()
                };
                let (tor, agg) = (nodes("tor", pods * tors), nodes("agg", pods * aggregations));
                let core = nodes("core", aggregations * cores);
                (0..pods * tors * hosts)
                    .for_each(|host| net.link(host, tor[host / hosts], *rate, *delay, 0.0));
                for pod in 0..*pods {
                    for at in 0..*aggregations {
                        let agg = agg[pod * aggregations + at];
                        for &tor in &tor[pod * tors..(pod + 1) * tors] {
                            net.link(tor, agg, *uplink, *delay, 0.0);
                        }
                        for &core in &core[at * cores..(at + 1) * cores] {
                            net.link(agg, core, *uplink, *delay, 0.0);
                        }
                    }
                }
                pods * tors * hosts
            }
            Network::LeafSpine { leaves, spines, hosts, rate, uplink, delay } => {
                let count = leaves * hosts;
                net.hosts(count);
                let leaf: Vec<usize> = (0..*leaves).map(|leaf| net.node(format!("leaf{leaf}"))).collect();
                let spine: Vec<usize> = (0..*spines).map(|spine| net.node(format!("spine{spine}"))).collect();
                (0..count).for_each(|host| net.link(host, leaf[host / hosts], *rate, *delay, 0.0));
                for &leaf in &leaf {
                    spine.iter().for_each(|&spine| net.link(leaf, spine, *uplink, *delay, 0.0));
                }
                count
            }
            Network::Custom { hosts, switches, links, rate, delay } => {
                let mut places = HashMap::new();
                for name in hosts.iter().chain(switches) {
                    if places.insert(name, net.node(name.clone())).is_some() {
                        return Err(ScenarioError::value(
                            "network",
                            format!("two nodes are called {name:?}"),
                        ));
                    }
                }
                for (a, b) in links {
                    let find = |name: &String| {
                        places.get(name).copied().ok_or_else(|| {
                            ScenarioError::value("network.links", format!("there is no node {name:?}"))
                        })
                    };
                    let (a, b) = (find(a)?, find(b)?);
                    net.link(a, b, *rate, *delay, 0.0);
                }
                hosts.len()
            }
        };
        if net.wires.iter().any(|wire| wire.rate == 0 || !(0.0..=1.0).contains(&wire.loss)) {
            return Err(ScenarioError::value("network", "rates are above 0, and losses from 0 to 1"));
        }
        Self::with_ways(net, hosts)
    }

    /// Finds all shortest paths, host by host.
    fn with_ways(net: Builder, hosts: usize) -> Result<Self, ScenarioError> {
        let nodes = net.names.len();
        let mut out = vec![Vec::new(); nodes];
        for (index, wire) in net.wires.iter().enumerate() {
            out[wire.from].push(index as u32);
        }
        if let Some(lone) = (0..hosts).find(|&host| out[host].len() != 1) {
            let problem = format!("host {} has {} links and needs one", net.names[lone], out[lone].len());
            return Err(ScenarioError::value("network.links", problem));
        }
        if (nodes - hosts).saturating_mul(hosts) > MOST_WAYS {
            let problem = format!("{} switches with ways to {hosts} hosts are too many", nodes - hosts);
            return Err(ScenarioError::value("network", problem));
        }
        let links: Vec<u32> = out[..hosts].iter().map(|wires| wires[0]).collect();
        let mut net = Self {
            hosts,
            names: net.names,
            wires: net.wires,
            links,
            ways: Vec::new(),
            sets: Vec::new(),
            choices: Vec::new(),
        };
        net.ways = vec![0; (nodes - hosts) * hosts];
        let (mut known, mut choices) = (HashMap::new(), Vec::new());
        let mut distance = vec![u32::MAX; nodes];
        for host in 0..hosts {
            net.measure(&out, host, &mut distance);
            for from in (0..hosts).filter(|from| *from != host) {
                let next = net.wires[net.links[from] as usize].to;
                if next != host && (next < hosts || distance[next] == u32::MAX) {
                    let problem = format!("no way from {} to {}", net.names[from], net.names[host]);
                    return Err(ScenarioError::value("network.links", problem));
                }
            }
            for node in hosts..nodes {
                choices.clear();
                choices.extend(out[node].iter().copied().filter(|wire| {
                    let to = net.wires[*wire as usize].to;
                    (to >= hosts || to == host)
                        && distance[to] != u32::MAX
                        && distance[node] == distance[to] + 1
                }));
                if choices.is_empty() {
                    let problem = format!("no way from {} to {}", net.names[node], net.names[host]);
                    return Err(ScenarioError::value("network.links", problem));
                }
                let set = *known.entry(choices.clone()).or_insert_with(|| {
                    net.sets.push((net.choices.len() as u32, choices.len() as u32));
                    net.choices.extend(&choices);
                    net.sets.len() as u32 - 1
                });
                net.ways[(node - hosts) * hosts + host] = set;
            }
        }
        Ok(net)
    }

    /// Number of switches on the path from each node to `host`; `u32::MAX` if there is no path. `out` has the wires of each
    /// node.
    fn measure(&self, out: &[Vec<u32>], host: usize, distance: &mut [u32]) {
        distance.fill(u32::MAX);
        distance[host] = 0;
        let mut front = VecDeque::from([host]);
        while let Some(node) = front.pop_front() {
            for &wire in &out[node] {
                let next = self.wires[wire as usize].to;
                if distance[next] == u32::MAX && next >= self.hosts {
                    distance[next] = distance[node] + 1;
                    front.push_back(next);
                }
            }
        }
    }

    /// The wire by which `node` sends a packet with this hash to `host`.
    #[inline]
    #[must_use]
    pub fn next(&self, node: usize, host: usize, hash: u32) -> usize {
        if node < self.hosts {
            return self.links[node] as usize;
        }
        let (start, count) = self.sets[self.ways[(node - self.hosts) * self.hosts + host] as usize];
        let pick = if count == 1 {
            0
        } else {
            // The hash is mixed with the node's number. Otherwise the switches of the next level would all make the same
            // choice.
            let mixed = (hash ^ (node as u32).wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
            (u64::from(mixed ^ mixed >> 15).wrapping_mul(u64::from(count)) >> 32) as u32
        };
        self.choices[(start + pick) as usize] as usize
    }

    /// Finds a node by its name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }

    /// Finds a wire by the names of its ends, `"from-to"`.
    #[must_use]
    pub fn wire(&self, name: &str) -> Option<usize> {
        self.wires
            .iter()
            .position(|wire| name == format!("{}-{}", self.names[wire.from], self.names[wire.to]))
    }
}

fn fat_tree(net: &mut Builder, ports: usize, rate: Rate, delay: Span) -> Result<usize, ScenarioError> {
    if ports < 2 || !ports.is_multiple_of(2) || ports > 60 {
        return Err(ScenarioError::value("network.ports", format!("{ports} is no even number from 2 to 60")));
    }
    let half = ports / 2;
    let hosts = ports * half * half;
    net.hosts(hosts);
    let edge: Vec<usize> = (0..ports * half).map(|at| net.node(format!("edge{at}"))).collect();
    let aggregation: Vec<usize> = (0..ports * half).map(|at| net.node(format!("agg{at}"))).collect();
    let core: Vec<usize> = (0..half * half).map(|at| net.node(format!("core{at}"))).collect();
    (0..hosts).for_each(|host| net.link(host, edge[host / half], rate, delay, 0.0));
    for pod in 0..ports {
        for a in 0..half {
            for b in 0..half {
                net.link(edge[pod * half + a], aggregation[pod * half + b], rate, delay, 0.0);
                net.link(aggregation[pod * half + a], core[a * half + b], rate, delay, 0.0);
            }
        }
    }
    Ok(hosts)
}

/// Finds wires by their names. They are in the order of the names.
///
/// # Errors
/// The first name that no wire has.
pub fn find_wires(topology: &Topology, names: &[String]) -> Result<Vec<(usize, String)>, ScenarioError> {
    names
        .iter()
        .map(|name| {
            let found = topology.wire(name).map(|wire| (wire, name.clone()));
            found.ok_or_else(|| {
                let problem =
                    format!("there is no link {name:?}; links are named by their ends, as \"s0-h1\"");
                ScenarioError::value("record.queues", problem)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many hops the paths from one host to another have, and how many paths there are, tried with 2000 hashes.
    fn ways(net: &Topology, from: usize, to: usize) -> (usize, usize) {
        let mut found = std::collections::HashSet::new();
        for hash in 0..2000_u32 {
            let (mut node, mut way) = (from, Vec::new());
            while node != to {
                node = net.wires[net.next(node, to, hash.wrapping_mul(0x9e37_79b9))].to;
                way.push(node);
            }
            found.insert(way);
        }
        let hops = found.iter().next().map_or(0, Vec::len);
        assert!(found.iter().all(|way| way.len() == hops), "{found:?}");
        (hops, found.len())
    }

    #[test]
    fn a_fat_tree_has_its_size_and_all_its_ways() {
        let network = Network::FatTree { ports: 6, rate: Rate(1), delay: Span(1) };
        let tree = Topology::build(&network).unwrap();
        assert_eq!((tree.hosts, tree.names.len()), (54, 54 + 45));
        let found = [1, 3, 53].map(|to| ways(&tree, 0, to));
        assert_eq!(found, [(2, 1), (4, 3), (6, 9)], "all of them are used");
    }

    /// The network of HPCC's simulations: 320 hosts, 20 switches above them, 20 above those, and 16 at the top.
    #[test]
    fn pods_are_joined_by_their_cores() {
        let (rate, uplink, delay) = (Rate(1), Rate(4), Span(1));
        let network =
            Network::Pods { pods: 5, tors: 4, aggregations: 4, cores: 4, hosts: 16, rate, uplink, delay };
        let net = Topology::build(&network).unwrap();
        assert_eq!((net.hosts, net.names.len(), net.wires.len()), (320, 376, 2 * 480));
        let found = [1, 16, 319].map(|to| ways(&net, 0, to));
        assert_eq!(found, [(2, 1), (4, 4), (6, 16)], "all of them are used");
    }

    #[test]
    fn what_is_no_network_is_said() {
        let network = |switch: &str, links: &[(&str, &str)]| Network::Custom {
            hosts: vec!["a".into(), "b".into()],
            switches: vec![switch.into()],
            links: links.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect(),
            rate: Rate(1),
            delay: Span(1),
        };
        let built = Topology::build(&network("s", &[("a", "s"), ("s", "b")])).unwrap();
        assert_eq!((built.wire("a-s"), built.wire("b-s")), (Some(0), Some(3)));
        for (wrong, told) in [
            (network("s", &[("a", "s")]), "host b has 0 links"),
            (network("b", &[]), "two nodes are called \"b\""),
            (network("s", &[("a", "c")]), "there is no node \"c\""),
        ] {
            let error = Topology::build(&wrong).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
