//! Packets as a ladder: a line for each address, an arrow for each packet.

use crate::{
    fields::fields,
    flow::{Marks, Remark, WORDS},
    packet::Packet,
};
use rxe_core::{
    num::Qpn,
    wire::{Class, Service},
};
use rxe_ladder::{ActorId, ClassId, Fate, Field, Hue, Ladder, Step};
use std::{collections::HashMap, net::IpAddr};

/// Most packets of a ladder. A larger page would be slow to load.
pub const MOST: usize = 50_000;

/// Builds a ladder packet by packet.
#[derive(Debug)]
pub struct Builder {
    ladder: Ladder,
    start: u64,
    /// By address. For hosts that send to themselves, also by queue pair.
    actors: HashMap<(IpAddr, Option<Qpn>), ActorId>,
    marks: Vec<(Marks, ClassId)>,
    kinds: [ClassId; 4],
    /// Number of packets that were left out.
    left_out: u64,
}

impl Builder {
    /// An empty one; `start` is the time that counts as 0, nanoseconds since 1970.
    #[must_use]
    pub fn new(title: &str, start: u64) -> Self {
        let mut ladder = Ladder::new(title);
        let mut class = |name: &str, hue: Hue, about: &str, notable: bool| {
            let class = rxe_ladder::Class::new(name, hue).about(about);
            ladder.class(if notable { class.notable() } else { class })
        };
        let kinds = [
            class("data", Hue::Blue, "requests: SEND, WRITE, READ, atomics", false),
            class("acks", Hue::Green, "acknowledgements and READ responses", false),
            class("datagrams", Hue::Teal, "UD", false),
            class("CM", Hue::Violet, "messages of the connection manager", false),
        ];
        let red = Marks::LOST | Marks::BAD_ICRC | Marks::UNREADABLE | Marks::GAP;
        let marks = WORDS.iter().filter(|(mark, _, _)| *mark != Marks::CM).map(|&(mark, word, about)| {
            let hue = match mark {
                _ if red.contains(mark) => Hue::Red,
                _ if Marks::NOTABLE.contains(mark) => Hue::Orange,
                _ => Hue::Grey,
            };
            (mark, class(word, hue, about, Marks::NOTABLE.contains(mark)))
        });
        let marks = marks.collect();
        Self { ladder, start, actors: HashMap::new(), marks, kinds, left_out: 0 }
    }

    /// Adds a packet. The remark already includes later findings. `from_qp` is the queue pair that sent it, if known.
    pub fn add(&mut self, packet: &Packet<'_>, remark: &Remark, from_qp: Option<Qpn>) {
        if self.ladder.len() >= MOST {
            self.left_out += 1;
            return;
        }
        let (src, dst) = packet.addresses();
        let is_own = src == dst;
        let to_qp = packet.head.as_ref().ok().map(|head| head.bth.dest_qp).filter(|_| is_own);
        let (from, to) = (self.actor(src, from_qp.filter(|_| is_own)), self.actor(dst, to_qp));
        let time = packet.time.saturating_sub(self.start);
        let label = packet.label();
        let mut step = Step::arrow(from, to, time, label);
        if remark.marks.intersects(Marks::LOST | Marks::BAD_ICRC) {
            step = step.fate(Fate::Lost);
        }
        for (mark, class) in &self.marks {
            if remark.marks.intersects(*mark) && *mark != Marks::CUT && *mark != Marks::COPY {
                step = step.class(*class);
            }
        }
        step = step.class(self.kinds[kind(packet)]);
        for (mark, class) in &self.marks {
            if remark.marks.intersects(*mark & (Marks::CUT | Marks::COPY)) {
                step = step.class(*class);
            }
        }
        if let Some(why) = &remark.why {
            step = step.field(Field::new("remark", why.clone()));
        }
        step.extend(fields(packet).iter().map(crate::fields::Field::drawn));
        self.ladder.push(step);
    }

    fn actor(&mut self, address: IpAddr, qp: Option<Qpn>) -> ActorId {
        let ladder = &mut self.ladder;
        let about = qp.map_or_else(String::new, |qp| format!("qp {qp}"));
        *self.actors.entry((address, qp)).or_insert_with(|| ladder.actor(address.to_string(), about))
    }

    /// The ladder, with a note on top.
    #[must_use]
    pub fn finish(mut self, note: &str) -> Ladder {
        for line in note.lines() {
            self.ladder.note(line);
        }
        if self.left_out > 0 {
            let left_out = self.left_out;
            self.ladder.note(format!("Only the first {MOST} packets are here; {left_out} more were chosen. A filter or --flow chooses fewer."));
        }
        self.ladder
    }
}

fn kind(packet: &Packet<'_>) -> usize {
    let Ok(head) = &packet.head else { return 0 };
    match (head.info.service, head.info.class) {
        (Service::Ud, _) if packet.mad().is_some() => 3,
        (Service::Ud, _) => 2,
        (_, Class::Acknowledge | Class::AtomicAcknowledge | Class::ReadResponse | Class::Congestion) => 1,
        _ => 0,
    }
}
