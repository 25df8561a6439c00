//! The bridge between two network interfaces.

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

/// The number of notes that are kept about the packets changed in one case.
const MOST_NOTES: usize = 100;
/// A frame that is held back leaves after this time even if no other frame follows.
const LONGEST_HOLD: Duration = Duration::from_millis(200);

/// The side that a packet comes from.
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
    /// It is delivered twice.
    Twice,
    /// The next packet in the same direction overtakes it.
    Swap,
    /// It and all packets behind it are delayed by this time.
    Delay(Duration),
    /// One bit is flipped in its last payload byte, or in its last header byte if it has no payload. The ICRC is left
    /// unchanged.
    Damage,
    /// Its TTL or hop limit is decremented by one, as a router does.
    Route,
    /// Its ECN field is set to "congestion experienced".
    Mark,
}

/// A fault, and the packets that it is applied to.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// What happens.
    pub act: Act,
    /// Only packets for which this function returns true are picked.
    pub picks: fn(&Packet) -> bool,
    /// How many of the picked packets the fault is applied to.
    pub count: usize,
    /// The fault is applied to one in this many picked packets; 1 means to each.
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

/// What the bridge observed and did in a case.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The number of packets that the fault was applied to.
    pub done: usize,
    /// Connection requests that were refused because no program was listening: the program on that side was not ready.
    pub unheard: usize,
    /// What was done, and when, measured from when the bridge was opened.
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
    /// Opens a bridge between two interfaces.
    ///
    /// # Errors
    /// If there is no such interface, or the privilege (CAP_NET_RAW) is missing.
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

    /// What the bridge has observed and done so far in this case.
    #[must_use]
    pub fn seen(&self) -> Seen {
        self.with(|shared| Seen { done: shared.done, unheard: shared.unheard, notes: shared.notes.clone() })
    }

    /// The laws of form over all packets from each side.
    #[must_use]
    pub fn laws(&self) -> [Laws; 2] {
        self.with(|shared| shared.laws.clone())
    }

    /// Why the bridge no longer passes frames, if it does not.
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

/// Changes an IP packet's header as a router does. A hop limit of 0 stays 0; a separate law of form checks for packets sent
/// with it.
fn route(ip: &mut [u8]) {
    set_header(ip, |_, ttl| *ttl = ttl.saturating_sub(1));
}

/// Forwards frames in one direction.
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
                // If another frame is already held back, it is released now: this one has overtaken it.
                let before = self.held.replace((frame, Instant::now()));
                return before.map_or(Ok(()), |(frame, _)| self.put(&frame));
            }
            Some(Act::Delay(time)) => thread::sleep(time),
            // The byte just before the ICRC.
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

    /// Decides what to do with a frame.
    fn decide(&self, frame: &[u8]) -> Option<Act> {
        let ip = frame.get(14..)?;
        // Ethernet's padding is not part of the packet.
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
