//! The part of the host's configuration that the host service sends to each process: P_Key tables and lanes. A process gets it with
//! its slot, and again when an administrator has the configuration reloaded.

use super::{config::HostConfig, memlock::Memlock};
use crate::{
    engine::lanes_of_tables,
    events::{AsyncEvent, AsyncQueue},
    regions::View,
    sys::lock,
};
use rxe_core::{
    endpoint::{Endpoint, Lanes},
    num::Pkey,
    time::Instant,
};
use rxe_fabric::{Entry, Fabric, HighLimit, SL_COUNT, Tables, VL_COUNT};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The settings in a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// The P_Key table of devices without a table of their own.
    pub(crate) pkeys: Vec<u16>,
    /// The tables of other devices, by the names of their interfaces.
    pub(crate) of_interface: Vec<(String, Vec<u16>)>,
    /// Lanes, if the configuration has a `[fabric]` part. Else there is one lane for all packets.
    pub(crate) lanes: Option<LaneTables>,
    /// How much memory a process may register.
    pub(crate) memlock: Memlock,
}

/// Lanes and how they share a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LaneTables {
    sl2vl: [u8; SL_COUNT],
    classes: [u8; VL_COUNT],
    high: Vec<(u8, u8)>,
    low: Vec<(u8, u8)>,
    limit: u8,
}

impl Settings {
    /// The settings in a configuration.
    pub(crate) fn of(config: &HostConfig) -> Self {
        let host = config.host_fabric();
        let lanes = host.is_configured().then(|| LaneTables::of(host.fabric()));
        let own = config.of_interface.iter().map(|(name, keys)| (name.clone(), keys.clone()));
        Self { pkeys: config.pkeys.clone(), of_interface: own.collect(), lanes, memlock: config.memlock() }
    }

    fn keys(&self, interface: &str) -> Vec<Pkey> {
        let own = self.of_interface.iter().find(|(name, _)| name == interface);
        own.map_or(&self.pkeys, |(_, keys)| keys).iter().copied().map(Pkey).collect()
    }
}

impl LaneTables {
    /// The lanes of a policy.
    pub(crate) fn of(fabric: &Fabric) -> Self {
        let (lanes, tables) = (fabric.lanes(), fabric.tables());
        let entries = |list: &[Entry]| list.iter().map(|entry| (entry.vl, entry.weight)).collect();
        let mut classes = [0; VL_COUNT];
        (0..).zip(&mut classes).for_each(|(lane, class)| *class = lanes.traffic_class(lane));
        let (high, low) = (entries(&tables.high), entries(&tables.low));
        Self { sl2vl: *lanes.sl2vl(), classes, high, low, limit: tables.limit.0 }
    }

    /// Whether the service levels use more than one lane.
    fn has_several(&self) -> bool {
        let mut carried = self.sl2vl.iter().filter(|lane| usize::from(**lane) < VL_COUNT);
        let first = carried.next();
        carried.any(|lane| Some(lane) != first)
    }

    fn lanes(&self) -> Lanes {
        let entries = |list: &[(u8, u8)]| list.iter().map(|&(vl, weight)| Entry { vl, weight }).collect();
        let (high, low) = (entries(&self.high), entries(&self.low));
        lanes_of_tables(self.sl2vl, self.classes, &Tables { high, low, limit: HighLimit(self.limit) })
    }
}

/// The present settings of a process. All shards of a stack share them.
#[derive(Debug)]
pub(crate) struct LiveSettings(Mutex<Now>);

/// Settings that a program has made for itself. They replace those of the host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Own {
    pub(crate) pkeys: Option<Vec<Pkey>>,
    pub(crate) lanes: Option<LaneTables>,
}

impl Own {
    fn put_on(&self, mut settings: Settings) -> Settings {
        if let Some(keys) = &self.pkeys {
            settings.pkeys = keys.iter().map(|key| key.0).collect();
            settings.of_interface.clear();
        }
        settings.lanes = self.lanes.clone().or(settings.lanes);
        settings
    }
}

#[derive(Debug)]
struct Now {
    settings: Settings,
    own: Own,
    /// Interfaces whose devices were opened. The first has table 1. Table 0 is that of devices without a table of their own.
    interfaces: Vec<String>,
    /// Receivers of events, and the table whose changes they are told of.
    followers: Vec<(u16, Weak<AsyncQueue>)>,
}

impl LiveSettings {
    pub(crate) fn new(settings: Settings, own: Own) -> Arc<Self> {
        let settings = own.put_on(settings);
        Arc::new(Self(Mutex::new(Now { settings, own, interfaces: Vec::new(), followers: Vec::new() })))
    }

    /// The settings without a host service: the default key, and one lane.
    pub(crate) fn alone(own: Own) -> Arc<Self> {
        Self::new(Settings { pkeys: vec![Pkey::DEFAULT.0], ..Settings::default() }, own)
    }

    /// The number of the table of an interface's device. From now on changes of the table are reported to `events` of that device.
    pub(crate) fn follow(&self, interface: &str, events: &Arc<AsyncQueue>) -> u16 {
        let mut now = self.now();
        let known = now.interfaces.iter().position(|known| known == interface);
        let index = known.unwrap_or_else(|| {
            now.interfaces.push(interface.to_owned());
            now.interfaces.len() - 1
        });
        let table = u16::try_from(index + 1).unwrap_or(0);
        now.followers.retain(|(_, queue)| queue.strong_count() > 0);
        now.followers.push((table, Arc::downgrade(events)));
        table
    }

    /// The interface of the device that has a table. Empty for table 0.
    pub(crate) fn interface(&self, table: u16) -> String {
        let now = self.now();
        let place = usize::from(table).checked_sub(1);
        place.and_then(|place| now.interfaces.get(place)).cloned().unwrap_or_default()
    }

    /// A P_Key table.
    pub(crate) fn pkeys(&self, table: u16) -> Arc<[Pkey]> {
        self.now().keys(table).into()
    }

    /// Applies new settings, and reports changes of P_Key tables to the devices.
    pub(crate) fn replace(&self, settings: Settings) {
        let mut now = self.now();
        let before: Vec<_> = (0..=now.interfaces.len() as u16).map(|table| now.keys(table)).collect();
        now.settings = now.own.put_on(settings);
        for (table, queue) in &now.followers {
            if before.get(usize::from(*table)).is_some_and(|before| *before != now.keys(*table))
                && let Some(queue) = queue.upgrade()
            {
                queue.push(AsyncEvent::PkeyChange);
            }
        }
    }

    /// Sets the tables and lanes of an endpoint.
    pub(crate) fn apply(&self, endpoint: &mut Endpoint, now: Instant, view: View<'_>) {
        endpoint.set_lanes(self.lanes());
        self.apply_keys(endpoint, now, view);
    }

    /// Sets its P_Key tables.
    pub(crate) fn apply_keys(&self, endpoint: &mut Endpoint, now: Instant, view: View<'_>) {
        let settings = self.now();
        let tables = (0..=settings.interfaces.len() as u16).map(|table| settings.keys(table)).collect();
        drop(settings);
        endpoint.set_pkeys(now, tables, &view);
    }

    /// The lanes.
    pub(crate) fn lanes(&self) -> Lanes {
        self.now().settings.lanes.as_ref().map_or_else(Lanes::default, LaneTables::lanes)
    }

    /// Whether the service levels use several lanes, which share the link by weights.
    pub(crate) fn has_several_lanes(&self) -> bool {
        self.now().settings.lanes.as_ref().is_some_and(LaneTables::has_several)
    }

    /// How much memory may be registered.
    pub(crate) fn memlock(&self) -> Memlock {
        self.now().settings.memlock
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        lock(&self.0)
    }
}

impl Now {
    fn keys(&self, table: u16) -> Vec<Pkey> {
        let interface = usize::from(table).checked_sub(1).and_then(|index| self.interfaces.get(index));
        self.settings.keys(interface.map_or("", String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest that a configuration may ask for is one message.
    #[test]
    fn all_of_it_is_one_message() {
        use crate::host::message::{MAX_MESSAGE, ToClient, encode};
        let (keys, high) = (vec![0xffff; 128], vec![(14, 255); 64]);
        let of_interface = (0..32).map(|number| (format!("{number:015}"), keys.clone())).collect();
        let lanes =
            Some(LaneTables { sl2vl: [14; 16], classes: [255; 15], low: high.clone(), high, limit: 255 });
        let settings = Settings { pkeys: keys, of_interface, lanes, memlock: Memlock::Bytes(u64::MAX) };
        let len = encode(&ToClient::Settings(settings)).len();
        assert!(len + 100 < MAX_MESSAGE, "{len} bytes, and a welcome has some more");
    }

    #[test]
    fn who_follows_a_table_hears_of_its_changes_alone() {
        let live = LiveSettings::new(
            Settings {
                pkeys: vec![0xffff],
                of_interface: vec![("eth1".into(), vec![0x8001, 0x8002])],
                ..Settings::default()
            },
            Own::default(),
        );
        let (plain, own) = (Arc::new(AsyncQueue::new().unwrap()), Arc::new(AsyncQueue::new().unwrap()));
        let tables = (live.follow("eth0", &plain), live.follow("eth1", &own));
        assert_eq!(tables, (1, 2));
        assert_eq!(live.follow("eth0", &plain), 1);
        assert_eq!([0, 1, 2, 3].map(|table| live.interface(table)), ["", "eth0", "eth1", ""]);
        assert_eq!(&*live.pkeys(1), [Pkey(0xffff)]);
        assert_eq!(&*live.pkeys(2), [Pkey(0x8001), Pkey(0x8002)]);
        live.replace(Settings {
            pkeys: vec![0xffff],
            of_interface: vec![("eth1".into(), vec![0x8001])],
            ..Settings::default()
        });
        assert_eq!((plain.pop(), own.pop(), own.pop()), (None, Some(AsyncEvent::PkeyChange), None));
        assert_eq!(&*live.pkeys(2), [Pkey(0x8001)]);
    }
}
