//! Small messages that wait for the application's next call, so that many leave by one system call.
//!
//! Messages wait only if such a call is to come. An application that polls makes it by itself. An application that packets
//! wake by its descriptor is called by that ([`super::lookout`]). `Shard::post` asks, and the next turn sends what waits.

use core::time::Duration;
use rxe_core::time::Instant;

/// Messages, and bytes of them, that wait for the next call at most: four batches. (Half of it made an echo of 4 KiB by 50
/// connections of one queue slower by a twentieth, and nothing else that was measured.)
const MOST: (u32, u64) = (64, 240 << 10);
/// Bytes that a message counts beside its payload when it is compared with the bytes under way, which count packets so.
const MESSAGE_COST: u64 = 64;
/// Messages wait only if a call has looked for packets, or many have left in a row, within this time. None should wait longer.
const LONGEST: Duration = Duration::from_micros(50);
/// If so many leave together, they are posted in a row, however long that takes.
const MANY: u32 = 16;
/// So many messages, each posted within this time after the one before (the time to send it included), are a row, too. So a
/// thread that loses its processor in the middle of a row can go on with it.
const ROW: (Duration, u32) = (Duration::from_micros(8), 4);
/// If the next call came later than [`LONGEST`] after the last message that waited, so many messages are then sent at once. So
/// a program that posts and then computes has one of so many delayed.
/// (`spin`: of WRITEs behind which the program computes for 500 us, nine in ten arrive within
/// 40 us; without this half of them after 240 us.)
const OFF: u32 = 64;

/// When the application's next call comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Soon, if it goes on polling as it has.
    Guessed,
    /// When the engine calls it, by making the lookout readable.
    Called,
}

/// The messages that wait.
#[derive(Debug, Default)]
pub(super) struct Hold {
    count: u32,
    bytes: u64,
    /// When the first and the last of those that wait were posted.
    oldest: Instant,
    latest: Instant,
    /// When many of them last left because no more could wait.
    in_a_row: Instant,
    /// When a message was last posted that might have waited.
    posted: Instant,
    /// How many of those were posted in a row.
    row: u32,
    /// Something has arrived since the last of those was posted.
    heard: bool,
    /// How many further messages are sent at once ([`OFF`]).
    off: u32,
}

impl Hold {
    /// Whether messages are sent at once because waiting has delayed some lately. Each call counts one message off.
    pub(super) const fn is_off(&mut self) -> bool {
        let off = self.off > 0;
        self.off = self.off.saturating_sub(1);
        off
    }

    /// Whether messages posted at `now` may wait too; `more` is their number and bytes. Packets were last looked for at `looked`.
    /// That is `None` if no answers are expected; a message posted after an arrival then begins no row. If the result is false,
    /// all messages leave.
    pub(super) fn may_wait(&mut self, now: Instant, looked: Option<Instant>, more: (u32, u64)) -> bool {
        let count = self.count.saturating_add(more.0);
        let answers = core::mem::take(&mut self.heard) && looked.is_none();
        let goes_on = !answers && now.since(self.posted) <= ROW.0;
        self.row = if goes_on { self.row.saturating_add(1) } else { 0 };
        self.posted = now;
        let soon = now.since(looked.unwrap_or_default().max(self.in_a_row)) <= LONGEST;
        if soon && count <= MOST.0 && self.bytes.saturating_add(more.1) < MOST.1 {
            return true;
        }
        if count >= MANY || self.row >= ROW.1 {
            self.in_a_row = now;
        }
        false
    }

    /// Something has arrived.
    pub(super) const fn hear(&mut self) {
        self.heard = true;
    }

    /// As [`Self::may_wait`], for an application that can be called. `under_way` are the bytes on their way to the messages'
    /// destination. Messages wait while all that wait are no more than `under_way`. So an idle peer gets its message at once.
    /// A peer at work gets the next ones together, in batches that grow with its work. (valkey, 50 clients: with this, and
    /// acknowledgements that travel with answers, both sides together send 0.6 times for a request, before 1.3 times.)
    pub(super) fn may_wait_for_call(&self, now: Instant, more: (u32, u64), under_way: u64) -> bool {
        let (count, bytes) = (self.count.saturating_add(more.0), self.bytes.saturating_add(more.1));
        let is_soon = self.count == 0 || now.since(self.oldest) <= LONGEST;
        is_soon && count <= MOST.0 && bytes < MOST.1 && bytes + u64::from(count) * MESSAGE_COST <= under_way
    }

    /// Adds messages that wait. Whether none waited before.
    pub(super) const fn add(&mut self, now: Instant, more: (u32, u64)) -> bool {
        let first = self.count == 0;
        if first {
            self.oldest = now;
        }
        self.latest = now;
        (self.count, self.bytes) = (self.count + more.0, self.bytes + more.1);
        first
    }

    /// All leave, by a call that looks for packets at `now`; `called` if the engine has called the application for it. If a call
    /// that was only guessed is late, the next [`OFF`] messages do not wait.
    pub(super) fn leave(&mut self, now: Instant, called: bool) {
        if self.count > 0 && !called && now.since(self.latest) > LONGEST {
            self.off = OFF;
        }
        self.clear();
    }

    /// All leave.
    pub(super) const fn clear(&mut self) {
        (self.count, self.bytes) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When packets were looked for.
    const LOOKED: Instant = Instant::from_nanos(1_000_000);

    /// What became of messages of 64 bytes, posted one each `every`; packets were `looked` for once before them, or none are
    /// expected, but something arrives before each `heard`th: how many left together each time.
    fn batches(count: usize, every: Duration, looked: Option<Instant>, heard: usize) -> Vec<u32> {
        let (mut hold, mut now, mut waiting, mut left) = (Hold::default(), LOOKED, 0, Vec::new());
        for number in 0..count {
            now += every;
            waiting += 1;
            if number % heard == 0 {
                hold.hear();
            }
            if !hold.is_off() && hold.may_wait(now, looked, (1, 64)) {
                hold.add(now, (1, 64));
            } else {
                hold.clear();
                left.push(core::mem::take(&mut waiting));
            }
        }
        left
    }

    /// Messages that peers answer.
    fn answered(count: usize, every: Duration) -> Vec<u32> {
        batches(count, every, Some(LOOKED), usize::MAX)
    }

    /// Messages that nobody answers, one each 300 ns.
    fn unanswered(count: usize, heard: usize) -> Vec<u32> {
        batches(count, Duration::from_nanos(300), None, heard)
    }

    #[test]
    fn a_long_row_leaves_in_batches_to_its_end() {
        // Fast ones fill batches; slow ones leave when the first of them has waited for long enough.
        assert_eq!(answered(650, Duration::from_nanos(300)), [65; 10]);
        assert_eq!(answered(510, Duration::from_micros(1)), [51; 10]);
        assert_eq!(answered(170, Duration::from_micros(3)), [17; 10]);
    }

    #[test]
    fn a_row_that_nobody_answers_leaves_in_batches_too_but_answers_do_not() {
        assert_eq!(unanswered(135, usize::MAX), [1, 1, 1, 1, 1, 65, 65]);
        assert_eq!(unanswered(40, 2), [1; 40], "two for each arrival");
        assert_eq!(unanswered(75, 10), [1, 1, 1, 1, 1, 65], "many for each");
    }

    #[test]
    fn what_comes_now_and_then_does_not_wait_for_a_call() {
        let left = answered(20, Duration::from_micros(20));
        assert_eq!(left[0], 3);
        assert!(left[1..].iter().all(|together| *together == 1), "{left:?}");
    }

    #[test]
    fn a_row_goes_on_after_a_pause() {
        let (mut hold, looked) = (Hold::default(), Instant::from_nanos(1_000_000));
        let mut now = looked + Duration::from_millis(1);
        let mut held = Vec::new();
        for _ in 0..8 {
            now += Duration::from_micros(4);
            held.push(hold.may_wait(now, Some(looked), (1, 64)));
        }
        assert_eq!(held, [false, false, false, false, false, true, true, true]);
    }

    /// How many leave together each time, of messages of 64 bytes that a program posts every microsecond, and of which the peer
    /// answers none meanwhile; `under_way` before the first.
    fn batches_until_called(count: u32, mut under_way: u64) -> Vec<u32> {
        let (mut hold, mut now, mut waiting, mut left) =
            (Hold::default(), Instant::from_nanos(1_000_000), 0, Vec::new());
        for _ in 0..count {
            now += Duration::from_micros(1);
            waiting += 1;
            if hold.may_wait_for_call(now, (1, 64), under_way) {
                hold.add(now, (1, 64));
            } else {
                hold.clear();
                under_way += u64::from(waiting) * (64 + MESSAGE_COST);
                left.push(core::mem::take(&mut waiting));
            }
        }
        left
    }

    #[test]
    fn messages_of_a_program_that_can_be_called_wait_while_its_peer_has_as_much_to_do() {
        assert_eq!(batches_until_called(63, 0), [1, 2, 4, 8, 16, 32]);
        // The peer is at work on a hundred: as many as may wait for so long, again and again.
        assert_eq!(batches_until_called(200, 100 * 128), [52, 52, 52]);
        let hold = Hold::default();
        let now = Instant::from_nanos(1_000_000);
        assert!(!hold.may_wait_for_call(now, (1, MOST.1), u64::MAX), "four batches");
        assert!(!hold.may_wait_for_call(now, (MOST.0 + 1, 64), u64::MAX), "more than may wait");
    }

    #[test]
    fn where_the_next_call_did_not_come_nothing_waits_for_some_time() {
        let (mut hold, now) = (Hold::default(), Instant::from_nanos(1_000_000));
        for (called, late, off) in [
            (false, LONGEST, 0),
            (true, 2 * LONGEST, 0),
            (false, 2 * LONGEST, OFF),
            (true, LONGEST, 0),
            (false, 2 * LONGEST, OFF),
        ] {
            assert_eq!(left_after(&mut hold, now, late, called), off, "{called} {late:?}");
        }
    }

    #[test]
    fn a_row_that_is_longer_than_anything_should_wait_is_not_forgotten() {
        let (mut hold, looked) = (Hold::default(), Instant::from_nanos(1_000_000));
        let mut now = looked;
        for _ in 0..60 {
            now += Duration::from_micros(1);
            hold.add(now, (1, 64));
        }
        hold.leave(now + Duration::from_micros(5), false);
        assert!(!hold.is_off());
    }

    /// A message is posted at `now`, and leaves `late` after that: how many are then sent at once.
    fn left_after(hold: &mut Hold, now: Instant, late: Duration, called: bool) -> u32 {
        assert!(!hold.is_off() && hold.may_wait(now, Some(now), (1, 64)));
        hold.add(now, (1, 64));
        hold.leave(now + late, called);
        assert_eq!(hold.count, 0, "they have left");
        (0..2 * OFF).filter(|_| hold.is_off()).count() as u32
    }
}
