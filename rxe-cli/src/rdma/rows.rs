//! The rows of the output: as lines in the form of rdma(8), or as JSON with its names.

use super::{Options, device_of};
use crate::{
    Result,
    listing::{FIRMWARE, Listed, listed},
    output,
};
use rxe_verbs::host::{Observer, files::HW_COUNTERS, report::QpReport};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, fmt::Write};

/// A row: the beginning of its line, the values in this beginning, and the other values.
pub(super) struct Row {
    head: String,
    of_head: Map<String, Value>,
    fields: Map<String, Value>,
}

impl Row {
    fn of_device(device: &Listed) -> Self {
        let (number, name) = (device.number, device.name.as_str());
        Self::new(format!("{number}: {name}: "), [("ifindex", number.into()), ("ifname", name.into())])
    }

    fn of_link(device: &Listed) -> Self {
        let (number, name) = (device.number, device.name.as_str());
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
            // Writing to a string cannot fail.
            let _ = write!(text, "{name} {} ", plain(value));
        }
        text
    }

    fn json(self) -> Value {
        self.of_head.into_iter().chain(self.fields).collect::<Map<_, _>>().into()
    }

    /// As the only row.
    pub(super) fn print_one(self, options: &Options) -> Result<()> {
        if options.json {
            return show_json(&self.json(), options);
        }
        outln!("{}", self.line());
        Ok(())
    }
}

/// A value in a line.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(is_on) => if *is_on { "on" } else { "off" }.to_owned(),
        other => other.to_string(),
    }
}

fn show_json(value: &Value, options: &Options) -> Result<()> {
    if options.own && !options.pretty {
        return output::json(value);
    }
    // Scripts read these forms of iproute2.
    let text =
        if options.pretty { serde_json::to_string_pretty(value)? } else { serde_json::to_string(value)? };
    outln!("{text}");
    Ok(())
}

/// A list of rows.
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

/// One row, or all.
fn wished(only: Option<&str>) -> Result<Vec<Listed>> {
    listed(only.map(device_of))
}

pub(super) fn device_rows(only: Option<&str>, options: &Options) -> Result<Rows> {
    let row = |device: &Listed| {
        let row = Row::of_device(device).with("node_type", "ca").with("fw", FIRMWARE);
        let guid = device.guid.as_str();
        let row = row.with("node_guid", guid).with("sys_image_guid", guid);
        if options.details { row.with("protocol", "roce") } else { row }
    };
    Ok(Rows(wished(only)?.iter().map(row).collect()))
}

pub(super) fn links(only: Option<&str>, options: &Options) -> Result<Rows> {
    let row = |device: &Listed| {
        let row = Row::of_link(device).with("state", device.state.short);
        let row = row.with("physical_state", device.state.physical).with("netdev", device.netdev.as_str());
        // JSON always has it.
        if options.details || options.json { row.with("netdev_index", device.netdev_index) } else { row }
    };
    Ok(Rows(wished(only)?.iter().map(row).collect()))
}

/// Devices belong to their namespace, and programs that fork may register memory.
pub(super) fn system() -> Row {
    Row::new(String::new(), []).with("netns", "exclusive").with("copy-on-fork", true)
}

/// A queue pair, and its process.
struct Owned {
    pid: u32,
    program: String,
    qp: QpReport,
}

/// Devices and their queue pairs, of all processes.
fn counted(only: Option<&str>) -> Result<Vec<(Listed, Vec<Owned>)>> {
    let wanted: Vec<String> = wished(only)?.into_iter().map(|device| device.name).collect();
    let mut all: Vec<_> = listed(None)?.into_iter().map(|device| (device, Vec::new())).collect();
    let clients =
        Observer::connect()?.map(|observer| observer.stats()).transpose()?.unwrap_or_default().clients;
    for client in clients {
        for qp in client.qps {
            // Queue pairs without a device, and those of an interface that is gone, are shown with the first device.
            let place = all.iter().position(|(device, _)| device.netdev == qp.interface).unwrap_or(0);
            if let Some((_, list)) = all.get_mut(place) {
                list.push(Owned { pid: client.pid, program: client.name.clone(), qp });
            }
        }
    }
    all.retain(|(device, _)| wanted.contains(&device.name));
    Ok(all)
}

/// By device; as far as they are known (`HostStats::devices`), those of processes that are gone, too, as long as there is a host
/// service.
pub(super) fn statistic(only: Option<&str>) -> Result<Rows> {
    let counted = match Observer::connect()? {
        Some(observer) => observer.stats()?.devices,
        None => BTreeMap::new(),
    };
    let row = |device: &Listed| {
        let value = |ours| counted.get(&device.name).and_then(|own| own.get(ours)).copied().unwrap_or(0);
        let named = HW_COUNTERS.iter().map(|(name, ours)| (name, value(*ours)));
        named.fold(Row::of_link(device), |row, (name, value)| row.with(name, value))
    };
    Ok(Rows(wished(only)?.iter().map(row).collect()))
}

pub(super) fn resources(only: Option<&str>) -> Result<Rows> {
    let row = |(device, pairs): &(Listed, Vec<Owned>)| Row::of_device(device).with("qp", pairs.len());
    Ok(Rows(counted(only)?.iter().map(row).collect()))
}

/// What the rows of queue pairs have beside their link, and may be chosen by.
const OF_QUEUE_PAIRS: [&str; 5] = ["lqpn", "type", "state", "pid", "comm"];

pub(super) fn queue_pairs(only: Option<&str>, filter: &[&str]) -> Result<Rows> {
    let (pairs, rest) = filter.as_chunks::<2>();
    if let Some(name) = rest.first() {
        return Err(format!("rdma: {name} has no value").into());
    }
    if let Some([name, _]) = pairs.iter().find(|[name, _]| !OF_QUEUE_PAIRS.contains(name)) {
        let known = OF_QUEUE_PAIRS.join(", ");
        return Err(format!("rdma: {name} is not known of queue pairs here; known are {known}").into());
    }
    let mut rows = Vec::new();
    for (device, owned) in counted(only)? {
        for Owned { pid, program, qp } in owned {
            let state = if qp.state == "ERROR" { "ERR".to_owned() } else { qp.state };
            let row = Row::of_link(&device).with("lqpn", qp.qpn).with("type", qp.service);
            rows.push(row.with("state", state).with("pid", pid).with("comm", program));
        }
    }
    for [name, wanted] in pairs {
        rows.retain(|row| {
            row.fields.get(*name).is_some_and(|value| plain(value).eq_ignore_ascii_case(wanted))
        });
    }
    Ok(Rows(rows))
}
