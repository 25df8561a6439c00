//! The service's log. Lines that others can cause are limited in number, so that they do not push out other lines.

use super::Place;
use std::{
    collections::VecDeque,
    io::{self, Write},
    time::{Duration, Instant},
};

/// Most lines that are kept.
const LINES: usize = 200;

/// Most limited lines that may be written at once.
const BURST: u32 = 32;
/// After this long one more may be written.
const PAUSE: Duration = Duration::from_millis(500);

/// How many lines may be written, and how many were left out.
#[derive(Debug)]
struct Seldom {
    left: u32,
    refilled: Instant,
    hidden: u64,
}

impl Seldom {
    const fn new(now: Instant) -> Self {
        Self { left: BURST, refilled: now, hidden: 0 }
    }

    /// Whether a line may be written now.
    fn take(&mut self, now: Instant) -> bool {
        let more = now.duration_since(self.refilled).as_millis() / PAUSE.as_millis();
        if more > 0 {
            self.left = (self.left + u32::try_from(more).unwrap_or(BURST).min(BURST)).min(BURST);
            self.refilled = now;
        }
        let may = self.left > 0;
        self.left -= u32::from(may);
        self.hidden += u64::from(!may);
        may
    }

    /// The lines that were left out since the last call.
    fn hidden(&mut self) -> u64 {
        core::mem::take(&mut self.hidden)
    }
}

/// The last lines, each with the seconds since the start.
#[derive(Debug)]
pub(super) struct Journal {
    started: Instant,
    /// Whether lines are also printed: there is a terminal, or the service's starter reads them.
    is_printed: bool,
    lines: VecDeque<String>,
    seldom: Seldom,
}

impl Journal {
    pub(super) fn new(started: Instant, place: Place) -> Self {
        let is_printed = place == Place::Foreground;
        Self { started, is_printed, lines: VecDeque::new(), seldom: Seldom::new(started) }
    }

    /// When the service started.
    pub(super) const fn started(&self) -> Instant {
        self.started
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }

    /// Writes a line.
    pub(super) fn note(&mut self, text: &str) {
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        let line = format!("{:9.3} {text}", self.started.elapsed().as_secs_f64());
        if self.is_printed {
            // There may be no reader.
            let _ = writeln!(io::stderr(), "rxe service: {line}");
        }
        self.lines.push_back(line);
    }

    /// Writes a line that others can cause any number of times.
    pub(super) fn note_seldom(&mut self, text: &str) {
        if self.seldom.take(Instant::now()) {
            self.note(text);
        }
    }

    /// Writes how many of those were left out since the last call.
    pub(super) fn tell_hidden(&mut self) {
        match self.seldom.hidden() {
            0 => {}
            count => self.note(&format!("{count} more lines of such kinds were left out")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_few_lines_and_a_number() {
        let start = Instant::now();
        let mut seldom = Seldom::new(start);
        let written = (0..1000).filter(|_| seldom.take(start)).count();
        assert_eq!((written as u32, seldom.hidden(), seldom.hidden()), (BURST, 1000 - u64::from(BURST), 0));
        assert!(!seldom.take(start + PAUSE / 2));
        assert!(seldom.take(start + PAUSE) && !seldom.take(start + PAUSE));
        assert_eq!((0..1000).filter(|_| seldom.take(start + PAUSE * 10_000)).count() as u32, BURST);
    }
}
