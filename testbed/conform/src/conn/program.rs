//! The device's program, as cases order it about: what it posts, what lies in its memory, what it is told.

use super::{Conn, LOCAL, Posted, RECEIVES};
use crate::{
    bench::{Got, World},
    case::{Outcome, broken, check},
    dut::{Av, Flag, Handle, Kind, RecvWr, SendWr, Sge, Wc, WrOp},
};
use std::time::Duration;

/// What came first from a device ([`Conn::next_or_wc`]).
#[derive(Clone, Debug)]
pub enum Came {
    /// A packet.
    Packet(Got),
    /// Its program was told of a completion.
    Completion(Wc),
}

impl Conn {
    /// The device posts a receive of that many bytes.
    ///
    /// # Errors
    /// What the device says.
    pub fn post_recv(&mut self, len: usize) -> Outcome<Posted> {
        // One behind the other, and from the start again where there is no room.
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

    /// The device posts a signaled request on the first `len` bytes of its own memory.
    ///
    /// # Errors
    /// What the device says.
    pub fn post(&mut self, wr: WrOp, len: usize) -> Outcome<u64> {
        self.post_with(wr, len, &[Flag::Signaled])
    }

    /// The same with other flags.
    ///
    /// # Errors
    /// What the device says.
    pub fn post_with(&mut self, wr: WrOp, len: usize, flags: &[Flag]) -> Outcome<u64> {
        let sge = if len == 0 { Vec::new() } else { vec![self.local(0, len)] };
        self.post_raw(wr, sge, flags)
    }

    /// The same with any memory.
    ///
    /// # Errors
    /// What the device says.
    pub fn post_raw(&mut self, wr: WrOp, sge: Vec<Sge>, flags: &[Flag]) -> Outcome<u64> {
        let mut world = self.world.borrow_mut();
        let wr_id = world.new_wr();
        world.note(format!("post_send {wr:?}"));
        let wr = SendWr { wr_id, sge, flags: flags.to_vec(), op: wr, dest: None };
        world.dut.post_send(self.qp.handle, &wr)?;
        Ok(wr_id)
    }

    /// The device posts a datagram to that queue pair of ours.
    ///
    /// # Errors
    /// What the device says.
    pub fn post_to(&mut self, wr: WrOp, len: usize, (qpn, qkey): (u32, u32)) -> Outcome<u64> {
        self.post_along(wr, len, (self.way(), qpn, qkey))
    }

    /// The same along any way.
    ///
    /// # Errors
    /// What the device says.
    pub fn post_along(&mut self, wr: WrOp, len: usize, dest: (Av, u32, u32)) -> Outcome<u64> {
        let (sge, dest) = (vec![self.local(0, len)], Some(dest));
        let mut world = self.world.borrow_mut();
        let wr_id = world.new_wr();
        world.note(format!("post_send {wr:?}"));
        let wr = SendWr { wr_id, sge, flags: vec![Flag::Signaled], op: wr, dest };
        world.dut.post_send(self.qp.handle, &wr)?;
        Ok(wr_id)
    }

    /// Writes the memory that we aim at, as its owner.
    ///
    /// # Errors
    /// What the device says.
    pub fn set(&self, offset: usize, data: &[u8]) -> Outcome {
        Ok(self.world.borrow_mut().dut.mem_write(&self.objects.target, offset, data)?)
    }

    /// Reads the memory that we aim at, as its owner.
    ///
    /// # Errors
    /// What the device says.
    pub fn get(&self, offset: usize, len: usize) -> Outcome<Vec<u8>> {
        Ok(self.world.borrow_mut().dut.mem_read(&self.objects.target, offset, len)?)
    }

    /// The rule is broken unless the memory that we aim at holds these bytes there.
    ///
    /// # Errors
    /// If it holds others.
    pub fn holds(&self, offset: usize, data: &[u8]) -> Outcome {
        same_bytes("the memory aimed at", &self.get(offset, data.len())?, data)
    }

    /// The rule is broken unless that memory holds these bytes sooner or later.
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

    /// Writes the device's own memory, from which it sends.
    ///
    /// # Errors
    /// What the device says.
    pub fn set_local(&self, offset: usize, data: &[u8]) -> Outcome {
        Ok(self.world.borrow_mut().dut.mem_write(&self.objects.local, offset, data)?)
    }

    /// The rule is broken unless the device's own memory holds these bytes there.
    ///
    /// # Errors
    /// If it holds others.
    pub fn received(&self, offset: usize, data: &[u8]) -> Outcome {
        let found = self.world.borrow_mut().dut.mem_read(&self.objects.local, offset, data.len())?;
        same_bytes("what was received", &found, data)
    }

    /// The device's next completion of that kind.
    ///
    /// # Errors
    /// If none comes.
    pub fn wc(&self, kind: Kind) -> Outcome<Wc> {
        let patience = self.patience();
        match self.wc_within(kind, patience)? {
            Some(wc) => Ok(wc),
            None => broken(format!("no {kind:?} completion within {patience:?}")),
        }
    }

    /// The device's next completion of that kind, if there is one within `within`.
    ///
    /// # Errors
    /// What the device says.
    pub fn wc_within(&self, kind: Kind, within: Duration) -> Outcome<Option<Wc>> {
        self.world.borrow_mut().completion(self.cq_of(kind), within)
    }

    /// Where completions of that kind go.
    const fn cq_of(&self, kind: Kind) -> Handle {
        match kind {
            Kind::Send => self.objects.send_cq,
            Kind::Recv => self.objects.recv_cq,
        }
    }

    /// What comes first within `within`: the device's next packet, or its next completion of that kind.
    ///
    /// # Errors
    /// What the device says, or the link.
    pub fn next_or_wc(&self, kind: Kind, within: Duration) -> Outcome<Option<Came>> {
        let (qpn, cq) = (self.qpn, self.cq_of(kind));
        self.world.borrow_mut().until(within, |world| {
            if let Some(got) = world.take(qpn, Duration::ZERO)? {
                return Ok(Some(Came::Packet(got)));
            }
            Ok(world.completion(cq, Duration::ZERO)?.map(Came::Completion))
        })
    }

    /// The device's next completion of that kind is a success of that request.
    ///
    /// # Errors
    /// If it is not.
    pub fn done(&self, kind: Kind, wr_id: u64) -> Outcome<Wc> {
        let wc = self.wc(kind)?;
        check(wc.status == "SUCCESS" && wc.wr_id == wr_id, || {
            format!("expected the success of request {wr_id}, got {} of {}", wc.status, wc.wr_id)
        })?;
        Ok(wc)
    }

    /// The device's next completion of that kind is this failure of that request.
    ///
    /// # Errors
    /// If it is not.
    pub fn failed(&self, kind: Kind, wr_id: u64, status: &str) -> Outcome<Wc> {
        let wc = self.wc(kind)?;
        check(wc.status == status && wc.wr_id == wr_id, || {
            format!("expected {status} of request {wr_id}, got {} of {}", wc.status, wc.wr_id)
        })?;
        Ok(wc)
    }

    /// No completion of that kind is there.
    ///
    /// # Errors
    /// If one is.
    pub fn nothing_done(&self, kind: Kind) -> Outcome {
        let calm = self.calm();
        match self.wc_within(kind, calm)? {
            None => Ok(()),
            Some(wc) => broken(format!("expected no {kind:?} completion, got {} of {}", wc.status, wc.wr_id)),
        }
    }

    /// The device's program is told of this asynchronous event.
    ///
    /// # Errors
    /// If it is told of another, or of none.
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
