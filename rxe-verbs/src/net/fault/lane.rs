//! The packets of one direction on their way through the faults.

use super::{
    plan::{FaultPlan, WHOLE},
    rule,
    script::Action,
};
use crate::net::{Run, Trace, Transmit};
use core::{net::IpAddr, time::Duration};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

/// The longest a packet is held back for reordering.
const LONGEST_DELAY: Duration = Duration::from_millis(1);
/// The same where a script says behind how many others.
const LONGEST_SCRIPTED: Duration = Duration::from_millis(100);
/// Most packets that may overtake a held one.
const LARGEST_SHIFT: u64 = 4;
/// Most packets held back in one direction.
const MOST_HELD: usize = 64;
/// Most packets that wait for their time in one direction.
const MOST_LATE: usize = 1 << 16;
/// Bytes that wait for a limited rate; what comes then is lost.
const QUEUE: u64 = 1 << 20;
/// What a packet takes on a wire besides its UDP payload: UDP, IPv4 and Ethernet headers, and the check sequence.
const LOWER: u64 = 8 + 20 + 14 + 4;

/// The byte of a packet that is not under its ICRC (IBTA vol. 1, 7.8.1).
const CONGESTION: usize = 4;

/// What was done to the packets of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Packets thrown away.
    pub lost: u64,
    /// Extra copies made.
    pub duplicated: u64,
    /// Packets held back for others.
    pub reordered: u64,
    /// Packets with a flipped bit.
    pub corrupted: u64,
    /// Packets that a script has turned or marked.
    pub changed: u64,
}

/// SplitMix64.
pub(super) fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What becomes of a packet.
enum Fate {
    Lost,
    /// It waits until so many others have passed.
    Behind(u64),
    /// Once or twice; each copy late, or behind so many others by chance.
    Passes {
        copies: usize,
        delay: Duration,
        shifts: [Option<u64>; 2],
    },
}

/// What chance has for a packet, drawn before it is known whether a script takes its place.
struct Chances {
    lost: bool,
    /// The bit to be flipped.
    bit: Option<usize>,
    copies: usize,
    /// Behind how many others each copy goes.
    shifts: [Option<u64>; 2],
}

/// What goes along with a packet's bytes.
pub(super) trait Head: Copy {
    /// The other side.
    fn peer(&self) -> IpAddr;
    /// Whether we send it.
    const SENDING: bool;
    /// Marks it: congestion experienced.
    fn mark(&mut self);
}

impl Head for Transmit {
    const SENDING: bool = true;

    fn peer(&self) -> IpAddr {
        self.dst
    }

    fn mark(&mut self) {
        self.tos |= 3;
    }
}

impl Head for Run<'static> {
    const SENDING: bool = false;

    fn peer(&self) -> IpAddr {
        self.src
    }

    fn mark(&mut self) {
        self.tos |= 3;
    }
}

#[derive(Debug)]
pub(super) struct Lane<H> {
    random: u64,
    /// For scripts, so that chance is the same with and without them.
    pub(super) script_random: u64,
    /// Whether the plan's chances count in this direction.
    chances: bool,
    held: Vec<Held<H>>,
    /// What waits for its time, in the order of it.
    late: BTreeMap<(Instant, u64), (H, Vec<u8>)>,
    order: u64,
    /// When a limited rate lets the next packet begin.
    free: Option<Instant>,
    pub(super) ready: VecDeque<(H, Vec<u8>)>,
    pub(super) counts: FaultCounts,
}

#[derive(Debug)]
struct Held<H> {
    head: H,
    bytes: Vec<u8>,
    overtakers: u64,
    until: Instant,
}

impl<H: Head> Lane<H> {
    pub(super) fn new(seed: u64, chances: bool) -> Self {
        Self {
            random: seed,
            script_random: !seed,
            chances,
            held: Vec::new(),
            late: BTreeMap::new(),
            order: 0,
            free: None,
            ready: VecDeque::new(),
            counts: FaultCounts::default(),
        }
    }

    /// Whether packets wait to be overtaken.
    pub(super) const fn is_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether packets wait for their time.
    pub(super) fn is_late(&self) -> bool {
        !self.late.is_empty()
    }

    fn chance(&mut self, millionths: u32) -> bool {
        // The thousandths decide first: the same seed gives the same faults whatever they are counted in.
        let number = random(&mut self.random);
        let value = number % 1000 * 1000 + number / 1000 % 1000;
        value < u64::from(millionths) && self.chances
    }

    /// Takes one packet in; what may go on, it or others, is then in `ready`.
    pub(super) fn take(
        &mut self,
        plan: &FaultPlan,
        mut head: H,
        bytes: &[u8],
        order: Option<(Action, String)>,
        now: Instant,
        log: Option<&Trace>,
    ) {
        let peer = head.peer();
        let tell = |what: &str| {
            if let Some(log) = log {
                log.line(&format_args!("{what} "), H::SENDING, peer, bytes);
            }
        };
        let mut own = bytes.to_vec();
        let chances = self.draw(plan, bytes.len());
        match self.decide(chances, order, &mut head, &mut own, &tell) {
            Fate::Lost => self.counts.lost += 1,
            Fate::Behind(count) => self.hold(head, own, count, now + LONGEST_SCRIPTED),
            Fate::Passes { copies, delay, shifts } => {
                for (copy, shift) in shifts.into_iter().enumerate().take(copies) {
                    let bytes = if copy + 1 < copies { own.clone() } else { core::mem::take(&mut own) };
                    if let Some(count) = shift {
                        tell("chance: overtaken");
                        self.hold(head, bytes, count, now + LONGEST_DELAY);
                    } else if !self.pass(plan, head, bytes, delay, now) {
                        tell("rate: the queue is full, lost");
                        self.counts.lost += 1;
                    }
                }
            }
        }
        for held in &mut self.held {
            held.overtakers = held.overtakers.saturating_sub(1);
        }
        self.release();
    }

    /// What chance has for a packet of `len` bytes. For each packet, also where a script acts instead: a script does not move
    /// what chance has for the others.
    fn draw(&mut self, plan: &FaultPlan, len: usize) -> Chances {
        let lost = self.chance(plan.loss);
        let mut chances = Chances { lost, bit: None, copies: 1, shifts: [None; 2] };
        if lost {
            return chances;
        }
        if self.chance(plan.corrupt) && len > 0 {
            chances.bit = Some(random(&mut self.random) as usize % (len * 8));
        }
        if self.chance(plan.duplicate) {
            chances.copies = 2;
        }
        for shift in chances.shifts.iter_mut().take(chances.copies) {
            if self.chance(plan.reorder) && self.held.len() < MOST_HELD {
                *shift = Some(1 + random(&mut self.random) % LARGEST_SHIFT);
            }
        }
        chances
    }

    /// What becomes of a packet, which is changed here if it is to be.
    fn decide(
        &mut self,
        chances: Chances,
        order: Option<(Action, String)>,
        head: &mut H,
        own: &mut [u8],
        tell: &dyn Fn(&str),
    ) -> Fate {
        let Some((action, why)) = order else { return self.decide_by(chances, own, tell) };
        tell(&why);
        let (mut copies, mut delay) = (1, Duration::ZERO);
        match action {
            Action::Drop | Action::Down(_) | Action::Kill => return Fate::Lost,
            Action::Corrupt => {
                let bit = random(&mut self.script_random) as usize % (own.len() * 8).max(1);
                // Bits of the congestion byte are not under the ICRC: nobody would notice.
                self.flip(own, if bit / 8 == CONGESTION { bit + 8 } else { bit });
            }
            Action::Duplicate => {
                self.counts.duplicated += 1;
                copies = 2;
            }
            Action::Mark => {
                self.counts.changed += 1;
                head.mark();
            }
            Action::Delay(time) => delay = time,
            Action::Reorder(count) => return Fate::Behind(count),
            Action::Turn(syndrome) => {
                self.counts.changed += 1;
                rule::turn(own, syndrome);
            }
        }
        Fate::Passes { copies, delay, shifts: [None; 2] }
    }

    /// What becomes of a packet that no script has anything for.
    fn decide_by(&mut self, chances: Chances, own: &mut [u8], tell: &dyn Fn(&str)) -> Fate {
        if chances.lost {
            tell("chance: lost");
            return Fate::Lost;
        }
        if let Some(bit) = chances.bit {
            tell("chance: corrupted");
            self.flip(own, bit);
        }
        if chances.copies > 1 {
            tell("chance: doubled");
            self.counts.duplicated += 1;
        }
        Fate::Passes { copies: chances.copies, delay: Duration::ZERO, shifts: chances.shifts }
    }

    /// Turns a bit, counted from the first and again from there behind the last.
    fn flip(&mut self, bytes: &mut [u8], bit: usize) {
        if bytes.is_empty() {
            return;
        }
        let bit = bit % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        self.counts.corrupted += 1;
    }

    fn hold(&mut self, head: H, bytes: Vec<u8>, count: u64, until: Instant) {
        self.counts.reordered += 1;
        // One more than overtake it: its own arrival counts too.
        self.held.push(Held { head, bytes, overtakers: count + 1, until });
    }

    /// Lets a packet go on, at once or at its time. `false` if there is no room for it to wait.
    fn pass(&mut self, plan: &FaultPlan, head: H, bytes: Vec<u8>, delay: Duration, now: Instant) -> bool {
        let (rate, wait) = if self.chances { (plan.rate, plan.delay) } else { (0, Duration::ZERO) };
        let mut due = now;
        if rate > 0 {
            let takes = |bytes: u64| {
                Duration::from_nanos((bytes.saturating_mul(8_000_000_000) / rate).min(60_000_000_000))
            };
            let start = self.free.map_or(now, |free| free.max(now));
            if start.saturating_duration_since(now) > takes(QUEUE) {
                return false;
            }
            due = start + takes(bytes.len() as u64 + LOWER);
            self.free = Some(due);
        }
        due += wait + delay;
        if due <= now {
            self.ready.push_back((head, bytes));
            return true;
        }
        if self.late.len() == MOST_LATE {
            return false;
        }
        self.order += 1;
        self.late.insert((due, self.order), (head, bytes));
        true
    }

    /// Has those go on whose time has come, or who were overtaken.
    pub(super) fn release(&mut self) {
        if self.held.is_empty() && self.late.is_empty() {
            return;
        }
        let now = Instant::now();
        let Self { held, ready, late, .. } = self;
        for due in held.extract_if(.., |held| held.overtakers == 0 || held.until <= now) {
            ready.push_back((due.head, due.bytes));
        }
        while let Some(first) = late.first_entry().filter(|first| first.key().0 <= now) {
            ready.push_back(first.remove());
        }
    }
}

const _: () = assert!(WHOLE == 1_000_000, "chances are drawn from as many numbers");
