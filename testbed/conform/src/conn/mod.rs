//! A connection between a queue pair of the suite and one of the device, with short methods for the scripts of cases.

mod answers;
mod options;
mod program;
#[cfg(test)]
mod tests;

pub use answers::MOST_PASSED;
pub use options::Options;
pub use program::Came;

use crate::{
    bench::{Got, World},
    case::{Fail, Outcome, broken, check},
    dut::{Access, Av, Change, Handle, Mr, Qp, Service, State},
    wire::{MASK24, Packet, op, service},
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

/// The device's objects that a connection uses.
#[derive(Clone, Copy, Debug)]
pub struct Objects {
    /// Protection domain.
    pub pd: Handle,
    /// Completion queue for sends.
    pub send_cq: Handle,
    /// Completion queue for receives.
    pub recv_cq: Handle,
    /// Shared receive queue.
    pub srq: Option<Handle>,
    /// The target region: the memory that the suite's requests access.
    pub target: Mr,
    /// The local region: the memory for the device's own requests and receives.
    pub local: Mr,
}

/// Size of the target region, in bytes.
pub const TARGET: usize = 32 << 10;
/// Size of the local region, in bytes. Sends use it from the start, receives from offset [`RECEIVES`] on.
pub const LOCAL: usize = 64 << 10;
/// Offset in the local region from which receives are placed.
pub const RECEIVES: usize = 32 << 10;

/// A receive that was posted.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    /// The work request's ID.
    pub wr_id: u64,
    /// Its offset in the local region.
    pub offset: usize,
}

/// A connection.
#[derive(Debug)]
pub struct Conn {
    /// The bench.
    pub world: Rc<RefCell<World>>,
    /// The options that it was made with.
    pub options: Options,
    /// The device's objects.
    pub objects: Objects,
    /// The device's queue pair.
    pub qp: Qp,
    /// Number of our queue pair.
    pub qpn: u32,
    /// The PSN that we send next.
    pub psn: u32,
    /// The PSN that we expect next.
    pub expected: u32,
    /// Number of messages from the device that we have completed (the MSN).
    pub msn: u32,
    next_receive: usize,
    /// The oldest PSN of ours that no answer of the device has covered yet.
    unanswered: Cell<u32>,
}

impl Conn {
    /// Makes a queue pair at the device and brings it up.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn open(world: &Rc<RefCell<World>>, options: &Options) -> Outcome<Self> {
        let mut guard = world.borrow_mut();
        let w = &mut *guard;
        if let Some(most) = w.dut.about().path_mtu.filter(|most| *most < options.mtu) {
            let wanted = options.mtu;
            return Err(Fail::Skip(format!(
                "a path MTU of {wanted} is not supported by this link: the device's port has one of {most}"
            )));
        }
        let objects = match options.beside {
            Some(objects) => objects,
            None => {
                let pd = w.dut.pd()?;
                let (send_cq, recv_cq) = (w.dut.cq(options.cqe)?, w.dut.cq(options.cqe)?);
                let srq = if options.srq { Some(w.dut.srq(pd, 128)?) } else { None };
                let target = w.dut.mr(pd, TARGET, &options.region)?;
                let local = w.dut.mr(pd, LOCAL, &[Access::LocalWrite])?;
                Objects { pd, send_cq, recv_cq, srq, target, local }
            }
        };
        let qp = w.dut.qp(&options.spec(&objects))?;
        let qpn = w.new_qpn();
        drop(guard);
        let mut conn = Self {
            world: Rc::clone(world),
            options: options.clone(),
            objects,
            qp,
            qpn,
            psn: options.psn & MASK24,
            expected: options.dut_psn & MASK24,
            msn: 0,
            next_receive: 0,
            unanswered: Cell::new(options.psn & MASK24),
        };
        for state in [State::Init, State::Rtr, State::Rts] {
            if options.upto == State::Reset {
                break;
            }
            conn.step(state)?;
            if state == options.upto {
                break;
            }
        }
        Ok(conn)
    }

    /// The path from the device to us.
    #[must_use]
    pub fn way(&self) -> Av {
        let ends = self.world.borrow().ends();
        Av {
            dgid: ends.src,
            sgid: ends.dst,
            hop_limit: 64,
            traffic_class: self.options.traffic_class,
            roce: ends.roce,
        }
    }

    /// Moves the queue pair to this state.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn step(&mut self, to: State) -> Outcome {
        if to == State::Rtr {
            self.unanswered.set(self.options.psn & MASK24);
        }
        let change = self.options.step(to, self.qpn, self.way());
        self.modify(&change)
    }

    /// Modifies the queue pair.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn modify(&mut self, change: &Change) -> Outcome {
        let mut world = self.world.borrow_mut();
        if let Some(state) = change.state {
            let note = format!("modify QP {:#x} to {state:?}", self.qp.qpn);
            world.note(note);
        }
        Ok(world.dut.modify(self.qp.handle, change)?)
    }

    /// The state of the device's queue pair.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn state(&self) -> Outcome<State> {
        Ok(self.world.borrow_mut().dut.state(self.qp.handle)?)
    }

    /// Fails the case unless the device's queue pair is in this state, or reaches it in time.
    ///
    /// # Errors
    /// If it is in another.
    pub fn in_state(&self, state: State) -> Outcome {
        let mut world = self.world.borrow_mut();
        let (patience, handle) = (world.patience(), self.qp.handle);
        let found = world.until(patience, |w| Ok((w.dut.state(handle)? == state).then_some(())))?;
        drop(world);
        check(found.is_some(), || format!("the queue pair is in {:?}, not {state:?}", self.state().ok()))
    }

    /// Another queue pair with the same memory and completion queues.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn sibling(&self) -> Outcome<Self> {
        self.sibling_with(|_| ())
    }

    /// The same, with changed options.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn sibling_with(&self, change: impl FnOnce(&mut Options)) -> Outcome<Self> {
        let mut options = Options { beside: Some(self.objects), ..self.options.clone() };
        change(&mut options);
        Self::open(&self.world, &options)
    }

    /// Payload size of a full packet, in bytes.
    #[must_use]
    pub const fn mtu(&self) -> usize {
        self.options.mtu as usize
    }

    /// The opcode for this connection's service, from its low five bits.
    const fn on_service(&self, code: u8) -> u8 {
        if code == op::CNP {
            return code;
        }
        match self.options.service {
            Service::Rc => code | service::RC,
            Service::Uc => code | service::UC,
            Service::Ud => code,
            Service::XrcTarget => code | service::XRC,
        }
    }

    /// How long no packet may arrive for the link to count as quiet.
    #[must_use]
    pub fn calm(&self) -> Duration {
        self.world.borrow().calm()
    }

    /// How long the device may take to answer, including the time until it retransmits if the connection's timeout is short
    /// enough.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.world.borrow().patience() + self.options.silence()
    }

    /// The current time, measured from when the link was opened.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.world.borrow().now()
    }

    // --- we send ---------------------------------------------------------------------------------

    /// Address and R_Key for a request to the target region, `offset` bytes from its start.
    #[must_use]
    pub const fn at(&self, offset: usize) -> (u64, u32) {
        (self.objects.target.addr + offset as u64, self.objects.target.rkey)
    }

    /// An RDMA WRITE ONLY packet with these bytes.
    #[must_use]
    pub fn write(&self, offset: usize, data: &[u8]) -> Packet {
        let (va, rkey) = self.at(offset);
        Packet::of(op::WRITE_ONLY).reth(va, rkey, data.len() as u32).data(data.to_vec()).ask()
    }

    /// An RDMA READ request of `len` bytes.
    #[must_use]
    pub fn read(&self, offset: usize, len: usize) -> Packet {
        let (va, rkey) = self.at(offset);
        Packet::of(op::READ_REQUEST).reth(va, rkey, len as u32).ask()
    }

    /// A FETCH ADD request.
    #[must_use]
    pub fn fetch_add(&self, offset: usize, add: u64) -> Packet {
        let (va, rkey) = self.at(offset);
        Packet::of(op::FETCH_ADD).va(va).rkey(rkey).swap_add(add).ask()
    }

    /// A COMPARE SWAP request.
    #[must_use]
    pub fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Packet {
        let (va, rkey) = self.at(offset);
        Packet::of(op::COMPARE_SWAP).va(va).rkey(rkey).compare(compare).swap_add(swap).ask()
    }

    /// The number of PSNs that a request takes.
    fn span(&self, packet: &Packet) -> u32 {
        match packet.opcode {
            Some(opcode) if opcode & 0x1f == op::READ_REQUEST => {
                packet.dma_len.unwrap_or(0).div_ceil(self.options.mtu).max(1)
            }
            _ => 1,
        }
    }

    fn addressed(&self, packet: Packet, psn: u32) -> Packet {
        let opcode = packet.opcode.map(|code| self.on_service(code));
        let srq = (self.options.service == Service::XrcTarget).then_some(self.qp.srq_number);
        let blank = Packet { xrc_srq: srq, ..Packet::default() };
        Packet { opcode, ..packet }.or(blank).or(Packet::default().dest_qp(self.qp.qpn).psn(psn & MASK24))
    }

    /// Sends a request with the next PSN. Returns that PSN.
    ///
    /// # Errors
    /// If the link is down.
    pub fn tx(&mut self, packet: Packet) -> Outcome<u32> {
        let psn = packet.psn.unwrap_or(self.psn);
        self.psn = psn.wrapping_add(self.span(&packet)) & MASK24;
        self.raw(packet.psn(psn))?;
        Ok(psn)
    }

    /// Sends a packet without advancing the next PSN. If the packet sets no PSN, it is sent with the next PSN.
    ///
    /// # Errors
    /// If the link is down.
    pub fn raw(&self, packet: Packet) -> Outcome {
        let packet = self.addressed(packet, self.psn);
        self.world.borrow_mut().send(&packet)
    }

    /// Sends a response for that PSN.
    ///
    /// # Errors
    /// If the link is down.
    pub fn respond(&self, psn: u32, packet: Packet) -> Outcome {
        self.raw(packet.psn(psn & MASK24))
    }

    /// Acknowledges all PSNs up to this one, and counts one more message as completed.
    ///
    /// # Errors
    /// If the link is down.
    pub fn ack(&mut self, psn: u32) -> Outcome {
        self.msn = self.msn.wrapping_add(1) & MASK24;
        self.respond(psn, Packet::of(op::ACK).syndrome(0x1f).msn(self.msn))
    }

    /// Answers a READ request of the device with these bytes, and counts one more message as completed.
    ///
    /// # Errors
    /// If the link is down.
    pub fn answer_read(&mut self, psn: u32, data: &[u8]) -> Outcome {
        self.msn = self.msn.wrapping_add(1) & MASK24;
        let count = data.len().div_ceil(self.mtu()).max(1);
        for at in 0..count {
            let code = op::read_response(at == 0, at + 1 == count);
            let part = &data[at * self.mtu()..data.len().min((at + 1) * self.mtu())];
            self.respond(psn.wrapping_add(at as u32), Packet::of(code).msn(self.msn).data(part.to_vec()))?;
        }
        Ok(())
    }

    /// Sends a NAK with this PSN and syndrome.
    ///
    /// # Errors
    /// If the link is down.
    pub fn nak(&self, psn: u32, syndrome: u8) -> Outcome {
        self.respond(psn, Packet::of(op::ACK).syndrome(syndrome).msn(self.msn))
    }

    // --- the device sends ------------------------------------------------------------------------

    /// The next packet from the device, or `None` if none arrives within `within`.
    ///
    /// # Errors
    /// If the link is down.
    pub fn next(&self, within: Duration) -> Outcome<Option<Got>> {
        let got = self.world.borrow_mut().take(self.qpn, within)?;
        if let Some(got) = &got {
            self.count_answered(got);
        }
        Ok(got)
    }

    /// The next packet from the device, which must match `expected`.
    ///
    /// # Errors
    /// If it does not match, or none arrives.
    pub fn rx(&self, expected: Packet) -> Outcome<Got> {
        self.rx_after(expected, |_| false)
    }

    /// The same after any number of packets that `passed` accepts.
    fn rx_after(&self, expected: Packet, passed: impl Fn(&Packet) -> bool) -> Outcome<Got> {
        let expected = Packet { opcode: expected.opcode.map(|code| self.on_service(code)), ..expected };
        let patience = self.patience();
        let got = loop {
            let Some(got) = self.world.borrow_mut().take(self.qpn, patience)? else {
                self.world.borrow_mut().instead(expected.clone(), None);
                return broken(format!("expected {}, nothing came for {patience:?}", expected.summary()));
            };
            let is_passed = passed(&got.packet);
            self.count_answered(&got);
            if !is_passed {
                break got;
            }
        };
        let wrong = expected.mismatches(&got.packet);
        if !wrong.is_empty() {
            self.world.borrow_mut().instead(expected.clone(), Some(got.packet.clone()));
        }
        check(wrong.is_empty(), || {
            let wrong: Vec<_> = wrong.iter().map(ToString::to_string).collect();
            format!("expected {}, got {}: {}", expected.summary(), got.summary(), wrong.join(", "))
        })?;
        Ok(got)
    }

    /// The next packet from the device, which must be a request with the expected PSN.
    ///
    /// # Errors
    /// If it is another packet, or none arrives.
    pub fn request(&mut self, expected: Packet) -> Outcome<Got> {
        let got = self.rx(expected.psn(self.expected))?;
        self.expected = self.expected.wrapping_add(self.span(&got.packet)) & MASK24;
        Ok(got)
    }
}

/// Bytes that differ from place to place, so that misplaced data is detected.
#[must_use]
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(7) ^ (at >> 8) as u8 ^ seed).collect()
}
