//! Queue pair 1 of a port: how management datagrams leave and arrive (IBTA vol. 1, 13.5; annex A17 for RoCE).

use crate::{error::CmError, route::Way};
use core::{net::IpAddr, time::Duration};
use rxe_core::wire::{GRH_LEN, Grh};
use rxe_verbs::{
    Access, CompChannel, Completion, Context, Cq, CqWaiter, CreateError, EventError, GidType, Mr, Payload,
    Pkey, PostError, Psn, Qkey, Qp, QpCaps, QpChange, QpInit, QpState, QpType, Qpn, RecvWr, SendFlags,
    SendOp, SendWr, UdDest, WcStatus,
};
use std::os::fd::BorrowedFd;

/// Bytes of a management datagram.
pub(crate) const MAD: usize = 256;
/// Most datagrams that wait to be handled. Kernels keep 512. Here a thousand requests that another process has received for this one may
/// come in one turn.
const RECEIVES: usize = 2048;
/// Bytes of one place for a received datagram.
const ROOM: usize = 512;
/// Most datagrams on their way out.
const SENDS: u32 = 512;
/// How many datagrams are taken at a time.
const BATCH: usize = 64;

/// A datagram that has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    /// The version of RoCE by which it came.
    pub(crate) gid_type: GidType,
    /// The sender's queue pair. A connection manager has 1.
    pub(crate) src_qp: Qpn,
    pub(crate) pkey: Pkey,
    pub(crate) mad: [u8; MAD],
    /// How often it has waited: once for an id to listen, then for the host service to say which process answers.
    pub(crate) waits: u8,
}

/// Queue pair 1 and what belongs to it.
#[derive(Debug)]
pub(super) struct Gsi {
    qp: Qp,
    sends: Cq,
    receives: Cq,
    channel: CompChannel,
    memory: Mr,
}

impl Gsi {
    pub(super) fn open(context: &Context) -> Result<Self, CmError> {
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let receives = context.create_cq(RECEIVES as u32, Some(&channel))?;
        let sends = context.create_cq(SENDS, None)?;
        let memory = pd
            // This memory does not count against the program's limit: kernels have queue pair 1 in memory of their own.
            .alloc_mr(RECEIVES * ROOM, Access::LOCAL_WRITE | Access::ON_DEMAND)
            .map_err(|error| CmError::Argument(error.to_string()))?;
        let caps = QpCaps {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: MAD as u32,
        };
        let mut init = QpInit::new(QpType::Gsi, &receives);
        (init.send_cq, init.caps) = (&sends, caps);
        let qp = pd.create_qp(&init).map_err(|error| match error {
            CreateError::Object(_) => CmError::Gsi(error),
            other => other.into(),
        })?;
        let none = QpChange::default();
        let qkey = Some(Qkey::GSI);
        qp.modify(&QpChange { state: Some(QpState::Init), pkey_index: Some(0), qkey, ..none })?;
        qp.modify(&QpChange { state: Some(QpState::Rtr), ..none })?;
        qp.modify(&QpChange { state: Some(QpState::Rts), sq_psn: Some(Psn::new(0)), ..none })?;
        let gsi = Self { qp, sends, receives, channel, memory };
        gsi.expect(&(0..RECEIVES).collect::<Vec<_>>());
        Ok(gsi)
    }

    /// Posts receive requests for these places, all under one lock of the queue pair.
    fn expect(&self, places: &[usize]) {
        let sge = |place: &usize| [self.memory.sge(place * ROOM, (GRH_LEN + MAD) as u32)];
        let sges: Vec<_> = places.iter().map(sge).collect();
        let requests = places.iter().zip(&sges);
        let list: Vec<_> = requests.map(|(place, sges)| RecvWr { wr_id: *place as u64, sges }).collect();
        // The queue has room for one request for each place.
        let _ = self.qp.post_recv_list(&list);
    }

    /// Sends a datagram. If there is no room it counts as lost on the way, and the machine that needs the answer sends it again.
    pub(super) fn send(&self, way: &Way, mad: &[u8; MAD]) -> Result<(), PostError> {
        let mut done = [Completion::default(); BATCH];
        // Sends complete when they leave. Nothing waits for these completions.
        let _ = self.sends.poll(&mut done);
        let Way { av, pkey } = *way;
        let dest = UdDest { av, remote_qpn: Qpn::GSI, remote_qkey: Qkey::GSI, pkey: Some(pkey) };
        let wr = SendWr {
            dest: Some(dest),
            payload: Payload::Inline(mad),
            flags: SendFlags::SIGNALED,
            ..SendWr::new(0, SendOp::Send, &[])
        };
        self.qp.post_send(&wr)
    }

    /// Makes the receiver for the agent's thread.
    pub(super) fn inbox(&self) -> Inbox<'_> {
        Inbox { gsi: self, waiter: self.receives.waiter() }
    }

    fn read(&self, completion: &Completion) -> Option<Arrival> {
        let whole = completion.status == WcStatus::Success && completion.byte_len as usize == GRH_LEN + MAD;
        let mut bytes = [0; GRH_LEN + MAD];
        self.memory.read_at(completion.wr_id as usize * ROOM, &mut bytes).ok().filter(|()| whole)?;
        let (header, mad) = bytes.split_first_chunk::<GRH_LEN>()?;
        let (Grh { src, dst, encapsulation, .. }, mad) = (Grh::parse(header)?, mad.try_into().ok()?);
        let (gid_type, Completion { src_qp, pkey, .. }) = (encapsulation.into(), *completion);
        Some(Arrival { src, dst, gid_type, src_qp, pkey, mad, waits: 0 })
    }

    pub(super) fn interrupt(&self) {
        self.channel.interrupt();
    }
}

/// The receiving end of queue pair 1, for the agent's thread.
#[derive(Debug)]
pub(super) struct Inbox<'a> {
    gsi: &'a Gsi,
    waiter: Option<CqWaiter<'a>>,
}

impl Inbox<'_> {
    /// Takes datagrams that have arrived, some at a time. Returns whether there may be more. If there
    /// are more although it returns false, the next wait ends at once.
    pub(super) fn receive(&mut self, each: &mut dyn FnMut(Arrival)) -> bool {
        let mut done = [Completion::default(); BATCH];
        let count = self.waiter.as_mut().map_or(0, |waiter| waiter.poll(&mut done).unwrap_or(0));
        let mut places = Vec::with_capacity(count);
        for completion in &done[..count] {
            if let Some(arrival) = self.gsi.read(completion) {
                each(arrival);
            }
            if completion.status == WcStatus::Success {
                places.push(completion.wr_id as usize);
            }
        }
        self.gsi.expect(&places);
        count == BATCH
    }

    /// Other threads receive packets until the next wait, because the caller is about to be busy.
    pub(super) fn step_aside(&mut self) {
        if let Some(waiter) = &mut self.waiter {
            waiter.step_aside();
        }
    }

    /// Waits for an arrival, for `beside`, for [`Gsi::interrupt`], or until the time is over.
    pub(super) fn wait(&mut self, timeout: Duration, beside: Option<BorrowedFd<'_>>) {
        match self.waiter.as_mut().map(|waiter| waiter.wait(Some(timeout), beside)) {
            Some(Ok(()) | Err(EventError::Interrupted)) => {}
            // Whatever the error is, it must not make the thread spin.
            Some(Err(_)) | None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
