//! What is shown, a row each: as a line in rdma(8)'s form, or as JSON with its names.

use super::{Options, device};
use crate::Result;
use rxe_verbs::{
    Device, PortState, devices,
    host::{Observer, report::HostStats},
};
use serde_json::{Map, Value};
use std::fmt::Write;

/// One thing: how its line begins, what the beginning says, and the rest.
pub(super) struct Row {
    head: String,
    of_head: Map<String, Value>,
    fields: Map<String, Value>,
}

impl Row {
    fn of_device(device: &Device) -> Self {
        let (number, name) = (index(device), device.name());
        Self::new(format!("{number}: {name}: "), [("ifindex", number.into()), ("ifname", name.into())])
    }

    fn of_link(device: &Device) -> Self {
        let (number, name) = (index(device), device.name());
        let names = [("ifindex", number.into()), ("ifname", name.into()), ("port", 1.into())];
        Self::new(format!("link {name}/1 "), names)
    }

    fn new<const N: usize>(head: String, of_head: [(&str, Value); N]) -> Self {
        let of_head = of_head.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { head, of_head, fields: Map::new() }
    }

    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    fn line(&self) -> String {
        let mut text = self.head.clone();
        for (name, value) in &self.fields {
            // Writing to a string does not fail.
            let _ = write!(text, "{name} {} ", plain(value));
        }
        text
    }

    fn json(self) -> Value {
        self.of_head.into_iter().chain(self.fields).collect::<Map<_, _>>().into()
    }

    /// As the only thing there is.
    pub(super) fn print_one(self, options: &Options) -> Result<()> {
        if options.json {
            return show_json(&self.json(), options);
        }
        outln!("{}", self.line());
        Ok(())
    }
}

/// A value as lines have it.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(is_on) => if *is_on { "on" } else { "off" }.to_owned(),
        other => other.to_string(),
    }
}

fn show_json(value: &Value, options: &Options) -> Result<()> {
    let text =
        if options.pretty { serde_json::to_string_pretty(value)? } else { serde_json::to_string(value)? };
    outln!("{text}");
    Ok(())
}

/// A list of things.
pub(super) struct Rows(Vec<Row>);

impl Rows {
    pub(super) fn print(self, options: &Options) -> Result<()> {
        if options.json {
            return show_json(&self.0.into_iter().map(Row::json).collect(), options);
        }
        for row in self.0 {
            outln!("{}", row.line());
        }
        Ok(())
    }
}

/// The number of a device, which is in its name.
fn index(device: &Device) -> u32 {
    device.name().trim_start_matches("rxe").parse().unwrap_or(0)
}

/// One, or all.
fn wished(only: Option<&str>) -> Result<Vec<Device>> {
    Ok(match only {
        Some(name) => vec![device(name)?],
        None => devices()?,
    })
}

pub(super) fn device_rows(only: Option<&str>, options: &Options) -> Result<Rows> {
    let row = |device: &Device| {
        let guid: Vec<_> =
            device.guid().chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
        let guid = guid.join(":");
        let row = Row::of_device(device).with("node_type", "ca").with("fw", env!("CARGO_PKG_VERSION"));
        let row = row.with("node_guid", guid.clone()).with("sys_image_guid", guid);
        if options.details { row.with("protocol", "roce") } else { row }
    };
    Ok(Rows(wished(only)?.iter().map(row).collect()))
}

pub(super) fn links(only: Option<&str>, options: &Options) -> Result<Rows> {
    let row = |device: &Device| {
        let (state, physical) = match device.state() {
            PortState::Active => ("ACTIVE", "LINK_UP"),
            PortState::Down => ("DOWN", "DISABLED"),
        };
        let row = Row::of_link(device).with("state", state).with("physical_state", physical);
        let row = row.with("netdev", device.netdev());
        // JSON has it always.
        if options.details || options.json { row.with("netdev_index", device.interface().index) } else { row }
    };
    Ok(Rows(wished(only)?.iter().map(row).collect()))
}

/// A namespace's devices are its own, and memory may be registered by a program that forks.
pub(super) fn system() -> Row {
    Row::new(String::new(), []).with("netns", "exclusive").with("copy-on-fork", true)
}

/// What all processes count, and the device to show it with: they count by process, not by device.
fn counted(only: Option<&str>) -> Result<Option<(Device, HostStats)>> {
    let list = wished(only)?;
    let Some(first) = list.into_iter().next() else { return Ok(None) };
    if devices()?.len() > 1 {
        eprintln!("rxe: processes count for all devices together: shown with {}", first.name());
    }
    let stats = match Observer::connect()? {
        Some(observer) => observer.stats()?,
        None => HostStats::default(),
    };
    Ok(Some((first, stats)))
}

/// Kernel rxe's name of a counter, and which of ours it is.
const PORT: [(&str, &str); 2] = [("sent_pkts", "packets_sent"), ("rcvd_pkts", "packets_received")];
const OF_QPS: [(&str, &str); 7] = [
    ("duplicate_request", "duplicates"),
    ("out_of_seq_request", "dropped_out_of_order"),
    ("rcvd_rnr_err", "rnr_naks_received"),
    ("send_rnr_err", "rnr_naks_sent"),
    ("rcvd_seq_err", "psn_naks_received"),
    ("completer_retry_err", "timeouts"),
    ("retransmitted", "retransmitted"),
];

pub(super) fn statistic(only: Option<&str>) -> Result<Rows> {
    let Some((device, stats)) = counted(only)? else { return Ok(Rows(Vec::new())) };
    let sum = |lists: &mut dyn Iterator<Item = &Vec<(String, u64)>>, wanted: &str| -> u64 {
        lists.flatten().filter(|(name, _)| name == wanted).map(|(_, value)| value).sum()
    };
    let mut row = Row::of_link(&device);
    for (name, ours) in PORT {
        row = row.with(name, sum(&mut stats.clients.iter().map(|client| &client.port), ours));
    }
    for (name, ours) in OF_QPS {
        let mut lists = stats.clients.iter().flat_map(|client| client.qps.iter().map(|qp| &qp.counters));
        row = row.with(name, sum(&mut lists, ours));
    }
    Ok(Rows(vec![row]))
}

pub(super) fn resources(only: Option<&str>) -> Result<Rows> {
    let Some((device, stats)) = counted(only)? else { return Ok(Rows(Vec::new())) };
    let count: usize = stats.clients.iter().map(|client| client.qps.len()).sum();
    Ok(Rows(vec![Row::of_device(&device).with("qp", count)]))
}

pub(super) fn queue_pairs(only: Option<&str>, filter: &[&str]) -> Result<Rows> {
    let Some((device, stats)) = counted(only)? else { return Ok(Rows(Vec::new())) };
    let (pairs, rest) = filter.as_chunks::<2>();
    if let Some(name) = rest.first() {
        return Err(format!("rdma: {name} has no value").into());
    }
    let mut rows = Vec::new();
    for client in &stats.clients {
        for qp in &client.qps {
            let state = if qp.state == "ERROR" { "ERR" } else { &qp.state };
            let row = Row::of_link(&device).with("lqpn", qp.qpn).with("type", qp.service.clone());
            rows.push(row.with("state", state).with("pid", client.pid).with("comm", client.name.clone()));
        }
    }
    for [name, wanted] in pairs {
        rows.retain(|row| {
            row.fields.get(*name).is_some_and(|value| plain(value).eq_ignore_ascii_case(wanted))
        });
    }
    Ok(Rows(rows))
}
