//! A lane applies the faults to the packets of one direction.

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

/// Longest time that chance holds a packet back for reordering.
const LONGEST_DELAY: Duration = Duration::from_millis(1);
/// Longest time that a script's `reorder` holds a packet back.
const LONGEST_SCRIPTED: Duration = Duration::from_millis(100);
/// Most packets that may overtake a held one.
const LARGEST_SHIFT: u64 = 4;
/// Most packets held back in one direction.
const MOST_HELD: usize = 64;
/// Most delayed packets that wait in one direction.
const MOST_LATE: usize = 1 << 16;
/// Bytes that may wait for a limited rate. Further packets are lost.
const QUEUE: u64 = 1 << 20;
/// Bytes of a packet on a wire besides its UDP payload: UDP, IPv4 and Ethernet headers, and the frame check sequence.
const LOWER: u64 = 8 + 20 + 14 + 4;

/// Offset of the byte with FECN and BECN, which the ICRC masks (IBTA vol. 1, 7.8.1).
const CONGESTION: usize = 4;

/// What was done to the packets of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Packets dropped.
    pub lost: u64,
    /// Extra copies made.
    pub duplicated: u64,
    /// Packets held back so that others overtake them.
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
    /// The packet waits until so many others have passed.
    Behind(u64),
    /// The packet passes once or twice. Each copy is delayed, or held back behind so many others.
    Passes {
        copies: usize,
        delay: Duration,
        shifts: [Option<u64>; 2],
    },
}

/// What chance decides for a packet. It is drawn even if a script acts instead.
struct Chances {
    lost: bool,
    /// The bit to flip.
    bit: Option<usize>,
    copies: usize,
    /// Behind how many others each copy is held back.
    shifts: [Option<u64>; 2],
}

/// The headers that belong to a packet's bytes: a [`Transmit`] or a [`Run`].
pub(super) trait Head: Copy {
    /// The peer's address.
    fn peer(&self) -> IpAddr;
    /// Whether the packet is sent, not received.
    const SENDING: bool;
    /// Sets the ECN bits to "congestion experienced".
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
    /// Random state for scripts. It is separate, so that chance gives the same faults with and without a script.
    pub(super) script_random: u64,
    /// Whether the plan's chances count in this direction.
    chances: bool,
    held: Vec<Held<H>>,
    /// Delayed packets, by the time at which they go on and their number.
    late: BTreeMap<(Instant, u64), (H, Vec<u8>)>,
    order: u64,
    /// When the rate limit lets the next packet begin.
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

    /// Whether packets are held back for others.
    pub(super) const fn is_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether delayed packets wait.
    pub(super) fn is_late(&self) -> bool {
        !self.late.is_empty()
    }

    fn chance(&mut self, millionths: u32) -> bool {
        // The number's last three digits become the thousandths. So a seed gives the same faults for a chance in thousandths
        // and for the same chance in millionths.
        let number = random(&mut self.random);
        let value = number % 1000 * 1000 + number / 1000 % 1000;
        value < u64::from(millionths) && self.chances
    }

    /// Takes one packet. Afterwards `ready` has the packets that may go on: this one or earlier ones.
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

    /// Draws what chance decides for a packet of `len` bytes. This is done for each packet, even if a script acts instead, so
    /// that a script does not change the faults of other packets.
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

    /// Decides what becomes of a packet, and changes the packet if it has to be changed.
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
                // The ICRC masks the byte with FECN and BECN, so a receiver would not notice a flipped bit there.
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

    /// As [`Self::decide`], for a packet that no rule of a script applies to.
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

    /// Flips a bit. A number behind the last bit wraps around.
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
        // One more, because `take` also counts the packet's own arrival.
        self.held.push(Held { head, bytes, overtakers: count + 1, until });
    }

    /// Lets a packet go on at once, or after its delay. Returns false if the packet would have to wait and there is no room.
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

    /// Moves to `ready` the packets whose time has come, and those that enough others have overtaken.
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
