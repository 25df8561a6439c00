//! Arbitration between the virtual lanes of a link (IBTA vol. 1, 7.6.9.2).
//!
//! There are two tables of lanes with weights. The high-priority table goes first until its limit is reached. Then the
//! low-priority table may send one packet. Within a table the entries take turns, and each sends as much as its weight.

use crate::lanes::VL_COUNT;

/// An entry of a table: how much a lane may send in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The lane, 0 to 14. A lane may have several entries.
    pub vl: u8,
    /// The weight in units of 64 bytes, 0 to 255. An entry with 0 is skipped.
    pub weight: u8,
}

/// How much the high-priority table may send while packets wait in lanes of the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HighLimit(pub u8);

/// The tables of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    /// The high-priority table, 64 entries at most.
    pub high: Vec<Entry>,
    /// The low-priority table, 64 entries at most.
    pub low: Vec<Entry>,
    /// In units of 4096 bytes; 0 for one packet, 255 for no limit.
    pub limit: HighLimit,
}

impl Default for Tables {
    /// OpenSM's default: lane 0 has high priority, and the others have equal shares of the rest.
    fn default() -> Self {
        let entry = |vl, weight| Entry { vl, weight };
        let all = || 0..VL_COUNT as u8;
        Self {
            high: all().map(|vl| entry(vl, if vl == 0 { 4 } else { 0 })).collect(),
            low: all().map(|vl| entry(vl, if vl == 0 { 0 } else { 4 })).collect(),
            limit: HighLimit::default(),
        }
    }
}

/// Bytes of a unit of weight.
const UNIT: i64 = 64;
/// Bytes of a unit of the limit.
const LIMIT_UNIT: i64 = 4096;
/// The value for no limit.
const UNLIMITED: u8 = 255;

/// The largest length that is counted for a packet, in bytes. No packet is longer, and a wrong length must not block a lane for
/// ever.
const LONGEST: i64 = 64 * 1024;

/// The largest debt of a lane for packets that it sent without a turn, in bytes, so that it is not blocked for long.
const MOST_OWED: i64 = 4 * LONGEST;

/// An entry, and its credit: the bytes that it may still send in its turn. The credit may become negative, because packets are
/// not divided. The next turn is then shorter, which keeps the shares correct if packets are longer than weights.
#[derive(Clone, Copy, Debug)]
struct Spoke {
    vl: u8,
    weight: i64,
    credit: i64,
    /// The credit before the turn that was given last.
    before: i64,
}

/// A table, and the entry whose turn it is.
#[derive(Clone, Debug)]
struct Wheel {
    spokes: Vec<Spoke>,
    at: usize,
    /// The entry that had the turn before the last one.
    before: usize,
}

impl Wheel {
    fn new(entries: &[Entry]) -> Self {
        let usable = |entry: &&Entry| entry.weight > 0 && usize::from(entry.vl) < VL_COUNT;
        let spoke = |entry: &Entry| Spoke {
            vl: entry.vl,
            weight: i64::from(entry.weight) * UNIT,
            credit: 0,
            before: 0,
        };
        let mut spokes: Vec<Spoke> = entries.iter().filter(usable).map(spoke).collect();
        if let Some(first) = spokes.first_mut() {
            first.credit = first.weight;
        }
        Self { spokes, at: 0, before: 0 }
    }

    /// Saves the state, for [`Self::go_back`].
    fn remember(&mut self) {
        self.before = self.at;
        self.spokes.iter_mut().for_each(|spoke| spoke.before = spoke.credit);
    }

    fn go_back(&mut self) {
        self.at = self.before;
        self.spokes.iter_mut().for_each(|spoke| spoke.credit = spoke.before);
    }

    /// Goes to the entry whose turn it is. Returns its lane, if the table has a lane that waits.
    fn turn(&mut self, waits: &impl Fn(u8) -> bool) -> Option<u8> {
        let now = self.spokes.get(self.at)?;
        if now.credit > 0 && waits(now.vl) {
            return Some(now.vl);
        }
        if let Some(vl) = self.round(waits) {
            return Some(vl);
        }
        // All waiting lanes have sent more than their turn. Computes the number of rounds until the first may send again.
        let waiting = |spoke: &&mut Spoke| waits(spoke.vl);
        let rounds = |spoke: &mut Spoke| (spoke.weight - spoke.credit) / spoke.weight;
        let rounds = self.spokes.iter_mut().filter(waiting).map(rounds).min()?;
        for spoke in self.spokes.iter_mut().filter(waiting) {
            spoke.credit += (rounds - 1).max(0) * spoke.weight;
        }
        self.round(waits)
    }

    /// Gives the turn to the next entry that may send.
    fn round(&mut self, waits: &impl Fn(u8) -> bool) -> Option<u8> {
        for _ in 0..self.spokes.len() {
            // Unused credit is not kept.
            self.spokes[self.at].credit = self.spokes[self.at].credit.min(0);
            self.at = (self.at + 1) % self.spokes.len();
            let next = &mut self.spokes[self.at];
            next.credit += next.weight;
            if next.credit > 0 && waits(next.vl) {
                return Some(next.vl);
            }
        }
        None
    }

    fn sent(&mut self, bytes: i64) {
        if let Some(spoke) = self.spokes.get_mut(self.at) {
            spoke.credit -= bytes;
        }
    }

    /// Subtracts what a lane has sent without a turn from its next turns. False if it is in no entry.
    fn charge(&mut self, vl: u8, bytes: i64) -> bool {
        let spoke = self.spokes.iter_mut().find(|spoke| spoke.vl == vl);
        spoke.map(|spoke| spoke.credit = (spoke.credit - bytes).max(-MOST_OWED)).is_some()
    }

    fn has(&self, waits: &impl Fn(u8) -> bool) -> bool {
        self.spokes.iter().any(|spoke| waits(spoke.vl))
    }
}

/// The arbiter of one link.
#[derive(Clone, Debug)]
pub struct Arbiter {
    high: Wheel,
    low: Wheel,
    limit: HighLimit,
    /// Bytes that the high-priority table may still send before the other table has a packet.
    left: i64,
    /// The table that had the turn last.
    granted: Option<(bool, u8)>,
}

impl Arbiter {
    /// An arbiter at its start.
    #[must_use]
    pub fn new(tables: &Tables) -> Self {
        let mut arbiter = Self {
            high: Wheel::new(&tables.high),
            low: Wheel::new(&tables.low),
            limit: tables.limit,
            left: 0,
            granted: None,
        };
        arbiter.restore();
        arbiter
    }

    fn restore(&mut self) {
        // With 0 one packet of any length may be sent.
        self.left = (i64::from(self.limit.0) * LIMIT_UNIT).max(1);
    }

    /// The lane that may send its next packet, among those for which `waits` is true. Lanes that are in neither table never
    /// may. If this is called again without [`Self::sent`] in between, the earlier turn does not count, because that lane had
    /// no packet after all.
    pub fn next(&mut self, waits: impl Fn(u8) -> bool) -> Option<u8> {
        if self.granted.take().is_some() {
            self.high.go_back();
            self.low.go_back();
        } else {
            self.high.remember();
            self.low.remember();
        }
        let spent = self.limit.0 != UNLIMITED && self.left <= 0;
        let yields = spent && self.low.has(&waits);
        let high = if yields { None } else { self.high.turn(&waits) };
        self.granted = match high {
            Some(vl) => Some((true, vl)),
            None => self.low.turn(&waits).map(|vl| (false, vl)),
        };
        self.granted.map(|(_, vl)| vl)
    }

    /// The lane that [`Self::next`] returned has sent a packet of this length.
    pub fn sent(&mut self, bytes: usize) {
        let Some((high, _)) = self.granted.take() else { return };
        let bytes = i64::try_from(bytes).unwrap_or(LONGEST).min(LONGEST);
        if high {
            self.high.sent(bytes);
            self.left = self.left.saturating_sub(bytes);
        } else {
            self.low.sent(bytes);
            self.restore();
        }
    }
}

impl Arbiter {
    /// A lane has sent a packet of this length without a turn. Its next turns are shorter, up to a limit.
    pub fn charge(&mut self, vl: u8, bytes: usize) {
        if self.granted.take().is_some() {
            self.high.go_back();
            self.low.go_back();
        }
        let bytes = i64::try_from(bytes).unwrap_or(LONGEST).min(LONGEST);
        if self.high.charge(vl, bytes) {
            self.left = self.left.saturating_sub(bytes);
        } else {
            self.low.charge(vl, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that each lane sends of `packets` packets of 1024 bytes if all `busy` lanes always have one.
    fn shares(tables: &Tables, busy: &[u8], packets: usize) -> [usize; VL_COUNT] {
        let mut arbiter = Arbiter::new(tables);
        let mut sent = [0; VL_COUNT];
        for _ in 0..packets {
            let Some(vl) = arbiter.next(|vl| busy.contains(&vl)) else { break };
            sent[usize::from(vl)] += 1024;
            arbiter.sent(1024);
        }
        sent
    }

    fn entries(list: &[(u8, u8)]) -> Vec<Entry> {
        list.iter().map(|&(vl, weight)| Entry { vl, weight }).collect()
    }

    #[test]
    fn shares_follow_weights() {
        let low = entries(&[(1, 64), (2, 16), (3, 4), (4, 0)]);
        let tables = Tables { high: Vec::new(), low, limit: HighLimit(0) };
        // 4, 1 and a quarter of a packet a turn.
        let sent = shares(&tables, &[1, 2, 3, 4], 84_000).map(|bytes| bytes / 1024);
        assert_eq!(sent[1..5], [64_000, 16_000, 4000, 0], "without weight there is no turn");
        // So do weights that are all smaller than a packet.
        let small = Tables { low: entries(&[(1, 1), (2, 4)]), ..tables.clone() };
        let sent = shares(&small, &[1, 2], 5000).map(|bytes| bytes / 1024);
        assert!(sent[1].abs_diff(1000) < 3 && sent[2].abs_diff(4000) < 3, "{sent:?}");
        // A lane that has nothing to send leaves its share to the others.
        assert_eq!(shares(&tables, &[3], 10)[3], 10 * 1024);
        assert_eq!(shares(&tables, &[4, 7], 10), [0; VL_COUNT]);
    }

    #[test]
    fn the_high_table_yields_by_its_limit() {
        let tables =
            |limit| Tables { high: entries(&[(0, 255)]), low: entries(&[(1, 1)]), limit: HighLimit(limit) };
        let share = |limit| {
            let sent = shares(&tables(limit), &[0, 1], 5000);
            (sent[0] / 1024, sent[1] / 1024)
        };
        assert_eq!(share(0), (2500, 2500), "one packet each");
        assert_eq!(share(1), (4000, 1000), "4096 bytes, then one packet");
        assert_eq!(share(255), (5000, 0));
        assert_eq!(shares(&tables(0), &[0], 9)[0], 9 * 1024, "nobody waits below");
    }

    #[test]
    fn a_turn_that_is_not_used_costs_nothing() {
        let low = entries(&[(1, 64), (2, 16), (3, 4)]);
        let mut arbiter = Arbiter::new(&Tables { high: Vec::new(), low, limit: HighLimit(0) });
        let mut sent = [0; 4];
        for turn in 0..8400 {
            // Now and then lanes that were chosen have no packet after all.
            if turn % 3 == 0 {
                for waiting in [0b1110_u8, 0b1100, 0b1000] {
                    arbiter.next(|vl| vl < 4 && waiting & 1 << vl != 0);
                }
            }
            let vl = arbiter.next(|vl| (1..4).contains(&vl)).unwrap();
            arbiter.sent(1024);
            sent[usize::from(vl)] += 1;
        }
        assert_eq!(sent[1..], [6400, 1600, 400]);
    }

    #[test]
    fn what_is_sent_without_a_turn_counts() {
        let low = entries(&[(1, 16), (2, 16)]);
        let mut arbiter = Arbiter::new(&Tables { high: Vec::new(), low, limit: HighLimit(0) });
        let mut sent = [0_usize; 3];
        for turn in 0..3000 {
            let vl = arbiter.next(|vl| vl < 3).unwrap();
            arbiter.sent(1024);
            sent[usize::from(vl)] += 1;
            if turn % 3 == 0 {
                arbiter.charge(1, 1024);
                sent[1] += 1;
            }
        }
        assert!(sent[1].abs_diff(sent[2]) < 5, "{sent:?}");
        arbiter.charge(9, usize::MAX);
        for _ in 0..1000 {
            arbiter.charge(1, usize::MAX);
        }
        let silent = (0..1000).position(|_| {
            let vl = arbiter.next(|vl| vl < 3);
            arbiter.sent(1024);
            vl == Some(1)
        });
        assert!(silent.is_some_and(|packets| packets < 300), "{silent:?}");
    }

    #[test]
    fn nothing_waits_and_nothing_breaks() {
        let mut arbiter = Arbiter::new(&Tables { high: Vec::new(), low: Vec::new(), limit: HighLimit(3) });
        assert_eq!(arbiter.next(|_| true), None);
        arbiter.sent(usize::MAX);
        let mut arbiter = Arbiter::new(&Tables::default());
        assert_eq!(arbiter.next(|vl| vl == 5), Some(5));
        arbiter.sent(usize::MAX);
        assert_eq!(arbiter.next(|vl| vl == 5), Some(5));
        let strange = Tables { high: entries(&[(15, 9), (200, 9)]), ..Tables::default() };
        assert_eq!(Arbiter::new(&strange).next(|vl| vl > 14), None);
    }
}
