//! A queue pair for one address of ours, with the memory that datagrams go through.

use crate::{
    error::SocketError,
    proto::datagram::{decode_source, encode_source},
    settings::Settings,
};
use rxe_cm::CmId;
use rxe_verbs::{
    Access, CompChannel, Completion, Cq, Mr, Payload, Qp, QpCaps, QpInit, QpType, Qpn, RecvWr, SendFlags,
    SendOp, SendWr, UdDest, WcStatus,
};
use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

/// Bytes of a datagram with its header at most.
pub(super) const SLOT: usize = 2048;
/// Bytes before a received datagram that are the network header's.
const GRH: usize = 40;
/// Set in the number of a receive.
const RECEIVE: u64 = 1 << 63;
/// Completions that are taken at a time.
const BATCH: usize = 16;

/// A datagram that waits for the program.
#[derive(Debug)]
pub(super) struct Received {
    /// As the connection manager has it: IPv4 is not mapped.
    pub(super) from: SocketAddr,
    /// The datagram with its header, and where the program's data begin.
    bytes: Vec<u8>,
    begin: usize,
}

impl Received {
    /// The program's data.
    pub(super) fn data(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }
}

/// A queue pair for one address of ours.
#[derive(Debug)]
pub(super) struct Way {
    local: IpAddr,
    /// In front of each datagram of ours.
    source: Vec<u8>,
    qp: Arc<Qp>,
    cq: Cq,
    channel: CompChannel,
    receive: Mr,
    send: Mr,
    /// Slots of the send buffer that are free.
    free: Vec<u32>,
    slots: u32,
    armed: bool,
    /// Bytes of a datagram with its header at most.
    most: usize,
    /// It looks after the queue pair.
    _id: CmId,
}

impl Way {
    /// Makes one for an id whose device is known; what it sends says that it is from `source`.
    pub(super) fn new(settings: &Settings, id: CmId, source: SocketAddr) -> Result<Self, SocketError> {
        let context = id.context().ok_or(SocketError::NotConnected)?;
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let slots = |bytes: u32, most: u16| (bytes / SLOT as u32).clamp(1, most.into());
        let receives = slots(settings.receive_buffer, settings.receives);
        let sends = slots(settings.send_buffer, settings.sends);
        let cq = context.create_cq(sends + receives, Some(&channel))?;
        let caps = QpCaps {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: settings.inline.into(),
        };
        let init = QpInit { caps, signal_all: true, ..QpInit::new(QpType::Ud, &cq) };
        let qp = id.create_qp(&pd, &init)?;
        let way = Self {
            local: source.ip(),
            source: encode_source(source),
            receive: pd.alloc_mr(receives as usize * (SLOT + GRH), Access::LOCAL_WRITE)?,
            send: pd.alloc_mr(sends as usize * SLOT, Access::LOCAL_WRITE)?,
            free: (0..sends).collect(),
            slots: sends,
            armed: false,
            most: SLOT.min(context.port().active_mtu.bytes() as usize),
            qp,
            cq,
            channel,
            _id: id,
        };
        (0..receives).try_for_each(|slot| way.post_receive(slot))?;
        Ok(way)
    }

    pub(super) const fn local(&self) -> IpAddr {
        self.local
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// The descriptor that becomes readable once the queue is armed.
    pub(super) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Whether a datagram can be sent.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether all that was sent has left.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.slots as usize
    }

    /// Bytes of a datagram of ours.
    ///
    /// # Errors
    /// [`SocketError::TooLong`].
    pub(super) fn measure(&self, data: &[&[u8]]) -> Result<usize, SocketError> {
        let (len, most) = (length(data), self.most - self.source.len());
        if len <= most { Ok(len) } else { Err(SocketError::TooLong { len, most }) }
    }

    fn post_receive(&self, slot: u32) -> Result<(), SocketError> {
        let sge = self.receive.sge(slot as usize * (SLOT + GRH), (SLOT + GRH) as u32);
        Ok(self.qp.post_recv(&RecvWr { wr_id: RECEIVE | u64::from(slot), sges: &[sge] })?)
    }

    /// Has the channel become readable with the next completion; whether it had not been asked for that before.
    pub(super) fn arm(&mut self) -> bool {
        let new = !core::mem::replace(&mut self.armed, true);
        if new {
            self.cq.req_notify(false);
        }
        new
    }

    /// Takes the channel's event; whether it was there.
    pub(super) fn take_event(&mut self) -> bool {
        let Some(cq) = self.armed.then(|| self.channel.try_get_event()).flatten() else { return false };
        cq.ack_events(1);
        self.armed = false;
        true
    }

    /// Takes what has completed; datagrams go to the inbox while that has fewer than `most`. How many completions.
    pub(super) fn progress(&mut self, inbox: &mut VecDeque<Received>, most: usize) -> u64 {
        let (mut done, mut all) = ([Completion::default(); BATCH], 0);
        while let Ok(count @ 1..) = self.cq.poll(&mut done) {
            all += count as u64;
            done[..count].iter().for_each(|wc| self.take(wc, inbox, most));
        }
        all
    }

    fn take(&mut self, wc: &Completion, inbox: &mut VecDeque<Received>, most: usize) {
        let slot = wc.wr_id as u32;
        if wc.wr_id & RECEIVE == 0 {
            self.free.push(slot);
            return;
        }
        let len = (wc.byte_len as usize).saturating_sub(GRH).min(SLOT);
        if wc.status == WcStatus::Success && inbox.len() < most {
            let at = slot as usize * (SLOT + GRH) + GRH;
            let bytes = self.receive.read_vec(at, len).unwrap_or_default();
            if let Some((from, data)) = decode_source(&bytes) {
                let begin = bytes.len() - data.len();
                inbox.push_back(Received { from, bytes, begin });
            }
        }
        // A queue pair that takes none any more has ended.
        let _ = self.post_receive(slot);
    }

    /// Sends a datagram of ours by a slot; there is one.
    pub(super) fn send_own(&mut self, data: &[&[u8]], dest: UdDest) -> Result<(), SocketError> {
        let source = core::mem::take(&mut self.source);
        let sent = self.send(&source, data, dest);
        self.source = source;
        sent
    }

    /// Sends one with another header.
    pub(super) fn send(&mut self, header: &[u8], data: &[&[u8]], dest: UdDest) -> Result<(), SocketError> {
        let (len, most) = (header.len() + length(data), self.most);
        if len > most {
            return Err(SocketError::TooLong { len, most });
        }
        let Some(slot) = self.free.pop() else { return Err(SocketError::WouldBlock) };
        let at = slot as usize * SLOT;
        let mut end = at;
        for part in core::iter::once(&header).chain(data) {
            // It is our own memory, and what is sent has been measured.
            let _ = self.send.write_at(end, part);
            end += part.len();
        }
        let sges = [self.send.sge(at, (end - at) as u32)];
        let payload = Payload::Sges(&sges);
        let wr = SendWr {
            wr_id: slot.into(),
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload,
            dest: Some(dest),
            xrc_srq: 0,
        };
        if let Err(error) = self.qp.post_send(&wr) {
            self.free.push(slot);
            return Err(error.into());
        }
        Ok(())
    }
}

fn length(parts: &[&[u8]]) -> usize {
    parts.iter().map(|part| part.len()).sum()
}
