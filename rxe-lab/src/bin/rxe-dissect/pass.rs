//! One pass over a capture, with a progress bar if it is long and the output is a terminal.

use super::Result;
use indicatif::{ProgressBar, ProgressStyle};
use rxe_core::num::Qpn;
use rxe_lab::{
    capture::{Capture, CaptureError},
    filter::Filter,
    flow::{Analyzer, Marks, Place, Remark, Summary},
    packet::{Found, Packet},
    report::{self, line},
};
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
};

/// Captures of more than this have a progress bar, bytes.
const LONG: u64 = 64 << 20;
/// Packets between two updates of the progress.
const STEP: u64 = 1 << 14;
/// Most packets for which later findings are kept.
const MOST_KNOWN: usize = 1 << 20;

/// The options of a pass.
pub(crate) struct Pass<'a> {
    pub(crate) capture: Capture,
    pub(crate) analyzer: Analyzer,
    /// The findings of an earlier pass.
    pub(crate) known: Option<&'a Stop>,
    /// Bytes of the capture; 0 if unknown.
    pub(crate) len: u64,
    pub(crate) stop: &'a AtomicBool,
}

/// The results of a pass.
pub(crate) struct Stop {
    pub(crate) analyzer: Analyzer,
    pub(crate) summary: Summary,
    pub(crate) damage: Option<CaptureError>,
    later: HashMap<Place, (Marks, String)>,
}

/// A packet to be shown.
pub(crate) struct Shown<'a, 'b> {
    pub(crate) packet: &'a Packet<'b>,
    pub(crate) remark: &'a Remark,
    analyzer: &'a Analyzer,
    /// The time of the first frame.
    pub(crate) start: u64,
}

impl Shown<'_, '_> {
    pub(crate) fn is_chosen(&self, filter: &Filter, flow: Option<Qpn>) -> bool {
        flow.is_none_or(|qp| self.analyzer.is_of_qp(self.packet, self.remark, qp))
            && filter.chooses(self.packet, self.remark, self.analyzer, self.start)
    }

    pub(crate) fn line(&self, look: line::Look) -> String {
        line::line(self.packet, self.remark, self.start, look)
    }

    pub(crate) fn json(&self) -> Value {
        report::json(self.packet, self.remark)
    }

    pub(crate) fn source_qp(&self) -> Option<Qpn> {
        self.analyzer.source_qp(self.packet, self.remark)
    }
}

impl Pass<'_> {
    pub(crate) fn run(mut self, mut each: impl FnMut(&Shown<'_, '_>) -> Result<()>) -> Result<Stop> {
        let bar = if self.len > LONG { progress(self.len) } else { ProgressBar::hidden() };
        let (mut number, mut start, mut damage) = (0, None, None);
        let mut later = HashMap::new();
        while !self.stop.load(Ordering::Relaxed) {
            let record = match self.capture.next_record() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(error) => {
                    damage = Some(error);
                    break;
                }
            };
            number += 1;
            let start = *start.get_or_insert(record.time);
            let (analyzer, known) = (&mut self.analyzer, self.known);
            let mut show = |packet: &Packet<'_>| -> Result<()> {
                let mut remark = analyzer.packet(packet);
                for (place, marks, why) in analyzer.hindsight() {
                    if later.len() < MOST_KNOWN {
                        later.entry(place).or_insert((marks, why));
                    }
                }
                if let Some((marks, why)) =
                    known.and_then(|known| known.later.get(&(packet.number, packet.part)))
                {
                    remark.marks |= *marks;
                    remark.why = Some(remark.why.map_or_else(|| why.clone(), |own| format!("{own}; {why}")));
                }
                each(&Shown { packet, remark: &remark, analyzer, start })
            };
            match Found::new(number, &record) {
                Ok(Found::One(packet)) => show(&packet)?,
                Ok(Found::Batch(mut batch)) => batch.try_for_each(|packet| show(&packet))?,
                Err(other) => self.analyzer.other(other, record.time),
            }
            if number % STEP == 0 {
                bar.set_position(self.capture.position());
            }
        }
        bar.finish_and_clear();
        let summary = self.analyzer.finish();
        for (place, marks, why) in self.analyzer.hindsight() {
            if later.len() < MOST_KNOWN {
                later.entry(place).or_insert((marks, why));
            }
        }
        Ok(Stop { analyzer: self.analyzer, summary, damage, later })
    }
}

fn progress(len: u64) -> ProgressBar {
    let bar = ProgressBar::new(len);
    let style = ProgressStyle::with_template("{bar:40} {binary_bytes} of {binary_total_bytes}, {eta} left");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}
