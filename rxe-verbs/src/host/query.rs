//! Paths between addresses according to the host's configuration, for `rxe path` and subnet administration.

use super::{config::HostConfig, fabric::HostFabric};
use crate::device::{Device, devices};
use core::net::IpAddr;
use rxe_core::{num::Pkey, qp::Mtu};
use rxe_fabric::{NoPath, Path, PathQuery, Port};

/// The packet lifetime if no file sets one: that of rdma_cm on Ethernet.
const PACKET_LIFE: u8 = 16;

/// A question about a path. Fields that are `None` are left to the policy.
#[derive(Clone, Copy, Debug)]
pub struct PathQuestion {
    /// The address that asks.
    pub from: IpAddr,
    /// The other end.
    pub to: IpAddr,
    /// Service ID.
    pub service_id: Option<u64>,
    /// P_Key.
    pub pkey: Option<u16>,
    /// QoS class, 12 bits.
    pub qos_class: Option<u16>,
    /// The service level that the path must have.
    pub sl: Option<u8>,
    /// Whether to ask as rdma_resolve_route does: with the first P_Key of the port's table.
    pub as_rdma_cm: bool,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPath {
    /// The path.
    pub path: Path,
    /// The packet lifetime, 4.096 us << code.
    pub packet_life: u8,
}

fn end<'a>(address: IpAddr, fabric: &HostFabric, devices: &'a [Device]) -> (Port, Option<&'a Device>) {
    let device = devices.iter().find(|device| device.addresses().any(|own| own == address));
    (fabric.port(address, device.map(Device::guid)), device)
}

impl HostConfig {
    /// The path between two addresses. `[[service_level]]` rules take precedence over OpenSM's files.
    ///
    /// # Errors
    /// [`NoPath`] says which rule forbids it.
    pub fn path_between(&self, question: &PathQuestion) -> Result<FoundPath, NoPath> {
        self.path_among(question, &devices().unwrap_or_default())
    }

    /// The same, if our devices are known already.
    pub(super) fn path_among(
        &self,
        question: &PathQuestion,
        devices: &[Device],
    ) -> Result<FoundPath, NoPath> {
        let &PathQuestion { service_id, pkey, qos_class, sl, as_rdma_cm, .. } = question;
        let fabric = self.host_fabric();
        let ((from, device), (to, other)) =
            (end(question.from, &fabric, devices), end(question.to, &fabric, devices));
        // The smallest on the way, of which only ports of this host are known.
        let mtu = [device, other].into_iter().flatten().map(Device::active_mtu).min();
        let mtu = mtu.unwrap_or(Mtu::M4096).code();
        let query = PathQuery { from: &from, to: &to, service_id, qos_class, pkey, sl, mtu, rate: 0 };
        let table = device.map_or(&*self.pkeys, |device| self.pkeys_of(device.netdev()));
        let table: Vec<Pkey> = table.iter().copied().map(Pkey).collect();
        let mut path = if as_rdma_cm { fabric.path(&query, &table) } else { fabric.fabric().path(&query) }?;
        if let Some(rule) = service_id.and_then(|id| self.rule_for(id)) {
            (path.sl, path.traffic_class) = (rule.sl, rule.traffic_class);
            path.vl = fabric.fabric().lanes().vl(rule.sl).unwrap_or(path.vl);
            (path.level, path.rule_line) = (Some("[[service_level]] of the configuration".to_owned()), None);
        }
        // There is no way from a port to itself, whatever the files say of others (IBTA vol. 1, table 205).
        let packet_life = if from == to { 0 } else { path.packet_life.unwrap_or(PACKET_LIFE) };
        Ok(FoundPath { path, packet_life })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(from: &str, to: &str) -> PathQuestion {
        PathQuestion {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            service_id: None,
            pkey: None,
            qos_class: None,
            sl: None,
            as_rdma_cm: false,
        }
    }

    #[test]
    fn the_smaller_port_bounds_the_mtu_in_both_directions() {
        let mut device = Device::virtual_one("a", &["10.0.0.1".parse().unwrap()]);
        device.set_mtu(1500);
        let config = HostConfig::default();
        for (from, to, mtu) in
            [("10.0.0.1", "10.0.0.2", 3), ("10.0.0.2", "10.0.0.1", 3), ("10.0.0.2", "10.0.0.3", 5)]
        {
            let found = config.path_among(&question(from, to), core::slice::from_ref(&device)).unwrap();
            assert_eq!(found.path.mtu, mtu, "{from} {to}");
        }
    }

    #[test]
    fn packets_to_oneself_have_no_lifetime() {
        let life = |config: &HostConfig, to: &str| {
            config.path_among(&question("10.0.0.1", to), &[]).unwrap().packet_life
        };
        let usual = HostConfig::default();
        assert_eq!((life(&usual, "10.0.0.2"), life(&usual, "10.0.0.1")), (PACKET_LIFE, 0));
        let configured = HostConfig::with_opensm_conf("subnet_timeout 18");
        assert_eq!((life(&configured, "10.0.0.2"), life(&configured, "10.0.0.1")), (18, 0));
    }
}
