//! Virtual lanes: which lane a packet is in, and which lane sends next (IBTA vol. 1, 7.6).
//!
//! If several lanes have something to send, [`Arbitration`] names the one that sends the next batch. Within a lane destinations and queue
//! pairs take turns as they do without lanes. A lane counts as having something to send only if admission would let a packet of
//! it leave. So a lane that waits for room does not hold up other lanes.

use alloc::boxed::Box;
use core::fmt;

/// Lanes for data: 0 to 14 (IBTA vol. 1, 7.6.1).
pub const LANES: usize = 15;
/// In place of a lane number: packets of that service level are not carried (IBTA vol. 1, 7.6.6).
pub const NO_LANE: u8 = 15;
/// Number of DSCP values.
const DSCPS: usize = 64;

/// Decides which lane sends next (IBTA vol. 1, 7.6.9.2).
pub trait Arbitration: fmt::Debug + Send {
    /// The lane that sends next, of those whose bit is set in `waiting`. If the answer is `None` or another lane, the lowest of them sends,
    /// so that none waits for ever.
    fn next(&mut self, waiting: u16) -> Option<u8>;

    /// A lane has sent a batch of so many bytes while other lanes had something to send. It is mostly the lane that was named last. It
    /// may be another one, because a packet of a queue pair that holds nothing does not wait for room.
    fn sent(&mut self, lane: u8, bytes: usize);
}

/// The lane of each service level, the traffic class of each lane, and how lanes share the link.
#[derive(Debug)]
pub struct Lanes {
    of_level: [u8; 16],
    classes: [u8; LANES],
    /// The lane of each DSCP, for packets that arrive.
    of_dscp: [u8; DSCPS],
    arbitration: Option<Box<dyn Arbitration>>,
}

impl Default for Lanes {
    /// One lane for all packets, and the traffic class that the program sets.
    fn default() -> Self {
        Self { of_level: [0; 16], classes: [0; LANES], of_dscp: [0; DSCPS], arbitration: None }
    }
}

impl Lanes {
    /// Lanes by tables. The first table has the lane of each service level 0 to 15: 0 to 14, or [`NO_LANE`]. The second one has the traffic
    /// class of each lane, for packets for which the program sets none. (Its two lowest bits, ECN, are ignored.)
    #[must_use]
    pub fn new(of_level: [u8; 16], classes: [u8; LANES], arbitration: Box<dyn Arbitration>) -> Self {
        let mut of_dscp = [0; DSCPS];
        // In reverse order, so that of several lanes with the same DSCP the first one counts.
        for lane in (0..LANES).rev() {
            of_dscp[usize::from(classes[lane] >> 2)] = lane as u8;
        }
        let of_level = of_level.map(|lane| lane.min(NO_LANE));
        Self { of_level, classes: classes.map(|class| class & !3), of_dscp, arbitration: Some(arbitration) }
    }

    /// The lane of a service level. `None` if its packets are not carried, or if there is no such level.
    #[must_use]
    pub fn of(&self, service_level: u8) -> Option<u8> {
        self.of_level.get(usize::from(service_level)).copied().filter(|lane| *lane < NO_LANE)
    }

    /// The traffic class of packets in a lane if the program sets `own`. The DSCP of `own` is used if it is not 0; its ECN bits always are.
    pub(super) fn class(&self, lane: u8, own: u8) -> u8 {
        if own >> 2 == 0 { self.classes.get(usize::from(lane)).map_or(own, |class| class | own) } else { own }
    }

    /// The lane of packets that arrive with this traffic class.
    pub(super) fn of_class(&self, class: u8) -> u8 {
        self.of_dscp[usize::from(class >> 2)]
    }

    /// The lane that sends next, of those in `waiting`, which must not be 0. The arbitration is asked only if several lanes wait.
    #[inline]
    pub(super) fn next(&mut self, waiting: u16) -> u8 {
        let first = waiting.trailing_zeros() as u8;
        if waiting & (waiting - 1) == 0 { first } else { self.arbitrate(waiting, first) }
    }

    fn arbitrate(&mut self, waiting: u16, first: u8) -> u8 {
        let named = self.arbitration.as_mut().and_then(|arbitration| arbitration.next(waiting));
        named.filter(|lane| *lane < NO_LANE && waiting & 1 << lane != 0).unwrap_or(first)
    }

    /// Tells the arbitration that one of several lanes with something to send has sent a batch of so many bytes.
    pub(super) fn sent(&mut self, lane: u8, bytes: usize) {
        if let Some(arbitration) = &mut self.arbitration {
            arbitration.sent(lane, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names what it is told to name.
    #[derive(Debug)]
    struct Named(Option<u8>);

    impl Arbitration for Named {
        fn next(&mut self, _: u16) -> Option<u8> {
            self.0
        }

        fn sent(&mut self, _: u8, _: usize) {}
    }

    #[test]
    fn a_lane_that_waits_is_never_left_behind() {
        for (named, waiting, lane) in [
            (Some(5), 1 << 5 | 1, 5),
            (Some(5), 1 << 4, 4),
            (None, 0b110, 1),
            (Some(15), 0b110, 1),
            (Some(200), 0b110, 1),
        ] {
            let mut lanes = Lanes::new([0; 16], [0; LANES], Box::new(Named(named)));
            assert_eq!(lanes.next(waiting), lane, "{named:?} of {waiting:b}");
        }
        assert_eq!(Lanes::default().next(0b100_0100), 2);
    }

    #[test]
    fn levels_have_lanes_and_lanes_have_classes() {
        let mut of_level = [0; 16];
        (of_level[3], of_level[4]) = (7, 77);
        let mut classes = [0; LANES];
        (classes[7], classes[9]) = (0xe3, 0xe0);
        let lanes = Lanes::new(of_level, classes, Box::new(Named(None)));
        assert_eq!((lanes.of(3), lanes.of(4), lanes.of(5), lanes.of(16)), (Some(7), None, Some(0), None));
        assert_eq!((lanes.class(7, 0), lanes.class(7, 2), lanes.class(7, 0x20)), (0xe0, 0xe2, 0x20));
        assert_eq!((lanes.of_class(0xe2), lanes.of_class(0)), (7, 0));
    }
}
