//! One destination socket: its window, and the lists of the queue pairs that have something for it.

use crate::{
    num::Qpn,
    qp::flow::{Line, Window},
    time::Instant,
};
use alloc::{collections::VecDeque, vec::Vec};
use core::{iter, net::IpAddr};

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
    /// Three orders. Each list comes first in one of them.
    const ORDERS: [[Self; 3]; 3] = [
        [Self::Answers, Self::Ready, Self::Line],
        [Self::Ready, Self::Line, Self::Answers],
        [Self::Line, Self::Answers, Self::Ready],
    ];
}

/// The lists of one virtual lane for a destination.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// Queue pairs that may have requests to send.
    pub ready: VecDeque<Qpn>,
    /// Queue pairs that have answers to send.
    pub answering: VecDeque<Qpn>,
    /// Queue pairs that wait for room.
    pub line: Line,
    /// Whether the schedule lists the destination among those with something to send in this lane.
    pub scheduled: bool,
    /// Number of batches begun. Each begins with another list.
    batches: usize,
}

impl Lists {
    /// The order in which the next batch is filled from the lists. Each list is first in turn, so that none starves.
    pub(super) const fn order(&mut self) -> [List; 3] {
        self.batches = if self.batches == 2 { 0 } else { self.batches + 1 };
        List::ORDERS[self.batches]
    }
}

/// One destination socket: an address and a slot.
#[derive(Debug)]
pub(super) struct Peer {
    pub key: (IpAddr, u8),
    pub window: Window,
    /// Lane 0. Without other configuration all packets are in it.
    first: Lists,
    /// The lanes from 1 on, as far as a queue pair has had something in them.
    more: Vec<Lists>,
    /// Queue pairs that owe an acknowledgement.
    pub owing: VecDeque<Qpn>,
    /// Since when `owing` is not empty.
    pub owed_since: Instant,
    /// Whether the schedule lists it among the destinations to which acknowledgements are owed.
    pub owed: bool,
    /// Deadline of the lines that the timer list knows of.
    pub timer: Option<Instant>,
}

impl Peer {
    pub(super) fn new(key: (IpAddr, u8), window: Window) -> Self {
        Self {
            key,
            window,
            first: Lists::default(),
            more: Vec::new(),
            owing: VecDeque::new(),
            owed_since: Instant::ZERO,
            owed: false,
            timer: None,
        }
    }

    /// The lists of a lane.
    #[inline]
    pub(super) fn lane(&mut self, lane: u8) -> &mut Lists {
        if lane == 0 { &mut self.first } else { self.other_lane(lane) }
    }

    #[cold]
    fn other_lane(&mut self, lane: u8) -> &mut Lists {
        let index = usize::from(lane) - 1;
        if index >= self.more.len() {
            self.more.resize_with(index + 1, Lists::default);
        }
        &mut self.more[index]
    }

    /// The lists of all lanes.
    pub(super) fn lanes(&self) -> impl Iterator<Item = (u8, &Lists)> {
        (0..).zip(iter::once(&self.first).chain(&self.more))
    }

    /// The same, to be changed.
    pub(super) fn lanes_mut(&mut self) -> impl Iterator<Item = (u8, &mut Lists)> {
        (0..).zip(iter::once(&mut self.first).chain(&mut self.more))
    }

    /// Whether a queue pair of any lane waits for room.
    #[inline]
    pub(super) fn is_awaited(&self) -> bool {
        !self.first.line.is_empty() || self.more.iter().any(|lists| !lists.line.is_empty())
    }

    /// Whether a queue pair of another lane waits for room.
    #[inline]
    pub(super) fn is_awaited_beside(&self, lane: u8) -> bool {
        !self.more.is_empty() && self.lanes().any(|(other, lists)| other != lane && !lists.line.is_empty())
    }

    /// Moves queue pairs for which `first` is true to the front of the lines. Returns how many were moved.
    pub(super) fn prefer(&mut self, mut first: impl FnMut(Qpn) -> bool) -> usize {
        self.lanes_mut().map(|(_, lists)| lists.line.prefer(&mut first)).sum()
    }

    /// Takes the next queue pair of a list. It is taken from the line only if it may send now: begin a batch (`begins`), or go on with
    /// one.
    #[inline]
    pub(super) fn next(&mut self, lane: u8, list: List, begins: bool) -> Option<Qpn> {
        match list {
            List::Answers => self.lane(lane).answering.pop_front(),
            List::Ready => self.lane(lane).ready.pop_front(),
            List::Line if self.lane(lane).line.is_empty() || begins && !self.window.opens() => None,
            List::Line => self.lane(lane).line.next(),
        }
    }
}
