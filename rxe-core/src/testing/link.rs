//! A simulated wire in one direction, which loses, duplicates, delays and corrupts packets. A rule of the test decides what happens to a
//! packet. Without a rule random numbers from a seed decide.

use super::rng::Rng;
use crate::{
    time::Instant,
    wire::{Encapsulation, Packet, icrc::Route},
};
use alloc::{boxed::Box, collections::BinaryHeap, vec::Vec};
use core::{cmp::Ordering, fmt, net::IpAddr, time::Duration};

/// Bytes that a packet takes on a wire beside its own: Ethernet header, checksum, preamble and gap (38), IPv4 and UDP headers (28).
const OVERHEAD: u64 = 38 + 28;

/// One datagram or frame: a packet from BTH to ICRC, and the headers in front of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// UDP source port.
    pub src_port: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv4 ID.
    pub ident: u16,
    /// Which headers are in front of the packet.
    pub encapsulation: Encapsulation,
    /// The packet, BTH to ICRC.
    pub bytes: Vec<u8>,
}

impl Datagram {
    /// The header fields that the ICRC covers.
    #[must_use]
    pub const fn route(&self) -> Route {
        Route { src: self.src, dst: self.dst, src_port: self.src_port, encapsulation: self.encapsulation }
    }

    /// The digest of all datagrams so far and this one. `before` is the digest without this one.
    fn digest(&self, before: u32) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(before);
        for address in [self.src, self.dst] {
            match address {
                IpAddr::V4(v4) => hasher.update(&v4.octets()),
                IpAddr::V6(v6) => hasher.update(&v6.octets()),
            }
        }
        hasher.update(&self.src_port.to_be_bytes());
        hasher.update(&[self.tos, self.hop_limit]);
        hasher.update(&self.ident.to_be_bytes());
        hasher.update(&self.bytes);
        hasher.finalize()
    }
}

/// Probabilities of faults, in thousandths.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// The packet is lost.
    pub loss: u16,
    /// It is delivered twice, the second time after a random delay of up to [`LinkConfig::reorder_delay`].
    pub duplicate: u16,
    /// It is delayed by a random time of up to [`LinkConfig::reorder_delay`], so that others overtake it.
    pub reorder: u16,
    /// One of its bits is flipped.
    pub corrupt: u16,
}

/// Properties of a wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkConfig {
    /// Probabilities of faults.
    pub faults: Faults,
    /// Time from end to end.
    pub latency: Duration,
    /// Longest additional delay of a reordered packet, or of the copy of a duplicated one. The delay is random.
    pub reorder_delay: Duration,
    /// Bytes per second. 0: no limit. The following limits apply only if this is not 0.
    pub rate: u64,
    /// Bytes that may wait for the wire. If more wait, further packets are lost. 0: no limit.
    pub queue: u64,
    /// If this many bytes wait, nothing more is sent, as with a full send buffer. 0: never.
    pub hold: u64,
    /// If more than this many bytes wait, packets that allow it (ECT) are marked (RFC 3168). 0: never.
    pub mark: u64,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            faults: Faults::default(),
            latency: Duration::from_micros(5),
            reorder_delay: Duration::from_micros(100),
            rate: 0,
            queue: 0,
            hold: 0,
            mark: 0,
        }
    }
}

/// A packet that is about to be sent, as a rule sees it.
#[derive(Debug)]
pub struct Crossing<'a> {
    /// Number of packets sent on this wire before it.
    pub index: u64,
    /// When it was sent.
    pub now: Instant,
    /// The datagram.
    pub datagram: &'a Datagram,
    /// The decoded packet. `None` if it cannot be decoded.
    pub packet: Option<Packet<'a>>,
}

/// What is to happen to a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Random numbers decide.
    Chance,
    /// It arrives unchanged and in order.
    Pass,
    /// It is lost.
    Drop,
    /// It arrives twice, the second time this much later.
    Duplicate(Duration),
    /// It arrives this much later than usual.
    Delay(Duration),
    /// It arrives with this bit flipped. Bit 0 is the highest bit of the first byte. If there is no such bit: the last one.
    Flip(usize),
}

/// A rule of a test: decides what happens to each packet.
pub type Rule = Box<dyn FnMut(&Crossing<'_>) -> Verdict>;

/// A datagram on its way.
#[derive(Debug)]
struct Flight {
    arrival: Instant,
    order: u64,
    datagram: Datagram,
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Flight {}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Flight {
    /// The earliest is the greatest, because the heap returns the greatest. If two arrive at the same time: the one sent first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.arrival, other.order).cmp(&(self.arrival, self.order))
    }
}

/// Counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkStats {
    /// Packets sent.
    pub sent: u64,
    /// Packets delivered, copies included.
    pub delivered: u64,
    /// Packets lost by rule or at random.
    pub lost: u64,
    /// Packets lost because the queue was full.
    pub overflowed: u64,
    /// Packets duplicated.
    pub duplicated: u64,
    /// Packets delayed.
    pub delayed: u64,
    /// Packets corrupted.
    pub corrupted: u64,
    /// Packets marked (congestion experienced).
    pub marked: u64,
    /// A digest of all datagrams sent, with their headers, in order. Equal traffic has equal digests.
    pub digest: u32,
}

/// A wire in one direction.
pub struct Link {
    config: LinkConfig,
    rng: Rng,
    rule: Option<Rule>,
    flights: BinaryHeap<Flight>,
    order: u64,
    /// When a wire with a rate will have sent everything that waits.
    busy_until: Instant,
    stats: LinkStats,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("config", &self.config)
            .field("in_flight", &self.flights.len())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// A wire whose faults follow from `seed`.
    #[must_use]
    pub fn new(config: LinkConfig, seed: u64) -> Self {
        Self {
            config,
            rng: Rng::new(seed),
            rule: None,
            flights: BinaryHeap::new(),
            order: 0,
            busy_until: Instant::ZERO,
            stats: LinkStats::default(),
        }
    }

    /// Sets the rule that decides what happens to each packet from now on.
    pub fn set_rule(&mut self, rule: impl FnMut(&Crossing<'_>) -> Verdict + 'static) {
        self.rule = Some(Box::new(rule));
    }

    /// Removes the rule: random numbers decide from now on.
    pub fn clear_rule(&mut self) {
        self.rule = None;
    }

    /// Changes the properties of the wire. Packets that were sent before are not affected.
    pub const fn set_config(&mut self, config: LinkConfig) {
        self.config = config;
    }

    /// Properties of the wire.
    #[must_use]
    pub const fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Counters so far.
    #[must_use]
    pub const fn stats(&self) -> &LinkStats {
        &self.stats
    }

    /// Puts a datagram on the wire. Returns what will happen to it.
    pub fn send(&mut self, now: Instant, mut datagram: Datagram) -> Verdict {
        let index = self.stats.sent;
        self.stats.sent += 1;
        self.stats.digest = datagram.digest(self.stats.digest);
        let verdict = self.judge(index, now, &datagram);
        if self.config.mark != 0 && self.waiting(now) > self.config.mark && datagram.tos & 3 != 0 {
            self.stats.marked += u64::from(datagram.tos & 3 != 3);
            datagram.tos |= 3;
        }
        let Some(leaves) = self.transmit(now, datagram.bytes.len() as u64) else {
            self.stats.overflowed += 1;
            return Verdict::Drop;
        };
        let arrival = leaves + self.config.latency;
        match verdict {
            Verdict::Drop => self.stats.lost += 1,
            Verdict::Duplicate(later) => {
                self.stats.duplicated += 1;
                self.fly(arrival, datagram.clone());
                self.fly(arrival + later, datagram);
            }
            Verdict::Delay(later) => {
                self.stats.delayed += 1;
                self.fly(arrival + later, datagram);
            }
            Verdict::Flip(bit) => {
                self.stats.corrupted += 1;
                let bit = bit.min((datagram.bytes.len() * 8).saturating_sub(1));
                if let Some(byte) = datagram.bytes.get_mut(bit / 8) {
                    *byte ^= 0x80 >> (bit % 8);
                }
                self.fly(arrival, datagram);
            }
            Verdict::Pass | Verdict::Chance => self.fly(arrival, datagram),
        }
        verdict
    }

    fn judge(&mut self, index: u64, now: Instant, datagram: &Datagram) -> Verdict {
        if let Some(rule) = &mut self.rule {
            let packet = Packet::decode(&datagram.bytes).ok();
            let verdict = rule(&Crossing { index, now, datagram, packet });
            if verdict != Verdict::Chance {
                return verdict;
            }
        }
        let Faults { loss, duplicate, reorder, corrupt } = self.config.faults;
        // All numbers are drawn for every packet, so that a change of one probability does not change the other numbers.
        let (lost, doubled) = (self.rng.chance(loss), self.rng.chance(duplicate));
        let (late, damaged) = (self.rng.chance(reorder), self.rng.chance(corrupt));
        let (delay, bit) = (self.rng.next_u64(), self.rng.below(datagram.bytes.len() * 8));
        let delay = Duration::from_nanos(delay % (self.config.reorder_delay.as_nanos() as u64).max(1));
        match (lost, damaged, doubled, late) {
            (true, ..) => Verdict::Drop,
            (_, true, ..) => Verdict::Flip(bit),
            (_, _, true, _) => Verdict::Duplicate(delay),
            (_, _, _, true) => Verdict::Delay(delay),
            _ => Verdict::Pass,
        }
    }

    /// Bytes that wait for the wire; 0 if it has no rate.
    fn waiting(&self, now: Instant) -> u64 {
        let time = u128::from(self.config.rate) * self.busy_until.since(now).as_nanos();
        u64::try_from(time / 1_000_000_000).unwrap_or(u64::MAX)
    }

    /// Until when the sender must wait ([`LinkConfig::hold`]). `None` if it may send.
    #[must_use]
    pub fn holds_until(&self, now: Instant) -> Option<Instant> {
        let LinkConfig { rate, hold, .. } = self.config;
        if rate == 0 || hold == 0 || self.waiting(now) < hold {
            return None;
        }
        let drained = Duration::from_nanos(hold.saturating_mul(1_000_000_000) / rate);
        Some(now + (self.busy_until.since(now).saturating_sub(drained) + Duration::from_nanos(1)))
    }

    /// When the last bit of a packet leaves. `None` if there is no room for it in the queue.
    fn transmit(&mut self, now: Instant, len: u64) -> Option<Instant> {
        if self.config.rate == 0 {
            return Some(now);
        }
        let time = |bytes: u64| Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / self.config.rate);
        let starts = self.busy_until.max(now);
        if self.config.queue != 0 && starts.since(now) > time(self.config.queue) {
            return None;
        }
        self.busy_until = starts + time(len + OVERHEAD);
        Some(self.busy_until)
    }

    fn fly(&mut self, arrival: Instant, datagram: Datagram) {
        self.flights.push(Flight { arrival, order: self.order, datagram });
        self.order += 1;
    }

    /// When the next datagram arrives.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Instant> {
        self.flights.peek().map(|flight| flight.arrival)
    }

    /// The next datagram that has arrived by `now`.
    pub fn receive(&mut self, now: Instant) -> Option<Datagram> {
        if self.next_arrival()? > now {
            return None;
        }
        self.stats.delivered += 1;
        self.flights.pop().map(|flight| flight.datagram)
    }

    /// Number of datagrams on their way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Drops all datagrams on their way.
    pub fn cut(&mut self) {
        self.stats.lost += self.flights.len() as u64;
        self.flights.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    fn datagram(tag: u8) -> Datagram {
        let addr = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let bytes = alloc::vec![tag; 100];
        Datagram {
            src: addr,
            dst: addr,
            src_port: 1,
            tos: 0,
            hop_limit: 64,
            ident: 0,
            encapsulation: Encapsulation::V2,
            bytes,
        }
    }

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn a_good_wire_keeps_order_and_time() {
        let mut link = Link::new(LinkConfig::default(), 1);
        link.send(at(0), datagram(1));
        link.send(at(0), datagram(2));
        assert_eq!((link.next_arrival(), link.receive(at(4))), (Some(at(5)), None));
        assert_eq!(link.receive(at(5)).map(|d| d.bytes[0]), Some(1));
        assert_eq!(link.receive(at(5)).map(|d| d.bytes[0]), Some(2));
        assert_eq!(link.receive(at(9)), None);
    }

    #[test]
    fn chances_come_out_as_asked() {
        let faults = Faults { loss: 100, duplicate: 50, reorder: 50, corrupt: 20 };
        let mut link = Link::new(LinkConfig { faults, ..LinkConfig::default() }, 7);
        for _ in 0..10_000 {
            link.send(at(0), datagram(0));
        }
        let stats = *link.stats();
        let near = |count: u64, expected: u64| count.abs_diff(expected) < expected / 5;
        assert!(near(stats.lost, 1000), "{stats:?}");
        assert!(near(stats.corrupted, 180), "{stats:?}");
        assert!(near(stats.duplicated, 440), "{stats:?}");
        assert!(near(stats.delayed, 420), "{stats:?}");
        let mut flipped = 0;
        while let Some(datagram) = link.receive(at(1_000_000)) {
            flipped += datagram.bytes.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
        }
        assert_eq!(flipped, stats.corrupted, "one bit each");
        assert_eq!(link.stats().delivered, stats.sent - stats.lost + stats.duplicated);
    }

    #[test]
    fn the_same_seed_gives_the_same_accidents() {
        let run = |seed| {
            let faults = Faults { loss: 200, duplicate: 200, reorder: 200, corrupt: 200 };
            let mut link = Link::new(LinkConfig { faults, ..LinkConfig::default() }, seed);
            (0..100).map(|tag| link.send(at(0), datagram(tag))).collect::<Vec<_>>()
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }

    #[test]
    fn a_rule_has_the_last_word() {
        let mut link = Link::new(LinkConfig::default(), 1);
        link.set_rule(|crossing| match crossing.index {
            0 => Verdict::Drop,
            1 => Verdict::Delay(Duration::from_micros(3)),
            2 => Verdict::Flip(0),
            3 => Verdict::Duplicate(Duration::from_micros(1)),
            _ => Verdict::Chance,
        });
        for tag in 0..5 {
            link.send(at(0), datagram(tag));
        }
        let arrivals: Vec<_> = core::iter::from_fn(|| {
            let when = link.next_arrival()?;
            link.receive(when).map(|d| (when.nanos() / 1000, d.bytes[0]))
        })
        .collect();
        assert_eq!(arrivals, [(5, 0x82), (5, 3), (5, 4), (6, 3), (8, 1)]);
    }

    #[test]
    fn a_slow_wire_queues_and_overflows() {
        let config = LinkConfig { rate: 166_000_000, queue: 400, ..LinkConfig::default() };
        let mut link = Link::new(config, 1);
        let fates: Vec<_> = (0..5).map(|tag| link.send(at(0), datagram(tag))).collect();
        assert_eq!(fates, [Verdict::Pass, Verdict::Pass, Verdict::Pass, Verdict::Drop, Verdict::Drop]);
        assert_eq!(link.next_arrival(), Some(at(6)));
        assert_eq!(link.receive(at(6)).map(|d| d.bytes[0]), Some(0));
        assert_eq!(link.next_arrival(), Some(at(7)));
    }
}
