//! The bridge itself.

use crate::{
    laws::Laws,
    link::{LinkError, raw::frames},
    wire::{Packet, cm::Message, ends_of, set_header, take_apart},
};
use pnet_datalink::{DataLinkReceiver, DataLinkSender};
use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// What was done to packets in one case is kept up to this many.
const MOST_NOTES: usize = 100;
/// A frame that is held back leaves after that long even if no other follows.
const LONGEST_HOLD: Duration = Duration::from_millis(200);

/// Where a packet comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The first interface.
    Left,
    /// The second one.
    Right,
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// It is lost.
    Drop,
    /// It arrives twice.
    Twice,
    /// The next packet of its direction overtakes it.
    Swap,
    /// It, and all behind it, come that much later.
    Delay(Duration),
    /// A bit of its last payload byte, or of its last header, is flipped, and the ICRC is that of before.
    Damage,
    /// TTL or hop limit is one less, as behind a router.
    Route,
    /// It is marked: congestion experienced.
    Mark,
}

/// Which packets it happens to.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// What happens.
    pub act: Act,
    /// Those that this picks,
    pub picks: fn(&Packet) -> bool,
    /// the first so many of them,
    pub count: usize,
    /// one of so many: 1 for each.
    pub every: usize,
}

/// What both directions share.
#[derive(Debug, Default)]
struct Shared {
    fault: Option<Fault>,
    picked: usize,
    done: usize,
    unheard: usize,
    notes: Vec<(Duration, String)>,
    laws: [Laws; 2],
}

/// What the bridge saw and did in a case.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Packets that the fault happened to.
    pub done: usize,
    /// Requests for connections that were refused because nobody listened: the program there was not ready.
    pub unheard: usize,
    /// What was done, and when, since the bridge was opened.
    pub notes: Vec<(Duration, String)>,
}

/// The bridge. It ends when it is dropped.
#[derive(Debug)]
pub struct Bridge {
    shared: Arc<Mutex<Shared>>,
    ended: Arc<AtomicBool>,
    down: Arc<Mutex<Option<String>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Bridge {
    /// Opens it between two interfaces.
    ///
    /// # Errors
    /// No such interface, or no privilege (CAP_NET_RAW).
    pub fn open(left: &str, right: &str) -> Result<Self, LinkError> {
        let (left, right) = (frames(left)?, frames(right)?);
        let mut bridge =
            Self { shared: Arc::default(), ended: Arc::default(), down: Arc::default(), threads: Vec::new() };
        let opened = Instant::now();
        for (side, from, to) in [(Side::Left, left.1, right.0), (Side::Right, right.1, left.0)] {
            let (shared, ended, down) =
                (Arc::clone(&bridge.shared), Arc::clone(&bridge.ended), Arc::clone(&bridge.down));
            bridge.threads.push(thread::spawn(move || {
                let mut direction = Direction { side, from, to, shared, opened, held: None };
                if let Err(error) = direction.carry(&ended) {
                    let text = format!("frames from the {side:?} interface: {error}");
                    down.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
                }
            }));
        }
        Ok(bridge)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Shared) -> T) -> T {
        act(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins a case.
    pub fn begin(&self, fault: Option<Fault>) {
        self.with(|shared| {
            (shared.fault, shared.picked, shared.done, shared.unheard) = (fault, 0, 0, 0);
            shared.notes.clear();
        });
    }

    /// What has come of it.
    #[must_use]
    pub fn seen(&self) -> Seen {
        self.with(|shared| Seen { done: shared.done, unheard: shared.unheard, notes: shared.notes.clone() })
    }

    /// The laws of form over all packets from each side.
    #[must_use]
    pub fn laws(&self) -> [Laws; 2] {
        self.with(|shared| shared.laws.clone())
    }

    /// Why it carries nothing any more, if so.
    #[must_use]
    pub fn down(&self) -> Option<String> {
        self.down.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// What a router does to an IP packet's header. A hop limit of 0 stays 0: whoever sends that has a law of its own.
fn route(ip: &mut [u8]) {
    set_header(ip, |_, ttl| *ttl = ttl.saturating_sub(1));
}

/// Frames one way.
struct Direction {
    side: Side,
    from: Box<dyn DataLinkReceiver>,
    to: Box<dyn DataLinkSender>,
    shared: Arc<Mutex<Shared>>,
    opened: Instant,
    held: Option<(Vec<u8>, Instant)>,
}

impl Direction {
    fn carry(&mut self, ended: &AtomicBool) -> io::Result<()> {
        while !ended.load(Ordering::Relaxed) {
            match self.from.next() {
                Ok(frame) => {
                    let frame = frame.to_vec();
                    self.pass(frame)?;
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(error),
            }
            if self.held.as_ref().is_some_and(|(_, since)| since.elapsed() > LONGEST_HOLD) {
                self.release()?;
            }
        }
        Ok(())
    }

    fn put(&mut self, frame: &[u8]) -> io::Result<()> {
        self.to
            .send_to(frame, None)
            .unwrap_or_else(|| Err(io::Error::other("the packet socket takes no frames")))
    }

    fn release(&mut self) -> io::Result<()> {
        self.held.take().map_or(Ok(()), |(frame, _)| self.put(&frame))
    }

    fn pass(&mut self, mut frame: Vec<u8>) -> io::Result<()> {
        let act = self.decide(&frame);
        match act {
            Some(Act::Drop) => return Ok(()),
            Some(Act::Twice) => self.put(&frame)?,
            Some(Act::Swap) => {
                // One that is held already has been overtaken by this.
                let before = self.held.replace((frame, Instant::now()));
                return before.map_or(Ok(()), |(frame, _)| self.put(&frame));
            }
            Some(Act::Delay(time)) => thread::sleep(time),
            // In front of the ICRC.
            Some(Act::Damage) => {
                let at = frame.len() - 5;
                frame[at] ^= 0x10;
            }
            Some(Act::Route) => route(&mut frame[14..]),
            Some(Act::Mark) => set_header(&mut frame[14..], |tos, _| *tos |= 3),
            None => {}
        }
        self.put(&frame)?;
        self.release()
    }

    /// What happens to a frame.
    fn decide(&self, frame: &[u8]) -> Option<Act> {
        let ip = frame.get(14..)?;
        // Ethernet's padding is none of the packet's.
        let length = match ip.first()? >> 4 {
            4 => usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?])),
            _ => usize::from(u16::from_be_bytes([*ip.get(4)?, *ip.get(5)?])) + 40,
        };
        let ip = ip.get(..length)?;
        ends_of(ip)?;
        let seen = take_apart(ip, true).ok()?;
        let packet = &seen.packet;
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.laws[self.side as usize].look(&seen);
        let message = Message::of(packet);
        shared.unheard += usize::from(message.as_ref().is_some_and(Message::refuses_service));
        let fault = shared.fault.filter(|fault| (fault.picks)(packet))?;
        shared.picked += 1;
        if shared.picked > fault.count * fault.every || !shared.picked.is_multiple_of(fault.every) {
            return None;
        }
        shared.done += 1;
        if shared.notes.len() < MOST_NOTES {
            let what = message.map_or_else(|| packet.summary(), |message| message.summary());
            let note = format!("{:?} of {what}, from the {:?}", fault.act, self.side);
            shared.notes.push((self.opened.elapsed(), note));
        }
        Some(fault.act)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Ends, Roce, op};

    #[test]
    fn a_router_takes_one_hop_of_those_that_are_left() {
        let ends = Ends { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), sport: 1, roce: Roce::V2 };
        for (before, behind) in [(64, 63), (1, 0), (0, 0)] {
            let mut ip = Packet::of(op::ACK).ttl(before).encode(&ends);
            route(&mut ip);
            let seen = take_apart(&ip, true).unwrap();
            assert_eq!(seen.packet.ttl, Some(behind));
            assert_eq!(seen.laws.iter().find(|law| !law.1), None);
        }
    }
}
