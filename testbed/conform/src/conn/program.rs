//! Control of the device's program by cases: work requests that it posts, the contents of its memory, and the completions
//! and events that it receives.

use super::{Conn, LOCAL, Posted, RECEIVES};
use crate::{
    bench::{Got, World},
    case::{Outcome, broken, check},
    dut::{Av, Flag, Handle, Kind, RecvWr, SendWr, Sge, Wc, WrOp},
};
use std::time::Duration;

/// What arrived first from a device ([`Conn::next_or_wc`]).
#[derive(Clone, Debug)]
pub enum Came {
    /// A packet.
    Packet(Got),
    /// A completion for its program.
    Completion(Wc),
}

impl Conn {
    /// The device's program posts a receive of this many bytes.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn post_recv(&mut self, len: usize) -> Outcome<Posted> {
        // Receives lie one behind the other, and start again from the beginning when there is no room left.
        if self.next_receive + len > LOCAL - RECEIVES {
            self.next_receive = 0;
        }
        let offset = RECEIVES + self.next_receive;
        self.next_receive += len.next_multiple_of(64);
        let sge = self.local(offset, len);
        let mut world = self.world.borrow_mut();
        let wr_id = world.new_wr();
        world.note(format!("post_recv {len} bytes"));
        let wr = RecvWr { wr_id, sge: if len == 0 { Vec::new() } else { vec![sge] } };
        match self.objects.srq {
            Some(srq) => world.dut.post_srq_recv(srq, &wr)?,
            None => world.dut.post_recv(self.qp.handle, &wr)?,
        }
        Ok(Posted { wr_id, offset })
    }

    const fn local(&self, offset: usize, len: usize) -> Sge {
        let local = &self.objects.local;
        Sge { addr: local.addr + offset as u64, length: len as u32, lkey: local.lkey }
    }

    /// The device's program posts a signaled request for the first `len` bytes of the local region.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn post(&mut self, wr: WrOp, len: usize) -> Outcome<u64> {
        self.post_with(wr, len, &[Flag::Signaled])
    }

    /// The same with other flags.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn post_with(&mut self, wr: WrOp, len: usize, flags: &[Flag]) -> Outcome<u64> {
        let sge = if len == 0 { Vec::new() } else { vec![self.local(0, len)] };
        self.post_raw(wr, sge, flags)
    }

    /// The same with any local memory.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn post_raw(&mut self, wr: WrOp, sge: Vec<Sge>, flags: &[Flag]) -> Outcome<u64> {
        let mut world = self.world.borrow_mut();
        let wr_id = world.new_wr();
        world.note(format!("post_send {wr:?}"));
        let wr = SendWr { wr_id, sge, flags: flags.to_vec(), op: wr, dest: None };
        world.dut.post_send(self.qp.handle, &wr)?;
        Ok(wr_id)
    }

    /// The device's program posts a datagram to this queue pair of ours.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn post_to(&mut self, wr: WrOp, len: usize, (qpn, qkey): (u32, u32)) -> Outcome<u64> {
        self.post_along(wr, len, (self.way(), qpn, qkey))
    }

    /// The same along any path.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn post_along(&mut self, wr: WrOp, len: usize, dest: (Av, u32, u32)) -> Outcome<u64> {
        let (sge, dest) = (vec![self.local(0, len)], Some(dest));
        let mut world = self.world.borrow_mut();
        let wr_id = world.new_wr();
        world.note(format!("post_send {wr:?}"));
        let wr = SendWr { wr_id, sge, flags: vec![Flag::Signaled], op: wr, dest };
        world.dut.post_send(self.qp.handle, &wr)?;
        Ok(wr_id)
    }

    /// Writes to the target region, as its owner.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn set(&self, offset: usize, data: &[u8]) -> Outcome {
        Ok(self.world.borrow_mut().dut.mem_write(&self.objects.target, offset, data)?)
    }

    /// Reads from the target region, as its owner.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn get(&self, offset: usize, len: usize) -> Outcome<Vec<u8>> {
        Ok(self.world.borrow_mut().dut.mem_read(&self.objects.target, offset, len)?)
    }

    /// Fails the case unless the target region holds these bytes at this offset.
    ///
    /// # Errors
    /// If it holds other bytes.
    pub fn holds(&self, offset: usize, data: &[u8]) -> Outcome {
        same_bytes("the memory aimed at", &self.get(offset, data.len())?, data)
    }

    /// Fails the case unless the target region holds these bytes within the time limit.
    ///
    /// # Errors
    /// If it does not.
    pub fn comes_to_hold(&self, offset: usize, data: &[u8]) -> Outcome {
        let patience = self.patience();
        let landed = |world: &mut World| {
            let found = world.dut.mem_read(&self.objects.target, offset, data.len())?;
            Ok((found == data).then_some(()))
        };
        let found = self.world.borrow_mut().until(patience, landed)?;
        check(found.is_some(), || format!("nothing was written at {offset} for {patience:?}"))
    }

    /// Writes to the local region, from which the device sends.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn set_local(&self, offset: usize, data: &[u8]) -> Outcome {
        Ok(self.world.borrow_mut().dut.mem_write(&self.objects.local, offset, data)?)
    }

    /// Fails the case unless the local region holds these bytes at this offset.
    ///
    /// # Errors
    /// If it holds other bytes.
    pub fn received(&self, offset: usize, data: &[u8]) -> Outcome {
        let found = self.world.borrow_mut().dut.mem_read(&self.objects.local, offset, data.len())?;
        same_bytes("what was received", &found, data)
    }

    /// The device's next completion of that kind.
    ///
    /// # Errors
    /// If none arrives.
    pub fn wc(&self, kind: Kind) -> Outcome<Wc> {
        let patience = self.patience();
        match self.wc_within(kind, patience)? {
            Some(wc) => Ok(wc),
            None => broken(format!("no {kind:?} completion within {patience:?}")),
        }
    }

    /// The device's next completion of that kind, if one arrives within `within`.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn wc_within(&self, kind: Kind, within: Duration) -> Outcome<Option<Wc>> {
        self.world.borrow_mut().completion(self.cq_of(kind), within)
    }

    /// The completion queue for completions of that kind.
    const fn cq_of(&self, kind: Kind) -> Handle {
        match kind {
            Kind::Send => self.objects.send_cq,
            Kind::Recv => self.objects.recv_cq,
        }
    }

    /// What arrives first within `within`: the device's next packet, or its next completion of that kind.
    ///
    /// # Errors
    /// The error of the device or of the link.
    pub fn next_or_wc(&self, kind: Kind, within: Duration) -> Outcome<Option<Came>> {
        let (qpn, cq) = (self.qpn, self.cq_of(kind));
        self.world.borrow_mut().until(within, |world| {
            if let Some(got) = world.take(qpn, Duration::ZERO)? {
                return Ok(Some(Came::Packet(got)));
            }
            Ok(world.completion(cq, Duration::ZERO)?.map(Came::Completion))
        })
    }

    /// The device's next completion of that kind reports success of this request.
    ///
    /// # Errors
    /// If it does not.
    pub fn done(&self, kind: Kind, wr_id: u64) -> Outcome<Wc> {
        let wc = self.wc(kind)?;
        check(wc.status == "SUCCESS" && wc.wr_id == wr_id, || {
            format!("expected the success of request {wr_id}, got {} of {}", wc.status, wc.wr_id)
        })?;
        Ok(wc)
    }

    /// The device's next completion of that kind reports this error of this request.
    ///
    /// # Errors
    /// If it does not.
    pub fn failed(&self, kind: Kind, wr_id: u64, status: &str) -> Outcome<Wc> {
        let wc = self.wc(kind)?;
        check(wc.status == status && wc.wr_id == wr_id, || {
            format!("expected {status} of request {wr_id}, got {} of {}", wc.status, wc.wr_id)
        })?;
        Ok(wc)
    }

    /// There is no completion of that kind.
    ///
    /// # Errors
    /// If there is one.
    pub fn nothing_done(&self, kind: Kind) -> Outcome {
        let calm = self.calm();
        match self.wc_within(kind, calm)? {
            None => Ok(()),
            Some(wc) => broken(format!("expected no {kind:?} completion, got {} of {}", wc.status, wc.wr_id)),
        }
    }

    /// The device's program receives this asynchronous event.
    ///
    /// # Errors
    /// If it receives another event, or none.
    pub fn event(&self, name: &str) -> Outcome {
        let mut world = self.world.borrow_mut();
        let patience = world.patience();
        match world.until(patience, |w| Ok(w.dut.async_event()?))? {
            Some(event) if event == name => Ok(()),
            Some(event) => broken(format!("expected the event {name}, got {event}")),
            None => broken(format!("expected the event {name}, none came")),
        }
    }
}

fn same_bytes(what: &str, got: &[u8], expected: &[u8]) -> Outcome {
    let first = got.iter().zip(expected).position(|(a, b)| a != b);
    check(first.is_none(), || {
        let at = first.unwrap_or(0);
        format!("{what} is {:#04x} at byte {at} of {}, not {:#04x}", got[at], expected.len(), expected[at])
    })
}
