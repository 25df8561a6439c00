//! Printing messages and events: a thread that prints them in the order in which they were seen.

use super::{
    cell::{hex, shown, time},
    fields::{Field, Fields},
};
use crate::Result;
use anstyle::{AnsiColor, Style};
use rxe_cm::{CmEvent, Crossing, Direction, EventKind, Manager, Offer, proto::Datagram};
use serde_json::{Map, Value, json};
use std::{
    collections::HashMap,
    io::{self, IsTerminal},
    net::IpAddr,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

/// Most messages that are remembered.
const MOST_SEEN: usize = 4096;

/// Options for printing.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Look {
    /// Print every field of each message
    #[arg(short, long)]
    pub(super) verbose: bool,
    /// Print JSON, one object a line, with every field
    #[arg(long)]
    pub(super) json: bool,
}

/// What is printed.
enum Item {
    Message(Duration, Box<Crossing>),
    /// Name, text and JSON of an event.
    Event(Duration, &'static str, String, Map<String, Value>),
    /// Marks that everything before it was printed.
    End(Sender<()>),
}

/// The queue of things to print.
pub(super) struct Show {
    start: Instant,
    items: Sender<Item>,
}

impl Show {
    /// Prints every message of the manager from now on.
    pub(super) fn new(manager: &Manager, style: Look) -> Result<Self> {
        let start = Instant::now();
        let (items, todo) = channel();
        let printer = Printer { style, colours: Colours::new(style.json), seen: HashMap::new() };
        thread::Builder::new().name("printer".to_owned()).spawn(move || printer.run(&todo))?;
        let watcher = items.clone();
        manager.watch(move |crossing| {
            // Fails at the end of the program, when the thread is gone.
            let _ = watcher.send(Item::Message(start.elapsed(), Box::new(*crossing)));
        });
        Ok(Self { start, items })
    }

    pub(super) fn event(&self, event: &CmEvent) {
        let (words, json) = describe(event);
        self.say(event.kind.name(), words, json);
    }

    /// Prints something other than an event of an id.
    pub(super) fn say(&self, name: &'static str, words: String, json: Map<String, Value>) {
        let _ = self.items.send(Item::Event(self.start.elapsed(), name, words, json));
    }

    /// Waits until everything was printed.
    pub(super) fn finish(&self) {
        let (done, wait) = channel();
        if self.items.send(Item::End(done)).is_ok() {
            let _ = wait.recv();
        }
    }
}

/// The text and JSON of an event.
fn describe(event: &CmEvent) -> (String, Map<String, Value>) {
    let mut json = Map::new();
    let mut put = |name: &str, value: Value| json.insert(name.to_owned(), value);
    put("status", event.status().into());
    let ends = (event.id.local_addr(), event.id.peer_addr());
    if let (Some(local), Some(peer)) = ends {
        put("local", local.to_string().into());
        put("peer", peer.to_string().into());
    }
    let words = match &event.kind {
        EventKind::AddrResolved => match ends {
            (Some(local), Some(peer)) => format!("we are {local}, the peer is {peer}"),
            _ => String::new(),
        },
        EventKind::RouteResolved => event.id.path().map_or_else(String::new, |path| {
            let (sl, class, mtu) = (path.av.service_level, path.av.traffic_class, path.mtu.bytes());
            put("service_level", sl.into());
            put("traffic_class", class.into());
            put("mtu", mtu.into());
            put("packet_lifetime", path.packet_lifetime.into());
            let (code, life) = (path.packet_lifetime, time(path.packet_lifetime));
            format!("SL {sl}, traffic class {class:#04x}, MTU {mtu}, packets live {life} (code {code})")
        }),
        EventKind::ConnectRequest(offer) | EventKind::Established(offer) => offered(offer, &mut put),
        EventKind::ConnectResponse(_) => "the peer accepts".to_owned(),
        EventKind::Rejected(reason) => format!("the peer refuses: {reason}"),
        EventKind::NoService(status) => format!("the peer has no such service: {status}"),
        EventKind::Disconnected { .. } => "one of the two has ended the connection".to_owned(),
        EventKind::TimewaitExit => {
            "no packet of the connection can be on its way any more: the queue pair's number is free"
                .to_owned()
        }
        other => other.words(),
    };
    let mut words = words;
    if !event.private_data.is_empty() {
        put("private_data", hex(&event.private_data).into());
        if event.private_data.iter().any(|byte| *byte != 0) {
            words += &format!("; private data {}", shown(&event.private_data));
        }
    }
    (words, json)
}

fn offered(offer: &Offer, put: &mut impl FnMut(&str, Value) -> Option<Value>) -> String {
    match offer {
        Offer::Connection(terms) => {
            let (take, issue) = (terms.responder_resources, terms.initiator_depth);
            put("responder_resources", take.into());
            put("initiator_depth", issue.into());
            put("qpn", terms.qpn.value().into());
            let qpn = terms.qpn.value();
            format!("peer's QPN {qpn:#08x}; we may issue {issue} READs at a time, and take {take}")
        }
        Offer::Datagram(Some(terms)) => {
            let (qpn, qkey) = (terms.qpn.value(), terms.qkey.0);
            put("qpn", qpn.into());
            put("qkey", qkey.into());
            format!("datagrams go to QPN {qpn:#08x} with Q_Key {qkey:#010x}")
        }
        Offer::Datagram(None) => "somebody asks for the datagram service".to_owned(),
    }
}

/// Styles. There are none if the output is not a terminal.
struct Colours {
    sent: Style,
    received: Style,
    event: Style,
    note: Style,
}

impl Colours {
    fn new(json: bool) -> Self {
        let none = Style::new();
        let wanted = !json && io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        if !wanted {
            return Self { sent: none, received: none, event: none, note: none };
        }
        Self {
            sent: AnsiColor::Cyan.on_default().bold(),
            received: AnsiColor::Green.on_default().bold(),
            event: AnsiColor::Yellow.on_default(),
            note: none.dimmed(),
        }
    }
}

struct Printer {
    style: Look,
    colours: Colours,
    /// How often each message was seen in the same direction between the same two ends, to mark repetitions.
    seen: HashMap<(bool, IpAddr, [u8; 256]), u32>,
}

impl Printer {
    fn run(mut self, items: &Receiver<Item>) {
        for item in items {
            let text = match item {
                Item::Message(time, crossing) => self.message(time, &crossing),
                Item::Event(time, name, words, json) => self.event(time, name, &words, json),
                Item::End(done) => {
                    let _ = done.send(());
                    continue;
                }
            };
            out!("{text}");
        }
    }

    fn message(&mut self, at: Duration, crossing: &Crossing) -> String {
        let Crossing { direction, local, peer, datagram, .. } = crossing;
        let sent = *direction == Direction::Sent;
        if self.seen.len() >= MOST_SEEN {
            self.seen.clear();
        }
        let count = self.seen.entry((sent, *peer, datagram.emit())).or_default();
        *count += 1;
        let (again, name) = (*count - 1, datagram.message.name());
        let fields = Fields::of(&datagram.message).0;
        if self.style.json {
            let values: Map<String, Value> =
                fields.into_iter().map(|field| (field.name, field.value.json)).collect();
            let line = json!({
                "time_ms": ms(at), "direction": if sent { "sent" } else { "received" },
                "local": local, "peer": peer, "message": name,
                "transaction": format!("{:#018x}", datagram.transaction), "modifier": datagram.modifier,
                "again": again, "fields": values,
            });
            return format!("{line}\n");
        }
        let (arrow, style) = if sent { ("-->", self.colours.sent) } else { ("<--", self.colours.received) };
        let way = if sent { "to" } else { "from" };
        let mut text = format!("{:>11.3} ms  {style}{arrow} {name}{style:#} {way} {peer}", ms(at));
        if again > 0 {
            return format!("{text}, again ({again})\n");
        }
        text.push('\n');
        if self.style.verbose {
            let Datagram { transaction, modifier, .. } = datagram;
            self.line(&mut text, "transaction", &format!("{transaction:#018x}"), "copied by answers");
            self.line(&mut text, "modifier", &format!("{modifier:#010x}"), "connection options (ECE)");
        }
        let wanted = |field: &&Field| field.matters || self.style.verbose && !field.value.text.is_empty();
        for field in fields.iter().filter(wanted) {
            self.line(&mut text, &field.name.replace('_', " "), &field.value.text, &field.note);
        }
        text
    }

    fn line(&self, text: &mut String, name: &str, value: &str, note: &str) {
        let dim = self.colours.note;
        let line = format!("{:>18}{name:<28}{value:<20} {dim}{note}{dim:#}", "");
        text.push_str(line.trim_end());
        text.push('\n');
    }

    fn event(&self, at: Duration, name: &str, words: &str, json: Map<String, Value>) -> String {
        if self.style.json {
            let mut line = json!({ "time_ms": ms(at), "event": name, "words": words });
            if let Some(line) = line.as_object_mut() {
                line.extend(json);
            }
            return format!("{line}\n");
        }
        let style = self.colours.event;
        let line = format!("{:>11.3} ms  {style}*** {name}{style:#}  {words}", ms(at));
        format!("{}\n", line.trim_end())
    }
}

/// Milliseconds, to the microsecond.
fn ms(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}
