//! What a connection demands of the device's next packet: an acknowledgement, a NAK, silence.

use super::{Conn, TARGET};
use crate::{
    bench::Got,
    case::{Outcome, broken, check},
    wire::{MASK24, Packet, op},
};
use std::time::Duration;

/// The place in the target region at which [`Conn::alive`] writes: its end, which no case that uses it aims at.
const MARK: usize = TARGET - 8;

impl Conn {
    /// A positive acknowledgement of exactly that PSN.
    ///
    /// # Errors
    /// If another packet arrives, or none.
    pub fn acked(&self, psn: u32) -> Outcome<Got> {
        let got = self.rx(Packet::of(op::ACK).psn(psn & MASK24))?;
        check(got.syndrome.is_some_and(|syndrome| syndrome < 0x20), || {
            format!("expected an ACK, got {}", got.summary())
        })?;
        Ok(got)
    }

    /// A NAK of exactly that PSN with that syndrome.
    ///
    /// # Errors
    /// If another packet arrives, or none.
    pub fn naked(&self, psn: u32, syndrome: u8) -> Outcome<Got> {
        self.rx(Packet::of(op::ACK).psn(psn & MASK24).syndrome(syndrome))
    }

    /// No packet arrives from the device.
    ///
    /// # Errors
    /// If one arrives.
    pub fn quiet(&self) -> Outcome {
        let calm = self.calm();
        self.quiet_for(calm)
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
