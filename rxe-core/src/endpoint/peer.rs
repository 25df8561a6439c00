//! One destination socket: its window, and the lists of the queue pairs that have something for it.

use crate::{num::Qpn, qp::flow::Window, time::Instant};
use alloc::collections::VecDeque;
use core::net::IpAddr;

/// A list that batches are filled from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum List {
    /// Queue pairs with answers.
    Answers,
    /// Queue pairs that may have requests.
    Ready,
    /// Queue pairs that wait in line for the window.
    Line,
}

impl List {
    /// All lists, each of them first in turn.
    const ORDERS: [[Self; 3]; 3] = [
        [Self::Answers, Self::Ready, Self::Line],
        [Self::Ready, Self::Line, Self::Answers],
        [Self::Line, Self::Answers, Self::Ready],
    ];
}

/// One destination socket: an address and a slot.
#[derive(Debug)]
pub(super) struct Peer {
    pub key: (IpAddr, u8),
    pub window: Window,
    /// Queue pairs that may have requests to send.
    pub ready: VecDeque<Qpn>,
    /// Queue pairs that have answers to send.
    pub answering: VecDeque<Qpn>,
    /// Queue pairs that owe an acknowledgement.
    pub owing: VecDeque<Qpn>,
    /// Since when `owing` is not empty.
    pub owed_since: Instant,
    /// Among the destinations that are owed something.
    pub owed: bool,
    /// Among the destinations with something to send.
    pub scheduled: bool,
    /// Deadline of the line that the timer list knows of.
    pub timer: Option<Instant>,
    /// Batches begun: each begins with another list.
    batches: usize,
}

impl Peer {
    pub(super) fn new(key: (IpAddr, u8), window: Window) -> Self {
        Self {
            key,
            window,
            ready: VecDeque::new(),
            answering: VecDeque::new(),
            owing: VecDeque::new(),
            owed_since: Instant::ZERO,
            owed: false,
            scheduled: false,
            timer: None,
            batches: 0,
        }
    }

    /// In which order the next batch is filled from the lists: each of them is first in turn, so that none starves.
    pub(super) const fn order(&mut self) -> [List; 3] {
        self.batches = if self.batches == 2 { 0 } else { self.batches + 1 };
        List::ORDERS[self.batches]
    }

    /// Whether nobody is in a list.
    #[inline]
    pub(super) fn is_empty(&self, list: List) -> bool {
        match list {
            List::Answers => self.answering.is_empty(),
            List::Ready => self.ready.is_empty(),
            List::Line => self.window.line.is_empty(),
        }
    }

    /// The next queue pair of a list. Of the line only if it may have something now: to begin a batch (`begins`), or to go on
    /// with one.
    pub(super) fn next(&mut self, list: List, begins: bool) -> Option<Qpn> {
        match list {
            List::Answers => self.answering.pop_front(),
            List::Ready => self.ready.pop_front(),
            List::Line if begins && !self.window.opens() => None,
            List::Line => self.window.line.next(),
        }
    }
}
