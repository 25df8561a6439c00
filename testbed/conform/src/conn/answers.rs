//! What a connection demands of the device's next packet: an acknowledgement, a NAK, silence.

use super::{Conn, TARGET};
use crate::{
    bench::Got,
    case::{Outcome, broken, check},
    wire::{MASK24, Packet, is_response, op},
};
use std::time::Duration;

/// The place in the target region at which [`Conn::alive`] writes: its end, which no case that uses it aims at.
const MARK: usize = TARGET - 8;
/// The most packets that are passed over until the link is quiet. A device that sends more sends without end.
pub const MOST_PASSED: u32 = 200;

/// By how many PSNs `psn` is ahead of `first`. What is behind it is far ahead.
const fn ahead(first: u32, psn: u32) -> u32 {
    psn.wrapping_sub(first) & MASK24
}

/// Whether an AETH, if there is one, is that of an acknowledgement.
fn is_positive(packet: &Packet) -> bool {
    packet.syndrome.is_some_and(|syndrome| syndrome < 0x20)
}

impl Conn {
    /// A positive acknowledgement of exactly that PSN. Acknowledgements of earlier requests may come before it.
    ///
    /// # Errors
    /// If another packet arrives, or none.
    pub fn acked(&self, psn: u32) -> Outcome<Got> {
        let psn = psn & MASK24;
        let got = self.rx_after(Packet::of(op::ACK).psn(psn), |packet| self.is_early(packet, psn))?;
        check(is_positive(&got.packet), || format!("expected an ACK, got {}", got.summary()))?;
        Ok(got)
    }

    /// A NAK of exactly that PSN with that syndrome. Acknowledgements of earlier requests may come before it.
    ///
    /// # Errors
    /// If another packet arrives, or none.
    pub fn naked(&self, psn: u32, syndrome: u8) -> Outcome<Got> {
        let psn = psn & MASK24;
        let expected = Packet::of(op::ACK).psn(psn).syndrome(syndrome);
        self.rx_after(expected, |packet| self.is_early(packet, psn))
    }

    /// Whether a packet acknowledges requests before PSN `psn` that nothing has acknowledged yet. A responder may acknowledge
    /// more often than it is asked to (IBTA vol. 1, 9.7.5.1.2).
    fn is_early(&self, packet: &Packet, psn: u32) -> bool {
        let first = self.unanswered.get();
        let is_ack = packet.opcode == Some(self.on_service(op::ACK)) && is_positive(packet);
        // If `psn` is behind, a duplicate was sent, whose answer comes alone.
        let is_new = ahead(first, psn) <= ahead(first, self.psn);
        is_ack && is_new && packet.psn.is_some_and(|acked| ahead(first, acked) < ahead(first, psn))
    }

    /// Keeps in mind which of our requests an answer of the device covers: all up to its PSN, or all before it if it is a NAK.
    pub(super) fn count_answered(&self, got: &Got) {
        let first = self.unanswered.get();
        let (Some(opcode), Some(psn)) = (got.opcode, got.psn) else { return };
        let refused = got.syndrome.is_some_and(|syndrome| syndrome >= 0x20);
        let next = if refused { psn } else { psn.wrapping_add(1) & MASK24 };
        if is_response(opcode) && ahead(first, next) <= ahead(first, self.psn) {
            self.unanswered.set(next);
        }
    }

    /// No packet arrives from the device.
    ///
    /// # Errors
    /// If one arrives.
    pub fn quiet(&self) -> Outcome {
        let calm = self.calm();
        self.quiet_for(calm)
    }

    /// Passes over packets of the device until the link counts as quiet. Returns how many there were.
    ///
    /// # Errors
    /// If there is no end to them.
    pub fn drain(&self) -> Outcome<u32> {
        let mut count = 0;
        while let Some(got) = self.next(self.calm())? {
            count += 1;
            check(count < MOST_PASSED, || format!("{count} packets and no end, at last {}", got.summary()))?;
        }
        Ok(count)
    }

    /// Waits until the link counts as quiet. Packets that arrive meanwhile are kept.
    ///
    /// # Errors
    /// If the link is down.
    pub fn wait_calm(&self) -> Outcome {
        let calm = self.calm();
        self.world.borrow_mut().wait(calm)
    }

    /// No packet arrives from the device for this time.
    ///
    /// # Errors
    /// If one arrives.
    pub fn quiet_for(&self, time: Duration) -> Outcome {
        match self.next(time)? {
            None => Ok(()),
            Some(got) => broken(format!("expected silence, got {}", got.summary())),
        }
    }

    /// The device executes the next request as if nothing had happened: its next packet is the acknowledgement of a WRITE, and
    /// the bytes are there.
    ///
    /// # Errors
    /// If it does not.
    pub fn alive(&mut self) -> Outcome<Got> {
        // Bytes that were never there before, because an acknowledgement alone may be that of a duplicate: a device that has
        // moved its expected PSN for a packet that it dropped takes this request for one, and loses it.
        let bytes = (u64::from(self.qpn) << 32 | u64::from(self.psn)).to_be_bytes();
        let psn = self.tx(self.write(MARK, &bytes))?;
        let got = self.acked(psn)?;
        check(self.get(MARK, bytes.len())? == bytes, || {
            format!("the next request was acknowledged, but not executed: {}", got.summary())
        })?;
        Ok(got)
    }

    /// The device neither answers nor executes this packet, and executes the next request as if this packet had not arrived.
    ///
    /// # Errors
    /// If it answers or executes the packet.
    pub fn ignores(&mut self, packet: Packet) -> Outcome {
        self.raw(packet)?;
        self.alive().map(|_| ())
    }
}
