//! A queue of an initiator: commands on one connection, and their responses.

use super::{CAPSULE, Host, MOST_DATA};
use crate::storage::{
    link::{Depth, Link, LinkError},
    nvme::capsule::{
        CONNECT_DATA, Command, ConnectData, QueueOffer, RESPONSE, Response, Sgl, Status, fabrics,
    },
};
use core::time::Duration;
use rxe_verbs::{Access, Mr, RecvWr, SendOp, SendWr, WcOpcode};
use std::net::SocketAddr;

/// A queue: one connection, with a slot in memory for each command.
#[derive(Debug)]
pub(super) struct Queue {
    link: Link,
    memory: Mr,
    /// The memory begins with the commands and the data in them. Responses follow, then other data.
    responses_at: usize,
    data_at: usize,
    /// Slots without a command.
    pub(super) free: Vec<u16>,
    /// The state of each slot.
    waiting: Vec<Waiting>,
    pub(super) in_capsule: usize,
    patience: Duration,
}

/// A command in progress. Its slot is free again when the command has been sent and answered.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    submitted: bool,
    sent: bool,
    response: Option<Response>,
}

impl Queue {
    pub(super) fn open(host: &Host, to: SocketAddr, offer: QueueOffer) -> Result<Self, LinkError> {
        let slots = offer.commands - 1;
        let places = usize::from(slots);
        let (responses_at, data_at) = (places * CAPSULE, places * (CAPSULE + RESPONSE));
        let depth = Depth { sends: slots.into(), receives: slots.into() };
        let prepare = |link: &Link| {
            let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
            let memory = link.pd().alloc_mr(data_at + places * MOST_DATA, rights)?;
            (0..places).try_for_each(|slot| expect(link, &memory, responses_at, slot))?;
            Ok(memory)
        };
        let (link, memory) =
            Link::connect(&host.manager, host.from, to, depth, &offer.encode(), host.patience, prepare)?;
        Ok(Self {
            link,
            memory,
            responses_at,
            data_at,
            free: (0..slots).rev().collect(),
            waiting: vec![Waiting::default(); places],
            in_capsule: 0,
            patience: host.patience,
        })
    }

    /// Sends Connect, which creates the controller, or adds a queue to it. Returns the controller ID (Base, 6.3).
    pub(super) fn introduce(&mut self, offer: QueueOffer, data: &ConnectData) -> Result<u16, LinkError> {
        let words = [u32::from(offer.queue) << 16, u32::from(offer.commands - 1), 0, 0, 0, 0];
        let command = Command::new(fabrics::OPCODE, fabrics::CONNECT.into(), words);
        let encoded: [u8; CONNECT_DATA] = data.encode();
        let in_capsule = core::mem::take(&mut self.in_capsule);
        let answer = self.order("Connect", command, &encoded)?;
        self.in_capsule = in_capsule;
        Ok(answer.result as u16)
    }

    /// Reads a property (Base, 6.4).
    pub(super) fn property(&mut self, offset: u32, long: bool) -> Result<u64, LinkError> {
        let words = [long.into(), offset, 0, 0, 0, 0];
        let command = Command::new(fabrics::OPCODE, fabrics::PROPERTY_GET.into(), words);
        Ok(self.order("Property Get", command, &[])?.result)
    }

    /// Sets a property (Base, 6.6).
    pub(super) fn set_property(&mut self, offset: u32, value: u32) -> Result<(), LinkError> {
        let words = [0, offset, value, 0, 0, 0];
        let command = Command::new(fabrics::OPCODE, fabrics::PROPERTY_SET.into(), words);
        self.order("Property Set", command, &[]).map(drop)
    }

    /// Executes a command whose data, if any, go to the target.
    pub(super) fn order(
        &mut self,
        what: &'static str,
        command: Command,
        data: &[u8],
    ) -> Result<Response, LinkError> {
        let slot = self.free.pop().ok_or_else(|| LinkError::protocol("all places are taken"))?;
        self.submit(slot, command, data.len(), data)?;
        let response = self.wait_for(slot)?;
        accepted(what, response)
    }

    /// Executes a command whose data come from the target.
    pub(super) fn fetch(
        &mut self,
        what: &'static str,
        command: Command,
        len: usize,
    ) -> Result<Vec<u8>, LinkError> {
        let slot = self.free.pop().ok_or_else(|| LinkError::protocol("all places are taken"))?;
        // If a target reports success without writing the data, the old bytes must not be mistaken for data.
        let place = self.data_place(slot);
        self.memory.write_at(place, &vec![0xa5; len])?;
        self.submit(slot, command, len, &[])?;
        let response = self.wait_for(slot)?;
        accepted(what, response)?;
        Ok(self.memory.read_vec(place, len)?)
    }

    fn wait_for(&mut self, slot: u16) -> Result<Response, LinkError> {
        let (answered, response) = self.answer()?;
        self.free.push(answered);
        if answered != slot {
            return Err(LinkError::protocol(format!("an answer to command {answered}, not to {slot}")));
        }
        Ok(response)
    }

    fn data_place(&self, slot: u16) -> usize {
        self.data_at + usize::from(slot) * MOST_DATA
    }

    /// Sends a command with memory for `len` bytes of data. `data` are the bytes that go to the target, if any.
    pub(super) fn submit(
        &mut self,
        slot: u16,
        command: Command,
        len: usize,
        data: &[u8],
    ) -> Result<(), LinkError> {
        let capsule = usize::from(slot) * CAPSULE;
        let place = self.data_place(slot);
        let inside = !data.is_empty() && data.len() <= self.in_capsule;
        let sgl = if inside {
            self.memory.write_at(capsule + 64, data)?;
            Sgl::InCapsule { offset: 0, len: len as u32 }
        } else if len > 0 {
            self.memory.write_at(place, data)?;
            let addr = self.memory.addr() + place as u64;
            Sgl::Keyed { addr, len: len as u32, key: self.memory.rkey().0, invalidate: false }
        } else {
            Sgl::NONE
        };
        let command = Command { id: slot, sgl, ..command };
        self.memory.write_at(capsule, &command.encode())?;
        let length = 64 + if inside { len } else { 0 };
        let sges = [self.memory.sge(capsule, length as u32)];
        self.waiting[usize::from(slot)] = Waiting { submitted: true, ..Waiting::default() };
        self.link.qp().post_send(&SendWr::new(slot.into(), SendOp::Send, &sges))?;
        Ok(())
    }

    /// The next command that has been both sent and answered.
    pub(super) fn answer(&mut self) -> Result<(u16, Response), LinkError> {
        loop {
            let wc = self.link.next(self.patience)?;
            let slot = if wc.opcode == WcOpcode::Recv {
                let place = self.responses_at + wc.wr_id as usize * RESPONSE;
                let bytes = self.memory.read_vec(place, (wc.byte_len as usize).min(RESPONSE))?;
                expect(&self.link, &self.memory, self.responses_at, wc.wr_id as usize)?;
                let response = Response::decode(&bytes)?;
                let waiting = self.waiting.get_mut(usize::from(response.id));
                let waiting = waiting.filter(|waiting| waiting.submitted && waiting.response.is_none());
                let Some(waiting) = waiting else {
                    let text = format!("an answer to command {}, which nobody asked", response.id);
                    return Err(LinkError::protocol(text));
                };
                waiting.response = Some(response);
                response.id
            } else {
                self.waiting[wc.wr_id as usize].sent = true;
                wc.wr_id as u16
            };
            let waiting = &mut self.waiting[usize::from(slot)];
            if let (true, Some(response)) = (waiting.sent, waiting.response) {
                *waiting = Waiting::default();
                return Ok((slot, response));
            }
        }
    }
}

/// Posts the receive for a response.
fn expect(link: &Link, memory: &Mr, responses_at: usize, slot: usize) -> Result<(), LinkError> {
    let sges = [memory.sge(responses_at + slot * RESPONSE, RESPONSE as u32)];
    Ok(link.qp().post_recv(&RecvWr { wr_id: slot as u64, sges: &sges })?)
}

/// Checks that a response reports success.
pub(super) fn accepted(what: &'static str, response: Response) -> Result<Response, LinkError> {
    match response.status {
        Status::SUCCESS => Ok(response),
        status => Err(LinkError::Refused { what, status: status.to_string() }),
    }
}
