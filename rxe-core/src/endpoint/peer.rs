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
    /// All lists, each of them first in turn.
    const ORDERS: [[Self; 3]; 3] = [
        [Self::Answers, Self::Ready, Self::Line],
        [Self::Ready, Self::Line, Self::Answers],
        [Self::Line, Self::Answers, Self::Ready],
    ];
}

/// What one virtual lane has for a destination.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// Queue pairs that may have requests to send.
    pub ready: VecDeque<Qpn>,
    /// Queue pairs that have answers to send.
    pub answering: VecDeque<Qpn>,
    /// Queue pairs that wait for room.
    pub line: Line,
    /// Among the destinations with something to send, in this lane.
    pub scheduled: bool,
    /// Batches begun: each begins with another list.
    batches: usize,
}

impl Lists {
    /// In which order the next batch is filled from the lists: each of them is first in turn, so that none starves.
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
    /// Lane 0, in which all are where nothing else is configured,
    first: Lists,
    /// and the lanes from 1 on, as far as any queue pair had something there.
    more: Vec<Lists>,
    /// Queue pairs that owe an acknowledgement.
    pub owing: VecDeque<Qpn>,
    /// Since when `owing` is not empty.
    pub owed_since: Instant,
    /// Among the destinations that are owed something.
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

    /// Whether anybody waits for room, in whichever lane.
    #[inline]
    pub(super) fn is_awaited(&self) -> bool {
        !self.first.line.is_empty() || self.more.iter().any(|lists| !lists.line.is_empty())
    }

    /// Whether anybody waits for room in another lane.
    #[inline]
    pub(super) fn is_awaited_beside(&self, lane: u8) -> bool {
        !self.more.is_empty() && self.lanes().any(|(other, lists)| other != lane && !lists.line.is_empty())
    }

    /// Those for whom `first` is true come first in the lines. How many they are.
    pub(super) fn prefer(&mut self, mut first: impl FnMut(Qpn) -> bool) -> usize {
        self.lanes_mut().map(|(_, lists)| lists.line.prefer(&mut first)).sum()
    }

    /// Takes the next queue pair of a list. Of the line only if it may have something now: to begin a batch (`begins`), or to go on
    /// with one.
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
